"""`minispec serve`: an engine behind HTTP, spoken to as OpenAI's API is.

fields.py     the fields of a body, one by one
schemas.py    what a body may ask for, and how an answer looks: plain functions, no network
service.py    the engine's thread, and the queue between it and the event loop
app.py        routes, limits and errors
metrics.py    what Prometheus reads, under vLLM's names
process.py    a port, signals, and how it all ends

They need the packages of the extra "serve"; this file does not, so that `minispec --help` works without.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction
from importlib.util import find_spec

from ..cli import options
from ..drafters.by_name import DRAFTERS

PACKAGES = ("starlette", "uvicorn", "prometheus_client")


def require_extra() -> None:
    """Say what to install before an import fails half-way through."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ValueError(
            f"a server needs packages that are not installed here ({', '.join(missing)}): "
            'run pip install -c constraints.txt -e ".[serve]"'
        )


def add_arguments(parser) -> None:
    options.add_model(parser, help="the model to serve")
    parser.add_argument(
        "--drafter", choices=DRAFTERS, metavar="NAME", help=f"{', '.join(DRAFTERS)} (default: no speculation)"
    )
    options.add_draft(parser, "the draft model of model and cascade (default: the one that ships for --model)")
    options.add_draft_length(parser, auto=False)
    options.add_device(parser)
    add = parser.add_argument
    add(
        "--host",
        type=options.text,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen (default: %(default)s, this machine alone)",
    )
    add("--port", type=options.port, default=8000, help="0: any free one (default: %(default)s)")
    add("--served-model-name", type=options.text, metavar="NAME", help="what clients call it (default: --model)")
    add(
        "--api-key",
        type=options.text,
        metavar="KEY",
        help="what clients must send (default: $MINISPEC_API_KEY, which no list of processes shows)",
    )
    for name, default, help in (
        ("--max-num-seqs", 32, "requests that run at once"),
        ("--max-num-batched-tokens", 512, "tokens per step"),
        ("--block-size", 16, "tokens per block"),
        ("--max-body", 1024, "the longest body of a request, in KiB; longer ones get status 413"),
    ):
        add(name, type=options.count, default=default, metavar="N", help=f"{help} (default: %(default)s)")
    add("--num-blocks", type=options.count, metavar="N", help="for keys and values (default: what fits; on a CPU 512)")
    add(
        "--max-waiting",
        type=options.natural,
        default=512,
        metavar="N",
        help="requests that may wait to run; the next gets status 429 (default: %(default)s)",
    )
    add(
        "--drain",
        type=options.positive,
        default=10.0,
        metavar="S",
        help="after SIGTERM or Ctrl-C, seconds for open requests to end (default: %(default)s)",
    )
    add(
        "--warm-up",
        action=BooleanOptionalAction,
        default=True,
        help="compile and record before listening what the first requests would wait for (default: yes)",
    )
    parser.set_defaults(run=run)


def run(args) -> None:
    require_extra()
    from .process import serve

    serve(args)
