"""The command line: python -m recipes …"""

import sys
from collections.abc import Sequence

from minispec.cli.failure import run_command
from minispec.cli.options import Parser

from . import add_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_command(parser, argv)


def parser() -> Parser:
    top = Parser(prog="python -m recipes", description="How the shipped drafts and heads were trained.")
    add_arguments(top)
    return top


if __name__ == "__main__":
    sys.exit(main())
