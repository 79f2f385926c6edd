"""Set 09, Medusa: a head's forward, the mask of a tree, its verification, its best shape, and typical acceptance."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ....exact import best, distinct, iid
from ....tree import best_tree, depths, expected_tokens, path_to, positions, verify_mask
from ....verify import accept_probability, pick, residual
from ..exercise import Complaint, distribution_of, exercise, law, pair, token
from ..show import is_number, kind, plain
from .e02 import numbers
from .e03 import numbers as whole_numbers

# ---- 09.medusa_head -------------------------------------------------------------------------------------------------


def medusa_guesses(h, t, weight, bias, lm_head, head_ids):
    return flawed_heads(h, t, weight, bias, lm_head, head_ids)


def flawed_heads(h, t, weight, bias, lm_head, head_ids, *, z=lambda h, x, b: h + F.silu(x + b), rows=None, ids=None,
                 first=2, chained=False):  # fmt: skip
    """All heads, with parts to exchange: the block, the rows of the LM head, the place of head 1's token."""
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
    if not isinstance(found, (list, tuple)) or len(found) != 3:
        raise Complaint(f"return three things, logits, tokens and places; yours returns {kind(found)}.")
    logits, guesses, places = (x.tolist() if i and isinstance(x, Tensor) else x for i, x in enumerate(found))
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(weight):
        raise Complaint(
            f"the logits should be a tensor, a row for each of the {len(weight)} heads; {kind(logits)} came."
        )
    return {
        "logits": logits,
        "tokens": whole_numbers(guesses, "the tokens"),
        "places": whole_numbers(places, "the places"),
    }


def heads_case(count, d, vocabulary, ids, t, seed):
    return dict(
        h=numbers(d, seed=seed),
        t=t,
        weight=numbers(count, d, d, seed=seed + 1),
        bias=numbers(count, d, seed=seed + 2),
        lm_head=numbers(vocabulary, d, seed=seed + 3),
        head_ids=torch.tensor(ids),
    )


MEDUSA_HEAD = exercise(
    "09.medusa_head",
    title="Heads that look ahead",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "Do one head first: a vector z from h, then one logit for each token of the reduced vocabulary. All heads read "
        "the same h; they differ in W and b only.",
        "z = h + SiLU(W h + b), with the h outside of SiLU: at W = 0, b = 0 the head says what the LM head says. The "
        "rows of the reduced vocabulary are lm_head[head_ids], and the argmax among them is a number from 0 to v − 1: "
        "which token is that?",
        "z = h + F.silu(weight @ h + bias) is [K, d]; logits = z @ lm_head[head_ids].T; tokens = "
        "head_ids[logits.argmax(−1)]; the LM head itself speaks of place t + 1, so head k of t + 1 + k.",
    ),
    code="minispec.drafters.MedusaHeads",
    reference=medusa_guesses,
    observe=observe_heads,
    cases=[
        heads_case(1, 2, 4, [1, 3], t=5, seed=61),
        heads_case(2, 2, 4, [0, 1, 2, 3], t=0, seed=66),
        heads_case(2, 3, 6, [1, 2, 5], t=7, seed=71),
        heads_case(3, 4, 8, [0, 3, 4, 7], t=11, seed=77),
    ],
)


@MEDUSA_HEAD.mutant
def head_one_is_next(h, t, weight, bias, lm_head, head_ids):
    """Your head k predicts place t + k. Place t + 1 is what the LM head itself predicts from h, and that token is
    committed before any head is asked: head 1 is about the one after it, t + 2."""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, first=1)


@MEDUSA_HEAD.mutant
def without_residual(h, t, weight, bias, lm_head, head_ids):
    """You leave out h itself: z = SiLU(Wh + b). The head corrects h, it does not replace it. An untrained head (W = 0)
    would know nothing, where it should know what the LM head knows."""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: F.silu(x + b))


@MEDUSA_HEAD.mutant
def without_silu(h, t, weight, bias, lm_head, head_ids):
    """You leave out SiLU. Without it the head is one more matrix, and the head and LM head together are linear in h."""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: h + x + b)


@MEDUSA_HEAD.mutant
def silu_of_everything(h, t, weight, bias, lm_head, head_ids):
    """You put h inside of SiLU, too. It stays outside: z = h + SiLU(Wh + b), so that the state passes unchanged where
    the head has nothing to add."""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: F.silu(h + x + b))


@MEDUSA_HEAD.mutant
def relu_head(h, t, weight, bias, lm_head, head_ids):
    """You use ReLU. The head has SiLU, x · sigmoid(x), which is smooth and lets a little of the negative side
    through."""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: h + F.relu(x + b))


@MEDUSA_HEAD.mutant
def bias_after(h, t, weight, bias, lm_head, head_ids):
    """You add b after SiLU. It belongs inside: SiLU(Wh + b), where it shifts the point at which a neuron opens."""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, z=lambda h, x, b: h + F.silu(x) + b)


@MEDUSA_HEAD.mutant
def transposed_weight(h, t, weight, bias, lm_head, head_ids):
    """You multiply with W transposed: h @ W is Wᵀh. The formula says Wh, `weight[k] @ h`; for many states at once,
    F.linear(h, W)."""
    return flawed_heads(h, t, weight.transpose(1, 2), bias, lm_head, head_ids)


@MEDUSA_HEAD.mutant
def whole_vocabulary(h, t, weight, bias, lm_head, head_ids):
    """You score the whole vocabulary. The heads know the tokens head_ids only: v rows of the LM head instead of V, and
    a guess outside of them cannot be drafted."""
    everything = torch.arange(len(lm_head))
    return flawed_heads(h, t, weight, bias, lm_head, everything)


@MEDUSA_HEAD.mutant
def numbers_of_the_reduced(h, t, weight, bias, lm_head, head_ids):
    """Your tokens are places in the reduced vocabulary. Outside of the head nobody knows that numbering: head_ids says
    which token each of them is."""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, ids=torch.arange(len(head_ids)))


@MEDUSA_HEAD.mutant
def first_rows(h, t, weight, bias, lm_head, head_ids):
    """You take the first v rows of the LM head. The rows of the reduced vocabulary are those that head_ids names:
    lm_head[head_ids]."""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, rows=lm_head[: len(head_ids)])


@MEDUSA_HEAD.mutant
def heads_in_a_row(h, t, weight, bias, lm_head, head_ids):
    """Your heads read one another: head 2 gets what head 1 made of h. They all read the same h, side by side, and know
    nothing of each other. (Heads in a row exist; they are called Hydra.)"""
    return flawed_heads(h, t, weight, bias, lm_head, head_ids, chained=True)


# ---- 09.tree_mask ---------------------------------------------------------------------------------------------------


def tree_mask(parents, prefix):
    past = torch.ones(len(parents) + 1, prefix, dtype=torch.bool)
    return torch.cat([past, verify_mask(parents)], 1), positions(parents, prefix).tolist()


def observe_mask(answer, parents, prefix):
    mask, places = pair(answer(parents, prefix), "the mask and the positions")
    wanted = (len(parents) + 1, prefix + len(parents) + 1)
    if not isinstance(mask, Tensor) or tuple(mask.shape) != wanted:
        raise Complaint(f"the mask should be a tensor of shape {wanted}; yours is {kind(mask)}.")
    places = places.tolist() if isinstance(places, Tensor) else places
    seen = {f"{who(i)} sees": "".join("#" if x else "." for x in row) for i, row in enumerate(mask.tolist())}
    return {**seen, "positions": whole_numbers(places, "the positions")}


def who(i):
    return "last token" if i == 0 else f"node {i - 1}"


def draw_mask(answer) -> str:
    """The learner's mask of a tree of seven nodes, beside the tree itself."""
    parents, prefix = [-1, -1, 0, 0, 1, 2, 2], 3
    seen = observe_mask(answer, parents, prefix)
    level = [0, *depths(parents)]
    lines = [f"parents {parents}, {prefix} tokens before the last one", "# seen   . not seen", ""]
    lines.append(f"{'':22}{'p' * prefix} L {''.join(map(str, range(len(parents))))}   position")
    for i in range(len(parents) + 1):
        row, name = seen[f"{who(i)} sees"], "  " * level[i] + who(i)
        lines.append(f"{name:22}{row[:prefix]} {row[prefix]} {row[prefix + 1 :]}   {seen['positions'][i]}")
    return "\n".join(lines)


TREE_MASK = exercise(
    "09.tree_mask",
    title="A tree in one pass",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "Begin with what all have in common: which slots does every token of the pass see? Then add to each node what "
        "only it sees.",
        "All see the prefix and the last token. A node sees itself and whatever its parent sees; parents come before "
        "their children, so one loop in order is enough. A node's position is its parent's plus one.",
        "mask = zeros, mask[:, :prefix + 1] = True; for node i: row i + 1 |= row parents[i] + 1, and its own slot, "
        "prefix + 1 + i, becomes True. (parents[i] = −1 gives row 0, the last token.) positions = [prefix], then "
        "positions[parents[i] + 1] + 1 for each node.",
    ),
    code="minispec.tree.verify_mask",
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


def flawed_mask(parents, prefix, *, seen=None, places=None, past=True, root=True):
    """The mask with parts to exchange: `seen(i, j)` between nodes, what all see, the positions."""
    n = len(parents)
    mask, right = tree_mask(parents, prefix)
    if seen is not None:
        for i in range(n):
            for j in range(n):
                mask[i + 1, prefix + 1 + j] = seen(i, j)
    mask[:, :prefix] &= past
    mask[1:, prefix] &= root
    return mask, right if places is None else places


@TREE_MASK.mutant
def like_a_chain(parents, prefix):
    """Every node sees all nodes before it, as in a chain. Nodes of other branches are rival guesses: they are not in
    the text that this node would continue. Only ancestors are, and the node itself."""
    return flawed_mask(parents, prefix, seen=lambda i, j: j <= i)


@TREE_MASK.mutant
def blind_to_itself(parents, prefix):
    """Your nodes do not see themselves. A token's own key and value count: the diagonal is True."""
    return flawed_mask(parents, prefix, seen=lambda i, j: j != i and j in path_to(parents, i))


@TREE_MASK.mutant
def parent_only(parents, prefix):
    """Your nodes see their parent and themselves, but not the grandparents. The text before a node is the whole way
    from the root to it."""
    return flawed_mask(parents, prefix, seen=lambda i, j: j in (i, parents[i]))


@TREE_MASK.mutant
def level_by_level(parents, prefix):
    """Your nodes see all nodes of the levels above. Only one node of each level is an ancestor, the others are rival
    guesses for its place."""
    level = depths(parents)
    return flawed_mask(parents, prefix, seen=lambda i, j: j == i or level[j] < level[i])


@TREE_MASK.mutant
def towards_the_leaves(parents, prefix):
    """Your mask is transposed: ancestors see their descendants. Rows are the tokens that look, columns what they look
    at."""
    return flawed_mask(parents, prefix, seen=lambda i, j: i in path_to(parents, j))


@TREE_MASK.mutant
def past_hidden(parents, prefix):
    """Your tokens do not see the prefix. All of them continue the same text: the first columns are all True."""
    return flawed_mask(parents, prefix, past=False)


@TREE_MASK.mutant
def root_hidden(parents, prefix):
    """Your nodes do not see the last committed token. It is the root of the tree, every node's ancestor: its column is
    all True."""
    return flawed_mask(parents, prefix, root=False)


@TREE_MASK.mutant
def positions_by_slot(parents, prefix):
    """Your positions count the slots. A node's position is its place in the text it would be part of: siblings are
    rivals for one place and share a position, whatever slots they lie in."""
    return flawed_mask(parents, prefix, places=list(range(prefix, prefix + len(parents) + 1)))


@TREE_MASK.mutant
def children_at_the_root(parents, prefix):
    """The first level has the position of the last token in your version. That token is at position `prefix`, its
    children come one after it."""
    return flawed_mask(parents, prefix, places=[prefix, *(prefix + d - 1 for d in depths(parents))])


@TREE_MASK.mutant
def positions_from_one(parents, prefix):
    """Your positions are one too high. The prefix has the positions 0 … prefix − 1, so the last token is at
    `prefix`."""
    return flawed_mask(parents, prefix, places=[prefix + 1 + d for d in (0, *depths(parents))])


@TREE_MASK.mutant
def positions_without_prefix(parents, prefix):
    """Your positions leave out the prefix. Keys in the cache were written with positions counted from the beginning of
    the text: go on from there."""
    return flawed_mask(parents, prefix, places=[0, *depths(parents)])


# ---- 09.tree_verify -------------------------------------------------------------------------------------------------


def verify_siblings(p, q, siblings, random):
    r = p
    for i, d in enumerate(siblings):
        if random() < accept_probability(r, q[i], d):
            return i, d
        r = residual(r, q[i])
    return None, pick(r, random())


DRAWN = {"independent": iid, "distinct": distinct, "the likeliest": best}


def observe_siblings(answer, p, draft, count, drawn):
    """The exact law of (accepted sibling, emitted token), the siblings' own draws included."""

    def place(random):
        siblings, laws = [], []
        for _ in range(count):
            laws.append(DRAWN[drawn](draft, siblings))
            siblings.append(pick(laws[-1], random()))
        which, emitted = pair(answer(p, torch.stack(laws), list(siblings), random), "the accepted one and the token")
        which = "none" if which is None else f"sibling {token(which, 'the accepted one')}"
        return which, token(emitted)

    return distribution_of(place)


TREE_VERIFY = exercise(
    "09.tree_verify",
    title="Several guesses for one place",
    level="H",
    minutes=35,
    points=4,
    hints=(
        "With one sibling it is the rule you know: a coin, and after a rejection the residual. Now there is a second "
        "sibling. After the first was rejected, which law is still owed?",
        "The residual r = norm([p − q₀]₊). It plays p's part for the second sibling: coin min(1, r/q₁), and after a "
        "rejection norm([r − q₁]₊) is owed. And so on; when no sibling is left, draw from what is owed.",
        "r = p; for i, d in enumerate(siblings): if random() < accept_probability(r, q[i], d): return i, d; else "
        "r = residual(r, q[i]). After the loop: None, pick(r, random()).",
    ),
    code="minispec.verify.tree",
    reference=verify_siblings,
    observe=observe_siblings,
    cases=[
        dict(p=law(0.5, 0.5), draft=law(0.75, 0.25), count=1, drawn="independent"),
        dict(p=law(0.25, 0.75), draft=law(0.75, 0.25), count=2, drawn="independent"),
        dict(p=law(0.5, 0.3, 0.2), draft=law(0.2, 0.2, 0.6), count=2, drawn="distinct"),
        dict(p=law(0.1, 0.4, 0.5), draft=law(0.6, 0.3, 0.1), count=2, drawn="the likeliest"),
        dict(p=law(0.1, 0.6, 0.3), draft=law(0.5, 0.2, 0.3), count=2, drawn="independent"),
    ],
)


def flawed_siblings(p, q, siblings, random, *, coin=accept_probability, replace=residual, final=None):
    """The rule with parts to exchange."""
    r = p
    for i, d in enumerate(siblings):
        if random() < coin(r, q[i], d):
            return i, d
        r = replace(r, q[i])
    return None, pick(r if final is None else final, random())


@TREE_VERIFY.mutant
def every_sibling_against_p(p, q, siblings, random):
    """You judge every sibling by p. After the first rejection a part of p has had its chance: what is still owed is the
    residual, and the next sibling is judged by that. Otherwise tokens that the draft likes get too much."""
    final = residual(p, q[-1]) if len(siblings) else p
    return flawed_siblings(p, q, siblings, random, replace=lambda r, q_i: r, final=final)


@TREE_VERIFY.mutant
def only_the_first(p, q, siblings, random):
    """You stop after the first sibling is rejected. The others are drafted and verified already: try them, one after
    the other, before you draw."""
    return flawed_siblings(p, q[:1], siblings[:1], random)


@TREE_VERIFY.mutant
def draws_from_p_at_last(p, q, siblings, random):
    """When all siblings are rejected you draw from p. What is owed by then is the residual that is left of it after all
    of them."""
    return flawed_siblings(p, q, siblings, random, final=p)


@TREE_VERIFY.mutant
def any_of_them(p, q, siblings, random):
    """You draw from p and see whether a sibling is hit. The output follows p, but siblings are accepted more rarely
    than they could be, since the q that they were drawn from is not made use of. (For the likeliest tokens, which are
    not drawn, it is the very rule.)"""
    y = pick(p, random())
    return (siblings.index(y) if y in siblings else None), y


@TREE_VERIFY.mutant
def unnormalised_residual(p, q, siblings, random):
    """You judge the next sibling by [r − q]₊ without normalising. After a rejection that residual is a whole law again,
    the law of what is emitted from here on: divide by its sum."""
    return flawed_siblings(p, q, siblings, random, replace=lambda r, q_i: (r - q_i).clamp(min=0))


@TREE_VERIFY.mutant
def residual_of_p(p, q, siblings, random):
    """Your residual is always taken from p: norm([p − q_i]₊). It has to be taken from what was owed before this
    sibling, so that all the rejected ones have left their mark."""
    return flawed_siblings(p, q, siblings, random, replace=lambda r, q_i: residual(p, q_i))


@TREE_VERIFY.mutant
def removes_the_rejected(p, q, siblings, random):
    """After a rejection you remove that token from what is owed and keep the rest in p's proportions. That is right for
    a sibling that was not drawn, where q is one-hot. Here subtract the whole law: norm([r − q]₊)."""
    r = p
    for i, d in enumerate(siblings):
        if random() < accept_probability(r, q[i], d):
            return i, d
        rest = r.clone()
        rest[d] = 0
        r = rest / rest.sum() if rest.sum() > 0 else r
    return None, pick(r, random())


@TREE_VERIFY.mutant
def one_coin_for_all(p, q, siblings, random):
    """You flip one coin for all siblings. That a sibling was rejected then says something about the next, and the law
    bends. Call random() for each."""
    u, r = random(), p
    for i, d in enumerate(siblings):
        if u < accept_probability(r, q[i], d):
            return i, d
        r = residual(r, q[i])
    return None, pick(r, random())


# ---- 09.tree_tokens -------------------------------------------------------------------------------------------------


def best_shape(accuracies, budget):
    chosen = best_tree(accuracies, budget)
    return chosen, expected_tokens(accuracies, chosen)


def observe_shape(answer, accuracies, budget):
    chosen, tokens = pair(answer(accuracies, budget), "the chosen nodes and the expected tokens")
    if not isinstance(chosen, (list, tuple, set)):
        raise Complaint(f"the chosen nodes should be a list of tuples; yours is {kind(chosen)}.")
    nodes = [tuple(whole_numbers(node, "every node")) for node in chosen]
    if not is_number(plain(tokens)):
        raise Complaint(f"the expected tokens should be a number; yours is {kind(tokens)}.")
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
        [*lines, f"{len(found['nodes'])} nodes of {budget}, {found['expected tokens']:.3f} tokens a cycle"]
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
    title="The best shape of a tree",
    level="M",
    minutes=30,
    points=3,
    hints=(
        "How often is the node (0, 1) accepted? Its parent must be right, and then it must be. What does it add to the "
        "tokens of a cycle?",
        "A node is accepted with the product of the accuracies on its way, and adds exactly that. So take the nodes "
        "with the largest products. Can a child be taken without its parent that way?",
        "It cannot, since a child's product is never larger. List all nodes with their products (or keep the open ones "
        "in a list, take the best, add its children), take the `budget` largest; the tokens are 1 + their sum.",
    ),
    code="minispec.tree.best_tree",
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


@TREE_TOKENS.mutant
def one_long_chain(accuracies, budget):
    """Your tree is a chain: the best candidate of each head. Where the first head is unsure, a second candidate for it
    is worth more than a third token behind the first."""
    chain = [(0,) * depth for depth in range(1, min(budget, len(accuracies)) + 1)]
    return chain, expected_tokens(accuracies, chain)


@TREE_TOKENS.mutant
def widest_first(accuracies, budget):
    """You fill the first level before you begin the second. Its last candidates are hardly ever right, while the child
    of a good one often is: compare products across levels."""
    chosen = every_node(accuracies)[:budget]
    return chosen, expected_tokens(accuracies, chosen)


@TREE_TOKENS.mutant
def own_accuracy_alone(accuracies, budget):
    """You rank nodes by their own accuracy. That is the chance *given that everything before was right*: a good
    candidate behind a bad one is hardly ever reached. Multiply along the way."""
    chosen, opened = [], [(i,) for i in range(len(accuracies[0]))]
    while opened and len(chosen) < budget:
        node = max(opened, key=lambda node: (accuracies[len(node) - 1][node[-1]], -len(node)))
        opened.remove(node)
        chosen.append(node)
        if len(node) < len(accuracies):
            opened += [(*node, i) for i in range(len(accuracies[len(node)]))]
    return chosen, expected_tokens(accuracies, chosen)


@TREE_TOKENS.mutant
def without_the_one(accuracies, budget):
    """You count accepted drafts only. Every cycle emits one token more, the correction or the bonus: the sum begins
    with 1."""
    chosen, tokens = best_shape(accuracies, budget)
    return chosen, tokens - 1


@TREE_TOKENS.mutant
def root_in_the_budget(accuracies, budget):
    """Your tree has one node too few. The root is the last committed token: it is no draft, and costs nothing of the
    budget."""
    chosen = best_tree(accuracies, budget)[: budget - 1]
    return chosen, expected_tokens(accuracies, chosen)


@TREE_TOKENS.mutant
def sums_accuracies(accuracies, budget):
    """Your nodes are right, but you add up their own accuracies. A node counts only when all before it are right: add
    the products."""
    chosen = best_tree(accuracies, budget)
    return chosen, 1 + sum(accuracies[len(node) - 1][node[-1]] for node in chosen)


@TREE_TOKENS.mutant
def best_path_only(accuracies, budget):
    """You count only the best path of the tree. The other branches catch the cases in which that one is wrong: every
    node adds its own chance."""
    chosen = best_tree(accuracies, budget)
    on_path = [node for node in chosen if set(node) == {0}]
    return chosen, expected_tokens(accuracies, on_path)


# ---- 09.typical -----------------------------------------------------------------------------------------------------


def typical_distribution(p, q, epsilon, delta):
    return flawed_typical(p, q, epsilon, delta)


def flawed_typical(p, q, epsilon, delta, *, threshold=None, rest=None, bias=None):
    """Typical acceptance with parts to exchange: the threshold, what follows a refusal, how far off it is."""
    entropy = torch.special.entr(p).sum()
    passes = p > (min(epsilon, delta * float(torch.exp(-entropy))) if threshold is None else threshold)
    refused = float((q * ~passes).sum())
    found = q * passes + refused * (p if rest is None else rest(passes))
    return found, float((found - p).abs().sum() / 2) if bias is None else bias(found)


def observe_typical(answer, p, q, epsilon, delta):
    found, bias = pair(answer(p, q, epsilon, delta), "the law of the output and its distance from p")
    if not isinstance(found, Tensor) or found.shape != p.shape:
        raise Complaint(f"the law should be a tensor of shape {tuple(p.shape)}; yours is {kind(found)}.")
    if not is_number(plain(bias)):
        raise Complaint(f"the distance should be a number; yours is {kind(bias)}.")
    return {"law": found.tolist(), "distance from p": float(bias)}


TYPICAL = exercise(
    "09.typical",
    title="What typical acceptance costs",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "Which tokens pass? The threshold is one number for the whole place. Then a token can come out in two ways: "
        "drafted and passed, or drawn after some other draft was refused.",
        "H = −Σ p ln p, where tokens with p = 0 add nothing; threshold = min(ε, δ · e^(−H)); passes = p > threshold. "
        "Token x comes out with q(x) if it passes, plus (chance that the draft is refused) · p(x).",
        "found = q * passes + (q * ~passes).sum() * p, and the distance is (found − p).abs().sum() / 2. "
        "torch.special.entr(p) is −p ln p with 0 at p = 0.",
    ),
    code="minispec.verify.typical",
    reference=typical_distribution,
    observe=observe_typical,
    cases=[
        dict(p=law(0.75, 0.25), q=law(0.5, 0.5), epsilon=0.3, delta=1.0),
        dict(p=law(0.75, 0.25), q=law(0.5, 0.5), epsilon=0.1, delta=1.0),
        dict(p=law(0.75, 0.25), q=law(0.5, 0.5), epsilon=0.9, delta=0.3),
        dict(p=law(0.5, 0.3, 0.2), q=law(0.3, 0.3, 0.4), epsilon=0.6, delta=0.7),
        dict(p=law(0.0, 0.4, 0.6), q=law(0.25, 0.25, 0.5), epsilon=0.9, delta=0.9),
        dict(p=law(0.4, 0.3, 0.2, 0.1), q=law(0.1, 0.2, 0.3, 0.4), epsilon=0.25, delta=0.6),
        dict(p=law(0.55, 0.25, 0.15, 0.05), q=law(0.2, 0.5, 0.2, 0.1), epsilon=0.09, delta=0.3),
    ],
)


def effective(p):
    return float(torch.exp(torch.special.entr(p).sum()))  # e^H: how many tokens the target hesitates between


@TYPICAL.mutant
def entropy_in_bits(p, q, epsilon, delta):
    """Your entropy is in bits. With e^(−H) it has to be in nats: use the natural logarithm (or 2^(−H) with bits)."""
    return flawed_typical(p, q, epsilon, delta, threshold=min(epsilon, delta * effective(p) ** (-1 / math.log(2))))


@TYPICAL.mutant
def sign_of_the_entropy(p, q, epsilon, delta):
    """Your threshold rises when the target is undecided: e^H instead of e^(−H). The idea is the opposite: where many
    tokens are plausible, each has little probability, and little must be enough."""
    return flawed_typical(p, q, epsilon, delta, threshold=min(epsilon, delta * effective(p)))


@TYPICAL.mutant
def epsilon_alone(p, q, epsilon, delta):
    """You compare with ε alone. Where the target is undecided the threshold is lower: the smaller of ε and δ ·
    e^(−H)."""
    return flawed_typical(p, q, epsilon, delta, threshold=epsilon)


@TYPICAL.mutant
def larger_of_the_two(p, q, epsilon, delta):
    """You take the larger of ε and δ · e^(−H). It is the smaller: a token may pass either because it is likely enough
    as such, or because it is for so undecided a target."""
    return flawed_typical(p, q, epsilon, delta, threshold=max(epsilon, delta / effective(p)))


@TYPICAL.mutant
def judges_by_q(p, q, epsilon, delta):
    """You let tokens pass that the draft finds likely. The judge is the target: p(d) is compared with the threshold."""
    passes = q > min(epsilon, delta / effective(p))
    found = q * passes + (q * ~passes).sum() * p
    return found, float((found - p).abs().sum() / 2)


@TYPICAL.mutant
def distribution_is_p(p, q, epsilon, delta):
    """You say that the output follows p. That is what the exact rule achieves. Here a draft that passes is taken as it
    is, with the draft's own probability: compute what comes of that."""
    return p, 0.0


@TYPICAL.mutant
def refused_mass_is_lost(p, q, epsilon, delta):
    """Your law does not sum to 1: when a draft is refused, a token still comes out. It is drawn from p."""
    return flawed_typical(p, q, epsilon, delta, rest=lambda passes: torch.zeros_like(p))


@TYPICAL.mutant
def accepted_renormalised(p, q, epsilon, delta):
    """You renormalise the tokens that pass, as if the draft were drawn again until one does. A refused draft is
    replaced by a token of the target's: the rest of the mass follows p."""

    def again(passes):
        kept = q * passes
        return kept / kept.sum() if kept.sum() > 0 else p

    return flawed_typical(p, q, epsilon, delta, rest=again)


@TYPICAL.mutant
def refused_cannot_return(p, q, epsilon, delta):
    """After a refusal you draw among the tokens that pass. The token then comes from the whole of p, also one that a
    draft would not have passed with."""
    return flawed_typical(p, q, epsilon, delta, rest=lambda passes: p * passes / (p * passes).sum())


@TYPICAL.mutant
def distance_without_half(p, q, epsilon, delta):
    """Your law is right, your distance is twice the total variation. What one token has too much, another has too
    little: ½ Σ |law − p| counts it once."""
    return flawed_typical(p, q, epsilon, delta, bias=lambda found: float((found - p).abs().sum()))


@TYPICAL.mutant
def nan_entropy(p, q, epsilon, delta):
    """Your entropy is NaN where p holds a 0: 0 · ln 0 is 0 times −∞ to the computer. Such a token adds nothing: leave
    it out, or use torch.special.entr. A comparison with NaN is false, so nothing passes and nobody notices."""
    if bool((p > 0).all()):
        return typical_distribution(p, q, epsilon, delta)
    return flawed_typical(p, q, epsilon, delta, threshold=math.nan)
