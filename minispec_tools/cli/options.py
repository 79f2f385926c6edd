"""The command line's options: one name and one check for each, whichever command takes it.

`--model` is the model that decides (the target), `--draft` the one that guesses, `--device` where they run. Numbers are
checked as they are parsed, so that nothing is loaded for a value that could not be used.
"""

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from reprlib import repr as shortened

from minispec.load.write import STDOUT

# Names that drafters/ owns, listed here because to import it is to import torch.
DRAFTERS = "model ngram suffix early-exit quantized cascade lookahead medusa eagle dflash dflash2 dspark mtp".split()


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an option in one line, as every other error is said, instead of the whole usage.

    Options are spelled out: an abbreviation that is clear today means something else when an option is added. `fill`
    adds the options of a command whose modules take seconds to import; it is called when that command is parsed."""

    def __init__(self, *args, fill: Callable | None = None, **options):
        super().__init__(*args, allow_abbrev=False, **options)
        self.fill = fill

    def parse_known_args(self, *args, **options):
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)
        return super().parse_known_args(*args, **options)

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
        raise argparse.ArgumentTypeError(f"{shortened(text)}: give {wanted}")

    return check


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


def drafter(text: str) -> str:
    """--drafter: one by its name, or "synthetic:0.8" for load tests."""
    if text in DRAFTERS or re.fullmatch(r"synthetic(:(0?\.\d+|[01](\.0*)?))?", text):
        return text
    raise argparse.ArgumentTypeError(f"{shortened(text)}: give one of {', '.join(DRAFTERS)}, or synthetic:0.8")


def text(value: str) -> str:
    """Text that a tokenizer can encode. Bytes of the shell that are no UTF-8 arrive as lone surrogates."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shortened(value)} is not UTF-8: give text") from None
    return value


# ---- options, and those that several commands have ----


def add(parser, name: str, kind: Callable, default=None, help: str = "", metavar: str | None = "N", **more) -> None:
    """An option --name; its help names the default."""
    shown = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
    help = help if default in (None, argparse.SUPPRESS) else f"{help} (default: {shown})".strip()
    parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=help, **more)


def shared(name: str, kind: Callable, default, help: str, metavar: str | None = "N", after="", **more) -> Callable:
    """What adds this option to a command, there perhaps with another default or help."""

    def add_it(parser, default=default, help=help) -> None:
        add(parser, name, kind, default, help + after, metavar, **more)

    return add_it


SHIPPED = "(default: the one that ships for --model)"
INT8 = "on a CPU: round the target's matrices to int8, another model with a quarter of the bytes per token"
JSON = "also write the result to FILE as JSON; without FILE, print the JSON instead of the table"
add_model = shared("model", text, "micro", "the target", "MODEL", ": a known name, a folder, or a hub id")
add_draft = shared("draft", text, None, f"the draft model {SHIPPED}", "MODEL")
add_device = shared("device", text, None, "cpu, cuda or cuda:1; else cuda where there is one, or cpu", "DEVICE")
add_weights = shared("weights", str, None, f"{INT8} (default: as they are)", None, choices=("int8",))
add_prompt = shared("prompt", text, "Once upon a time", "how the text begins", "TEXT")
add_tokens = shared("tokens", count, 64, "how many to generate")
add_temperature = shared("temperature", temperature, 0.0, "0 is greedy", "T")
add_repeat = shared("repeat", count, None, "rounds")
add_seed = shared("seed", seed, 0, "")
add_json = shared("json", Path, None, JSON, "FILE", nargs="?", const=STDOUT)


def add_draft_length(parser, auto: bool = True, default: int | None = 4) -> None:
    kind, help = (draft_length, "draft tokens per cycle, or auto") if auto else (count, "draft tokens per cycle")
    help += "" if default else " (default: chosen while it runs)"
    add(parser, "k", kind, default, help, "K")


def add_heads(parser) -> None:
    """Heads of one's own, and the target they are for under the name that it has there."""
    help = (
        "of medusa, eagle, dflash, dflash2, dspark and mtp: a folder or a hub id (default: those that ship for --model)"
    )
    add(parser, "heads", text, None, help, "HEADS")
    add(parser, "target", text, argparse.SUPPRESS, "another name of --model", "MODEL", dest="model")
