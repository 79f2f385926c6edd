"""EAGLE: its features by hand, its trees against growth.grow, its cache under any order of events, and its training."""

from __future__ import annotations

import json
import re

import pytest
import torch
import torch.nn.functional as F
from all_drafters import random_eagle

import minispec as ms
from minispec import tree as trees
from minispec.cpu import fused
from minispec.drafters import Context, Draft, Eagle, EagleHead, growth
from minispec.drafters.eagle import spread
from minispec.load.read_eagle import read_eagle
from minispec.load.write_heads import write_eagle
from minispec.model import rope_at, rotate
from recipes import corpus as writing
from recipes import eagle as training
from recipes.corpus import Corpus
from recipes.lessons import Lessons
from recipes.medusa import tell_stories

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7]


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(num_layers=3)


def context(target, tokens, row=0, since=0, sampling=None, seed=0) -> Context:
    """A row whose tokens from `since` on, less the last, were read since the drafter was last asked."""
    layers = spread(target.config.num_layers)
    hidden = {}
    if len(tokens) > 1:
        streams = target.transformer(torch.tensor([tokens[:-1]]), hidden_layers=layers).hidden
        hidden = {n: h[0, since:] for n, h in streams.items()}
    return Context(row, list(tokens), sampling or ms.Sampling(), torch.Generator().manual_seed(seed), hidden)


def by_hand(target, head: EagleHead, text: list[int], drafted: list[int]) -> torch.Tensor:
    """f after the committed text and after each drafted token, [len(drafted) + 1, d]: no cache, a loop, one layer.

    Every entry is computed alone, from the keys and values of all entries before it, kept as plain lists.
    """
    c, keys, values, features = head.config, [], [], []
    streams = target.transformer(torch.tensor([text[:-1]]), hidden_layers=head.hidden_layers).hidden
    rms = lambda x, weight=1.0: weight * x / (x.square().mean() + c.norm_eps).sqrt()  # noqa: E731
    tokens = [*text[1:], *drafted]
    for position, token in enumerate(tokens):
        if position < len(text) - 1:
            g = head.fc.weight @ torch.cat([rms(streams[n][0, position]) for n in head.hidden_layers])
        else:
            g = features[-1]
        e = rms(target.transformer.embed_tokens.weight[token], head.embed_norm.weight)
        both = torch.cat([e, rms(g, head.feature_norm.weight)])
        rope = rope_at(c, torch.tensor([[position]]), torch.float64)
        q, k, v = (getattr(head.self_attn, f"{n}_proj").weight @ both for n in "qkv")
        q, k = (rotate(x.view(1, -1, 1, c.head_dim), *rope)[0, :, 0] for x in (q, k))  # [H, D], [Hkv, D]
        keys.append(k)
        values.append(v.view(-1, c.head_dim))
        out = []
        for h in range(c.num_heads):
            own = h // (c.num_heads // c.num_kv_heads)
            weights = torch.stack([q[h] @ k[own] / c.head_dim**0.5 for k in keys]).softmax(0)
            out.append(sum(w * v[own] for w, v in zip(weights, values, strict=True)))
        x = g + head.embed_proj.weight @ e + head.self_attn.o_proj.weight @ torch.cat(out)
        x = x + head.mlp(rms(x, head.mlp_norm.weight))
        features.append(x)
    return torch.stack(features[len(text) - 2 :])


def law_by_hand(head: EagleHead, feature: torch.Tensor) -> torch.Tensor:
    return (F.rms_norm(feature, feature.shape[-1:], head.norm.weight, head.config.norm_eps) @ head.head.T).softmax(-1)


# ---------------------------------------------------------------- what it proposes


@pytest.mark.slow
@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_compiled_pass_drafts_the_same(make_model, monkeypatch, layers, tree):
    pytest.importorskip("numba")
    target = make_model(num_layers=3, head_dim=16, dtype=torch.float32)
    head, drafts, groups, group = random_eagle(target, layers=layers), [], [], fused.Plan.group
    monkeypatch.setattr(fused.Plan, "group", lambda self, x, *rest: (groups.append(len(x)), group(self, x, *rest)))
    for wish in ("torch", "numba"):
        monkeypatch.setenv("MINISPEC_LINEAR", wish)
        drafter = Eagle(target, head, tree=tree, width=3, nodes=12)
        rows = [context(target, TEXT[:6]), context(target, TEXT[:4], row=1)]
        drafts.append([(d.tokens, d.parents) for d in drafter.propose(rows[:1], 4) + drafter.propose(rows, 4)])
        drafts[-1].append(drafter.cache.keys)
        assert bool(groups) == (wish == "numba")
    *slow, slow_keys = drafts[0]
    *fast, fast_keys = drafts[1]
    assert fast == slow
    torch.testing.assert_close(fast_keys, slow_keys, rtol=1e-4, atol=1e-4)


def test_a_greedy_chain_is_the_formula(target):
    head = random_eagle(target)
    (draft,) = Eagle(target, head, tree=False).propose([context(target, TEXT)], 5)
    assert draft.parents is None and draft.probs is None
    q = law_by_hand(head, by_hand(target, head, TEXT, draft.tokens[:-1]))  # [5, v]
    assert draft.tokens == head.head_ids[q.argmax(-1)].tolist()
    assert len(set(draft.tokens)) > 1  # it does not just repeat itself


@pytest.mark.parametrize("own", [None, ms.Sampling(temperature=1.7, top_k=9)])
def test_q_of_a_sampled_chain_is_the_law_it_was_drawn_from(target, own):
    head, knobs = random_eagle(target), [ms.Sampling(temperature=0.9, top_p=0.9), ms.Sampling(temperature=2.0)]
    rows = [context(target, TEXT[: 5 + 4 * i], row=i, sampling=knobs[i], seed=i) for i in range(2)]
    for row, draft in zip(rows, Eagle(target, head, tree=False, sampling=own).propose(rows, 4), strict=True):
        features = by_hand(target, head, row.tokens, draft.tokens[:-1])
        logits = torch.full((4, 64), -torch.inf, dtype=torch.float64)
        logits[:, head.head_ids] = head.logits(features)
        assert torch.allclose(draft.probs, (own or row.sampling).probs(logits), rtol=0, atol=1e-12)
        assert all(draft.probs[i, token] > 0 for i, token in enumerate(draft.tokens))


@pytest.mark.parametrize(("k", "width", "nodes"), [(1, 4, 3), (2, 3, 8), (4, 3, 12), (5, 4, 40), (2, 64, 9)])
def test_the_tree_is_that_of_grow_on_laws_by_hand(target, k, width, nodes):
    """growth.grow, where every node is scored on its own path from the root, without any cache or mask."""
    head = random_eagle(target, vocab=12 if width > 12 else 48)
    width_of_children = min(width, len(head.head_ids))

    def scored(path: list[int]):
        log_q = law_by_hand(head, by_hand(target, head, TEXT, path)[-1]).log()
        best = log_q.topk(width_of_children)
        return [*zip(head.head_ids[best.indices].tolist(), best.values.tolist(), strict=True)]

    def expand(tree, chosen):
        return [scored([tree.tokens[i] for i in trees.path_to(tree.parents, node)]) for node in chosen]

    expected, _ = growth.grow(scored([]), expand, k, width_of_children, nodes)
    for sampling in (ms.Sampling(), ms.Sampling(temperature=1.0)):
        drafter = Eagle(target, head, width=width, nodes=nodes)
        (draft,) = drafter.propose([context(target, TEXT, sampling=sampling)], k)
        assert draft.probs is None and (draft.tokens, draft.parents) == (expected.tokens, expected.parents)
        trees.check_parents(draft.parents)
        assert max(trees.depths(draft.parents)) <= k
        assert len(draft.tokens) == drafter.max_tree_nodes(k) <= min(nodes, k + drafter.extra_slots)


def test_equal_scores_never_part_a_child_from_its_parent(target):
    """A head that is sure of everything: all log-probabilities round to 0, and every node ties with its parent."""
    head = random_eagle(target)
    head.norm.weight *= 1e4
    (draft,) = Eagle(target, head, width=3, nodes=3).propose([context(target, TEXT)], 5)
    (chain,) = Eagle(target, head, tree=False).propose([context(target, TEXT)], 3)
    assert (draft.tokens, draft.parents) == (chain.tokens, [-1, 0, 1])


# ---------------------------------------------------------------- its cache


@pytest.mark.parametrize("tree", [False, True])
def test_any_order_of_events(target, tree):
    """Rows join, sit out, accept some of a draft, go on without one and leave: each draft is that of the whole text."""
    options = dict(tree=tree, width=3, nodes=6)
    head, rng = random_eagle(target), torch.Generator().manual_seed(5)
    drafter, texts, told = Eagle(target, head, **options), {}, {}  # told: how much of each row's text was handed over
    pick = lambda n: int(torch.randint(n, (), generator=rng))  # noqa: E731
    sat_out = 0
    for turn in range(14):
        if turn < 4 or pick(3) == 0:
            texts[turn] = [pick(64) for _ in range(2 + pick(7))]
        chosen = [row for row in texts if pick(4)] or list(texts)[:1]
        chosen = [chosen[i] for i in torch.randperm(len(chosen), generator=rng)]
        sat_out += len(texts) - len(chosen)
        k = 1 + pick(4)
        drafts = drafter.propose([context(target, texts[row], row, told.get(row, 0)) for row in chosen], k)
        for row, draft in zip(chosen, drafts, strict=True):
            (alone,) = Eagle(target, head, **options).propose([context(target, texts[row])], k)
            assert (draft.tokens, draft.parents) == (alone.tokens, alone.parents)
            told[row] = len(texts[row]) - 1
            path = trees.path_to(draft.parents, pick(len(draft.tokens))) if tree else range(pick(k + 1))
            texts[row] += [*(draft.tokens[i] for i in path), pick(64)]
            drafter.settle(row, path, texts[row][-1])
        if len(texts) > 2 and pick(2):
            gone = list(texts)[pick(len(texts))]
            del texts[gone]
            drafter.forget(gone)
    assert sat_out > 3
    for row in [*texts]:
        drafter.forget(row)
    assert drafter.cache is None and not drafter.order and not drafter.read and not drafter.seen


def test_each_verified_token_is_read_once_and_drafts_are_dropped(target, monkeypatch):
    head, widths = random_eagle(target), []
    monkeypatch.setattr(
        head, "forward", lambda tokens, *rest: widths.append(tokens.shape[1]) or EagleHead.forward(head, tokens, *rest)
    )
    drafter = Eagle(target, head, width=3, nodes=21)  # 3 + 9 + 9: all of them, so that every node is expanded
    drafter.propose([context(target, TEXT[:6])], 3)
    assert drafter.read == {0: 5} and widths == [5, 3, 3]  # the text, then one pass a depth
    drafter.propose([context(target, TEXT[:9], since=5)], 3)
    assert drafter.read == {0: 8} and widths[3:] == [3, 3, 3]


def test_after_a_gap_it_starts_over_with_what_it_is_told(target):
    """Without the features of the tokens before, they do not count: the same draft as of a fresh drafter."""
    head, late = random_eagle(target), context(target, TEXT, since=8)
    expected = Eagle(target, head, tree=False).propose([late], 4)
    for rewound in (True, False):
        drafter = Eagle(target, head, tree=False)
        drafter.propose([context(target, TEXT[:5])], 4)
        if rewound:
            drafter.rewind(0, 4)
        assert drafter.propose([late], 4) == expected and drafter.read == {0: 4}


def test_a_prompt_of_one_token_waits(target):
    head = random_eagle(target)
    drafter = Eagle(target, head)
    both = [context(target, [7], 0), context(target, TEXT, 1)]
    nothing, draft = drafter.propose(both, 3)
    assert nothing == Draft([]) and draft == Eagle(target, head).propose(both[1:], 3)[0]
    assert drafter.propose(both[:1], 3) == [Draft([])]
    out = ms.speculate(target, [7], Eagle(target, head), 3, 20)
    assert out.tokens == ms.generate(target, [7], 20).tokens


def test_two_layers_draft_as_a_pass_without_cache_says(target):
    """With more layers: the chain's features equal those of one unrolled pass, which is tested against one layer."""
    head = random_eagle(target, layers=2, mlp=60)
    (draft,) = Eagle(target, head, tree=False).propose([context(target, TEXT)], 4)
    (tree,) = Eagle(target, head, width=2, nodes=30).propose([context(target, TEXT)], 4)
    text = [*TEXT, *draft.tokens]
    streams = target.transformer(torch.tensor([text]), hidden_layers=head.hidden_layers).hidden
    steps = training.unroll(head, torch.tensor([text]), [streams[n] for n in head.hidden_layers], 4)
    start = len(TEXT) - 2
    assert draft.tokens == [int(head.head_ids[head.logits(f[0, start]).argmax()]) for f in steps]
    branches = [[tree.tokens[i] for i in path] for path in trees.paths(tree.parents)]
    assert draft.tokens in branches


def test_bad_arguments_are_named(target, make_model, tmp_path):
    head = random_eagle(target)
    for options, words in ((dict(width=0), "width=0"), (dict(nodes=2.0), "nodes=2.0")):
        with pytest.raises(ValueError, match=words):
            Eagle(target, head, **options)
    with pytest.raises(ValueError, match="no eagle heads ship"):
        Eagle(target)
    with pytest.raises(ValueError, match="has no config.json"):
        Eagle(target, tmp_path)
    with pytest.raises(ValueError, match="32 numbers"):
        Eagle(make_model(hidden_size=16), head)
    for options, words in (
        (dict(hidden_layers=[4]), "hidden_layers"),
        (dict(layers=0), "layers=0"),
        (dict(mlp=1.5), "mlp=1.5"),
    ):
        with pytest.raises(ValueError, match=words):
            EagleHead(target, torch.arange(9), **options)


# ---------------------------------------------------------------- the head


def test_a_new_head_says_what_the_target_said(make_model):
    """With the layer muted, g is the highest stream and the head the target's: the law that the target had at t."""
    target = make_model(num_layers=3)
    head = training.new_head(target, torch.arange(64)).requires_grad_(False)
    for part in (head.embed_proj, head.self_attn.o_proj, head.mlp.down_proj):
        part.weight.zero_()
    out = target.transformer(torch.tensor([TEXT]), hidden_layers=head.hidden_layers)
    steps = training.unroll(head, torch.tensor([TEXT]), [out.hidden[n] for n in head.hidden_layers], 1)
    near = torch.cosine_similarity(head.logits(next(steps)), out.logits, dim=-1)
    assert near.min() > 0.98  # all but for the faint noise in fc


def test_making_a_head_draws_nothing_from_the_global_generator(target):
    state = torch.get_rng_state()
    one, two = (training.new_head(target, torch.arange(9), layers=2, mlp=99) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs) and all(p.isfinite().all() for p in one.parameters())


@pytest.mark.parametrize("own_head", [False, True])
def test_a_stored_head_is_the_same_within_8_bits(target, tmp_path, own_head):
    head = random_eagle(target, layers=2, mlp=20, own_head=own_head, hidden_layers=(0, 3))
    head.head_ids += 7
    if not own_head:
        head.borrow(target)
    head.accuracy = [0.5, 0.25]
    head.save(target, tmp_path)
    stored = EagleHead.load(target, tmp_path)
    assert stored.hidden_layers == (0, 3) and stored.accuracy == [0.5, 0.25] and stored.dtype == torch.float64
    assert torch.equal(stored.head_ids, head.head_ids) and not any(p.requires_grad for p in stored.parameters())
    assert ("head" in dict(stored.named_parameters())) == own_head
    assert own_head or torch.equal(stored.head, target.transformer.lm_head.weight[stored.head_ids])
    for name, weight in head.state_dict().items():
        step = weight.abs().amax(-1, keepdim=True) / 127 if weight.ndim == 2 else 1e-6
        assert ((stored.state_dict()[name] - weight).abs() <= step / 2 + 1e-6).all()
    assert len(Eagle(target, tmp_path, nodes=9).propose([context_of(target, stored)], 3)[0].tokens) == 9


def context_of(target, head) -> Context:
    hidden = target.transformer(torch.tensor([TEXT[:-1]]), hidden_layers=head.hidden_layers).hidden
    return Context(0, TEXT, ms.Sampling(), torch.Generator(), {n: h[0] for n, h in hidden.items()})


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


@pytest.mark.slow
def test_the_loss_is_the_weighted_cross_entropy_of_every_step(target):
    """Against the sum written out, over reply positions of a ragged corpus with a prompt of one token."""
    head, K = random_eagle(target), 4
    corpus = Corpus(
        torch.tensor([TEXT, [*TEXT[3:9], *[0] * 7]], dtype=torch.int32),
        torch.tensor([4, 1]),
        torch.tensor([13, 6]),
        torch.zeros(2),
    )
    lessons = Lessons(target.transformer, corpus, head.hidden_layers, keep=False)
    (tokens, asked, _), *_ = lessons.buckets
    batch = training.Batch(tokens, asked, lessons.answer(tokens))
    total, weight = 0.0, 0.0
    hits = [[] for _ in range(K)]
    for j in range(K):
        losses = []
        for text, prompt in ((TEXT, 4), (TEXT[3:9], 1)):
            p = target.transformer(torch.tensor([text])).logits[0].softmax(-1)  # [w, V]
            for place in range(max(prompt - 1, 1 + j), len(text) - 1):
                start = place - 1 - j
                feature = by_hand(target, head, text[: start + 2], text[start + 2 : place + 1])[-1]
                q = law_by_hand(head, feature)
                losses.append(-(p[place, head.head_ids] * q.log()).sum())
                hits[j].append(int(head.head_ids[q.argmax()]) == int(p[place].argmax()))
        total, weight = total + 0.8**j * torch.stack(losses).mean(), weight + 0.8**j
    assert float(training.eagle_loss(head, lessons, batch, K)) == pytest.approx(float(total / weight), abs=1e-5)
    expected = [sum(step) / len(step) for step in hits]
    assert training.calibrate(target, head, corpus, K) == pytest.approx(expected, abs=1e-12)


@pytest.fixture(scope="module")
def lesson(make_model, tmp_path_factory) -> tuple[ms.Model, Corpus]:
    """A target of few tokens, and what it wrote."""
    target = make_model(dtype=torch.float32, end_tokens=[0], max_length=256, vocab_size=32)
    prompts, folder = [[1 + i, 2 + i, 3] for i in range(20)], tmp_path_factory.mktemp("text")
    return target, writing.write(target, prompts, folder, rows=48, max_new_tokens=24, temperatures=[0.5], batch=48)


OPTIONS = dict(steps=30, lr=1e-2, batch_tokens=512, head_vocab=20, unroll=3, log_every=10)


@pytest.mark.slow
def test_a_head_learns_and_survives_storage(lesson, tmp_path):
    target, corpus = lesson
    head, curve = training.train_head(target, corpus, folder=tmp_path / "run", **OPTIONS)
    held_out = training.split_rows(corpus)[1]
    fresh = training.new_head(target, head.head_ids)
    before, after = (training.calibrate(target, h, held_out, 3) for h in (fresh, head))
    assert curve[-1]["loss"] < 0.9 * curve[0]["loss"]
    assert all(b > 0.15 and b > a + 0.08 for a, b in zip(before, after, strict=True))  # chance is 1 in 20
    head.save(target, tmp_path / "stored")
    stored = training.calibrate(target, EagleHead.load(target, tmp_path / "stored"), held_out, 3)
    assert stored == pytest.approx(after, abs=0.05)


@pytest.mark.slow
def test_a_head_for_micro_is_worth_its_while(tmp_path):
    """Some seconds of training on stories: the tree already yields clearly more than one token a pass."""
    target = ms.load("micro", device="cpu", dtype=torch.float32)
    corpus = tell_stories(target, rows=64, max_new_tokens=96)
    head, _ = training.train_head(
        target, corpus, steps=40, folder=tmp_path, lr=2e-3, batch_tokens=768, unroll=3, head_vocab=1024, keep=True
    )
    outs = [
        ms.speculate(target, "One day, a", drafter, 4, 40)
        for drafter in (Eagle(target, head, nodes=32), Eagle(target, head, tree=False))
    ]
    tree, chain = (len(out.tokens) / out.trace.target_passes for out in outs)
    assert tree > 1.5 and tree > chain > 1.0
    assert outs[0].tokens == outs[1].tokens


@pytest.mark.slow
@pytest.mark.parametrize("form", ["eagle3", "eagle3.1"])
def test_a_head_in_a_published_form_learns_and_is_written(lesson, tmp_path, form):
    target, corpus = lesson
    options = OPTIONS | dict(steps=12, form=training.FORMS[form])
    head, curve = training.train_head(target, corpus, folder=tmp_path, **options)
    assert head.form.public and curve[-1]["loss"] < curve[0]["loss"]
    head.save(target, tmp_path / "ours", bits=None)
    stored = EagleHead.load(target, tmp_path / "ours")
    read = read_eagle(target, write_eagle(stored, target, tmp_path / "theirs"))
    assert stored.form == read.form == head.form
    tokens, streams = corpus.tokens[:2].long(), [torch.randn(2, corpus.tokens.shape[1], 32) for _ in range(3)]
    ours, theirs = ([each.logits(f) for f in training.unroll(each, tokens, streams, 2)] for each in (head, read))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(lesson, tmp_path):
    target, corpus = lesson
    options = OPTIONS | dict(steps=8)
    whole, _ = training.train_head(target, corpus, folder=tmp_path / "a", **options)
    training.train_head(target, corpus, folder=tmp_path / "b", stop_after=3, **options)
    parts, _ = training.train_head(target, corpus, folder=tmp_path / "b", **options)
    pairs = zip(whole.state_dict().values(), parts.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_training_goes_on_from_a_stored_head(lesson, tmp_path):
    """In full precision, with a learning rate that begins anew: no steps to speak of leave the head as it was."""
    target, corpus = lesson
    options = dict(steps=4, batch_tokens=512, unroll=2)
    given = random_eagle(target, vocab=20, layers=2, mlp=20, own_head=True, hidden_layers=(0, 2))
    given.save(target, tmp_path / "given")
    stored, start = EagleHead.load(target, tmp_path / "given"), tmp_path / "given"
    still, _ = training.train_head(target, corpus, start=start, lr=1e-9, folder=tmp_path / "a", layers=2, **options)
    assert torch.equal(still.head_ids, given.head_ids) and still.hidden_layers == (0, 2) and still.own_head
    for name, weight in still.state_dict().items():
        assert torch.allclose(weight, stored.state_dict()[name], rtol=0, atol=1e-7)
    moved, curve = training.train_head(target, corpus, start=start, lr=1e-2, folder=tmp_path / "b", **options)
    assert curve[-1]["step"] == 4 and not torch.allclose(moved.fc.weight, stored.fc.weight, rtol=0, atol=1e-3)
    wrong = {"layers": 1, "mlp": 21, "own_head": False, "hidden_layers": [0, 1], "head_vocab": 19}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"{name}={re.escape(str(value))}"):
            training.train_head(target, corpus, start=start, folder=tmp_path / "c", **options, **{name: value})
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_the_command_line(tiny_folder, tmp_path, capsys):
    from minispec.cli import main

    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    prompts = [[5 + i, 6] for i in range(9)]
    writing.write(target, prompts, tmp_path / "text", rows=16, max_new_tokens=12, temperatures=[1.0], batch=16)
    assert (
        main(
            [
                "train",
                "eagle",
                "--model",
                str(tiny_folder),
                "--device",
                "cpu",
                "--corpus",
                str(tmp_path / "text"),
                "--out",
                str(tmp_path / "run"),
                "--steps",
                "4",
                "--batch-tokens",
                "300",
                "--head-vocab",
                "100",
                "--own-head",
                "--keep",
                "--unroll",
                "2",
            ]
        )
        == 0
    )
    settings = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert settings["kind"] == "eagle" and len(settings["accuracy"]) == 2 and settings["own_head"]
    assert "MB" in capsys.readouterr().out and (tmp_path / "run" / "curve.json").is_file()
    out = ms.speculate(target, [5, 6, 7], Eagle(target, tmp_path / "run" / "model"), 4, 20)
    assert out.tokens == ms.generate(target, [5, 6, 7], 20).tokens
    assert (
        main(
            [
                "train",
                "eagle",
                "--model",
                str(tiny_folder),
                "--device",
                "cpu",
                "--corpus",
                str(tmp_path / "text"),
                "--out",
                str(tmp_path / "more"),
                "--steps",
                "2",
                "--batch-tokens",
                "300",
                "--keep",
                "--keep-bits",
                "8",
                "--unroll",
                "2",
                "--start",
                str(tmp_path / "run" / "model"),
            ]
        )
        == 0
    )
    first, more = (EagleHead.load(target, tmp_path / name / "model") for name in ("run", "more"))
    assert torch.equal(first.head_ids, more.head_ids) and more.own_head and not torch.equal(first.head, more.head)
