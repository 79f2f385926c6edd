"""Heads in minispec's own storage: within 8 bits the same, and whatever is the target's is not stored."""

import torch
from all_drafters import random_eagle, random_medusa, random_mtp

import minispec as ms
from minispec.drafters import MTP, Eagle, EagleHead, Medusa, MedusaHeads, MTPHead

IDS = torch.arange(0, 64, 3)


def assert_stored(head: torch.nn.Module, target: ms.Model, folder, drafter: type, **options) -> torch.nn.Module:
    """What comes back; the drafter of the folder still emits the target's tokens."""
    head.save(target, folder)
    stored = type(head).load(target, folder)
    assert stored.accuracy == head.accuracy and stored.state_dict().keys() == head.state_dict().keys()
    assert not any(p.requires_grad for p in stored.parameters())
    for name, weight in head.state_dict().items():
        step = weight.abs().amax(-1, keepdim=True) / 127 if weight.ndim >= 2 else 1e-6
        assert ((stored.state_dict()[name] - weight).abs() <= step / 2 + 1e-6).all(), name
    out = ms.speculate(target, [3, 1, 4, 1, 5], drafter(target, folder, **options), 3, 12)
    assert out.tokens == ms.generate(target, [3, 1, 4, 1, 5], 12).tokens
    return stored


def test_eagle(make_model, tmp_path):
    target = make_model(num_layers=3)
    for own_head in (False, True):
        head = random_eagle(target, layers=2, mlp=20, own_head=own_head, hidden_layers=(0, 3))
        head.head_ids += 7
        if not own_head:
            head.borrow(target)
        head.accuracy = [0.5, 0.25]
        stored = assert_stored(head, target, tmp_path / str(own_head), Eagle, nodes=9)
        assert stored.hidden_layers == (0, 3) and stored.shape == head.shape and isinstance(stored, EagleHead)
        assert ("head" in stored.state_dict()) == own_head
        assert own_head or torch.equal(stored.head, target.transformer.lm_head.weight[stored.head_ids])


def test_mtp(make_model, tmp_path):
    target = make_model(num_layers=3)
    head = random_mtp(target, mlp=20)
    head.accuracy = [0.5, 0.25]
    stored = assert_stored(head, target, tmp_path, MTP)
    assert stored.shape == head.shape and "head" not in stored.state_dict()
    assert isinstance(stored, MTPHead)


def test_medusa(tiny, tmp_path):
    for own, ids in ((own, ids) for own in (False, True, "each", "map") for ids in (None, IDS)):
        heads = random_medusa(tiny, head_ids=ids, own_head=own, blocks=2 if own == "map" else 1)
        heads.accuracy = [[0.4, 0.2], [0.3, 0.1], [0.2, 0.1]]
        assert_stored(heads, tiny, tmp_path / f"{own} {ids is None}", Medusa, nodes=4)
        assert ("head" in heads.state_dict()) == (own in (True, "each"))
    borrowed, own = MedusaHeads(tiny, 4, IDS), MedusaHeads(tiny, 4, IDS, own_head=True)
    assert {*borrowed.state_dict()} == {"weight", "bias", "head_ids"}
    with torch.no_grad():
        own.head += 1  # a copy: the target does not notice
    assert torch.equal(borrowed.head, tiny.transformer.lm_head.weight[IDS])
    assert MedusaHeads(tiny).head.data_ptr() == tiny.transformer.lm_head.weight.data_ptr()  # all rows: no copy at all
