"""Checks that decoding in fixed shapes (weights.py, decode.py, backend.py) is decoding: logits, tokens, distributions.

test_fast.py runs them on the CPU, where a launch just does its work. On a GPU, where it replays a capture, without
pytest:

    PYTHONPATH=.:tests python3 tests/gpu/fast_checks.py
"""

import gc
import time
import traceback
from collections.abc import Callable
from functools import cache, partial
from unittest import TestCase

import torch
from tiny_models import blurred, random_model

import minispec as ms
from minispec.gpu import backend as fast
from minispec.gpu.decode import FastDecoder, FastSpeculator
from minispec.gpu.graph import Captured
from minispec.gpu.weights import FastTransformer
from minispec.model import RopeScaling

PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18])
SHAPES = {
    "llama": {},
    "qwen2": dict(qkv_bias=True, tie_embeddings=True),
    "qwen3": dict(qk_norm=True),
    "biased": dict(qkv_bias=True, out_bias=True, mlp_bias=True, num_kv_heads=4),
    "stretched": dict(rope_scaling=RopeScaling(4.0, 1.0, 4.0, 32), num_kv_heads=1),
    "few words": dict(head_vocab=40),
}


@cache
def pair(device="cpu", dtype=torch.float64) -> tuple[ms.Model, ms.Model]:
    """A target with end tokens, which some of the prompts come to, and a draft with noise on every weight."""
    target, draft = random_model(num_layers=3, dtype=dtype, device=device), blurred(num_layers=3)
    draft.transformer.to(device, dtype)
    return ms.Model("ends", target.transformer, None, {42, 31}), draft


refused = partial(TestCase().assertRaisesRegex, ValueError)  # where there may be no pytest


def slow(model: ms.Model) -> ms.Model:
    """The same model without a fast side: the reference."""
    return ms.Model("reference", model.transformer, model.tokenizer, model.end_tokens)


# ---- logits --------------------------------------------------------------------------------------------------------


def check_logits(device="cpu", dtype=torch.float64, shapes=tuple(SHAPES), **options) -> None:
    """Passes of all sizes over two rows of different lengths, with a rewind between, score what the reference does."""
    tokens = torch.randint(0, 64, (2, 30), generator=torch.Generator().manual_seed(0)).to(device)
    for name in shapes:
        shape = SHAPES[name]
        model = random_model(dtype=dtype, device=device, **shape)
        expected = random_model(**shape).transformer(tokens.cpu()).logits  # float64, and not fused
        # Half precision: as good as the reference in half precision, which rounds as often, is all one can ask.
        tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}.get(dtype) or 2 * distance(
            model.transformer(tokens).logits, expected
        )
        quick = FastTransformer(model.transformer, 2, 40, **options)
        lengths = torch.tensor([7, 4], device=device)
        quick.prefill(tokens[:, :7], lengths)
        for count, kept in ((1, 1), (5, 2), (2, 2), (5, 5), (1, 1), (3, 0), (8, 8)):
            start = quick.lengths.tolist()
            new = torch.stack([row[at : at + count] for row, at in zip(tokens, start, strict=True)])
            wanted = torch.stack([row[at : at + count] for row, at in zip(expected, start, strict=True)])
            error = distance(quick.step(new), wanted)
            assert error < tolerance, f"{name}, {count} tokens: the logits are off by {error:.1e}"
            assert quick.lengths.tolist() == [at + count for at in start]
            quick.lengths.copy_(torch.tensor(start, device=device) + kept)
        assert distance(model.transformer(tokens).logits, expected) < tolerance  # it still works, on shared matrices


def distance(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """‖logits − expected‖ / ‖expected‖ where both are finite, which must be in the same places."""
    logits, seen = logits.double().cpu(), expected.isfinite()
    assert torch.equal(seen, logits.isfinite())
    return float((logits - expected)[seen].norm() / expected[seen].norm())


# ---- tokens --------------------------------------------------------------------------------------------------------


def generate(model: ms.Model, *rest, **options) -> ms.Output:
    """ms.generate by the captured backend."""
    model.accelerate()
    return ms.generate(model, *rest, **options)


def speculate(model: ms.Model, *rest, **options) -> ms.Output:
    """ms.speculate by the captured backend: every cycle is a launch."""
    model.accelerate()
    with_launches = lambda: sum(len(d.began) for d in model.backend.decoders.values() if isinstance(d, FastSpeculator))  # noqa: E731
    out = ms.speculate(model, *rest, **options)
    assert with_launches() >= len(out.trace.cycles), "the cycles did not go through the backend"
    return out


def check_greedy(device="cpu", dtype=torch.float64, ks=(1, 3, 7), count: int = 36) -> None:
    """Token for token what the reference writes: plain and speculative, to an end token and to the length."""
    target, draft = pair(device, dtype)
    endless = ms.Model("endless", target.transformer)
    finishes, accepted = set(), set()
    for model in (target, endless):
        for prompt in PROMPTS:
            expected = ms.generate(slow(model), prompt, count)
            finishes.add(expected.finish_reason)
            assert_same(generate(model, prompt, count), expected)
            for k in ks:
                out = speculate(model, prompt, ms.drafters.Model(draft), k, count)
                assert_same(out, expected)
                reference = ms.speculate(slow(model), prompt, ms.drafters.Model(draft), k, count).trace
                assert_same_cycles(out, reference, k)
                accepted |= {(k, cycle.accepted) for cycle in out.trace.cycles}
    assert finishes == {"stop", "length"}
    assert all({0, k} <= {a for of, a in accepted if of == k} for k in ks if k <= 4), "some cycles must end each way"


def assert_same(out: ms.Output, expected: ms.Output) -> None:
    assert (out.tokens, out.text, out.finish_reason) == (expected.tokens, expected.text, expected.finish_reason)
    assert out.prompt_tokens == expected.prompt_tokens


def assert_same_cycles(out: ms.Output, reference: ms.Trace, k: int) -> None:
    """The reference's cycles, apart from the last one: it drafts no more than there is room for."""
    written = 0
    for cycle, other in zip(out.trace.cycles, reference.cycles, strict=True):
        assert cycle.committed == out.prompt_tokens + written == other.committed
        assert cycle.kept == other.kept and cycle.tokens == other.tokens
        if len(other.drafted) == k:
            assert (cycle.drafted, cycle.path, cycle.token, cycle.bonus) == (
                other.drafted,
                other.path,
                other.token,
                other.bonus,
            )
            assert cycle.q == other.q and torch.allclose(torch.tensor(cycle.p), torch.tensor(other.p))
        written += cycle.kept
    assert written == len(out.tokens)


def check_sampled(device="cpu", count: int = 40) -> None:
    """Seed for seed the reference's tokens, until it drafts less because the end is near."""
    target, draft = pair(device)
    ways = (1, None), (3, ms.Sampling(2.0)), (5, ms.Sampling()), (3, None)
    for knobs in (dict(temperature=0.8), dict(temperature=1.3, top_k=9, top_p=0.9, min_p=0.01)):
        for seed, (prompt, (k, own)) in enumerate(zip(PROMPTS, ways, strict=True)):
            options = dict(seed=seed) | knobs
            plain = ms.generate(slow(target), prompt, count, **options)
            assert_same(generate(target, prompt, count, **options), plain)
            drafter = ms.drafters.Model(draft, own)
            out, again = (speculate(target, prompt, drafter, k, count, **options) for _ in range(2))
            expected = ms.speculate(slow(target), prompt, drafter, k, count, **options)
            assert out.tokens[: count - k] == expected.tokens[: count - k] and again.tokens == out.tokens
            for cycle, other in zip(out.trace.cycles, expected.trace.cycles, strict=False):
                if len(other.drafted) == k:
                    assert cycle.drafted == other.drafted
                    for mine, theirs in ((cycle.p, other.p), (cycle.q, other.q)):
                        assert torch.allclose(torch.tensor(mine), torch.tensor(theirs), atol=1e-6)


def check_end_is_a_cut(device="cpu", dtype=torch.float64) -> None:
    """Whatever the end token is and wherever the looks fall, the text is the endless one, cut after it."""
    target, draft = pair(device, dtype)
    endless = ms.Model("endless", target.transformer)
    text = ms.generate(slow(endless), PROMPTS[2], 40).tokens
    for place in (0, 1, 6, 7, 8, 15, 39):
        model = ms.Model("ends", target.transformer, None, {text[place]})
        expected = text[: text.index(text[place]) + 1]
        model.accelerate()
        assert generate(model, PROMPTS[2], 40).tokens == expected
        out = speculate(model, PROMPTS[2], ms.drafters.Model(draft), 3, 40)
        assert (out.tokens, out.finish_reason) == (expected, "stop")
        assert sum(cycle.kept for cycle in out.trace.cycles) == len(expected)


# ---- memory --------------------------------------------------------------------------------------------------------


def check_lengths(device="cpu", dtype=torch.float64, k: int = 3, cycles: int = 25) -> None:
    """After every cycle: the target has read all tokens but the last; the draft too, or one less after a = k."""
    models = pair(device, dtype)
    batch = len(PROMPTS)
    target, draft = (FastTransformer(model.transformer, batch, 160) for model in models)
    decoder = FastSpeculator(target, draft, k)
    decoder.start(PROMPTS)
    assert target.lengths.tolist() == draft.lengths.tolist() == [len(prompt) - 1 for prompt in PROMPTS]
    texts = [list(prompt) for prompt in PROMPTS]
    seen = set()
    for _ in range(cycles):
        decoder.ask()
        for row, last in enumerate(decoder.answer()):
            assert last.committed == len(texts[row])
            texts[row] += last.tokens
            seen.add(last.accepted)
            assert int(decoder.count[row]) == len(texts[row])
            assert int(target.lengths[row]) == len(texts[row]) - 1
            assert int(draft.lengths[row]) == len(texts[row]) - (2 if last.accepted == k else 1)
    assert {0, k} <= seen
    for row, text in enumerate(texts):  # the memory is that of one pass over the text
        for fresh, quick in zip(models, (target, draft), strict=True):
            held = int(quick.lengths[row])
            cache = fresh.transformer.new_cache(1, held)
            fresh.transformer(torch.tensor([text[:held]], device=device), cache)
            assert torch.allclose(quick.cache.keys[:, row, :, :held], cache.keys[:, 0], atol=1e-4)
            assert torch.allclose(quick.cache.values[:, row, :, :held], cache.values[:, 0], atol=1e-4)


def check_capacity(device="cpu", dtype=torch.float64) -> None:
    """A text may fill the memory to the last slot; a launch that might need one more is refused before it starts."""
    target, draft = (FastTransformer(model.transformer, 1, 64) for model in pair(device, dtype))
    endless = ms.Model("endless", pair(device, dtype)[0].transformer)
    prompt = [*PROMPTS[2]] * 5  # 60 tokens
    expected = ms.generate(slow(endless), prompt, 5).tokens
    for decoder, most in ((FastDecoder(target), 1), (FastSpeculator(target, draft, 3), 4)):
        with refused("capacity=64"):
            decoder.launch()  # nothing has started
        decoder.start([prompt])
        with refused("capacity=64"):
            decoder.launch(6)
        assert int(decoder.count) == 60 and target.lengths.tolist() == [59]  # nothing has happened
        decoder.launch(5 if most == 1 else 1)
        new = decoder.text[0, len(prompt) : int(decoder.count)].tolist()
        assert new == expected[: len(new)] and len(new) >= 1 and int(decoder.count) <= 65
        if most == 1:
            assert len(new) == 5 and target.lengths.tolist() == [64]
        with refused("capacity=64"):
            decoder.launch(2)
        with refused("capacity=64"):
            decoder.start([[1] * 65])


def check_memory_grows(device="cpu", dtype=torch.float64) -> None:
    """Longer texts get more memory, a capture of the old one is never used again, and few are kept."""
    target = random_model(dtype=dtype, device=device)
    draft = random_model(num_layers=1, max_length=8192, dtype=dtype, device=device)
    drafter = ms.drafters.Model(draft)
    for model in (target, draft):
        model.accelerate()
    for prompt, count in (([5, 9], 10), ([5] * 240, 16), ([5] * 496, 16), ([5, 9], 12)):  # to the last slot, twice
        plain = ms.generate(slow(target), prompt, count).tokens
        assert speculate(target, prompt, drafter, 4, count).tokens == plain
        assert generate(draft, prompt, count).tokens == ms.generate(slow(draft), prompt, count).tokens
    longer = target.backend.memories[1].capacity + 1  # than the target's memory, which begins larger on a GPU
    generate(draft, [5] * longer, 12)  # a longer text of the draft's own: its memory moves, the target's does not
    assert speculate(target, [7], drafter, 4, 12).tokens == ms.generate(slow(target), [7], 12).tokens
    *_, decoder = target.backend.decoders.values()
    assert draft.backend.memories[1].capacity > target.backend.memories[1].capacity
    assert all(a is b for a, b in zip(decoder.captured.state, decoder.state(), strict=True)), "captured on old memory"
    for k in range(1, fast.CAPTURES + 2):
        speculate(target, [5], drafter, k, 2)
    assert len(target.backend.decoders) == fast.CAPTURES


def check_numbers_are_not_recorded(device="cpu", dtype=torch.float64) -> None:
    """Another temperature, top_k, top_p, min_p or seed needs no other capture, and gives what the eager loop does."""
    target = random_model(dtype=dtype, device=device)
    draft = random_model(num_layers=1, dtype=dtype, device=device)
    drafters = ms.drafters.Model(draft), ms.drafters.Model(draft, ms.Sampling(0.7))
    ways = [
        [dict(temperature=0.7, seed=1), dict(temperature=1.4, seed=2), dict(temperature=1e-40, seed=1)],
        [dict(temperature=1.0, top_k=3, top_p=0.7, min_p=0.1), dict(temperature=0.9, top_k=99, top_p=0.2, min_p=0.5)],
        [dict(temperature=1.0, top_k=2), dict(temperature=1.0, top_k=5), dict(temperature=1.0, top_k=64)],
    ]
    for kind in ways:
        known = None
        for options in kind:
            options = dict(seed=3) | options
            plain = ms.generate(slow(target), [5, 9], 12, **options).tokens
            assert generate(target, [5, 9], 12, **options).tokens == plain
            for drafter in drafters:
                expected = ms.speculate(slow(target), [5, 9], drafter, 3, 12, **options).tokens[:8]
                assert speculate(target, [5, 9], drafter, 3, 12, **options).tokens[:8] == expected
            assert known is None or list(target.backend.decoders) == known, "captured anew"
            known = list(target.backend.decoders)


# ---- on a GPU only -------------------------------------------------------------------------------------------------


def check_replay(device="cuda") -> None:
    """A capture does what its work does, random numbers included, and the first launch counts like any other."""
    for sampling in (ms.Sampling(), ms.Sampling(0.9), ms.Sampling(0.9, top_k=20, top_p=0.95, min_p=0.01)):
        target, draft = (FastTransformer(model.transformer, 1, 256) for model in pair(device, torch.float32))
        for decoder in (FastDecoder(target, sampling), FastSpeculator(target, draft, 4, sampling)):
            texts = []
            for captured in (True, True, False):
                if not captured:
                    decoder.captured = Captured(decoder.step, decoder.state())
                    decoder.captured.eager = True
                decoder.start([PROMPTS[0]], seed=7)
                decoder.launch(20)
                texts.append(decoder.text[0, len(PROMPTS[0]) : int(decoder.count)].tolist())
            assert texts[0] == texts[1], "a seed repeats a run"
            assert texts[0] == texts[2], "replayed and not replayed"
            assert len(texts[0]) >= 20


def check_flat_memory(device="cuda", launches: int = 1000) -> None:
    """A thousand cycles of a seed, in several texts, leave memory as it was."""
    gc.collect()  # what other checks left behind goes now, not in the middle
    target, draft = (FastTransformer(model.transformer, 1, 256) for model in pair(device, torch.float32))
    decoder = FastSpeculator(target, draft, 4, ms.Sampling(1.0))
    used = []
    for text in range(launches // 40):
        decoder.start([PROMPTS[0]], seed=text)
        for _ in range(40):
            decoder.launch()
            int(decoder.count)
        torch.cuda.synchronize()
        used.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(set(used[1:])) == 1, f"memory moved: {sorted(set(used[1:]))}"


def run_on_the_gpu(checks: dict[str, Callable[[], None]]) -> None:
    """All of them, one line each; ends with how many failed."""
    print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU", flush=True)
    failed = 0
    for name, check in checks.items():
        start, error = time.perf_counter(), None
        try:
            check()
        except Exception as caught:
            error, failed = caught, failed + 1
        print(f"{'FAILED' if error else 'ok':<7}{name:<20}{time.perf_counter() - start:6.1f} s", flush=True)
        if error:
            traceback.print_exception(error)
    raise SystemExit(failed)


def main() -> None:
    cuda, half = dict(device="cuda", dtype=torch.float32), dict(device="cuda", dtype=torch.bfloat16)
    ways = {"float32": cuda, "bfloat16": half, "lean": half | dict(lean=True), "float32, lean": cuda | dict(lean=True)}
    checks = {f"logits, {name}": partial(check_logits, **way) for name, way in ways.items()}
    same = check_greedy, check_end_is_a_cut, check_lengths, check_capacity, check_memory_grows
    checks |= {check.__name__[6:]: partial(check, **cuda) for check in same}
    alone = check_numbers_are_not_recorded, check_replay, check_flat_memory
    checks |= {check.__name__[6:]: partial(check, "cuda") for check in (*alone, check_sampled)}
    run_on_the_gpu(checks)


if __name__ == "__main__":
    main()
