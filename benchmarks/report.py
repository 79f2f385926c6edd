"""The results of benchmarks as a page: tables with measured beside predicted, and a picture for each.

Reads every JSON file of a folder that `python -m benchmarks … --json FILE` wrote, and makes benchmarks.md with its pictures
in images/. The same files make the same bytes. What the folder does not have is not on the page; files that are no
result, or of a benchmark that the page knows nothing about, are named and left out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from minispec.load.registry import BENCHMARKS as SHIPPED
from minispec.load.write import write_whole

from .sections import SECTIONS, Section, cell, table

WITHOUT_MODEL = True
MEASURES = False  # on the command line: no seed, no JSON of its own
DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, IMAGES = "benchmarks.md", "images"

INTRODUCTION = """# Benchmarks

Made by `python -m benchmarks report`; not for editing.

How fast is each part, and do the formulas of the course predict it? Times and rates are medians; the quartiles,
between which the middle half of all rounds lies, follow in brackets. Whatever is compared was run alternately in the
same run.

*Predicted* is what the formulas of `minispec/theory.py` give for quantities measured in the same run: the bandwidth,
the cost c of drafting a token, the cost v of a verify pass (both in plain forward passes of one token), and the
acceptance α (accepted / tested). A prediction from bytes and bandwidth alone is a lower bound on the time, so there a
ratio of 1 is the best that is possible. (A ratio slightly below 1 means that a kernel read memory a little faster than
our own measurement of the bandwidth.)

Models named by their shape (8b) have random weights. That hardly changes the timing of plain decoding, but the
acceptance of such a pair is set by construction (ε scales what the layers after the draft's add), so its speed-ups
show what the system does at that α, and not what a trained draft model would reach."""


# ---------------------------------------------------------------- reading


def read(file: Path) -> dict:
    """A result of `python -m benchmarks …`, or a ValueError that says why it is none."""

    def no_number(name: str):
        raise ValueError(f"{name} is no measurement")

    try:
        result = json.loads(file.read_text(encoding="utf-8"), parse_constant=no_number)
    except UnicodeDecodeError:
        raise ValueError("not a text file") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error})") from None
    if not isinstance(result, dict) or not isinstance(result.get("benchmark"), str):
        raise ValueError('no result of python -m benchmarks: it has no "benchmark"')
    if result["benchmark"] not in SECTIONS:
        raise ValueError(f"the page knows no benchmark {result['benchmark']!r}, only {', '.join(SECTIONS)}")
    return result


def collect(folder: Path | None = None) -> tuple[dict[str, tuple[dict, Section]], dict[str, str]]:
    """{file's stem: (result, what the page says about it)} in the page's order, and {file: why it is left out}.

    Without a folder: what comes with the package.
    """
    if folder is not None and not Path(folder).is_dir():
        raise ValueError(
            f"from={str(folder)!r} is no folder: give one with results that python -m benchmarks --json wrote"
        )
    found, skipped = {}, {}
    for file in sorted((SHIPPED if folder is None else Path(folder)).glob("*.json")):
        try:
            result = read(file)
            found[file.stem] = result, SECTIONS[result["benchmark"]](result)
        except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError) as error:
            skipped[file.name] = f"an incomplete result of python -m benchmarks {result['benchmark']} ({error!r})"
        except (ValueError, OSError) as error:
            skipped[file.name] = str(error)
    if not found:
        left_out = "".join(f"; {name}: {reason}" for name, reason in skipped.items())
        raise ValueError(f"from={str(folder)!r}: no result to report there{left_out}")
    order = list(SECTIONS)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[1][0]["benchmark"]), item[0]))), skipped


# ---------------------------------------------------------------- how a result came about


def command(result: Mapping) -> str:
    """The command line that asks the same again, from what the result recorded."""
    name, options = result["benchmark"], {}
    for option, key in (
        ("model", "target"),
        ("models", "models_asked"),
        ("shape", "shape"),
        ("device", "device"),
        ("dtype", "dtype"),
        ("requests", "requests"),
        ("batch", "batch"),
        ("blocks", "num_blocks"),
        ("context", "context"),
        ("block-size", "block_size"),
        ("capacity", "capacity"),
        ("lengths", "lengths"),
        ("prompts", "prompts_from"),
        ("per-group", "per_group"),
        ("k", "k"),
        ("epsilon", "epsilon"),
        ("temperature", "temperature"),
        ("tokens", "new_tokens"),
        ("lean", "lean"),
        ("duration", "duration"),
        ("warmup", "warmup"),
        ("max-num-seqs", "max_num_seqs"),
        ("max-num-batched-tokens", "max_num_batched_tokens"),
        ("burstiness", "burstiness"),
        ("repeat", "repeat"),
        ("seed", "seed"),
    ):
        if key in result and result[key] is not None and option in OPTIONS[name].split():
            options[option] = result[key]
    if name == "verify":
        options["sizes"] = [row["tokens"] for row in result["results"]]
    elif name == "attention":
        pairs = [(f"{case['batch']}x{case['context']}", case["tokens"]) for case in result["cases"]]
        options["cases"], options["new-tokens"] = (list(dict.fromkeys(some)) for some in zip(*pairs, strict=True))
        options["heads"] = list(result["shape"].values())
    elif name == "batching":
        options["tokens"] = result["longest"]
        if result["drafter"]:
            options |= {"drafter": re.sub(r"(?<=[a-z])(?=[A-Z])", "-", result["drafter"]).lower(), "k": result["k"]}
    elif name == "acceptance":
        own = {entrant: row["k"] for entrant, row in result["drafters"].items()}
        options["drafters"] = [f"{one}:{k}" if k and ":" not in one else one for one, k in own.items()]
    elif name == "drafters":
        options["drafters"] = [one for one in next(iter(result["results"].values())) if one != "plain"]
        options |= {} if result.get("recorded") or not result["machine"].get("gpus") else {"eager": []}
        options |= {"busy": []} if result.get("busy") else {}
    elif name == "batch":
        parts = {part: result[part] for part in ("serving", "speculation") if result[part]}
        options["parts"] = list(parts)
        if served := parts.get("serving"):
            for option in "requests max_num_seqs token_budget draft_budget prompt_lengths output_lengths".split():
                options[option.replace("_", "-")] = served[option]
            labels = " ".join([*served["trials"], *served["skipped"]])
            if tried := re.findall(r"transformers (\w+), (\d+) at a time", labels):
                options["peers"], options["peer-seqs"] = (
                    list(dict.fromkeys(some)) for some in zip(*tried, strict=True)
                )
            elif served["peer"] is None:
                options["peers"] = []  # none was asked for
        if "speculation" in parts:
            options |= {
                "sizes": [row["batch"] for row in parts["speculation"]["results"]],
                "tokens": parts["speculation"]["new_tokens"],
                "temperature": parts["speculation"]["temperature"],
            }
    elif name == "serve":
        sweep = [server["server"] for server in result["servers"]]
        options |= {"url": sweep[0]} if "://" in sweep[0] else {"sweep": sweep}
        options["rate"] = [row["rate"] or "inf" for row in result["servers"][0]["results"]]
        options["output-tokens"] = result["output_tokens"]
        options |= {f"{target}-target": f"{most:g}" for target, most in result["targets_ms"].items()}
        options |= {"ignore-eos": []} if result["ignore_eos"] else {}
    if name in ("decode", "speculate"):
        tried = [*result["results" if name == "decode" else "seconds"], *result["skipped"]]
        options["peers"] = [one.removeprefix("transformers ") for one in tried if one.startswith("transformers ")]
    words = ["minispec", "bench", name]
    for option, value in options.items():
        words += [f"--{option}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return shlex.join(words)


OPTIONS = {  # those that a result records under a name of its own
    "decode": "shape context lean tokens repeat seed",
    "verify": "shape context lean repeat seed",
    "cpu": "model context repeat seed",
    "memory": "requests lengths blocks block-size seed",
    "attention": "device block-size capacity repeat seed",
    "batching": "model requests batch repeat seed",
    "speculate": "shape context lean k epsilon temperature tokens repeat seed",
    "acceptance": "model prompts per-group tokens batch dtype seed",
    "drafters": "model k tokens temperature repeat seed",
    "batch": "shape context k epsilon repeat seed",
    "limit": "models device context k epsilon repeat seed",
    "serve": "requests k max-num-seqs max-num-batched-tokens duration warmup burstiness temperature seed",
}


def facts(result: Mapping) -> list[str]:
    """Everything a number has to be read with."""
    machine, lines = result.get("machine"), []
    if machine:
        gpus = "".join(f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB), " for gpu in machine["gpus"])
        lines.append(
            f"hardware: {gpus}{machine['cpu']}, {machine['threads']} of {machine['cores']} cores used, "
            f"{machine['system']}"
        )
    if "bandwidth" in result:
        low, median, high = (f"{result['bandwidth'][key] / 1e9:,.0f}" for key in ("low", "median", "high"))
        lines.append(f"read bandwidth, measured in the same run: {median} GB/s ({low}–{high})")
    versions = [
        f"{name} {source[name]}"
        for source, name in (
            (result, "minispec"),
            (machine or {}, "torch"),
            (machine or {}, "python"),
            (result, "transformers"),
        )
        if name in source
    ]
    if versions:
        lines.append(f"versions: {', '.join(versions)}")
    if "repeat" in result:
        lines.append(f"rounds: {result['repeat']}")
    if machine or "date" in result:
        lines.append(f"date: {result.get('date', 'not recorded')}")
    if "note" in result:  # by hand: what the run cannot know
        lines.append(f"note: {result['note']}")
    return [*(cell(line) for line in lines), f"command: `{command(result)}`"]


# ---------------------------------------------------------------- the page


def picture_name(stem: str, chart: str = "") -> str:
    """Of a result's file, and of its chart if it has several; odd characters are written as their codes."""
    plain = re.sub(r"[^A-Za-z0-9_-]", lambda odd: f"-{ord(odd[0]):x}-", stem)
    return f"bench_{plain}{f'_{chart}' if chart else ''}.svg"


def anchor(heading: str) -> str:
    """Where GitHub puts a heading: lower case, words joined by hyphens, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def page(found: Mapping[str, tuple[dict, Section]]) -> dict[str, str]:
    """Every file of the report, by its path below the folder it goes to."""
    files, parts, summary, used = {}, [], [], set()
    for stem, (result, section) in found.items():
        pictures = []
        for name, chart in section.charts.items():
            image = f"{IMAGES}/{picture_name(stem, name)}"
            files[image] = chart
            alt = cell(re.search(r"<title[^>]*>(.*?)</title>", chart)[1]).replace("]", "\\]")
            pictures.append(f"![{alt}]({image})")
        heading = section.title if anchor(section.title) not in used else f"{section.title} ({stem})"
        used.add(anchor(heading))
        figure, *numbers = section.headline
        summary.append([f"[{cell(heading)}](#{anchor(heading)})", cell(figure), *numbers])
        known = "\n".join(f"- {line}" for line in (f"result: `{stem}.json`", *facts(result)))
        notes = (cell(note) for note in section.notes)
        parts += [f"## {cell(heading)}", section.about, *pictures, *section.tables, *notes, known]
    head = table(["benchmark", "figure", "measured", "predicted", "measured / predicted"], summary, (0, 1))
    files[PAGE] = "\n\n".join([INTRODUCTION, head, *parts]) + "\n"
    return files


def add_arguments(parser) -> None:
    parser.add_argument(
        "--from",
        type=Path,
        dest="source",
        metavar="FOLDER",
        help="with results as JSON (default: those that come with the package)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=DOCS,
        metavar="FOLDER",
        help=f"for {PAGE} and {IMAGES}/ (default: docs/ of the repository)",
    )
    parser.set_defaults(json=None)


def run(args) -> dict:
    if not args.out.is_dir():
        raise ValueError(f"out={str(args.out)!r} is no folder: make it first, or name another with --out")
    found, skipped = collect(args.source)
    files = page(found)
    for name, content in files.items():
        write_whole(args.out / name, content)
    return {"written": [str(args.out / name) for name in files], "skipped": skipped}


def text(result: dict) -> str:
    """What was written, and what was left out."""
    left_out = [f"left out: {name}: {reason}" for name, reason in result["skipped"].items()]
    return "\n".join([*result["written"], *left_out])
