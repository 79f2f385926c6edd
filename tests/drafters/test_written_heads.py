"""Our heads in published forms without training: other weights, the same logits."""

import pytest
import torch
from all_drafters import random_eagle
from by_hand import head_logits

import minispec as ms
from minispec.drafters.eagle import Form
from minispec.load.heads_dflash import write_dflash
from minispec.load.heads_eagle import write_eagle

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
