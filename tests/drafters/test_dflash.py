"""DFlash: the block is read as the formula says, with a cache or without, at inference and in training alike."""

import math

import pytest
import torch
import torch.nn.functional as F
from all_drafters import random_dflash
from by_hand import blank_logits, paths, rms, sequence

import minispec as ms
from minispec.drafters import DFlash, DFlashHead
from minispec.model import rope_at, rotate
from minispec.sequence import Sequence
from minispec.tree import best_tree, depths, from_candidates
from minispec_tools.train import dflash as training
from minispec_tools.train.corpus import Corpus
from minispec_tools.train.lessons import Batch, Lessons


@pytest.fixture(scope="module")
def heads(tiny) -> DFlashHead:
    return random_dflash(tiny)


def whole(target: ms.Model, heads: DFlashHead, text: list[int], row: int = 0, **options) -> Sequence:
    return sequence(text, target, heads.hidden_layers, id=row, **options)


def by_hand(target: ms.Model, heads: DFlashHead, text: list[int]) -> torch.Tensor:
    """Logits [B − 1, v] of the block after a sequence, one query at a time, straight from the definition."""
    n, B, c = len(text) - 1, heads.block, heads.config
    norm = lambda x, module: rms(x, module.weight, c.norm_eps)  # noqa: E731
    hidden = whole(target, heads, text).hidden
    streams = [rms(h, 1.0, c.norm_eps) for h in hidden.values()]
    ctx = norm(torch.cat(streams, -1) @ heads.fc.weight.T, heads.context_norm) if hidden else torch.zeros(0, 32)
    x = torch.stack([target.transformer.embed_tokens.weight[text[-1]], *[heads.mask] * (B - 1)])  # [B, d]
    cos, sin = rope_at(c, torch.arange(n + B)[None], torch.float64)
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
    assert torch.allclose(blank_logits(drafter, [whole(tiny, heads, text)])[0], expected, rtol=0, atol=1e-10)
    for k in (1, 2, 3, 9):  # never more than the block has blanks
        (draft,) = DFlash(tiny, heads, tree=False).propose([whole(tiny, heads, text)], k)
        assert draft.tokens == heads.head_ids[expected[:k].argmax(-1)].tolist()
        assert len(draft.tokens) == min(k, 3) and draft.probs is None and draft.parents is None


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
            assert set(paths(draft)) == set(paths(expected)) and len(draft.tokens) == len(set(paths(draft))) == nodes
            assert draft.probs is None and max(depths(draft.parents)) <= min(k, 3)


# ---------------------------------------------------------------- the trainer


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
    for row, positions in enumerate(anchors.tolist()):
        for i, position in enumerate(positions):
            text = batch.tokens[row, : position + 1].tolist()  # up to the anchor, which the target has not read
            drafted = blank_logits(DFlash(tiny, heads), [whole(tiny, heads, text)])[0]
            assert torch.allclose(trained[row, i], drafted, rtol=0, atol=1e-10)
