"""Drafting while the target verifies: exact whatever was prepared, the same drafts as without, and fewer of them waited
for. (Greedy and sampled outputs in both loops: all_drafters.)"""

import random
from copy import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from exact_distributions import target_distribution, toy_model
from fakes import continuation, scripted, whole_text, wrong_at
from loop_checks import PROMPT, SAMPLED_PROMPT, SAMPLED_TOKENS, countable_pair, expected_distribution
from sequence_distribution import assert_follows
from tiny_models import random_model

import minispec as ms
from minispec.drafters import Draft
from minispec.drafters.ahead import Ahead, likelihoods
from minispec.exact import chain_cycle, exact_distribution, propose_chain, total_variation
from minispec.sampling import Coins
from minispec.sequence import Sequence

D = ms.drafters

# ---------------------------------------------------------------- exactly


def two_cycles(target, draft, k: int, outcomes: int, n: int, random, use=lambda made, text: made.get(text), seen=False):
    """The first n tokens of cycles that prepare for the likeliest outcomes. `use` takes the prepared draft and its q;
    if `seen`, prepared drafts are sampled with the numbers that the verification uses."""
    text, made = (), {}
    while len(text) < n:
        drafted, qs = use(made, text) or propose_chain(draft, text, k, random)
        u = [random() for _ in range(k + 1)]
        q = torch.stack([draft(text + drafted[:a]) for a in range(k + 1)])
        chances = likelihoods(q, list(drafted), q[range(k), drafted])
        best, V = chances.flatten().topk(outcomes).indices.tolist(), q.shape[1]
        after = [(*text, *drafted[: i // V], i % V) for i in best]
        more = len(text) + 1 < n  # else nobody asks for a draft again
        numbers = partial(next, iter(u * outcomes)) if seen else random
        made = {end: propose_chain(draft, end, k, numbers) for end in after if more}
        given = lambda *_, draft=(drafted, qs): draft  # noqa: E731
        text += chain_cycle(target, draft, text, k, partial(next, iter(u)), propose=given)
    return text[:n]


def wrong_q(made: dict, text: tuple):
    """The right tokens, with the q of another outcome."""
    others = [q for end, (_, q) in made.items() if end != text]
    return (made[text][0], others[0]) if text in made and others else None


def any_outcome(made: dict, text: tuple):
    """Whatever was prepared first, for whichever outcome, with its own q."""
    return next(iter(made.values()), None)


@pytest.mark.slow
@pytest.mark.parametrize("vocab, k, outcomes, n", [(3, 1, 2, 2), (2, 1, 2, 3), (2, 2, 2, 2)])
def test_every_branch_of_the_random_numbers(vocab, k, outcomes, n):
    target, draft = toy_model(vocab, 0), toy_model(vocab, 1)  # every bias below shows in these
    run = partial(two_cycles, target, draft, k, outcomes, n)
    expected = target_distribution(target, n)
    away = lambda **how: total_variation(exact_distribution(partial(run, **how)), expected)  # noqa: E731
    assert away() < 1e-12
    assert away(use=any_outcome) < 1e-12  # an ordinary draft with a true q, only a poor one
    assert away(use=wrong_q) > 1e-3
    assert away(seen=True) > 1e-3


@pytest.mark.parametrize("n", [0, 1, 4])
def test_an_outcome_is_as_likely_as_the_tokens_it_emits(n):
    """With keep = q(d): so all of them sum to one, and the token that was rejected is never the correction."""
    q = torch.rand(n + 1, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64).softmax(-1)
    drafted, reach = [3, 0, 3, 6][:n], 1.0
    chances = likelihoods(q, drafted, q[range(n), drafted])
    for a in range(n + 1):
        expected = reach * q[a]
        if a < n:
            reach, expected[drafted[a]] = float(expected[drafted[a]]), 0.0
        assert torch.allclose(chances[a], expected)
    assert abs(float(chances.sum()) - 1) < 1e-12


# ---------------------------------------------------------------- the drafter itself


def ahead_of(draft: ms.Model, outcomes: int) -> Ahead:
    return Ahead(D.Model(draft), outcomes)


def check_drafts_are_the_models(make=ahead_of, turns: int = 30) -> None:
    """Sequences join, end, are preempted, and sit out. With or without preparations drafts are those of the model, and
    none is made twice."""
    target, draft = random_model(num_layers=3), random_model(num_layers=1)
    ahead, rng = make(draft, 6), random.Random(1)
    ahead.fit(target)
    texts: dict[int, list[int]] = {}
    of = lambda id: Sequence(id, list(texts[id]), coins=Coins(0))  # noqa: E731
    for turn in range(turns):
        if turn < 3:
            texts[turn] = [rng.randrange(64) for _ in range(rng.randint(1, 6))]
        chosen, k = rng.sample(sorted(texts), rng.randint(1, len(texts))), rng.randint(1, 3)
        expected = D.Model(draft).propose([of(id) for id in chosen], k)
        made = ahead.propose([of(id) for id in chosen], k)
        for mine, theirs in zip(made, expected, strict=True):
            assert mine.tokens == theirs.tokens[: len(mine.tokens)] and mine.tokens, f"turn {turn}"
        if rng.random() < 0.9:
            ahead.while_verifying([of(id) for id in chosen], made)
        for id, draft_of in zip(chosen, made, strict=True):
            end = tuple(rng.choice([*ahead.prepared.get(id, {}), (*texts[id], *draft_of.tokens[:1], 7)]))
            a = len(end) - len(texts[id]) - 1
            texts[id] = list(end)
            ahead.settle(id, range(a), end[-1])
        if turn % 7 == 6:
            id = rng.choice(sorted(texts))
            texts[id] = texts[id][: 1 + len(texts[id]) // 2]
            ahead.rewind(id, len(texts[id]) - 1)
    assert ahead.hits > turns // 2 and ahead.misses > 5
    for id in texts:
        ahead.forget(id)
    inner = ahead.inner
    assert not (ahead.prepared or inner.committed or inner.memory.lengths or inner.memory.places)


def check_passes(make=ahead_of) -> None:
    """k passes for a miss, none for a hit; and 1 + k while the target verifies, over all outcomes side by side."""
    wrong, k, count = (4, 11, 16), 3, 40
    target, draft = scripted(whole_text), scripted(wrong_at(wrong))
    ahead, passes = make(draft, 40), draft.transformer.readings
    cycles = []
    out = ms.speculate(target, PROMPT, ahead, k, count, on_cycle=lambda c: cycles.append((c, ahead.hits, len(passes))))
    assert out.tokens == continuation(PROMPT, count)
    hits = before = 0
    for cycle, hit, done in cycles:
        if cycle.committed + 2 * (k + 1) <= len(PROMPT) + count:  # else there is less to draft, or nothing to prepare
            assert done - before == (0 if hit > hits else k) + 1 + k
        hits, before = hit, done
    assert ahead.hits > 2 and ahead.misses >= 1


def check_distribution(make=ahead_of, draws: int = 1_200) -> None:
    """Sampled outputs follow the target, with coins of its own for each sequence."""
    target, draft = countable_pair()
    ahead = make(draft, 8)
    outs = ms.speculate(target, [SAMPLED_PROMPT] * draws, ahead, 1, SAMPLED_TOKENS, temperature=1.0, seed=5)
    assert ahead.hits > draws
    assert_follows([out.tokens for out in outs], expected_distribution(temperature=1.0), "prepared drafts")


def test_drafts_are_the_models_whatever_was_prepared():
    check_drafts_are_the_models()


def test_a_hit_costs_no_pass_of_the_draft_model():
    check_passes()


@pytest.mark.slow
def test_sampled_outputs_follow_the_target():
    check_distribution()


# ---------------------------------------------------------------- wrong variants


class TakesAnyOutcome(Ahead):
    """Takes the draft of whichever outcome was prepared first. Exact, and hardly ever accepted."""

    def propose(self, sequences, k):
        for sequence in sequences:
            if prepared := self.prepared.get(sequence.id):
                self.prepared[sequence.id] = {tuple(sequence.tokens): next(iter(prepared.values()))}
        return super().propose(sequences, k)


class QOfAnotherOutcome(Ahead):
    """Each prepared draft has the q of the next one."""

    def while_verifying(self, sequences, drafts):
        super().while_verifying(sequences, drafts)
        there = [(prepared, end) for prepared in self.prepared.values() for end in prepared]
        q = [prepared[end][0].probs for prepared, end in there]
        for (prepared, end), other in zip(there, q[1:] + q[:1], strict=True):
            draft, fork = prepared[end]
            prepared[end] = Draft(draft.tokens, other), fork


class UsesTheVerificationsNumbers(Ahead):
    """Samples what it prepares with the numbers that the verification will use."""

    def while_verifying(self, sequences, drafts):
        propose = self.inner.propose

        def with_twins(forks, k):
            twins = [copy(fork.coins) for fork in forks]
            return propose([replace(fork, coins=twin) for fork, twin in zip(forks, twins, strict=True)], k)

        self.inner.propose = with_twins
        super().while_verifying(sequences, drafts)
        del self.inner.propose


class LosesTheForksMemory(D.Model):
    """After a hit nothing is left of the sequence in the draft model's cache."""

    def become(self, fork, id):
        super().become(fork, id)
        self.memory.forget(id)


def with_ahead(kind: type[Ahead]):
    return lambda draft, outcomes: kind(D.Model(draft), outcomes)


def with_model(kind: type[D.Model]):
    return lambda draft, outcomes: Ahead(kind(draft), outcomes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, check",
    [
        pytest.param(with_ahead(TakesAnyOutcome), check_drafts_are_the_models, id="takes the draft of any outcome"),
        pytest.param(with_ahead(QOfAnotherOutcome), check_distribution, id="q of another outcome"),
        pytest.param(with_ahead(UsesTheVerificationsNumbers), check_distribution, id="the verification's numbers"),
        pytest.param(with_model(LosesTheForksMemory), check_passes, id="loses the fork's memory"),
        pytest.param(with_model(LosesTheForksMemory), check_drafts_are_the_models, id="loses it, call by call"),
    ],
)
def test_wrong_preparations_are_noticed(make, check):
    with pytest.raises((AssertionError, KeyError)):  # of a check, or of a look-up in the cache
        check(make)


# ---------------------------------------------------------------- its limits


def test_a_preparation_that_fails_leaves_nothing_behind(make_model, monkeypatch):
    ahead = Ahead(D.Model(make_model(num_layers=1)), 2)
    propose = ahead.inner.propose
    fails = lambda some, k: 1 / 0 if isinstance(some[0].id, tuple) else propose(some, k)  # noqa: E731
    monkeypatch.setattr(ahead.inner, "propose", fails)
    with pytest.raises(ZeroDivisionError):
        ms.speculate(make_model(), [1, 2, 3], ahead, 3, 60)
    assert not (ahead.inner.memory.lengths or ahead.inner.committed)


@pytest.mark.parametrize("T", [0.0, 1.0])
def test_a_draft_model_that_knows_no_token_that_is_allowed(make_model, T):
    target, small = make_model(), make_model(num_layers=1, head_vocab=16)
    for drafter in (Ahead(D.Model(small), 2), D.Cascade(D.NGram(), small)):
        out = ms.speculate(target, [1, 2], drafter, 3, temperature=T, choices=[[40, 41, 42, 43]], stop_token_ids=[63])
        assert out.tokens == [40, 41, 42, 43, 63]


def test_what_cannot_be_prepared_for(make_model):
    for inner in (D.NGram(), D.Cascade(D.NGram(), make_model(num_layers=1))):
        with pytest.raises(ValueError, match=r"ms\.drafters\.Model\(draft\)"):
            Ahead(inner)
    with pytest.raises(ValueError, match="outcomes=-1"):
        Ahead(D.Model(make_model(num_layers=1)), -1)
