"""Checks that the engine serves every request as if it were alone."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import torch
from all_drafters import ALL
from fakes import Given
from loop_checks import LAW_PROMPT, LAW_TOKENS, ONE, OTHER, assert_trace_fits, law_pair
from loop_checks import target_law as distribution_of
from sequence_distribution import assert_follows, no_garbage_collection
from tiny_models import blurred, random_model

import minispec as ms
from minispec.drafters import Draft, Drafter
from minispec.sequence import Sequence, next_id


@dataclass(frozen=True)
class Ask:
    """A request, and what `generate` alone makes of it."""

    prompt: list[int]
    new: int
    expected: ms.Output


@cache
def pair() -> tuple[ms.Model, ms.Model]:
    """A target with an end token, and a draft with noise on every weight."""
    tiny = dict(hidden_size=16, intermediate_size=24, num_heads=2, num_kv_heads=1, max_length=544)
    return ms.Model("ends", random_model(**tiny).transformer, None, {42}), blurred(**tiny)


@cache
def asks(count: int, longest_prompt: int, most_new: int, seed: int = 0) -> list[Ask]:
    """Random requests; half of the prompts begin like others do."""
    random = Random(seed)
    beginnings = [random.choices(range(64), k=longest_prompt // n) for n in (2, 3, 5)]
    wishes = []
    for i in range(count):
        prompt = random.choices(range(64), k=random.randint(1, longest_prompt))
        if i % 2:
            beginning = random.choice(beginnings)
            prompt = (beginning + prompt)[: max(len(prompt), len(beginning) + 1)]
        wishes.append((prompt, random.randint(1, most_new)))
    # One batch for all, each then cut to its own length: in float64 that is what each gives alone.
    outs = ms.generate(pair()[0], [prompt for prompt, _ in wishes], most_new)
    made = []
    for (prompt, new), out in zip(wishes, outs, strict=True):
        reason = out.finish_reason if len(out.tokens) <= new else "length"
        made.append(Ask(prompt, new, replace(out, tokens=out.tokens[:new], finish_reason=reason)))
    return made


def serve(engine: ms.Engine) -> dict:
    """Run to the end, and check the books after every step."""
    while engine.sequences:
        engine.step()
        engine.check_integrity()
    return engine.take()


def serve_on(engine: ms.Engine) -> tuple[dict, int]:
    """The same where steps are interrupted, and how often they were: the next one goes on."""
    interruptions = 0
    while engine.sequences:
        try:
            engine.step()
        except KeyboardInterrupt:
            interruptions += 1
        engine.check_integrity()
    return engine.take(), interruptions


def assert_idle(engine: ms.Engine) -> None:
    """Nothing is left of anybody."""
    engine.check_integrity()
    assert engine.pool.num_used == 0 and not any(engine.pool.refcount) and not engine.pool.tables
    assert not engine.sequences and not engine.scheduler.ids and not engine.outputs


def assert_as_alone(out: ms.Output, ask: Ask) -> None:
    expected = ask.expected
    assert (out.tokens, out.finish_reason, out.error) == (expected.tokens, expected.finish_reason, None)
    assert out.prompt_tokens == len(ask.prompt)
    if out.trace is not None:
        assert_trace_fits(out)


# ---- greedy --------------------------------------------------------------------------------------------------------


def check_greedy(
    drafter: Drafter | None = None, some: list[Ask] | None = None, preemptions=5, aborts=0.0, seed=0, **options
) -> ms.Engine:
    """Greedy texts are those of `generate` alone, with small chunks, few blocks, preemptions and aborts."""
    some = asks(24, 60, 24) if some is None else some
    longest = max(len(ask.prompt) + ask.new for ask in some)
    sizes = dict(block_size=4, max_num_seqs=8, max_num_batched_tokens=96, max_chunk=32, k=3)
    options = sizes | {"num_blocks": longest // sizes["block_size"] + 8} | options
    engine, random = ms.Engine(pair()[0], drafter, **options), Random(seed)
    ids = {engine.add(a.prompt, a.new, k=random.choice((None, None, 1, 6, 0))): a for a in some}
    outs: dict = {}
    while engine.sequences:
        engine.step()
        engine.check_integrity()
        if random.random() < aborts and engine.sequences:
            engine.abort(random.choice(list(engine.sequences)))
            engine.check_integrity()
        outs |= engine.take()
    assert outs.keys() == ids.keys()
    for id, out in outs.items():
        if out.finish_reason == "abort":
            assert out.tokens == ids[id].expected.tokens[: len(out.tokens)] and aborts
        else:
            assert_as_alone(out, ids[id])
    totals = engine.metrics()["totals"]
    assert totals["preemptions"] >= preemptions
    assert drafter is None or totals["drafted"] > 0
    assert_idle(engine)
    return engine


def check_tree() -> None:
    """Trees of which the second branch is right: every path has to be moved."""
    some = asks(24, 60, 24)
    texts = {tuple(ask.prompt): [*ask.prompt, *ask.expected.tokens, *[7] * 8] for ask in some}

    def make(context: Sequence, k: int) -> Draft:
        n = len(context.tokens)
        [text] = [text for prompt, text in texts.items() if context.tokens == text[:n] and n > len(prompt)]
        right = text[n : n + 3]
        wrong = [1 + token % 62 for token in right]
        return Draft([wrong[0], wrong[1], right[0], wrong[1], right[1], right[2]], None, [-1, 0, -1, 2, 2, 4])

    drafter = Given(make)
    drafter.extra = 6
    engine = check_greedy(drafter, some)
    assert engine.metrics()["totals"]["accepted"] > 60


# ---- sampling ------------------------------------------------------------------------------------------------------


def check_distribution(make: Callable | None = ALL["model"], draws: int = 1500, seed: int = 0, **options) -> None:
    """Sampled texts follow the target's joint law, under two samplings in one batch, each request from its own seed.

    Half the draws each. In 99 of 100 runs, 750 texts show a total variation of 0.16, 2,000 one of 0.11.
    """
    drafter = make and make(*law_pair())
    sizes = dict(num_blocks=2048, block_size=4, max_num_seqs=512, max_num_batched_tokens=8192, draft_budget=8192)
    engine = ms.Engine(law_pair()[0], drafter, history=0, **dict(k=3) | sizes | options)
    for i in range(draws):
        engine.add(LAW_PROMPT, LAW_TOKENS, seed=seed + i, **(OTHER if i % 2 else ONE))
    with no_garbage_collection():
        outs = engine.run()
    for half, knobs in enumerate((ONE, OTHER)):
        texts = [outs[i].tokens for i in range(half, draws, 2)]
        assert_follows(texts, distribution_of(**knobs), f"{type(drafter).__name__} in the engine, {knobs}")
    assert_idle(engine)


def check_own_seed() -> None:
    """A sampled text depends on its seed and not on the others in the batch; nor on a neighbour's longer draft."""
    target, prompts = pair()[0], [[5, 9, 5, 9, 5], [7], [1, 2, 3, 1, 2, 3, 1]]
    for drafter in (None, ms.drafters.NGram):
        texts = []
        for together in (True, False):
            engine = ms.Engine(target, drafter and drafter(), draft_budget=512)
            for seed, prompt in enumerate(prompts):
                engine.add(prompt, 24, temperature=0.6, seed=seed, k=2 + 3 * seed)
                while engine.sequences and not together:
                    engine.step()
            outs = engine.run()
            texts.append([outs[id].tokens for id in sorted(outs)])
        assert texts[0] == texts[1]


# ---- hidden states -------------------------------------------------------------------------------------------------


def check_hidden(**options) -> None:
    """A drafter hears the target's states of every token, in order and once, or all again after a preemption, also
    those that another request has computed, be that one aborted since."""
    target = pair()[0]
    layers, told, forgotten, wrong = (0, 1), {}, [], []

    class Listener(Given):
        hidden_layers, extra = layers, 4

        def forget(self, row: int) -> None:
            forgotten.append(row)
            told.pop(self.number(row), None)

    def make(context: Sequence, k: int) -> Draft:
        heard = told.setdefault(context.id, {n: [] for n in layers})
        for n in layers:
            heard[n].append(context.hidden[n])
        text = torch.tensor([context.tokens[:-1]])
        expected = target.transformer(text, hidden_layers=layers).hidden
        for n in layers:
            together = torch.cat(heard[n])
            right = expected[n][0]
            if together.shape != right.shape or not torch.allclose(together, right, rtol=0, atol=1e-12):
                wrong.append(context.tokens)  # not raised: the engine would ask again, for each request alone
        last = target.transformer(torch.tensor([context.tokens]), last_only=True).logits[0, -1].argmax().item()
        return Draft([63, last, 62][: 3 * k], None, [-1, -1, 1][: 3 * k])  # k = 1 is cut to the first level

    engine = check_greedy(Listener(make), asks(16, 40, 16), preemptions=2, aborts=0.05, num_blocks=24, **options)
    assert not wrong and len(forgotten) > 16  # everybody at the end, some in between
    assert engine.pool.stats().prefix_hits > 3


# ---- trouble -------------------------------------------------------------------------------------------------------


class Poison(RuntimeError):
    pass


def trouble(engine: ms.Engine, some: list[Ask], culprits: dict[int, type[Exception]], **options) -> dict:
    """Serve everybody: the culprits fail with their error, the others do not notice, and nothing stays behind."""
    for ask in some:
        engine.add(ask.prompt, ask.new, **options)
    outs = serve(engine)
    for i, ask in enumerate(some):
        if i in culprits:
            assert outs[i].finish_reason == "error" and type(outs[i].error) is culprits[i]
            assert outs[i].tokens == ask.expected.tokens[: len(outs[i].tokens)]
        else:
            assert_as_alone(outs[i], ask)
    assert_idle(engine)
    return outs


def long_asks(count: int = 6) -> list[Ask]:
    return [ask for ask in asks(24, 60, 24) if len(ask.expected.tokens) > 8][:count]


class Moody(ms.drafters.Model):
    """Breaks for the sequence numbered `victim`, once it has `after` tokens more than at first, in one of its methods.

    Sequences are numbered as they come: their ids are unique in the process, whatever ran before.
    """

    victim = 1

    def __init__(self, draft, method: str, after: int):
        super().__init__(draft)
        self.method, self.after, self.lengths, self.forgotten, self.first = method, after, {}, [], next_id() + 1

    def _break(self, method: str, row: int) -> None:
        first, now = self.lengths.get(row, (0, 0))
        if row - self.first == self.victim and method == self.method and now - first >= self.after:
            raise Poison(method)

    def propose(self, contexts, k):
        for c in contexts:
            self.lengths[c.id] = (self.lengths.get(c.id, (len(c.tokens), 0))[0], len(c.tokens))
        drafts = super().propose(contexts, k)
        for c in contexts:
            self._break("propose", c.id)
        return drafts

    def settle(self, row, path, emitted, scratch=None):
        super().settle(row, path, emitted, scratch)
        self._break("settle", row)

    def forget(self, row):
        super().forget(row)
        self.forgotten.append(row - self.first)
        self._break("forget", row)


# ---- shares, neighbours, threads -----------------------------------------------------------------------------------


@cache
def micro() -> ms.Model:
    return ms.load("micro", device="cpu")


def check_node_budget(most: int = 64) -> None:
    """Trees keep to the draft budget, and get smaller one by one as the batch fills, down to one node each."""

    class Greedy(Given):
        """Drafts 32 nodes, whatever it is allowed: two levels of a tree."""

        max_tree_nodes = lambda self, k: 32  # noqa: E731

    drafter = Greedy(lambda context, k: Draft([5] * 32, None, [-1] * 16 + list(range(16))))
    for sequences in (1, 4, 16, 64, 70):
        engine = ms.Engine(pair()[0], drafter, max_num_seqs=80, k=4, draft_budget=most)
        for i in range(sequences):
            engine.add([i % 64, 8, 9], 16)
        engine.step()
        nodes = [min(32, max(1, most // sequences))] * min(sequences, most) + [0] * (sequences - most)
        assert [row.drafted for row in engine.step().rows] == nodes


def check_two_engines() -> None:
    """Two engines that share a drafter: a draft that is always right stays right for both."""
    target = pair()[0]
    drafter, some = ms.drafters.Model(target), long_asks(4)
    engines = [ms.Engine(target, drafter, k=3) for _ in range(2)]
    for i, ask in enumerate(some):
        engines[i % 2].add(ask.prompt, ask.new)
    while any(engine.sequences for engine in engines):
        for engine in engines:
            engine.step()
    for i, engine in enumerate(engines):
        totals, outs = engine.metrics()["totals"], engine.take()
        assert totals["drafted"] == totals["accepted"] > 0
        for id, ask in enumerate(some[i::2]):
            assert_as_alone(outs[id], ask)
        assert_idle(engine)


def check_paused(name: str = "eagle, tree", **options) -> None:
    """For 20 steps nobody drafts; then the drafter is shown all that it has missed, and drafts on."""
    target, prompts = ms.Model("endless", pair()[0].transformer), [[1, 2, 3], [9, 8, 7, 6]]
    expected = [ms.generate(target, prompt, 60).tokens for prompt in prompts]
    missed, drafter = [], ALL[name](*pair())
    engine = ms.Engine(target, drafter, k=4, **options)
    right, show = engine.scheduler._speculate, engine.runner.cache.show
    ids = [engine.add(prompt, 60) for prompt in prompts]

    def shown(sequences, tables):
        show(sequences, tables)
        for sequence in sequences:
            states = target.transformer(torch.tensor([sequence.tokens[:-1]]), hidden_layers=drafter.hidden_layers)
            missed.append(len(sequence.tokens) - 1 - sequence.seen)
            for n, all_states in states.hidden.items():
                assert torch.allclose(sequence.hidden[n], all_states[0, sequence.seen :], rtol=0, atol=1e-12)

    engine.runner.cache.show = shown
    while engine.sequences:
        engine.scheduler._speculate = (lambda step: None) if 5 <= engine.scheduler.steps < 25 else right
        engine.step()
        engine.check_integrity()
    outs = engine.take()
    assert [outs[id].tokens for id in ids] == expected and not any(outs[id].error for id in ids)
    assert sum(count >= 20 for count in missed) == 2 and engine.metrics()["totals"]["accepted"] > 0


def check_threads(threads: int = 4, each: int = 150) -> None:
    """Requests that several threads add without pause, while another one steps: all are served, none twice."""
    engine, ids, errors = ms.Engine(pair()[0], num_blocks=128, max_num_seqs=64), [], []
    expected = [ms.generate(pair()[0], [1, token], 2).tokens for token in range(8)]
    right = engine.scheduler.add

    def slowly(request) -> None:
        time.sleep(1e-4)  # between the choice of an id and its use, every other thread gets its chance
        right(request)

    engine.scheduler.add = slowly

    def add() -> None:
        try:
            for i in range(each):
                ids.append((engine.add([1, i % 8], 2), i % 8))
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as unkind as it gets
    try:
        adding = [threading.Thread(target=add) for _ in range(threads)]
        for thread in adding:
            thread.start()
        outs = {}
        while any(thread.is_alive() for thread in adding) or engine.sequences:
            engine.step()
            outs |= engine.take()
    finally:
        sys.setswitchinterval(interval)
    assert not errors, errors[0]
    assert len(ids) == len(outs) == threads * each and outs.keys() == {id for id, _ in ids}
    assert all(outs[id].tokens == expected[token] for id, token in ids)
    assert_idle(engine)


def check_callbacks() -> None:
    """Whatever steps the engine from a callback is refused in words, and fails the callback's request alone."""
    target = micro()
    for method in ("step", "run", "generate"):
        engine, called = ms.Engine(target), []

        def callback(piece: str, engine=engine, called=called, method=method) -> None:
            called.append(piece)
            if len(called) == 2:
                getattr(engine, method)(*([["One day"]] if method == "generate" else []))

        engine.add("Once upon a time", 12, stream=callback), engine.add("One day", 12)
        outs = serve(engine)
        assert outs.keys() == {0, 1} and type(outs[0].error) is RuntimeError
        assert f"{method}() was called inside a step" in str(outs[0].error) and len(outs[0].tokens) < 12
        assert outs[1].tokens == ms.generate(target, "One day", 12).tokens
        assert_idle(engine)


CHECKS = {name[6:].replace("_", " "): check for name, check in list(globals().items()) if name.startswith("check_")}
