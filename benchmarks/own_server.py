"""Servers for `python -m benchmarks serve --sweep`, each in a process of its own: the client that measures must not
take the engine's time.

A server is named TARGET or TARGET:DRAFTER, such as smollm2 or smollm2:eagle. A shape (8b, toy) is a target with random
weights, whose draft model is made of its first layers (pairs.py): right in what a step costs, while how much is
accepted was chosen.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection

from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from minispec import drafters
from minispec.cli import options
from minispec.drafters.by_name import DRAFTERS, by_name
from minispec.load.folder import load, usable_device
from minispec.load.handle import Model
from minispec.serving.engine import Engine
from minispec_course.labs import pairs

SHAPES = pairs.SHAPES
INPUT_TOKENS = {"8b": (64, 256), "toy": (8, 32)}  # of the prompts, unless others are asked for
RECORDED = ("k", "max_num_seqs", "max_num_batched_tokens")  # what a result has to be read with


def engine_for(spec: str, device: str | None, seed: int, **sizes) -> Engine:
    name, _, by = spec.partition(":")
    if name in SHAPES:
        target, draft = pairs.random_pair(SHAPES[name], usable_device(device), seed=seed)
        target = Model(name, target.transformer, numbered(target.config.vocab_size))
        drafter = drafters.Model(draft) if by else None
    else:
        target = load(name, device=device)
        drafter = by_name(by, target) if by else None
    return Engine(target, drafter, **sizes)


def numbered(vocab_size: int) -> Tokenizer:
    """A tokenizer for random weights: the text of a token is its number."""
    tokenizer = Tokenizer(WordLevel({f"{token} ": token for token in range(vocab_size)}, unk_token="0 "))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def serve(spec: str, parent: Connection, choices: dict) -> None:
    """The process: tell the parent where, and serve until it says stop."""
    from minispec.server.app import make_app
    from minispec.server.process import address, listen, make_server

    try:
        listener, engine = listen("127.0.0.1", 0), engine_for(spec, **choices)
        engine.warm_up()
    except ValueError as error:
        parent.send(error)
        return
    parent.send(address(listener))
    make_server(make_app(engine, max_waiting=10_000), drain=1.0).run([listener])


@contextmanager
def started(spec: str, args) -> Iterator[str]:
    """A server's address, for as long as it is needed."""
    from minispec.server import require_extra

    require_extra()
    context = get_context("spawn")  # a GPU does not survive a fork
    ours, theirs = context.Pipe()
    choices = {name: getattr(args, name) for name in ("device", "seed", "k", "max_num_seqs", "max_num_batched_tokens")}
    process = context.Process(target=serve, args=(spec, theirs, choices), daemon=True)
    process.start()
    theirs.close()
    try:
        said = ours.recv()
        if isinstance(said, ValueError):
            raise said
        yield said
    except EOFError:
        raise RuntimeError(f"the server of --sweep {spec} ended before it began: see above") from None
    finally:
        process.terminate()  # SIGTERM: it drains, and ends in order
        process.join()


def spec(value: str) -> str:
    """--sweep: TARGET or TARGET:DRAFTER."""
    name, colon, by = options.text(value).partition(":")
    known = ("model",) if name in SHAPES else tuple(DRAFTERS)
    if not name or (colon and by not in known):
        raise ArgumentTypeError(f"{value!r}: give TARGET or TARGET:DRAFTER; drafters are {', '.join(known)}")
    return value


def add_arguments(parser) -> None:
    add, known = partial(options.add, parser), ", ".join(SHAPES)
    help = "start servers here instead, one after the other: TARGET or TARGET:DRAFTER, such as smollm2:eagle, or a "
    add("sweep", spec, None, f"{help}shape with random weights ({known}; :model)", "SERVER", nargs="+")
    options.add_device(parser)
    options.add_draft_length(parser, auto=False)
    add("max-num-seqs", options.count, 32, "requests that run at once there")
    add("max-num-batched-tokens", options.count, 512, "tokens per step there")
