"""What is run beside the package, most of it by the command `minispec`.

cli        the command line: demo, models, measure, why, serve, bench, train, and the commands of the course
demo       a draft model and its target generate a completion, then what it was worth
serve      an engine behind HTTP, spoken to as OpenAI's API is
measure    a model on this machine, in numbers; the timing itself is minispec/measure.py
why        why speculation is not faster: suspects, from a server's log or metrics
bench      the measurements behind docs/benchmarks.md
train      how the shipped drafts and heads were trained
parallel   a model split over several devices
export     trained heads in the layouts that vLLM and SGLang read
"""
