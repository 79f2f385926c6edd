"""What cannot work is refused by name, before any work."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from all_drafters import random_dflash, random_eagle, random_mtp

import minispec as ms
from minispec.drafters import Draft, Drafter
from minispec.speculate import check_drafter

D = ms.drafters
NAN, INF = float("nan"), float("inf")


class Reader(Drafter):
    """An inner drafter that wants hidden states."""

    hidden_layers = (1,)

    def propose(self, contexts, k):
        return [Draft([]) for _ in contexts]


def test_arguments_that_make_no_sense(tiny, make_model):
    """The message names the argument, the first of those given here."""
    small, ids = make_model(vocab_size=5), torch.arange(9)
    wrong = {
        D.NGram: [dict(n_max=0), dict(n_max=2.5), dict(n_min=4)],
        partial(D.Suffix, 8): [dict(factor=v) for v in (0, -1.0, NAN, INF)] + [dict(floor=v) for v in (-0.1, 1.1, NAN)],
        D.Suffix: [dict(depth=v) for v in (1, 0, 2.5)] + [dict(memory=v) for v in (-1, 0.5)],
        partial(D.EarlyExit, tiny): [dict(layers=v) for v in (0, -1, 3, 1.5, [0, 1])],
        partial(D.Quantized, tiny): [dict(bits=1), dict(bits=9), dict(group=5, bits=4)],
        D.Lookahead: [dict(window=0), dict(ngram=1), dict(guesses=0), dict(window=2.5)],
        partial(D.Medusa, tiny, D.MedusaHeads(tiny)): [dict(nodes=0), dict(nodes=2.5), dict(tree="wide")],
        partial(D.MedusaHeads, tiny): [dict(count=0)],
        partial(D.Eagle, tiny, random_eagle(tiny)): [dict(width=0), dict(nodes=2.0)],
        partial(D.EagleHead, tiny, ids): [dict(hidden_layers=[4]), dict(layers=0), dict(mlp=1.5)],
        partial(D.MTPHead, tiny): [dict(mlp=0), dict(mlp=2.5)],
        partial(D.DFlash, tiny, random_dflash(tiny)): [dict(nodes=0), dict(nodes=2.5)],
        partial(D.DFlashHead, tiny.config, ids): [dict(block=1, hidden_layers=(1,)), dict(hidden_layers=())],
        partial(D.Cascade, D.NGram(), tiny): [dict(inner_k=0)],
        partial(D.Cascade, middle=tiny): [dict(inner=Reader())],
        partial(D.by_name, target=tiny): [dict(name="magic"), dict(heads="x", name="ngram"), dict(name="model")],
    }
    for make, given in ((make, given) for make, each in wrong.items() for given in each):
        with pytest.raises(ValueError, match="drafter=" if "name" in given and len(given) == 1 else next(iter(given))):
            make(**given)
            pytest.fail(f"{make} took {given}", pytrace=False)
    with pytest.raises(ValueError, match="scores 5 token ids and the target 64"):
        D.Cascade(D.Model(small), tiny)
    for target, drafter, words in (
        (tiny, D.Cascade(D.Lookahead(), tiny), "drafts trees"),
        (small, D.Cascade(D.Model(tiny), tiny), "drafter scores"),
    ):
        with pytest.raises(ValueError, match=words):
            ms.speculate(target, [1, 2], drafter, 3, 8)


def test_trees_that_look_like_chains_are_refused_before_any_work(tiny, monkeypatch):
    """One node per depth, and yet each draft is a tree: such a drafter was refused in the middle of a run."""
    lean = D.Eagle(tiny, random_eagle(tiny), width=1), D.Lookahead(guesses=1)
    monkeypatch.setattr(type(tiny.transformer), "forward", None)
    for drafter in lean:
        with pytest.raises(ValueError, match="token trees"):
            ms.speculate(tiny, [1, 2], drafter, 3, 8, rule="block", temperature=1.0)
        with pytest.raises(ValueError, match="token trees"):
            ms.Engine(tiny, drafter, rule="block")
    hybrid = SimpleNamespace(config=SimpleNamespace(delta=object()))
    with pytest.raises(ValueError, match="recurrent layers"):
        check_drafter(hybrid, lean[0])


def test_heads_that_do_not_belong_to_the_target(tiny, make_model, tmp_path):
    other, deeper = make_model(hidden_size=16), make_model(num_layers=3)
    kinds = {"medusa": (D.Medusa, D.MedusaHeads), "eagle": (D.Eagle, random_eagle), "mtp": (D.MTP, random_mtp)}
    for kind, (drafter, heads) in kinds.items():
        with pytest.raises(ValueError, match=f"no {kind} heads ship.*minispec train {kind}"):
            drafter(tiny)
        with pytest.raises(ValueError, match="has no config.json"):
            drafter(tiny, tmp_path)
        with pytest.raises(ValueError, match="16 numbers.*make them for this target"):
            drafter(tiny, heads(other))
        heads(other).save(other, tmp_path / kind)
        with pytest.raises(ValueError, match="do not fit"):
            drafter(tiny, tmp_path / kind)
    with pytest.raises(ValueError, match="layer 3"):
        D.DFlash(tiny, random_dflash(deeper))
    D.MedusaHeads(tiny).save(tiny, tmp_path)
    with pytest.raises(ValueError, match="medusa"):
        D.DFlash(tiny, tmp_path)
