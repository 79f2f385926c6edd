"""Lookahead: the target guesses ahead in a window that rides along, and the window never leaves a trace in the output.

Statistical power: see sequence_distribution.py.
"""

from itertools import product

import pytest
import torch

import minispec as ms
from minispec.drafters import Lookahead
from minispec.sampling import Coins
from minispec.sequence import Sequence
from minispec.speculate import Loop

PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]
PROMPT = [1, 2, 3]
SMALL = dict(vocab_size=5, hidden_size=16, intermediate_size=24, num_heads=2, num_kv_heads=1)


def start(target: ms.Model, prompts, drafter: Lookahead, k: int, count: int, sampling: ms.Sampling, seed: int = 0):
    """Rows and their loop as `speculate` makes them, to run it cycle by cycle."""
    rows = [Sequence(i, list(p), sampling, Coins(seed << 32 | i), max_new_tokens=count) for i, p in enumerate(prompts)]
    return rows, Loop(target, rows, drafter, k, ms.SamplingParams(max_new_tokens=count))


def cycle(loop: Loop):
    """One cycle of `speculate`: the drafts, and the logits of the pass."""
    for row, [(news, _)] in zip(loop.sequences, loop.step(), strict=True):
        row.trace.cycles.append(news)
        row.emit(news.tokens)
    loop.finish()
    return loop.drafts, loop.logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_window_leaves_nothing_in_the_cache(tiny, temperature):
    """After every cycle each row's cache is what a fresh prefill of its tokens makes: all tokens but the last."""
    drafter, k = Lookahead(tiny, window=4, ngram=4, guesses=4), 3
    sampling = ms.Sampling(temperature)
    rows, loop = start(tiny, PROMPTS, drafter, k, 20 * (k + 1) + 1, sampling)
    accepted = set()
    for _ in range(20):
        cycle(loop)
        accepted |= {row.trace.cycles[-1].accepted for row in rows}
        for i, row in enumerate(rows):
            text = row.tokens[:-1]
            fresh = tiny.transformer.new_cache(1, len(text))
            tiny.transformer(torch.tensor([text]), fresh)
            assert int(loop.cache.lengths[i]) == len(text)
            for memory, expected in ((loop.cache.keys, fresh.keys), (loop.cache.values, fresh.values)):
                assert (memory[:, i, :, : len(text)] - expected[:, 0]).abs().max() <= 1e-10
    assert len(accepted) > 1


@pytest.mark.slow
def test_every_window_token_attends_to_a_sequence_without_gaps(tiny):
    """The logits at level l of column c are those of a plain pass over: tokens, oldest level up to c, column c to l."""
    W, k = 4, 3
    drafter = Lookahead(tiny, W, ngram=4, guesses=3)
    rows, loop = start(tiny, PROMPTS[:3], drafter, k, 40, ms.Sampling(1.0), seed=3)
    for _ in range(6):
        texts = [list(row.tokens) for row in rows]
        drafts, logits = cycle(loop)
        for i, draft in enumerate(drafts):
            levels = torch.tensor(draft.scratch.tokens).view(3, W).tolist()
            of_window = logits[i, 1 + len(draft.tokens) :][: 3 * W].view(3, W, -1)
            for level, column in product(range(3), range(W)):
                guessed = levels[0][: column + 1] + [levels[below][column] for below in range(1, level + 1)]
                fresh = tiny.transformer(torch.tensor([[*texts[i], *guessed]])).logits[0, -1]
                assert (of_window[level, column] - fresh).abs().max() <= 1e-10


def test_each_column_adds_its_ngram_and_the_window_moves_on(tiny):
    drafter = Lookahead(tiny, window=3, ngram=3, guesses=2)
    (draft,) = drafter.propose([Sequence(0, [7, 8], ms.Sampling(), Coins(0))], 4)
    assert draft.tokens == [] and draft.parents == [] and draft.probs is None
    assert set(draft.scratch.tokens) <= {7, 8} and len(draft.scratch.tokens) == 6
    assert draft.scratch.offsets == [1, 2, 3, 2, 3, 4]

    def settle(levels: list[list[int]], new: list[int], accepted: int) -> None:
        drafter.windows[0].levels = levels
        logits = torch.zeros(6, 64)
        logits[range(3, 6), new] = 1.0  # the newest level's columns
        logits[range(3), 63] = 1.0
        drafter.settle(0, range(accepted), 0, logits)

    state = drafter.windows[0]
    settle([[1, 2, 3], [11, 12, 13]], [21, 22, 23], accepted=0)
    assert state.pool == {1: [(11, 21)], 2: [(12, 22)], 3: [(13, 23)]}
    assert state.levels == [[11, 12, 13], [21, 22, 23]]
    settle([[1, 1, 4], [15, 16, 17]], [25, 26, 27], accepted=1)
    assert state.pool[1] == [(15, 25), (16, 26)]  # at most two, newest and nearest first
    assert state.levels == [[16, 17], [26, 27]]  # the first column is past
    settle([[1, 5, 5], [16, 1, 1]], [26, 2, 2], accepted=3)
    assert state.pool[1] == [(16, 26), (15, 25)] and state.pool[5] == [(1, 2)]  # seen again: newest again
    assert state.levels == [[], []]
    (draft,) = drafter.propose([Sequence(0, [7, 8, 1], ms.Sampling(), Coins(0))], 4)
    assert (draft.tokens, draft.parents) == ([16, 26, 15, 25], [-1, 0, -1, 2])
    assert len(draft.scratch.tokens) == 6
    (draft,) = drafter.propose([Sequence(0, [7, 8, 1], ms.Sampling(), Coins(0))], 1)
    assert (draft.tokens, draft.parents) == ([16, 15], [-1, -1])  # k is how deep
