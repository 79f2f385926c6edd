"""The command line: python -m recipes …"""

import sys

from minispec.cli.failure import guarded
from minispec.cli.options import Parser

from . import add_arguments


def main() -> int | None:
    parser = Parser(prog="python -m recipes", description="How the shipped drafts and heads were trained.")
    add_arguments(parser)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(guarded(main))
