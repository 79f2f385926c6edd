"""The engine when something fails, is interrupted or calls back: one request ends, the others do not notice, and
nothing leaks."""

import gc
import signal
import sys
import threading
import time
from functools import partial
from random import Random

import pytest
import torch
from all_drafters import ALL
from engine_helpers import Failure, Request, add_all, assert_as_alone, assert_idle, endless, long_requests, pair, serve
from fakes import Given

import minispec as ms
from minispec.drafters import Draft
from minispec.drafters.base import Scratch
from minispec.sequence import Sequence
from minispec.serving.runner import Runner, logits_of

PROMPTS = [[5, 6], [7], [8, 9, 1]]


def check_failure(engine: ms.Engine, requests: list[Request], culprit: int, error: type[Exception]) -> ms.Output:
    """Serve all: the culprit ends with its error and what it has generated, and the others do not notice."""
    outs = serve(engine)
    failed = outs.pop(culprit)
    assert failed.finish_reason == "error" and type(failed.error) is error
    assert failed.tokens == requests[culprit].expected.tokens[: len(failed.tokens)]
    for id, out in outs.items():
        assert_as_alone(out, requests[id])
    assert len(outs) == len(requests) - 1
    assert_idle(engine)
    return failed


def fail_for(sequence: Sequence, owner, name: str, after: int) -> None:
    """Make a method of the runner or the drafter do its work, then fail where that was for this sequence, once it has
    `after` tokens of output. What is repeated has been done before, then."""
    right, takes_turns = getattr(owner, name), isinstance(owner, Runner)

    def call(first, *args):
        result = right(first, *args)
        ids = [turn.sequence.id for turn in first] if takes_turns else [first]
        if sequence.id in ids and len(sequence.output) >= after:
            raise Failure(name)
        return result

    setattr(owner, name, call)


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("drafter", ["model", pytest.param("eagle, tree", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "owner, name, after",
    [
        ("runner", "forward", 0),
        ("runner", "forward", 3),
        ("runner", "draft", 4),
        ("runner", "verify", 4),
        ("drafter", "settle", 4),
        ("drafter", "forget", 4),
    ],
)
def test_a_step_that_fails_for_one_request(owner, name, after, drafter):
    requests, forgotten = long_requests(), []
    engine = ms.Engine(pair()[0], ALL[drafter](*pair()), num_blocks=24, block_size=4, max_num_seqs=4, k=2)
    right = engine.drafter.forget
    engine.drafter.forget = lambda id: forgotten.append(id) or right(id)
    add_all(engine, requests)
    ids = {sequence.id for sequence in engine.sequences.values()}
    fail_for(engine.sequences[1], getattr(engine, owner), name, after)
    assert len(check_failure(engine, requests, 1, Failure).tokens) >= after
    assert set(forgotten) == ids
    assert drafter != "model" or engine.drafter.memory.cache is None


def test_logits_that_are_not_numbers_fail_their_request(monkeypatch):
    engine = ms.Engine(pair()[0], ms.drafters.NGram())
    right = engine.runner.forward

    def forward(turns):
        right(turns)
        for turn in turns:
            if turn.sequence.request_id == 2 and len(turn.sequence.output) == 3:
                logits_of(turn)[0, 0] = torch.nan

    monkeypatch.setattr(engine.runner, "forward", forward)
    requests = long_requests()
    add_all(engine, requests)
    failed = check_failure(engine, requests, 2, ValueError)
    assert "NaN" in str(failed.error) and len(failed.tokens) == 3


@pytest.mark.parametrize(
    "draft, named",
    [
        (Draft([6, 64]), "outside"),
        (Draft([6, 7], None, None, Scratch([5], [1], torch.ones(1, 1, dtype=torch.bool))), "scratch_slots=0"),
    ],
)
def test_an_impossible_draft_fails_its_request(draft, named):
    drafter = Given(lambda context, k: draft if context.id == 1 and len(drafter.asked) > 9 else Draft([5]))
    engine, requests = ms.Engine(pair()[0], drafter, k=2), long_requests()
    add_all(engine, requests)
    failed = check_failure(engine, requests, 1, ValueError)
    assert named in str(failed.error) and set(drafter.forgotten) == set(range(6))


def test_a_run_in_which_everything_fails_raises(monkeypatch):
    engine = ms.Engine(pair()[0])
    monkeypatch.setattr(engine.runner, "forward", lambda turns: (_ for _ in ()).throw(Failure("no memory")))
    engine.add([5, 6], 4), engine.add([7], 4)
    with pytest.raises(RuntimeError, match="2 requests.*no memory"):
        engine.run()
    assert_idle(engine)


def test_a_failure_while_sampling_changes_no_output(monkeypatch):
    """What is repeated for each request alone comes to the same tokens: none gets the most likely one instead."""
    target, calls = pair()[0], []
    engine = ms.Engine(target)
    right = engine.runner.sample

    def sample(results, turns):
        calls.append(len(turns))
        if len(turns) > 1 and len(calls) % 3 == 0:
            raise Failure("no memory")
        right(results, turns)

    monkeypatch.setattr(engine.runner, "sample", sample)
    options = dict(max_new_tokens=12, temperature=1.5, seed=3)
    with pytest.warns(UserWarning, match="for each alone"):
        outs = engine.generate(PROMPTS, progress=False, **options)
    assert calls.count(1) > 5
    assert [out.tokens for out in outs] == [out.tokens for out in ms.generate(target, PROMPTS, **options)]


# ---------------------------------------------------------------- callbacks


@pytest.mark.parametrize("method, arguments", [("step", ()), ("run", ()), ("generate", (["One day"],))])
def test_a_callback_may_not_step_the_engine(tiny_text, method, arguments):
    """It is refused in words, and fails the callback's request alone."""
    engine, pieces = ms.Engine(tiny_text), []

    def callback(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 2:
            getattr(engine, method)(*arguments)

    engine.add("The fox", 12, stream=callback), engine.add("One day", 12)
    outs = serve(engine)
    assert type(outs[0].error) is RuntimeError and f"{method}()" in str(outs[0].error)
    assert len(outs[0].tokens) < 12 and outs[1].tokens == ms.generate(tiny_text, "One day", 12).tokens
    assert_idle(engine)


def test_a_callback_may_abort_its_request_and_others_and_add_more(tiny_text):
    engine = ms.Engine(tiny_text, ms.drafters.Model(tiny_text))

    def callback(piece):
        if 1 in engine.sequences:
            engine.abort(1)
            engine.add("sea", 10, request_id="late")
        elif len(engine.sequences[0].output) > 10:
            engine.abort(0)
            raise Failure("after its own end: nobody is told")

    engine.add("The fox", 30, stream=callback), engine.add("One day", 30), engine.add("sun", 12)
    outs = serve(engine)
    assert [outs[id].finish_reason for id in (0, 1)] == ["abort", "abort"] and outs[0].error is None
    for id, prompt, new in ((2, "sun", 12), ("late", "sea", 10)):
        assert outs[id].text == ms.generate(tiny_text, prompt, new).text
    assert_idle(engine)


# ---------------------------------------------------------------- interrupts


def serve_through_interrupts(engine: ms.Engine) -> tuple[dict, int]:
    """Run to the end however often a step is interrupted, and count how often that was."""
    interruptions = 0
    while engine.sequences:
        try:
            engine.step()
        except KeyboardInterrupt:
            interruptions += 1
        engine.check_integrity()
    return engine.take(), interruptions


@pytest.fixture
def ctrl_c():
    """Presses it. The signal is set up here: a job in the background would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_callback_loses_nothing(tiny_text):
    """Callbacks are called when the step is complete, so the next step goes on from there."""
    random, heard = Random(0), {}
    engine = ms.Engine(tiny_text, ms.drafters.Model(tiny_text), max_num_seqs=2)

    def callback(id, piece):
        heard[id] = heard.get(id, "") + piece
        if random.random() < 0.2:
            raise KeyboardInterrupt

    prompts = ["The fox", "One day", "sun"]
    for id, prompt in enumerate(prompts):
        engine.add(prompt, 30, stream=partial(callback, id))
    outs, interruptions = serve_through_interrupts(engine)
    for id, prompt in enumerate(prompts):
        assert outs[id].text == heard[id] == ms.generate(tiny_text, prompt, 30).text
    assert interruptions > 3
    assert_idle(engine)


@pytest.mark.slow
def test_ctrl_c_waits_until_the_step_is_complete(monkeypatch, ctrl_c):
    """A second one waits, too, where bookkeeping changes: ending `free` in the middle once left blocks behind."""
    requests = long_requests()
    engine = ms.Engine(pair()[0], ms.drafters.Model(pair()[1]), num_blocks=40, block_size=4, k=4)
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
    interruptions = 0
    for id, request in enumerate(requests):
        try:
            engine.add(request.prompt, request.new, request_id=id)
        except KeyboardInterrupt:
            interruptions += 1
    outs, later = serve_through_interrupts(engine)
    assert interruptions and later > 5 and pressed == set(calls)
    for id, request in enumerate(requests):
        assert_as_alone(outs[id], request)
    assert_idle(engine)


def test_a_second_ctrl_c_ends_the_requests_of_its_step(monkeypatch, ctrl_c):
    target = pair()[0]
    engine = ms.Engine(target, ms.drafters.Model(pair()[1]), max_num_seqs=2, k=4)
    ids = [engine.add(prompt, 30) for prompt in PROMPTS]
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
    for id, prompt in zip(ids, PROMPTS, strict=True):
        assert outs[id].finish_reason == ("length" if id == 2 else "abort")
        assert outs[id].tokens and outs[id].tokens == ms.generate(target, prompt, 30).tokens[: len(outs[id].tokens)]
    assert_idle(engine)


def test_generate_that_is_interrupted_leaves_no_request(monkeypatch):
    engine = ms.Engine(pair()[0])
    monkeypatch.setattr(engine.runner, "verify", lambda turns: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, max_new_tokens=4, progress=False)
    assert_idle(engine)


# ---------------------------------------------------------------- threads


@pytest.mark.slow
def test_requests_that_threads_add_while_another_one_steps_are_served_once(monkeypatch):
    engine, ids, errors = ms.Engine(pair()[0], num_blocks=128, max_num_seqs=64), [], []
    expected = [ms.generate(pair()[0], [1, token], 2).tokens for token in range(8)]
    right = engine.scheduler.add

    def slowly(request) -> None:
        time.sleep(1e-4)  # between the choice of an id and its use, every other thread gets its chance
        right(request)

    monkeypatch.setattr(engine.scheduler, "add", slowly)

    def add() -> None:
        try:
            for i in range(150):
                ids.append((engine.add([1, i % 8], 2), i % 8))
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as unkind as it gets
    try:
        adding = [threading.Thread(target=add) for _ in range(4)]
        for thread in adding:
            thread.start()
        outs = {}
        while any(thread.is_alive() for thread in adding) or engine.sequences:
            engine.step()
            outs |= engine.take()
    finally:
        sys.setswitchinterval(interval)
    assert not errors, errors[0]
    assert len(ids) == len(outs) == 600 and outs.keys() == {id for id, _ in ids}
    assert all(outs[id].tokens == expected[token] for id, token in ids)
    assert_idle(engine)


@pytest.mark.slow
def test_a_thread_that_adds_is_let_in_between_two_steps():
    """One thread steps a long request in a loop; short ones that another adds, one after the other, end before it."""
    engine, done = ms.Engine(endless()), []

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


# ---------------------------------------------------------------- soak


def bytes_held() -> int:
    """All containers and all tensors: whatever leaks is kept in one of them."""
    gc.collect()
    things = gc.get_objects()
    return sum(sys.getsizeof(thing, 0) + (thing.nbytes if type(thing) is torch.Tensor else 0) for thing in things)


@pytest.mark.slow
def test_a_soak_in_constant_memory():
    """360 requests with aborts, preemptions and a failure: each of the last 120 leaves less than 100 bytes behind."""
    random = Random(0)
    sizes = dict(num_blocks=100, block_size=4, max_num_seqs=24, max_num_batched_tokens=192, history=50)
    engine = ms.Engine(pair()[0], ms.drafters.Model(pair()[1]), k=4, draft_budget=64, **sizes)
    prefixes = [random.choices(range(64), k=24) for _ in range(3)]
    processors = ({}, dict(frequency_penalty=1.0, logit_bias={5: 2.0}), dict(choices=[[7] * 14, [9] * 16]))
    held, outs = [], 0
    for i in range(360):
        prompt = random.choice(prefixes)[: random.randint(0, 24)] + random.choices(range(64), k=random.randint(1, 30))
        sampling = dict(temperature=random.choice((0.0, 1.0)), seed=i) | random.choice(processors)
        engine.add(prompt, random.randint(1, 16), **sampling)
        if i == 1:
            fail_for(engine.sequences[1], engine.runner, "draft", after=2)
        while len(engine.sequences) > 40:
            engine.step()
            if random.random() < 0.1:
                engine.abort(random.choice(list(engine.sequences)))
            outs += len(engine.take())
        if i % 50 == 0:
            engine.check_integrity()
        if i % 120 == 119:
            outs += len(serve(engine))
            held.append(bytes_held())
    totals = engine.metrics()["totals"]
    assert outs == totals["requests"] == 360 and totals["preemptions"] >= 8
    assert totals["finished"]["abort"] > 6 and totals["finished"]["error"] == 1
    assert held[2] < held[1] + 12_000
    assert_idle(engine)
