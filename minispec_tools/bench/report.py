"""The results of benchmarks as docs/benchmarks.md, measured beside predicted, and the table of docs/gpu.md.

Reads every JSON file of a folder that `minispec bench … --json FILE` wrote. The same files make the same bytes.
What the folder does not have is not on the page; files that are no result, or of a benchmark that has no place on the
page, are named and left out. Every prediction is a formula of theory.py, fed with what the same run measured
(bandwidth, FLOP/s, c, v, α) or with the workload itself. None of them was fitted.
"""

import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from minispec.load.registry import BENCHMARKS as SHIPPED
from minispec.load.write import write_whole

from ..cli import options
from . import gpu
from .page import Section, Table, cell

WITHOUT_MODEL = True
MEASURES = False  # on the command line: no seed, no JSON of its own
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, GPU_PAGE = "benchmarks.md", "gpu.md"
ORDER = (  # that of the course
    *("decode", "verify", "cpu", "memory", "attention", "batching", "speculate"),
    *("acceptance", "drafters", "ahead", "batch", "limit", "serve"),
)

INTRODUCTION = """# Benchmarks

Made by `minispec bench report`; not for editing.

How fast is each part, and do the course's formulas predict it? Times and rates are medians, followed by the quartiles
in brackets. Whatever is compared was run alternately in the same run.

*Predicted* is what the formulas of `minispec/theory.py` give for quantities measured in the same run: the bandwidth,
the cost c of drafting a token, the cost v of a verify pass (both in plain forward passes of one token), and the
acceptance α (accepted / tested). A prediction from bytes and bandwidth alone is a lower bound on the time, so a ratio
of 1 is the best possible. (A ratio slightly below 1 means that a kernel read memory a little faster than our own
measurement of the bandwidth.)

Models named by their shape (8b) have random weights. That hardly changes the timing of plain decoding, but the
acceptance of such a pair is set by construction (ε scales what the layers after the draft's add), so its speed-ups
show what the system does at that α, not what a trained draft model would reach."""


def read(file: Path) -> dict:
    """A result of `minispec bench …`, or a ValueError that says why it is none."""

    def refuse(name: str):
        raise ValueError(f"{name} is no measurement")

    try:
        result = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    except ValueError as error:
        raise ValueError(f"no JSON ({error})") from None
    if not isinstance(result, dict) or result.get("benchmark") not in ORDER:
        raise ValueError(f'its "benchmark" is none of those on the page: {", ".join(ORDER)}')
    return result


def collect(folder: Path | None = None) -> tuple[dict[str, tuple[dict, Section]], dict[str, str]]:
    """{file's stem: (result, what the page says about it)} in the page's order, and {file: why it is left out}.

    Without a folder: what comes with the package.
    """
    if folder is not None and not folder.is_dir():
        raise ValueError(f"from={str(folder)!r} is no folder: give one with results of minispec bench … --json")
    found, skipped = {}, {}
    for file in sorted((folder or SHIPPED).glob("*.json")):
        try:
            result = read(file)
            found[file.stem] = result, import_module(f"{__package__}.{result['benchmark']}").section(result)
        except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError) as error:
            skipped[file.name] = f"an incomplete result of minispec bench {result['benchmark']} ({error!r})"
        except (ValueError, OSError) as error:
            skipped[file.name] = str(error)
    if not found:
        raise ValueError(f"from={str(folder)!r}: no result to report there; left out: {skipped or 'nothing'}")
    return dict(sorted(found.items(), key=lambda item: (ORDER.index(item[1][0]["benchmark"]), item[0]))), skipped


def facts(result: Mapping) -> list[str]:
    """Everything a number has to be read with."""
    machine, lines = result.get("machine") or {}, []
    if machine:
        gpus = "".join(f"{one['name']} ({one['memory_bytes'] / 2**30:.0f} GiB), " for one in machine["gpus"])
        cores = f"{machine['threads']} of {machine['cores']} cores used"
        lines.append(f"hardware: {gpus}{machine['cpu']}, {cores}, {machine['system']}")
    if "bandwidth" in result:
        low, median, high = (f"{result['bandwidth'][key] / 1e9:,.0f}" for key in ("low", "median", "high"))
        lines.append(f"read bandwidth, measured in the same run: {median} GB/s ({low}–{high})")
    sources = ((result, "minispec"), (machine, "torch"), (machine, "python"), (result, "transformers"))
    if versions := [f"{name} {source[name]}" for source, name in sources if name in source]:
        lines.append(f"versions: {', '.join(versions)}")
    names = {"repeat": "rounds", "date": "date", "note": "note"}  # a note is by hand: what the run cannot know
    lines += [f"{name}: {result[key]}" for key, name in names.items() if key in result]
    return [*map(cell, lines), *([f"command: `{result['command']}`"] if "command" in result else [])]


def anchor(heading: str) -> str:
    """Where GitHub puts a heading: lower case, words joined by hyphens, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page(found: Mapping[str, tuple[dict, Section]]) -> str:
    parts, summary, used = [], [], set()
    for stem, (result, section) in found.items():
        heading = section.title if anchor(section.title) not in used else f"{section.title} ({stem})"
        used.add(anchor(heading))
        summary.append([f"[{cell(heading)}](#{anchor(heading)})", *section.headline.cells()])
        known = "\n".join(f"- {line}" for line in (f"result: `{stem}.json`", *facts(result)))
        tables, notes = (table.markdown() for table in section.tables), map(cell, section.notes)
        parts += [f"## {cell(heading)}", section.about, *tables, *notes, known]
    head = Table(["benchmark", "figure", "measured", "predicted", "measured / predicted"], summary, (0, 1))
    return "\n\n".join([INTRODUCTION, head.markdown(), *parts]) + "\n"


def add_arguments(parser) -> None:
    shipped = "with results as JSON (default: those that come with the package)"
    options.add(parser, "from", Path, None, shipped, "FOLDER", dest="source")
    options.add(parser, "out", Path, DOCS, f"for {PAGE}; the table of its {GPU_PAGE} is put in, too", "FOLDER")
    parser.set_defaults(json=None)


def run(args) -> dict:
    if not args.out.is_dir():
        raise ValueError(f"out={str(args.out)!r} is no folder: make it first, or name another with --out")
    found, skipped = collect(args.source)
    written = [write_whole(args.out / PAGE, page(found))]
    if (file := args.out / GPU_PAGE).is_file() and args.source is None:
        written.append(write_whole(file, gpu.filled(file.read_text(encoding="utf-8"))))
    return {"written": list(map(str, written)), "skipped": skipped}


def text(result: dict) -> str:
    """What was written, and what was left out."""
    left_out = [f"left out: {name}: {reason}" for name, reason in result["skipped"].items()]
    return "\n".join([*result["written"], *left_out])
