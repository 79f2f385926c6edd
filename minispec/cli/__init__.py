"""The command line: minispec demo | lab | check | hint | progress | reset | exam | drill | models | serve | …

Each command is a small function. What it needs is imported inside it, so that the others start without.
"""

import json
import os
import random
import sys
from argparse import BooleanOptionalAction
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..load.write import STDOUT, publish, require_writable, write_whole
from . import options
from .failure import run_command
from .options import Parser

ROOT = Path(__file__).resolve().parents[2]
START = "notebooks/00_start_here.ipynb"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; cli/failure.py says which there are."""
    return run_command(parser, argv)


def parser() -> Parser:
    from minispec_course.teaching import commands_for_teachers

    top = Parser(prog="minispec", description="Fast LLM inference: the course and its code.")
    top.set_defaults(run=lambda args: top.print_help())
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, run, help: str) -> Parser:
        sub = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        sub.set_defaults(run=run)
        return sub

    sub = command("demo", demo, "watch a draft and its target write, then see what it was worth")
    options.add_model(sub)
    _add_drafter(sub, "model where the model comes with a draft, else ngram")
    options.add_heads(sub)
    options.add_device(sub)
    options.add_weights(sub)
    options.add_draft_length(sub)
    options.add_prompt(sub)
    sub.add_argument("--chat", action="store_true", help="give the prompt as a chat message, to models that chat")
    options.add_tokens(sub, 100)
    options.add_temperature(sub)
    options.add_seed(sub, help="with --temperature above 0: another seed, another story")
    options.add_json(sub)

    sub = command("lab", lab, "open the course in JupyterLab")
    sub.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    sub.add_argument("--port", type=options.port, default=8888, help="or the next free one (default: %(default)s)")

    sub = command("check", check, "check exercises that you have filled in, without opening them")
    sub.add_argument("names", nargs="+", metavar="NAME", help="a notebook, or the number of a set such as 06")
    sub = command("hint", hint, "the next hint to an exercise")
    sub.add_argument("id", metavar="EXERCISE", help="such as 06.residual")
    sub = command("progress", progress, "how much of each set you have solved, and what comes next")
    sub.add_argument("set", nargs="?", metavar="NAME", help="the number of a set, such as 06: its exercises")
    sub = command("reset", reset, "make a set of exercises new again, and keep your attempt beside it")
    sub.add_argument("names", nargs="+", metavar="NAME", help="the number of a set, such as 06")

    sub = command("exam", exam, "an exam: exercises that fit so many minutes, in a fresh notebook with a clock")
    sub.add_argument("minutes", nargs="?", type=options.count, metavar="MINUTES", help="such as 45")
    options.add_seed(sub, None, "the same seed, the same exercises (default: another one every time)")
    sub.add_argument("--topics", nargs="+", default=[], metavar="NAME", help="sets, such as 05 06 (default: all)")
    sub.add_argument("--level", choices=("E", "M", "H"), help="easy, medium or hard only")
    sub.add_argument("--out", type=Path, metavar="FILE", help="the notebook to write (default: exams/exam-N.ipynb)")
    sub.add_argument("--grade", type=Path, metavar="FILE", help="grade an exam: a report, printed and kept beside it")

    sub = command("capstone", capstone, "score a drafter of your own, and show the leaderboard")
    sub.add_argument("file", type=Path, metavar="FILE", help="a Python file with propose(draft, sequence, k)")

    sub = command("drill", drill, "interview questions: those that are due first, then new ones")
    sub.add_argument("--topics", nargs="+", default=[], metavar="NAME", help="such as speed kv-cache (default: all)")
    sub.add_argument("--levels", nargs="+", default=["L4", "L5", "L6"], metavar="L", help="whose answers to aim for")
    sub.add_argument("--minutes", type=options.positive, default=20, metavar="N", help="(default: %(default)s)")
    sub.add_argument("--daily", action="store_true", help="ten minutes of numbers: those that are due, and fresh ones")
    _add_bank(sub)
    sub = command("mock", mock, "a mock interview of 45 or 60 minutes, marked afterwards; then a debrief")
    _add_bank(sub)
    sub.add_argument("--level", default="L5", help="L4, L5 or L6 (default: %(default)s)")
    sub.add_argument("--format", default="concept", help="concept, design, coding or experience (%(default)s)")
    sub.add_argument("--out", type=Path, metavar="FILE", help="the page to write (default: exams/mock-N.md)")
    sub.add_argument("--interviewer", action="store_true", help="the sheet of a partner who asks; with --out, a page")
    sub.add_argument("--resume", action="store_true", help="go on with the last round that was not finished")
    sub.add_argument("--judge", metavar="URL", help="an OpenAI-compatible server that proposes marks, up to its /v1")
    sub.add_argument("--model", type=options.text, metavar="NAME", help="the judge's model; its key is OPENAI_API_KEY")

    sub = command("cards", cards, "the interview questions as cards to print: eight on a sheet, answers on the back")
    sub.add_argument("out", nargs="?", type=Path, default=Path("cards.html"), metavar="FILE", help="(%(default)s)")
    sub.add_argument("--topics", nargs="+", default=[], metavar="NAME", help="such as speed kv-cache (default: all)")
    _add_bank(sub, seed=False)

    commands_for_teachers(command)

    sub = command("models", models, "list the models that minispec knows by name")
    actions = sub.add_subparsers(title="actions", metavar="ACTION")
    get = actions.add_parser("get", help="fetch a model", description="Fetch a model.")
    get.add_argument("name", help="a name of the list, or a hub id such as Qwen/Qwen3-0.6B")
    get.add_argument("--heads", action="store_true", help="it is no model, but published heads of a drafter")
    get.set_defaults(run=get_model)

    sub = command("measure", measure, "measure this machine: bandwidth, tokens per second, the cost of longer passes")
    options.add_model(sub, help="the model to measure")
    options.add_device(sub)
    options.add_weights(sub)
    sub.add_argument("--quick", action="store_true", help="fewer points and repeats")
    options.add_json(sub)

    sub = command("why", why, "why speculation is not faster: suspects, from a server's log or metrics")
    sub.add_argument("source", nargs="?", metavar="INPUT", help="a log, metrics or a trace; -; http://127.0.0.1:PORT")
    options.add(sub, "plain", options.text, None, "this load without speculation: such an input, or ms per token", "X")
    options.add(sub, "k", options.count, None, "draft tokens per cycle", "K")
    rates = {"acceptance": "accepted / tested", "rate": "accepted / drafted", "length": "tokens per cycle"}
    for name, what in (rates | {"c": "time of a draft token, in plain steps"}).items():
        options.add(sub, name, options.number, None, what, "X")
    times = {"v": "of a verify pass", "itl": "of a cycle, in ms", "measured": "speed-up", "batch": "sequences at once"}
    for name, what in times.items():
        options.add(sub, name, options.positive, None, what, "X")
    options.add_json(sub)

    _serve_options(command("serve", serve, "serve a model over HTTP, as OpenAI's API does, with speculation"))
    _handover_options(command("handover", handover, "the same speculation as a command or script of a real engine"))

    sub = command("build", build, "build the course's notebooks from their sources")
    sub.add_argument("names", nargs="*", metavar="NAME", help="such as 00_start_here, or 00 (default: all)")
    sub.add_argument("--check", action="store_true", help="run nothing, only say what is out of date")
    return top


def _add_bank(sub: Parser, seed: bool = True) -> None:
    sub.add_argument("--bank", metavar="FOLDER", help="your own questions (YAML), asked beside ours")
    if seed:
        options.add_seed(sub, None, "the same seed, the same choice (default: another one every time)")


def _add_drafter(sub: Parser, otherwise: str) -> None:
    kinds = f"{', '.join(options.DRAFTERS)}, or synthetic:0.8 for load tests (default: {otherwise})"
    sub.add_argument("--drafter", type=options.drafter, metavar="NAME", help=kinds)
    options.add_draft(sub, help=f"the draft model of model and cascade {options.SHIPPED}")


def _serve_options(sub: Parser) -> None:
    add, count = partial(options.add, sub), options.count
    options.add_model(sub, help="the model to serve")
    _add_drafter(sub, "no speculation")
    options.add_draft_length(sub, auto=False, default=None)
    options.add_device(sub)
    add("host", options.text, "127.0.0.1", "where to listen; by default this machine alone", "ADDRESS")
    add("port", options.port, 8000, "0: any free one", "PORT")
    add("served-model-name", options.text, None, "what clients call it (default: --model)", "NAME")
    key = "what clients must send (default: $MINISPEC_API_KEY, which no list of processes shows)"
    add("api-key", options.text, None, key, "KEY")
    add("max-num-seqs", count, 32, "requests that run at once")
    add("max-num-batched-tokens", count, 512, "tokens per step")
    add("block-size", count, 16, "tokens per block")
    add("max-body", count, 1024, "the longest body of a request, in KiB; longer ones get status 413")
    add("num-blocks", count, None, "for keys and values (default: what fits; on a CPU 512)")
    add("max-waiting", options.natural, 512, "requests that may wait to run; the next gets status 429")
    add("drain", options.positive, 10.0, "after SIGTERM or Ctrl-C, seconds for open requests to end", "S")
    warm = "compile and capture before listening what the first requests would wait for (default: yes)"
    sub.add_argument("--warm-up", action=BooleanOptionalAction, default=True, help=warm)


def _handover_options(sub: Parser) -> None:
    sub.add_argument("--engine", choices=options.ENGINES, required=True)
    sub.add_argument("--drafter", choices=options.HANDED_OVER, required=True)
    options.add_model(sub)
    options.add_draft(sub, help="the draft model of --drafter model")
    sub.add_argument("--heads", metavar="FOLDER", help="of --drafter medusa, eagle or dflash: a folder or a name")
    options.add_draft_length(sub, auto=False)
    options.add(sub, "n-max", options.count, 3, "of ngram")
    options.add(sub, "n-min", options.count, 1, "of ngram")
    options.add(sub, "ranks", options.count, 1, "GPUs that share the target")
    options.add_prompt(sub, help="of the script")
    options.add_tokens(sub, 64, "of the script")
    sub.add_argument("--export", type=Path, metavar="FOLDER", help="write what the engine cannot read as it is")


# ---------------------------------------------------------------- the commands


def demo(args) -> None:
    """Speculative decoding as it happens, then what it cost, beside plain decoding."""
    from minispec_course.demo import Painter, demo, wants_colour

    from .. import load
    from ..drafters import by_name, shipped_draft

    require_writable("json", args.json, make_folders=False)
    target = load(args.model, device=args.device, weights=args.weights)
    name = args.drafter or ("model" if args.draft or shipped_draft(args.model) else "ngram")
    drafter = by_name(name, target, args.draft, args.heads)
    colour = wants_colour(sys.stdout)
    opening = args.prompt + "\n\n" * args.chat
    painter = None if args.json == STDOUT else Painter(target, colour, partial(print, end="", flush=True), opening)
    prompt = [{"role": "user", "content": args.prompt}] if args.chat else args.prompt
    sampling = dict(temperature=args.temperature, seed=args.seed)
    result = demo(target, drafter, prompt, args.tokens, args.k, painter=painter, **sampling)
    publish(result.text(colour), json.dumps(result.facts(), ensure_ascii=False), args.json)


def lab(args) -> None:
    """Hand over to JupyterLab. A busy port is its business: it takes the next free one."""
    if not (ROOT / START).is_file():
        raise ValueError(f"{ROOT / START} is missing: the notebooks are in the repository, run minispec from a clone")
    from minispec_course import require_extra

    from ..cpu import machine

    require_extra()
    from jupyterlab.labapp import LabApp

    from minispec_course.check import copies
    from minispec_course.stored import LAB

    if not machine.was_compiled():
        machine.compiled()  # here rather than in the middle of a lesson
    for news in copies.lay_out(ROOT):
        print(news)
    os.environ[LAB] = "1"  # kernels know from it that somebody is there to guess
    options = [
        f"--ServerApp.root_dir={ROOT}",
        f"--LabApp.default_url=/lab/tree/{copies.MINE}/{START}",
        f"--ContentsManager.pre_save_hook={copies.__name__}.{copies.keep_pictures.__name__}",
        f"--ServerApp.port={args.port}",
        f"--LabApp.app_settings_dir={ROOT / 'course/jupyterlab'}",  # no news, no updates: the course works offline
        "--LabApp.custom_css=True",  # stored pictures that are dark on a dark page
        f"--ServerApp.tornado_settings={ {'static_custom_path': [str(ROOT / 'course/jupyterlab')]} }",
    ]
    options += ["--no-browser"] * (args.no_browser or not has_browser())
    options += ["--allow-root"] * (hasattr(os, "geteuid") and os.geteuid() == 0)
    LabApp.launch_instance(options)


def has_browser() -> bool:
    """Whether a window can open here. A browser inside the terminal does not count: JupyterLab needs JavaScript."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return not sys.platform.startswith("linux") or any(map(os.environ.get, screens))


def check(args) -> int:
    """0 when everything is right."""
    from minispec_course.check import terminal

    results = []
    for file in map(terminal.locate, args.names):
        results += terminal.check_notebook(file)
    print(terminal.table(results))
    return 0 if all(result.outcome == "right" for result in results) else 1


def hint(args) -> None:
    from minispec_course.check import hint

    hint(args.id)


def progress(args) -> None:
    from minispec_course.check.progress import bars, details, upcoming

    lines = details(args.set) if args.set else bars()
    if not args.set and any((ROOT / "exams").glob("mock-*.json")):
        from minispec_course.interview.mock_interview import trend

        lines += trend()
    print("\n".join([*lines, "", upcoming()]))


def reset(args) -> None:
    from minispec_course.build import builder
    from minispec_course.check import copies

    for name in args.names:
        job, kept = copies.reset(name)
        said = f"your attempt is kept as {kept.name}" if kept else "it had not been changed"
        print(f"{job.target.relative_to(builder.ROOT)} is new again; {said}")
    print("If it is open in a browser: File > Reload Notebook from Disk; if JupyterLab asks when it saves, Revert.")


def capstone(args) -> None:
    from minispec_course.capstone import leaderboard

    print(leaderboard(args.file))


def exam(args) -> int | None:
    """Start an exam, or grade one: then 0 when everything is right."""
    from minispec_course.check import exam

    if (args.minutes is None) == (args.grade is None):
        raise ValueError("give MINUTES to start an exam, or --grade FILE to end one")
    if args.grade is not None:
        report, file = exam.grade(args.grade)
        print(f"{report.markdown()}\nkept as {file}")
        return 0 if report.reached == report.possible else 1
    seed = random.SystemRandom().randrange(10_000) if args.seed is None else args.seed
    require_writable("out", args.out, make_folders=False)
    print(exam.announcement(exam.start(args.minutes, seed, args.topics, args.level, args.out)))


def drill(args) -> int:
    from minispec_course.interview import dialogue, fresh, load, session

    bank, console, some = load(args.bank), dialogue.Console(), (args.topics, args.levels, args.minutes, args.seed)
    sitting = fresh.daily(bank, args.seed) if args.daily else session.start(bank, *some)
    return dialogue.play(dialogue.drill(console, sitting), console)


def mock(args) -> int:
    from minispec_course.interview import dialogue, load, mock_interview, pages

    require_writable("out", args.out)  # now, not after 45 minutes
    wanted = (args.level, args.format, args.seed, args.resume, args.judge, args.model)
    made, console = mock_interview.begin(load(args.bank), *wanted), dialogue.Console()
    if args.interviewer and args.out:
        return print(f"wrote {pages.keep_sheet(made, args.out)}")
    hold = dialogue.interviewer if args.interviewer else dialogue.mock
    return dialogue.play(hold(console, made, args.out), console)


def cards(args) -> None:
    from minispec_course.interview import cards, load

    require_writable("out", args.out)
    file = write_whole(args.out, cards.page(load(args.bank), args.topics))
    print(f"wrote {file}: print it on both sides, turned over the long edge")


def models(args) -> None:
    from ..load.registry import models

    print(models())


def get_model(args) -> None:
    from ..load.fetch import fetch
    from ..load.registry import HUB_ID, KNOWN, locate

    fetchable = not KNOWN[args.name].packaged if args.name in KNOWN else HUB_ID.fullmatch(args.name)
    folder = fetch(args.name, args.heads) if fetchable else locate(args.name)  # locate says where, or what would do
    if not (fetchable or args.heads or all(any(folder.glob(file)) for file in ("config.json", "*.safetensors*"))):
        raise ValueError(f"{folder} holds no model: give a folder with config.json and its weights as safetensors")
    print(folder)


def measure(args) -> None:
    from .. import load
    from ..measure import measure

    require_writable("json", args.json, make_folders=False)
    report = measure(load(args.model, device=args.device, weights=args.weights), quick=args.quick)
    publish(report.text(), report.to_json(), args.json)


def why(args) -> None:
    from ..why import diagnose, facts, report

    require_writable("json", args.json, make_folders=False)
    given = {name: getattr(args, name) for name in ("k", "rate", "length", "batch", "c", "v", "itl", "measured")}
    seen = diagnose(args.source, args.plain, alpha=args.acceptance, **given)
    publish(report(seen), json.dumps(facts(seen), ensure_ascii=False), args.json)


def serve(args) -> None:
    from ..server import require_extra

    require_extra()
    from ..server.process import serve

    serve(args)


def handover(args) -> None:
    from ..parallel.handover import Order, hand_over

    asked = {name: getattr(args, name) for name in Order.__dataclass_fields__}
    print(hand_over(args.engine, Order(**asked), args.export))


def build(args) -> int | None:
    from minispec_course.build import builder

    if args.check:
        complaints = builder.check(args.names)
        print("\n".join([*complaints, "run: minispec build NAME"] if complaints else ["every notebook is up to date"]))
        return 1 if complaints else 0
    for job in builder.build(args.names):
        print(f"built {job.target.relative_to(builder.ROOT)}")
