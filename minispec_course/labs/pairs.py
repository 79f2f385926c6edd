"""A target of any size with random weights, and a draft that it agrees with now and then: real passes, real rejections.

What a pass costs depends on shapes and hardly on values, so random weights time a model that nobody has to download.
What a draft is worth does depend on weights. Here every layer after the first two writes only ε of what it would into
the residual stream, and those two layers are the draft: the smaller ε, the closer the draft is to the target.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from minispec.load.folder import build, default_dtype
from minispec.load.handle import Model
from minispec.model import Config, Transformer

# vocabulary, width, neurons of the MLP, layers, heads of queries and of keys and values, their width, length
SHAPES = {
    "8b": Config(128_256, 4096, 14_336, 32, 32, 8, 128, 8192, rope_theta=500_000.0),  # Llama-3-8B
    "toy": Config(512, 64, 96, 4, 4, 2, 16, 2048),
}
SMOLLM2 = Config(49_152, 576, 1536, 30, 9, 3, 64, 8192, rope_theta=100_000.0, tie_embeddings=True)
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
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
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
