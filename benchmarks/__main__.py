"""The command line: python -m benchmarks …"""

import sys
from collections.abc import Sequence

from minispec.cli.failure import run_command
from minispec.cli.options import Parser

from . import add_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_command(parser, argv)


def parser() -> Parser:
    top = Parser(prog="python -m benchmarks", description="Measurements behind docs/benchmarks.md.")
    add_arguments(top)
    return top


if __name__ == "__main__":
    sys.exit(main())
