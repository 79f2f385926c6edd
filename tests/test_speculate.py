"""The draft/verify loop: same tokens when greedy, same distribution when sampling, tidy caches, errors that leave
nothing behind."""

import itertools
import math

import loop_checks as loop
import pytest
import torch
from all_drafters import ALL
from fakes import Given, continuation, scripted, whole_text, wrong_at
from loop_checks import PROMPT
from sequence_distribution import DRAWS, assert_follows, joint_distribution, many_rows, power

import minispec as ms
from minispec.drafters import Draft, Drafter

# ---- how the models are called ---------------------------------------------------------------------------------------

# Positions of the sequence where the draft is wrong; k = 3 and a prompt of two tokens make of it:
WRONG, K = (2, 4, 11, 16, 17, 18), 3
ACCEPTED = [0, 1, 3, 2, 3, 0, 0, 0]  # positions 2 | 3 4 | 5 6 7 8 | 9 10 11 | 12 13 14 15 | 16 | 17 | 18
TOKENS = sum(ACCEPTED) + len(ACCEPTED)


class Run:
    """A scripted run of the model drafter, and what each model had processed when each cycle ended."""

    def __init__(self, wrong=WRONG, k=K, count=TOKENS, prompts=(PROMPT,), end_tokens=()):
        target, draft = scripted(whole_text, end_tokens), scripted(wrong_at(wrong))
        self.target, self.cycles = target.transformer, []
        self.kept: list[list[list[int]]] = []  # after every cycle: what each row of the target's cache holds
        self.outs = ms.speculate(target, list(prompts), ms.drafters.Model(draft), k, count, on_cycle=self.note)
        self.prefill, *self.verify_passes = self.target.readings
        passes = iter(draft.transformer.readings)
        self.draft_passes = [[*itertools.islice(passes, len(cycle.drafted))] for cycle in self.cycles]
        self.unexpected_passes = [*passes]

    def note(self, cycle: ms.Cycle) -> None:
        self.cycles.append(cycle)
        self.kept.append([self.target.contents(row) for row in range(self.target.cache.batch)])


def test_a_cycle_is_one_pass_of_the_target_and_k_of_the_draft():
    """The target's over [last token, drafts]; the draft's first one over all that it has not processed."""
    run = Run()
    assert run.outs[0].tokens == continuation(PROMPT, TOKENS)
    assert [cycle.accepted for cycle in run.cycles] == ACCEPTED
    assert run.prefill.tokens == [PROMPT[:-1]] and run.prefill.positions == [[0]]
    assert len(run.verify_passes) == len(run.cycles) and not run.unexpected_passes
    text, held = [*PROMPT, *run.outs[0].tokens], 0  # tokens that the draft has processed
    for cycle, verify, drafting in zip(run.cycles, run.verify_passes, run.draft_passes, strict=True):
        n, k = cycle.committed, len(cycle.drafted)
        assert verify.tokens == [[text[n - 1], *cycle.drafted]]
        assert verify.positions == [[*range(n - 1, n + k)]]
        assert verify.texts == [[(*text[:n], *cycle.drafted[:i]) for i in range(k + 1)]]
        for step, reading in enumerate(drafting):
            new = text[held:n] if step == 0 else [cycle.drafted[step - 1]]
            assert reading.tokens == [new]
            assert reading.positions == [[*range(n + step - len(new), n + step)]]
            assert reading.texts[0][-1] == (*text[:n], *cycle.drafted[:step])
        held = n - 1 + min(cycle.accepted + 1, k) if k else held  # of the k tokens it processed


def test_after_a_cycle_the_caches_hold_what_was_verified():
    """The target's all tokens but the last; the draft's too, or one less if every draft token was accepted."""
    run = Run()
    text = [*PROMPT, *run.outs[0].tokens]
    for cycle, kept in zip(run.cycles, run.kept, strict=True):
        assert kept == [text[: cycle.committed + cycle.accepted]]  # the cycle emitted one token more
    for cycle, (first, *_) in zip(run.cycles, [passes for passes in run.draft_passes[1:] if passes], strict=False):
        tokens = cycle.committed + cycle.accepted + 1
        assert first.held == [tokens - 2 if cycle.accepted == len(cycle.drafted) else tokens - 1]


def test_an_end_token_among_the_accepted_drafts_ends_the_sequence_there():
    """Its neighbour in the batch does not notice."""
    free, neighbour = continuation(PROMPT, 16), [5, 5, 5]
    texts = [[*PROMPT, *free], [*neighbour, *continuation(neighbour, 16)]]
    for end in (4, 5, 6):  # the three drafts that the second cycle accepts; all eight tokens so far are different
        run = Run(wrong=(), end_tokens=[free[end]], count=12)
        assert (run.outs[0].tokens, run.outs[0].finish_reason) == (free[: end + 1], "stop")
        assert [(cycle.accepted, cycle.kept) for cycle in run.cycles] == [(K, K + 1), (K, end - 3)]
        assert run.kept[-1] == [texts[0][: 6 + K]]  # what was verified stays; nothing goes on from there
        pair = Run(wrong=(), end_tokens=[free[end]], count=12, prompts=(PROMPT, neighbour))
        alone = Run(wrong=(), end_tokens=[free[end]], count=12, prompts=(neighbour,))
        assert [out.tokens for out in pair.outs] == [run.outs[0].tokens, alone.outs[0].tokens]
        for row in (row for kept in pair.kept for row in kept):
            assert row in [text[: len(row)] for text in texts]


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_exactly_as_many_tokens_as_asked_for_in_as_few_cycles_as_possible(k, count):
    """A perfect draft yields k + 1 tokens per pass, a useless one still one; nothing is drafted past the end."""
    for wrong, cycles in (((), -(-count // (k + 1))), (WRONG, None), (range(64), count)):
        run = Run(wrong, k, count)
        assert (run.outs[0].tokens, run.outs[0].finish_reason) == (continuation(PROMPT, count), "length")
        assert cycles in (None, len(run.cycles))
        for cycle in run.cycles:
            assert len(cycle.drafted) == min(k, len(PROMPT) + count - cycle.committed - 1)


def test_the_drafter_forgets_a_row_once_as_soon_as_it_ends():
    """It is not asked about that row again."""
    prompts = [PROMPT, [5, 5, 5], [8]]
    texts = [[*prompt, *continuation(prompt, 20)] for prompt in prompts]

    def make(context, k: int) -> Draft:
        assert context.id not in drafter.forgotten
        n = len(context.tokens)
        return Draft(texts[context.id][n : n + k])

    drafter = Given(make)
    end = texts[0][4]  # the first row is over after its third token, the others a little later
    ms.speculate(scripted(whole_text, [end]), prompts, drafter, 2, 12)
    assert drafter.forgotten[0] == 0 and sorted(drafter.forgotten) == [0, 1, 2]


def test_a_ragged_batch_of_scripted_rows():
    """Rows of different lengths, acceptances and ends: every pass sees each row's own text and nothing else."""
    prompts = [PROMPT, [8], [5, 5, 5, 5, 5, 5]]
    now_and_then, always = wrong_at(range(3, 60, 5)), wrong_at(range(64))
    target, draft = scripted(whole_text), scripted(lambda text: (always if text[0] == 8 else now_and_then)(text))
    outs = ms.speculate(target, prompts, ms.drafters.Model(draft), 4, 11)
    texts = [tuple([*prompt, *out.tokens]) for prompt, out in zip(prompts, outs, strict=True)]
    assert [out.tokens for out in outs] == [continuation(prompt, 11) for prompt in prompts]
    assert len({out.trace.target_passes for out in outs}) > 1
    _, *passes = target.transformer.readings  # after the prefill
    for reading in passes:
        for held, tokens, positions, seen in zip(*reading, strict=True):
            text = next(text for text in texts if seen[0] == text[: len(seen[0])])
            assert held == len(seen[0]) - 1 and positions == [*range(held, held + len(tokens))]
            assert [s[: held + 1] for s in seen] == [text[: held + 1]] * len(seen)
            assert [s[held:] for s in seen] == [tuple(tokens[: i + 1]) for i in range(len(tokens))]


def tree_draft(right: list[int], context, k: int) -> Draft:
    """Two branches of which the second one is right: −1 → wrong → wrong', −1 → d₁ → (wrong, d₂ → d₃)."""
    n = len(context.tokens)
    d = [*right[n : n + 3], 1, 1, 1][:3]
    wrong = [1 + token % 15 for token in d]
    return Draft([wrong[0], wrong[1], d[0], wrong[1], d[1], d[2]], None, [-1, 0, -1, 2, 2, 4])


def test_a_tree_is_one_pass_of_the_target_and_its_path_kept_in_one_piece():
    target, text = scripted(whole_text), [*PROMPT, *continuation(PROMPT, 40)]
    kept = []
    drafter = Given(lambda context, k: tree_draft(text, context, k))
    drafter.extra = 6
    note = lambda _: kept.append(target.transformer.contents())  # noqa: E731
    out = ms.speculate(target, PROMPT, drafter, 3, 9, on_cycle=note)
    assert out.tokens == text[2:11]
    first, second, third = out.trace.cycles
    assert first.path == second.path == [2, 4, 5] and first.kept == 4 and first.bonus
    assert drafter.settled == [(0, [2, 4, 5], text[5]), (0, [2, 4, 5], text[9])]
    assert kept[:2] == [text[:5], text[:9]]
    assert (third.drafted, third.tokens) == ([], [text[10]])  # room for one token, so for no draft
    n = 2
    for reading in target.transformer.readings[1:3]:
        assert reading.positions == [[n - 1 + depth for depth in (0, 1, 2, 1, 2, 2, 3)]]
        root, wrong, _, d1, rival, d2, d3 = (seen[n:] for seen in reading.texts[0])
        assert root == () and len(wrong) == 1 and d3 == tuple(text[n : n + 3])
        assert d1 == d3[:1] and rival[:1] == d1 and rival != d2 and d2 == d3[:2]
        n += 4


@pytest.mark.parametrize(("k", "unseen"), [(2, 4), ("auto", 6)])
@pytest.mark.parametrize("branching", [False, True])
def test_hidden_states_of_every_token_reach_the_drafter(tiny, branching, k, unseen, monkeypatch):
    """Over all cycles together: the residual stream of prompt and output, less the last token, in order.

    With "auto" there are plain cycles, in which the drafter is not asked: it gets their states the next time.
    """
    lengths = itertools.cycle([2, 0, 0])
    monkeypatch.setattr("minispec.controller.Controller.choose", lambda self, ids: next(lengths))
    prompt, right = [3, 1, 4, 1, 5], ms.generate(tiny, [3, 1, 4, 1, 5], 12).tokens
    text, states = [*prompt, *right], {0: [], 1: []}

    def make(context, k):
        for layer in states:
            states[layer].append(context.hidden[layer])
        n = len(context.tokens)
        d = text[n : n + 2] if n != 8 else [63, 63]
        return Draft([62, *d, 61][: 4 * len(d)], None, [-1, -1, 1, 1][: 4 * len(d)]) if branching else Draft(d)

    drafter = Given(make)
    drafter.hidden_layers, drafter.extra = (0, 1), 4
    out = ms.speculate(tiny, prompt, drafter, k, 12)
    assert out.tokens == right
    expected = tiny.transformer(torch.tensor([text]), hidden_layers=(0, 1)).hidden
    for layer, parts in states.items():
        together = torch.cat(parts)  # up to the last cycle, which the drafter was not told about
        assert len(together) >= len(text) - unseen
        assert torch.allclose(together, expected[layer][0, : len(together)], rtol=0, atol=1e-12)


# ---- greedy: the same tokens -----------------------------------------------------------------------------------------


SOME = {"model", "ngram", "eagle, tree"}  # a model, a lookup, a tree: all of them take half a minute


@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in ALL])
def test_greedy_equals_generate(name):
    loop.check_greedy(ALL[name](*loop.greedy_pair()), ks=(3, 1, 8, "auto"), count=15)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.nightly) for n in ALL])
def test_greedy_equals_generate_on_trained_models(name):
    pair = [ms.load(name, dtype=torch.float64) for name in ("micro", "micro-draft")]
    prompts = ["Once upon a time", "One day, a small bird found", "The"]
    outs, plain = ms.speculate(pair[0], prompts, ALL[name](*pair), 8, 16), ms.generate(pair[0], prompts, 16)
    for out, expected in zip(outs, plain, strict=True):
        loop.assert_same(out, expected)


@pytest.fixture(scope="module")
def text_pair(tiny_text) -> tuple[ms.Model, Drafter]:
    """A target with a tokenizer, and itself as a draft: long accepted runs for stop strings to fall into."""
    return tiny_text, ms.drafters.Model(tiny_text)


@pytest.mark.slow
def test_stop_strings_and_streams_as_generate_has_them(text_pair):
    target, drafter = text_pair
    free = ms.generate(target, "The fox", 30).text
    stops = [free[9:12], free[17], "never said", free[25:28]]
    for k in (1, 3, 6):
        for stop in ((), *stops, stops):
            streamed, plain = [], []
            out = ms.speculate(target, "The fox", drafter, k, 30, stop=stop, stream=streamed.append)
            loop.assert_same(out, ms.generate(target, "The fox", 30, stop=stop, stream=plain.append))
            assert streamed == plain and "".join(streamed) == out.text
    batch = ["The fox", "One day", "sea"]
    outs, plain = ms.speculate(target, batch, drafter, 4, 30, stop=stops), ms.generate(target, batch, 30, stop=stops)
    for out, expected in zip(outs, plain, strict=True):
        loop.assert_same(out, expected)


# ---- sampling: the same distribution ---------------------------------------------------------------------------------

# To the loop a draft is a sampled chain, a given one, or a tree: one drafter of each kind, and the rest at night. (With
# scratch tokens, and of a cascade: in test_engine.py.) A sampled chain and a tree are sampled in both ways.
QUICK = {("model", 1.0), ("model", 0.7), ("ngram", 0.7), ("eagle, tree", 0.7), ("eagle, chain", 1.0)}
SAMPLED = [
    pytest.param(name, options, seed, marks=[] if (name, options["temperature"]) in QUICK else pytest.mark.nightly)
    for seed, name in enumerate(ALL)
    for i, options in enumerate((loop.ONE, loop.OTHER))
    if name in ("model", "eagle, tree") or seed % 2 == i
]


def test_so_many_outputs_show_a_small_bias():
    assert power(loop.expected_distribution(**loop.ONE), 0.06) > 0.99
    assert power(loop.expected_distribution(**loop.OTHER), 0.045) > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("name, options, seed", SAMPLED)
def test_sampled_outputs_follow_the_targets_joint_distribution(name, options, seed):
    loop.check_distribution(ALL[name](*loop.countable_pair()), seed=seed, **options)


class EveryOther(ms.drafters.Model):
    """Drafts for every other row only, as lookups do: the others must still get their plain token."""

    def propose(self, contexts, k):
        chosen = [context for context in contexts if context.id % 2]
        drafts = iter(super().propose(chosen, k) if chosen else ())
        return [next(drafts) if context.id % 2 else Draft([]) for context in contexts]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [EveryOther, lambda draft: ms.drafters.Model(draft, ms.Sampling(temperature=2.5))], ids=["ragged", "hotter"]
)
def test_so_do_those_of_ragged_drafts_and_of_drafts_at_another_temperature(make):
    draws = 2500  # show a total variation of 0.11 in 99 of 100 runs
    loop.check_distribution(make(loop.countable_pair()[1]), draws=draws, **loop.ONE)


@pytest.mark.slow
def test_different_prompts_and_an_end_token():
    """Rows of two lengths in one batch, outputs that end early: each row follows its own distribution."""
    target, draft = loop.countable_pair()
    ends = ms.Model("ends", target.transformer, None, [4])
    prompts = ([2, 0, 1], [3])
    with many_rows():
        outs = ms.speculate(ends, list(prompts) * (DRAWS // 2), ms.drafters.Model(draft), 2, 3, temperature=1.0, seed=8)
    for row, prompt in enumerate(prompts):
        expected = joint_distribution(ends, prompt, 3, ms.Sampling(temperature=1.0))
        assert {len(tokens) for tokens in expected} == {1, 2, 3}
        assert math.isclose(sum(expected.values()), 1, abs_tol=1e-9)
        assert_follows([out.tokens for out in outs[row::2]], expected)


# ---- errors ----------------------------------------------------------------------------------------------------------


V = 64
FLAT = torch.full((2, V), 1 / V, dtype=torch.float64)
NEVER = FLAT.clone()
NEVER[1, 7], NEVER[1, 8] = 0.0, 2 / V
NEGATIVE = FLAT.clone()
NEGATIVE[0, 0], NEGATIVE[0, 1] = -1 / V, 3 / V


@pytest.mark.parametrize(
    "draft, named",
    [
        (Draft([6, 7], FLAT * 1.01), "sums to 1.01"),
        (Draft([6, 7], FLAT * math.nan), "sums to nan"),
        (Draft([6, 7], NEGATIVE), "-0.0156"),
        (Draft([6, 7], NEVER), "token 7 has probability 0 under q"),
        (Draft([6, V]), f"token {V} is outside"),
        (Draft([-1]), "token -1 is outside"),
        (Draft([6, V], torch.full((2, V + 1), 1 / (V + 1))), r"shape \(2, 65\).*\(2, 64\)"),
        (Draft([6, 7], FLAT[:1]), r"shape \(1, 64\).*\(2, 64\)"),
        (Draft([6, 7], FLAT[0]), r"shape \(64,\).*\(2, 64\)"),
        (Draft([6, 7], None, [-1, 1]), r"parents\[1\]=1"),
    ],
)
@pytest.mark.parametrize("at", [0, 3])
def test_an_impossible_draft_is_refused_and_nothing_stays_behind(tiny, draft, named, at):
    """Also in mid-run, also if it is one row's of several."""

    def make(context, k):
        return draft if context.id == 1 and len(drafter.asked) > 3 * at else Draft([5, 5], FLAT)

    drafter = Given(make)
    with pytest.raises(ValueError, match=named):
        ms.speculate(tiny, [[1], [2, 3], [4]], drafter, 2, 40, temperature=1.0, seed=0)
    assert sorted(drafter.forgotten) == [0, 1, 2]


def test_nothing_stays_behind_when_something_breaks_in_mid_run(tiny, tiny_draft):
    """Whoever breaks it, the drafter's next run is as if nothing had happened."""
    drafter = ms.drafters.Model(tiny_draft)

    def broken(piece):
        if isinstance(piece, ms.Cycle) and piece.committed > 6:
            raise RuntimeError("a caller's mistake")

    for prompt in ([1, 2], [[1, 2], [3]]):
        with pytest.raises(RuntimeError, match="caller"):
            ms.speculate(tiny, prompt, drafter, 3, 30, on_cycle=broken)
        assert not drafter.memory.lengths and not drafter.committed and drafter.memory.cache is None
    out = ms.speculate(tiny, [9, 8, 7], drafter, 3, 20)
    loop.assert_same(out, ms.generate(tiny, [9, 8, 7], 20))
