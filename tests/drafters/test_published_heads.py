"""Published heads: the numbers of the authors' own code, from weights that a formula makes, and what is refused.

../data/published_heads.json lists, for each format, the config.json and the tensors of a folder as its authors write
it, and the logits that their code computed from it, once, in float64, in November 2026:
- EAGLE-3 (eagle/model/cnets.py): SafeAILab/EAGLE at cb7e0841fe0c, `forward` along a sequence with its cache, then
  `topK_genrate` with top_k=3, depth=2, total_tokens=9.
- Medusa: ResBlock of medusa/model/medusa_model.py, FasterDecoding/Medusa at e2a5d20c048a; the same block twice.
- DFlash: dflash/model.py, z-lab/dflash at 44947fbf7111 (with transformers 5.22.2).
- All others: speculators 0.9.0, from folders that its `save_pretrained` wrote.
"""

import json
import os
import pickle
import re
import zlib
from pathlib import Path

import pytest
import torch
from all_drafters import random_dflash, random_eagle, random_pairs
from by_hand import head_logits, paths
from safetensors.torch import load_file, save_file

import minispec as ms
from minispec.drafters.eagle import Form
from minispec.load.heads_dflash import evenly
from minispec.sampling import Coins
from minispec_tools.export import write_dflash, write_eagle

D = ms.drafters
FORMATS = json.loads((Path(__file__).parents[1] / "data" / "published_heads.json").read_text())
TEXT, FOLLOW = [3, 1, 4, 1, 5, 9, 2], [6, 5, 35]
VOCAB, WIDTH = 40, 16
DRAFT_IDS = torch.tensor([i for i in range(VOCAB) if i % 5 not in (1, 3)])  # of a reduced vocabulary


def formats(*drafters: str, by: str = "") -> list[str]:
    return [name for name, each in FORMATS.items() if each["drafter"] in drafters and by in each["by"]]


def formula(name: str, *shape: int) -> torch.Tensor:
    """Weights that need no file: sines of n^1.5, shifted by the name."""
    n = torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64)
    x = torch.sin(n**1.5 * 0.7 + zlib.crc32(name.encode()) % 1000).view(shape)
    return 1 + 0.2 * x if "norm" in name else 1.5 * x / shape[-1] ** 0.5 if len(shape) > 1 else 0.3 * x


@pytest.fixture(scope="module")
def target(make_model) -> ms.Model:
    heads = dict(num_heads=4, num_kv_heads=2, head_dim=4, num_layers=8, norm_eps=1e-6, intermediate_size=24)
    model = make_model(vocab_size=VOCAB, hidden_size=WIDTH, tie_embeddings=False, **heads)
    model.transformer.lm_head.weight.copy_(formula("target.lm_head", VOCAB, WIDTH))
    model.transformer.embed_tokens.weight.copy_(formula("target.embed_tokens", VOCAB, WIDTH))
    return model


def tensors_of(name: str) -> dict[str, torch.Tensor]:
    ids = {"d2t": DRAFT_IDS - torch.arange(len(DRAFT_IDS)), "t2d": torch.isin(torch.arange(VOCAB), DRAFT_IDS)}
    tensors = {}
    for key, shape in FORMATS[name]["tensors"].items():
        # Medusa's list holds one module several times, and the file holds it under every index.
        source = re.sub(r"^(\d+)\.\d+\.linear", r"\1.0.linear", key)
        tensors[key] = ids[key] if key in ids else formula(source, *shape)
    return tensors


def write(folder: Path, name: str, tensors: dict | None = None, **settings) -> Path:
    """The folder as its authors upload it, or with other tensors or settings."""
    folder.mkdir(exist_ok=True)
    file, tensors = folder / FORMATS[name]["file"], tensors_of(name) if tensors is None else tensors
    (save_file if file.suffix == ".safetensors" else torch.save)(tensors, file)
    (folder / "config.json").write_text(json.dumps(FORMATS[name]["config"] | settings))
    return folder


def drafter_of(target: ms.Model, folder: Path, name: str, **options) -> D.Drafter:
    return getattr(D, FORMATS[name]["drafter"])(target, folder, **options)


def assert_logits(found: torch.Tensor, expected: list) -> None:
    """The first four logits of every row, and which of all is the largest."""
    first, best = zip(*expected, strict=True)
    assert torch.allclose(found[:, :4], torch.tensor(first, dtype=torch.float64), rtol=0, atol=5e-6)
    assert found.argmax(-1).tolist() == [*best]


# ---------------------------------------------------------------- the authors' numbers


@pytest.mark.parametrize("name", formats("Eagle"))
def test_eagle_computes_the_published_logits(target, tmp_path, name):
    """After the text, and after each token that follows it."""
    head = drafter_of(target, write(tmp_path, name), name).head
    assert head.hidden_layers == tuple(FORMATS[name]["hidden_layers"])
    assert_logits(head_logits(head, eagle_streams(), TEXT, FOLLOW), FORMATS[name]["logits"])


def eagle_streams() -> list[torch.Tensor]:
    return [*(2 * formula("hidden.eagle3", 1, len(TEXT) - 1, 3 * WIDTH)).chunk(3, -1)]  # [1, T, d] each


def test_eagle_grows_the_published_tree(target, tmp_path):
    drafter = D.Eagle(target, write(tmp_path, "EAGLE-3"), width=3, nodes=8)
    hidden = {n: states[0] for n, states in zip(drafter.hidden_layers, eagle_streams(), strict=True)}
    (draft,) = drafter.propose([ms.Sequence(0, TEXT, ms.Sampling(), None, [hidden])], 3)
    assert sorted(paths(draft)) == sorted([(2,), (19,), (27,), (2, 2), (2, 19), (2, 4), (19, 2), (27, 2)])


@pytest.mark.parametrize("name", formats("Medusa"))
def test_medusa_computes_the_published_logits(target, tmp_path, name):
    """One row for each of three heads; config.json says two, and the file decides."""
    drafter = drafter_of(target, write(tmp_path, name), name)
    assert_logits(drafter.heads(4 * formula("hidden.medusa", 1, WIDTH))[0], FORMATS[name]["logits"])


@pytest.mark.parametrize("name", formats("DFlash", "DFlash2", "DSpark"))
def test_dflash_computes_the_published_logits(target, tmp_path, name):
    """Of two blocks, the second after two more tokens and with a cache; and pair scores, given the tokens before."""
    drafter = drafter_of(target, write(tmp_path, name), name)
    assert drafter.hidden_layers == tuple(FORMATS[name]["hidden_layers"])
    count = len(drafter.hidden_layers)
    streams = (2 * formula("hidden.dflash", 1, 8, 3 * WIDTH))[0, :, : count * WIDTH].chunk(count, -1)  # [8, d] each
    text, pairs = [*TEXT, 6, 35], FORMATS[name].get("pairs")
    for start, end, expected in zip((0, 6), (6, 8), FORMATS[name]["logits"], strict=True):
        hidden = {n: states[start:end] for n, states in zip(drafter.hidden_layers, streams, strict=True)}
        sequence = ms.Sequence(0, text[: end + 1], ms.Sampling(), None, [hidden])
        with torch.inference_mode():
            states = drafter.states([sequence])  # [1, blanks, d]
            logits = states @ drafter.head_rows.T
        assert_logits(logits[0], expected)
        if pairs and not start:
            assert_pair_scores(drafter, logits, states, torch.tensor([[2, 11, 30, 7]])[:, : logits.shape[1]], pairs)


@torch.inference_mode()
def assert_pair_scores(drafter, logits, states, before, expected) -> None:
    if isinstance(drafter, D.DSpark):  # biased logits, and how sure the confidence head is
        biased, confidence = drafter.step(logits[0], states[0], before[0])
        assert_logits(biased, [row[:2] for row in expected])
        assert confidence.tolist() == pytest.approx([row[2] for row in expected], abs=5e-6)
        return
    fillings = drafter.fillings(logits, states, before[:, 0])
    for depth, (candidates, scores) in enumerate(expected):  # scores as differences from the first candidate's
        tokens, log_q = (x[0, 0] for x in fillings(depth, before[:, depth, None], None))
        assert tokens.tolist() == candidates
        assert (log_q - log_q[0]).tolist() == pytest.approx(scores, abs=5e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_greedy_output_is_plain_decoding(target, tmp_path, name):
    drafter = drafter_of(target, write(tmp_path, name), name)
    out = ms.speculate(target, TEXT, drafter, 3, 12)
    assert out.tokens == ms.generate(target, TEXT, 12).tokens
    assert any(cycle.drafted for cycle in out.trace.cycles)


# ---------------------------------------------------------------- written


@pytest.mark.parametrize("name", formats("Eagle", "DFlash", "DFlash2", "DSpark", by="speculators"))
def test_what_is_written_is_what_speculators_writes(target, tmp_path, name):
    """Every tensor by its name, and no setting of config.json differs."""
    drafter = drafter_of(target, write(tmp_path / "theirs", name), name)
    head, writer = (drafter.head, write_eagle) if name.startswith("EAGLE") else (drafter.heads, write_dflash)
    writer(head, target, tmp_path / "ours", "verifier")
    ours, theirs = (load_file(tmp_path / whose / "model.safetensors") for whose in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    for key, weight in ours.items():
        assert torch.equal(weight.to(theirs[key].dtype), theirs[key]), key
    ours, theirs = (json.loads((tmp_path / whose / "config.json").read_text()) for whose in ("ours", "theirs"))
    assert ours.pop("architectures")  # which speculators replaces by the name of its class
    assert_within(ours, theirs)


def assert_within(ours, theirs) -> None:
    if isinstance(ours, dict):
        for key, value in ours.items():
            assert_within(value, theirs[key])
    elif isinstance(ours, list) and isinstance(ours[0], dict):
        assert_within(dict(enumerate(ours)), dict(enumerate(theirs)))
    else:
        assert ours == theirs


def test_our_own_forms_are_written_as_published_ones(make_model, tmp_path):
    """Norms without gains become gains of one, borrowed rows of the LM head are written out, and pair scores that are
    made of the target's rows become tables."""
    deep = make_model(num_layers=3)
    head = random_eagle(deep, noise=0.5, form=Form.eagle3(stream_norm="plain"))
    again = D.EagleHead.load(deep, write_eagle(head, deep, tmp_path / "eagle"))
    hidden = deep.transformer.body(torch.tensor([TEXT[:-1]]), hidden_layers=head.hidden_layers)[1]
    found = [head_logits(each, [hidden[n] for n in each.hidden_layers], TEXT, FOLLOW) for each in (head, again)]
    assert again.form.stream_norm == "each" and torch.allclose(*found, rtol=0, atol=1e-9)
    qwen = make_model(num_layers=4, qk_norm=True)
    for kind, drafter in ((D.DFlashHead, D.DFlash), (D.DFlash2Head, D.DFlash2), (D.DSparkHead, D.DSpark)):
        make = random_dflash if kind is D.DFlashHead else random_pairs
        head = make(qwen, kind=lambda *a, kind=kind, **options: kind(*a, False, True, **options))
        if kind is not D.DFlash2Head:
            head.head_ids = head.head_ids[:40]  # fewer than the target's
        head.blank_is(3, qwen.transformer)
        folder = write_dflash(head, qwen, tmp_path / kind.kind)
        hidden, drafts = {n: formula(f"hidden.{n}", len(TEXT) - 1, 32) for n in (1, 4)}, []
        for source in (head, folder):
            sequence = ms.Sequence(0, TEXT, ms.Sampling(1.0), Coins(0), [hidden])
            drafts += drafter(qwen, source).propose([sequence], 3)
        mine, read = drafts
        assert mine.tokens and (mine.tokens, mine.parents) == (read.tokens, read.parents)
        assert mine.probs is None or torch.allclose(mine.probs, read.probs, rtol=0, atol=1e-9)


def test_what_no_engine_computes_is_not_written(make_model, tmp_path):
    micro, qwen = ms.load("micro", device="cpu"), make_model(num_layers=4, qk_norm=True)
    few = random_pairs(qwen, lambda *a, **options: D.DFlash2Head(*a, False, True, **options))
    few.head_ids = few.head_ids[:40]
    few.blank_is(3, qwen.transformer)
    for writer, head, target, named in (
        (write_dflash, D.DFlash(micro).heads, micro, "--public"),
        (write_eagle, D.EagleHead.load(micro), micro, r"--form eagle3\.1"),
        (write_dflash, random_pairs(qwen), qwen, "--public"),
        (write_dflash, few, qwen, "--head-vocab 64"),
    ):
        with pytest.raises(ValueError, match=named):
            writer(head, target, tmp_path / "wrong")


# ---------------------------------------------------------------- settings and defaults


def test_streams_by_default_and_by_the_layers_ids(target, tmp_path):
    """Ids of z-lab and of `eagle_config` count layers from 0, so that id i is the stream after i + 1 of them."""
    folder = write(tmp_path / "eagle", "EAGLE-3", eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 7]})
    assert D.Eagle(target, folder).hidden_layers == (1, 2, 8)
    folder = write(tmp_path / "dflash", "DFlash", dflash_config={"mask_token_id": 3}, num_hidden_layers=2)
    tensors = tensors_of("DFlash")
    save_file(tensors | {"fc.weight": tensors["fc.weight"][:, : 2 * WIDTH].clone()}, folder / "model.safetensors")
    assert D.DFlash(target, folder).hidden_layers == (2, 6)
    assert (evenly(36, 5), evenly(36, 1)) == ([1, 9, 17, 25, 33], [18])


SETTINGS = [  # which would be computed wrongly, and what the message names
    ("EAGLE-3 of speculators", dict(speculators_model_type="mtp"), "speculators_model_type"),
    ("EAGLE-3", dict(layer_types=["sliding_attention"]), "layer_types"),
    ("EAGLE-3", dict(model_type="gemma"), "model_type"),
    ("EAGLE-3", dict(target_hidden_size=99), "target_hidden_size"),
    ("EAGLE-3", dict(vocab_size=80), "vocab_size"),
    ("Medusa", dict(medusa_num_layers=4), "medusa_num_layers"),
    ("DFlash", dict(dflash_config={"mask_token_id": 3, "target_layer_ids": [7]}), "target_layer_ids"),  # the last layer
    ("DFlash", dict(sample_from_anchor=True), "sample_from_anchor"),
    ("DSpark, gated", dict(speculators_model_type="dflash2"), "DFlash2"),  # says which drafter reads it
]


@pytest.mark.parametrize("name, settings, named", SETTINGS, ids=[f"{name}, {named}" for name, _, named in SETTINGS])
def test_settings_that_are_refused(target, tmp_path, name, settings, named):
    with pytest.raises(ValueError, match=named):
        drafter_of(target, write(tmp_path, name, **settings), name)


# ---------------------------------------------------------------- tensors that are refused

MISSING = {
    "Medusa": "1.0.linear.bias",
    "EAGLE-3": "midlayer.mlp.up_proj.weight",
    "EAGLE-3 of speculators": "layers.0.hidden_norm.weight",
    "DFlash": "layers.1.self_attn.k_norm.weight",
}


@pytest.mark.parametrize("name", MISSING)
def test_tensors_that_do_not_fit_are_named(target, tmp_path, name):
    """One missing, one too many, one of another shape."""
    tensors, cut = tensors_of(name), "2.2.weight" if name == "Medusa" else "fc.weight"
    for wrong, named in (
        ({key: value for key, value in tensors.items() if key != MISSING[name]}, MISSING[name]),
        (tensors | {"layers.9.surprise": torch.zeros(2)}, "surprise"),
        (tensors | {cut: tensors[cut][:-1].clone()}, cut),
    ):
        with pytest.raises(ValueError, match=re.escape(named)):
            drafter_of(target, write(tmp_path, name, wrong), name)


def test_an_older_eagle_is_told_from_a_damaged_one(target, tmp_path):
    with pytest.raises(ValueError, match="EAGLE-1 or 2"):
        D.Eagle(target, write(tmp_path, "EAGLE-3", {"fc.bias": torch.zeros(WIDTH)}))


def test_draft_tokens_outside_the_vocabulary(target, tmp_path):
    tensors = tensors_of("EAGLE-3")
    for key, wrong in (("d2t", tensors["d2t"] + 5), ("t2d", ~tensors["t2d"])):
        with pytest.raises(ValueError, match=key):
            D.Eagle(target, write(tmp_path, "EAGLE-3", tensors | {key: wrong}))


class Code:
    """A pickle with code in it."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("name", ["Medusa", "EAGLE-3"])
def test_nothing_in_a_pickle_is_executed(target, tmp_path, name):
    file, trace = write(tmp_path / "heads", name) / FORMATS[name]["file"], tmp_path / "was here"
    file.write_bytes(pickle.dumps({"x": Code(trace)}, protocol=2))
    with pytest.raises(ValueError, match=file.name):
        drafter_of(target, file.parent, name)
    assert not trace.exists()
    pickle.loads(file.read_bytes())  # which would have
    assert trace.exists()
