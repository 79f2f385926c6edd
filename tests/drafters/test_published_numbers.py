"""Numbers that the authors' own code computed once, from weights that a formula makes: ours are the same.

EAGLE-3 (eagle/model/cnets.py) and EAGLE-1 (cnets1.py): SafeAILab/EAGLE at cb7e0841fe0c, `forward` along a text with its
cache, then `topK_genrate` with top_k=3, depth=2, total_tokens=9. Medusa: ResBlock of medusa/model/medusa_model.py,
FasterDecoding/Medusa at e2a5d20c048a, with the same block once and twice in a head. All in float64, in November 2026.
"""

from __future__ import annotations

import json
import zlib

import pytest
import torch
from safetensors.torch import save_file

import minispec as ms
from minispec.cache import KVCache
from minispec.sampling import Sampling
from minispec.tree import path_to

D = ms.drafters
V, DRAFT, WIDTH = 40, 24, 16
TEXT, FOLLOW = [3, 1, 4, 1, 5, 9, 2], [6, 5, 35]
IDS = [i for i in range(V) if i % 5 not in (1, 3)][:DRAFT]

# The first four logits after the text and after each token that follows, and which of all is the largest.
LOGITS = {
    "eagle3": [([0.141321, 2.226289, -0.159588, -0.88524], 1), ([0.621294, 2.864521, 1.008523, -0.259138], 1),
               ([0.658903, 2.738903, 1.708153, 0.143928], 1), ([0.846312, 2.880811, 1.817342, 0.018585], 1)],
    "eagle1": [([-1.567683, -0.583282, 0.914164, 0.983678], 18), ([-2.347229, -0.021423, 0.822991, 1.409393], 8),
               ([-2.203815, -3.09316, -3.440017, 1.860596], 25), ([-4.211, -0.00623, -1.897312, 1.033423], 5)],
}  # fmt: skip
# Every node of the tree by the tokens that lead to it.
TREES = {
    "eagle3": [(2,), (19,), (27,), (2, 2), (2, 19), (2, 4), (19, 2), (27, 2)],
    "eagle1": [(18,), (8,), (25,), (18, 28), (18, 7), (18, 8), (8, 28), (8, 8)],
}
MEDUSA = {  # by how many blocks a head has: of each of three heads the first four logits, and which is the largest
    1: [([6.471529, 1.952412, 2.464622, -0.008005], 0), ([5.226552, 0.147569, 1.210813, 1.400092], 0),
        ([-0.980599, -1.342681, 0.379484, 0.516382], 14)],
    2: [([3.438079, 2.326886, 3.212874, -0.95482], 27), ([-5.133389, 2.068738, -2.727878, -2.495842], 18),
        ([0.163655, -1.861894, 1.283592, 1.055703], 36)],
}  # fmt: skip


def formula(name: str, *shape: int) -> torch.Tensor:
    """Weights that need no file: sines of n^1.5, shifted by the name."""
    n = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64)
    x = torch.sin(n**1.5 * 0.7 + zlib.crc32(name.encode()) % 1000).view(shape)
    return 1 + 0.2 * x if "norm" in name else 1.5 * x / shape[-1] ** 0.5 if len(shape) > 1 else 0.3 * x


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    model = make_model(vocab_size=V, hidden_size=WIDTH, num_heads=4, num_kv_heads=2, head_dim=4, num_layers=8,
                       norm_eps=1e-6, tie_embeddings=False)  # fmt: skip
    model.transformer.lm_head.weight.copy_(formula("target.lm_head", V, WIDTH))
    return model


def write_eagle(folder, name: str):
    """A folder as the authors upload it."""
    prefix, inputs, streams = ("midlayer", 32, 3) if name == "eagle3" else ("layers.0", 16, 2)
    shapes = {"self_attn.q_proj": (16, inputs), "self_attn.k_proj": (8, inputs), "self_attn.v_proj": (8, inputs),
              "self_attn.o_proj": (16, 16), "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16),
              "mlp.down_proj": (16, 24), "post_attention_layernorm": (16,)}  # fmt: skip
    if name == "eagle3":
        shapes |= {"hidden_norm": (16,), "input_layernorm": (16,)}
    shapes = {f"{prefix}.{key}.weight": shape for key, shape in shapes.items()}
    shapes |= {"embed_tokens.weight": (V, WIDTH), "fc.weight": (WIDTH, streams * WIDTH)}
    shapes |= {"norm.weight": (16,), "lm_head.weight": (DRAFT, 16)} if name == "eagle3" else {"fc.bias": (16,)}
    tensors = {key: formula(key, *shape) for key, shape in shapes.items()}
    config = dict(model_type="llama", vocab_size=V, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=1,
                  num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6)  # fmt: skip
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
            tensors |= {f"{k}.{block}.linear.weight": formula(f"{k}.0.linear.weight", WIDTH, WIDTH),
                        f"{k}.{block}.linear.bias": formula(f"{k}.0.linear.bias", WIDTH)}  # fmt: skip
        tensors[f"{k}.{blocks}.weight"] = formula(f"{k}.{blocks}.weight", V, WIDTH)
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    config = {"medusa_num_heads": 2, "medusa_num_layers": blocks, "base_model_name_or_path": "x"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    logits = D.Medusa(target, tmp_path).heads(4 * formula("hidden.medusa", 1, WIDTH))[0]  # [3, V]
    for found, (first, best) in zip(logits, MEDUSA[blocks], strict=True):
        assert torch.allclose(found[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=2e-6)
        assert int(found.argmax()) == best
