"""Prompt lookup: the obvious search through the whole text is the reference, the growing index must equal it."""

from hypothesis import given
from hypothesis import strategies as st

import minispec as ms
from minispec.drafters import Drafter, NGram
from minispec.sampling import Coins
from minispec.sequence import Sequence

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)  # four symbols, so that everything repeats


def context(tokens: list[int], row: int = 0) -> Sequence:
    return Sequence(row, tokens, ms.Sampling(), Coins(0))


def draft(drafter: Drafter, tokens: list[int], k: int, row: int = 0) -> list[int]:
    (proposal,) = drafter.propose([context(tokens, row)], k)
    assert proposal.probs is None and proposal.parents is None and proposal.scratch is None
    return proposal.tokens


def by_hand(tokens: list[int], k: int, n_max: int, n_min: int = 1) -> list[int]:
    """Look for ever shorter suffixes, each from the end of the text to its beginning."""
    for n in range(n_max, n_min - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + k]
    return []


# ---------------------------------------------------------------- what is proposed


@given(tokens=texts, k=st.integers(1, 8), n_min=st.integers(1, 4), more=st.integers(0, 4))
def test_equals_the_search_by_hand(tokens, k, n_min, more):
    assert draft(NGram(n_min + more, n_min), tokens, k) == by_hand(tokens, k, n_min + more, n_min)


@given(pieces=st.lists(texts, min_size=1, max_size=6), n_max=st.integers(1, 5))
def test_the_growing_index_equals_one_built_at_once(pieces, n_max):
    drafter, tokens = NGram(n_max), []
    for piece in pieces:
        tokens.extend(piece)  # in place, as the loop does
        assert draft(drafter, tokens, 4) == by_hand(tokens, 4, n_max)
        assert draft(drafter, list(tokens), 4) == by_hand(tokens, 4, n_max)  # nothing new, and another list


# ---------------------------------------------------------------- what is remembered


@given(before=texts, after=texts, keep=st.integers(0, 60), n_max=st.integers(1, 5))
def test_a_rewound_row_never_saw_the_rest(before, after, keep, n_max):
    drafter, kept = NGram(n_max), before[:keep]
    drafter.rewind(0, 0)  # never seen: no harm
    draft(drafter, before, 4)
    drafter.rewind(0, len(kept))
    assert draft(drafter, kept + after, 4) == by_hand(kept + after, 4, n_max)
