"""`python -m benchmarks limit` at toy size: every step decodes the same tokens, and what is counted adds up."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import limit
from minispec import cli, theory
from minispec.generate import generate
from minispec.load.handle import Model
from minispec.measure import Rate, weight_bytes
from minispec_course.labs import ladder, pairs, tiles, timeline
from minispec_course.labs.timeline import Event, Timeline

TOY = pairs.SHAPES["toy"]


@pytest.fixture(scope="module")
def pair() -> tuple[Model, Model]:
    return pairs.random_pair(TOY, "cpu", seed=3)


def test_smollm2_has_the_shape_of_the_stand_in():
    with torch.device("meta"):
        from minispec.model import Transformer

        assert sum(p.numel() for p in Transformer(pairs.SMOLLM2).parameters()) == 134_515_008


# ---------------------------------------------------------------- the steps


def test_every_step_generates_what_generate_does(pair):
    target, draft = pair
    prompt = pairs.prompt_of(TOY, 6)
    wanted = generate(target, prompt, 8, ignore_eos=True).tokens
    every = ladder.ways(target, draft, prompt, k=3, room=64)
    assert set(every) == {*ladder.STEPS, ladder.EAGER_CYCLE}
    for name, way in every.items():
        for _ in range(8):
            way.launch()
        [found] = way.decoder.fetch()
        assert found[:8] == wanted, name


def test_without_a_draft_there_is_no_cycle(pair):
    assert set(ladder.ways(pair[0], None, [1, 2], 1, 32)) == set(ladder.STEPS) - {ladder.CYCLE}


def test_the_bytes_of_a_token_are_weights_and_cache(pair):
    per_token = theory.kv_bytes_per_token(TOY.num_layers, TOY.num_kv_heads, TOY.head_dim, 4)
    assert ladder.bytes_per_token(pair[0], 0) == weight_bytes(pair[0])
    assert ladder.bytes_per_token(pair[0], 10) - weight_bytes(pair[0]) == 10 * per_token


@pytest.mark.slow
def test_a_climb_counts_and_relates(pair):
    target, draft = pair
    prompt = pairs.prompt_of(TOY, 6)
    result = ladder.climb(target, draft, prompt, 1e9, k=2, repeat=1, launches=2)
    assert set(result["steps"]) == {*ladder.STEPS, ladder.EAGER_CYCLE}
    assert result["predicted_seconds"] == result["bytes_per_token"] / 1e9
    for row in result["steps"].values():
        share = result["predicted_seconds"] / row["seconds_per_token"]["median"]
        assert row["fraction_of_bandwidth"] == pytest.approx(share)
    assert 1 <= result["cycle"]["tokens_per_cycle"] <= 3
    assert set(result["timelines"]) == set(ladder.DRAWN)
    kernels = timeline.unpacked(result["timelines"][ladder.EAGER]).kernels
    assert len(kernels) == result["steps"][ladder.EAGER]["kernels_per_token"] > 7 * TOY.num_layers


def test_the_memory_of_a_climb_holds_all_that_its_cycles_may_emit(pair, monkeypatch):
    rooms, real = [], ladder.ways
    monkeypatch.setattr(ladder, "ways", lambda *args: rooms.append(args[-1]) or real(*args))
    ladder.climb(*pair, pairs.prompt_of(TOY, 6), 1e9, k=2, repeat=1, launches=2, profile=False)
    assert rooms == [ladder.room_for(6, 2, 1, 2)]
    profiled = 2  # launches of each step
    assert rooms[0] >= 6 + ((1 + ladder.WARMUP) * 2 + profiled) * (2 + 1)


def test_a_shape_has_random_weights_and_a_name_its_own():
    target, _, prompt, weights = ladder.subject("toy", "cpu", 12, 0.05, 0)
    assert weights == "random" and len(prompt) == 12 and target.config == TOY
    target, draft, prompt, weights = ladder.subject("micro", "cpu", 300, 0.05, 0)
    assert weights == "trained" and len(prompt) == 300 and draft.config.num_layers < target.config.num_layers


def test_where_smollm2_is_not_to_be_had_its_shape_is(monkeypatch):
    def nowhere(name, device):
        raise ValueError("no network")

    monkeypatch.setattr(ladder, "load_model", nowhere)
    monkeypatch.setattr(pairs, "SMOLLM2", TOY)
    _, _, _, weights = ladder.subject("smollm2", "cpu", 5, 0.05, 0)
    assert weights.startswith("random")
    with pytest.raises(ValueError):
        ladder.subject("micro", "cpu", 5, 0.05, 0)


# ---------------------------------------------------------------- the timeline


def chrome(category: str, name: str, ts: float, dur: float) -> dict:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}


def test_a_gpu_s_trace_has_kernels_and_launches():
    events = [
        chrome("cuda_runtime", "cudaLaunchKernel", 100, 3),
        chrome("cuda_runtime", "cudaStreamSynchronize", 103, 50),
        chrome("kernel", "void gemv<float>(int)", 107, 4),
        chrome("gpu_memcpy", "Memcpy DtoD", 113, 1),
        chrome("cuda_runtime", "cudaMemcpyAsync", 104, 2),
        chrome("cpu_op", "aten::mm", 99, 5),
        {"ph": "i", "cat": "kernel", "name": "a mark", "ts": 1},
    ]
    seen = timeline.read(events, on_gpu=True)
    assert seen.kernels == [Event("gemv", 7, 4), Event("Memcpy DtoD", 13, 1)]
    assert [e.name for e in seen.launches] == ["cudaLaunchKernel", "cudaMemcpyAsync"]
    assert (seen.span, seen.busy, seen.gaps) == (7, 5, [2])


def test_a_cpu_s_trace_has_the_innermost_operators_that_work():
    events = [
        chrome("cpu_op", "aten::linear", 0, 10),
        chrome("cpu_op", "aten::mm", 1, 8),
        chrome("cpu_op", "aten::as_strided", 2, 1),
        chrome("cpu_op", "aten::add", 11, 2),
        chrome("cpu_op", "aten::narrow", 14, 3),  # looks at memory in another way, as slice inside it does
        chrome("cpu_op", "aten::slice", 15, 1),
    ]
    seen = timeline.read(events, on_gpu=False)
    assert [e.name for e in seen.kernels] == ["mm", "add"] and seen.launches == seen.kernels


@pytest.mark.parametrize("launches", [None, [Event("launch", 0.0, 1.0)], []])
def test_packing_loses_nothing(launches):
    kernels = [Event("a", 0.0, 1.5), Event("b", 2.0, 0.5), Event("a", 4.0, 1.0)]
    one = Timeline(kernels, kernels if launches is None else launches)
    assert timeline.unpacked(json.loads(json.dumps(one.packed()))) == one


@pytest.mark.parametrize(
    ("long", "wanted"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)", "add"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(X)>(int)", "direct_copy"),
        ("void cublasLt::splitKreduce_kernel<32, 16>(int)", "splitKreduce_kernel"),
        (
            "void at::native::elementwise_kernel<4, at::native::gpu_kernel_impl<at::native::BinaryFunctor<X>>>()",
            "Binary",
        ),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<X>(int)", "CatArrayBatchedCopy"),
        ("_product", "_product"),
        ("aten::bmm", "bmm"),
    ],
)
def test_names_are_short_and_say_what_is_computed(long, wanted):
    assert timeline.short(long) == wanted


# ---------------------------------------------------------------- the sweeps


def test_tiles_fit_the_matrix_and_the_shared_memory():
    some = tiles.candidates(4096, 4096, torch.bfloat16, 227 * 1024)
    assert len(some) == 12 and len({(t.rows, t.wide) for t in some}) == 12
    assert {t.rows for t in tiles.candidates(32, 64, torch.float32, 227 * 1024)} == {16, 32}
    for shared in (64 * 1024, 99 * 1024, 227 * 1024):
        for t in tiles.candidates(4096, 4096, torch.bfloat16, shared):
            assert tiles.shared_bytes(t, torch.bfloat16, torch.bfloat16, False, hopper=shared > 200e3) <= shared


def test_what_a_gpu_refuses_is_named_and_left_out():
    def refuses(copy):
        raise RuntimeError("out of resource")

    fine, refused = tiles.runnable({"a": lambda copy: copy, "b": refuses})
    assert list(fine) == ["a"] and "out of resource" in refused["b"]


def test_sweeps_measure_torch_and_say_why_not_more(monkeypatch):
    monkeypatch.setattr(tiles, "read_bandwidth", lambda device: Rate(1e10, 9e9, 1.1e10, 3))
    product = tiles.sweep_product("cpu", torch.float32, (32, 64), repeat=1)
    assert product["bytes"] == 32 * 64 * 4
    assert product["torch"]["bytes_per_second"] == product["bytes"] / product["torch"]["seconds"]["median"]
    splits = tiles.sweep_splits("cpu", torch.float32, (4, 2, 8), 32, repeat=1)
    assert splits["bytes"] == 2 * 2 * 32 * 8 * 4
    both = tiles.sweep_both("cpu", torch.float32, 1, (32, 64), ((4, 2, 8), 32))
    assert both["tiles"]["bytes"] == product["bytes"] and both["splits"]["bytes"] == splits["bytes"]
    for sweep in (product, splits):
        assert bool(sweep["results"]) == (sweep["unavailable"] is None)


# ---------------------------------------------------------------- on the command line


@pytest.mark.slow
def test_the_command_writes_what_it_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(limit, "read_bandwidth", lambda device: Rate(1e10, 9e9, 1.1e10, 3))
    file = tmp_path / "limit.json"
    code = cli.main(
        [
            "bench",
            "limit",
            "--models",
            "toy",
            "--context",
            "8",
            "--repeat",
            "1",
            "--device",
            "cpu",
            "--k",
            "2",
            "--json",
            str(file),
        ]
    )
    out, err = capsys.readouterr()
    assert code == 0, err
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["benchmark"] == "limit" and result["recorded"] is False and result["models_asked"] == ["toy"]
    assert all(step in out for step in result["models"]["toy"]["steps"])
    assert max(map(len, out.splitlines())) <= 80
