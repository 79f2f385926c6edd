"""The exact distribution of a cycle with a token tree, as `exact.chain_distribution` has it for a chain."""

from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import Tensor

from minispec.exact import Model, as_distribution, exact_distribution, iid
from minispec.sampling import pick
from minispec.tree import path_to
from minispec.verify import Context, tree


def propose_tree(
    draft: Model, context: Context, widths: Sequence[int], random, *, siblings=iid
) -> tuple[list[int], list[int], Tensor]:
    """Draft widths[0] children of the root, widths[1] of each of these, …: tokens, parents and distributions [n, V]."""
    tokens, parents, qs = [], [], []
    level = [(-1, context)]
    for width in widths:
        above, level = level, []
        for parent, text in above:
            q, drawn = draft(text), ()
            while len(drawn) < width and bool((probs := siblings(q, drawn)).any()):
                drawn += (pick(probs, random()),)
                level.append((len(tokens), text + drawn[-1:]))
                tokens.append(drawn[-1])
                parents.append(parent)
                qs.append(probs)
    return tokens, parents, torch.stack(qs)


def tree_cycle(
    target: Model, draft: Model, context: Context, widths: Sequence[int], random, *, propose=propose_tree, verify=tree
) -> Context:
    """`exact.chain_cycle` with a token tree."""
    tokens, parents, q = propose(draft, context, widths, random)
    texts = [context + tuple(tokens[i] for i in path_to(parents, node)) for node in range(-1, len(tokens))]
    p = torch.stack([target(text) for text in texts])  # [n+1, V]
    return verify(p, q, tokens, parents, [random() for _ in p]).run(tokens)


def tree_distribution(target: Model, draft: Model, widths, context: Context = (), **parts) -> dict[Context, float]:
    """The joint distribution of all tokens one cycle emits, the expectation over drafted trees included."""
    return exact_distribution(partial(tree_cycle, toy(target), toy(draft), context, widths, **parts))


def toy(model: Model) -> Model:
    return cache(lambda context: as_distribution("toy", model(context)))
