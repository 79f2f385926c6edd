"""The commands of the course: minispec lab | check | hint | progress | reset | exam | capstone | drill | mock | cards |
build.

Each is a small function. What it needs is imported inside it, so that the others start without.
"""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from minispec.load.write import require_writable, write_whole

from . import options
from .options import Parser

ROOT = Path(__file__).resolve().parents[2]
START = "notebooks/00_start_here.ipynb"


def commands_of_the_course(command: Callable) -> None:
    """Add them. command(name, function, help) makes a parser."""
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

    sub = command("build", build, "build the course's notebooks from their sources")
    sub.add_argument("names", nargs="*", metavar="NAME", help="such as 00_start_here, or 00 (default: all)")
    sub.add_argument("--check", action="store_true", help="run nothing, only say what is out of date")


def _add_bank(sub: Parser, seed: bool = True) -> None:
    sub.add_argument("--bank", metavar="FOLDER", help="your own questions (YAML), asked beside ours")
    if seed:
        options.add_seed(sub, None, "the same seed, the same choice (default: another one every time)")


def lab(args) -> None:
    """Hand over to JupyterLab. A busy port is its business: it takes the next free one."""
    if not (ROOT / START).is_file():
        raise ValueError(f"{ROOT / START} is missing: the notebooks are in the repository, run minispec from a clone")
    from minispec.cpu import machine
    from minispec_course import require_extra

    require_extra()
    from jupyterlab.labapp import LabApp

    from minispec_course.check import copies
    from minispec_course.stored import LAB

    if not machine.was_compiled():
        machine.compiled()  # here rather than in the middle of a lesson
    for news in copies.lay_out(ROOT):
        print(news)
    os.environ[LAB] = "1"  # kernels know from it that somebody is there to guess
    settings = str(ROOT / "minispec_course/jupyterlab")
    options = [
        f"--ServerApp.root_dir={ROOT}",
        f"--LabApp.default_url=/lab/tree/{copies.MINE}/{START}",
        f"--ContentsManager.pre_save_hook={copies.__name__}.{copies.keep_pictures.__name__}",
        f"--ServerApp.port={args.port}",
        f"--LabApp.app_settings_dir={settings}",  # no news, no updates: the course works offline
        "--LabApp.custom_css=True",  # stored pictures that are dark on a dark page
        f"--ServerApp.tornado_settings={ {'static_custom_path': [settings]} }",
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


def build(args) -> int | None:
    from minispec_course.build import builder

    if args.check:
        complaints = builder.check(args.names)
        print("\n".join([*complaints, "run: minispec build NAME"] if complaints else ["every notebook is up to date"]))
        return 1 if complaints else 0
    for job in builder.build(args.names):
        print(f"built {job.target.relative_to(builder.ROOT)}")
