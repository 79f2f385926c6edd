"""What cannot work is refused by name, before any work."""

from __future__ import annotations

import pytest
import torch
from all_drafters import random_dflash, random_eagle, random_mtp

import minispec as ms
from minispec.drafters import Draft, Drafter
from minispec.drafters.mtp import MTPHead
from minispec.load.heads import heads_for, save_heads

D = ms.drafters
NAN, INF = float("nan"), float("inf")


class Reader(Drafter):
    """An inner drafter that wants hidden states."""

    hidden_layers = (1,)

    def propose(self, contexts, k):
        return [Draft([]) for _ in contexts]


def test_arguments_that_make_no_sense(tiny, make_model):
    """The message names the argument and the value."""
    eagle, ids, small = random_eagle(tiny), torch.arange(9), make_model(vocab_size=5)
    dflash, medusa = random_dflash(tiny), D.MedusaHeads(tiny)
    wrong = [
        *((lambda v=v: D.NGram(**v), "n_max=.*n_min=") for v in (dict(n_max=0), dict(n_max=2.5), dict(n_min=4))),
        *((lambda v=v: D.Suffix(depth=v), f"depth={v}") for v in (1, 0, 2.5)),
        *((lambda v=v: D.Suffix(factor=v), f"factor={v}") for v in (0, -1.0, NAN, INF)),
        *((lambda v=v: D.Suffix(floor=v), f"floor={v}") for v in (-0.1, 1.1, NAN)),
        *((lambda v=v: D.Suffix(memory=v), f"memory={v}") for v in (-1, 0.5)),
        *((lambda v=v: D.EarlyExit(tiny, v), "layers=") for v in (0, -1, 3, [], [0, 0], [1, 0], [0, 2], [-1, 1])),
        *(
            (lambda v=v: D.Quantized(tiny, *v), name)
            for v, name in (((1,), "bits=1"), ((9,), "bits=9"), ((4, 5), "group"))
        ),
        *((lambda v=v: D.Lookahead(**v), next(iter(v))) for v in (dict(window=0), dict(ngram=1), dict(guesses=0))),
        *(
            (lambda v=v: D.Medusa(tiny, D.MedusaHeads(tiny), **v), "nodes=|tree=|choices")
            for v in (dict(nodes=0), dict(nodes=2.5), dict(tree="wide"), dict(tree=[(0, 0)]))
        ),
        (lambda: D.MedusaHeads(tiny, 0), "count=0"),
        (lambda: D.Eagle(tiny, eagle, width=0), "width=0"),
        (lambda: D.Eagle(tiny, eagle, nodes=2.0), "nodes=2.0"),
        *(
            (lambda v=v: D.EagleHead(tiny, ids, **v), next(iter(v)))
            for v in (dict(hidden_layers=[4]), dict(layers=0), dict(mlp=1.5))
        ),
        *((lambda v=v: MTPHead(tiny, mlp=v), f"mlp={v}") for v in (0, 2.5)),
        *((lambda v=v: D.DFlash(tiny, dflash, block=v), f"block={v}") for v in (1, 5)),
        *((lambda v=v: D.DFlash(tiny, dflash, nodes=v), f"nodes={v}") for v in (0, 2.5)),
        (lambda: D.DFlashHead(tiny.config, ids, (1,), block=1), "block=1"),
        (lambda: D.DFlashHead(tiny.config, ids, ()), "hidden_layers"),
        (lambda: D.Cascade(D.NGram(), tiny, 0), "inner_k=0"),
        (lambda: D.Cascade(D.Model(small), tiny), "tokenizer"),
        (lambda: D.Cascade(Reader(), tiny), "hidden states"),
        (lambda: ms.speculate(tiny, [1, 2], D.Cascade(D.Lookahead(), tiny), 3, 8), "drafts trees"),
        (lambda: ms.speculate(tiny, [1, 2], D.Lookahead(small), 3, 8), "5 token ids and the target 64"),
        (lambda: ms.speculate(small, [1, 2], D.Cascade(D.Model(tiny), tiny), 3, 8), "drafter scores"),
        (lambda: D.by_name("magic", tiny), "drafter='magic'"),
        (lambda: D.by_name("ngram", tiny, heads="x"), "heads='x'"),
        (lambda: D.by_name("model", tiny), "--draft"),
    ]
    for make, words in wrong:
        with pytest.raises(ValueError, match=words):
            make()
            pytest.fail(f"nobody refused what should say {words}", pytrace=False)


def test_heads_that_do_not_belong_to_the_target(tiny, make_model, tmp_path):
    other, deeper = make_model(hidden_size=16), make_model(num_layers=3)
    kinds = {"medusa": (D.Medusa, D.MedusaHeads), "eagle": (D.Eagle, random_eagle), "mtp": (D.MTP, random_mtp)}
    for kind, (drafter, heads) in kinds.items():
        with pytest.raises(ValueError, match=f"no {kind} heads ship.*python -m recipes {kind}"):
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
    save_heads(torch.nn.Linear(2, 2), tmp_path, heads_for(tiny, "medusa"))
    with pytest.raises(ValueError, match="medusa"):
        D.DFlash(tiny, tmp_path)
