"""Set 09, Medusa: a head's forward, the mask of a tree, its verification, its best shape, and typical acceptance."""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F

from minispec.exact import best, distinct, iid
from minispec.tree import best_tree, depths, expected_tokens, path_to, verify_mask
from minispec.verify import accept_probability, pick, residual

from ..exercise import decimals, distribution_of, exercise, probs
from ..fresh import Draw, fresh
from ..returned import items, mask_of, number, pair, several, tensor, token, whole_numbers


# ---- 09.medusa_head -------------------------------------------------------------------------------------------------
def medusa_block(h, x, b):
    return h + F.silu(x + b)


def medusa_guesses(
    h, t, weight, bias, lm_head, head_ids, *, z=medusa_block, rows=None, ids=None, first=2, chained=False
):
    """All heads, with parts to exchange: the block, the rows of the LM head matrix, the position of head 1's token."""
    rows = lm_head[head_ids] if rows is None else rows
    logits, x = [], h
    for W, b in zip(weight, bias, strict=True):
        out = z(x, W @ x, b)
        logits.append(rows @ out)
        x = out if chained else x
    logits = torch.stack(logits)  # [K, v]
    ids = head_ids if ids is None else ids
    return logits, ids[logits.argmax(-1)].tolist(), [t + first + k for k in range(len(weight))]


def observe_heads(answer, h, t, weight, bias, lm_head, head_ids):
    found = answer(h, t, weight, bias, lm_head, head_ids)
    logits, guesses, places = several(found, 3, "logits, tokens and positions")
    return {
        "logits": tensor(logits, "the logits of all heads"),
        "tokens": whole_numbers(guesses, "the tokens"),
        "positions": whole_numbers(places, "the positions"),
    }


def heads_case(count, d, vocabulary, ids, t, seed):
    shapes = dict(h=(d,), weight=(count, d, d), bias=(count, d), lm_head=(vocabulary, d))
    made = {name: decimals(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
    return dict(h=made.pop("h"), t=t, **made, head_ids=torch.tensor(ids))


MEDUSA_HEAD = exercise(
    "09.medusa_head",
    reference=medusa_guesses,
    observe=observe_heads,
    cases=[
        heads_case(1, 2, 4, [1, 3], t=5, seed=61),
        heads_case(2, 2, 4, [0, 1, 2, 3], t=0, seed=66),
        heads_case(2, 3, 6, [1, 2, 5], t=7, seed=71),
        heads_case(3, 4, 8, [0, 3, 4, 7], t=11, seed=77),
    ],
)


@MEDUSA_HEAD.wrong_solutions
class _:
    def head_one_is_next(h, t, weight, bias, lm_head, head_ids):
        """Your head k predicts position t + k. Position t + 1 is what the LM head itself predicts from h, and that
        token is committed before any head is used. So head 1 predicts t + 2, and head k predicts t + 1 + k."""
        return medusa_guesses(h, t, weight, bias, lm_head, head_ids, first=1)

    def without_residual(h, t, weight, bias, lm_head, head_ids):
        """You leave out h itself and compute z = SiLU(Wh + b). The head should correct h, not replace it: an untrained
        head (W = 0, b = 0) has to predict what the LM head predicts. Add h."""
        return medusa_guesses(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: F.silu(x + b))

    def without_silu(h, t, weight, bias, lm_head, head_ids):
        """You leave out SiLU. Without it the head is just one more matrix, and the head and the LM head together are
        linear in h. Apply F.silu to Wh + b."""
        return medusa_guesses(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: h + x + b)

    def silu_of_everything(h, t, weight, bias, lm_head, head_ids):
        """You put h inside SiLU as well. It stays outside, z = h + SiLU(Wh + b), so that the state passes unchanged if
        the head has nothing to add."""
        return medusa_guesses(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: F.silu(h + x + b))

    def bias_after(h, t, weight, bias, lm_head, head_ids):
        """You add b after SiLU. It belongs inside, SiLU(Wh + b), where it shifts the input of the nonlinearity."""
        return medusa_guesses(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: h + F.silu(x) + b)

    def transposed_weight(h, t, weight, bias, lm_head, head_ids):
        """You multiply by W transposed: h @ W is Wᵀh. The formula says Wh, which is `weight[k] @ h`."""
        return medusa_guesses(h, t, weight.transpose(1, 2), bias, lm_head, head_ids)

    def whole_vocabulary(h, t, weight, bias, lm_head, head_ids):
        """You score the whole vocabulary. The heads cover only the tokens in head_ids, so use the v rows
        lm_head[head_ids] of the matrix instead of all V. A token outside the list cannot be drafted."""
        everything = torch.arange(len(lm_head))
        return medusa_guesses(h, t, weight, bias, lm_head, everything)

    def numbers_of_the_reduced(h, t, weight, bias, lm_head, head_ids):
        """Your tokens are indices into the reduced vocabulary, which no other component knows. Map them back:
        head_ids[i] is the token that index i stands for."""
        return medusa_guesses(h, t, weight, bias, lm_head, head_ids, ids=torch.arange(len(head_ids)))

    def first_rows(h, t, weight, bias, lm_head, head_ids):
        """You take the first v rows of the LM head matrix. Take those that head_ids lists: lm_head[head_ids]."""
        return medusa_guesses(h, t, weight, bias, lm_head, head_ids, rows=lm_head[: len(head_ids)])

    def heads_in_a_row(h, t, weight, bias, lm_head, head_ids):
        """Your heads build on one another: head 2 is given head 1's output. In Medusa all heads are given the same h
        and run side by side. (Heads in sequence exist as well, under the name Hydra.)"""
        return medusa_guesses(h, t, weight, bias, lm_head, head_ids, chained=True)


def random_heads(draw: Draw, count: int, *, everything: bool = False) -> dict:
    d, vocabulary = draw.whole(2, 2 + draw.size), draw.whole(3, 5 + draw.size)
    some = (
        sorted(draw.sample(range(vocabulary), draw.whole(2, vocabulary - 1))) if not everything else range(vocabulary)
    )
    h, t, weight, bias = draw.decimals(d), draw.whole(0, 40), draw.decimals(count, d, d), draw.decimals(count, d)
    lm_head = draw.decimals(vocabulary, d)
    return dict(h=h, t=t, weight=weight, bias=bias, lm_head=lm_head, head_ids=torch.tensor(list(some)))


fresh("09.medusa_head", "one head", lambda draw: random_heads(draw, 1))
fresh("09.medusa_head", "several heads", lambda draw: random_heads(draw, draw.whole(2, 4)))


@fresh("09.medusa_head", "the whole vocabulary", weight=0.5, count=6)
def _(draw):
    return random_heads(draw, draw.whole(1, 3), everything=True)


# ---- 09.tree_mask ---------------------------------------------------------------------------------------------------
def tree_mask(parents, prefix):
    past = torch.ones(len(parents) + 1, prefix, dtype=torch.bool)
    return torch.cat([past, verify_mask(parents)], 1), [prefix, *(prefix + depth for depth in depths(parents))]


def observe_mask(answer, parents, prefix):
    mask, places = pair(answer(parents, prefix), "the mask and the positions")
    mask = mask_of(mask, (len(parents) + 1, prefix + len(parents) + 1))
    seen = {f"{who(i)} attends to": "".join("#" if x else "." for x in row) for i, row in enumerate(mask.tolist())}
    return {**seen, "positions": whole_numbers(places, "the positions")}


def who(i):
    return "last token" if i == 0 else f"node {i - 1}"


def draw_mask(answer) -> str:
    """The learner's mask of a tree of seven nodes, beside the tree itself."""
    parents, prefix = [-1, -1, 0, 0, 1, 2, 2], 3
    seen = observe_mask(answer, parents, prefix)
    level = [0, *depths(parents)]
    lines = [f"parents {parents}, {prefix} tokens before the last one", "# attends   . does not", ""]
    lines.append(f"{'':22}{'p' * prefix} L {''.join(map(str, range(len(parents))))}   position")
    for i in range(len(parents) + 1):
        row, name = seen[f"{who(i)} attends to"], "  " * level[i] + who(i)
        lines.append(f"{name:22}{row[:prefix]} {row[prefix]} {row[prefix + 1 :]}   {seen['positions'][i]}")
    return "\n".join(lines)


TREE_MASK = exercise(
    "09.tree_mask",
    reference=tree_mask,
    observe=observe_mask,
    picture=draw_mask,
    cases=[
        dict(parents=[-1], prefix=1),
        dict(parents=[-1, -1], prefix=0),
        dict(parents=[-1, 0], prefix=2),
        dict(parents=[-1, -1, 0, 1], prefix=1),
        dict(parents=[-1, 0, 0, 1, 3], prefix=2),
        dict(parents=[-1, -1, 0, 0, 1, 2, 5], prefix=3),
    ],
)


def flawed_mask(parents, prefix, *, seen=None, places=None, root=True):
    """The mask with parts to exchange: `seen(i, j)` between nodes, what all attend to, the positions."""
    n = len(parents)
    mask, right = tree_mask(parents, prefix)
    if seen is not None:
        for i in range(n):
            for j in range(n):
                mask[i + 1, prefix + 1 + j] = seen(i, j)
    mask[1:, prefix] &= root
    return mask, right if places is None else places


@TREE_MASK.wrong_solutions
class _:
    def like_a_chain(parents, prefix):
        """Every node attends to all nodes before it, as in a chain. Nodes of other branches are alternatives and do not
        belong to the sequence that this node would continue. Allow only its ancestors and the node itself."""
        return flawed_mask(parents, prefix, seen=lambda i, j: j <= i)

    def blind_to_itself(parents, prefix):
        """Your nodes do not attend to themselves. A token always attends to itself, so set the diagonal to True."""
        return flawed_mask(parents, prefix, seen=lambda i, j: j != i and j in path_to(parents, i))

    def parent_only(parents, prefix):
        """Your nodes attend to their parent and to themselves, but not to their grandparents. What precedes a node is
        the whole path from the root, so copy the parent's row of the mask and add the node itself."""
        return flawed_mask(parents, prefix, seen=lambda i, j: j in (i, parents[i]))

    def level_by_level(parents, prefix):
        """Your nodes attend to all nodes of the levels above. Only one node of each level is an ancestor; the others
        are alternatives for the same position. Follow the parent pointers instead of the depths."""
        level = depths(parents)
        return flawed_mask(parents, prefix, seen=lambda i, j: j == i or level[j] < level[i])

    def towards_the_leaves(parents, prefix):
        """Your mask is transposed: rows are the tokens that attend, columns the tokens they attend to."""
        return flawed_mask(parents, prefix, seen=lambda i, j: i in path_to(parents, j))

    def root_hidden(parents, prefix):
        """Your nodes do not attend to the last committed token. It is the root of the tree and an ancestor of every
        node, so its column is True everywhere."""
        return flawed_mask(parents, prefix, root=False)

    def positions_by_slot(parents, prefix):
        """Your positions count slots. A node's position is the one it would have in its own sequence, so siblings share
        a position whatever slots they occupy. Use prefix plus depth."""
        return flawed_mask(parents, prefix, places=list(range(prefix, prefix + len(parents) + 1)))

    def children_at_the_root(parents, prefix):
        """Your first level has the position of the last token. That is `prefix`, so its children are at prefix + 1."""
        return flawed_mask(parents, prefix, places=[prefix, *(prefix + d - 1 for d in depths(parents))])

    def positions_without_prefix(parents, prefix):
        """Your positions leave out the prefix. The cached keys were rotated with positions counted from the beginning
        of the sequence, so continue from `prefix`."""
        return flawed_mask(parents, prefix, places=[0, *depths(parents)])


def parents_of(draw: Draw, count: int) -> list[int]:
    return [draw.whole(-1, i - 1) for i in range(count)]


@fresh("09.tree_mask", "any tree", weight=2)
def _(draw):
    return dict(parents=parents_of(draw, draw.whole(1, 2 + draw.size)), prefix=draw.whole(0, 3))


@fresh("09.tree_mask", "chains and stars", weight=0.5)
def _(draw):
    count = draw.whole(1, 5)
    return dict(parents=draw.choice([list(range(-1, count - 1)), [-1] * count]), prefix=draw.whole(0, 3))


@fresh("09.tree_mask", "deep branches")
def _(draw):
    """Two paths from the root that grow by turns."""
    parents = [-1, -1]
    for _ in range(draw.whole(2, 3 + draw.size)):
        parents.append(draw.whole(max(0, len(parents) - 2), len(parents) - 1))
    return dict(parents=parents, prefix=draw.whole(0, 2))


# ---- 09.tree_verify -------------------------------------------------------------------------------------------------
def verify_siblings(p, q, siblings, random, *, replace=residual, final=None):
    """The rule with parts to exchange."""
    r = p
    for i, d in enumerate(siblings):
        if random() < accept_probability(r, q[i], d):
            return i, d
        r = replace(r, q[i])
    return None, pick(r if final is None else final, random())


DRAWN = {"independent": iid, "distinct": distinct, "the likeliest": best}


def observe_siblings(answer, p, draft, count, drawn):
    """The exact distribution of (accepted sibling, emitted token), over the sampling of the siblings as well."""

    def place(random):
        siblings, sources = [], []
        for _ in range(count):
            sources.append(DRAWN[drawn](draft, siblings))
            siblings.append(pick(sources[-1], random()))
        which, emitted = pair(answer(p, torch.stack(sources), list(siblings), random), "the accepted one and the token")
        which = "none" if which is None else f"sibling {token(which, 'the accepted one')}"
        return which, token(emitted)

    return distribution_of(place)


TREE_VERIFY = exercise(
    "09.tree_verify",
    legend={
        "draft": "the distribution that siblings are sampled from",
        "count": "how many siblings",
        "drawn": "whether a token may be sampled twice",
    },
    reference=verify_siblings,
    observe=observe_siblings,
    cases=[
        dict(p=probs(0.5, 0.5), draft=probs(0.75, 0.25), count=1, drawn="independent"),
        dict(p=probs(0.25, 0.75), draft=probs(0.75, 0.25), count=2, drawn="independent"),
        dict(p=probs(0.5, 0.3, 0.2), draft=probs(0.2, 0.2, 0.6), count=2, drawn="distinct"),
        dict(p=probs(0.1, 0.4, 0.5), draft=probs(0.6, 0.3, 0.1), count=2, drawn="the likeliest"),
        dict(p=probs(0.1, 0.6, 0.3), draft=probs(0.5, 0.2, 0.3), count=2, drawn="independent"),
    ],
)


@TREE_VERIFY.wrong_solutions
class _:
    def every_sibling_against_p(p, q, siblings, random):
        """You test every sibling against p. After the first rejection the token has to come from the residual, so the
        next sibling must be tested against that: update r. Otherwise the draft's favourites are emitted too often."""
        final = residual(p, q[-1]) if len(siblings) else p
        return verify_siblings(p, q, siblings, random, replace=lambda r, q_i: r, final=final)

    def first_q_for_all(p, q, siblings, random):
        """You use q[0] for every sibling. Each was sampled from its own q[i]: use that in the test and in the
        residual."""
        return verify_siblings(p, q[:1].expand_as(q), siblings, random)

    def only_the_first(p, q, siblings, random):
        """You give up after the first rejection. The other siblings have been drafted: try each before you sample."""
        return verify_siblings(p, q[:1], siblings[:1], random)

    def draws_from_p_at_last(p, q, siblings, random):
        """When all siblings are rejected you sample from p. By then only the last r is left: sample from that."""
        return verify_siblings(p, q, siblings, random, final=p)

    def any_of_them(p, q, siblings, random):
        """You sample from p and check whether a sibling was hit. The output follows p, but siblings are accepted less
        often than possible, since you make no use of the q that they were sampled from. (For top-m siblings, which are
        not sampled, it is the right rule.) Use the ratio r/q."""
        y = pick(p, random())
        return (siblings.index(y) if y in siblings else None), y

    def unnormalised_residual(p, q, siblings, random):
        """You test the next sibling against [r − q]₊ without normalising. After a rejection the residual is the
        distribution that everything from here on has to follow, so divide it by its sum."""
        return verify_siblings(p, q, siblings, random, replace=lambda r, q_i: (r - q_i).clamp(min=0))

    def residual_of_p(p, q, siblings, random):
        """Your residual is always computed from p: norm([p − q_i]₊). Compute it from r as it was before this sibling,
        so that every rejected sibling has its effect."""
        return verify_siblings(p, q, siblings, random, replace=lambda r, q_i: residual(p, q_i))

    def removes_the_rejected(p, q, siblings, random):
        """After a rejection you remove that token from r and keep the rest in proportion. That is right only for a
        sibling that was not sampled, where q is one-hot. In general subtract the whole distribution: norm([r − q]₊)."""
        r = p
        for i, d in enumerate(siblings):
            if random() < accept_probability(r, q[i], d):
                return i, d
            rest = r.clone()
            rest[d] = 0
            r = rest / rest.sum() if rest.sum() > 0 else r
        return None, pick(r, random())

    def one_coin_for_all(p, q, siblings, random):
        """You use one random number for all siblings. A rejection then also says something about the next test, and the
        emitted distribution is biased. Call random() for each sibling."""
        u, r = random(), p
        for i, d in enumerate(siblings):
            if u < accept_probability(r, q[i], d):
                return i, d
            r = residual(r, q[i])
        return None, pick(r, random())


def siblings_case(draw: Draw, count: int, n: int, drawn: str) -> dict:
    draft = draw.until(lambda: draw.probs(n), lambda q: drawn == "independent" or int((q > 0).sum()) >= count)
    return dict(p=draw.probs(n), draft=draft, count=count, drawn=drawn)


def some_siblings(draw: Draw, count: int) -> dict:
    return siblings_case(draw, count, draw.whole(max(2, count), 3), draw.choice(list(DRAWN)))


fresh("09.tree_verify", "one sibling", lambda draw: some_siblings(draw, 1), count=5)
fresh("09.tree_verify", "two siblings", lambda draw: some_siblings(draw, 2), count=8)
fresh("09.tree_verify", "three siblings", lambda draw: some_siblings(draw, 3), count=6)


@fresh("09.tree_verify", "the same token twice", count=6)
def _(draw):
    """Sampled independently from a draft that prefers one token, which the target likes less. With two other tokens
    the residual still changes after the second rejection."""
    favourite = draw.whole(55, 90) / 100
    p = draw.whole(10, 50) / 100
    if draw.chance(0.5):
        rest, part = 1 - favourite, draw.choice([0.2, 0.4])
        draft = torch.tensor([favourite, part * rest, (1 - part) * rest]).double().round(decimals=3)
        target = torch.tensor([p, (1 - p) / 2, (1 - p) / 2]).double().round(decimals=3)
        return dict(p=target, draft=draft, count=2, drawn="independent")
    return dict(
        p=torch.tensor([p, 1 - p]).double().round(decimals=2),
        draft=torch.tensor([favourite, 1 - favourite]).double().round(decimals=2),
        count=draw.whole(2, 3),
        drawn="independent",
    )


# ---- 09.tree_tokens -------------------------------------------------------------------------------------------------
def best_shape(accuracies, budget):
    chosen = best_tree(accuracies, budget)
    return chosen, expected_tokens(accuracies, chosen)


def observe_shape(answer, accuracies, budget):
    chosen, tokens = pair(answer(accuracies, budget), "the chosen nodes and the expected tokens")
    chosen = list(chosen) if isinstance(chosen, (set, dict)) else items(chosen, "the chosen nodes", " of tuples")
    nodes = [tuple(whole_numbers(node, "every node")) for node in chosen]
    tokens = number(tokens, "the expected tokens")
    return {"nodes": sorted(nodes, key=lambda node: (len(node), node)), "expected tokens": float(tokens)}


def draw_shape(answer) -> str:
    """The learner's tree, and how often each of its nodes is accepted."""
    accuracies, budget = [[0.6, 0.2, 0.1], [0.5, 0.25], [0.4, 0.3]], 8
    found = observe_shape(answer, [list(head) for head in accuracies], budget)
    lines = ["the last token"]
    for node in sorted(found["nodes"]):
        inside = len(node) <= len(accuracies) and all(i < len(h) for i, h in zip(node, accuracies, strict=False))
        reach = f"{reach_of(accuracies, node):.3f}" if inside else "no such candidate"
        lines.append(f"{'    ' * len(node)}head {len(node)}, candidate {node[-1] if node else '-'}   {reach}")
    return "\n".join(
        [*lines, f"{len(found['nodes'])} nodes of {budget}, {found['expected tokens']:.3f} tokens per cycle"]
    )


def reach_of(accuracies, node):
    return math.prod(head[i] for head, i in zip(accuracies, node, strict=False))


def every_node(accuracies):
    nodes = [()]
    for node in nodes:
        nodes += [(*node, i) for i in range(len(accuracies[len(node)]))] if len(node) < len(accuracies) else []
    return nodes[1:]


TREE_TOKENS = exercise(
    "09.tree_tokens",
    reference=best_shape,
    observe=observe_shape,
    picture=draw_shape,
    cases=[
        dict(accuracies=[[0.6, 0.2]], budget=1),
        dict(accuracies=[[0.6, 0.2]], budget=2),
        dict(accuracies=[[0.6, 0.2], [0.5, 0.1]], budget=2),
        dict(accuracies=[[0.5, 0.3], [0.4, 0.3]], budget=3),
        dict(accuracies=[[0.5, 0.35, 0.1], [0.6, 0.38, 0.02]], budget=3),
        dict(accuracies=[[0.7, 0.13], [0.6, 0.2], [0.8, 0.1]], budget=6),
        dict(accuracies=[[0.3, 0.2], [0.9, 0.05]], budget=4),
    ],
)


@TREE_TOKENS.wrong_solutions
class _:
    def widest_first(accuracies, budget):
        """You fill the first level before you begin the second. The last candidates of a level are hardly ever right,
        while the child of a good candidate often is. Compare products across levels."""
        chosen = every_node(accuracies)[:budget]
        return chosen, expected_tokens(accuracies, chosen)

    def own_accuracy_alone(accuracies, budget):
        """You rank nodes by their own accuracy. That is a probability *given that everything before was right*, and a
        good candidate after a bad one is rarely reached. Multiply along the path."""
        chosen, opened = [], [(i,) for i in range(len(accuracies[0]))]
        while opened and len(chosen) < budget:
            node = max(opened, key=lambda node: (accuracies[len(node) - 1][node[-1]], -len(node)))
            opened.remove(node)
            chosen.append(node)
            if len(node) < len(accuracies):
                opened += [(*node, i) for i in range(len(accuracies[len(node)]))]
        return chosen, expected_tokens(accuracies, chosen)

    def without_the_one(accuracies, budget):
        """You count accepted draft tokens only. Every cycle emits one more, the correction or the bonus: add 1."""
        chosen, tokens = best_shape(accuracies, budget)
        return chosen, tokens - 1

    def root_in_the_budget(accuracies, budget):
        """Your tree has one node too few. The root, the last committed token, does not count towards the budget."""
        chosen = best_tree(accuracies, budget)[: budget - 1]
        return chosen, expected_tokens(accuracies, chosen)

    def sums_accuracies(accuracies, budget):
        """Your nodes are right, but you add up their own accuracies. A node adds a token only if all nodes before it
        are right, so add the products."""
        chosen = best_tree(accuracies, budget)
        return chosen, 1 + sum(accuracies[len(node) - 1][node[-1]] for node in chosen)


def accuracies_of(draw: Draw, heads: int, most: int) -> list[list[float]]:
    """Candidates of a head are right with decreasing frequency, and never two of them at once."""
    return [
        sorted((x / 100 for x in draw.parts(draw.whole(1, most) + 1, 100, least=3)[:-1]), reverse=True)
        for _ in range(heads)
    ]


def shape_case(draw: Draw, heads: int, most: int) -> dict:
    def make():
        accuracies = accuracies_of(draw, heads, most)
        nodes = every_node(accuracies)
        return dict(accuracies=accuracies, budget=draw.whole(1, min(len(nodes), 3 + 2 * draw.size)))

    def no_ties(case):
        reaches = sorted(reach_of(case["accuracies"], node) for node in every_node(case["accuracies"]))
        return all(b - a > 1e-6 for a, b in pairwise(reaches))

    return draw.until(make, no_ties)


fresh("09.tree_tokens", "several heads", lambda draw: shape_case(draw, draw.whole(2, 3), 3), weight=2)


@fresh("09.tree_tokens", "a budget for more than all nodes", weight=0.5, count=5)
def _(draw):
    case = shape_case(draw, draw.whole(1, 2), 2)
    return {**case, "budget": len(every_node(case["accuracies"])) + draw.whole(1, 4)}


fresh("09.tree_tokens", "one head", lambda draw: shape_case(draw, 1, 4), weight=0.5, count=6)
fresh(
    "09.tree_tokens", "one candidate per head", lambda draw: shape_case(draw, draw.whole(1, 4), 1), weight=0.5, count=6
)


# ---- 09.typical -----------------------------------------------------------------------------------------------------
def typical_distribution(p, q, epsilon, delta, *, threshold=None, rest=None, bias=None):
    """Typical acceptance with parts to exchange: the threshold, what follows a refusal, how far off it is."""
    entropy = torch.special.entr(p).sum()
    passes = p > (min(epsilon, delta * float(torch.exp(-entropy))) if threshold is None else threshold)
    refused = float((q * ~passes).sum())
    found = q * passes + refused * (p if rest is None else rest(passes))
    return found, float((found - p).abs().sum() / 2) if bias is None else bias(found)


def observe_typical(answer, p, q, epsilon, delta):
    found, bias = pair(answer(p, q, epsilon, delta), "the distribution of the output and its distance from p")
    found = tensor(found, "the distribution", p.shape).tolist()
    return {"distribution": found, "distance from p": float(number(bias, "the distance"))}


TYPICAL = exercise(
    "09.typical",
    reference=typical_distribution,
    observe=observe_typical,
    cases=[
        dict(p=probs(0.75, 0.25), q=probs(0.5, 0.5), epsilon=0.3, delta=1.0),
        dict(p=probs(0.75, 0.25), q=probs(0.5, 0.5), epsilon=0.1, delta=1.0),
        dict(p=probs(0.75, 0.25), q=probs(0.5, 0.5), epsilon=0.9, delta=0.3),
        dict(p=probs(0.5, 0.3, 0.2), q=probs(0.3, 0.3, 0.4), epsilon=0.6, delta=0.7),
        dict(p=probs(0.0, 0.4, 0.6), q=probs(0.25, 0.25, 0.5), epsilon=0.9, delta=0.9),
        dict(p=probs(0.4, 0.3, 0.2, 0.1), q=probs(0.1, 0.2, 0.3, 0.4), epsilon=0.25, delta=0.6),
        dict(p=probs(0.55, 0.25, 0.15, 0.05), q=probs(0.2, 0.5, 0.2, 0.1), epsilon=0.09, delta=0.3),
    ],
)


def effective(p):
    return float(torch.exp(torch.special.entr(p).sum()))  # e^H: how many tokens the target hesitates between


@TYPICAL.wrong_solutions
class _:
    def entropy_in_bits(p, q, epsilon, delta):
        """Your entropy is in bits, but e^(−H) needs it in nats. Use the natural logarithm (or 2^(−H) with bits)."""
        return typical_distribution(
            p, q, epsilon, delta, threshold=min(epsilon, delta * effective(p) ** (-1 / math.log(2)))
        )

    def sign_of_the_entropy(p, q, epsilon, delta):
        """Your threshold rises when the target is undecided, because you use e^H instead of e^(−H). It should fall:
        when many tokens are plausible, each has little probability."""
        return typical_distribution(p, q, epsilon, delta, threshold=min(epsilon, delta * effective(p)))

    def epsilon_alone(p, q, epsilon, delta):
        """You compare with ε alone. When the target is undecided, the threshold is lower: min(ε, δ · e^(−H))."""
        return typical_distribution(p, q, epsilon, delta, threshold=epsilon)

    def larger_of_the_two(p, q, epsilon, delta):
        """You take the larger of ε and δ · e^(−H), but the rule takes the smaller. A token may pass because it is
        likely enough in itself, or likely enough for such an undecided target."""
        return typical_distribution(p, q, epsilon, delta, threshold=max(epsilon, delta / effective(p)))

    def judges_by_q(p, q, epsilon, delta):
        """You let tokens pass that the draft considers likely. The target decides: compare p(d) with the threshold."""
        passes = q > min(epsilon, delta / effective(p))
        found = q * passes + (q * ~passes).sum() * p
        return found, float((found - p).abs().sum() / 2)

    def refused_mass_is_lost(p, q, epsilon, delta):
        """Your distribution does not sum to 1. After a rejection a token is sampled from p: add that part."""
        return typical_distribution(p, q, epsilon, delta, rest=lambda passes: torch.zeros_like(p))

    def accepted_renormalised(p, q, epsilon, delta):
        """You renormalise the tokens that pass, as if the draft were sampled again until one passes. A rejected draft
        token is replaced by a sample from the target, so the rest of the probability follows p."""

        def again(passes):
            kept = q * passes
            return kept / kept.sum() if kept.sum() > 0 else p

        return typical_distribution(p, q, epsilon, delta, rest=again)

    def distance_without_half(p, q, epsilon, delta):
        """Your distribution is right, but your distance is twice the total variation. What one token has in excess,
        another lacks, so ½ Σ |found − p| counts it once."""
        return typical_distribution(p, q, epsilon, delta, bias=lambda found: float((found - p).abs().sum()))

    def adds_to_p(p, q, epsilon, delta):
        """You add a small number to p before the logarithm to avoid ln 0. It is not small enough: it changes the
        entropy, and tokens near the threshold are judged differently. Leave tokens with p = 0 out of the sum, or use
        torch.special.entr."""
        entropy = -(p * torch.log(p + 1e-3)).sum()
        return typical_distribution(p, q, epsilon, delta, threshold=min(epsilon, delta * float(torch.exp(-entropy))))

    def nan_entropy_ignored(p, q, epsilon, delta):
        """Your entropy is NaN if p contains a 0, since 0 · ln 0 is computed as 0 times −∞. Python's min(ε, NaN) is then
        ε, so the entropy silently stops counting. Leave such tokens out of the sum, or use torch.special.entr."""
        if bool((p > 0).all()):
            return typical_distribution(p, q, epsilon, delta)
        return typical_distribution(p, q, epsilon, delta, threshold=epsilon)

    def nan_entropy(p, q, epsilon, delta):
        """Your entropy is NaN if p contains a 0, since 0 · ln 0 is computed as 0 times −∞. Leave such tokens out, or
        use torch.special.entr. A comparison with NaN is false, so nothing passes and no error is raised."""
        if bool((p > 0).all()):
            return typical_distribution(p, q, epsilon, delta)
        return typical_distribution(p, q, epsilon, delta, threshold=math.nan)


def threshold(case: dict) -> tuple[float, float]:
    entropy = float(torch.special.entr(case["p"]).sum())
    return case["epsilon"], case["delta"] * math.exp(-entropy)


def typical_case(draw: Draw, fits) -> dict:
    """No token's probability is just at the threshold."""

    def make():
        p = draw.probs()
        scales = dict(epsilon=draw.whole(1, 19) / 20 + 0.003, delta=draw.whole(2, 20) / 20)
        return dict(p=p, q=draw.probs(len(p)), **scales)

    def settled(case):
        least = min(threshold(case))
        return fits(case) and bool(((case["p"] - least).abs() > 1e-4).all())

    return draw.until(make, settled)


@fresh("09.typical", "ε is the smaller one")
def _(draw):
    return typical_case(draw, lambda case: threshold(case)[0] < threshold(case)[1])


@fresh("09.typical", "the entropy decides")
def _(draw):
    """In half of the cases a token is hardly above the threshold, so that an entropy off by 10⁻³ decides otherwise."""
    sharp = draw.chance(0.5)

    def make():
        case = typical_case(draw, lambda case: threshold(case)[0] > threshold(case)[1])
        possible = draw.choice(case["p"][case["q"] > 0].tolist())
        return {**case, "delta": math.floor(1e4 * possible * effective(case["p"])) / 1e4} if sharp else case

    def hardly(case):
        epsilon, least = threshold(case)
        above = case["p"][case["q"] > 0] / max(least, 1e-9) - 1
        near = (above > 0) & (above < 5e-4 * int((case["p"] > 0).sum()))
        return 0 < least < epsilon and case["delta"] <= 1 and bool(near.any()) and float(above.abs().min()) > 1e-4

    return draw.until(make, lambda case: not sharp or hardly(case))


@fresh("09.typical", "a token is impossible")
def _(draw):
    return typical_case(draw, lambda case: bool(((case["p"] == 0) & (case["q"] > 0)).any()))


@fresh("09.typical", "exactly at the threshold", weight=0.5, count=6)
def _(draw):
    """A probability that equals ε is not above it. In 64ths, which no precision rounds."""

    def make():
        p = torch.tensor(draw.parts(draw.whole(2, 2 + draw.size), 64)).double() / 64
        scales = dict(epsilon=draw.choice(p[p > 0].tolist()), delta=draw.whole(2, 20) / 20)
        return dict(p=p, q=draw.probs(len(p)), **scales)

    def first_is_smaller(case):
        epsilon, other = threshold(case)
        at = int((case["p"] == epsilon).nonzero()[0])
        return epsilon < other - 1e-4 and float(case["q"][at]) > 0 and epsilon < 1

    return draw.until(make, first_is_smaller)


@fresh("09.typical", "some pass and some do not")
def _(draw):
    def both(case):
        passes = case["p"] > min(threshold(case))
        return bool((passes & (case["q"] > 0)).any()) and bool((~passes & (case["q"] > 0)).any())

    return typical_case(draw, both)
