"""Checks that the draft/verify loop and the model drafter do what they promise: same tokens, same law, tidy caches."""

from contextlib import suppress
from functools import cache
from itertools import islice

import torch
from fakes import Given, continuation, scripted, whole_text, wrong_at
from sequence_distribution import DRAWS, assert_follows, joint_distribution, many_rows
from tiny_models import blurred, random_model

import minispec as ms
from minispec.drafters import Draft, Drafter
from minispec.sequence import Sequence

# ---- whole runs ----------------------------------------------------------------------------------------------------

LAW_PROMPT, LAW_TOKENS = (1, 2, 3, 1, 2), 4  # repeats itself, so that lookups find something
ONE = dict(temperature=1.0)
OTHER = dict(temperature=0.7, top_k=4, top_p=0.9)


@cache
def law_pair() -> tuple[ms.Model, ms.Model]:
    """A target whose texts can be counted, and its first layer as the draft: some drafts pass, some do not."""
    tiny = dict(
        vocab_size=5, hidden_size=16, intermediate_size=16, num_heads=2, num_kv_heads=1, head_dim=8, dtype=torch.float32
    )
    return random_model(num_layers=3, max_length=64, **tiny), random_model(num_layers=1, max_length=64, **tiny)


@cache
def target_law(**knobs) -> dict:
    return joint_distribution(law_pair()[0], LAW_PROMPT, LAW_TOKENS, ms.Sampling(**knobs))


def sample(drafter: Drafter, k: int | str, seed: int, draws: int = DRAWS, **knobs) -> list[list[int]]:
    """Speculative texts of the law pair's target, as rows of one batch."""
    with many_rows(seed):
        outputs = ms.speculate(law_pair()[0], [LAW_PROMPT] * draws, drafter, k, LAW_TOKENS, **knobs)
        return [out.tokens for out in outputs]


def check_distribution(
    drafter: Drafter | None = None, k: int | str = 3, seed: int = 0, draws: int = DRAWS, **knobs
) -> None:
    """Sampled texts follow the target's joint law."""
    knobs = knobs or ONE
    drafter = drafter or ms.drafters.Model(law_pair()[1])
    assert_follows(sample(drafter, k, seed, draws, **knobs), target_law(**knobs), f"{type(drafter).__name__}, {knobs}")


def check_own_temperature(draws: int = DRAWS) -> None:
    """The same where the draft is drawn at another temperature than the target's."""
    check_distribution(ms.drafters.Model(law_pair()[1], ms.Sampling(temperature=2.5)), draws=draws)


def check_ragged_law(draws: int = DRAWS) -> None:
    """The same where only every other row drafts, as lookups do: the others must still get their plain token."""

    class EveryOther(ms.drafters.Model):
        def propose(self, contexts, k):
            chosen = [context for context in contexts if context.id % 2]
            drafts = iter(super().propose(chosen, k) if chosen else ())
            return [next(drafts) if context.id % 2 else Draft([]) for context in contexts]

    check_distribution(EveryOther(law_pair()[1]), draws=draws)


PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18, 28])


@cache
def greedy_pair() -> tuple[ms.Model, ms.Model]:
    """A target with end tokens, which two of the prompts come to, and a draft with noise on every weight."""
    return ms.Model("ends", random_model(num_layers=3).transformer, None, {42, 31}), blurred(num_layers=3)


def check_greedy(drafter: Drafter | None = None, ks: list[int | str] = (3, 1, 5, "auto"), count: int = 24) -> None:
    """Token for token what `generate` writes, as a ragged batch, and for the first k one prompt at a time too."""
    target, draft = greedy_pair()
    drafter = drafter or ms.drafters.Model(draft)
    plain = ms.generate(target, list(PROMPTS), count)
    for prompt, expected in zip(PROMPTS, plain, strict=True):
        assert_same(ms.speculate(target, prompt, drafter, ks[0], count), expected)
    for k in ks:
        for out, expected in zip(ms.speculate(target, list(PROMPTS), drafter, k, count), plain, strict=True):
            assert_same(out, expected)


def assert_same(out: ms.Output, expected: ms.Output) -> None:
    assert (out.tokens, out.text, out.finish_reason) == (expected.tokens, expected.text, expected.finish_reason)
    assert out.prompt_tokens == expected.prompt_tokens
    assert_trace_fits(out)


def assert_trace_fits(out: ms.Output) -> None:
    """The cycles tell the output's own story."""
    written = plain = 0
    for cycle in out.trace.cycles:
        start = cycle.committed - out.prompt_tokens
        assert start >= written and cycle.tokens == out.tokens[start : start + cycle.kept]
        assert len(cycle.tokens) == len(cycle.kinds) == cycle.kept >= 1
        assert len(cycle.p) == len(cycle.q) == len(cycle.drafted)
        plain, written = plain + start - written, start + cycle.kept
    assert plain + len(out.tokens) - written == out.trace.plain  # a pass, and a token, without a draft


# ---- how the models are called -------------------------------------------------------------------------------------

PROMPT = [3, 15]
# Places of the text where the draft is wrong; k = 3 and a prompt of two tokens make of it:
WRONG, K = (2, 4, 11, 16, 17, 18), 3
ACCEPTED = [0, 1, 3, 2, 3, 0, 0, 0]  # places 2 | 3 4 | 5 6 7 8 | 9 10 11 | 12 13 14 15 | 16 | 17 | 18
TOKENS = sum(ACCEPTED) + len(ACCEPTED)


class Run:
    """A scripted run of the model drafter, and what each model had read when each cycle ended."""

    def __init__(self, wrong=WRONG, k=K, count=TOKENS, prompts=(PROMPT,), end_tokens=()):
        target, draft = scripted(whole_text, end_tokens), scripted(wrong_at(wrong))
        self.target, self.cycles = target.transformer, []
        self.kept: list[list[list[int]]] = []  # after every cycle: what each row of the target's cache holds
        self.outs = ms.speculate(target, list(prompts), ms.drafters.Model(draft), k, count, on_cycle=self.note)
        self.prefill, *self.verify_passes = self.target.readings
        passes = iter(draft.transformer.readings)
        self.draft_passes = [[*islice(passes, len(cycle.drafted))] for cycle in self.cycles]
        self.unexpected_passes = [*passes]

    def note(self, cycle: ms.Cycle) -> None:
        self.cycles.append(cycle)
        self.kept.append([self.target.contents(row) for row in range(self.target.cache.batch)])


def check_calls() -> None:
    """One pass of the target a cycle, over [last token, drafts]; k of the draft, first over what it has not read."""
    run = Run()
    assert run.outs[0].tokens == continuation(PROMPT, TOKENS)
    assert [cycle.accepted for cycle in run.cycles] == ACCEPTED
    assert run.prefill.tokens == [PROMPT[:-1]] and run.prefill.positions == [[0]]
    assert len(run.verify_passes) == len(run.cycles) and not run.unexpected_passes
    text, held = [*PROMPT, *run.outs[0].tokens], 0  # tokens of the text that the draft has read
    for cycle, verify, drafting in zip(run.cycles, run.verify_passes, run.draft_passes, strict=True):
        n, k = cycle.committed, len(cycle.drafted)
        assert verify.tokens == [[text[n - 1], *cycle.drafted]]
        assert verify.positions == [[*range(n - 1, n + k)]]
        assert verify.texts == [[(*text[:n], *cycle.drafted[:i]) for i in range(k + 1)]]
        for step, reading in enumerate(drafting):
            unread = text[held:n] if step == 0 else [cycle.drafted[step - 1]]
            assert reading.tokens == [unread]
            assert reading.positions == [[*range(n + step - len(unread), n + step)]]
            assert reading.texts[0][-1] == (*text[:n], *cycle.drafted[:step])
        held = n - 1 + min(cycle.accepted + 1, k) if k else held  # of the k tokens it read


def check_caches() -> None:
    """After every cycle the target's cache holds all tokens but the last; the draft's too, or one less if a = k."""
    run = Run()
    text = [*PROMPT, *run.outs[0].tokens]
    for cycle, kept in zip(run.cycles, run.kept, strict=True):
        assert kept == [text[: cycle.committed + cycle.accepted]]  # the cycle emitted one token more
    for cycle, (first, *_) in zip(run.cycles, [passes for passes in run.draft_passes[1:] if passes], strict=False):
        tokens = cycle.committed + cycle.accepted + 1
        assert first.held == [tokens - 2 if cycle.accepted == len(cycle.drafted) else tokens - 1]


def check_stop() -> None:
    """An end token among the accepted drafts ends the text there; its neighbour in the batch does not notice."""
    free, neighbour = continuation(PROMPT, 16), [5, 5, 5]
    texts = [[*PROMPT, *free], [*neighbour, *continuation(neighbour, 16)]]
    for place in (4, 5, 6):  # the three drafts that the second cycle accepts; all eight tokens so far are different
        run = Run(wrong=(), end_tokens=[free[place]], count=12)
        assert (run.outs[0].tokens, run.outs[0].finish_reason) == (free[: place + 1], "stop")
        assert [(cycle.accepted, cycle.kept) for cycle in run.cycles] == [(K, K + 1), (K, place - 3)]
        assert run.kept[-1] == [texts[0][: 6 + K]]  # what was verified stays, as ever; nobody reads on from there
        pair = Run(wrong=(), end_tokens=[free[place]], count=12, prompts=(PROMPT, neighbour))
        alone = Run(wrong=(), end_tokens=[free[place]], count=12, prompts=(neighbour,))
        assert [out.tokens for out in pair.outs] == [run.outs[0].tokens, alone.outs[0].tokens]
        for row in (row for kept in pair.kept for row in kept):
            assert row in [text[: len(row)] for text in texts]


def check_length() -> None:
    """Never a token more than asked for, never one less, and not more drafts than there is room for."""
    for wrong in ((), WRONG, range(64)):
        for count in (1, 2, 3, 4, 5, 9):
            for k in (1, 3, 8):
                run = Run(wrong, k, count)
                assert (run.outs[0].tokens, run.outs[0].finish_reason) == (continuation(PROMPT, count), "length")
                for cycle in run.cycles:
                    assert len(cycle.drafted) == min(k, len(PROMPT) + count - cycle.committed - 1)


def check_bonus() -> None:
    """A perfect draft yields k + 1 tokens a pass, a useless one still one."""
    for k in (1, 2, 4):
        assert len(Run((), k, 5 * (k + 1)).cycles) == 5
        assert len(Run(range(64), k, 6).cycles) == 6


def check_forgets() -> None:
    """A row is forgotten once, as soon as it ends, and not asked about again; all are when something breaks."""
    prompts = (PROMPT, [5, 5, 5], [8])
    texts = [[*prompt, *continuation(prompt, 20)] for prompt in prompts]
    end = texts[0][4]  # the first row is over after its third token, the others a little later

    def forgotten(breaks_at: int) -> list[int]:
        def make(context: Sequence, k: int) -> Draft:
            assert context.id not in drafter.forgotten
            if len(drafter.asked) > breaks_at:
                raise RuntimeError("out of ideas")
            n = len(context.tokens)
            return Draft(texts[context.id][n : n + k])

        drafter = Given(make)
        with suppress(RuntimeError):
            ms.speculate(scripted(whole_text, [end]), list(prompts), drafter, 2, 12)
        return drafter.forgotten

    assert forgotten(1000)[0] == 0
    for breaks_at in (0, 3, 5, 1000):
        assert sorted(forgotten(breaks_at)) == [0, 1, 2]


CHECKS = {name[6:].replace("_", " "): check for name, check in list(globals().items()) if name.startswith("check_")}
SAMPLED = ("own temperature", "ragged law")
