"""From the user's seat, on a GPU: what one types after `import minispec as ms`, with every drafter.

    PYTHONPATH=.:tests python tests/gpu/seat_checks.py [cuda [NAME …]]

`generate`, `speculate` and an engine in float64, where greedy outputs must be equal, and sampled ones seed for seed;
one prompt and batches; threads and callbacks; the demo and the measurement in the dtype that `ms.load` chooses. micro
and what ships for it are enough.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from cycle_checks import same_cycles
from fast_checks import run_on_the_gpu

import minispec as ms
from minispec.drafters.by_name import DRAFTERS, by_name
from minispec.measure import measure
from minispec_course.demo import demo

PROMPT, COUNT = "Once upon a time", 48
PROMPTS = [PROMPT, "One day, a small bird", "The fox", "A boy found a ball"]


@cache
def micro(device: str, dtype=torch.float64) -> tuple[ms.Model, ms.Model]:
    return tuple(ms.load(name, device=device, dtype=dtype) for name in ("micro", "micro-draft"))


D = ms.drafters
TREES = {"medusa": D.Medusa, "eagle": D.Eagle, "dflash": D.DFlash, "mtp": D.MTP}  # the last drafts chains


def drafter(name: str, target: ms.Model) -> ms.drafters.Drafter:
    """Trees with as many nodes on every device: what suits a CPU is another number than what suits a GPU."""
    if name in TREES:
        return TREES[name](target, nodes=15)
    return DRAFTERS[name](target, micro(target.device.type, target.dtype)[1])


def check_speculate(device: str) -> None:
    """Every drafter gives the tokens of `generate`, greedy in float64, and every cycle has its times."""
    target, _ = micro(device)
    plain = ms.generate(target, PROMPT, COUNT)
    reference = ms.generate(micro("cpu")[0], PROMPT, COUNT)
    assert plain.tokens == reference.tokens, "the device decodes something else than the CPU"
    for name in DRAFTERS:
        for k in (3, "auto") if name == "model" else (3,):
            out = ms.speculate(target, PROMPT, drafter(name, target), k, COUNT)
            assert out.tokens == plain.tokens, f"{name}, k={k}"
            assert out.trace.seconds("verify") > 0, f"{name}, k={k}: cycles without times"
            print(f"    {name:<11} k={k}: {out.trace.tokens_per_cycle:.2f} tokens per forward pass", flush=True)


def check_engine(device: str) -> None:
    """The same in an engine, four requests at a time."""
    target, _ = micro(device)
    prompts = PROMPTS
    plain = [out.tokens for out in ms.generate(target, prompts, COUNT)]
    for name in (None, *DRAFTERS):
        engine = ms.Engine(target, name and drafter(name, target), num_blocks=128, max_num_seqs=4, k=3)
        found = [out.tokens for out in engine.generate(prompts, max_new_tokens=COUNT, progress=False)]
        assert found == plain, name
        engine.check_integrity()


def check_batches(device: str) -> None:
    """A batch of prompts: plain as one by one, and the same with every drafter, greedy; sampled as on a CPU."""
    target, _ = micro(device)
    plain = [out.tokens for out in ms.generate(target, PROMPTS, COUNT)]
    assert plain == [ms.generate(target, prompt, COUNT).tokens for prompt in PROMPTS]
    warm = dict(temperature=0.9, top_p=0.95, seed=2)
    assert texts(ms.generate(target, PROMPTS, COUNT, **warm)) == texts(
        ms.generate(micro("cpu")[0], PROMPTS, COUNT, **warm)
    )
    for name in DRAFTERS:
        assert texts(ms.speculate(target, PROMPTS, drafter(name, target), 3, COUNT)) == plain, name
        assert_same_sampled(device, name, PROMPTS, warm)


def check_sampled(device: str) -> None:
    """Sampled chains and trees of every drafter: cycle by cycle what the CPU's eager loop does with that seed, for as
    long as a whole draft has room; and a seed repeats a run."""
    for name in DRAFTERS:
        for options in (dict(temperature=0.8, seed=3), dict(temperature=1.1, top_p=0.9, seed=4)):
            assert_same_sampled(device, name, PROMPT, options)


def assert_same_sampled(device: str, name: str, prompt, options: dict, k: int = 3) -> None:
    target, reference = micro(device)[0], micro("cpu")[0]
    runs = [ms.speculate(model, prompt, drafter(name, model), k, COUNT, **options) for model in (target, reference)]
    for out, expected in zip(*([run] if isinstance(run, ms.Output) else run for run in runs), strict=True):
        some = min(4, len(expected.trace.cycles))  # a sampled text may end early
        assert same_cycles(out, expected, k, COUNT) >= some, name
        sure = COUNT - k if expected.finish_reason == "length" else COUNT
        assert out.tokens[:sure] == expected.tokens[:sure], name
    again = ms.speculate(target, prompt, drafter(name, target), k, COUNT, **options)
    assert texts(again) == texts(runs[0]), f"{name}: a seed does not repeat its run"


def texts(outs: ms.Output | list[ms.Output]) -> list[list[int]]:
    return [out.tokens for out in ([outs] if isinstance(outs, ms.Output) else outs)]


def check_seeds(device: str) -> None:
    """One seed, one output: from generate, from an engine, and from a CPU."""
    target, _ = micro(device)
    for seed in range(3):
        options = dict(temperature=0.9, top_p=0.95, seed=seed)
        out = ms.generate(target, PROMPT, COUNT, **options).tokens
        assert out == ms.generate(micro("cpu")[0], PROMPT, COUNT, **options).tokens, "the CPU samples something else"
        [served] = ms.Engine(target, num_blocks=64).generate([PROMPT], max_new_tokens=COUNT, **options)
        assert served.tokens == out, "an engine samples something else"


def check_early_ends(device: str) -> None:
    """min_new_tokens, stop strings and stop tokens, with and without a drafter."""
    target, draft = micro(device)
    plain = ms.generate(target, PROMPT, COUNT)
    for options in (
        dict(stop=plain.text[20:24]),
        dict(stop_token_ids=[plain.tokens[9]]),
        dict(stop_token_ids=[plain.tokens[3]], min_new_tokens=20),
    ):
        expected = ms.generate(micro("cpu")[0], PROMPT, COUNT, **options)
        for out in (
            ms.generate(target, PROMPT, COUNT, **options),
            ms.speculate(target, PROMPT, ms.drafters.Model(draft), 3, COUNT, **options),
        ):
            assert (out.tokens, out.text, out.stop_reason) == (expected.tokens, expected.text, expected.stop_reason)


def check_threads(device: str) -> None:
    """Twelve calls from four threads, a call from within a callback, and one beside a stream nobody reads on."""
    target, draft = micro(device)
    prompts = [PROMPT, "One day", "The fox", "A boy"]
    plain = [ms.generate(target, prompt, COUNT).tokens for prompt in prompts]

    def work(i: int) -> bool:
        i %= 4
        out = ms.speculate(target, prompts[i], ms.drafters.Model(draft), 3, COUNT) if i % 2 else None
        return (out or ms.generate(target, prompts[i], COUNT)).tokens == plain[i]

    with ThreadPoolExecutor(4) as pool:
        wrong = list(pool.map(work, range(12))).count(False)
    assert wrong == 0, f"{wrong} of 12 outputs are wrong"
    inside = []
    out = ms.generate(
        target, PROMPT, COUNT, stream=lambda _: inside.append(ms.generate(target, "One day", COUNT).tokens)
    )
    assert out.tokens == plain[0] and inside and all(tokens == plain[1] for tokens in inside)
    sleeping = ms.stream(target, PROMPT, COUNT)
    next(sleeping)
    assert ms.generate(target, "One day", COUNT).tokens == plain[1]


def check_demo(device: str) -> None:
    """`minispec demo` with every drafter, and `minispec measure`, in the dtype that load chooses."""
    target = ms.load("micro", device=device)
    for name in DRAFTERS:
        result = demo(target, by_name(name, target), PROMPT, 32, 3, temperature=0.0, repeat=2, seconds=4)
        assert result.c > 0 and result.v > 0
        print(
            f"    {name:<11} measured {result.measured:5.2f}, predicted {result.predicted:5.2f}, "
            f"c = {result.c:.2f}, v = {result.v:.2f}",
            flush=True,
        )
    print("    " + measure(target, quick=True).text().replace("\n", "\n    "), flush=True)


def main(device: str = "cuda", *names: str) -> None:
    checks = dict(
        speculate=check_speculate,
        engine=check_engine,
        batches=check_batches,
        sampled=check_sampled,
        seeds=check_seeds,
        ends=check_early_ends,
        threads=check_threads,
        demo=check_demo,
    )
    run_on_the_gpu({name: lambda name=name: checks[name](device) for name in names or checks})


if __name__ == "__main__":
    main(*sys.argv[1:])
