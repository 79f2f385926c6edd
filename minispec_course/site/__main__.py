"""Build the site: `python -m minispec_course.site`, or `make site`."""

import argparse
import sys
from pathlib import Path

from ..build.builder import ROOT


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m minispec_course.site", description="Build the course's web site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="the folder to write (default: site)")
    parser.add_argument("--fresh", action="store_true", help="compute every widget's pictures again")
    parser.add_argument("--no-widgets", action="store_true", help="leave the widgets out: their pictures take longest")
    parser.add_argument(
        "lessons", nargs="*", metavar="NAME", help="only these lessons, such as 06 (default: everything)"
    )
    args = parser.parse_args(argv)
    try:
        import myst_nb  # noqa: F401
        import sphinx_book_theme  # noqa: F401
    except ModuleNotFoundError as error:
        print(f'{error.name} is missing: pip install -c constraints.txt -e ".[course,site]"', file=sys.stderr)
        return 1
    from .build import build

    site = build(args.out, args.lessons, fresh=args.fresh, widgets=not args.no_widgets)
    print(f"open {site.index}")
    for what, why in site.failed.items():
        print(f"{what} could not be drawn, so its page shows the notebook's picture: {why}", file=sys.stderr)
    return 1 if site.failed else 0


if __name__ == "__main__":
    sys.exit(main())
