"""Published heads, in the layouts of their authors: what is computed, that output stays the target's, what is refused.

The tensors are random and carry the authors' names. Expected values are computed here, position by position and without
a cache, from the formulas of the published code: FasterDecoding/Medusa at 11af0aa (medusa/model/medusa_model.py),
SafeAILab/EAGLE at 148042c (eagle/model/cnets.py).
"""

import json
import os
import pickle
import re

import pytest
import torch
from by_hand import layer_config, layer_shapes
from loop_checks import check_greedy, greedy_pair
from safetensors.torch import save_file

import minispec as ms
from minispec.load.heads_dflash import evenly

D = ms.drafters
FORMATS = ("medusa", "medusa, two blocks", "eagle3", "eagle3.1", "speculators", "dflash")


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for key, shape in shapes.items():
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        tensors[key] = 1 + 0.2 * noise if "norm" in key else noise / shape[-1] ** 0.5
    return tensors


def published(target: ms.Model, name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    """config.json and tensors of a format."""
    c = target.config
    V, d, L = c.vocab_size, c.hidden_size, c.num_layers
    llama = layer_config(c)
    after = "post_attention_layernorm"
    if name.startswith("medusa"):
        blocks = 2 if "two" in name else 1
        shapes = {}
        for k in range(3):
            for block in range(blocks):
                shapes |= {f"{k}.{block}.linear.weight": (d, d), f"{k}.{block}.linear.bias": (d,)}
            shapes[f"{k}.{blocks}.weight"] = (V, d)
        return dict(medusa_num_heads=2, medusa_num_layers=blocks, base_model_name_or_path="x"), random_tensors(shapes)
    if name == "dflash":
        config = llama | dict(model_type="qwen3", num_hidden_layers=2, block_size=4, num_target_layers=L)
        config["dflash_config"] = dict(mask_token_id=V - 1, target_layer_ids=[0, 1])
        shapes = {"fc.weight": (d, 2 * d), "hidden_norm.weight": (d,), "norm.weight": (d,)}
        for n in range(2):
            shapes |= layer_shapes(c, f"layers.{n}", d, ("input_layernorm", after), qk_norm=True)
        return config, random_tensors(shapes)
    v = V - 2
    shapes = {"fc.weight": (d, 3 * d), "norm.weight": (d,), "lm_head.weight": (v, d)}
    shapes |= layer_shapes(
        c, "layers.0" if name == "speculators" else "midlayer", 2 * d, ("hidden_norm", "input_layernorm", after)
    )
    if name == "eagle3.1":
        shapes |= {f"fc_norm.{n}.weight": (d,) for n in range(3)}
    ids = torch.tensor([i for i in range(V) if i not in (0, V - 2)])
    tensors = random_tensors(shapes) | {"d2t": ids - torch.arange(v), "t2d": torch.isin(torch.arange(V), ids)}
    if name == "speculators":
        config = dict(
            speculators_model_type="eagle3",
            transformer_layer_config=llama,
            norm_before_residual=True,
            draft_vocab_size=v,
            eagle_aux_hidden_state_layer_ids=[0, 1, L],
        )
        return config, tensors
    config = llama | dict(draft_vocab_size=v, eagle_config=dict(eagle_aux_hidden_state_layer_ids=[0, 1, L - 1]))
    return config | ({"norm_output": True} if name == "eagle3.1" else {}), tensors


def write(folder, target: ms.Model, name: str, as_pickle: bool = False):
    config, tensors = published(target, name)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    medusa = name.startswith("medusa")
    if as_pickle:
        torch.save(tensors, folder / ("medusa_lm_head.pt" if medusa else "pytorch_model.bin"))
    else:
        save_file(tensors, folder / ("medusa_lm_head.safetensors" if medusa else "model.safetensors"))
    return folder


def drafter_of(target: ms.Model, folder, name: str, **options) -> D.Drafter:
    kind = D.Medusa if name.startswith("medusa") else D.DFlash if name == "dflash" else D.Eagle
    return kind(target, folder, **options)


# ---------------------------------------------------------------- output stays the target's


@pytest.mark.slow
def test_greedy_output_is_plain_decoding(tmp_path):
    target = greedy_pair()[0]
    for name in FORMATS:
        check_greedy(drafter_of(target, write(tmp_path / name, target, name), name), ks=(3,))


# ---------------------------------------------------------------- what is refused


class Code:
    """A pickle with code in it."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("name", ["medusa", "eagle3"])
def test_nothing_in_a_pickle_is_executed(tiny, tmp_path, name):
    folder = write(tmp_path / "heads", tiny, name, as_pickle=True)
    (file,) = [*folder.glob("*.pt"), *folder.glob("*.bin")]
    file.write_bytes(pickle.dumps({"x": Code(tmp_path / "was here")}, protocol=2))
    with pytest.raises(ValueError, match=file.name):
        drafter_of(tiny, folder, name)
    assert not (tmp_path / "was here").exists()
    pickle.loads(file.read_bytes())  # which would have
    assert (tmp_path / "was here").exists()


def change(folder, tensors: dict | None = None, **config) -> None:
    raw = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(raw))
    if tensors is not None:
        save_file(tensors, next(folder.glob("*.safetensors")))


MISSING = {
    "medusa": "1.0.linear.bias",
    "eagle3": "midlayer.mlp.up_proj.weight",
    "speculators": "layers.0.hidden_norm.weight",
    "dflash": "layers.1.self_attn.k_norm.weight",
}


def test_tensors_that_do_not_fit(make_model, tmp_path):
    """One missing, one too many, one of another shape, another vocabulary: each refused by its name."""
    target, other = make_model(num_layers=3), make_model(num_layers=3, vocab_size=80)
    for name, missing in MISSING.items():
        folder, (_, tensors) = write(tmp_path / name, target, name), published(target, name)
        cut = "2.1.weight" if name == "medusa" else "fc.weight"
        for wrong, named in (
            ({key: value for key, value in tensors.items() if key != missing}, missing),
            (tensors | {"layers.9.surprise": torch.zeros(2)}, "surprise"),
            (tensors | {cut: tensors[cut][:-1]}, cut),
        ):
            change(folder, wrong)
            with pytest.raises(ValueError, match=re.escape(named)):
                drafter_of(target, folder, name)
        with pytest.raises(ValueError, match="shape" if name == "medusa" else "vocab_size"):
            change(folder, tensors)
            drafter_of(other, folder, name)


def test_an_older_eagle_is_told_from_a_damaged_one(make_model, tmp_path):
    target = make_model(num_layers=3)
    change(write(tmp_path, target, "eagle3"), {"fc.bias": torch.zeros(target.config.hidden_size)})
    with pytest.raises(ValueError, match="EAGLE-1 or 2"):
        D.Eagle(target, tmp_path)


def test_draft_tokens_outside_the_vocabulary(make_model, tmp_path):
    target = make_model(num_layers=3)
    folder, (_, tensors) = write(tmp_path, target, "eagle3"), published(target, "eagle3")
    change(folder, tensors | {"d2t": tensors["d2t"] + 5})
    with pytest.raises(ValueError, match="d2t"):
        D.Eagle(target, folder)
    change(folder, tensors | {"t2d": ~tensors["t2d"]})
    with pytest.raises(ValueError, match="t2d"):
        D.Eagle(target, folder)


def test_streams_that_dflash_takes_by_default(make_model, tmp_path):
    """As dflash/model.py of z-lab/dflash at 44947fb chooses them; an id i is the stream after i + 1 layers."""
    target = make_model(num_layers=12)
    folder = write(tmp_path, target, "dflash")
    change(folder, dflash_config={"mask_token_id": 3})
    assert D.DFlash(target, folder).hidden_layers == (2, 10)
    assert (evenly(36, 5), evenly(36, 1)) == ([1, 9, 17, 25, 33], [18])


SETTINGS = {
    "speculators_model_type": ("speculators", "mtp"),
    "layer_types": ("eagle3", ["sliding_attention"]),
    "model_type": ("eagle3", "gemma"),
    "target_hidden_size": ("eagle3", 99),
    "medusa_num_layers": ("medusa", 4),
    "dflash_config": ("dflash", {"mask_token_id": 3, "target_layer_ids": [2]}),  # the last layer
    "sample_from_anchor": ("dflash", True),
}


def test_settings_that_would_be_computed_wrongly(make_model, tmp_path):
    target = make_model(num_layers=3)
    for key, (name, value) in SETTINGS.items():
        folder = write(tmp_path / key, target, name)
        change(folder, **{key: value})
        with pytest.raises(ValueError, match="target_layer_ids" if key == "dflash_config" else key):
            drafter_of(target, folder, name)
