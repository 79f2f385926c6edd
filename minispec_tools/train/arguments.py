"""Options that several trainers have, one name and one meaning for each."""

from __future__ import annotations

from argparse import BooleanOptionalAction
from pathlib import Path

from ..cli import options

CORPUS = "folders of `minispec train corpus`"


def add_training(parser, steps: int, lr: float, batch_tokens: int = 20_000, corpus: bool = True) -> None:
    """The corpus, the folder, and how long and how fast to learn."""
    if corpus:
        options.add(parser, "corpus", Path, None, CORPUS, "FOLDER", nargs="+", required=True)
    options.add(parser, "out", Path, None, "a folder, also for checkpoints", "FOLDER", required=True)
    options.add(parser, "steps", options.count, steps)
    options.add(parser, "batch-tokens", options.count, batch_tokens, "tokens per step")
    options.add(parser, "lr", options.positive, lr, "the highest learning rate", "X")
    options.add(parser, "stop-after", options.count, None, "steps of this call; call again to go on")


def add_head_vocab(parser, more: str = "") -> None:
    options.add(parser, "head-vocab", options.count, None, f"how many tokens it can propose (default: 8192){more}")


def add_start(parser, more: str = "") -> None:
    options.add(parser, "start", Path, None, f"what is stored there, to go on from, with its own shape{more}", "FOLDER")


def add_keep(parser, default: bool = False, bits: bool = True) -> None:
    """Whether the target's answers are computed once and held in memory."""
    help = "ask the target once for all sequences, or anew in every step"
    parser.add_argument("--keep", action=BooleanOptionalAction, default=default, help=help)
    if bits:
        kept = "kept streams in 8 bits, all but the last, or as the target computed them"
        options.add(parser, "keep-bits", options.count, 16, kept, choices=(8, 16))


def chosen(args, names: str) -> dict:
    """Some of the options, as keyword arguments."""
    return {name: getattr(args, name) for name in names.split()}
