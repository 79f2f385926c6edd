"""Medusa: what the heads propose is their formula, the tree is the best one, and training sees what drafting sees."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from all_drafters import random_medusa
from loop_checks import LAW_PROMPT, LAW_TOKENS, check_greedy, greedy_pair, law_pair, sample, target_law
from mutants.patching import rewrite
from sequence_distribution import chi_square

import minispec as ms
from minispec import verify
from minispec.cli import main
from minispec.drafters import Context, Medusa, MedusaHeads
from minispec.tree import best_tree, depths, from_candidates
from recipes import corpus as writing
from recipes import medusa as training
from recipes.corpus import Corpus
from recipes.lessons import Lessons, go_on

PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18]]
TEXTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11], [12, 13]]  # prompts of the texts to learn from
IDS = torch.arange(0, 64, 3)  # a reduced vocabulary


def last_states(target: ms.Model, text: list[int]) -> torch.Tensor:
    """What the LM head reads at every position of a text, from one plain pass: [T, d]."""
    return target.transformer.norm(target.transformer.body(torch.tensor([text], device=target.device))[0][0])


def by_hand(target: ms.Model, heads: MedusaHeads, h: torch.Tensor) -> list[torch.Tensor]:
    """Logits of every head, one after another, from one state h [d]."""
    d, ids = len(h), range(target.config.vocab_size) if heads.head_ids is None else heads.head_ids.tolist()
    own = heads.own_head in (True, "each")
    W2 = heads.head if own else torch.stack([target.transformer.lm_head.weight[i] for i in ids])
    logits = []
    for k in range(heads.count):
        z = h
        parts = [heads.weight.view(-1, d, d), heads.bias.view(-1, d), *heads.more]
        for W1, b in zip(parts[::2], parts[1::2], strict=True):
            a = W1[k] @ z + b[k]
            z = z + a / (1 + torch.exp(-a))
        own = W2 @ (torch.eye(d, dtype=h.dtype) + heads.map[k]) if heads.own_head == "map" else W2
        logits.append((own[k] if heads.own_head == "each" else own) @ z)
    return logits


def candidates_by_hand(target: ms.Model, heads: MedusaHeads, text: list[int]) -> list[list[int]]:
    """The best tokens of each head for a text whose last token was not read yet."""
    ids = torch.arange(target.config.vocab_size) if heads.head_ids is None else heads.head_ids
    logits = by_hand(target, heads, last_states(target, text[:-1])[-1])
    return [ids[head.argsort(descending=True)][:10].tolist() for head in logits]


# ---------------------------------------------------------------- the heads


@pytest.mark.parametrize(
    "more", [{}, {"own_head": "each"}, {"own_head": "map"}, {"own_head": "map", "blocks": 3}], ids=str
)
@pytest.mark.parametrize("head_ids", [None, IDS], ids=["all tokens", "reduced"])
def test_the_formula(tiny, head_ids, more):
    heads = random_medusa(tiny, head_ids=head_ids, **more)
    h = last_states(tiny, PROMPTS[0])
    for state, logits in zip(h, heads(h), strict=True):
        assert torch.allclose(logits, torch.stack(by_hand(tiny, heads, state)), rtol=0, atol=1e-12)
    best = heads(h).argsort(-1, descending=True)[..., :10]
    assert torch.equal(heads.candidates(h), best if head_ids is None else head_ids[best])


@pytest.mark.parametrize(
    "old, new",
    [
        ("else z + by_head(z, self.map)", "else by_head(z, self.map)"),
        ("else z + by_head(z, self.map)", "else z"),
        ("z = z + F.silu(by_head(z, weight) + bias)", "z = h[..., None, :] + F.silu(by_head(z, weight) + bias)"),
    ],
)
def test_another_formula_is_noticed(tiny, monkeypatch, old, new):
    rewrite(monkeypatch, MedusaHeads, "features", old, new)
    with pytest.raises(AssertionError):
        test_the_formula(tiny, IDS, {"own_head": "map", "blocks": 3})


def test_untrained_heads_say_what_the_lm_head_says(tiny):
    h = last_states(tiny, PROMPTS[0])
    for own in (False, True, "each", "map"):
        logits = MedusaHeads(tiny, 2, IDS, own, blocks=2)(h)
        assert torch.allclose(logits, tiny.transformer.lm_head(h)[:, None, IDS].expand(-1, 2, -1), rtol=0, atol=1e-12)


def test_a_borrowed_head_is_neither_trained_nor_stored(tiny):
    borrowed, own = MedusaHeads(tiny, 4, IDS), MedusaHeads(tiny, 4, IDS, own_head=True)
    assert {*borrowed.state_dict()} == {"weight", "bias", "head_ids"} and len([*borrowed.parameters()]) == 2
    assert {*own.state_dict()} == {"weight", "bias", "head_ids", "head"} and len([*own.parameters()]) == 3
    with torch.no_grad():
        own.head += 1  # a copy: the target does not notice
    assert torch.equal(borrowed.head, tiny.transformer.lm_head.weight[IDS])
    assert MedusaHeads(tiny).head.data_ptr() == tiny.transformer.lm_head.weight.data_ptr()  # all rows: no copy at all


@pytest.mark.parametrize("own", [False, True, "each", "map"])
@pytest.mark.parametrize("head_ids", [None, IDS], ids=["all tokens", "reduced"])
def test_stored_heads_come_back(tiny32, tmp_path, own, head_ids):
    heads = random_medusa(tiny32, head_ids=head_ids, own_head=own, blocks=2 if own == "map" else 1)
    heads.accuracy = [[0.4, 0.2], [0.3, 0.1], [0.2, 0.1]]
    heads.save(tiny32, tmp_path)
    stored, h = MedusaHeads.load(tiny32, tmp_path), last_states(tiny32, PROMPTS[0])
    assert stored.accuracy == heads.accuracy and not any(p.requires_grad for p in stored.parameters())
    step = heads.weight.abs().amax(1, keepdim=True) / 127  # of int8
    assert bool(((stored.weight - heads.weight).abs() <= 0.5001 * step).all())
    assert (stored(h) - heads(h)).abs().max() < 0.1 and (stored(h) - heads(h)).abs().max() > 0
    drafter = Medusa(tiny32, tmp_path, nodes=4)
    assert drafter.shapes[2].parents == from_candidates([[0, 1], [2, 3]], best_tree(heads.accuracy[:2], 4)).parents
    text = ms.speculate(tiny32, PROMPTS[0], drafter, 3, 12)
    assert text.tokens == ms.generate(tiny32, PROMPTS[0], 12).tokens


# ---------------------------------------------------------------- what is drafted


@pytest.mark.slow
@pytest.mark.parametrize("tree", ["best", "chain", [(0,), (2,), (0, 0), (2, 1), (2, 1, 3)]], ids=str)
@pytest.mark.parametrize("k", [1, 2, 5, "auto"])
def test_drafts_are_the_heads_candidates_of_a_fresh_pass(tiny, tree, k):
    """Rows of different lengths that end at different times: each draft is the formula on the row's own text."""
    heads = random_medusa(tiny, head_ids=IDS)
    target = ms.Model("ends", tiny.transformer, None, {ms.generate(tiny, PROMPTS[2], 5).tokens[-1]})
    drafter, sizes = Medusa(target, heads, nodes=9, tree=tree), set()
    shapes = {n: {"best": best_tree(heads.accuracy[:n], 9), "chain": [(0,), (0, 0), (0, 0, 0)]} for n in (1, 2, 3)}
    original = drafter.propose

    def watched(contexts, k):
        drafts = original(contexts, k)
        for context, draft in zip(contexts, drafts, strict=True):
            if len(context.tokens) == 1:  # nothing was read yet
                assert draft.tokens == []
                continue
            depth = min(k, 3)
            choices = shapes[depth][tree] if isinstance(tree, str) else tree
            fitting = [choice for choice in choices if len(choice) <= depth]
            expected = from_candidates(candidates_by_hand(target, heads, context.tokens), fitting)
            assert draft.tokens == expected.tokens and draft.probs is None
            assert draft.parents == (None if tree == "chain" else expected.parents)
            assert max(depths(expected.parents)) <= k
            assert len(draft.tokens) == drafter.max_tree_nodes(k) <= k + drafter.extra_slots
            sizes.add(len(draft.tokens))
        return drafts

    drafter.propose = watched
    outs = ms.speculate(target, PROMPTS, drafter, k, 14)
    assert [out.tokens for out in outs] == [out.tokens for out in ms.generate(target, PROMPTS, 14)]
    assert sizes


def test_a_prompt_of_one_token_drafts_from_the_second_cycle_on(tiny):
    cycles = ms.speculate(tiny, [9], Medusa(tiny, random_medusa(tiny), nodes=5), 3, 12).trace.cycles
    assert cycles[0].drafted == [] and len(cycles[1].drafted) == 5


def test_more_accurate_candidates_get_more_nodes(tiny):
    """Heads that are sure make a deep tree, heads that are not a wide one; a smaller k spends its nodes higher up."""
    heads = MedusaHeads(tiny, 4)
    heads.accuracy = [[0.9, 0.05, 0.03]] * 4
    assert max(depths(Medusa(tiny, heads, nodes=4).shapes[4].parents)) == 4
    heads.accuracy = [[0.2, 0.19, 0.18]] * 4
    assert depths(Medusa(tiny, heads, nodes=3).shapes[4].parents) == [1, 1, 1]
    heads.accuracy = [[0.9, 0.05, 0.03]] * 4
    assert len(Medusa(tiny, heads, nodes=8).shapes[2].parents) == 8
    heads.accuracy = [[0.9, 0.05, 0.03], [0.4, 0.3, 0.2], [0.1, 0.1, 0.1], [0.1, 0.1, 0.1]]
    assert Medusa(tiny, heads, nodes=4).shapes[4].parents == [-1, 0, 0, 0]  # head 1 knows, head 2 may need three tries


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_of_another_precision_draft_too(tiny, tiny32, dtype):
    """Heads in training are float32 on a bf16 target; here the other way round. Exact all the same."""
    heads = random_medusa(tiny).to(dtype)
    assert ms.speculate(tiny, PROMPTS[0], Medusa(tiny, heads), 4, 12).tokens == ms.generate(tiny, PROMPTS[0], 12).tokens


# ---------------------------------------------------------------- typical acceptance: not lossless


@pytest.mark.slow
def test_typical_acceptance_keeps_greedy_text():
    target = greedy_pair()[0]
    for tree in ("best", "chain"):
        check_greedy(Medusa(target, random_medusa(target), nodes=6, tree=tree, lossless=False), ks=(3, 1), count=12)


@pytest.mark.slow
def test_typical_acceptance_is_not_lossless():
    """The first cycle's draft is the same in every row, so what passes is in every text: no law of p left there.

    1,000 texts; the lossless drafter with the same tree passes the same check.
    """
    target = law_pair()[0]
    drafters = {
        lossless: Medusa(target, random_medusa(target), nodes=6, lossless=lossless) for lossless in (True, False)
    }
    texts = {
        lossless: sample(drafter, 3, seed=1, draws=1000, temperature=1.0) for lossless, drafter in drafters.items()
    }
    law = target_law(temperature=1.0)
    assert chi_square(texts[True], law) > 1e-4 and chi_square(texts[False], law) < 1e-12
    out = ms.speculate(target, LAW_PROMPT, drafters[False], 3, LAW_TOKENS, temperature=1.0, seed=0)
    first = out.trace.cycles[0]
    p = target.transformer(torch.tensor([[*LAW_PROMPT, *first.drafted]])).logits[0, len(LAW_PROMPT) - 1].softmax(-1)
    entropy = float(torch.special.entr(p).sum())
    passes = [
        t
        for t, parent in zip(first.drafted, first.parents, strict=True)
        if parent == -1 and p[t] > min(0.09, 0.3 * 2.718281828**-entropy)
    ]
    assert passes and {text[0] for text in texts[False]} <= {*passes}  # certain now, where p had
    assert float(p[passes].sum()) < 0.999 and len({text[0] for text in texts[True]}) == 5
    assert first.accepted and not first.lossless and "not lossless" in repr(drafters[False])
    assert '"lossless": false' in out.trace.to_json() and "lossless" not in repr(drafters[True])


@pytest.mark.parametrize("tree", ["best", "chain"])
def test_verdicts_are_those_of_the_rule_asked_for(tiny, tree, monkeypatch):
    calls = []
    for name in ("tree", "tree_batch", "typical", "chain_batch"):
        rule = getattr(verify, name)
        monkeypatch.setattr(verify, name, lambda *a, rule=rule, name=name: (calls.append(name), rule(*a))[1])
    for lossless, rule in ((False, "typical"), (True, "tree_batch" if tree == "best" else "chain_batch")):
        drafter = Medusa(tiny, random_medusa(tiny), nodes=5, tree=tree, lossless=lossless)
        ms.speculate(tiny, PROMPTS[0], drafter, 3, 6, temperature=1.0, seed=0)
        assert calls[0] == rule and (lossless or {*calls} == {rule})  # a last cycle without a draft is a chain
        calls.clear()


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("wrong", [dict(nodes=0), dict(nodes=2.5), dict(tree="wide"), dict(tree=[(0, 0)])], ids=str)
def test_impossible_trees_are_refused(tiny, wrong):
    with pytest.raises(ValueError, match="nodes=|tree=|choices"):
        Medusa(tiny, MedusaHeads(tiny), **wrong)


def test_heads_of_another_target_are_refused(tiny, make_model, tmp_path):
    other = make_model(hidden_size=16)
    MedusaHeads(other).save(other, tmp_path)
    with pytest.raises(ValueError, match="do not fit"):
        Medusa(tiny, tmp_path)
    with pytest.raises(ValueError, match="16 numbers"):
        Medusa(tiny, MedusaHeads(other))
    with pytest.raises(ValueError, match="no medusa heads ship"):
        Medusa(tiny)
    with pytest.raises(ValueError, match="count=0"):
        MedusaHeads(tiny, 0)


# ---------------------------------------------------------------- training


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(dtype=torch.float32, end_tokens=[0], tie_embeddings=True, max_length=256)


@pytest.fixture(scope="module")
def corpus(target, tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("text")
    return writing.write(target, TEXTS, folder, rows=96, max_new_tokens=40, temperatures=[0.0, 0.4], batch=96)


def rows_of(corpus: Corpus) -> list[tuple[list[int], int]]:
    """Every row's text, and how much of it is prompt."""
    rows = zip(corpus.tokens.tolist(), corpus.prompt.tolist(), corpus.length.tolist(), strict=True)
    return [(tokens[:length], prompt) for tokens, prompt, length in rows]


@pytest.mark.parametrize("head_ids", [None, IDS], ids=["all tokens", "reduced"])
def test_the_loss_is_the_sum_over_heads_and_positions(target, corpus, head_ids):
    """Head k at t against the target's own law at t + k, where both predict a token of the reply: from plain passes."""
    heads, some = random_medusa(target, head_ids=head_ids), corpus[:7]
    lessons = Lessons(target.transformer, some)
    batch = lessons.batch(0, 0, 5 * 128)
    terms: dict[int, list[float]] = {1: [], 2: [], 3: []}
    for tokens, asked in zip(batch.tokens, batch.asked, strict=True):
        text, places = tokens.tolist(), asked.nonzero().flatten().tolist()
        h = last_states(target, text)
        p = target.transformer.lm_head(h).softmax(-1)
        for t in places:
            log_q = [logits.log_softmax(-1) for logits in by_hand(target, heads, h[t])]
            for k in terms:
                if t + k in places:
                    law = p[t + k] if head_ids is None else p[t + k, head_ids]
                    terms[k].append(-float(law @ log_q[k - 1]))
    expected = sum(0.8**k * sum(values) / len(values) for k, values in terms.items())
    assert float(training.heads_loss(heads, lessons, batch)) == pytest.approx(expected, rel=1e-4)


def test_accuracies_are_counts_on_the_text(target, corpus):
    heads, some = random_medusa(target, head_ids=IDS), corpus[:12]
    hits, tries = torch.zeros(3, 10), torch.zeros(3, 1)
    for text, prompt in rows_of(some):
        best = heads.candidates(last_states(target, text)).tolist()  # [T, 3, 10]
        for t in range(prompt - 1, len(text) - 1):
            for k in (1, 2, 3):
                if t + k + 1 >= len(text):
                    break
                tries[k - 1] += 1
                if text[t + k + 1] not in best[t][k - 1]:
                    break  # outside the tree: farther heads are not asked
                hits[k - 1, best[t][k - 1].index(text[t + k + 1])] += 1
    assert bool((hits.sum(1) > 3).all())
    found = torch.tensor(training.calibrate(target, heads, some, batch_tokens=300))
    assert torch.allclose(found, hits / tries, atol=1e-6)


def test_training_sees_what_drafting_sees(target, corpus):
    """The candidates on a whole row, as trained, are those the drafter proposes having come to each place."""
    heads = random_medusa(target)
    lessons = Lessons(target.transformer, corpus[:6])
    batch, layers = lessons.batch(0, 0, 3 * 128), target.config.num_layers
    drafter = Medusa(target, heads, tree=[(i,) for i in range(10)])
    for tokens, asked, states in zip(batch.tokens, batch.asked, batch.answers.states, strict=True):
        for t in asked.nonzero().flatten().tolist()[:8]:
            text = tokens[: t + 2].tolist()  # t + 1 is out, and head 1 at t is for what comes after it
            hidden = target.transformer.body(torch.tensor([text[:-1]]), hidden_layers=(layers,))[1][layers][0]
            context = Context(0, text, ms.Sampling(), torch.Generator(), {layers: hidden[-2:]})
            (draft,) = drafter.propose([context], 1)
            assert draft.tokens == heads.candidates(states[t])[0].tolist()


@pytest.mark.slow
def test_heads_learn(make_model, tmp_path):
    """Five greedy texts of a target that is sure of itself: far better than chance, and than the LM head as it is."""
    target = make_model(dtype=torch.float32, end_tokens=[0])
    target.transformer.lm_head.weight *= 3
    corpus = writing.write(target, TEXTS, tmp_path, rows=96, max_new_tokens=40, temperatures=[0.0], batch=96)
    heads, curve = training.train_heads(target, corpus, steps=60, lr=3e-2, batch_tokens=512, log_every=10)
    assert curve[-1]["loss"] < 0.5 * curve[0]["loss"]
    learnt, _ = training.split_rows(corpus)  # of a random target, other texts have nothing in common with these
    heads.accuracy = training.calibrate(target, heads, learnt)
    assert all(accuracy[0] > 0.5 for accuracy in heads.accuracy)  # chance is 1 in 64
    assert not any(parameter.requires_grad for parameter in heads.parameters())
    for prompt in ([1, 2, 3], [7, 8, 9, 10, 11]):
        assert prompt in [text[:count] for text, count in rows_of(learnt)]
        trained, untrained = (
            ms.speculate(target, prompt, Medusa(target, each), 4, 40).trace.tokens_per_cycle
            for each in (heads, MedusaHeads(target))
        )
        assert trained > 1.5 * untrained


def test_an_own_head_is_trained_too(target, corpus):
    heads, _ = training.train_heads(target, corpus, steps=3, head_vocab=30, own_head=True, count=2)
    assert heads.head.shape == (30, 32) and 0 in heads.head_ids  # the end token is always in
    assert not torch.equal(heads.head, target.transformer.lm_head.weight[heads.head_ids])


@pytest.mark.slow
def test_a_resumed_run_equals_one_in_one_piece(target, corpus, tmp_path):
    settings = dict(steps=8, batch_tokens=512)
    whole, _ = training.train_heads(target, corpus, folder=tmp_path / "a", **settings)
    training.train_heads(target, corpus, folder=tmp_path / "b", stop_after=3, **settings)
    resumed, curve = training.train_heads(target, corpus, folder=tmp_path / "b", keep=False, **settings)
    assert torch.equal(whole.weight, resumed.weight) and torch.equal(whole.bias, resumed.bias)
    assert whole.accuracy == resumed.accuracy and curve[-1]["step"] == 8


def test_the_command(tiny_folder, tmp_path, capsys, monkeypatch):
    """As typed in a terminal; the accuracies on disk are those of the heads on disk, in 8 bits."""
    measured = []

    def watched(target, heads, corpus):
        assert 0 < len(corpus) < 20 and len(calibrate(target, heads, corpus)) == 4
        measured.append(heads)
        return [[0.1 * len(measured)]] * 4

    calibrate = training.calibrate
    monkeypatch.setattr(training, "calibrate", watched)
    target = ms.load(tiny_folder, device="cpu")
    writing.write(target, [[5, 6], [7]], tmp_path / "text", rows=20, max_new_tokens=12, batch=10)
    places = ["--model", str(tiny_folder), "--corpus", str(tmp_path / "text"), "--out", str(tmp_path / "run")]
    sizes = ["--steps", "4", "--batch-tokens", "256", "--head-vocab", "100"]
    assert main(["train", "medusa", "--device", "cpu", *places, *sizes]) == 0
    settings = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (settings["kind"], settings["heads"], settings["head_vocab"]) == ("medusa", 4, 100)
    assert json.loads((tmp_path / "run" / "curve.json").read_text())[-1]["step"] == 4
    assert "head 4:" in capsys.readouterr().out
    stored = MedusaHeads.load(target, tmp_path / "run" / "model")
    assert stored.accuracy == [[0.1 * len(measured)]] * 4 and torch.equal(measured[-1].weight, stored.weight)
    again = [*places[:-1], str(tmp_path / "more"), *sizes[:-2], "--start", str(tmp_path / "run" / "model")]
    assert main(["train", "medusa", "--device", "cpu", *again]) == 0
    more = MedusaHeads.load(target, tmp_path / "more" / "model")
    assert torch.equal(more.head_ids, stored.head_ids) and not torch.equal(more.weight, stored.weight)


def test_training_goes_on_from_stored_heads(target, corpus, tmp_path):
    """In full precision, with a learning rate that begins anew: no steps to speak of leave the heads as they were."""
    options = dict(steps=4, batch_tokens=512)
    random_medusa(target, count=2, head_ids=IDS, own_head=True).save(target, tmp_path)
    stored = MedusaHeads.load(target, tmp_path)
    still, _ = training.train_heads(target, corpus, start=tmp_path, lr=1e-9, count=2, **options)
    assert torch.equal(still.head_ids, IDS) and still.count == 2 and still.own_head
    assert torch.allclose(still.weight, stored.weight, rtol=0, atol=1e-7) and still.weight.dtype == torch.float32
    moved, curve = training.train_heads(target, corpus, start=tmp_path, lr=1e-2, **options)
    assert curve[-1]["step"] == 4 and not torch.allclose(moved.weight, stored.weight, rtol=0, atol=1e-3)
    half = ms.Model("half", copy.deepcopy(target.transformer).bfloat16())
    exact = go_on(MedusaHeads.load(half, tmp_path), tmp_path, {}, {})
    assert torch.equal(exact.weight, stored.weight) and exact.weight.requires_grad  # not rounded to 16 bits on the way
    for name, value in (("count", 3), ("head_vocab", 30), ("own_head", False)):
        with pytest.raises(ValueError, match=f"{name}={value}"):
            training.train_heads(target, corpus, start=tmp_path, **options, **{name: value})


@pytest.mark.slow
def test_stored_heads_that_borrow_get_more_to_learn(target, corpus, tmp_path):
    """More tokens, an LM head of their own, another block: until they learn, logits stay what they were."""
    ids = training.frequent_tokens(corpus, target.config.vocab_size, 20)
    random_medusa(target, count=2, head_ids=ids).save(target, tmp_path)
    stored, h = MedusaHeads.load(target, tmp_path), last_states(target, PROMPTS[0])
    options = dict(steps=1, batch_tokens=256, start=tmp_path, head_vocab=30, blocks=2, candidates=16, greedy=True)
    for own in ("map", "each", True):
        heads, _ = training.train_heads(target, corpus, lr=1e-12, own_head=own, **options)
        assert {*ids.tolist()} < {*heads.head_ids.tolist()} and len(heads.head_ids) == 30
        assert (heads.own_head, heads.blocks) == (own, 2) and {len(row) for row in heads.accuracy} == {16}
        places = torch.searchsorted(heads.head_ids, stored.head_ids)
        assert torch.allclose(heads(h)[..., places], stored(h), rtol=0, atol=1e-4)
    learnt, _ = training.train_heads(target, corpus, lr=1e-2, own_head="map", **options | {"steps": 3})
    assert learnt.map.abs().max() > 0 and learnt.more[0].abs().max() > 0  # what begins with zero learns, too
    learnt.save(target, tmp_path / "map")
    again = training.train_heads(target, corpus, lr=1e-12, steps=1, batch_tokens=256, start=tmp_path / "map")[0]
    assert torch.allclose(again(h), MedusaHeads.load(target, tmp_path / "map")(h), rtol=0, atol=1e-4)
    for name, value in (("head_vocab", 10), ("blocks", 1), ("own_head", "each")):
        with pytest.raises(ValueError, match=name):
            training.train_heads(target, corpus, steps=1, start=tmp_path / "map", **{name: value})


def test_greedy_replies_alone_are_measured(target, corpus, monkeypatch):
    """With `greedy` the tree is chosen by greedy replies; a corpus without any is taken as it is."""
    seen = []
    monkeypatch.setattr(training, "calibrate", lambda target, heads, rows: seen.append(rows.temperature) or [[1.0]])
    mixed = Corpus(corpus.tokens, corpus.prompt, corpus.length, torch.arange(len(corpus)) % 2 * 1.0)
    for greedy in (True, False):
        training.train_heads(target, mixed, steps=1, batch_tokens=256, greedy=greedy)
    assert len(seen[0]) < len(seen[1]) and not seen[0].any() and seen[1].any()
    warm = Corpus(corpus.tokens, corpus.prompt, corpus.length, torch.ones(len(corpus)))
    assert len(training.only_greedy(warm)) == len(warm)


@pytest.mark.slow
def test_micros_heads_are_trained_live():
    """What lesson 09 does: head 1 is right about once in four times, chance is one in 2,048."""
    target = ms.load("micro", device="cpu")
    corpus = training.tell_stories(target, rows=48, max_new_tokens=128, temperatures=(0.0, 0.8))
    heads, _ = training.train_heads(target, corpus, steps=150, lr=6e-3, head_vocab=512, warmup=20)
    assert heads.accuracy[0][0] > 0.2 and sum(heads.accuracy[0]) > 0.5
    out = ms.speculate(target, "Once upon a time", Medusa(target, heads, nodes=24), 4, 60)
    assert out.tokens == ms.generate(target, "Once upon a time", 60).tokens
    assert out.trace.tokens_per_cycle > 1.6
