"""EAGLE: its features by hand, its trees against growth.grow, its cache and its training."""

import pytest
import torch
from all_drafters import random_eagle, random_mtp
from by_hand import Attention, of_module, rms, sequence

import minispec as ms
from minispec import tree as trees
from minispec.cpu import fused
from minispec.drafters import Eagle, EagleHead, growth
from minispec.drafters.eagle import Form
from minispec.sequence import Sequence
from minispec_tools.train import eagle as training

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7]


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(num_layers=3)


def context(target, tokens, layers=None, **options) -> Sequence:
    depth = target.config.num_layers
    return sequence(tokens, target, layers or (depth // 3, 2 * depth // 3, depth), **options)


def by_hand(target, head: EagleHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """f after the committed text and after each drafted token, [len(drafted) + 1, d]."""
    form, attend, features = head.form, Attention(head.config, of_module(head.self_attn)), []
    norm = lambda x, module: rms(x, 1.0 if module is None else module.weight, head.config.norm_eps)  # noqa: E731
    streams = target.transformer(torch.tensor([text[:-1]]), hidden_layers=head.hidden_layers).hidden
    for position, token in enumerate([*text[1:], *drafted]):
        if position < len(text) - 1:
            given = [streams[n][0, position] for n in head.hidden_layers]
            if form.stream_norm in ("plain", "each"):
                given = [norm(h, head.stream_norms and head.stream_norms[i]) for i, h in enumerate(given)]
            given = torch.cat(given)
            g = head.fc.weight @ (norm(given, head.stream_norms) if form.stream_norm == "joint" else given)
        else:
            g = norm(features[-1], head.norm) if form.norm_output else features[-1]
        e, normed = norm(target.transformer.embed_tokens.weight[token], head.embed_norm), norm(g, head.feature_norm)
        x = (normed if form.norm_before_residual else g) + attend(torch.cat([e, normed]))
        x = x + head.embed_proj.weight @ e if form.embed_proj else x
        features.append(x + head.mlp(norm(x, head.mlp_norm)))
    return torch.stack(features[len(text) - 2 :])


def distribution_by_hand(head: EagleHead, feature: torch.Tensor) -> torch.Tensor:
    return (rms(feature, head.norm.weight, head.config.norm_eps) @ head.head.T).softmax(-1)


# ---------------------------------------------------------------- what it proposes


@pytest.mark.slow
def test_the_compiled_pass_drafts_the_same(make_model, monkeypatch):
    """cpu/fused.py runs all layers of every kind of head by one call."""
    pytest.importorskip("numba")
    target = make_model(num_layers=3, head_dim=16, dtype=torch.float32)
    heads = {"one layer": random_eagle(target), "two layers": random_eagle(target, layers=2), "MTP": random_mtp(target)}
    groups, group = [], fused.Plan.group
    monkeypatch.setattr(fused.Plan, "group", lambda self, x, *rest: (groups.append(len(x)), group(self, x, *rest)))
    for (name, head), tree in ((item, tree) for item in heads.items() for tree in (True, False)):
        drafts, keys = [], []
        for wish in ("torch", "numba"):
            monkeypatch.setenv("MINISPEC_LINEAR", wish)
            groups.clear()
            drafter = Eagle(target, head, tree=tree, width=3, nodes=12)
            both = [context(target, TEXT[:6], layers=head.hidden_layers)]
            both += [context(target, TEXT[:4], id=1, layers=head.hidden_layers)]
            drafts.append([(d.tokens, d.parents) for d in drafter.propose(both[:1], 4) + drafter.propose(both, 4)])
            keys.append(drafter.memory.cache.keys)
            assert bool(groups) == (wish == "numba"), name
        assert drafts[0] == drafts[1], name
        torch.testing.assert_close(*keys, rtol=1e-4, atol=1e-4)


def test_a_greedy_chain_is_the_formula(target):
    head = random_eagle(target)
    (draft,) = Eagle(target, head, tree=False).propose([context(target, TEXT)], 5)
    assert draft.parents is None and draft.probs is None
    q = distribution_by_hand(head, by_hand(target, head, TEXT, draft.tokens[:-1]))  # [5, v]
    assert draft.tokens == head.head_ids[q.argmax(-1)].tolist()
    assert len(set(draft.tokens)) > 1  # it does not just repeat itself


FORMS = [
    Form(),
    Form.eagle3(),
    Form.eagle3(stream_norm="each", norm_output=True),  # EAGLE-3.1
    Form.eagle3(stream_norm="joint", norm_before_residual=True),  # speculators
]


@pytest.mark.parametrize("own", [None, ms.Sampling(temperature=1.7, top_k=9)])
def test_q_of_a_sampled_chain_is_what_it_was_sampled_from(target, own):
    knobs = [ms.Sampling(temperature=0.9, top_p=0.9), ms.Sampling(temperature=2.0)]
    for head in (random_eagle(target, form=form) for form in FORMS):
        rows = [context(target, TEXT[: 5 + 4 * i], id=i, sampling=knobs[i], seed=i) for i in range(2)]
        for row, draft in zip(rows, Eagle(target, head, tree=False, sampling=own).propose(rows, 4), strict=True):
            logits = torch.full((4, 64), -torch.inf, dtype=torch.float64)
            logits[:, head.head_ids] = distribution_by_hand(
                head, by_hand(target, head, row.tokens, draft.tokens[:-1])
            ).log()
            assert torch.allclose(draft.probs, (own or row.sampling).probs(logits), rtol=0, atol=1e-12), head.form
            assert all(draft.probs[i, token] > 0 for i, token in enumerate(draft.tokens))


@pytest.mark.parametrize(("k", "width", "nodes"), [(1, 4, 3), (2, 3, 8), (4, 3, 12), (5, 4, 40), (2, 64, 9)])
def test_the_tree_is_that_of_grow_on_distributions_by_hand(target, k, width, nodes):
    """growth.grow, where every node is scored on its own path from the root, without any cache or mask."""
    head = random_eagle(target, vocab=12 if width > 12 else 48)
    width_of_children = min(width, len(head.head_ids))

    def scored(path: list[int]):
        log_q = distribution_by_hand(head, by_hand(target, head, TEXT, path)[-1]).log()
        best = log_q.topk(width_of_children)
        return [*zip(head.head_ids[best.indices].tolist(), best.values.tolist(), strict=True)]

    def expand(tree, chosen):
        return [scored([tree.tokens[i] for i in trees.path_to(tree.parents, node)]) for node in chosen]

    expected = growth.grow(scored([]), expand, k, width_of_children, nodes)
    for sampling in (ms.Sampling(), ms.Sampling(temperature=1.0)):
        drafter = Eagle(target, head, width=width, nodes=nodes)
        (draft,) = drafter.propose([context(target, TEXT, sampling=sampling)], k)
        assert draft.probs is None and (draft.tokens, draft.parents) == (expected.tokens, expected.parents)
        trees.check_parents(draft.parents)
        assert max(trees.depths(draft.parents)) <= k
        assert len(draft.tokens) == drafter.max_tree_nodes(k) <= nodes


def test_equal_scores_never_part_a_child_from_its_parent(target):
    """A head that is sure of everything: all log-probabilities round to 0, and every node ties with its parent."""
    head = random_eagle(target)
    head.norm.weight *= 1e4
    (draft,) = Eagle(target, head, width=3, nodes=3).propose([context(target, TEXT)], 5)
    (chain,) = Eagle(target, head, tree=False).propose([context(target, TEXT)], 3)
    assert (draft.tokens, draft.parents) == (chain.tokens, [-1, 0, 1])


# ---------------------------------------------------------------- its cache


def test_each_verified_token_is_read_once_and_drafts_are_dropped(target, monkeypatch):
    head, widths = random_eagle(target), []
    monkeypatch.setattr(
        head, "forward", lambda tokens, *rest: widths.append(tokens.shape[1]) or EagleHead.forward(head, tokens, *rest)
    )
    drafter = Eagle(target, head, width=3, nodes=21)  # 3 + 9 + 9: all of them, so that every node is expanded
    drafter.propose([context(target, TEXT[:6])], 3)
    assert drafter.memory.lengths == {0: 5} and widths == [5, 3, 3]  # the text, then one pass a depth
    drafter.propose([context(target, TEXT[:9], since=5)], 3)
    assert drafter.memory.lengths == {0: 8} and widths[3:] == [3, 3, 3]


def test_after_a_gap_it_starts_over_with_what_it_is_told(target):
    """Without the features of the tokens before, they do not count: the same draft as of a fresh drafter."""
    head, late = random_eagle(target), context(target, TEXT, since=8)
    expected = Eagle(target, head, tree=False).propose([late], 4)
    for rewound in (True, False):
        drafter = Eagle(target, head, tree=False)
        drafter.propose([context(target, TEXT[:5])], 4)
        if rewound:
            drafter.rewind(0, 4)
        assert drafter.propose([late], 4) == expected and drafter.memory.lengths == {0: 4}


# ---------------------------------------------------------------- training


def teacher_force(monkeypatch, head: EagleHead, tokens: list[int]) -> list[torch.Tensor]:
    """Make the head say these tokens one after the other, whatever it computes; its features end up in the list."""
    features, said = [], iter([*tokens, 0])

    def logits(feature):
        features.append(feature[0])
        return (head.head_ids == next(said)).double()[None]

    monkeypatch.setattr(head, "logits", logits)
    return features


@pytest.mark.parametrize("layers", [1, 2])
def test_unrolled_training_is_what_the_drafter_computes(target, layers, monkeypatch):
    """THE test: from every position of two rows, five steps of a chain forced along the true text."""
    head = random_eagle(target, layers=layers)
    rows, K = torch.tensor([TEXT, [*TEXT[::-1][:-2], 11, 12]]), 5
    streams = target.transformer(rows, hidden_layers=head.hidden_layers).hidden
    unrolled = list(training.unroll(head, rows, [streams[n] for n in head.hidden_layers], K))  # K of [2, w, d]
    for row, text in enumerate(rows.tolist()):
        for start in range(len(text) - 2):  # the draft begins after token start + 1
            depth = min(K, len(text) - 1 - start)
            features = teacher_force(monkeypatch, head, text[start + 2 :])
            (draft,) = Eagle(target, head, tree=False).propose([context(target, text[: start + 2])], depth)
            assert draft.tokens[:-1] == text[start + 2 : start + 1 + depth]
            assert len(features) == depth
            for j, feature in enumerate(features):
                assert torch.allclose(feature, unrolled[j][row, start], rtol=0, atol=1e-11)
