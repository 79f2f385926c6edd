"""The command line: python -m benchmarks …"""

import sys
from argparse import Namespace
from collections.abc import Sequence

from minispec.cli.failure import guarded
from minispec.cli.interrupt import listen_as_usual
from minispec.cli.options import Parser

from . import add_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""

    def command() -> int | None:
        listen_as_usual()
        words = list(sys.argv[1:] if argv is None else argv)
        args = parser().parse_args(words, Namespace(words=words))
        return args.run(args)

    return guarded(command)


def parser() -> Parser:
    top = Parser(prog="python -m benchmarks", description="Measurements behind docs/benchmarks.md.")
    add_arguments(top)
    return top


if __name__ == "__main__":
    sys.exit(main())
