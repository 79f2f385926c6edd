"""Facts about the timing code, with clocks and devices that the test controls. No test here asserts a real time."""

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minispec import measure, theory
from minispec.cpu import trials as others
from minispec.load.model import Model
from minispec.measure import Rate, Timing
from minispec.model import Config, Transformer

CONFIG = Config(50, 24, 40, 2, 6, 2, 4, 96)


class Clock:
    """Stands still until `spend` is called."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Timed(Transformer):
    """A transformer whose passes take as long on a fake clock as the test says, and which logs how it is called."""

    def __init__(self, config, clock, cost):
        super().__init__(config)
        self.clock, self.cost, self.log, self.caches = clock, cost, [], []

    def new_cache(self, *args):
        self.caches.append(super().new_cache(*args))
        return self.caches[-1]

    def forward(self, tokens, cache=None, **options):
        self.log.append((tokens.shape[1], int(cache.lengths[0])))
        self.clock.spend(self.cost(tokens.shape[1], len(self.log)))
        return super().forward(tokens, cache, **options)


def tiny(clock=None, cost=None, **changes) -> Model:
    config = replace(CONFIG, **changes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer = Transformer(config) if clock is None else Timed(config, clock, cost)
    return Model("tiny", transformer.requires_grad_(False).eval())


# ---- the timer ----


def test_warmup_runs_but_does_not_count():
    clock, spent = Clock(), iter([100.0, 50.0, 1.0, 3.0, 2.0])
    timing = measure.median_time(lambda: clock.spend(next(spent)), repeat=3, warmup=2, clock=clock)
    assert timing == Timing(2.0, 1.5, 2.5, 3)
    assert next(spent, None) is None


def test_calls_take_turns_and_reset_is_off_the_clock():
    clock, log = Clock(), []

    def call(name, seconds):
        return lambda: (log.append(name), clock.spend(seconds))

    def reset():
        log.append("reset")
        clock.spend(1000.0)

    calls = {"a": call("a", 1.0), "b": call("b", 2.0), "c": call("c", 4.0)}
    times = measure.interleaved_times(calls, repeat=4, warmup=1, reset=reset, clock=clock)
    assert log == ["a", "reset", "b", "reset", "c", "reset"] * 5
    assert {name: t.median for name, t in times.items()} == {"a": 1.0, "b": 2.0, "c": 4.0}
    assert all(t.n == 4 for t in times.values())


def test_a_budget_ends_the_rounds_but_not_before_three():
    for seconds, rounds in ((0.0, 3), (6.5, 7), (1e9, 20)):
        clock = Clock()
        timing = measure.median_time(lambda c=clock: c.spend(1.0), repeat=20, warmup=0, seconds=seconds, clock=clock)
        assert timing.n == rounds


def test_waits_for_the_device(monkeypatch):
    """A device that takes orders at once and works only when waited for. Old work must not be charged to the call."""
    clock, queue = Clock(), [500.0]

    def synchronize(device):
        assert torch.device(device).type == "cuda"
        clock.spend(sum(queue))
        queue.clear()

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    timing = measure.median_time(
        lambda: queue.append(2.0), repeat=3, warmup=0, device="cuda", clock=clock, reset=lambda: queue.append(70.0)
    )
    assert timing == Timing(2.0, 2.0, 2.0, 3)


# ---- the machine ----


def test_machine_says_what_but_not_who():
    described = measure.machine()
    assert json.loads(json.dumps(described)) == described
    assert described["cpu"] and described["cores"] >= 1 and described["torch"] == torch.__version__
    assert described["threads"] == torch.get_num_threads()
    values = json.dumps(described)
    assert str(Path.home()) not in values and str(Path.cwd()) not in values
    node = platform.node()
    assert not node or node not in [str(v) for v in described.values()]


def test_bandwidth_is_bytes_read_over_time():
    steady = iter(range(10**6))
    rate = measure.read_bandwidth(size=2**20, repeat=3, clock=lambda: float(next(steady)))  # every call takes a second
    assert rate == Rate(2**20, 2**20, 2**20, 3)
    with pytest.raises(ValueError, match="size=100"):
        measure.read_bandwidth(size=100)


def test_flops_are_two_n_cubed_over_time():
    steady = iter(range(10**6))
    rate = measure.flops(repeat=3, clock=lambda: float(next(steady)))  # a second is over 10 ms: the first size will do
    assert rate == Rate(2 * 256**3, 2 * 256**3, 2 * 256**3, 3)


# ---- a model on the machine ----


def test_weight_bytes_leave_out_a_table_that_is_only_looked_up():
    parameters = theory.parameter_count(50, 24, 40, 2, 6, 2, 4, tied=True)
    for dtype in (torch.float32, torch.bfloat16):
        for model in (tiny(), tiny(tie_embeddings=True)):  # both read one table of that size: the LM head
            model.transformer.to(dtype)
            assert measure.weight_bytes(model) == parameters * dtype.itemsize


def test_plain_speed_is_one_pass_a_token_and_ignores_end_tokens():
    clock = Clock()
    model = tiny(clock, lambda tokens, call: 0.5)
    model.end_tokens = frozenset(range(50))
    rate = measure.plain_speed(model, new_tokens=6, repeat=2, warmup=1, clock=clock)
    assert rate == Rate(2.0, 2.0, 2.0, 2)
    assert model.transformer.log == [(1, length) for length in range(6)] * 3


def test_verify_curve_times_m_tokens_on_top_of_the_same_context():
    clock = Clock()
    model = tiny(clock, lambda tokens, call: 1 + tokens / 4)
    curve = measure.verify_curve(model, tokens=(1, 2, 5), context=20, repeat=3, warmup=1, clock=clock)
    log, (cache,) = model.transformer.log, model.transformer.caches
    assert log[0] == (20, 0)  # the context, once
    assert log[1:] == [(1, 20), (2, 20), (5, 20)] * 4  # then round-robin, always after the same 20 tokens
    assert cache.lengths.tolist() == [20]
    assert [(p.tokens, p.time.median, p.ratio) for p in curve] == [(1, 1.25, 1.0), (2, 1.5, 1.2), (5, 2.25, 1.8)]
    assert all(p.time.n == 3 for p in curve)


# ---- a quiet machine ----


def test_what_others_take_is_all_less_our_own(monkeypatch):
    clocks = {"own": 5.0, "all": 100.0, "wall": 0.0}
    monkeypatch.setattr(others.time, "process_time", lambda: clocks["own"])
    monkeypatch.setattr(others, "_all_seconds", lambda: clocks["all"])
    monkeypatch.setattr(others.time, "perf_counter", lambda: clocks["wall"])
    watch = measure.Watch()
    clocks.update(own=15.0, all=113.0, wall=10.0)  # we kept one core busy for ten seconds, others three seconds of one
    assert abs(watch.others() - 0.3) < 1e-9
    clocks.update(own=16.0, all=105.0)  # the kernel's clock is coarse: less than our own is nobody else's
    assert watch.others() == 0
    monkeypatch.setattr(others, "_all_seconds", lambda: None)  # a system that does not tell
    assert measure.Watch().others() is None and measure.warning(None, {"plain": 0.1}) is None
