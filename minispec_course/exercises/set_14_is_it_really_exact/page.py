# %% [markdown]
# # Exercises 14: bugs from the field
#
# Lesson 14 tests samplers that were broken on purpose. The programs here are broken by accident: each one is a short
# version of a mistake that was reported against a system people use. You get the program and the symptom as the reporter
# saw it. Find the cause before you change anything, then repair the program. The check runs it on small cases, compares
# with plain decoding or computes exact distributions, and names what is still wrong. Each exercise stands alone.
#
# In every program the line with `raise` keeps the check quiet until you begin: delete it first. The program below it runs,
# so you can call it, print from it, and let the check show you the smallest case that fails.

# %%
import torch

from minispec.verify import accept_probability, pick, residual
from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="14.argmax_draft"
# ## 1. A greedy draft, a sampled output
#
# > *"Both models run, the target at temperature 1. With speculation on, the draft model's favourite word is everywhere. With
# > speculation off, the distribution is right. Our unit test of the acceptance rule passes."*
#
# Reported as [speculative-sampling #3](https://github.com/jaymody/speculative-sampling/issues/3), and again in [rtp-llm
# #1311](https://github.com/alibaba/rtp-llm/pull/1311). The program drafts one token and verifies it. The drafter is greedy
# and has to stay greedy.
#
# | | | |
# |---|---|---|
# | `p`, `q` | tensors `[V]` | the distributions of target and draft model (softmax of their logits) |
# | `random` | function | `random()` is a fresh number in [0, 1); compare it, or give it to `pick` |
# | returns | `(token, accepted)` | the emitted token, and whether it is the draft token that was accepted |

# %% [markdown] exercise="14.two_precisions"
# ## 2. Two versions of q
#
# > *"A χ² test over ten million tokens rejects our sampler. The bias is tiny, it changes with the prompt, and it is gone when
# > the draft model runs in float32."*
#
# Reported as [DeepSpec #31](https://github.com/deepseek-ai/DeepSpec/issues/31). The draft model's head computes in bfloat16.
# `pick` samples from whatever it is given, divided by its sum.
#
# | | | |
# |---|---|---|
# | `p` | tensor `[V]`, float64 | the target's distribution |
# | `logits` | tensor `[V]`, float64 | the draft model's logits |
# | returns | whole number | the emitted token; it must follow `p`, up to $10^{-6}$ |


# %% exercise="14.two_precisions"
def verify_rounded_draft(p: torch.Tensor, logits: torch.Tensor, random) -> int:
    """One position: sample a draft token in bfloat16, verify it by rejection sampling."""
    ### BEGIN SOLUTION: delete the next line, then compare what is sampled from with what is tested
    q = logits.bfloat16().softmax(0).double()
    q = q / q.sum()  # eight bits of mantissa: the sum is near 1, but not 1
    d = pick(q, random())
    if random() < accept_probability(p, q, d):
        return d
    return pick(residual(p, q), random())
    ### AS REPORTED
    sampled = logits.bfloat16().softmax(0)
    d = pick(sampled, random())
    q = logits.softmax(0)  # the verifier gets logits, too, and is careful
    if random() < accept_probability(p, q, d):
        return d
    return pick(residual(p, q), random())
    ### END SOLUTION


# %% exercise="14.two_precisions"
check("14.two_precisions", verify_rounded_draft)

# %% [markdown] exercise="14.penalties"
# ## 3. A penalty that gets weaker with a better draft
#
# > *"frequency_penalty hardly works since we enabled the new draft model. The better its acceptance, the more the output
# > repeats itself. Without speculation the same request is fine."*
#
# Reported as [SGLang #33643](https://github.com/sgl-project/sglang/pull/33643) and
# [vLLM #18902](https://github.com/vllm-project/vllm/issues/18902). The program verifies one draft greedily. A token that was
# emitted $n$ times before loses $n \cdot \text{penalty}$ of its logit.
#
# | | | |
# |---|---|---|
# | `logits` | tensor `[k + 1, V]` | the target's, at every position of the verify pass |
# | `draft` | list of k tokens | may be empty |
# | `counts` | tensor `[V]` of whole numbers | how often each token was emitted before this step |
# | `penalty` | number | the frequency penalty |
# | returns | `(emitted, counts)` | the tokens of this step, and the counts after it; do not change the argument |


# %% exercise="14.penalties"
def penalised_step(
    logits: torch.Tensor, draft: list[int], counts: torch.Tensor, penalty: float
) -> tuple[list[int], torch.Tensor]:
    """One greedy draft–verify step under a frequency penalty. Equal to plain decoding, token by token."""
    ### BEGIN SOLUTION: delete the next line, then ask when plain decoding would update the counts
    counts, emitted = counts.clone(), []
    for i in range(len(draft) + 1):
        choice = int((logits[i] - penalty * counts).argmax())
        emitted.append(choice)
        counts[choice] += 1  # the next position comes after this token
        if i == len(draft) or choice != draft[i]:
            break
    return emitted, counts
    ### AS REPORTED
    counts, emitted = counts.clone(), []
    for i in range(len(draft) + 1):
        choice = int((logits[i] - penalty * counts).argmax())
        emitted.append(choice)
        if i == len(draft) or choice != draft[i]:
            break
    counts[emitted[-1]] += 1
    return emitted, counts
    ### END SOLUTION


# %% exercise="14.penalties"
check("14.penalties", penalised_step)

# %% [markdown] exercise="14.eos"
# ## 4. The end in the middle of a step
#
# > *"Sometimes the answer is complete, and then a few random words follow. It depends on the prompt and on k. finish_reason
# > says length, although the model did emit EOS."*
#
# Reported as [transformers #47912](https://github.com/huggingface/transformers/issues/47912),
# [koboldcpp #1276](https://github.com/LostRuins/koboldcpp/issues/1276) and, with the limit in the same step,
# [SGLang #33758](https://github.com/sgl-project/sglang/pull/33758).
#
# | | | |
# |---|---|---|
# | `steps` | list of lists of tokens | what each step emitted: accepted draft tokens and one more |
# | `eos` | list of tokens | each of them ends the output |
# | `max_new_tokens` | whole number ≥ 1 | the limit |
# | returns | `(output, reason)` | as plain decoding: EOS is part of the output; `"stop"`, `"length"`, or `None` if it still runs |


# %% exercise="14.eos"
def finish(steps: list[list[int]], eos: list[int], max_new_tokens: int) -> tuple[list[int], str | None]:
    """Collect the output of a request, step by step, until it ends."""
    ### BEGIN SOLUTION: delete the next line, then ask which tokens of a step are looked at
    output: list[int] = []
    for emitted in steps:
        for token in emitted:
            output.append(token)
            if token in eos:
                return output, "stop"
            if len(output) == max_new_tokens:
                return output, "length"
    return output, None
    ### AS REPORTED
    output: list[int] = []
    for emitted in steps:
        output += emitted
        if len(output) >= max_new_tokens:
            return output[:max_new_tokens], "length"
        if output[-1] in eos:
            return output, "stop"
    return output, None
    ### END SOLUTION


# %% exercise="14.eos"
check("14.eos", finish)

# %% [markdown] exercise="14.stop_string"
# ## 5. A stop string inside a step
#
# > *"stop is ignored now and then, only with speculation, and more often with long drafts. The text simply runs through the
# > stop string."*
#
# Reported as [SGLang #23802](https://github.com/sgl-project/sglang/pull/23802); the tokens that stay after the stop, as
# [vLLM #47616](https://github.com/vllm-project/vllm/pull/47616). Tokens are given as strings of at least
# one character.
#
# | | | |
# |---|---|---|
# | `steps` | list of lists of strings | the tokens of each step |
# | `stop` | string | the stop string |
# | returns | `(text, tokens)` | the text before the stop string, and how many tokens are kept: up to the one that completes it |


# %% exercise="14.stop_string"
def until_stop(steps: list[list[str]], stop: str) -> tuple[str, int]:
    """The text of a request up to its stop string, and its tokens."""
    ### BEGIN SOLUTION: delete the next line, then ask where in a step a stop string can end
    tokens: list[str] = []
    for step in steps:
        for piece in step:
            tokens.append(piece)
            text = "".join(tokens)
            if stop in text:
                return text[: text.index(stop)], len(tokens)
    return "".join(tokens), len(tokens)
    ### AS REPORTED
    tokens: list[str] = []
    for step in steps:
        tokens += step
        window = tokens[-len(stop) :]  # a stop string has at most so many tokens
        if stop in "".join(window):
            whole = "".join(tokens)
            return whole[: whole.index(stop)], len(tokens)
    return "".join(tokens), len(tokens)
    ### END SOLUTION


# %% exercise="14.stop_string"
check("14.stop_string", until_stop)

# %% [markdown] exercise="14.grammar"
# ## 6. A grammar that remembers rejected tokens
#
# > *"JSON mode with speculation: `Failed to advance FSM`, or a closing brace too early. The longer the draft, the more
# > often. The masks look right when I print them for one step."*
#
# Rolling back the matcher is what [vLLM #48197](https://github.com/vllm-project/vllm/issues/48197) is about;
# [openvino.genai #4081](https://github.com/openvinotoolkit/openvino.genai/issues/4081) shows a crash of this family. Here
# the grammar is an automaton: `grammar[state][token]` is the next state, or `None` if the token is not allowed.
#
# | | | |
# |---|---|---|
# | `grammar` | list of lists | a next state or `None` for each state and token; every state allows some token |
# | `state` | whole number | the state of the automaton before the step |
# | `logits` | tensor `[k + 1, V]` | the target's; the best *allowed* token is chosen |
# | `draft` | list of k tokens | not all of them need be allowed |
# | returns | `(emitted, state)` | the tokens of the step, and the state after them |


# %% exercise="14.grammar"
def constrained_step(
    grammar: list[list[int | None]], state: int, logits: torch.Tensor, draft: list[int]
) -> tuple[list[int], int]:
    """One greedy draft–verify step under a grammar."""
    ### BEGIN SOLUTION: delete the next line, then ask which tokens the state at the end stands for
    states = [state]
    for d in draft:
        if grammar[states[-1]][d] is None:
            break
        states.append(grammar[states[-1]][d])
    emitted = []
    for i, at in enumerate(states):
        allowed = [x for x, after in enumerate(grammar[at]) if after is not None]
        emitted.append(max(allowed, key=lambda x: float(logits[i][x])))
        if i == len(draft) or emitted[-1] != draft[i]:
            break
    accepted = states[len(emitted) - 1]  # the state after the accepted tokens; rejected ones lead nowhere
    return emitted, grammar[accepted][emitted[-1]]
    ### AS REPORTED
    states = [state]
    for d in draft:
        if grammar[states[-1]][d] is None:
            break
        states.append(grammar[states[-1]][d])
    emitted = []
    for i, at in enumerate(states):
        allowed = [x for x, after in enumerate(grammar[at]) if after is not None]
        emitted.append(max(allowed, key=lambda x: float(logits[i][x])))
        if i == len(draft) or emitted[-1] != draft[i]:
            break
    return emitted, grammar[states[-1]][emitted[-1]]
    ### END SOLUTION


# %% exercise="14.grammar"
check("14.grammar", constrained_step)

# %% [markdown] exercise="14.draft_cache"
# ## 7. One token short after a full acceptance
#
# > *"Outputs are right, but acceptance decays within a request: 80 % in the first hundred tokens, 40 % after a thousand. A
# > fresh request starts high again."*
#
# Reported as [mlxcel #1002](https://github.com/lablup/mlxcel/pull/1002), solved in vLLM by
# [#5765](https://github.com/vllm-project/vllm/pull/5765); cycles without a draft, as [vllm-metal
# #716](https://github.com/vllm-project/vllm-metal/pull/716). In each cycle the draft model first processes the tokens of
# the sequence that its cache lacks, which gives draft token 1. Each further pass processes the draft token before it and
# gives the next one. A draft model whose cache has a gap raises no error. It just guesses worse.
#
# | | | |
# |---|---|---|
# | `prompt` | list of tokens | none of it is in the draft model's cache at first |
# | `cycles` | list of `(draft, emitted)` | draft tokens of each cycle, perhaps none, and what was emitted: the accepted ones and one more |
# | returns | list of lists of tokens | for each cycle, what the draft model's first pass has to process; `[]` if it did not draft |


# %% exercise="14.draft_cache"
def first_passes(prompt: list[int], cycles: list[tuple[list[int], list[int]]]) -> list[list[int]]:
    """The tokens that the draft model is run on at the start of every cycle."""
    ### BEGIN SOLUTION: delete the next line, then ask in which pass the last draft token is processed
    sequence, cached, inputs = list(prompt), 0, []
    for draft, emitted in cycles:
        inputs.append(sequence[cached:] if draft else [])
        accepted = len(emitted) - 1
        if draft:  # its last token was sampled and never processed
            cached = len(sequence) + min(accepted, len(draft) - 1)
        sequence += emitted
    return inputs
    ### AS REPORTED
    sequence, cached, inputs = list(prompt), 0, []
    for draft, emitted in cycles:
        inputs.append(sequence[cached:] if draft else [])
        sequence += emitted
        cached = len(sequence) - 1  # rewind: all but the newest token are in the cache
    return inputs
    ### END SOLUTION


# %% exercise="14.draft_cache"
check("14.draft_cache", first_passes)

# %% [markdown] exercise="14.draft_vocabulary"
# ## 8. A table of offsets
#
# > *"Our EAGLE-3 head has 70 % top-1 accuracy in training. In the server nearly nothing is accepted. Outputs are right."*
#
# Reported as [verl-SpeCo #67](https://github.com/verl-project/verl-SpeCo/pull/67) and
# [Automodel #2447](https://github.com/NVIDIA-NeMo/Automodel/pull/2447); both come from the question of
# [EAGLE #222](https://github.com/SafeAILab/EAGLE/issues/222). An EAGLE-3 head predicts over a short list of frequent tokens.
# Its checkpoint holds a table `d2t`, from the draft's vocabulary to the target's: `d2t[i]` says how far token `i` of the draft
# has moved, so it is 0 where both agree.
#
# | | | |
# |---|---|---|
# | `probs` | tensor `[V_draft]` | the head's distribution over its own vocabulary |
# | `d2t` | tensor `[V_draft]` of whole numbers | the table of the checkpoint |
# | `vocab_size` | whole number | of the target |
# | returns | `(token, q)` | the most likely draft token, and q `[vocab_size]`, both in the target's ids |


# %% exercise="14.draft_vocabulary"
def to_target_ids(probs: torch.Tensor, d2t: torch.Tensor, vocab_size: int) -> tuple[int, torch.Tensor]:
    """A greedy draft token and its distribution, in the vocabulary of the target."""
    ### BEGIN SOLUTION: delete the next line, then print the table of a small case
    ids = torch.arange(len(probs)) + d2t
    q = torch.zeros(vocab_size, dtype=probs.dtype)
    q[ids] = probs
    return int(ids[probs.argmax()]), q
    ### AS REPORTED
    q = torch.zeros(vocab_size, dtype=probs.dtype)
    q[d2t] = probs
    return int(d2t[probs.argmax()]), q
    ### END SOLUTION


# %% exercise="14.draft_vocabulary"
check("14.draft_vocabulary", to_target_ids)

# %% [markdown] exercise="14.acceptance_length"
# ## 9. A mean acceptance length below one
#
# > *"The dashboard says 0.8 accepted tokens per step, the paper says 1.8, and the wall clock agrees with the paper."*
#
# Fixed in [vLLM #17908](https://github.com/vllm-project/vllm/pull/17908); what that fix still overcounts is [vLLM
# #56101](https://github.com/vllm-project/vllm/issues/56101). The metric should be what a user gets: tokens per forward pass
# of the target.
#
# | | | |
# |---|---|---|
# | `cycles` | list of `(drafted, accepted, emitted)` | counts of each forward pass, at least one; `emitted` ≥ 1 is what reached the output |
# | returns | number | the mean acceptance length |


# %% exercise="14.acceptance_length"
def mean_acceptance_length(cycles: list[tuple[int, int, int]]) -> float:
    """Tokens per forward pass of the target."""
    ### BEGIN SOLUTION: delete the next line, then compute by hand what a run without any acceptance gives
    return sum(emitted for _, _, emitted in cycles) / len(cycles)
    ### AS REPORTED
    return sum(accepted for _, accepted, _ in cycles) / len(cycles)
    ### END SOLUTION


# %% exercise="14.acceptance_length"
check("14.acceptance_length", mean_acceptance_length)

# %% [markdown] exercise="14.acceptance_rate"
# ## 10. A draft model that gets worse with k
#
# > *"With k = 2 the acceptance rate is 0.7, with k = 8 it is 0.3. Our tuner puts the rate into the formula for the speedup and
# > concludes that k = 1 is best, which is not what we measure."*
#
# Discussed in [vLLM #9565](https://github.com/vllm-project/vllm/issues/9565). The formula is that of lesson 07, in which α is
# the probability that a draft token passes its test.
#
# | | | |
# |---|---|---|
# | `cycles` | list of `(drafted, accepted)` | counts of each cycle; at least one draft token in total |
# | returns | number in [0, 1] | an estimate of α that does not depend on k |


# %% exercise="14.acceptance_rate"
def acceptance_rate(cycles: list[tuple[int, int]]) -> float:
    """α: how likely a draft token is to be accepted, given that it is tested."""
    ### BEGIN SOLUTION: delete the next line, then ask which draft tokens were tested at all
    tested = sum(min(accepted + 1, drafted) for drafted, accepted in cycles)
    return sum(accepted for _, accepted in cycles) / tested
    ### AS REPORTED
    return sum(accepted for _, accepted in cycles) / sum(drafted for drafted, _ in cycles)
    ### END SOLUTION


# %% exercise="14.acceptance_rate"
check("14.acceptance_rate", acceptance_rate)

# %% [markdown] exercise="14.joint"
# ## 11. Cycle after cycle
#
# This is a tool for finding such bugs. `cycle(context)` is the exact distribution of what one cycle emits after a context,
# a dictionary from tuples of tokens to probabilities. What is the distribution of the decoder's first $n$ tokens? A cycle's
# output may be longer, and then it is cut; it may be shorter, and then another cycle follows, after a longer context.
#
# | | | |
# |---|---|---|
# | `cycle` | function | `cycle((3, 1))` is what a cycle may emit after tokens 3 and 1, at least one token |
# | `n` | whole number ≥ 1 | |
# | returns | dictionary | from tuples of `n` tokens to their probabilities |

# %% [markdown]
# ## What they have in common
#
# Five of the ten programs are right as long as a step emits a single token, and nine of them never raise an error. A step
# of speculative decoding processes several tokens, some of which were proposed by another model and some of which are
# thrown away. So ask of every line that runs once per step: should it run once per token? And of every number: which
# distribution, which tokens, which passes was it counted over?
