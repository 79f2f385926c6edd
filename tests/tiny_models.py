"""Tiny random models. Each parameter is drawn from its own name and the seed.

So two models of one seed share every parameter that both have: `random_model(num_layers=1)` is exactly the first layer
of `random_model(num_layers=2)`, a draft that agrees with its target now and then, as a good draft for tests should. Ask
for another seed to get a stranger.
"""

import zlib

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import minispec as ms
from minispec.load.folder import build

TINY = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_layers=2, max_length=512)
TINY |= dict(num_heads=4, num_kv_heads=2, head_dim=8)


def random_model(*, seed=0, dtype=torch.float64, device="cpu", tokenizer=None, end_tokens=(), **overrides) -> ms.Model:
    """A random Llama-like model; `overrides` are fields of Config. Its laws are neither flat nor one-hot."""
    config = ms.Config(**TINY | overrides)
    with torch.device("meta"):  # names and shapes only; a tied head is the embedding and comes once
        shapes = {name: parameter.shape for name, parameter in ms.Transformer(config).named_parameters()}
    tensors = {"head_ids": torch.arange(config.head_vocab)} if config.head_vocab else {}
    for name, shape in shapes.items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if "norm" in name:
            tensors[name] = 1 + 0.2 * noise
        elif name == "lm_head.weight":
            tensors[name] = 2 * noise / config.hidden_size**0.5
        elif name == "embed_tokens.weight":
            tensors[name] = 0.4 * noise
        elif noise.ndim == 2:
            tensors[name] = 1.5 * noise / noise.shape[1] ** 0.5
        else:
            tensors[name] = 0.2 * noise  # biases
    transformer = build(config, tensors, where="a random model", device=device, dtype=dtype)
    return ms.Model(f"tiny-{seed}", transformer, tokenizer, end_tokens)


def blurred(noise: float = 0.06, **overrides) -> ms.Model:
    """The same with noise on every weight: a draft that is often right."""
    model, generator = random_model(**overrides), torch.Generator().manual_seed(1)
    for weight in model.transformer.parameters():
        weight += noise * weight.std() * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return model


def byte_level(size: int, special: list[str], text: list[str]) -> Tokenizer:
    """Byte-level BPE: any text encodes, and rare characters take several tokens."""
    tokenizer, letters = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = dict(vocab_size=size, special_tokens=special, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(**options))
    return tokenizer
