"""Numbers that the authors' own code computed once, from weights that a formula makes: ours are the same.

EAGLE-3 (eagle/model/cnets.py): SafeAILab/EAGLE at cb7e0841fe0c, `forward` along a text with its cache, then
`topK_genrate` with top_k=3, depth=2, total_tokens=9. Medusa: ResBlock of medusa/model/medusa_model.py,
FasterDecoding/Medusa at e2a5d20c048a, with the same block twice in a head. DFlash: dflash/model.py,
z-lab/dflash at 44947fbf7111 (with transformers 5.22.2), two blocks one after the other with its cache. All in float64,
in November 2026.
"""

import json
import zlib

import pytest
import torch
from by_hand import blank_logits, head_logits, layer_config, layer_shapes
from safetensors.torch import save_file

import minispec as ms
from minispec.sampling import Sampling
from minispec.tree import path_to

D = ms.drafters
V, DRAFT, WIDTH = 40, 24, 16
TEXT, FOLLOW = [3, 1, 4, 1, 5, 9, 2], [6, 5, 35]
IDS = [i for i in range(V) if i % 5 not in (1, 3)][:DRAFT]

# The first four logits after the text and after each token that follows, and which of all is the largest.
EAGLE = [
    ([0.141321, 2.226289, -0.159588, -0.88524], 1),
    ([0.621294, 2.864521, 1.008523, -0.259138], 1),
    ([0.658903, 2.738903, 1.708153, 0.143928], 1),
    ([0.846312, 2.880811, 1.817342, 0.018585], 1),
]
TREE = [(2,), (19,), (27,), (2, 2), (2, 19), (2, 4), (19, 2), (27, 2)]  # every node by the tokens that lead to it
MEDUSA = [  # of each of three heads the first four logits, and which is the largest
    ([3.438079, 2.326886, 3.212874, -0.95482], 27),
    ([-5.133389, 2.068738, -2.727878, -2.495842], 18),
    ([0.163655, -1.861894, 1.283592, 1.055703], 36),
]

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
    heads = dict(num_heads=4, num_kv_heads=2, head_dim=4, num_layers=8, norm_eps=1e-6, intermediate_size=24)
    model = make_model(vocab_size=V, hidden_size=WIDTH, tie_embeddings=False, **heads)
    model.transformer.lm_head.weight.copy_(formula("target.lm_head", V, WIDTH))
    model.transformer.embed_tokens.weight.copy_(formula("target.embed_tokens", V, WIDTH))
    return model


def write(folder, target: ms.Model, shapes: dict, config: dict, **more):
    """A folder as the authors upload it."""
    tensors = {key: formula(key, *shape) for key, shape in shapes.items()} | more
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(layer_config(target.config) | config))
    return folder


def write_eagle(folder, target: ms.Model):
    after, ids = "post_attention_layernorm", torch.tensor(IDS)
    shapes = {"embed_tokens.weight": (V, WIDTH), "fc.weight": (WIDTH, 3 * WIDTH), "lm_head.weight": (DRAFT, WIDTH)}
    shapes |= layer_shapes(target.config, "midlayer", 2 * WIDTH, ("hidden_norm", "input_layernorm", after))
    maps = {"d2t": ids - torch.arange(DRAFT), "t2d": torch.isin(torch.arange(V), ids)}
    return write(folder, target, shapes | {"norm.weight": (WIDTH,)}, {"draft_vocab_size": DRAFT}, **maps)


def test_eagle(target, tmp_path):
    head = D.Eagle(target, write_eagle(tmp_path, target)).head
    streams = (2 * formula("hidden.eagle3", 1, len(TEXT) - 1, 3 * WIDTH)).chunk(3, -1)  # [1, T, d] each
    for found, (first, best) in zip(head_logits(head, streams, TEXT, FOLLOW), EAGLE, strict=True):
        assert torch.allclose(found[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=2e-6)
        assert int(found.argmax()) == best
    hidden = {n: states[0] for n, states in zip(head.hidden_layers, streams, strict=True)}
    drafter = D.Eagle(target, head, width=3, nodes=8)
    (draft,) = drafter.propose([ms.Sequence(0, TEXT, Sampling(temperature=0), None, [hidden])], 3)
    nodes = [tuple(draft.tokens[i] for i in path_to(draft.parents, node)) for node in range(len(draft.tokens))]
    assert sorted(nodes) == sorted(TREE)


def test_medusa(target, tmp_path):
    tensors = {}
    for k in range(3):
        for block in range(2):  # one module, stored under every place it has in the list
            own = f"{k}.{block}.linear"
            tensors[f"{own}.weight"] = formula(f"{k}.0.linear.weight", WIDTH, WIDTH)
            tensors[f"{own}.bias"] = formula(f"{k}.0.linear.bias", WIDTH)
        tensors[f"{k}.2.weight"] = formula(f"{k}.2.weight", V, WIDTH)
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    config = {"medusa_num_heads": 2, "medusa_num_layers": 2, "base_model_name_or_path": "x"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    logits = D.Medusa(target, tmp_path).heads(4 * formula("hidden.medusa", 1, WIDTH))[0]  # [3, V]
    for found, (first, best) in zip(logits, MEDUSA, strict=True):
        assert torch.allclose(found[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=2e-6)
        assert int(found.argmax()) == best


def write_dflash(folder, target: ms.Model):
    shapes = {"fc.weight": (WIDTH, 3 * WIDTH), "hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,)}
    for n in range(2):
        norms = ("input_layernorm", "post_attention_layernorm")
        shapes |= layer_shapes(target.config, f"layers.{n}", WIDTH, norms, qk_norm=True)
    own = dict(mask_token_id=39, target_layer_ids=[0, 3, 5])
    config = dict(model_type="qwen3", num_hidden_layers=2, block_size=4, num_target_layers=8, dflash_config=own)
    return write(folder, target, shapes, config)


def test_dflash(target, tmp_path):
    drafter = D.DFlash(target, write_dflash(tmp_path, target))
    streams = (2 * formula("hidden.dflash", 1, 8, 3 * WIDTH))[0].chunk(3, -1)  # [8, d] each
    text = [*TEXT, 6, 35]  # the second block comes after two more tokens
    for blanks, (start, end) in zip(DFLASH, ((0, 6), (6, 8)), strict=True):
        hidden = {n: states[start:end] for n, states in zip(drafter.hidden_layers, streams, strict=True)}
        context = ms.Sequence(0, text[: end + 1], Sampling(temperature=0), None, [hidden])
        logits = blank_logits(drafter, [context])[0]  # [3, V]
        for found, (first, best) in zip(logits, blanks, strict=True):
            assert torch.allclose(found[:4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=2e-6)
            assert int(found.argmax()) == best
