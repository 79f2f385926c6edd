"""The command line's options: one name and one check for each, whichever command takes it.

`--model` is the model that decides (the target), `--draft` the one that guesses, `--device` where they run. Numbers are
checked as they are parsed, so that nothing is loaded for a value that could not be used.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path

from ..load.write import STDOUT


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an option in one line, as every other error is said, instead of the whole usage.

    Options are spelled out: an abbreviation that is clear today means something else when an option is added."""

    def __init__(self, *args, **options):
        super().__init__(*args, allow_abbrev=False, **options)

    def error(self, message: str):
        message = re.sub(r"^argument ([^:]+): (?=')", r"\1=", message)  # --tokens='0': give a whole number ≥ 1
        raise ValueError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")


# ---- checks, as `type=` takes them ----


def _checked(convert: Callable, fits: Callable, wanted: str) -> Callable:
    def check(text: str):
        try:
            value = convert(text)
            if fits(value):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{_short(text)!r}: give {wanted}")

    return check


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:30]}…"


count = _checked(int, lambda n: 1 <= n < 2**63, "a whole number ≥ 1")
natural = _checked(int, lambda n: 0 <= n < 2**63, "a whole number ≥ 0")
number = _checked(float, math.isfinite, "a number")
not_negative = _checked(float, lambda x: 0 <= x < math.inf, "a number ≥ 0")
positive = _checked(float, lambda x: 0 < x < math.inf, "a number > 0")
temperature = _checked(float, lambda x: 0 <= x < math.inf, "a number ≥ 0, 0 for greedy")
seed = _checked(int, lambda n: -(2**63) <= n < 2**63, "a whole number of 64 bits, such as 0")
port = _checked(int, lambda n: 0 <= n < 2**16, "a port, 0 to 65535")


def draft_length(text: str) -> int | str:
    """--k: how many tokens to draft, or "auto"."""
    try:
        return text if text == "auto" else count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from None


def text(value: str) -> str:
    """Text that a tokenizer can encode. Bytes of the shell that are no UTF-8 arrive as lone surrogates."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{_short(value)!r} is not UTF-8: give text") from None
    return value


def device(value: str) -> str:
    """A device as torch writes it. Whether it is here is asked when it is used: files/folder.usable_device."""
    if not re.fullmatch(r"(cpu|cuda|mps)(:\d{1,3})?", value):
        raise argparse.ArgumentTypeError(f"{_short(value)!r}: give cpu, cuda, cuda:N or mps")
    return value


# ---- options that several commands have ----


def add_model(parser: argparse.ArgumentParser, default: str = "micro", help: str = "the target") -> None:
    parser.add_argument(
        "--model",
        type=text,
        default=default,
        metavar="MODEL",
        help=f"{help}: a known name, a folder, or a hub id (default: %(default)s)",
    )


def add_draft(
    parser: argparse.ArgumentParser, help: str = "the draft model (default: the one that ships for --model)", **options
) -> None:
    parser.add_argument("--draft", type=text, metavar="MODEL", help=help, **options)


def add_heads(parser: argparse.ArgumentParser) -> None:
    """Heads of one's own, and the target they are for under the name that it has there."""
    parser.add_argument(
        "--heads",
        type=text,
        metavar="HEADS",
        help="of medusa, eagle, dflash and mtp: a folder or a hub id (default: those that ship for --model)",
    )
    parser.add_argument(
        "--target", dest="model", type=text, default=argparse.SUPPRESS, metavar="MODEL", help="another name of --model"
    )


def add_device(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument(
        "--device",
        type=device,
        default=default,
        metavar="DEVICE",
        help="cpu, cuda, cuda:1 or mps (default: cuda where there is one, else cpu)",
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        choices=("int8",),
        help="on a CPU: round the target's matrices to int8, another "
        "model with a quarter of the bytes per token (default: as they are)",
    )


def add_prompt(parser: argparse.ArgumentParser, help: str = "how the text begins") -> None:
    parser.add_argument("--prompt", type=text, default="Once upon a time", help=f"{help} (default: %(default)s)")


def add_draft_length(parser: argparse.ArgumentParser, auto: bool = True) -> None:
    kind, help = (draft_length, "draft tokens per cycle, or auto") if auto else (count, "draft tokens per cycle")
    parser.add_argument("--k", type=kind, default=4, metavar="K", help=f"{help} (default: %(default)s)")


def add_tokens(parser: argparse.ArgumentParser, default: int = 64, help: str = "how many to generate") -> None:
    parser.add_argument("--tokens", type=count, default=default, metavar="N", help=f"{help} (default: %(default)s)")


def add_temperature(parser: argparse.ArgumentParser, default: float = 0.0, help: str = "0 is greedy") -> None:
    parser.add_argument(
        "--temperature", type=temperature, default=default, metavar="T", help=f"{help} (default: %(default)s)"
    )


def add_repeat(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument("--repeat", type=count, default=default, metavar="N", help="rounds (default: %(default)s)")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        nargs="?",
        type=Path,
        const=STDOUT,
        metavar="FILE",
        help="write the result to FILE as JSON, too; without FILE print it instead",
    )


def add_seed(parser: argparse.ArgumentParser, default: int | None = 0, help: str = "(default: %(default)s)") -> None:
    parser.add_argument("--seed", type=seed, default=default, metavar="N", help=help)


def add(parser, name: str, kind: Callable, default=None, help: str = "", metavar="N", **options) -> None:
    """An option of one command alone, --name; its help names the default."""
    shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
    help = f"{help} (default: {shown})".strip() if default is not None else help
    parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=help, **options)
