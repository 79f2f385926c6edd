"""The command line: python -m benchmarks …"""

import sys

from minispec.cli.failure import guarded
from minispec.cli.options import Parser

from . import add_arguments


def main() -> int | None:
    parser = Parser(prog="python -m benchmarks", description="Measurements behind docs/benchmarks.md.")
    add_arguments(parser)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(guarded(main))
