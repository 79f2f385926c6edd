"""A target of any size with random weights, and a draft that it agrees with now and then: real passes, real rejections.

What a pass costs depends on shapes and hardly on values, so random weights time a model that nobody has to download.
What a draft is worth does depend on weights. Here every layer after the first two writes only ε of what it would into
the residual stream, and those two layers are the draft: the smaller ε, the closer the draft is to the target.
"""

import json
import math
from dataclasses import replace

import torch

from minispec.load.folder import build, default_dtype, usable_device
from minispec.load.load import load
from minispec.load.model import Model
from minispec.load.registry import locate
from minispec.measure import machine
from minispec.model import Config, Transformer

from . import presets

SHAPES = {"8b": presets.SHAPES["Llama-3-8B"], "toy": Config(512, 64, 96, 4, 4, 2, 16, 2048)}  # of the benchmarks
STORIES = {  # prompts for models that only continue text
    "stories": [
        "Once upon a time",
        "One day, a little girl named Lily",
        "The old dog was tired.",
        "Tom and his mother went to the market to buy",
        "It was raining, and the children",
        "There was a small house at the edge of the forest.",
        "The bird wanted to fly, but",
        '"I am not afraid of the dark," said',
    ],
    "repetitive": [
        "The first duck said hello. The second duck said hello. The third duck",
        "Run, run, run to the tree. Run, run, run to the house. Run,",
    ],
}
LAYERS = 2  # of the draft
LAUNCHES = 8  # in one timing, so that starting the clock and waiting for the device do not count


def random_pair(config: Config, device, epsilon: float = 0.05, seed: int = 0) -> tuple[Model, Model]:
    """Target and draft, made where they live. Logits have a standard deviation of 4, as trained models' do."""
    device = torch.device(device)
    dtype = default_dtype(device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Transformer(config).named_parameters()}
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensors[name] = torch.ones(shape, device=device, dtype=dtype)
            continue
        tensors[name] = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        if name != "embed_tokens.weight":
            damped = name.startswith("layers.") and int(name.split(".")[1]) >= LAYERS
            writes = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
            scale = 4.0 if name == "lm_head.weight" else epsilon if damped and writes else 1.0
            tensors[name] *= scale / math.sqrt(shape[1])
    first = replace(config, num_layers=LAYERS)
    pair = [build(c, dict(tensors), where="a random model", device=device, dtype=dtype) for c in (config, first)]
    return Model("random target", pair[0]), Model("its first layers", pair[1])


def prompt_of(config: Config, length: int, seed: int = 0) -> list[int]:
    return torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def several(call, times: int = LAUNCHES):
    """One call that makes several."""

    def calls() -> None:
        for _ in range(times):
            call()

    return calls


# ---- the models of the lessons that measure time --------------------------------------------------------------------


def course_pair(device: str | torch.device | None = None) -> tuple[Model, Model]:
    """Target and draft model: SmolLM2 and its draft on a GPU, micro and micro-draft on a CPU.

    On a GPU micro would be all overhead; on a CPU SmolLM2 would make a lesson wait. Where SmolLM2 cannot be had, it is
    micro on the GPU too, and a line says so. None is `ms.device()`.
    """
    device, name = usable_device(device), "micro"
    if device.type == "cuda":
        try:
            locate("smollm2")  # fetches it, if need be
            name = "smollm2"
        except (ValueError, OSError) as error:
            print(f"This page uses micro on {device}, because SmolLM2 cannot be loaded: {error}")
    return load(name, device=device), load(f"{name}-draft", device=device)


def in_transformers(model: Model):
    """The same weights as a model of transformers, for the bundled micro models."""
    from transformers import LlamaConfig, LlamaForCausalLM, logging

    logging.set_verbosity_error()  # generate() warns of a padding token and a mask that one prompt does not need
    raw = json.loads((locate(model.name) / "config.json").read_text(encoding="utf-8"))
    live = LlamaForCausalLM(LlamaConfig(**raw)).to(model.dtype).eval()
    live.model.load_state_dict({k: v for k, v in model.transformer.state_dict().items() if "lm_head" not in k})
    return live


def where(device: str | torch.device | None = None) -> str:
    """A device by its name: every time is to be read with it."""
    device, this = usable_device(device), machine()
    if device.type == "cuda":
        return this["gpus"][device.index or 0]["name"]
    return f"{this['cpu']}, {this['threads']} of {this['cores']} cores"
