"""The commands for teachers: minispec release | collect | grade. What they need is imported when they run.

minispec release 03 05 --out handout/                    a copy of each set, without its solutions
minispec release 06 --out course/ --nbgrader             sources for nbgrader's own pipeline
minispec collect downloads.zip --out submissions/        a folder for each student (submission.py)
minispec grade submissions/ --out grades.csv             marks and diagnoses (grade.py)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from minispec.cli import options
from minispec.load.write import require_writable


def commands_for_teachers(command: Callable) -> None:
    """Add them. command(name, function, help) makes a parser."""
    sub = command("release", release, "student copies of sets of exercises, for a class")
    sub.add_argument("names", nargs="+", metavar="NAME", help="the number of a set, such as 06")
    sub.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to put them")
    sub.add_argument("--without-checks", action="store_true", help="without checks, hints and pictures, as for an exam")
    sub.add_argument("--nbgrader", action="store_true", help="sources for nbgrader instead, below FOLDER/source")

    sub = command("collect", collect, "sort what a class handed in by student")
    sub.add_argument("source", type=Path, metavar="FOLDER", help="a folder or a zip archive of notebooks")
    sub.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder a student goes here")

    sub = command("grade", grade, "grade the submissions of a class, each answer in a sandbox")
    add = sub.add_argument
    add("folder", type=Path, metavar="SUBMISSIONS", help="NAME.ipynb, or folders NAME with notebooks")
    add("--out", type=Path, required=True, metavar="FILE", help="the CSV to write; a journal goes beside it")
    add("--html", type=Path, metavar="FOLDER", help="also pages: the class, and one for each student")
    add("--sets", nargs="+", default=[], metavar="NAME", help="such as 05 06 (default: all handed in)")
    add("--workers", type=options.count, default=1, metavar="N", help="processes (default: %(default)s)")
    add("--secret", type=Path, metavar="FILE", help="for hidden cases (default: beside the CSV, made once)")
    add("--all-or-nothing", action="store_true", help="no points for parts of an answer")
    add("--again", nargs="+", default=[], metavar="NAME", help="judge this student or exercise once more")
    add("--seconds", type=options.positive, metavar="S", help="for one answer (default: the exercise's own)")
    add("--require-sandbox", action="store_true", help="refuse to grade without namespaces and seccomp")


def release(args) -> None:
    from .check.release import nbgrader_sources, student_copies

    if args.nbgrader:
        written = nbgrader_sources(args.names, args.out)
    else:
        written = student_copies(args.names, args.out, not args.without_checks)
    print("\n".join(map(str, written)))


def collect(args) -> None:
    from .check.submission import collect, shown

    written, left_out = collect(args.source, args.out)
    if left_out and not written:
        raise ValueError(f"nothing of {args.source} could be collected: {left_out[0]}" + " …" * (len(left_out) > 1))
    print("\n".join([*(shown(str(file), 4000) for file in written), *(f"left out: {line}" for line in left_out)]))


def grade(args) -> int:
    """0: every student has a mark. 1: some answers could not be graded, by no fault of their authors."""
    from .check import report
    from .check.grade import Options, grade, read_secret
    from .check.sandbox import Limits

    require_writable("out", args.out)
    require_writable("html", args.html and args.html / "index.html")
    secret = read_secret(args.secret) if args.secret else None
    limits, partial = Limits(seconds=args.seconds), not args.all_or_nothing
    chosen = Options(args.workers, limits, args.require_sandbox, secret, partial, tuple(args.again))
    results = grade(args.folder, args.out, args.sets, chosen)
    print(report.summary(results))
    if args.html:
        print(f"see {report.write_pages(args.html, results)}")
    return int(any(result.outcome == report.UNGRADED for result in results))
