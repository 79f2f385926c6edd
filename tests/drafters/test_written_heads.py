"""Our heads in published forms without training: other weights, the same logits."""

import json

import pytest
import torch
import torch.nn.functional as F
from all_drafters import random_eagle, random_medusa
from by_hand import head_logits
from safetensors.torch import load_file

import minispec as ms
from minispec.drafters.eagle import Form
from minispec.load.heads_dflash import write_dflash
from minispec.load.heads_eagle import write_eagle
from minispec.load.heads_medusa import write_medusa

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
IDS = torch.tensor([1, 4, 9, 16, 25, 36, 49, 2, 3, 5])
D = ms.drafters


def features(target: ms.Model, head, tokens: list[int], follow: list[int]) -> torch.Tensor:
    hidden = target.transformer.body(torch.tensor([tokens]), hidden_layers=head.hidden_layers)[1]
    return head_logits(head, [hidden[n][:, :-1] for n in head.hidden_layers], tokens, follow)


def test_what_no_engine_computes_is_not_written(tmp_path):
    micro = ms.load("micro", device="cpu")
    for write, heads in ((write_dflash, D.DFlash(micro).heads), (write_eagle, D.EagleHead.load(micro))):
        with pytest.raises(ValueError, match=r"--public|--form eagle3\.1"):
            write(heads, micro, tmp_path)


def test_what_was_written_is_read_back(make_model, tmp_path):
    target = make_model(num_layers=3)
    head = random_eagle(target, noise=0.5, form=Form.eagle3(stream_norm="each"))
    again = D.EagleHead.load(target, write_eagle(head, target, tmp_path))
    assert again.form == head.form and again.hidden_layers == head.hidden_layers
    assert torch.allclose(features(target, again, TEXT, [1, 2]), features(target, head, TEXT, [1, 2]), atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [dict(), dict(own_head=True), dict(own_head="each"), dict(blocks=2), dict(own_head="map"), dict(head_ids=IDS)],
    ids=str,
)
def test_medusa_by_vllms_formula(tiny, tmp_path, options):
    """x + SiLU(W x + b) for every layer of a block, then the LM head that all blocks share, or the block's own."""
    heads = random_medusa(tiny, **options)
    folder = write_medusa(heads, tiny, tmp_path)
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "medusa" and config["num_heads"] == 3 and config["medusa_fc_bias"]
    assert config["truncated_vocab_size"] == heads.head.shape[-2] and config["vocab_size"] == 64
    h = torch.randn(5, tiny.config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for i in range(3):
        x, block = h, f"blocks.{i}.layers"
        for n in range(config["num_hidden_layers"]):
            x = x + F.silu(F.linear(x, tensors[f"{block}.{n}.weight"], tensors[f"{block}.{n}.bias"]))
        head = tensors["lm_head.weight" if config["original_lm_head"] else f"lm_heads.{i}.weight"]
        assert torch.allclose(x @ head.T, heads(h)[:, i], rtol=0, atol=1e-12)
    assert ("token_map" in tensors) == ("head_ids" in options)
    assert "head_ids" not in options or torch.equal(tensors["token_map"], IDS)
