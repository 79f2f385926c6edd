"""The embedded pair: a small target that tells simple stories, and a smaller draft that guesses what it will say.

smollm2 writes stories in plain words; a byte-level BPE of 2,048 tokens is learnt on them; the target learns to predict
them; then the target writes stories itself, and the draft is distilled on those.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from minispec.load.folder import load_folder, save_folder
from minispec.load.model import Model
from minispec.load.write import write_whole
from minispec.model import Config, Transformer

from ..cli import options
from . import corpus as writing
from .draft import acceptance, distill
from .loop import fit

END = "<|end|>"
CHAT = "{{ messages | map(attribute='content') | join('\\n') }}"  # it has never seen a chat: it goes on from the last
SHAPE = dict(vocab_size=2048, num_kv_heads=2, max_length=512, tie_embeddings=True)
TARGET = Config(hidden_size=288, intermediate_size=768, num_layers=6, num_heads=6, head_dim=48, **SHAPE)
DRAFT = Config(hidden_size=128, intermediate_size=320, num_layers=2, num_heads=4, head_dim=32, **SHAPE)

HEROES = (
    "boy, girl, dog, cat, rabbit, bear, mouse, duck, frog, fox, owl, pony, turtle, bird, bee, robot, dragon, king, "
    "queen, farmer, baker, fisherman, grandmother, grandfather, teacher, doctor, painter, sailor, squirrel, hedgehog, "
    "puppy, kitten, lamb, elephant, lion, monkey, penguin, whale, snail, butterfly"
).split(", ")
NATURES = (
    "brave, shy, kind, curious, lazy, happy, sad, clever, hungry, tiny, big, old, young, funny, quiet, noisy, lonely, "
    "gentle, proud, sleepy, busy, lucky, clumsy, grumpy"
).split(", ")
THINGS = (
    "ball, kite, boat, red hat, cake, apple, tree, garden, river, house, toy train, song, drum, star, moon, cloud, "
    "umbrella, book, map, key, box, bell, blanket, flower, seed, basket, lamp, stone, bridge, shoe, bicycle, letter, "
    "picture, nest, bucket, ladder, mirror"
).split(", ")
PLACES = (
    "forest, park, beach, farm, school, village, mountain, lake, kitchen, market, castle, island, meadow, library, "
    "train station, snowy hill"
).split(", ")
EVENTS = (
    "gets lost, finds a friend, learns to share, helps somebody, is afraid of the dark, tells a lie, breaks something, "
    "learns something new, wants to fly, has a birthday, cannot sleep, shares food, saves the day, says sorry, "
    "plants something, goes on a trip, loses a toy, makes a gift"
).split(", ")
ASKING = (
    "Write a short story for young children about a {nature} {hero} who {event}.",
    "Tell me a simple bedtime story about a {nature} {hero} and a {thing}.",
    "Write a short story in simple words about a {nature} {hero} and a {other} at the {place}.",
    "Tell a very short story about a {hero} who {event} at the {place}. Use short sentences.",
)


def story_prompts(count: int, seed: int = 0) -> list[str]:
    """Requests for stories a small child understands, each with its own mix of hero, thing, place and event."""
    rng, prompts = random.Random(seed), []
    words = dict(hero=HEROES, other=HEROES, nature=NATURES, thing=THINGS, place=PLACES, event=EVENTS)
    for _ in range(count):
        asking = rng.choice(ASKING)
        mix = {name: rng.choice(some) for name, some in words.items()}
        prompts.append(f"{asking.format(**mix)} Begin with 'Once upon a time'.")
    return prompts


def clean_stories(texts: Sequence[str]) -> list[str]:
    """Plain ASCII prose, cut after its last whole sentence, of fair length, and not going in circles."""
    stories: dict[str, None] = {}  # a set that keeps its order
    for text in texts:
        text = " ".join(text.replace("’", "'").replace("“", '"').replace("”", '"').split())
        sentences = re.match(r'.*[.!?]"?(?= |$)', text)
        words = sentences.group().split() if sentences else []
        prose = text.startswith("Once upon a time") and text.isascii() and not set(text) & set("#*_[]{}<>|=/\\()")
        phrases = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
        if prose and 40 <= len(words) <= 300 and len(set(phrases)) >= 0.9 * len(phrases):
            stories[" ".join(words)] = None
    return list(stories)


def train_tokenizer(stories: Sequence[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = dict(special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, **alphabet)
    tokenizer.train_from_iterator(stories, trainer)
    return tokenizer


def token_stream(tokenizer: Tokenizer, stories: Sequence[str]) -> Tensor:
    """All stories in a row, each closed by the end token."""
    end = tokenizer.token_to_id(END)
    ids = [token for e in tokenizer.encode_batch(list(stories)) for token in [*e.ids, end]]
    return torch.tensor(ids)


def fresh(config: Config, seed: int) -> Transformer:
    """Random weights, small enough that the first logits are nearly flat."""
    generator = torch.Generator().manual_seed(seed)
    transformer = Transformer(config)
    for name, parameter in transformer.named_parameters():
        if parameter.ndim == 2:  # what is added to the residual stream starts smaller: there are 2 · layers of it
            shrink = (2 * config.num_layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            torch.nn.init.normal_(parameter, std=0.02 * shrink, generator=generator)
    return transformer


def train_target(
    stream: Tensor, config: Config, *, device, batch: int = 128, width: int = 384, seed: int = 0, **options
) -> Transformer:
    """Plain next-token prediction on random windows of the stream. `options`: of `fit`."""
    transformer = fresh(config, seed)
    transformer, stream = transformer.to(device), stream.to(device)
    offsets = torch.arange(width + 1, device=device)

    def loss_at(step: int) -> Tensor:
        rng = random.Random(f"{seed} {step}")
        starts = torch.tensor([rng.randrange(len(stream) - width) for _ in range(batch)]).to(device)
        window = stream[starts[:, None] + offsets]  # [B, width + 1]
        logits = transformer(window[:, :-1]).logits
        return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())

    fit(transformer, loss_at, weight_decay=0.1, **{"lr": 2e-3} | options)
    return transformer.eval().requires_grad_(False)


@torch.no_grad()
def perplexity(model: Model, stories: Sequence[str]) -> float:
    """exp of the mean negative log-likelihood per token, end token included, each story read from its first token."""
    end, loss, count = model.tokenizer.token_to_id(END), 0.0, 0
    for story in stories:
        ids = torch.tensor([[*model.encode(story), end]], device=model.device)[:, : model.config.max_length]
        logits = model.transformer(ids[:, :-1]).logits[0].float()
        loss += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return float(torch.tensor(loss / count).exp())


def openings(tokenizer: Tokenizer, stories: Sequence[str], seed: int = 0) -> list[list[int]]:
    """The first few tokens of stories: prompts for the small target."""
    rng = random.Random(seed)
    return [e.ids[: rng.randint(3, 24)] for e in tokenizer.encode_batch(list(stories))]


def add_arguments(parser) -> None:
    options.add(parser, "out", Path, None, "a folder, for every stage", "FOLDER", required=True)
    options.add(parser, "stories", options.count, 60_000, "to ask the writer for")
    options.add(parser, "batch", options.count, 32, "stories at once, 1536 on a large GPU")
    options.add(parser, "steps", options.count, 3000, "of the target")
    options.add(parser, "draft-steps", options.count, 8000, "of the draft model")


def run(args, writer: Model) -> None:
    """Everything from asking for stories to the stored pair. Each stage resumes."""
    out, device, seed = args.out, writer.device, args.seed
    prompts = writing.encode_prompts(writer, story_prompts(args.stories, seed), 256)
    how = dict(rows=args.stories, batch=args.batch, seed=seed)
    asked = writing.write(writer, prompts, out / "stories", max_new_tokens=320, temperatures=(0.6, 0.8), **how)
    stories = clean_stories(asked.replies(writer))
    held_out, stories = stories[:500], stories[500:]
    tokenizer = train_tokenizer(stories, TARGET.vocab_size)
    stream = token_stream(tokenizer, stories)
    print(f"{len(stories):,} stories, {len(stream):,} tokens", flush=True)
    end = [tokenizer.token_to_id(END)]
    transformer = train_target(stream, TARGET, steps=args.steps, folder=out / "target", device=device, seed=seed)
    save_folder(Model("micro", transformer, tokenizer, end, CHAT), out / "micro")

    target = load_folder(out / "micro", device=device, dtype=torch.float32)  # the stored one is the one to imitate
    text = writing.write(target, openings(tokenizer, stories), out / "written", max_new_tokens=256, **how)
    small = fresh(DRAFT, seed).to(device)
    learning = dict(steps=args.draft_steps, lr=2e-3, batch_tokens=32_000, seed=seed)
    distill(target.transformer, small, text, folder=out / "draft", **learning)
    save_folder(Model("micro-draft", small, tokenizer, end), out / "micro-draft")

    draft = load_folder(out / "micro-draft", device=device, dtype=torch.float32)
    report: dict = {"stories": len(stories), "tokens": len(stream)}
    report["perplexity"] = {model.name: perplexity(model, held_out) for model in (target, draft)}
    prompts, how = openings(tokenizer, held_out, seed + 1), dict(rows=500, max_new_tokens=256, batch=100, seed=seed + 1)
    for name, temperature in (("T=1", 1.0), ("greedy", 0.0)):
        text = writing.write(target, prompts, out / f"held-out {name}", temperatures=[temperature], **how)
        report[name] = acceptance(target, draft, text)
    write_whole(out / "report.json", json.dumps(report, indent=1))
    write_whole(out / "held_out.json", json.dumps(held_out, indent=1))
    print(json.dumps(report, indent=1))
