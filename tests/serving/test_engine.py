"""The engine: every request gets the output that it would get alone, whatever shares its batch."""

import json

import pytest
import torch
from all_drafters import ALL
from engine_helpers import (
    add_all,
    assert_as_alone,
    assert_idle,
    check_greedy,
    long_requests,
    pair,
    random_requests,
    serve,
)
from fakes import Given

import minispec as ms
from minispec.drafters import Draft
from minispec.sequence import Sequence
from minispec.serving import paged
from minispec.serving.paged import PagedKVCache

# ---------------------------------------------------------------- greedy


QUICK = ("model", "ngram", "eagle, tree")  # a model, a lookup, a tree


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in ALL])
def test_greedy_outputs_are_those_of_generate_with_every_drafter(name):
    check_greedy(ALL[name](*pair()), random_requests(14, 40, 16), preemptions=1)


def test_greedy_outputs_are_those_of_generate_without_a_drafter():
    check_greedy(None, random_requests(24, 60, 24))


@pytest.mark.parametrize("policy, block_size", [("continuous", 16), ("static", 1)])
def test_greedy_outputs_depend_on_neither_block_size_nor_policy(policy, block_size):
    sizes = dict(policy=policy, block_size=block_size, num_blocks=200, max_num_batched_tokens=8, max_chunk=5)
    check_greedy(ms.drafters.Model(pair()[1]), random_requests(14, 40, 16), 0, **sizes)


@pytest.mark.nightly
def test_a_hundred_requests_in_a_small_pool():
    """Prompts of 1–200 tokens, 1–64 new ones, at least 10 preemptions, requests aborted at random."""
    sizes = dict(block_size=16, num_blocks=112, max_num_seqs=32, max_num_batched_tokens=512, max_chunk=128)
    check_greedy(ms.drafters.Model(pair()[1]), random_requests(100, 200, 64), 10, aborts=0.03, **sizes)


def test_the_accepted_path_of_a_tree_is_moved_together():
    """The second branch of every tree is the right one, so every accepted path has to be moved."""
    requests = random_requests(24, 60, 24)
    outputs = {tuple(r.prompt): [*r.expected.tokens, *[7] * 8] for r in requests}

    def make(context: Sequence, k: int) -> Draft:
        n = len(context.output)
        right = outputs[tuple(context.tokens[: context.prompt_length])][n : n + 3]
        wrong = [1 + token % 62 for token in right]
        return Draft([wrong[0], wrong[1], right[0], wrong[1], right[1], right[2]], None, [-1, 0, -1, 2, 2, 4])

    drafter = Given(make)
    drafter.extra = 6
    engine = check_greedy(drafter, requests)
    assert engine.metrics()["totals"]["accepted"] > 60


def test_a_step_is_one_forward_pass_of_the_target(monkeypatch):
    target, passes = pair()[0], []
    body = target.transformer.body
    monkeypatch.setattr(target.transformer, "body", lambda *a, **o: passes.append(a[0].shape[1]) or body(*a, **o))
    engine = ms.Engine(target, ms.drafters.NGram(), max_num_seqs=4, max_num_batched_tokens=32)
    add_all(engine, random_requests(14, 40, 16))
    serve(engine)
    steps = engine.metrics()["steps"]
    assert passes == [step["read"] for step in steps] and max(passes) <= 32
    assert all(step["rows"] for step in steps)


def test_text_stop_strings_and_chat_are_those_of_generate(tiny_text):
    free = ms.generate(tiny_text, "The fox", 30).text
    chat = [{"role": "user", "content": "see the sea"}]
    cases = [("The fox", ()), ("The fox", free[9:12]), ("The fox", [free[17], free[25:28]]), (chat, ()), ([5, 6], ())]
    engine, streamed = ms.Engine(tiny_text, ms.drafters.Model(tiny_text)), [[] for _ in cases]
    for (prompt, stop), pieces in zip(cases, streamed, strict=True):
        engine.add(prompt, 30, stop=stop, stream=pieces.append)
    outs = serve(engine)
    for i, (prompt, stop) in enumerate(cases):
        pieces: list[str] = []
        expected = ms.generate(tiny_text, prompt, 30, stop=stop, stream=pieces.append)
        assert (outs[i].tokens, outs[i].finish_reason) == (expected.tokens, expected.finish_reason)
        assert streamed[i] == pieces and "".join(pieces) == outs[i].text == expected.text


def test_two_engines_share_a_drafter():
    """A draft model that is the target itself stays right for both."""
    target = pair()[0]
    drafter, requests = ms.drafters.Model(target), long_requests(4)
    engines = [ms.Engine(target, drafter, k=3) for _ in range(2)]
    for i, engine in enumerate(engines):
        add_all(engine, requests[i::2])
    while any(engine.sequences for engine in engines):
        for engine in engines:
            engine.step()
    for i, engine in enumerate(engines):
        totals, outs = engine.metrics()["totals"], engine.take()
        assert totals["drafted"] == totals["accepted"] > 0
        for id, request in enumerate(requests[i::2]):
            assert_as_alone(outs[id], request)
        assert_idle(engine)


# ---------------------------------------------------------------- how much is drafted, and for which request


def test_a_request_may_set_its_own_k():
    drafter = Given(lambda context, k: Draft([1] * k))
    engine = ms.Engine(pair()[0], drafter, k=3)
    for k in (None, 0, 1, 7):
        engine.add([5, 6], 20, k=k)
    deepest = dict.fromkeys(range(4), 0)
    while engine.sequences:
        for row in engine.step().rows:
            deepest[row.id] = max(deepest[row.id], row.drafted)
    assert deepest == {0: 3, 1: 0, 2: 1, 3: 7}
    assert len({id for id, _ in drafter.asked}) == 3  # the one with k = 0 never reaches the drafter
    outs = engine.take()
    assert outs[1].trace is None and outs[0].trace.cycles


def test_trees_are_cut_to_the_draft_budget():
    """Whatever the drafter returns: fewer nodes per request as the batch fills, down to one, then none for the last."""
    drafter = Given(lambda context, k: Draft([5] * 32, None, [-1] * 16 + list(range(16))))
    drafter.max_tree_nodes = lambda k: 32
    for sequences, nodes in {1: [32], 4: [16] * 4, 16: [4] * 16, 64: [1] * 64, 70: [1] * 64 + [0] * 6}.items():
        engine = ms.Engine(pair()[0], drafter, max_num_seqs=80, k=4, draft_budget=64)
        for i in range(sequences):
            engine.add([i % 64, 8, 9], 16)
        engine.step()
        assert [row.drafted for row in engine.step().rows] == nodes


def test_a_preempted_request_teaches_a_suffix_drafter_nothing_before_it_ends(tiny):
    """What the drafter remembers of past requests are whole outputs."""
    drafter = ms.drafters.Suffix(memory=8)
    engine = ms.Engine(tiny, drafter, num_blocks=9, block_size=4, max_num_seqs=4, k=2, enable_prefix_caching=False)
    ids = [engine.add([1, 2, 3, i], 16) for i in range(4)]
    outs, preempted = {}, 0
    while engine.sequences:
        preempted += len(engine.step().preempted)
        outs |= engine.take()
        whole = sorted(out.tokens for out in outs.values())
        assert sorted(list(past.tokens) for past in drafter.past) == whole
    assert preempted and sorted(outs) == ids


# ---------------------------------------------------------------- generate, abort, shutdown


def test_generate_returns_outputs_in_the_order_of_the_prompts(tiny_text):
    engine = ms.Engine(tiny_text, ms.drafters.Model(tiny_text), max_num_seqs=2)
    other = engine.add("sun", 8)
    prompts = ["The fox", "One day", [5, 6], "sea"]
    outs = engine.generate(prompts, max_new_tokens=12, progress=False)
    assert [out.tokens for out in outs] == [ms.generate(tiny_text, prompt, 12).tokens for prompt in prompts]
    assert engine.run()[other].tokens == ms.generate(tiny_text, "sun", 8).tokens


def test_generate_takes_one_prompt_or_several_or_none(tiny_text, capsys):
    engine, short = ms.Engine(tiny_text), ms.SamplingParams(max_new_tokens=4)
    assert engine.generate([], short) == []
    for one in ("sea", [5, 6], torch.tensor([5, 6])):
        assert [out.tokens for out in engine.generate(one, short)] == [ms.generate(tiny_text, one, 4).tokens]
    assert capsys.readouterr().err == ""  # progress is shown for several prompts alone
    engine.generate(["sea", "sun"], short)
    assert "2/2" in capsys.readouterr().err
    with pytest.raises(ValueError, match="token id"):
        engine.generate(["The fox", [10**6]], short)
    assert_idle(engine)


def test_an_aborted_request_keeps_what_it_has_generated(tiny_text):
    engine = ms.Engine(tiny_text, max_num_seqs=1)
    running, waiting = engine.add("The fox", 30), engine.add("sea", 30)
    for _ in range(4):
        engine.step()
    engine.abort(running), engine.abort(waiting)
    outs = engine.run()
    assert (outs[running].finish_reason, outs[waiting].tokens, outs[waiting].text) == ("abort", [], "")
    assert outs[running].text == ms.generate(tiny_text, "The fox", 4).text
    with pytest.raises(ValueError, match="id=0"):
        engine.abort(running)
    assert_idle(engine)


def test_shutdown_aborts_what_runs_and_refuses_more():
    engine = ms.Engine(pair()[0], ms.drafters.Model(pair()[1]))
    engine.add([1, 2, 3], 20)
    engine.step()
    engine.shutdown()
    with pytest.raises(ValueError, match="shut down"):
        engine.add([1], 4)
    assert engine.run()[0].finish_reason == "abort" and engine.step().rows == []
    assert engine.drafter.memory.cache is None
    engine.shutdown()
    assert_idle(engine)


def test_a_model_is_no_drafter():
    with pytest.raises(ValueError, match="is no Drafter"):
        ms.Engine(*pair())


# ---------------------------------------------------------------- memory and metrics


def test_memory_that_fits_the_gpu(monkeypatch):
    """Half of what is free, but no more than the requests can fill; on a CPU 512 blocks."""
    model, config = pair()[0], pair()[0].config
    for layers in ((0, 2, 2), ()):
        size = paged.bytes_per_block(model, 16, layers)
        cache = PagedKVCache(config, 3, 16, hidden_layers=layers, dtype=torch.float64)
        assert 3 * size == cache.keys.nbytes + cache.values.nbytes + cache.states.nbytes
    full = 8 * config.max_length // 16
    for free, unused, blocks in ((100 * size, 20 * size, 60), (10**6 * size, 0, full), (1, 0, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9 * size))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device, unused=unused: 5 + unused)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5)
        with monkeypatch.context() as patch:
            patch.setattr(ms.Model, "device", torch.device("cuda"))
            assert paged.blocks_that_fit(model, 16, 8) == blocks
    assert ms.Engine(model, ms.drafters.NGram(), block_size=8).pool.num_blocks == 512


@pytest.mark.slow
def test_metrics_add_up_and_go_to_json():
    engine = check_greedy(ms.drafters.Model(pair()[1]), random_requests(24, 60, 24), history=4096)
    metrics = json.loads(json.dumps(engine.metrics()))
    steps, requests, totals = metrics["steps"], metrics["requests"], metrics["totals"]
    assert totals["steps"] == len(steps) and totals["requests"] == len(requests) == 24
    for name in ("read", "emitted", "drafted", "accepted"):
        assert totals[name] == sum(step[name] for step in steps) > 0
    assert totals["emitted"] == totals["tokens"] == sum(request["tokens"] for request in requests)
    assert totals["preemptions"] == sum(r["preemptions"] for r in requests) == sum(len(s["preempted"]) for s in steps)
    assert sum(totals["finished"].values()) == 24
    assert all(step["used_blocks"] + step["free_blocks"] == engine.pool.num_blocks for step in steps)
    for request in requests:
        assert 0 <= request["time_to_first_token"] <= request["seconds"]
        assert (request["time_per_output_token"] is None) == (request["tokens"] == 1)
