"""Passes that an engine launches before the tokens of the last one are known: they change nothing but the time."""

from types import SimpleNamespace

import pytest
from engine_helpers import assert_idle, endless, pair, serve

import minispec as ms
from minispec.gpu.passes import Buckets


@pytest.fixture
def count(monkeypatch) -> SimpleNamespace:
    """How often passes are launched as usual (`read`), and ahead (`again`)."""
    launches = SimpleNamespace(read=0, again=0)

    def counted(name: str, right):
        def call(*args, **options):
            setattr(launches, name, getattr(launches, name) + 1)
            return right(*args, **options)

        return call

    for name in ("read", "again"):
        monkeypatch.setattr(Buckets, name, counted(name, getattr(Buckets, name)))
    return launches


def engine(target: ms.Model, **options) -> ms.Engine:
    return ms.Engine(target, fast=True, block_size=4, num_blocks=200, k=4, **options)


def test_all_passes_of_a_steady_batch_but_the_first_are_launched_ahead(count):
    target, new = endless(), 40
    quick = engine(target)
    prompts = [[5, 9], [7, 8], [1, 2, 3]]
    outs = quick.generate(prompts, max_new_tokens=new, progress=False)
    assert [out.tokens for out in outs] == [ms.generate(target, prompt, new).tokens for prompt in prompts]
    assert (count.read, count.again) == (1, new - 2)  # the prompts' pass gives the first token
    assert_idle(quick)


def test_sampled_requests_run_ahead_with_their_own_numbers(count):
    target, new = endless(), 30
    ways = [dict(temperature=0.9), dict(), dict(temperature=1.3, top_k=7), dict(temperature=0.9)]
    quick = engine(target)
    ids = [quick.add([3, i], new, seed=i, **way) for i, way in enumerate(ways)]
    outs = serve(quick)
    for i, (id, way) in enumerate(zip(ids, ways, strict=True)):
        assert outs[id].tokens == ms.generate(target, [3, i], new, seed=i, **way).tokens
    assert (count.read, count.again) == (1, new - 2)


def test_an_abort_drops_the_pass_that_is_under_way(count):
    target = endless()
    quick = engine(target)
    first, second = quick.add([5, 9], 30), quick.add([7], 30)
    for _ in range(5):
        quick.step()
    quick.abort(first)
    before = count.read
    outs = serve(quick)
    assert count.read == before + 1
    assert outs[first].tokens == ms.generate(target, [5, 9], 30).tokens[:5]
    assert outs[second].tokens == ms.generate(target, [7], 30).tokens
    assert_idle(quick)


def test_a_request_that_joins_does_not_stop_the_others(count):
    """A pass that was launched ahead still serves those that decode, beside the new one's prompt."""
    target = endless()
    quick = engine(target)
    first = quick.add([5, 9], 30)
    for _ in range(5):
        quick.step()
    launched = count.read, count.again
    late = quick.add([7, 8], 10)
    quick.step()
    assert (count.read, count.again) == launched  # one pass was under way, the other is the prompt's
    outs = serve(quick)
    assert outs[first].tokens == ms.generate(target, [5, 9], 30).tokens
    assert outs[late].tokens == ms.generate(target, [7, 8], 10).tokens


def test_drafts_and_forbidden_tokens_are_not_run_ahead_of(count):
    target = pair()[0]
    quick = engine(target)
    held = quick.add([5, 9], 20, min_new_tokens=12)
    for _ in range(12):
        quick.step()
    assert count.again == 0
    assert serve(quick)[held].tokens == ms.generate(target, [5, 9], 20, min_new_tokens=12).tokens
    drafting = engine(endless(), drafter=ms.drafters.NGram())
    drafting.add([5, 6] * 4, 20)
    serve(drafting)
    assert count.again <= 20 - 12


def test_a_launch_ahead_that_fails_is_repeated_in_its_own_step(monkeypatch):
    target, failed = endless(), []

    def broken(self, tables):
        failed.append(1)
        raise RuntimeError("no launch")

    monkeypatch.setattr(Buckets, "again", broken)
    quick = engine(target)
    with pytest.warns(UserWarning, match="launched ahead"):
        [out] = quick.generate([[5, 9]], max_new_tokens=12, progress=False)
    assert failed and out.error is None and out.tokens == ms.generate(target, [5, 9], 12).tokens
