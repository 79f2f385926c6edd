"""Suffix decoding: counting occurrences in the plain text is the reference, the growing table must equal it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ngram import context, draft

import minispec as ms
from minispec.drafters import Suffix

texts = st.lists(st.integers(0, 2), min_size=1, max_size=50)  # three symbols, so that everything repeats
loops = st.builds(lambda loop, times: loop * times, st.lists(st.integers(0, 2), min_size=1, max_size=5), st.just(8))
sequences = texts | loops
shapes = st.fixed_dictionaries(
    dict(depth=st.integers(2, 12), factor=st.sampled_from([0.5, 1.0, 1.5, 4.0]), floor=st.sampled_from([0.0, 0.1, 0.4]))
)


def followers(texts: list[list[int]], string: list[int]) -> list[int]:
    """Every token that comes right after the string, in the order of the texts."""
    n = len(string)
    return [text[i + n] for text in texts for i in range(len(text) - n) if text[i : i + n] == string]


def continuation(texts, string, limit, floor) -> tuple[list[int], float]:
    tokens, p, score = [], 1.0, 0.0
    while len(tokens) < limit and (seen := followers(texts, string + tokens)):
        latest = {token: i for i, token in enumerate(seen)}
        token, count = max(Counter(seen).items(), key=lambda item: (item[1], latest[item[0]]))
        p *= count / len(seen)
        if p < floor:
            break
        tokens.append(token)
        score += p
    return tokens, score


def by_hand(own: list[int], k: int, *, depth=64, factor=1.0, floor=0.1, past=()) -> list[int]:
    best, best_score = [], 0.0
    for known in ([own], list(past)):
        for m in range(min(len(own), depth - 1), 0, -1):
            tokens, score = continuation(known, own[-m:], min(k, int(factor * m), depth - m), floor)
            if score > best_score:
                best, best_score = tokens, score
    return best


# ---------------------------------------------------------------- what is proposed


@settings(max_examples=100)
@given(pieces=st.lists(sequences, min_size=1, max_size=3), k=st.integers(1, 10), shape=shapes)
def test_equals_counting_by_hand(pieces, k, shape):
    drafter, tokens = Suffix(**shape), []
    for piece in pieces:
        tokens.extend(piece)  # in place, as the loop does
        assert draft(drafter, tokens, k) == by_hand(tokens, k, **shape)
        assert draft(drafter, list(tokens), k) == by_hand(tokens, k, **shape)  # nothing new, and another list


@settings(max_examples=100)
@given(own=sequences, outputs=st.lists(sequences, min_size=1, max_size=4), k=st.integers(1, 10), shape=shapes)
def test_equals_counting_by_hand_with_memory(own, outputs, k, shape):
    drafter = Suffix(**shape, memory=2)
    for output in outputs:
        drafter.remember(output)
    assert draft(drafter, own, k) == by_hand(own, k, **shape, past=outputs[-2:])


# ---------------------------------------------------------------- what is remembered


def test_memory_holds_outputs_without_prompts_and_the_oldest_goes_first():
    drafter = Suffix(memory=2)
    for first in (10, 20, 30):
        tokens = [1, 2, 3]  # the prompt
        draft(drafter, tokens, 4)
        tokens += [first, first + 1, first + 2]  # the last cycle: no proposal after it
        drafter.forget(0)
    assert draft(drafter, [99, 1], 4) == []  # 1 was in the prompts only
    drafter.forget(0)  # an empty output pushes none out
    assert [text.tokens for text in drafter.past] == [[20, 21, 22], [30, 31, 32]]
    assert [draft(drafter, [t], 1, row=t) for t in (10, 20, 30)] == [[], [21], [31]]


@given(before=texts, after=texts, keep=st.integers(0, 50))
def test_a_rewound_row_never_saw_the_rest(before, after, keep):
    drafter, kept = Suffix(), before[:keep]
    drafter.rewind(0, 0)  # never seen: no harm
    draft(drafter, before, 4)
    drafter.rewind(0, len(kept))
    assert draft(drafter, kept + after, 4) == by_hand(kept + after, 4)


@pytest.mark.parametrize("cascaded", [False, True])
def test_a_preempted_request_is_remembered_once_and_whole(cascaded, make_model):
    """Rewound to nothing in mid-life: no fragment becomes an output of its own, and the prompt stays the prompt."""
    suffix = Suffix(memory=4)
    drafter = ms.drafters.Cascade(suffix, make_model(vocab_size=8)) if cascaded else suffix
    tokens = [1, 2]  # the prompt
    for more in ([3, 4], [5, 6], [7]):
        drafter.propose([context(tokens)], 4)
        drafter.rewind(0, 0)
        assert not suffix.past
        drafter.propose([context(tokens)], 4)
        tokens += more
        drafter.settle(0, [], tokens[-1])
    drafter.propose([context(tokens)], 4)
    drafter.rewind(0, len(tokens))  # what a cascade drafted on top of it
    drafter.forget(0)
    assert [text.tokens for text in suffix.past] == [[3, 4, 5, 6, 7]]
    drafter.propose([context([1, 2, 3], row=1)], 4)
    drafter.rewind(1, 0)
    drafter.forget(1)  # aborted while it waits: nothing to learn
    assert len(suffix.past) == 1 and not suffix.known
