"""Lookahead decoding (Fu et al., 2024, arXiv:2402.02057): no draft model. The target guesses ahead while it verifies.

Jacobi's idea: guess all the next tokens at once, let the model replace each by its prediction after the others, and
repeat. The tokens converge from the left, one or a few per pass. Lookahead keeps the history of that process: a window
of W columns and N − 1 levels rides along in every pass of the target (as `Draft.scratch`, never accepted).

    level 0, oldest    1  2  3  4     W = 4, N = 4. Each number is the position of a token, counted from the last
    level 1            2  3  4  5     committed one, so a column holds guesses at neighbouring positions,
    level 2, newest    3  4  5  6     and the pass predicts what comes below it (4 5 6 7).

A token attends to its own column above it, and left of that column to the oldest level, so that every position before
its own is filled once. With the predicted token a column is an N-gram, made by the target itself. N-grams are pooled by
their first token. Those that start with the last committed token are verified as branches of a tree in the same pass.
Bad ones cost time, nothing else.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..load.model import Model
from ..require import require, require_counts, whole
from ..sequence import Sequence
from ..tree import Tree
from .base import Draft, Drafter, Scratch

Guess = tuple[int, ...]  # the N − 1 tokens that may follow


@dataclass
class Window:
    random: random.Random  # for tokens that fill up the window
    levels: list[list[int]]  # N − 1 of W tokens each, oldest first; short until the next pass fills them up
    pool: dict[int, list[Guess]] = field(default_factory=lambda: defaultdict(list))  # by first token, newest first


class Lookahead(Drafter):
    """Draft N-grams that the target itself produced, in a window of `window` columns, while verifying earlier ones.

    A pass processes up to (window + guesses)·(ngram − 1) tokens beyond the last one, so this pays where the target has
    arithmetic to spare. Drafts are at most ngram − 1 deep. The pool keeps the `guesses` latest N-grams of each first
    token. `target` may be left out: the model that looks ahead is the one that verifies.
    """

    tree = True

    def __init__(self, target: Model | None = None, window: int = 5, ngram: int = 4, guesses: int = 5, seed: int = 0):
        require_counts(window=window, guesses=guesses)
        require(whole(ngram, 2), "a whole number ≥ 2", ngram=ngram)
        self.window, self.levels, self.guesses, self.seed = window, ngram - 1, guesses, seed
        self.scratch_slots = window * self.levels  # the window's tokens ride along in every pass
        self.offsets = [1 + column + level for level in range(self.levels) for column in range(window)]
        self.mask = window_mask(window, self.levels)
        self.windows: dict[int, Window] = {}

    def max_tree_nodes(self, k: int) -> int:
        """The most nodes of a draft of depth k: guesses without a common prefix."""
        return self.guesses * min(k, self.levels)

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        drafts = []
        for sequence in sequences:
            if sequence.id not in self.windows:
                chance = random.Random(f"{self.seed} {sequence.tokens}")
                self.windows[sequence.id] = Window(chance, [[] for _ in range(self.levels)])
            window = self.windows[sequence.id]
            for level in window.levels:  # positions without a guess: any token of the sequence will do
                level += window.random.choices(sequence.tokens, k=self.window - len(level))
            guesses = window.pool.get(sequence.tokens[-1], [])  # the newest comes first
            tree = merge([guess[:k] for guess in guesses])
            n = sequence.allowed_nodes(len(tree.tokens))
            scratch = Scratch([token for level in window.levels for token in level], self.offsets, self.mask)
            drafts.append(Draft(tree.tokens[:n], None, tree.parents[:n], scratch))
        return drafts

    def settle(self, id: int, path: list[int], emitted: int, scratch: Tensor | None = None) -> None:
        """Pool the window's new N-grams, and let the window move on by as many tokens as were emitted."""
        if scratch is None:
            return  # the pass had no window: the next one starts a little late
        state = self.windows[id]
        state.levels.append(scratch[-self.window :].argmax(-1).tolist())  # one Jacobi step of the newest level
        for first, *rest in reversed([*zip(*state.levels, strict=True)]):  # the nearest column is the newest entry
            pool, guess = state.pool[first], tuple(rest)
            if guess in pool:
                pool.remove(guess)
            pool.insert(0, guess)
            del pool[self.guesses :]
        # Without the oldest level every column starts one position later, which is where one more token leaves it.
        # For each accepted draft token on top of that, the first column is in the past.
        state.levels = [level[len(path) :] for level in state.levels[1:]]

    def forget(self, id: int) -> None:
        self.windows.pop(id, None)


def window_mask(window: int, levels: int) -> Tensor:
    """[s, s], which of the s = levels · window tokens attend to which, level by level: see the top of this file."""
    level, column = torch.arange(levels * window) // window, torch.arange(levels * window) % window
    same_column = (column[:, None] == column) & (level[:, None] >= level)
    oldest_level = (level == 0) & (column[:, None] >= column)
    return same_column | oldest_level


def merge(branches: list[list[int]]) -> Tree:
    """The trie of deterministic branches: common beginnings become one node.

    Only for branches that were not sampled. Two equal samples of q are two chances, and merging them loses one.
    """
    tree, node_of = Tree([], []), {}
    for branch in branches:
        parent = -1
        for token in branch:
            if (parent, token) not in node_of:
                node_of[parent, token] = len(tree.tokens)
                tree.tokens.append(token)
                tree.parents.append(parent)
            parent = node_of[parent, token]
    return tree
