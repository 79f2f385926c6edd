"""DFlash: the block is read as the formula says, with a cache or without, at inference and in training alike."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
import torch.nn.functional as F
from all_drafters import random_dflash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import minispec as ms
from minispec.cli import main, parser
from minispec.drafters import Context, DFlash, DFlashHead
from minispec.drafters.dflash import load_head
from minispec.generate import pad
from minispec.load.heads import heads_for, save_heads
from minispec.load.read_dflash import read_dflash
from minispec.load.write_heads import write_dflash
from minispec.model import rope_at, rotate
from minispec.tree import best_tree, depths, from_candidates, path_to
from recipes import corpus as writing
from recipes import dflash as training
from recipes.corpus import Corpus
from recipes.lessons import Batch, Lessons, frequent_tokens, split_rows

PROMPTS = [[i, 3 * i % 64, 5 * i % 64][: 1 + i % 3] for i in range(1, 40)]


@pytest.fixture(scope="module")
def heads(tiny) -> DFlashHead:
    return random_dflash(tiny)


def states_of(target: ms.Model, text: list[int], layers) -> dict[int, torch.Tensor]:
    """Residual streams of the whole text but its last token, by one pass without a cache."""
    if len(text) == 1:
        return {}
    with torch.no_grad():
        return {n: x[0] for n, x in target.transformer.body(torch.tensor([text[:-1]]), hidden_layers=layers)[1].items()}


def context(row: int, text: list[int], hidden: dict) -> Context:
    return Context(row, list(text), ms.Sampling(), torch.Generator(), hidden)


def whole(target: ms.Model, heads: DFlashHead, text: list[int], row: int = 0) -> Context:
    return context(row, text, states_of(target, text, heads.hidden_layers))


def by_hand(target: ms.Model, heads: DFlashHead, text: list[int], first: int = 0) -> torch.Tensor:
    """Logits [B − 1, v] of the block after a text, one query at a time, straight from the definition.

    The context begins at place `first`.
    """
    n, B, c = len(text) - 1 - first, heads.block, heads.config
    norm = lambda x, module: x / (x.pow(2).mean(-1, keepdim=True) + c.norm_eps).sqrt() * module.weight  # noqa: E731
    hidden = {n: h[first:] for n, h in states_of(target, text, heads.hidden_layers).items()}
    streams = [h / (h.pow(2).mean(-1, keepdim=True) + c.norm_eps).sqrt() for h in hidden.values()]
    ctx = norm(torch.cat(streams, -1) @ heads.fc.weight.T, heads.context_norm) if hidden else torch.zeros(0, 32)
    x = torch.stack([target.transformer.embed_tokens.weight[text[-1]], *[heads.mask] * (B - 1)])  # [B, d]
    cos, sin = rope_at(c, first + torch.arange(n + B)[None], torch.float64)
    for layer in heads.layers:
        attn, read = layer.self_attn, norm(torch.cat([ctx.double(), x]), layer.input_layernorm)  # [n + B, d]
        q, k, v = (proj(read).view(n + B, -1, c.head_dim) for proj in (attn.q_proj, attn.k_proj, attn.v_proj))
        q, k = (rotate(y.transpose(0, 1)[None], cos, sin)[0].transpose(0, 1) for y in (q, k))
        out = []
        for i in range(n, n + B):
            for h in range(c.num_heads):
                kv = h // (c.num_heads // c.num_kv_heads)
                share = (k[:, kv] @ q[i, h] / math.sqrt(c.head_dim)).softmax(0)  # over the context and the whole block
                out.append(share @ v[:, kv])
        x = x + attn.o_proj(torch.stack(out).view(B, -1))
        y = norm(x, layer.post_attention_layernorm)
        x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(y)) * layer.mlp.up_proj(y))
    return norm(x[1:], heads.norm) @ target.transformer.lm_head.weight[heads.head_ids].T


# ---------------------------------------------------------------- the drafter


@pytest.mark.parametrize("text", [[7], [7, 1], [3, 1, 4, 1, 5, 9, 2, 6]])
def test_it_computes_what_the_definition_says(tiny, heads, text):
    drafter = DFlash(tiny, heads)
    expected = by_hand(tiny, heads, text)
    assert torch.allclose(drafter.score([whole(tiny, heads, text)])[0], expected, rtol=0, atol=1e-10)
    for k in (1, 2, 3, 9):  # never more than the block has blanks
        (draft,) = DFlash(tiny, heads, tree=False).propose([whole(tiny, heads, text)], k)
        assert draft.tokens == heads.head_ids[expected[:k].argmax(-1)].tolist()
        assert len(draft.tokens) == min(k, 3) and draft.probs is None and draft.parents is None


def test_a_shorter_block_has_fewer_blanks(tiny, heads):
    text = [3, 1, 4, 1, 5]
    drafter, short = DFlash(tiny, heads, block=3), random_dflash(tiny, block=3)  # the same weights
    score = drafter.score([whole(tiny, heads, text)])[0]
    assert torch.allclose(score, by_hand(tiny, short, text), rtol=0, atol=1e-10)
    for block in (1, 5):
        with pytest.raises(ValueError, match=f"block={block}"):
            DFlash(tiny, heads, block)


def test_only_the_chosen_tokens_are_proposed(tiny):
    heads = random_dflash(tiny)
    heads.head_ids = torch.tensor([5, 17, 40])
    drafter = DFlash(tiny, heads)
    text = [3, 1, 4, 1, 5]
    assert torch.allclose(drafter.score([whole(tiny, heads, text)])[0], by_hand(tiny, heads, text), rtol=0, atol=1e-10)
    seen = {token for i in range(20) for token in drafter.propose([whole(tiny, heads, [i, 2 * i])], 3)[0].tokens}
    assert len(seen) > 1 and seen <= {5, 17, 40}


@pytest.mark.parametrize("nodes", [1, 5, 40])
def test_the_tree_is_the_likeliest_paths(tiny, heads, nodes):
    """Of all rows at once: the tokens and the shape of tree.best_tree, with the marginals for accuracies."""
    texts = [[7], [7, 1], [3, 1, 4, 1, 5, 9, 2, 6], [9, 9, 9]]
    for k in (1, 2, 3, 9):  # never deeper than the block has blanks
        drafter = DFlash(tiny, heads, tree=True, nodes=nodes)
        drafts = drafter.propose([whole(tiny, heads, text, row) for row, text in enumerate(texts)], k)
        for text, draft in zip(texts, drafts, strict=True):
            q, best = by_hand(tiny, heads, text)[:k].softmax(-1).sort(-1, descending=True)  # [min(k, 3), 64]
            expected = from_candidates(heads.head_ids[best].tolist(), best_tree(q.tolist(), nodes))
            assert branches(draft) == branches(expected) and len(draft.tokens) == len(branches(draft)) == nodes
            assert draft.probs is None and max(depths(draft.parents)) <= min(k, 3)


def branches(tree) -> set[tuple[int, ...]]:
    """The path to every node, in tokens."""
    return {tuple(tree.tokens[i] for i in path_to(tree.parents, node)) for node in range(len(tree.tokens))}


def test_a_tree_of_everything(tiny):
    """Fewer paths than nodes were asked for: all of them."""
    heads = random_dflash(tiny, block=3)
    heads.head_ids = torch.tensor([5, 17])
    (draft,) = DFlash(tiny, heads, tree=True, nodes=32).propose([whole(tiny, heads, [3, 1, 4])], 8)
    assert branches(draft) == {(5,), (17,), (5, 5), (5, 17), (17, 5), (17, 17)}


@pytest.mark.slow
def test_a_tree_accepts_more_than_a_chain(tiny, heads):
    """The same text in fewer passes of the target."""
    prompts = [[i, 2 * i % 64, 7] for i in range(1, 13)]
    plain = [out.tokens for out in ms.generate(tiny, prompts, 16)]
    passes = []
    for options in (dict(tree=False), dict(tree=True, nodes=40)):
        outs = ms.speculate(tiny, prompts, DFlash(tiny, heads, **options), 3, 16)
        assert [out.tokens for out in outs] == plain
        passes.append(sum(out.trace.target_passes for out in outs))
    assert passes[1] < passes[0]
    assert DFlash(tiny, heads, tree=True, nodes=9).extra_slots == 8 and DFlash(tiny, heads, tree=False).extra_slots == 0
    for nodes in (0, 2.5):
        with pytest.raises(ValueError, match=f"nodes={nodes}"):
            DFlash(tiny, heads, tree=True, nodes=nodes)


@pytest.mark.slow
@settings(max_examples=15)
@given(data=st.data())
def test_any_order_of_events(tiny, heads, data):
    """Rows join, sit out, wait and leave: each block is still the one of the row's whole text, read alone."""
    drafter, texts, told, fresh = DFlash(tiny, heads), {}, {}, iter(range(1000))
    for _ in range(data.draw(st.integers(2, 6))):
        for _ in range(data.draw(st.integers(0 if texts else 1, 2))):
            row = next(fresh)
            texts[row], told[row] = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=9)), 0
        chosen = data.draw(st.permutations(sorted(texts)))[: data.draw(st.integers(1, len(texts)))]
        contexts = []
        for row in chosen:  # the states of what was read since the row was last asked about
            hidden = states_of(tiny, texts[row], heads.hidden_layers)
            contexts.append(context(row, texts[row], {n: x[told[row] :] for n, x in hidden.items()}))
            told[row] = len(texts[row]) - 1
        scores = drafter.score(contexts)
        for row, score in zip(chosen, scores, strict=True):
            alone = DFlash(tiny, heads).score([whole(tiny, heads, texts[row])])[0]
            assert torch.allclose(score, alone, rtol=0, atol=1e-10)
        for row in texts:  # chosen or not, any text may have grown before the next call
            texts[row] += data.draw(st.lists(st.integers(0, 63), min_size=1 if row in chosen else 0, max_size=5))
        if len(texts) > 1 and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(texts)))
            del texts[gone]
            drafter.forget(gone)
    for row in texts:
        drafter.forget(row)
    assert drafter.cache is None and not drafter.order and not drafter.held


def test_a_cycle_adds_only_what_was_verified_since(tiny, heads, monkeypatch):
    added = []
    plain = DFlashHead.context

    def count(self, hidden, positions):
        added.append(positions.tolist())
        return plain(self, hidden, positions)

    monkeypatch.setattr(DFlashHead, "context", count)
    out = ms.speculate(tiny, [3, 1, 4], DFlash(tiny, heads), 3, 20)
    first, *later = [places for (places,) in added]
    assert first == [0, 1] and sum(later, first) == list(range(len(sum(later, first))))  # each place once, in order
    assert [len(places) for places in later] == [1 + len(cycle.path) for cycle in out.trace.cycles][: len(later)]


@pytest.mark.parametrize("rewound", [True, False])
def test_behind_a_gap_the_context_begins_anew(tiny, heads, rewound):
    """Where the states before are gone or missing, the block sees the newest alone, still in their real places."""
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    drafter = DFlash(tiny, heads)
    drafter.score([whole(tiny, heads, text[:4])])
    if rewound:
        drafter.rewind(0, 4)
    late = {n: x[5:] for n, x in states_of(tiny, text, heads.hidden_layers).items()}
    score = drafter.score([context(0, text, late)])[0]
    assert torch.allclose(score, by_hand(tiny, heads, text, first=5), rtol=0, atol=1e-10)


def test_the_states_it_reads_come_from_the_loop(tiny, heads):
    """In a whole run, every draft is the definition's: of the text so far and one fresh pass of the target."""
    texts = []

    class Watched(DFlash):
        def propose(self, contexts, k):
            drafts = super().propose(contexts, k)
            texts.extend((list(c.tokens), draft.tokens) for c, draft in zip(contexts, drafts, strict=True))
            return drafts

    ms.speculate(tiny, [[3, 1, 4], [1], [5, 9, 2, 6, 5]], Watched(tiny, heads, tree=False), 3, 12)
    assert len(texts) > 20
    for text, tokens in texts:
        expected = by_hand(tiny, heads, text)
        assert tokens == heads.head_ids[expected[: len(tokens)].argmax(-1)].tolist()


def test_what_cannot_work_is_refused(tiny, make_model, tmp_path):
    ids = torch.arange(8)
    with pytest.raises(ValueError, match="block=1"):
        DFlashHead(tiny.config, ids, (1,), block=1)
    with pytest.raises(ValueError, match="hidden_layers"):
        DFlashHead(tiny.config, ids, ())
    with pytest.raises(ValueError, match="layer 3"):
        DFlash(tiny, random_dflash(make_model(num_layers=3)))
    with pytest.raises(ValueError, match="python -m recipes dflash"):
        DFlash(tiny)  # none ship for a random model
    save_heads(torch.nn.Linear(2, 2), tmp_path, heads_for(tiny, "medusa"))
    with pytest.raises(ValueError, match="medusa"):
        DFlash(tiny, tmp_path)


# ---------------------------------------------------------------- the trainer


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(dtype=torch.float32, end_tokens=[0], tie_embeddings=True, max_length=256)


@pytest.fixture(scope="module")
def folder(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    writing.write(target, PROMPTS, folder, rows=160, max_new_tokens=32, temperatures=[0.0], batch=40)
    return folder


@pytest.fixture(scope="module")
def lesson(tiny, heads) -> tuple[Lessons, Batch]:
    """Three rows in float64, of different lengths."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(64, (3, 30), generator=generator, dtype=torch.int32)
    corpus = Corpus(tokens, torch.tensor([1, 4, 9]), torch.tensor([30, 11, 24]), torch.zeros(3))
    lessons = Lessons(tiny.transformer, corpus, heads.hidden_layers, keep=False)
    (rows, asked, _), *rest = lessons.buckets
    assert not rest
    return lessons, Batch(rows, asked, lessons.answer(rows))


def test_training_computes_what_the_drafter_does(tiny, heads, lesson):
    """Blocks side by side in one pass equal the drafter's, one text at a time. THE important one."""
    _, batch = lesson
    anchors = torch.tensor([[0, 5, 17, 28], [3, 4, 9, 7], [22, 8, 9, 15]])
    states = training.read_blocks(heads, tiny.transformer, batch.tokens, batch.answers.hidden, anchors)
    trained = states[:, :, 1:] @ heads.head_rows(tiny.transformer).T  # [3, 4, B − 1, v]
    for row, places in enumerate(anchors.tolist()):
        for i, place in enumerate(places):
            text = batch.tokens[row, : place + 1].tolist()  # up to the anchor, which the target has not read
            drafted = DFlash(tiny, heads).score([whole(tiny, heads, text)])[0]
            assert torch.allclose(trained[row, i], drafted, rtol=0, atol=1e-10)


def test_anchors_are_different_places_of_the_reply(lesson):
    _, batch = lesson
    for seed in range(20):
        anchors, real = training.anchors_in(batch.asked, 6, torch.Generator().manual_seed(seed))
        for places, chosen, asked in zip(anchors, real, batch.asked, strict=True):
            kept = places[chosen].tolist()
            assert len(set(kept)) == len(kept) == min(len(places), int(asked.sum()))
            assert all(asked[place] for place in kept)


@pytest.mark.parametrize("hard", [False, True])
def test_the_loss_is_its_formula(tiny, lesson, hard):
    """Σ e^{−(j−1)/γ₀} · cross-entropy to the target's law (or the written token), where there is text to learn."""
    lessons, batch = lesson
    heads = random_dflash(tiny)
    heads.head_ids = heads.head_ids[::2]
    anchors, real = training.anchors_in(batch.asked, 6, torch.Generator().manual_seed(0))
    total, weights = 0.0, 0.0
    for row, length in enumerate([30, 11, 24]):
        logits = tiny.transformer(batch.tokens[row : row + 1]).logits[0]
        for place in anchors[row][real[row]].tolist():
            log_q = by_hand(tiny, heads, batch.tokens[row, : place + 1].tolist()).log_softmax(-1)
            for j in range(1, heads.block):
                if place + j >= length:
                    continue
                p = logits[place + j - 1].softmax(-1)[heads.head_ids]
                if hard:
                    p = (heads.head_ids == batch.tokens[row, place + j]).double()
                weight = math.exp(-(j - 1) / 4)
                total, weights = total - weight * float((p * log_q[j - 1]).sum()), weights + weight
    loss = training.block_loss(heads, lessons, batch, anchors, real, 4.0, hard)
    assert float(loss) == pytest.approx(total / weights, rel=1e-6)


@pytest.mark.slow
def test_only_the_drafter_learns(target, folder):
    corpus = Corpus.load(folder)
    head = training.head_from(target.transformer, torch.arange(64))
    lessons = Lessons(target.transformer, corpus, head.hidden_layers, keep=False)
    batch = lessons.batch(0, 0, 512)
    anchors, real = training.anchors_in(batch.asked, 6, torch.Generator().manual_seed(0))
    training.block_loss(head, lessons, batch, anchors, real, 4.0).backward()
    assert all(p.grad is None for p in target.transformer.parameters())
    assert all(p.grad is not None and bool(p.grad.any()) for p in head.parameters())


@pytest.mark.slow
def test_a_half_precision_step_on_this_machine(target, folder):
    """The trainer's mixed precision: float32 weights and bfloat16 products give nearly the same loss and gradients."""
    head = training.head_from(target.transformer, torch.arange(64))
    lessons = Lessons(target.transformer, Corpus.load(folder), head.hidden_layers, keep=False)
    batch = lessons.batch(0, 0, 512)
    anchors, real = training.anchors_in(batch.asked, 6, torch.Generator().manual_seed(0))
    losses = []
    for mixed in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            losses.append(training.block_loss(head, lessons, batch, anchors, real, 4.0))
    losses[1].backward()
    assert losses[1].dtype == torch.float32
    assert float(losses[1].detach()) == pytest.approx(float(losses[0].detach()), rel=0.02)


@pytest.mark.slow
def test_calibration_counts_what_the_drafter_gets_right(tiny, heads, lesson):
    """With an anchor at every place of the replies, against drafts made one at a time."""
    _, batch = lesson
    rows = [batch.tokens[i, :n].tolist() for i, n in enumerate((30, 11, 24))]
    drafter = DFlash(tiny, heads, tree=False)
    for row in (0, 2):  # texts the drafter agrees with here and there
        for place in range(10, len(rows[row]) - 3, 5):
            drafter.forget(0)
            rows[row][place + 1 : place + 3] = drafter.propose([whole(tiny, heads, rows[row][: place + 1])], 2)[
                0
            ].tokens
    tokens, lengths = pad(rows, "cpu")
    corpus = Corpus(tokens.int(), torch.tensor([1, 4, 9]), lengths, torch.zeros(3))
    given, of, alone, counted = ([0] * 3 for _ in range(4))
    for row, prompt in zip(rows, (1, 4, 9), strict=True):
        for place in range(prompt - 1, len(row) - 1):
            drafter.forget(0)
            (draft,) = drafter.propose([whole(tiny, heads, row[: place + 1])], 3)
            so_far = True
            for j, (guess, written) in enumerate(zip(draft.tokens, row[place + 1 :], strict=False)):
                of[j] += so_far
                counted[j] += 1
                alone[j] += guess == written
                so_far &= guess == written
                given[j] += so_far
    assert 0 < given[1] < alone[1]
    measured = training.calibrate(tiny.transformer, heads, corpus, every=1)
    expected = [a / max(1, b) for a, b in zip(given, of, strict=True)]
    assert measured["accuracy"] == pytest.approx(expected, abs=1e-4)
    assert measured["accuracy_alone"] == pytest.approx([a / b for a, b in zip(alone, counted, strict=True)], abs=1e-4)
    chain = expected[0] + expected[0] * expected[1] + math.prod(expected)
    assert measured["tokens_per_pass"] == pytest.approx(1 + chain, abs=1e-3)


def run(target_folder, corpus, out, *more) -> None:
    places = ["--model", target_folder, "--corpus", corpus, "--out", out, "--device", "cpu"]
    sizes = ["--block", 4, "--head-vocab", 48, "--batch-tokens", 1024, "--every", 4, "--steps", 60, "--lr", 1e-2]
    main(["train", "dflash", *map(str, [*places, *sizes, *more])])


@pytest.fixture(scope="module")
def stored(target, tmp_path_factory):
    from minispec.load.folder import save_folder

    folder = tmp_path_factory.mktemp("models") / "target"
    save_folder(target, folder, bits=None)
    return folder


@pytest.mark.slow
def test_the_command_trains_stores_and_measures(target, stored, folder, tmp_path, capsys):
    """Resumed in the middle it ends with the same weights, and what it stored drafts better than chance by far."""
    run(stored, folder, tmp_path / "whole")
    printed = capsys.readouterr().out
    run(stored, folder, tmp_path / "parts", "--stop-after", "25")
    run(stored, folder, tmp_path / "parts")
    once, twice = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["module"] for name in ("whole", "parts")
    )
    assert all(torch.equal(once[key], twice[key]) for key in once)
    curve = json.loads((tmp_path / "whole" / "curve.json").read_text())
    assert curve[-1]["loss"] < 0.9 * curve[0]["loss"]

    settings = json.loads((tmp_path / "whole" / "model" / "config.json").read_text())
    assert settings["block"] == 4 and len(settings["accuracy"]) == len(settings["accuracy_alone"]) == 3
    assert str(settings["tokens_per_pass"]) in printed
    trained = ms.load(stored, device="cpu", dtype=torch.float32)
    drafter = DFlash(trained, tmp_path / "whole" / "model", tree=False)
    learnt, unseen = split_rows(Corpus.load(folder))
    accuracy, held_out = (
        training.calibrate(trained.transformer, drafter.heads, rows, every=4)["accuracy"] for rows in (learnt, unseen)
    )
    assert accuracy[0] > 0.2 and held_out == settings["accuracy"]  # chance is 1/48, for a random target's other texts
    for key, value in drafter.heads.state_dict().items():
        step = once[key].abs().amax(-1, keepdim=True) / 127 if value.ndim == 2 else torch.zeros(1)
        assert bool(((value - once[key]).abs() <= step / 2 + 1e-6).all())
    out = ms.speculate(trained, [list(p) for p in PROMPTS[:10]], drafter, 3, 20)
    plain = ms.generate(trained, [list(p) for p in PROMPTS[:10]], 20)
    assert [o.tokens for o in out] == [p.tokens for p in plain]
    passes = sum(o.trace.target_passes for o in out)
    assert sum(len(o.tokens) for o in out) / passes > 1.4


@pytest.mark.slow
def test_options_of_the_command(target, stored, folder, tmp_path):
    """Narrower layers, other depths, an own head, written tokens as teachers, states kept in memory."""
    run(
        stored,
        folder,
        tmp_path,
        "--mlp",
        "16",
        "--layers",
        "1",
        "--hidden-layers",
        "0",
        "2",
        "--own-head",
        "--hard",
        "--keep",
        "--keep-bits",
        "8",
        "--decay",
        "3",
        "--stop-after",
        "3",
    )
    heads = load_head(ms.load(stored, device="cpu", dtype=torch.float32), tmp_path / "model")
    assert heads.hidden_layers == (0, 2) and len(heads.layers) == 1 and heads.lm_head.weight.shape == (48, 32)
    assert heads.layers[0].mlp.gate_proj.weight.shape == (16, 32)


@pytest.mark.slow
def test_a_drafter_in_the_published_form_is_trained_and_written(target, stored, folder, tmp_path):
    """Training computes what the drafter does, and what is stored is what is handed over."""
    run(stored, folder, tmp_path, "--public", "--stop-after", "3")
    given = ms.load(stored, device="cpu", dtype=torch.float32)
    heads = load_head(given, tmp_path / "model")
    assert heads.public and heads.config.qk_norm and not given.config.qk_norm
    assert heads.mask_token_id not in Corpus.load(folder).tokens
    assert torch.equal(heads.mask, given.transformer.embed_tokens.weight[heads.mask_token_id])
    again = read_dflash(given, write_dflash(heads, given, tmp_path / "public"))
    assert all(torch.equal(again.state_dict()[key], value) for key, value in heads.state_dict().items())
    assert torch.equal(again.lm_head.weight, heads.head_rows(given.transformer))  # rows of some tokens go along
    rows = Corpus.load(folder)[:3]
    tokens = rows.tokens.long()
    hidden = given.transformer.body(tokens, hidden_layers=heads.hidden_layers)[1]
    states = training.read_blocks(heads, given.transformer, tokens, hidden, torch.full((3, 1), 5))  # [3, 1, B, d]
    expected = states[:, 0, 1:] @ heads.head_rows(given.transformer).T
    contexts = [
        Context(i, row[:6].tolist(), None, None, {n: h[i, :5] for n, h in hidden.items()})
        for i, row in enumerate(tokens)
    ]
    assert torch.allclose(DFlash(given, again).score(contexts), expected, atol=1e-4)
    places = ["--model", stored, "--corpus", folder, "--out", tmp_path / "none", "--device", "cpu"]
    args = parser().parse_args(["train", "dflash", *map(str, places), "--public", "--start", str(tmp_path / "model")])
    with pytest.raises(ValueError, match="--public"):
        training.run(args, given)


@pytest.mark.slow
def test_training_goes_on_from_a_stored_head(target, stored, folder, tmp_path):
    """In full precision, with a learning rate that begins anew: no steps to speak of leave the head as it was."""
    given = training.head_from(target.transformer, torch.arange(48), layers=[1], hidden_layers=[0, 2], block=4, mlp=16)
    start, sizes = tmp_path / "given", training.shape_of(given)
    save_heads(given, start, heads_for(target, "dflash") | sizes)
    before = load_head(target, start).state_dict()
    run(stored, folder, tmp_path / "still", "--start", start, "--stop-after", 2, "--lr", 1e-9)
    run(stored, folder, tmp_path / "moved", "--start", start, "--stop-after", 2)
    still, moved = (torch.load(tmp_path / n / "checkpoint.pt", weights_only=True)["module"] for n in ("still", "moved"))
    for name, weight in before.items():
        assert torch.allclose(still[name], weight, rtol=0, atol=1e-7)
    assert not torch.allclose(moved["fc.weight"], before["fc.weight"], rtol=0, atol=1e-4)
    assert sizes.items() <= json.loads((tmp_path / "moved" / "model" / "config.json").read_text()).items()
    wrong = {"block": 5, "head_vocab": 47, "mlp": 17, "own_head": True, "layers": 2, "hidden_layers": [1]}
    flags = [
        ["--block", 5],
        ["--head-vocab", 47],
        ["--mlp", 17],
        ["--own-head"],
        ["--layers", 0, 1],
        ["--hidden-layers", 1],
    ]
    places = ["--model", stored, "--corpus", folder, "--out", tmp_path / "none", "--device", "cpu", "--start", start]
    for (name, value), flag in zip(wrong.items(), flags, strict=True):
        args = parser().parse_args(["train", "dflash", *map(str, [*places, *flag])])
        with pytest.raises(ValueError, match=f"{name}={re.escape(str(value))}"):
            training.run(args, target)
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize("public", [False, True])
def test_a_stored_head_may_get_more_tokens_and_layers(target, stored, folder, tmp_path, public):
    """Rows of more tokens are borrowed, and new layers begin by adding nothing: until it learns, logits stay."""
    given = training.head_from(
        target.transformer,
        torch.arange(40),
        layers=[1, 0],
        hidden_layers=[0, 2],
        block=4,
        mlp=16,
        mask_token=63 if public else None,
    )
    save_heads(given, tmp_path / "given", heads_for(target, "dflash") | training.shape_of(given), bits=None)
    more = ["--start", tmp_path / "given", "--add-layers", 1, "--stop-after", 1]
    run(stored, folder, tmp_path / "still", *more, "--lr", 1e-12)
    run(stored, folder, tmp_path / "moved", *more)
    old, still = load_head(target, tmp_path / "given"), load_head(target, tmp_path / "still" / "model")
    assert {*old.head_ids.tolist()} < {*still.head_ids.tolist()} and len(still.head_ids) == 48
    assert len(still.layers) == 3 and still.public == public
    ends = (tmp_path / name / "checkpoint.pt" for name in ("still", "moved"))
    trained, moved = (torch.load(file, weights_only=True)["module"] for file in ends)
    still.load_state_dict(trained)  # before it was rounded to eight bits
    tokens, anchors = Corpus.load(folder)[:3].tokens.long(), torch.full((3, 1), 5)
    hidden = target.transformer.body(tokens, hidden_layers=(0, 2))[1]
    before, after = (training.read_blocks(h, target.transformer, tokens, hidden, anchors) for h in (old, still))
    assert torch.allclose(before, after, rtol=0, atol=1e-5)
    assert moved["layers.1.mlp.down_proj.weight"].abs().max() > 0  # what begins with zero learns
    with pytest.raises(ValueError, match="--add-layers"):
        args = ["--model", stored, "--corpus", folder, "--out", tmp_path / "none", "--add-layers", 1]
        training.run(parser().parse_args(["train", "dflash", *map(str, args)]), target)


@pytest.mark.slow
def test_a_stored_head_may_get_narrower(target, stored, folder, tmp_path):
    """Fewer neurons than it has: the best ones stay, and what they say is fitted, before training goes on."""
    given = training.head_from(target.transformer, torch.arange(48), layers=[1], hidden_layers=[0, 2], block=4, mlp=16)
    with torch.no_grad():  # half of its neurons say nothing: those go, and nothing is lost
        given.layers[0].mlp.down_proj.weight[:, ::2] = 0
    save_heads(given, tmp_path / "given", heads_for(target, "dflash") | training.shape_of(given), bits=None)
    run(
        stored,
        folder,
        tmp_path / "out",
        "--start",
        tmp_path / "given",
        "--mlp",
        8,
        "--stop-after",
        1,
        "--lr",
        1e-9,
        "--bits",
        6,
    )
    assert load_file(tmp_path / "out" / "model" / "model.safetensors")["fc.weight"].abs().max() == 31  # of six bits
    narrow = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["module"]
    for name in ("gate_proj", "up_proj"):
        kept = given.layers[0].mlp.state_dict()[f"{name}.weight"][1::2]
        torch.testing.assert_close(narrow[f"layers.0.mlp.{name}.weight"], kept, rtol=0, atol=1e-6)
    kept = given.layers[0].mlp.down_proj.weight.detach()[:, 1::2]
    torch.testing.assert_close(narrow["layers.0.mlp.down_proj.weight"], kept, rtol=0, atol=0.01 * float(kept.std()))


def test_depths_are_spread_from_early_to_last():
    assert training.spread(30) == [1, 8, 16, 23, 30]
    assert training.spread(2) == [1, 2]


def test_it_starts_from_the_targets_layers(target):
    ids = frequent_tokens(
        Corpus(torch.ones(1, 4, dtype=torch.int32), torch.tensor([1]), torch.tensor([4]), torch.zeros(1)),
        64,
        16,
        always=[0],
    )
    head = training.head_from(target.transformer, ids, own_head=True)
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    for mine, theirs in zip(head.layers, target.transformer.layers, strict=True):
        assert torch.equal(mine.self_attn.k_proj(x), theirs.self_attn.k_proj(x))
        assert torch.allclose(mine.mlp(x), theirs.mlp(x), atol=1e-5)  # its neurons may stand in another order
    assert torch.equal(head.lm_head.weight, target.transformer.lm_head.weight[ids])
