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
    """A device as torch writes it. Whether it is here is asked when it is used: load/folder.usable_device."""
    if not re.fullmatch(r"(cpu|cuda|mps)(:\d{1,3})?", value):
        raise argparse.ArgumentTypeError(f"{_short(value)!r}: give cpu, cuda, cuda:N or mps")
    return value


# ---- options that several commands have ----


def _add(parser: argparse.ArgumentParser, flag: str, kind: Callable, metavar: str, help: str, default, **more) -> None:
    said = help if default is None else f"{help} (default: %(default)s)"
    parser.add_argument(flag, type=kind, metavar=metavar, default=default, help=said.strip(), **more)


def add_model(parser: argparse.ArgumentParser, default: str = "micro", help: str = "the target") -> None:
    _add(parser, "--model", text, "MODEL", f"{help}: a known name, a folder, or a hub id", default)


SHIPPED = "(default: the one that ships for --model)"


def add_draft(parser: argparse.ArgumentParser, help: str = f"the draft model {SHIPPED}", **more) -> None:
    _add(parser, "--draft", text, "MODEL", help, None, **more)


def add_heads(parser: argparse.ArgumentParser) -> None:
    """Heads of one's own, and the target they are for under the name that it has there."""
    help = "of medusa, eagle, dflash and mtp: a folder or a hub id (default: those that ship for --model)"
    _add(parser, "--heads", text, "HEADS", help, None)
    another = "another name of --model"
    parser.add_argument("--target", dest="model", type=text, default=argparse.SUPPRESS, metavar="MODEL", help=another)


def add_device(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    help = "cpu, cuda, cuda:1 or mps (default: cuda where there is one, else cpu)"
    parser.add_argument("--device", type=device, default=default, metavar="DEVICE", help=help)


def add_weights(parser: argparse.ArgumentParser) -> None:
    help = "on a CPU: round the target's matrices to int8, another model with a quarter of the bytes per token"
    parser.add_argument("--weights", choices=("int8",), help=f"{help} (default: as they are)")


def add_prompt(parser: argparse.ArgumentParser, help: str = "how the text begins") -> None:
    _add(parser, "--prompt", text, "TEXT", help, "Once upon a time")


def add_draft_length(parser: argparse.ArgumentParser, auto: bool = True) -> None:
    kind, help = (draft_length, "draft tokens per cycle, or auto") if auto else (count, "draft tokens per cycle")
    _add(parser, "--k", kind, "K", help, 4)


def add_tokens(parser: argparse.ArgumentParser, default: int = 64, help: str = "how many to generate") -> None:
    _add(parser, "--tokens", count, "N", help, default)


def add_temperature(parser: argparse.ArgumentParser, default: float = 0.0, help: str = "0 is greedy") -> None:
    _add(parser, "--temperature", temperature, "T", help, default)


def add_repeat(parser: argparse.ArgumentParser, default: int) -> None:
    _add(parser, "--repeat", count, "N", "rounds", default)


def add_count(parser: argparse.ArgumentParser, flag: str, default: int | None, help: str) -> None:
    _add(parser, flag, count, "N", help, default)


def add_json(parser: argparse.ArgumentParser) -> None:
    help = "write the result to FILE as JSON, too; without FILE print it instead"
    parser.add_argument("--json", nargs="?", type=Path, const=STDOUT, metavar="FILE", help=help)


def add_seed(parser: argparse.ArgumentParser, default: int | None = 0, help: str = "(default: %(default)s)") -> None:
    parser.add_argument("--seed", type=seed, default=default, metavar="N", help=help)


def add(parser, name: str, kind: Callable, default=None, help: str = "", metavar="N", **options) -> None:
    """An option of one command alone, --name; its help names the default."""
    shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
    help = f"{help} (default: {shown})".strip() if default is not None else help
    parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=help, **options)
