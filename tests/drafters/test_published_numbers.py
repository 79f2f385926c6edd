"""Numbers that the authors' own code computed once, from weights that a formula makes: ours are the same.

EAGLE-3 (eagle/model/cnets.py) and EAGLE-1 (cnets1.py): SafeAILab/EAGLE at cb7e0841fe0c, `forward` along a text with its
cache, then `topK_genrate` with top_k=3, depth=2, total_tokens=9. Medusa: ResBlock of medusa/model/medusa_model.py,
FasterDecoding/Medusa at e2a5d20c048a, with the same block once and twice in a head.
DFlash: dflash/model.py, z-lab/dflash at 44947fbf7111 (with transformers
5.22.2), two blocks one after the other with its cache. All in float64, in November 2026.
"""

from __future__ import annotations

import json
import zlib

import pytest
import torch
from safetensors.torch import save_file

import minispec as ms
from minispec.cache import KVCache
from minispec.load.heads_dflash import write_zlab
from minispec.sampling import Sampling
from minispec.tree import path_to

D = ms.drafters
V, DRAFT, WIDTH = 40, 24, 16
TEXT, FOLLOW = [3, 1, 4, 1, 5, 9, 2], [6, 5, 35]
IDS = [i for i in range(V) if i % 5 not in (1, 3)][:DRAFT]

# The first four logits after the text and after each token that follows, and which of all is the largest.
LOGITS = {
    "eagle3": [
        ([0.141321, 2.226289, -0.159588, -0.88524], 1),
        ([0.621294, 2.864521, 1.008523, -0.259138], 1),
        ([0.658903, 2.738903, 1.708153, 0.143928], 1),
        ([0.846312, 2.880811, 1.817342, 0.018585], 1),
    ],
    "eagle1": [
        ([-1.567683, -0.583282, 0.914164, 0.983678], 18),
        ([-2.347229, -0.021423, 0.822991, 1.409393], 8),
        ([-2.203815, -3.09316, -3.440017, 1.860596], 25),
        ([-4.211, -0.00623, -1.897312, 1.033423], 5),
    ],
}
# Every node of the tree by the tokens that lead to it.
TREES = {
    "eagle3": [(2,), (19,), (27,), (2, 2), (2, 19), (2, 4), (19, 2), (27, 2)],
    "eagle1": [(18,), (8,), (25,), (18, 28), (18, 7), (18, 8), (8, 28), (8, 8)],
}
MEDUSA = {  # by how many blocks a head has: of each of three heads the first four logits, and which is the largest
    1: [
        ([6.471529, 1.952412, 2.464622, -0.008005], 0),
        ([5.226552, 0.147569, 1.210813, 1.400092], 0),
        ([-0.980599, -1.342681, 0.379484, 0.516382], 14),
    ],
    2: [
        ([3.438079, 2.326886, 3.212874, -0.95482], 27),
        ([-5.133389, 2.068738, -2.727878, -2.495842], 18),
        ([0.163655, -1.861894, 1.283592, 1.055703], 36),
    ],
}

DFLASH = [  # of each of two blocks, for three blanks
    [
        ([-0.055614, 0.118345, 1.090057, 1.460136], 24),
        ([-0.401817, -0.117884, 0.873383, 1.734029], 24),
        ([-0.558097, -0.035265, 0.895473, 1.81827], 24),
    ],
    [
        ([-0.876988, -2.784025, -1.410202, 1.808602], 6),
        ([-0.423015, -2.225454, -1.278823, 1.821914], 6),
        ([-0.436497, -1.750313, -1.22869, 1.234616], 6),
    ],
]


def formula(name: str, *shape: int) -> torch.Tensor:
    """Weights that need no file: sines of n^1.5, shifted by the name."""
    n = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64)
    x = torch.sin(n**1.5 * 0.7 + zlib.crc32(name.encode()) % 1000).view(shape)
    return 1 + 0.2 * x if "norm" in name else 1.5 * x / shape[-1] ** 0.5 if len(shape) > 1 else 0.3 * x


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    model = make_model(
        vocab_size=V,
        hidden_size=WIDTH,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        num_layers=8,
        norm_eps=1e-6,
        tie_embeddings=False,
    )
    model.transformer.lm_head.weight.copy_(formula("target.lm_head", V, WIDTH))
    model.transformer.embed_tokens.weight.copy_(formula("target.embed_tokens", V, WIDTH))
    return model


def write_eagle(folder, name: str):
    """A folder as the authors upload it."""
    prefix, inputs, streams = ("midlayer", 32, 3) if name == "eagle3" else ("layers.0", 16, 2)
    shapes = {
        "self_attn.q_proj": (16, inputs),
        "self_attn.k_proj": (8, inputs),
        "self_attn.v_proj": (8, inputs),
        "self_attn.o_proj": (16, 16),
        "mlp.gate_proj": (24, 16),
        "mlp.up_proj": (24, 16),
        "mlp.down_proj": (16, 24),
        "post_attention_layernorm": (16,),
    }
    if name == "eagle3":
        shapes |= {"hidden_norm": (16,), "input_layernorm": (16,)}
    shapes = {f"{prefix}.{key}.weight": shape for key, shape in shapes.items()}
    shapes |= {"embed_tokens.weight": (V, WIDTH), "fc.weight": (WIDTH, streams * WIDTH)}
    shapes |= {"norm.weight": (16,), "lm_head.weight": (DRAFT, 16)} if name == "eagle3" else {"fc.bias": (16,)}
    tensors = {key: formula(key, *shape) for key, shape in shapes.items()}
    config = dict(
        model_type="llama",
        vocab_size=V,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
    )
    if name == "eagle3":
        ids = torch.tensor(IDS)
        tensors |= {"d2t": ids - torch.arange(DRAFT), "t2d": torch.isin(torch.arange(V), ids)}
        config["draft_vocab_size"] = DRAFT
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", LOGITS)
def test_eagle(target, tmp_path, name):
    head = D.Eagle(target, write_eagle(tmp_path, name)).head
    streams = 2 * formula(f"hidden.{name}", 1, len(TEXT) - 1, len(head.hidden_layers) * WIDTH)
    if name == "eagle1":
        head.target_norm = lambda h: h  # what the formula makes is the state after the target's norm
    streams = streams.chunk(len(head.hidden_layers), -1)  # [1, T, d] each
    cache, read, feature = KVCache(head.config, 1, 16, dtype=head.dtype), TEXT[1:], head.fuse(streams)
    for (first, best), token in zip(LOGITS[name], [*FOLLOW, None], strict=True):
        slots, attend = cache.begin(len(read))
        feature = head(torch.tensor([read]), feature, head.rope(slots), attend)[:, -1:]
        cache.advance(len(read))
        logits, read = head.logits(feature)[0, 0], [token]
        assert torch.allclose(logits[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=2e-6)
        assert int(logits.argmax()) == best

    hidden = {n: states[0] for n, states in zip(head.hidden_layers, streams, strict=True)}
    drafter = D.Eagle(target, head, width=3, nodes=8)
    (draft,) = drafter.propose([D.Context(0, TEXT, Sampling(temperature=0), None, hidden)], 3)
    nodes = [tuple(draft.tokens[i] for i in path_to(draft.parents, node)) for node in range(len(draft.tokens))]
    assert sorted(nodes) == sorted(TREES[name])


@pytest.mark.parametrize("blocks", MEDUSA)
def test_medusa(target, tmp_path, blocks):
    tensors = {}
    for k in range(3):
        for block in range(blocks):  # one module, stored under every place it has in the list
            tensors |= {
                f"{k}.{block}.linear.weight": formula(f"{k}.0.linear.weight", WIDTH, WIDTH),
                f"{k}.{block}.linear.bias": formula(f"{k}.0.linear.bias", WIDTH),
            }
        tensors[f"{k}.{blocks}.weight"] = formula(f"{k}.{blocks}.weight", V, WIDTH)
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    config = {"medusa_num_heads": 2, "medusa_num_layers": blocks, "base_model_name_or_path": "x"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    logits = D.Medusa(target, tmp_path).heads(4 * formula("hidden.medusa", 1, WIDTH))[0]  # [3, V]
    for found, (first, best) in zip(logits, MEDUSA[blocks], strict=True):
        assert torch.allclose(found[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=2e-6)
        assert int(found.argmax()) == best


def write_dflash(folder):
    """A folder as z-lab uploads it."""
    shapes = {
        "self_attn.q_proj": (16, 16),
        "self_attn.k_proj": (8, 16),
        "self_attn.v_proj": (8, 16),
        "self_attn.o_proj": (16, 16),
        "self_attn.q_norm": (4,),
        "self_attn.k_norm": (4,),
        "mlp.gate_proj": (24, 16),
        "mlp.up_proj": (24, 16),
        "mlp.down_proj": (16, 24),
        "input_layernorm": (16,),
        "post_attention_layernorm": (16,),
    }
    shapes = {f"layers.{i}.{key}.weight": shape for key, shape in shapes.items() for i in range(2)}
    shapes |= {"fc.weight": (WIDTH, 3 * WIDTH), "hidden_norm.weight": (16,), "norm.weight": (16,)}
    save_file({key: formula(key, *shape) for key, shape in shapes.items()}, folder / "model.safetensors")
    config = dict(
        model_type="qwen3",
        architectures=["DFlashDraftModel"],
        vocab_size=V,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        rms_norm_eps=1e-6,
        max_position_embeddings=64,
        rope_theta=10_000.0,
        num_target_layers=8,
        block_size=4,
        dflash_config=dict(mask_token_id=39, target_layer_ids=[0, 3, 5]),
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("written_again", [False, True])
def test_dflash(target, tmp_path, written_again):
    """As z-lab stores it, and as we write what was read."""
    folder = write_dflash(tmp_path)
    if written_again:
        folder = write_zlab(D.DFlash(target, folder).heads, target, tmp_path / "again")
    drafter = D.DFlash(target, folder)
    streams = (2 * formula("hidden.dflash", 1, 8, 3 * WIDTH))[0].chunk(3, -1)  # [8, d] each
    text = [*TEXT, 6, 35]  # the second block comes after two more tokens
    for blanks, (start, end) in zip(DFLASH, ((0, 6), (6, 8)), strict=True):
        hidden = {n: states[start:end] for n, states in zip(drafter.hidden_layers, streams, strict=True)}
        logits = drafter.score([D.Context(0, text[: end + 1], Sampling(temperature=0), None, hidden)])[0]  # [3, V]
        for found, (first, best) in zip(logits, blanks, strict=True):
            assert torch.allclose(found[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=2e-6)
            assert int(found.argmax()) == best


def test_what_z_lab_s_layout_cannot_say(target, tmp_path):
    heads = D.DFlash(target, write_dflash(tmp_path)).heads
    written = json.loads((write_zlab(heads, target, tmp_path / "again") / "config.json").read_text())
    assert written["dflash_config"] == {"mask_token_id": 39, "target_layer_ids": [0, 3, 5]}
    assert (written["block_size"], written["num_target_layers"], written["model_type"]) == (4, 8, "qwen3")
    for layers, named in (((1, 4, 8), "after 8 of 8"), ((0, 4, 6), "after 0 of 8")):
        heads.hidden_layers = layers
        with pytest.raises(ValueError, match=f"{named}.*--hidden-layers"):
            write_zlab(heads, target, tmp_path / "none")
    heads.hidden_layers, heads.lm_head = (1, 4, 6), torch.nn.Linear(WIDTH, V, bias=False)
    with pytest.raises(ValueError, match="--own-head"):
        write_zlab(heads, target, tmp_path / "none")
    heads.lm_head, heads.public = None, False
    with pytest.raises(ValueError, match="--public"):
        write_zlab(heads, target, tmp_path / "none")
    assert not (tmp_path / "none").exists()
