"""Our heads in published forms without training: other weights, the same logits."""

import json

import pytest
import torch
from all_drafters import random_eagle, random_medusa
from by_hand import head_logits
from safetensors.torch import load_file

import minispec as ms
from minispec.drafters.eagle import Form
from minispec.load.heads_dflash import write_dflash
from minispec.load.heads_eagle import write_eagle, write_eagle3
from minispec.load.heads_medusa import write_medusa

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
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


FORMS = [Form.eagle3(), Form.eagle3(stream_norm="each", norm_output=True), Form.eagle3(stream_norm="joint")]


def test_eagle_in_the_authors_layout(make_model, tmp_path):
    """What SGLang reads: names, numbers of layers from 0, offsets of tokens; read back it says the same."""
    target = make_model(num_layers=4)
    for n, form in enumerate(FORMS):
        head = random_eagle(target, noise=0.5, form=form, hidden_layers=[1, 2, 3])
        folder = write_eagle3(head, target, tmp_path / str(n))
        config = json.loads((folder / "config.json").read_text())
        assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
        assert (config["architectures"], config["draft_vocab_size"]) == (["LlamaForCausalLMEagle3"], 48)
        assert "midlayer.hidden_norm.weight" in load_file(folder / "model.safetensors")
        again = D.EagleHead.load(target, folder)
        assert again.form == head.form and again.hidden_layers == head.hidden_layers
        assert torch.equal(again.head_ids, head.head_ids)
        assert torch.allclose(features(target, again, TEXT, [1, 2]), features(target, head, TEXT, [1, 2]), atol=1e-9)


def test_what_sglang_would_leave_out_is_refused(make_model, tmp_path):
    target, public = make_model(num_layers=4), Form.eagle3()
    for options, named in (
        (dict(), "embed_proj"),
        (dict(form=Form.eagle3(norm_before_residual=True)), "norm"),
        (dict(form=public, layers=2), "2 layers"),
        (dict(form=public, hidden_layers=[1, 2, 4]), "4"),
        (dict(form=public, hidden_layers=[0, 1, 2]), "0"),
    ):
        head = random_eagle(target, **{"hidden_layers": [1, 2, 3]} | options)
        with pytest.raises(ValueError, match=f"this EAGLE head .*{named}.*SGLang"):
            write_eagle3(head, target, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_medusa_in_the_authors_layout(tiny, tmp_path):
    ids = torch.tensor([1, 4, 9, 16, 25, 36, 49, 2, 3, 5])
    ways = [dict(), dict(own_head=True), dict(own_head="each"), dict(blocks=2), dict(own_head="map", head_ids=ids)]
    for n, options in enumerate([*ways, dict(head_ids=ids)]):
        heads = random_medusa(tiny, **options)
        again = D.MedusaHeads.load(tiny, write_medusa(heads, tiny, tmp_path / str(n)))
        h = torch.randn(5, tiny.config.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        assert again.own_head == "each" and again.head.shape == (3, *tiny.transformer.lm_head.weight.shape)
        chosen = again(h)[..., ids] if "head_ids" in options else again(h)
        assert torch.allclose(chosen, heads(h), rtol=0, atol=1e-12)
    heads = random_medusa(tiny, head_ids=torch.arange(20), own_head=True)
    with pytest.raises(ValueError, match="20 of 64"):  # rows of their own for some tokens have no public form
        write_medusa(heads, tiny, tmp_path)
