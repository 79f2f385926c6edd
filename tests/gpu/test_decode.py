"""Decoding one prompt by launches of fixed shape (weights.py, decode.py, backend.py) is decoding: the same logits,
tokens and memory, on a CPU without captures and on a GPU with them."""

import gc
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from reference import PROMPTS, SHAPES, NoSync, capturable, distance, endless, pair, slow, usual_dtype
from test_cycles import heads_on_the_device
from tiny_models import random_model

import minispec as ms
from minispec.gpu import attention, backend, gemm, weights
from minispec.gpu.decode import FastDecoder, FastSpeculator, TreeSpeculator
from minispec.gpu.graph import Captured
from minispec.gpu.heads import on_device
from minispec.gpu.weights import FastTransformer
from minispec.measure import plain_speed, verify_curve
from minispec_tools.demo import demo

pytestmark = pytest.mark.slow
HALF, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64
Model = ms.drafters.Model


# ---- logits --------------------------------------------------------------------------------------------------------


def check_logits(device: str, dtype: torch.dtype, **options) -> None:
    """Passes of all sizes over two rows of different lengths, with a rewind between, score what the reference does."""
    tokens = torch.randint(0, 64, (2, 30), generator=torch.Generator().manual_seed(0)).to(device)
    for name, shape in SHAPES.items():
        model = random_model(dtype=dtype, device=device, **shape)
        expected = random_model(**shape).transformer(tokens.cpu()).logits  # float64, and not fused
        # Half precision: as good as the reference in half precision, which rounds as often, is all one can ask.
        # RoPE's angles are float32, and a GPU's cosine of one may be the next number.
        tolerance = {torch.float64: 1e-10 if device == "cpu" else 1e-6, torch.float32: 1e-4}.get(dtype) or 2 * distance(
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


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE, HALF])
def test_logits_are_the_reference_s(dtype, device):
    check_logits(device, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_logits_by_fused_products_are_the_reference_s(dtype, device):
    """A kernel computes the products of few tokens, and what is fused into them."""
    check_logits(device, dtype, lean=True)


def test_every_product_takes_its_norm_and_its_sum_along(monkeypatch):
    """On a CPU the kernel's reference takes its place."""
    calls = []

    def reference(x, *args, **given):
        calls.append((type(x), *given))
        return gemm.skinny_torch(x, *args, **given)

    monkeypatch.setattr(gemm, "skinny", reference)
    monkeypatch.setattr(gemm, "fits", lambda x, weight: x.shape[:-1].numel() <= 6)  # larger passes go the other way
    check_logits("cpu", DOUBLE, lean=True)
    half, whole = gemm.HalfNormed, torch.Tensor
    between = {(half, "eps"), (half, "eps", "swiglu"), (whole, "eps", "residual", "gain")}
    assert set(calls) == between | {(whole, "eps"), (whole,)}  # the first norm and the last are done before


def test_the_attention_kernel_is_given_the_right_lengths(monkeypatch):
    """On a GPU the kernel attends; here its reference in torch takes its place."""
    monkeypatch.setattr(attention, "flash_decode", attention.flash_decode_torch)
    check_logits("cpu", SINGLE, attend=weights.flash)


# ---- tokens -------------------------------------------------------------------------------------------------------


def generate(model: ms.Model, *rest, **options) -> ms.Output:
    """ms.generate by the captured backend."""
    model.accelerate()
    return ms.generate(model, *rest, **options)


def speculate(model: ms.Model, *rest, **options) -> ms.Output:
    """ms.speculate by the captured backend: every cycle is a launch."""
    model.accelerate()
    with patch.object(FastSpeculator, "once", autospec=True, side_effect=FastSpeculator.once) as once:
        out = ms.speculate(model, *rest, **options)
    assert once.call_count >= len(out.trace.cycles), "the cycles did not go through the backend"
    made = [made for made in model.backend.decoders.values() if isinstance(made, FastSpeculator)]
    assert all(len(decoder.began) == len(decoder.arrivals) for decoder in made), "a moment is kept for every cycle"
    return out


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


@pytest.mark.parametrize("ks, count", [((3,), 24), pytest.param((1, 2, 4, 7), 60, marks=pytest.mark.nightly)])
def test_greedy_tokens_are_the_reference_s(ks, count, device):
    """Token for token what the reference generates: plain and speculative, to an end token and to the length."""
    target, draft = pair(device, usual_dtype(device))
    finishes, accepted = set(), set()
    for model in (target, endless(target)):
        for prompt in PROMPTS:
            expected = ms.generate(slow(model), prompt, count)
            finishes.add(expected.finish_reason)
            assert_same(generate(model, prompt, count), expected)
            for k in ks:
                out = speculate(model, prompt, Model(draft), k, count)
                assert_same(out, expected)
                reference = ms.speculate(slow(model), prompt, Model(draft), k, count).trace
                assert_same_cycles(out, reference, k)
                accepted |= {(k, cycle.accepted) for cycle in out.trace.cycles}
    assert finishes == {"stop", "length"}
    assert all({0, k} <= {a for of, a in accepted if of == k} for k in ks if k <= 4), "some cycles must end each way"


def test_sampled_tokens_are_the_reference_s_seed_for_seed(device, count=20):
    """Seed for seed the reference's tokens, until it drafts less because the end is near."""
    target, draft = pair(device)
    ways = (1, None), (3, ms.Sampling(2.0)), (5, ms.Sampling()), (3, None)
    for knobs in (dict(temperature=0.8), dict(temperature=1.3, top_k=9, top_p=0.9, min_p=0.01)):
        for seed, (prompt, (k, own)) in enumerate(zip(PROMPTS, ways, strict=True)):
            options = dict(seed=seed) | knobs
            plain = ms.generate(slow(target), prompt, count, **options)
            assert_same(generate(target, prompt, count, **options), plain)
            drafter = Model(draft, own)
            out, again = (speculate(target, prompt, drafter, k, count, **options) for _ in range(2))
            expected = ms.speculate(slow(target), prompt, drafter, k, count, **options)
            assert out.tokens[: count - k] == expected.tokens[: count - k] and again.tokens == out.tokens
            for cycle, other in zip(out.trace.cycles, expected.trace.cycles, strict=False):
                if len(other.drafted) == k:
                    assert cycle.drafted == other.drafted
                    for mine, theirs in ((cycle.p, other.p), (cycle.q, other.q)):
                        assert torch.allclose(torch.tensor(mine), torch.tensor(theirs), atol=1e-6)


def test_outputs_end_where_the_reference_s_do(device):
    """Whatever the end token is and however many launches are under way, the output is cut after it."""
    target, draft = pair(device, usual_dtype(device))
    endless_output = ms.generate(slow(endless(target)), PROMPTS[2], 40).tokens
    for at in (0, 1, 6, 7, 8, 15, 39):
        model = ms.Model("ends", target.transformer, None, {endless_output[at]})
        expected = endless_output[: endless_output.index(endless_output[at]) + 1]
        model.accelerate()
        assert generate(model, PROMPTS[2], 40).tokens == expected
        out = speculate(model, PROMPTS[2], Model(draft), 3, 40)
        assert (out.tokens, out.finish_reason) == (expected, "stop")
        assert sum(cycle.kept for cycle in out.trace.cycles) == len(expected)


def test_another_temperature_or_seed_needs_no_other_capture(device):
    """Another temperature, top_k, top_p, min_p or seed needs no other capture, and gives what the eager loop does."""
    target = random_model(device=device)
    draft = random_model(num_layers=1, device=device)
    drafters = Model(draft), Model(draft, ms.Sampling(0.7))
    ways = [
        [dict(temperature=0.7, seed=1), dict(temperature=1.4, seed=2), dict(temperature=1e-40, seed=1)],
        [dict(temperature=1.0, top_k=3, top_p=0.7, min_p=0.1), dict(temperature=0.9, top_k=99, top_p=0.2, min_p=0.5)],
        [dict(temperature=1.0, top_k=2), dict(temperature=1.0, top_k=5), dict(temperature=1.0, top_k=64)],
    ]
    for family in ways:
        known = None
        for options in family:
            options = dict(seed=3) | options
            plain = ms.generate(slow(target), [5, 9], 12, **options).tokens
            assert generate(target, [5, 9], 12, **options).tokens == plain
            for drafter in drafters:
                expected = ms.speculate(slow(target), [5, 9], drafter, 3, 12, **options).tokens[:8]
                assert speculate(target, [5, 9], drafter, 3, 12, **options).tokens[:8] == expected
            assert known is None or list(target.backend.decoders) == known, "captured anew"
            known = list(target.backend.decoders)


# ---- memory -------------------------------------------------------------------------------------------------------


def test_memory_grows_with_the_sequences(device):
    """Longer sequences get more memory, a capture of the old one is never used again, and few are kept."""
    target = random_model(dtype=usual_dtype(device), device=device)
    draft = random_model(num_layers=1, max_length=8192, dtype=usual_dtype(device), device=device)
    drafter = Model(draft)
    for model in (target, draft):
        model.accelerate()
    for prompt, count in (([5, 9], 10), ([5] * 240, 16), ([5] * 496, 16), ([5, 9], 12)):  # to the last slot, twice
        plain = ms.generate(slow(target), prompt, count).tokens
        assert speculate(target, prompt, drafter, 4, count).tokens == plain
        assert generate(draft, prompt, count).tokens == ms.generate(slow(draft), prompt, count).tokens
    longer = target.backend.memories[1].capacity + 1  # than the target's memory, which begins larger on a GPU
    generate(draft, [5] * longer, 12)  # a longer sequence of the draft's own: its memory moves, the target's does not
    assert speculate(target, [7], drafter, 4, 12).tokens == ms.generate(slow(target), [7], 12).tokens
    *_, decoder = target.backend.decoders.values()
    assert draft.backend.memories[1].capacity > target.backend.memories[1].capacity
    assert all(a is b for a, b in zip(decoder.captured.state, decoder.state(), strict=True)), "captured on old memory"
    for k in range(1, backend.CAPTURES + 2):
        speculate(target, [5], drafter, k, 2)
    assert len(target.backend.decoders) == backend.CAPTURES


@pytest.mark.gpu
def test_a_thousand_cycles_leave_memory_as_it_was(device):
    """A thousand cycles, 40 of each of 25 seeds, leave memory as it was."""
    gc.collect()  # what other tests left behind goes now, not in the middle
    target, draft = (FastTransformer(model.transformer, 1, 256) for model in pair(device, torch.float32))
    decoder = FastSpeculator(target, draft, 4, ms.Sampling(1.0))
    used = []
    for seed in range(25):
        decoder.start([PROMPTS[0]], seed=seed)
        for _ in range(40):
            decoder.launch()
            int(decoder.count)
        torch.cuda.synchronize()
        used.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(set(used[1:])) == 1, f"memory moved: {sorted(set(used[1:]))}"


# ---- what makes a launch capturable -------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_replay_does_what_its_work_does(device):
    """A capture does what its work does, random numbers included, and the first launch counts like any other."""
    for sampling in (ms.Sampling(), ms.Sampling(0.9), ms.Sampling(0.9, top_k=20, top_p=0.95, min_p=0.01)):
        target, draft = (FastTransformer(model.transformer, 1, 256) for model in pair(device, torch.float32))
        for decoder in (FastDecoder(target, sampling), FastSpeculator(target, draft, 4, sampling)):
            outputs = []
            for captured in (True, True, False):
                if not captured:
                    decoder.captured = Captured(decoder.step, decoder.state())
                    decoder.captured.eager = True
                decoder.start([PROMPTS[0]], seed=7)
                decoder.launch(20)
                outputs.append(decoder.text[0, len(PROMPTS[0]) : int(decoder.count)].tolist())
            assert outputs[0] == outputs[1], "a seed repeats a run"
            assert outputs[0] == outputs[2], "replayed and not replayed"
            assert len(outputs[0]) >= 20


def decoders(sampling: ms.Sampling):
    """Every kind, and the operation that it may use: on a CPU, to assign a number to a slice makes a tensor; the host
    makes one of random numbers, too."""
    made = "" if sampling.greedy else "lift_fresh"
    for name in ("plain", "model", "medusa", "eagle", "dflash"):
        target, draft = (FastTransformer(model.transformer, 2, 64) for model in pair())
        if name == "plain":
            yield FastDecoder(target, sampling), made
        elif name == "model":
            yield FastSpeculator(target, draft, 3, sampling), made
        else:
            drafter = heads_on_the_device()[name][1]
            yield TreeSpeculator(target, on_device(drafter)(drafter, target, 3), 3, sampling), "lift_fresh"


@pytest.mark.parametrize("sampling", [ms.Sampling(), ms.Sampling(0.8), ms.Sampling(0.8, 9, 0.9, 0.01)], ids=str)
def test_no_launch_waits_for_a_number(sampling):
    """Nor does it leave the memory that a capture knows; to do it twice from one state is to do the same twice."""
    for decoder, allowed in decoders(sampling):
        decoder.start([[3, 1, 4], [1, 5]], seed=0)
        with capturable(*decoder.state(), allowed=allowed):
            decoder.launch(2)
        before, outputs = [tensor.clone() for tensor in decoder.state()], []
        for _ in range(2):
            decoder.step(), decoder.step()
            outputs.append(decoder.text.clone())
            for tensor, value in zip(decoder.state(), before, strict=True):
                tensor.copy_(value)
        assert torch.equal(*outputs), f"{decoder}: a capture's warm-up leaves traces"
    with NoSync(), pytest.raises(AssertionError, match="waits"):
        int(decoder.count[0])


# ---- for users ----------------------------------------------------------------------------------------------------


def test_text_stop_and_stream_are_the_reference_s(tiny_text):
    pieces = []
    expected = ms.generate(tiny_text, "Once upon", 30, stream=pieces.append)
    quick, streamed = slow(tiny_text), []
    out = generate(quick, "Once upon", 30, stream=streamed.append)
    assert (out.text, out.tokens) == (expected.text, expected.tokens)
    assert "".join(streamed) == "".join(pieces) == out.text
    stop = expected.text[5:8]
    assert generate(quick, "Once upon", 30, stop=stop).text == expected.text.split(stop)[0]
    shown = []
    drafter = Model(ms.Model("twin", tiny_text.transformer))
    out = speculate(quick, "Once upon", drafter, 3, 30, stop=stop, on_cycle=shown.append)
    assert out.text == expected.text.split(stop)[0] and out.finish_reason == "stop"
    assert shown == out.trace.cycles and out.trace.acceptance_rate == 1.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_are_an_error_not_a_token(make_model, temperature):
    model, draft = make_model(), make_model(num_layers=1)
    expected = generate(model, [5, 9], 12, temperature=temperature, seed=0)
    broken = make_model()
    broken.transformer.layers[1].mlp.down_proj.weight[3, 4] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        generate(broken, [5, 9], 12, temperature=temperature)
    with pytest.raises(ValueError, match="NaN"):
        speculate(broken, [5, 9], Model(draft), 2, 12, temperature=temperature)
    if temperature:  # a greedy draft's are only bad guesses
        with pytest.raises(ValueError, match="NaN"):
            speculate(model, [5, 9], Model(broken), 2, 12, temperature=temperature)
    assert generate(model, [5, 9], 12, temperature=temperature, seed=0).tokens == expected.tokens


def test_calls_inside_inference_mode_and_outside_it_alternate(make_model):
    model, draft = make_model(), make_model(num_layers=1)
    expected = ms.generate(slow(model), [5, 9], 12).tokens
    for inside in (True, False, True, False):
        with torch.inference_mode(inside):
            assert generate(model, [5, 9], 12).tokens == expected
            assert speculate(model, [5, 9], Model(draft), 2, 12).tokens == expected


def test_a_model_with_a_backend_decodes_by_it(make_model, monkeypatch):
    """One prompt is decoded by launches of whole cycles, early exit's too, and every cycle's parts are timed. What is
    drafted by the host, and batches, are in test_cycles.py."""
    model, draft, asked = make_model(seed=1), make_model(seed=1, num_layers=1), []
    expected = ms.generate(model, [5, 9], 12).tokens
    model.accelerate()
    for name in ("decoder", "speculator"):
        real = getattr(model.backend, name)
        monkeypatch.setattr(model.backend, name, lambda *rest, real=real: asked.append(real(*rest)) or asked[-1])
    assert ms.generate(model, [5, 9], 12).tokens == expected and isinstance(asked.pop(), backend.CapturedDecoder)
    for drafter in (Model(draft), ms.drafters.EarlyExit(model, 1)):
        out = ms.speculate(model, [5, 9], drafter, 3, 12)
        assert out.tokens == expected and isinstance(asked.pop(), backend.CapturedSpeculator)
        for cycle in out.trace.cycles:
            assert min(cycle.draft_seconds, cycle.verify_seconds, cycle.sample_seconds) > 0
    assert ms.speculate(model, [5, 9], Model(model), 3, 12).tokens == expected
    assert asked.pop() is None  # the target drafts for itself: not the same memory


def test_four_threads_generate_what_each_would_alone(make_model):
    model, draft = make_model(seed=1), make_model(seed=1, num_layers=1)
    prompts, drafter = [[5, 9], [7], [3, 1, 4], [2, 2]], Model(draft)
    expected = [ms.generate(model, prompt, 16, temperature=1.0, seed=i).tokens for i, prompt in enumerate(prompts)]
    greedy = [ms.generate(model, prompt, 16).tokens for prompt in prompts]
    model.accelerate(), draft.accelerate()

    def work(i: int) -> list[list[int]]:
        sampled = [ms.generate(model, prompts[i], 16, temperature=1.0, seed=i).tokens for _ in range(3)]
        return [*sampled, ms.speculate(model, prompts[i], Model(draft), 3, 16).tokens]

    with ThreadPoolExecutor(4) as pool:
        for i, outs in enumerate(pool.map(work, range(4))):
            assert outs == [expected[i]] * 3 + [greedy[i]]
    assert ms.speculate(model, [5, 9], drafter, 3, 16).tokens == greedy[0]


def test_generate_inside_a_callback_disturbs_no_other_call(tiny_text, monkeypatch):
    expected, inner = ms.generate(tiny_text, "Once upon", 30), ms.generate(tiny_text, "The fox", 10)
    quick = slow(tiny_text)
    quick.accelerate()
    heard = []

    def listen(piece: str) -> None:
        heard.append(piece)
        assert ms.generate(quick, "The fox", 10).tokens == inner.tokens
        if len(heard) == 1:  # nor does a thread that this one waits for
            assert pool.submit(ms.generate, quick, "The fox", 10).result(30).tokens == inner.tokens

    with ThreadPoolExecutor(1) as pool:
        assert ms.generate(quick, "Once upon", 30, stream=listen).tokens == expected.tokens
    assert "".join(heard) == expected.text
    assert not quick.backend.lease.lock.locked()
    with pytest.raises(ZeroDivisionError):
        ms.generate(quick, "Once upon", 30, stream=lambda piece: 1 / 0)
    assert not quick.backend.lease.lock.locked()


def test_the_demo_and_the_measurement_work_where_cycles_are_captured(tiny_text):
    """They divide by the times of cycles and passes, which captured ones once did not have."""
    target, draft = slow(tiny_text), ms.Model("twin", tiny_text.transformer)
    target.accelerate()
    result = demo(target, Model(draft), "Once upon", 12, 3, temperature=0.0, repeat=1)
    assert result.c > 0 and result.v > 0 and result.predicted > 0 and "E[N]" in result.text()
    points = verify_curve(target, (1, 2, 4), 20, repeat=1, warmup=0)
    assert [point.tokens for point in points] == [1, 2, 4] and all(point.time.median > 0 for point in points)
    assert plain_speed(target, new_tokens=4, repeat=1, warmup=0).median > 0
