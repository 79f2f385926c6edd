"""Decoding in fixed shapes: on the CPU unrecorded, on a GPU by CUDA graphs, and everywhere equal to the reference."""

from concurrent.futures import ThreadPoolExecutor

import cycle_checks
import fast_checks as checks
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import minispec as ms
from minispec.gpu import attention as flash_decode
from minispec.gpu import backend as fast
from minispec.gpu import gemm as skinny
from minispec.gpu import weights as graphs
from minispec.gpu.decode import FastDecoder, FastSpeculator, TreeSpeculator
from minispec.gpu.heads import on_device
from minispec.gpu.weights import FastTransformer
from minispec.measure import plain_speed, verify_curve
from minispec_tools.demo import demo

pytestmark = pytest.mark.slow

# ---------------------------------------------------------------- equal to the reference


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_logits_are_the_reference_s(dtype):
    checks.check_logits(dtype=dtype)


def test_the_kernel_is_told_the_right_lengths(monkeypatch):
    """On a GPU the kernel attends; here its twin in torch takes its place."""
    monkeypatch.setattr(flash_decode, "flash_decode", flash_decode.flash_decode_torch)
    checks.check_logits(dtype=torch.float32, attend=graphs.flash)


def test_the_lean_way_is_the_same_way(monkeypatch):
    """On a GPU a kernel computes its products; here its twin in torch takes the kernel's place."""
    calls = []

    def twin(x, *args, **given):
        calls.append((type(x), *given))
        return skinny.skinny_torch(x, *args, **given)

    monkeypatch.setattr(skinny, "skinny", twin)
    monkeypatch.setattr(skinny, "fits", lambda x, weight: x.shape[:-1].numel() <= 6)  # larger passes go the other way
    checks.check_logits(lean=True)
    half, whole = skinny.HalfNormed, torch.Tensor
    between = {(half, "eps"), (half, "eps", "swiglu"), (whole, "eps", "residual", "gain")}
    assert set(calls) == between | {(whole, "eps"), (whole,)}  # the first norm and the last are done before


@pytest.mark.parametrize("ks, count", [((3,), 24), pytest.param((1, 2, 4, 7), 60, marks=pytest.mark.nightly)])
def test_greedy_tokens_are_the_reference_s(ks, count):
    checks.check_greedy(ks=ks, count=count)


def test_sampled_tokens_are_the_reference_s_seed_for_seed():
    checks.check_sampled(count=20)


def test_texts_end_where_the_reference_s_do():
    checks.check_end_is_a_cut()


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("k", [1, 3])
def test_lengths_after_every_cycle(k):
    checks.check_lengths(k=k)


def test_what_does_not_fit_is_refused_before_work():
    checks.check_capacity()


def test_memory_grows_with_the_texts():
    checks.check_memory_grows()
    checks.check_numbers_are_not_recorded()


# ---------------------------------------------------------------- what makes a launch capturable


class NoLooking(TorchDispatchMode):
    """Raises where a number would be looked at, or a shape depend on one: a capture could not do that."""

    FORBIDDEN = ("_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal", "lift_fresh")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        assert name not in self.FORBIDDEN, f"{function} waits for the device"
        return function(*args, **(kwargs or {}))


class NoWaiting(NoLooking):
    """To assign a number to a slice makes a tensor of it on a CPU, which does not happen on a GPU."""

    FORBIDDEN = tuple(name for name in NoLooking.FORBIDDEN if name != "lift_fresh")


def decoders(sampling: ms.Sampling):
    for name in ("plain", "model", "medusa", "eagle", "dflash"):
        target, draft = (FastTransformer(model.transformer, 2, 64) for model in checks.pair())
        if name == "plain":
            yield FastDecoder(target, sampling), NoLooking
        elif name == "model":
            yield FastSpeculator(target, draft, 3, sampling), NoLooking
        else:
            drafter = cycle_checks.trees()[name][1]
            yield TreeSpeculator(target, on_device(drafter)(drafter, target, 3), 3, sampling), NoWaiting


@pytest.mark.parametrize("sampling", [ms.Sampling(), ms.Sampling(0.8), ms.Sampling(0.8, 9, 0.9, 0.01)], ids=str)
def test_no_launch_looks_at_a_number(sampling):
    """Nor does it leave the memory that a capture knows; to do it twice from one state is to do the same twice."""
    for decoder, watch in decoders(sampling):
        decoder.start([[3, 1, 4], [1, 5]], seed=0)
        addresses = [tensor.data_ptr() for tensor in decoder.state()]
        with watch():
            decoder.launch(2)
        assert [tensor.data_ptr() for tensor in decoder.state()] == addresses  # changed in place
        before, texts = [tensor.clone() for tensor in decoder.state()], []
        for _ in range(2):
            decoder.step(), decoder.step()
            texts.append(decoder.text.clone())
            for tensor, value in zip(decoder.state(), before, strict=True):
                tensor.copy_(value)
        assert torch.equal(*texts), f"{decoder}: a capture's warm-up leaves traces"
    with watch(), pytest.raises(AssertionError, match="waits"):
        int(decoder.count[0])


# ---------------------------------------------------------------- for users


def test_text_stop_and_stream(tiny_text):
    pieces = []
    expected = ms.generate(tiny_text, "Once upon", 30, stream=pieces.append)
    quick, streamed = checks.slow(tiny_text), []
    out = checks.generate(quick, "Once upon", 30, stream=streamed.append)
    assert (out.text, out.tokens) == (expected.text, expected.tokens)
    assert "".join(streamed) == "".join(pieces) == out.text
    stop = expected.text[5:8]
    assert checks.generate(quick, "Once upon", 30, stop=stop).text == expected.text.split(stop)[0]
    shown = []
    drafter = ms.drafters.Model(ms.Model("twin", tiny_text.transformer))
    out = checks.speculate(quick, "Once upon", drafter, 3, 30, stop=stop, on_cycle=shown.append)
    assert out.text == expected.text.split(stop)[0] and out.finish_reason == "stop"
    assert shown == out.trace.cycles and out.trace.acceptance_rate == 1.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_are_an_error_not_a_token(make_model, temperature):
    model, draft = make_model(), make_model(num_layers=1)
    expected = checks.generate(model, [5, 9], 12, temperature=temperature, seed=0)
    broken = make_model()
    broken.transformer.layers[1].mlp.down_proj.weight[3, 4] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        checks.generate(broken, [5, 9], 12, temperature=temperature)
    with pytest.raises(ValueError, match="NaN"):
        checks.speculate(broken, [5, 9], ms.drafters.Model(draft), 2, 12, temperature=temperature)
    if temperature:  # a greedy draft's are only bad guesses
        with pytest.raises(ValueError, match="NaN"):
            checks.speculate(model, [5, 9], ms.drafters.Model(broken), 2, 12, temperature=temperature)
    assert checks.generate(model, [5, 9], 12, temperature=temperature, seed=0).tokens == expected.tokens


def test_under_inference_mode_and_outside_it_alternately(make_model):
    model, draft = make_model(), make_model(num_layers=1)
    expected = ms.generate(checks.slow(model), [5, 9], 12).tokens
    for inside in (True, False, True, False):
        with torch.inference_mode(inside):
            assert checks.generate(model, [5, 9], 12).tokens == expected
            assert checks.speculate(model, [5, 9], ms.drafters.Model(draft), 2, 12).tokens == expected


def test_a_model_with_a_fast_side_uses_it(make_model, monkeypatch):
    """One prompt is decoded by launches of whole cycles, early exit's too, and every cycle's parts are timed. What is
    drafted by the host, and batches, are in cycle_checks.py."""
    model, draft, asked = make_model(seed=1), make_model(seed=1, num_layers=1), []
    expected = ms.generate(model, [5, 9], 12).tokens
    model.accelerate()
    for name in ("decoder", "speculator"):
        real = getattr(model.backend, name)
        monkeypatch.setattr(model.backend, name, lambda *rest, real=real: asked.append(real(*rest)) or asked[-1])
    assert ms.generate(model, [5, 9], 12).tokens == expected and isinstance(asked.pop(), fast.CapturedDecoder)
    for drafter in (ms.drafters.Model(draft), ms.drafters.EarlyExit(model, 1)):
        out = ms.speculate(model, [5, 9], drafter, 3, 12)
        assert out.tokens == expected and isinstance(asked.pop(), fast.CapturedSpeculator)
        for cycle in out.trace.cycles:
            assert min(cycle.draft_seconds, cycle.verify_seconds, cycle.sample_seconds) > 0
    assert ms.speculate(model, [5, 9], ms.drafters.Model(model), 3, 12).tokens == expected
    assert asked.pop() is not None  # the target drafts for itself: not the same memory


# ---------------------------------------------------------------- one call at a time


def test_four_threads_generate_what_each_would_alone(make_model):
    model, draft = make_model(seed=1), make_model(seed=1, num_layers=1)
    prompts, drafter = [[5, 9], [7], [3, 1, 4], [2, 2]], ms.drafters.Model(draft)
    expected = [ms.generate(model, prompt, 16, temperature=1.0, seed=i).tokens for i, prompt in enumerate(prompts)]
    greedy = [ms.generate(model, prompt, 16).tokens for prompt in prompts]
    model.accelerate(), draft.accelerate()

    def work(i: int) -> list[list[int]]:
        sampled = [ms.generate(model, prompts[i], 16, temperature=1.0, seed=i).tokens for _ in range(3)]
        return [*sampled, ms.speculate(model, prompts[i], ms.drafters.Model(draft), 3, 16).tokens]

    with ThreadPoolExecutor(4) as pool:
        for i, outs in enumerate(pool.map(work, range(4))):
            assert outs == [expected[i]] * 3 + [greedy[i]]
    assert ms.speculate(model, [5, 9], drafter, 3, 16).tokens == greedy[0]


def test_generate_inside_a_callback_disturbs_nobody(tiny_text):
    expected, inner = ms.generate(tiny_text, "Once upon", 30), ms.generate(tiny_text, "The fox", 10)
    quick = checks.slow(tiny_text)
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


# ---------------------------------------------------------------- on a GPU, captured


def test_the_demo_and_the_measurement_work_where_cycles_are_recorded(tiny_text):
    """They divide by the times of cycles and passes, which captured ones once did not have."""
    target, draft = checks.slow(tiny_text), ms.Model("twin", tiny_text.transformer)
    target.accelerate()
    result = demo(target, ms.drafters.Model(draft), "Once upon", 12, 3, temperature=0.0, repeat=1)
    assert result.c > 0 and result.v > 0 and result.predicted > 0 and "E[N]" in result.text()
    points = verify_curve(target, (1, 2, 4), 20, repeat=1, warmup=0)
    assert [point.tokens for point in points] == [1, 2, 4] and all(point.time.median > 0 for point in points)
    assert int(target.backend.memories[1].lengths) >= 20 and not target.backend.lease.lock.locked()
    assert plain_speed(target, new_tokens=4, repeat=1, warmup=0).median > 0
