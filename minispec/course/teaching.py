"""The commands for teachers: minispec release | collect | grade. What they need is imported when they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..files import options
from ..files.write import require_writable


def commands_for_teachers(command: Callable) -> None:
    """Add them. command(name, function, help) makes a parser."""
    sub = command("release", release, "student copies of sets of exercises, for a class")
    sub.add_argument("names", nargs="+", metavar="NAME", help="the number of a set, such as 06")
    sub.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to put them")
    options.add_seed(sub, None, "a version of the numeric exercises that no published solution knows")
    sub.add_argument("--students", type=Path, metavar="FILE", help="a name a line: a folder and a version for each")
    sub.add_argument("--without-checks", action="store_true", help="without checks, hints and pictures, as for an exam")
    sub.add_argument("--nbgrader", action="store_true", help="sources for nbgrader instead, below FOLDER/source")

    sub = command("collect", collect, "sort what a class handed in by student")
    sub.add_argument("source", type=Path, metavar="FOLDER", help="a folder or a zip archive of notebooks")
    sub.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder a student goes here")

    sub = command("grade", grade, "grade the submissions of a class, each answer in a sandbox")
    sub.add_argument("folder", type=Path, metavar="SUBMISSIONS", help="NAME.ipynb, or folders NAME with notebooks")
    sub.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the CSV to write; a journal goes beside it"
    )
    sub.add_argument("--html", type=Path, metavar="FOLDER", help="also pages: the class, and one for each student")
    sub.add_argument("--sets", nargs="+", default=[], metavar="NAME", help="such as 05 06 (default: all handed in)")
    sub.add_argument("--workers", type=options.count, default=1, metavar="N", help="processes (default: %(default)s)")
    options.add_seed(sub, None, "that of minispec release, if it had one")
    sub.add_argument("--per-student", action="store_true", help="it had --students, too")
    sub.add_argument(
        "--secret", type=Path, metavar="FILE", help="for hidden cases (default: beside the CSV, made once)"
    )
    sub.add_argument("--all-or-nothing", action="store_true", help="no points for parts of an answer")
    sub.add_argument("--again", nargs="+", default=[], metavar="NAME", help="judge this student or exercise once more")
    sub.add_argument(
        "--seconds", type=options.positive, metavar="S", help="for one answer (default: the exercise's own)"
    )
    sub.add_argument("--require-sandbox", action="store_true", help="refuse to grade without namespaces and seccomp")


def release(args) -> None:
    from .classroom import release

    if args.nbgrader:
        written = release.nbgrader_sources(args.names, args.out)
    else:
        students = release.read_students(args.students) if args.students else None
        written = release.release(args.names, args.out, args.seed, students, not args.without_checks)
    print("\n".join(map(str, written)))
    if args.seed is not None:
        own = " --per-student" * (args.students is not None)
        print(f"to grade them: minispec grade SUBMISSIONS --out grades.csv --seed {args.seed}{own}")


def collect(args) -> None:
    from .classroom.collect import collect
    from .classroom.identity import shown

    written, left_out = collect(args.source, args.out)
    print("\n".join([*(shown(str(file), 4000) for file in written), *(f"left out: {line}" for line in left_out)]))


def grade(args) -> int:
    """0: everybody has a mark. 1: some answers could not be graded, by no fault of their authors."""
    from .classroom import gradebook
    from .classroom.grade import Options, grade
    from .classroom.sandbox import Limits
    from .classroom.secret import read_secret

    require_writable("out", args.out)
    require_writable("html", args.html and args.html / "index.html")
    secret = read_secret(args.secret) if args.secret else None
    limits = Limits(seconds=args.seconds)
    chosen = Options(args.workers, limits, args.require_sandbox, args.seed, args.per_student, secret,
                     not args.all_or_nothing, tuple(args.again))  # fmt: skip
    results = grade(args.folder, args.out, args.sets, chosen)
    print(gradebook.summary(results))
    if args.html:
        from .classroom import classreport

        print(f"see {classreport.write(args.html, results)}")
    return int(any(result.outcome == gradebook.UNGRADED for result in results))
