"""Heads in minispec's own storage: within 8 bits the same, and whatever is the target's is not stored."""

import pytest
import torch
from all_drafters import random_dflash, random_eagle, random_medusa, random_mtp

import minispec as ms
from minispec_tools.train import pairs

D = ms.drafters
IDS = torch.arange(0, 64, 3)


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    return make_model(num_layers=3)


def eagle(target: ms.Model, own_head: bool) -> D.EagleHead:
    head = random_eagle(target, layers=2, mlp=20, own_head=own_head, hidden_layers=(0, 3))
    head.head_ids += 7
    if not own_head:
        head.borrow(target)
    return head


HEADS = {  # drafter, head, and whether it stores rows of an LM head
    "eagle": (D.Eagle, lambda target: eagle(target, False), False),
    "eagle, own rows": (D.Eagle, lambda target: eagle(target, True), True),
    "mtp": (D.MTP, lambda target: random_mtp(target, mlp=20), False),
    "dflash": (D.DFlash, random_dflash, False),
} | {
    f"medusa, {own}, {'all tokens' if ids is None else 'some tokens'}": (
        D.Medusa,
        lambda target, own=own, ids=ids: random_medusa(
            target, head_ids=ids, own_head=own, blocks=2 if own == "map" else 1
        ),
        own in (True, "each"),
    )
    for own in (False, True, "each", "map")
    for ids in (None, IDS)
}


@pytest.mark.parametrize("name", HEADS)
def test_a_stored_head_is_the_same_within_8_bits(target, tmp_path, name):
    """And a drafter of the folder still emits the target's tokens."""
    drafter, make, own_rows = HEADS[name]
    head, medusa = make(target), drafter is D.Medusa
    head.accuracy = [[0.4, 0.2], [0.3, 0.1], [0.2, 0.1]] if medusa else [0.5, 0.25]
    head.save(target, tmp_path)
    stored = type(head).load(target, tmp_path)
    before, after = head.state_dict(), stored.state_dict()
    assert (stored.accuracy, stored.shape) == (head.accuracy, head.shape) and after.keys() == before.keys()
    assert not any(p.requires_grad for p in stored.parameters()) and ("head" in after) == own_rows
    for key, weight in before.items():
        step = weight.abs().amax(-1, keepdim=True) / 127 if weight.ndim >= 2 else 1e-6
        assert ((after[key] - weight).abs() <= step / 2 + 1e-6).all(), key
    if drafter is D.Eagle and not own_rows:
        assert torch.equal(stored.head, target.transformer.lm_head.weight[stored.head_ids])
    out = ms.speculate(target, [3, 1, 4, 1, 5], drafter(target, tmp_path, nodes=9), 3, 12)
    assert out.tokens == ms.generate(target, [3, 1, 4, 1, 5], 12).tokens


def test_medusa_borrows_the_targets_rows_and_owns_a_copy(target):
    borrowed, own = D.MedusaHeads(target, 4, IDS), D.MedusaHeads(target, 4, IDS, own_head=True)
    with torch.no_grad():
        own.head += 1  # a copy: the target does not notice
    assert torch.equal(borrowed.head, target.transformer.lm_head.weight[IDS])
    assert D.MedusaHeads(target).head.data_ptr() == target.transformer.lm_head.weight.data_ptr()  # all rows: no copy


def test_pair_scores_are_stored_beside_their_backbone(tiny, tmp_path):
    """Their folder names the backbone's; what is loaded is whole."""
    backbone = random_dflash(tiny)
    backbone.save(tiny, tmp_path / "dflash", bits=None)
    for kind in (D.DFlash2Head, D.DSparkHead):
        head = pairs.new_head(kind, backbone, rank=8, neurons=12, backbone="../dflash")
        head.save(tiny, tmp_path / kind.kind, bits=None)
        loaded, state = kind.load(tiny, tmp_path / kind.kind).state_dict(), head.state_dict()
        assert state.keys() == loaded.keys() > backbone.state_dict().keys()
        assert all(torch.equal(weight, state[name]) for name, weight in loaded.items())
