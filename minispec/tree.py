"""Token trees: several guesses for the same position, verified in one forward pass of the target.

A tree of n draft tokens is two lists: `tokens[i]`, and `parents[i]` < i, where −1 is the root, the last committed
token. A child guesses the token after its parent, siblings are rival guesses for one position, and a chain is the tree
with parents −1, 0, 1, …

The verify pass processes [last token, node 0, node 1, …]: n + 1 tokens, so node i is token i + 1 of the pass.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .require import require, require_counts


@dataclass
class Scratch:
    """Tokens that ride along in the target's pass without being candidates: lookahead's window. They attend to the
    committed tokens (the last one included) and, of each other, to what `mask` allows."""

    tokens: list[int]
    offsets: list[int]  # position of each, counted from the last committed token: 1 is the position right after it
    mask: Tensor  # [s, s] bool, True where scratch token i attends to scratch token j


@dataclass
class Draft:
    """What a drafter proposes for one sequence: a chain of tokens, or a tree of them."""

    tokens: list[int]
    probs: Tensor | None = None  # [n, V], the distribution each was sampled from; None: it was not sampled
    parents: list[int] | None = None  # None: a chain; otherwise a tree, −1 is the last committed token
    scratch: Scratch | None = None
    accepted: int | None = None  # so many are accepted, whatever the target says (drafters.Synthetic); None: judge them

    @property
    def branches(self) -> bool:
        """Whether its pass needs a mask: it is no chain, or brings scratch tokens."""
        return self.parents is not None or self.scratch is not None

    @property
    def inputs(self) -> list[int]:
        """What the verify pass processes after the last token."""
        return self.tokens + self.scratch.tokens if self.scratch else self.tokens

    @property
    def node_parents(self) -> list[int]:
        """The parent of every node, also of a chain."""
        return list(range(-1, len(self.tokens) - 1)) if self.parents is None else self.parents


class Tree(NamedTuple):
    tokens: list[int]
    parents: list[int]  # −1: the root, the last committed token


def check_parents(parents: Sequence[int], nodes: int | None = None) -> None:
    if nodes not in (None, len(parents)):
        raise ValueError(f"there are {nodes} nodes and {len(parents)} parents: give one parent per node")
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(
                f"parents[{node}]={parent}: a parent comes before its child; give −1 (the root) or a node below {node}"
            )


def children(parents: Sequence[int]) -> dict[int, list[int]]:
    """The children of every node, in order, and those of the root under −1."""
    below = {node: [] for node in range(-1, len(parents))}
    for node, parent in enumerate(parents):
        below[parent].append(node)
    return below


def depths(parents: Sequence[int]) -> list[int]:
    """How far below the root each node is: 1 for the root's children. Siblings are rivals for one position, and so they
    must look equally far from the prefix."""
    depth = []
    for parent in parents:
        depth.append(1 if parent < 0 else depth[parent] + 1)
    return depth


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root's child down to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def ancestors(parents: Tensor, depth: int | None = None) -> Tensor:
    """`ancestor_mask` of B trees at once: parents [B, n] → [B, n, n]. No tree is deeper than `depth` (None: than n)."""
    n = parents.shape[1]
    one_up = parents[..., None] == torch.arange(n, device=parents.device)
    reached = one_up | torch.eye(n, dtype=torch.bool, device=parents.device)
    steps = 1  # up the tree that this covers; each product doubles them
    while steps < (n if depth is None else depth) - 1:
        reached, steps = (reached.float() @ reached.float()) > 0, 2 * steps
    return reached


def verify_mask(parents: Sequence[int]) -> Tensor:
    """[n + 1, n + 1], True where a slot of the verify pass attends to another: to itself, to its ancestors and to the
    root, never to a sibling's branch."""
    check_parents(parents)
    mask = np.eye(len(parents) + 1, dtype=bool)  # in numpy, whose small steps take a tenth of torch's time
    for node, parent in enumerate(parents):
        mask[node + 1] |= mask[parent + 1]
    return torch.from_numpy(mask)


def stack(drafts: Sequence[Draft], p: Tensor) -> Tensor | None:
    """The distributions of all drafts as one tensor [B, n, V], zero after a short draft; None: nothing was sampled."""
    sampled = [draft.probs.dtype for draft in drafts if draft.probs is not None]
    if not sampled:
        return None
    # In the draft's own precision: that is how close to one its distributions can sum, whatever the target's is.
    q = torch.zeros_like(p[:, :-1], dtype=torch.promote_types(sampled[0], torch.float32))
    for i, draft in enumerate(drafts):
        if draft.probs is not None:
            q[i, : len(draft.tokens)] = draft.probs
        else:  # not sampled: could have been nothing else
            q[i, range(len(draft.tokens)), draft.tokens] = 1.0
    return q


def cut(draft: Draft, depth: int) -> Draft:
    """Leave out what lies too deep. How deep does not depend on what was sampled, so the output stays the target's."""
    if len(draft.tokens) <= depth:
        return draft
    return only(draft, [i for i, level in enumerate(depths(draft.node_parents)) if level <= depth])


def only(draft: Draft, keep: Sequence[int]) -> Draft:
    """These nodes of a draft, in ascending order, among them the parents of all but the root's children."""
    number = {-1: -1} | {old: new for new, old in enumerate(keep)}
    return Draft(
        [draft.tokens[i] for i in keep],
        None if draft.probs is None else draft.probs[keep],
        None if draft.parents is None else [number[draft.parents[i]] for i in keep],
        draft.scratch,
        None if draft.accepted is None else sum(node < draft.accepted for node in keep),
    )


def mask_and_offsets(draft: Draft, size: int) -> tuple[Tensor, Tensor]:
    """What attends to what [T, T], and how far after the last token each is [T], in a pass of T = size tokens:
    [last token, drafts …, scratch …, padding …]."""
    mask, offsets = np.eye(size, dtype=bool), np.zeros(size, dtype=np.int64)  # padding sees itself
    parents, n = draft.node_parents, 1 + len(draft.tokens)
    mask[:n, :n], offsets[1:n] = verify_mask(parents).numpy(), depths(parents)
    if draft.scratch:
        own = slice(n, 1 + len(draft.inputs))
        mask[own, own], offsets[own] = draft.scratch.mask.numpy(), draft.scratch.offsets
        mask[own, 0] = True  # the last committed token is context like the rest
    return torch.from_numpy(mask), torch.from_numpy(offsets)


Choice = tuple[int, ...]  # (2, 0): the third candidate of head 1, then the first candidate of head 2


def from_candidates(candidates: Sequence[Sequence[int]], choices: Iterable[Choice]) -> Tree:
    """Medusa's tree: candidates[k] are the best tokens of head k + 1, `choices` say which combinations become nodes."""
    choices = sorted(set(choices), key=lambda choice: (len(choice), choice))
    if () in choices:
        raise ValueError("choices holds the empty choice (): that is the root, which is always there; leave it out")
    node_of = {(): -1} | {choice: node for node, choice in enumerate(choices)}
    sizes = [len(head) for head in candidates]
    for choice in choices:
        if len(choice) > len(sizes) or not all(0 <= i < size for i, size in zip(choice, sizes, strict=False)):
            raise ValueError(f"choices holds {choice} of heads with {sizes} candidates: use fewer or smaller numbers")
        if choice[:-1] not in node_of:
            raise ValueError(f"choices holds {choice} without its parent {choice[:-1]}: add the parent")
    tokens = [int(candidates[len(choice) - 1][choice[-1]]) for choice in choices]
    return Tree(tokens, [node_of[choice[:-1]] for choice in choices])


def best_tree(accuracies: Sequence[Sequence[float]], budget: int) -> list[Choice]:
    """The static tree of `budget` nodes with the most expected tokens: choices for `from_candidates`, best first.

    accuracies[k][i]: how often candidate i of head k + 1 is right, given that everything before it was. A node is
    reached with the product of the accuracies on its path, which only shrinks on the way down. So taking the most
    reachable node again and again never takes a child before its parent, and is optimal, not just greedy.
    """
    require_counts(budget=budget)
    fits = all(0 <= accuracy <= 1 for head in accuracies for accuracy in head)
    require(fits, "probabilities between 0 and 1", accuracies=accuracies)
    chosen, frontier = [], [(-1.0, ())]  # a heap of (−probability of being reached, choice)
    while frontier and len(chosen) <= budget:  # the root is popped too, and costs nothing
        minus_reach, choice = heapq.heappop(frontier)
        chosen.append(choice)
        if len(choice) < len(accuracies):
            for i, accuracy in enumerate(accuracies[len(choice)]):
                heapq.heappush(frontier, (minus_reach * accuracy, (*choice, i)))
    return chosen[1:]


def expected_tokens(accuracies: Sequence[Sequence[float]], choices: Sequence[Choice]) -> float:
    """The tokens that a cycle emits on average: 1 + Σ over nodes of P(the node is accepted)."""
    reached = (math.prod(head[i] for head, i in zip(accuracies, choice, strict=False)) for choice in choices)
    return 1.0 + sum(reached)
