"""The engine: every request as if it were alone, whatever fails, ends or is pushed out around it; and nothing leaks."""

import gc
import json
import signal
import sys
import threading
from functools import partial
from random import Random

import engine_checks as checks
import pytest
import torch
from all_drafters import ALL
from fakes import Given

import minispec as ms
from minispec.drafters import Draft
from minispec.drafters.base import Scratch
from minispec.serving import paged
from minispec.serving.paged import PagedKVCache
from minispec.serving.runner import logits_of

# ---------------------------------------------------------------- the same texts as alone


@pytest.mark.parametrize("check", [name for name in checks.CHECKS if name != "distribution"])
def test_the_engine(check):
    checks.CHECKS[check]()


SOME = {"model", "ngram", "eagle, tree"}  # a model, a lookup, a tree


@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in ALL])
def test_every_drafter(name):
    checks.check_greedy(ALL[name](*checks.pair()), checks.asks(14, 40, 16), preemptions=1)


HEADS = [name for name in ALL if name.partition(",")[0] in ("medusa", "eagle", "dflash", "dflash2", "mtp")]


QUICK = {"eagle, tree": (False, True), "medusa": (False,), "dflash, tree": (True,)}


@pytest.mark.parametrize(
    "name, fast",
    [
        pytest.param(name, fast, marks=[] if fast in QUICK.get(name, ()) else pytest.mark.nightly)
        for name in HEADS
        for fast in (False, True)
    ],
)
def test_a_cached_prefix_brings_its_hidden_states(name, fast):
    """A request that begins like another computes the rest alone, and its drafts are those that it gets without that:
    after one that has ended, beside one that goes on, and after one that was aborted."""
    target, beginning, told = ms.Model("endless", checks.pair()[0].transformer), Random(0).choices(range(64), k=200), []
    for caching in (True, False):
        engine = ms.Engine(target, ALL[name](*checks.pair()), k=3, fast=fast, enable_prefix_caching=caching)
        outs, processed = {}, []
        for end, new in ([5, 6], 16), ([7, 8, 9], 40), ([1, 7], 40), ([2], 16):
            id = engine.add([*beginning, *end], new)
            processed.append(next(row.tokens for row in engine.step().rows if row.id == id))
            while new == 16 and id in engine.sequences:
                engine.step()
            if end == [1, 7]:
                engine.abort(1)
        outs = checks.serve(engine)
        told.append({i: [(c.drafted, c.parents, c.path, c.token) for c in out.trace.cycles] for i, out in outs.items()})
        assert processed == ([202, 11, 10, 9] if caching else [202, 203, 202, 201])
        assert all(any(cycle[0] for cycle in cycles) for id, cycles in told[-1].items() if id != 1)
    assert told[0] == told[1]


@pytest.mark.parametrize("policy, block_size", [("continuous", 16), ("static", 1)])
def test_other_sizes_and_policies(policy, block_size):
    sizes = dict(policy=policy, block_size=block_size, num_blocks=200, max_num_batched_tokens=8, max_chunk=5)
    checks.check_greedy(ms.drafters.Model(checks.pair()[1]), checks.asks(14, 40, 16), 0, **sizes)


@pytest.mark.nightly
def test_a_hundred_requests_in_a_small_pool():
    """Prompts of 1–200 tokens, 1–64 new ones, at least 10 preemptions, requests aborted at random."""
    checks.check_greedy(ms.drafters.Model(checks.pair()[1]), checks.asks(100, 200, 64), 10, aborts=0.03, **LARGE)


LARGE = dict(block_size=16, num_blocks=112, max_num_seqs=32, max_num_batched_tokens=512, max_chunk=128)


def test_one_pass_of_the_target_a_step(monkeypatch):
    target, passes, some = checks.pair()[0], [], checks.asks(14, 40, 16)
    right = target.transformer.body
    monkeypatch.setattr(target.transformer, "body", lambda *a, **o: passes.append(a[0].shape[1]) or right(*a, **o))
    engine = ms.Engine(target, ms.drafters.NGram(), max_num_seqs=4, max_num_batched_tokens=32)
    for ask in some:
        engine.add(ask.prompt, ask.new)
    checks.serve(engine)
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
    outs = checks.serve(engine)
    for i, (prompt, stop) in enumerate(cases):
        pieces: list[str] = []
        expected = ms.generate(tiny_text, prompt, 30, stop=stop, stream=pieces.append)
        assert (outs[i].tokens, outs[i].finish_reason) == (expected.tokens, expected.finish_reason)
        assert streamed[i] == pieces and "".join(pieces) == outs[i].text == expected.text


# ---------------------------------------------------------------- sampling


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "model", "ngram", "cascade", "lookahead", "eagle, tree"])
def test_sampled_texts_follow_the_law_with_every_kind_of_draft(name):
    """4,000 outputs without drafts, of sampled and of given chains, of a cascade, of a tree, and with scratch tokens.
    To the engine every other drafter is one of these; and finer biases of the verifier show in test_speculate.py."""
    checks.check_distribution(name and ALL[name], draws=4_000, seed=10_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", pytest.param("eagle, tree", marks=pytest.mark.nightly)])
def test_sampled_texts_follow_the_law_while_the_controller_changes_its_mind(name, monkeypatch):
    """At random, from step to step: whatever it chooses, the distribution is the target's."""
    chance = Random(0)

    def choose(self, ids, most):
        return chance.choice(self.sizes)

    monkeypatch.setattr("minispec.controller.Controller.choose", choose)
    checks.check_distribution(ALL[name], draws=4_000, seed=20_000, k=None, draft_budget=None)


# ---------------------------------------------------------------- how much is drafted, and for whom


def test_k_of_the_engine_and_of_a_request():
    drafter = Given(lambda context, k: Draft([1] * k))
    engine = ms.Engine(checks.pair()[0], drafter, k=3)
    for k in (None, 0, 1, 7):
        engine.add([5, 6], 20, k=k)
    deepest = {id: 0 for id in range(4)}
    while engine.sequences:
        for row in engine.step().rows:
            deepest[row.id] = max(deepest[row.id], row.drafted)
    assert deepest == {0: 3, 1: 0, 2: 1, 3: 7}
    assert len({row for row, _ in drafter.asked}) == 3  # not for the one with k = 0
    outs = engine.take()
    assert outs[1].trace is None and outs[0].trace.cycles


# ---------------------------------------------------------------- trouble


@pytest.mark.parametrize("at, drafter", [(0, None), (3, "model"), (3, "eagle, tree")])
def test_a_model_that_breaks_on_one_request(monkeypatch, at, drafter):
    """Whoever holds the poisoned block fails, in its first pass or later."""
    some, target = checks.long_asks(), checks.pair()[0]
    engine = ms.Engine(target, drafter and ALL[drafter](*checks.pair()), num_blocks=64, block_size=4, max_num_seqs=4)
    right = target.transformer.body

    def body(tokens, paged, **options):
        sequence = engine.sequences.get(1)
        if sequence is not None and len(sequence.output) >= at and sequence.status == "running":
            computed = sequence.num_computed_tokens
            [first] = engine.pool.slots(1, computed, computed + 1)
            if first in paged.slots.tolist():
                raise checks.Poison("bad memory")
        return right(tokens, paged, **options)

    monkeypatch.setattr(target.transformer, "body", body)
    outs = checks.trouble(engine, some, {1: checks.Poison})
    assert len(outs[1].tokens) >= at


@pytest.mark.slow
@pytest.mark.parametrize("method", ["propose", "settle", "forget"])
def test_a_drafter_that_breaks_on_one_request(method):
    some = checks.long_asks()  # first: what they expect takes sequences, which Moody numbers from its own on
    drafter = checks.Moody(checks.pair()[1], method, 4)
    engine = ms.Engine(checks.pair()[0], drafter, num_blocks=24, block_size=4, max_num_seqs=4, k=2)
    checks.trouble(engine, some, {1: checks.Poison})
    assert set(drafter.forgotten) == set(range(6)) and not drafter.memory.lengths and drafter.memory.cache is None


def test_a_damaged_row_is_an_error_and_its_neighbours_go_on(monkeypatch):
    engine = ms.Engine(checks.pair()[0], ms.drafters.NGram())
    right = engine.runner.forward

    def forward(turns):
        right(turns)
        for turn in turns:
            if turn.sequence.request_id == 2 and len(turn.sequence.output) == 3:
                logits_of(turn)[0, 0] = torch.nan

    monkeypatch.setattr(engine.runner, "forward", forward)
    outs = checks.trouble(engine, checks.long_asks(), {2: ValueError})
    assert "NaN" in str(outs[2].error) and len(outs[2].tokens) == 3


V = 64
BAD_DRAFTS = [
    (Draft([6, V]), "outside"),
    (Draft([6, 7], None, None, Scratch([5], [1], torch.ones(1, 1, dtype=torch.bool))), "scratch_slots=0"),
]


@pytest.mark.parametrize("draft, named", BAD_DRAFTS)
def test_an_impossible_draft_fails_its_request_alone(draft, named):
    drafter = Given(lambda context, k: draft if context.id == 1 and len(drafter.asked) > 9 else Draft([5]))
    engine = ms.Engine(checks.pair()[0], drafter, k=2)
    outs = checks.trouble(engine, checks.long_asks(), {1: ValueError})
    assert named in str(outs[1].error) and set(drafter.forgotten) == set(range(6))


def test_listeners_may_abort_themselves_and_others_and_add_more(tiny_text):
    engine = ms.Engine(tiny_text, ms.drafters.Model(tiny_text))

    def busy(piece):
        if 1 in engine.sequences:
            engine.abort(1)
            engine.add("sea", 10, request_id="late")
        elif len(engine.sequences[0].output) > 10:
            engine.abort(0)
            raise checks.Poison("and complains")

    engine.add("The fox", 30, stream=busy), engine.add("One day", 30), engine.add("sun", 12)
    outs = checks.serve(engine)
    assert [outs[id].finish_reason for id in (0, 1)] == ["abort", "abort"] and outs[0].error is None
    for id, prompt, new in ((2, "sun", 12), ("late", "sea", 10)):
        assert outs[id].text == ms.generate(tiny_text, prompt, new).text
    checks.assert_idle(engine)


def test_ctrl_c_in_a_listener_loses_nothing(tiny_text):
    """Callbacks are called when the step is complete, so the next step goes on from there."""
    random, heard = Random(0), {}
    engine = ms.Engine(tiny_text, ms.drafters.Model(tiny_text), max_num_seqs=2)

    def listen(id, piece):
        heard[id] = heard.get(id, "") + piece
        if random.random() < 0.2:
            raise KeyboardInterrupt

    prompts = ["The fox", "One day", "sun"]
    for id, prompt in enumerate(prompts):
        engine.add(prompt, 30, stream=partial(listen, id))
    outs, interruptions = checks.serve_on(engine)
    for id, prompt in enumerate(prompts):
        assert outs[id].text == heard[id] == ms.generate(tiny_text, prompt, 30).text
    assert interruptions > 3
    checks.assert_idle(engine)


def test_a_fault_while_sampling_changes_no_output(monkeypatch):
    """What is repeated for each request alone comes to the same tokens: none gets the likeliest one instead."""
    target = checks.pair()[0]
    engine, calls = ms.Engine(target), []
    right = engine.runner.sample

    def sample(results, turns):
        calls.append(len(turns))
        if len(turns) > 1 and len(calls) % 3 == 0:
            raise checks.Poison("no memory")
        right(results, turns)

    monkeypatch.setattr(engine.runner, "sample", sample)
    options = dict(max_new_tokens=12, temperature=1.5)
    with pytest.warns(UserWarning, match="for each alone"):
        outs = engine.generate([[5, 6], [7], [8, 9, 1]], progress=False, seed=3, **options)
    assert calls.count(1) > 5
    for out, expected in zip(outs, ms.generate(target, [[5, 6], [7], [8, 9, 1]], seed=3, **options), strict=True):
        assert out.tokens == expected.tokens


def test_paths_that_cannot_be_moved_at_once_do_not_move_twice():
    """Keeping is repeated for each request alone: an accepted path of a tree that moved again would be another one."""
    target, calls = checks.pair()[0], []

    class Scarce:
        """Memory of which two slots can be copied at a time, when keys and values have been."""

        def __init__(self, memory):
            self.memory = memory

        def __getitem__(self, index):
            calls.append(len(index[1]))
            if calls[-1] > 2 and len(calls) % 2:
                raise checks.Poison("no memory")
            return self.memory[index]

        def __setitem__(self, index, states):
            self.memory[index] = states

    class Right(ms.drafters.Drafter):
        """The next two tokens, on nodes 1 and 2 of a tree."""

        hidden_layers = (1,)

        def max_tree_nodes(self, k):
            return 3

        def propose(self, sequences, k):
            nexts = [texts[tuple(s.tokens[: s.prompt_length])][len(s.output) :][:2] for s in sequences]
            return [Draft([(two[0] + 1) % 64, *two], None, [-1, -1, 1][: 1 + len(two)]) for two in nexts]

    prompts = [[5, 6, 7], [7, 8, 9, 3], [8, 9, 1]]
    texts = {tuple(prompt): ms.generate(target, prompt, 60).tokens for prompt in prompts}
    engine = ms.Engine(target, Right(), k=4)
    engine.runner.cache.memories.append(Scarce(engine.runner.cache.memories.pop()))
    with pytest.warns(UserWarning, match="keep failed for"):
        outs = engine.generate(prompts, max_new_tokens=60, progress=False)
    assert calls.count(2) > 5 and [1, 2] in [cycle.path for cycle in outs[0].trace.cycles]
    for out, text in zip(outs, texts.values(), strict=True):
        assert out.tokens == text and all(cycle.sample_seconds > 0 for cycle in out.trace.cycles)


def test_a_run_in_which_everything_fails_raises(monkeypatch):
    engine = ms.Engine(checks.pair()[0])
    monkeypatch.setattr(engine.runner, "forward", lambda turns: (_ for _ in ()).throw(checks.Poison("no memory")))
    engine.add([5, 6], 4), engine.add([7], 4)
    with pytest.raises(RuntimeError, match="2 requests.*no memory"):
        engine.run()
    checks.assert_idle(engine)


@pytest.fixture
def ctrl_c():
    """Presses it. The signal is set up here: a job in the background would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_ctrl_c_waits_until_the_step_is_complete(monkeypatch, ctrl_c):
    """A second one, too, where books are changed: one that ended a step in the middle of `free` left blocks behind."""
    some = checks.long_asks()
    engine = ms.Engine(checks.pair()[0], ms.drafters.Model(checks.pair()[1]), num_blocks=40, block_size=4, k=4)
    calls, pressed = [], set()

    def press_sometimes(owner, name):
        right = getattr(owner, name)

        def call(*args):
            calls.append(name)
            if len(calls) % 7 == 3:
                pressed.add(name)
                for _ in range(1 if owner is engine.runner else 2):  # two end what the runner does
                    ctrl_c()
            return right(*args)

        monkeypatch.setattr(owner, name, call)

    for name in ("add", "schedule", "update"):
        press_sometimes(engine.scheduler, name)
    press_sometimes(engine.pool, "free")
    for name in ("draft", "forward", "verify", "keep"):
        press_sometimes(engine.runner, name)
    ids, interruptions = list(range(len(some))), 0
    for id, ask in zip(ids, some, strict=True):
        try:
            engine.add(ask.prompt, ask.new, request_id=id)
        except KeyboardInterrupt:
            interruptions += 1
    outs, later = checks.serve_on(engine)
    assert interruptions and later > 5 and pressed == set(calls)
    for id, ask in zip(ids, some, strict=True):
        checks.assert_as_alone(outs[id], ask)
    checks.assert_idle(engine)


def test_a_second_ctrl_c_ends_the_requests_of_its_step(monkeypatch, ctrl_c):
    target = checks.pair()[0]
    engine = ms.Engine(target, ms.drafters.Model(checks.pair()[1]), max_num_seqs=2, k=4)
    ids = [engine.add(prompt, 30) for prompt in ([5, 6], [7], [8, 9, 1])]
    right, calls = engine.runner.verify, []

    def verify(turns):
        calls.append(turns)
        if len(calls) == 4:
            ctrl_c(), ctrl_c()
            pytest.fail("the second one should not have waited")
        right(turns)

    monkeypatch.setattr(engine.runner, "verify", verify)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.check_integrity()
    outs = engine.run()
    for id, prompt in zip(ids, ([5, 6], [7], [8, 9, 1]), strict=True):
        expected = ms.generate(target, prompt, 30).tokens
        assert outs[id].finish_reason == ("length" if id == 2 else "abort")
        assert outs[id].tokens == expected[: len(outs[id].tokens)] and outs[id].tokens
    checks.assert_idle(engine)


# ---------------------------------------------------------------- stream, abort, shutdown


def test_generate_returns_outputs_in_the_order_of_the_prompts(tiny_text, capsys):
    engine = ms.Engine(tiny_text, ms.drafters.Model(tiny_text), max_num_seqs=2)
    other = engine.add("sun", 8)
    prompts = ["The fox", "One day", [5, 6], "sea"]
    outs = engine.generate(prompts, max_new_tokens=12)
    assert [out.tokens for out in outs] == [ms.generate(tiny_text, prompt, 12).tokens for prompt in prompts]
    assert "4/4" in capsys.readouterr().err and engine.take().keys() <= {other}
    short = ms.SamplingParams(max_new_tokens=4)
    [one] = engine.generate("sea", short)
    assert engine.generate(torch.tensor([5, 6]), short)[0].tokens == engine.generate([5, 6], short)[0].tokens
    assert one.tokens == engine.generate(["sea"], short)[0].tokens and engine.generate([]) == []
    assert len(engine.generate([5, 6], short)) == 1 and engine.generate(prompts, short, progress=False)
    assert capsys.readouterr().err == ""
    engine.run()
    with pytest.raises(ValueError, match="is no Drafter"):
        ms.Engine(checks.pair()[0], checks.pair()[1])
    with pytest.raises(ValueError, match="token id"):
        engine.generate(["The fox", [10**6]], short)
    engine.runner.verify = lambda turns: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, short, progress=False)
    checks.assert_idle(engine)


def test_a_seed_gives_the_same_outputs_from_generate_and_engine():
    """For a batch, and for each prompt alone, with a drafter that does not draft and without one."""
    params = ms.SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_new_tokens=20)
    prompts = [[1, 2], [1, 2], [3]]
    outs = ms.Engine(checks.pair()[0]).generate(prompts, params, progress=False)
    assert [out.tokens for out in outs] == [out.tokens for out in ms.generate(checks.pair()[0], prompts, params=params)]
    for i, prompt in enumerate(prompts):
        engine = ms.Engine(checks.pair()[0], ms.drafters.NGram() if i else None, k=0 if i else 4)
        engine.add(prompt, params=params)
        assert engine.run()[0].tokens == ms.generate(checks.pair()[0], prompt, params=params).tokens
    assert outs[0].tokens == ms.generate(checks.pair()[0], prompts[0], params=params).tokens != outs[1].tokens


@pytest.mark.slow
def test_a_thread_that_adds_is_let_in_between_two_steps():
    """One thread steps a long request in a loop; short ones that another adds, one after the other, end before it."""
    engine, done = ms.Engine(ms.Model("endless", checks.pair()[0].transformer)), []

    def add() -> None:
        for i in range(20):
            done.append(engine.generate([[i]], max_new_tokens=2)[0])

    long = engine.add([1], 400)
    thread = threading.Thread(target=add)
    thread.start()
    while long not in engine.outputs:
        engine.step()
    ended = len(done)
    thread.join()
    assert ended == 20


def test_an_aborted_request_keeps_what_it_wrote(tiny_text):
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
    checks.assert_idle(engine)


def test_after_shutdown():
    engine = ms.Engine(checks.pair()[0], ms.drafters.Model(checks.pair()[1]))
    engine.add([1, 2, 3], 20)
    engine.step()
    engine.shutdown()
    with pytest.raises(ValueError, match="shut down"):
        engine.add([1], 4)
    assert engine.run()[0].finish_reason == "abort" and engine.step().rows == []
    assert engine.drafter.memory.cache is None
    engine.shutdown()
    checks.assert_idle(engine)


# ---------------------------------------------------------------- errors


def test_memory_that_fits_the_card(monkeypatch):
    """Half of what is free, but no more than the requests can fill; on a CPU 512 blocks."""
    model, config = checks.pair()[0], checks.pair()[0].config
    for layers in ((0, 2, 2), ()):
        size = paged.bytes_per_block(model, 16, layers)
        cache = PagedKVCache(config, 3, 16, hidden_layers=layers, dtype=torch.float64)
        assert 3 * size == cache.keys.nbytes + cache.values.nbytes + cache.states.nbytes
    full = 8 * config.max_length // 16
    for free, unused, blocks in ((100 * size, 20 * size, 60), (10**6 * size, 0, full), (1, 0, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9 * size))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device, unused=unused: 5 + unused)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5)
        with monkeypatch.context() as there:
            there.setattr(ms.Model, "device", torch.device("cuda"))
            assert paged.blocks_that_fit(model, 16, 8) == blocks
    engine = ms.Engine(checks.pair()[0], ms.drafters.NGram(), block_size=8)
    assert engine.pool.num_blocks == 512
    assert "512 blocks of 8 tokens" in repr(engine)


# ---------------------------------------------------------------- metrics


@pytest.mark.slow
def test_metrics_add_up_and_go_to_json():
    engine = checks.check_greedy(ms.drafters.Model(checks.pair()[1]), history=4096)
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


def bytes_held() -> int:
    """All containers with their places, and all tensors: whatever leaks is kept in one of them."""
    gc.collect()
    things = gc.get_objects()
    return sum(sys.getsizeof(thing, 0) + (thing.nbytes if type(thing) is torch.Tensor else 0) for thing in things)


@pytest.mark.slow
def test_a_soak_in_constant_memory():
    """360 requests with aborts, preemptions and failures: the last 120 leave not a hundred bytes each behind."""
    target, random = checks.pair()[0], Random(0)
    drafter = checks.Moody(checks.pair()[1], "propose", 2)
    sizes = dict(num_blocks=120, block_size=4, max_num_seqs=24, max_num_batched_tokens=192, history=50)
    engine = ms.Engine(target, drafter, k=4, draft_budget=64, **sizes)
    beginnings = [random.choices(range(64), k=24) for _ in range(3)]
    held, outs = [], 0
    for i in range(360):
        drafter.forgotten.clear(), drafter.lengths.clear()
        prompt = random.choice(beginnings)[: random.randint(0, 24)] + random.choices(range(64), k=random.randint(1, 30))
        penalised, long_choices = dict(frequency_penalty=1.0, logit_bias={5: 2.0}), dict(choices=[[7] * 14, [9] * 16])
        by_prefix = random.choice(({}, penalised, long_choices))
        engine.add(prompt, random.randint(1, 16), temperature=random.choice((0.0, 1.0)), seed=i, **by_prefix)
        while len(engine.sequences) > 40:
            engine.step()
            if random.random() < 0.1:
                engine.abort(random.choice(list(engine.sequences)))
            outs += len(engine.take())
        if i % 50 == 0:
            engine.check_integrity()
        if i % 120 == 119:
            outs += len(checks.serve(engine))
            held.append(bytes_held())
    totals = engine.metrics()["totals"]
    assert outs == totals["requests"] == 360 and totals["preemptions"] >= 8
    assert totals["finished"]["abort"] > 6
    assert held[2] < held[1] + 12_000
    checks.assert_idle(engine)


def test_a_preempted_request_teaches_a_suffix_drafter_nothing_before_it_ends(tiny):
    """Half an output is no finished one: what is remembered of past requests are whole outputs."""
    drafter = ms.drafters.Suffix(memory=8)
    engine = ms.Engine(tiny, drafter, num_blocks=9, block_size=4, max_num_seqs=4, k=2, enable_prefix_caching=False)
    prompts = [[1, 2, 3, i] for i in range(4)]
    ids = [engine.add(prompt, 16) for prompt in prompts]
    outs, preempted = {}, 0
    while engine.sequences:
        preempted += len(engine.step().preempted)
        outs |= engine.take()
        whole = sorted(outs[id].tokens for id in outs)  # the first token, too, which is there before the first draft
        assert sorted(list(text.tokens) for text in drafter.past) == whole
    assert preempted and sorted(outs) == ids
