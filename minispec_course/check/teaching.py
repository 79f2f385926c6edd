"""The commands for teachers: minispec release | collect | grade. What they need is imported when they run."""

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
    sub.add_argument("--anonymous", action="store_true", help="pseudonyms instead of names; a file says who is who")
    sub.add_argument("--due", metavar="TIME", help="such as 2026-11-20T23:59: what is newer is late")
    sub.add_argument(
        "--late", type=options.not_negative, default=0.0, metavar="PERCENT", help="of the points, lost a day"
    )
    sub.add_argument(
        "--grace", type=options.not_negative, default=0.0, metavar="MINUTES", help="after --due that are free"
    )
    sub.add_argument("--times", type=Path, metavar="FILE", help="a CSV, student,submitted, if files do not know it")
    sub.add_argument(
        "--similar",
        type=options.not_negative,
        metavar="SHARE",
        help="list pairs of answers that share at least this, such as 0.8",
    )
    sub.add_argument("--canvas", type=Path, metavar="FILE", help="also a CSV for the gradebook of Canvas")
    sub.add_argument("--moodle", type=Path, metavar="FILE", help="also a grading worksheet for Moodle")
    sub.add_argument("--gradescope", type=Path, metavar="FOLDER", help="also a results.json for each student")
    sub.add_argument("--roster", type=Path, metavar="FILE", help="the class list as Canvas or Moodle exports it")
    sub.add_argument("--assignment", default="minispec", metavar="NAME", help="its column in Canvas")
    sub.add_argument("--require-sandbox", action="store_true", help="refuse to grade without namespaces and seccomp")


def release(args) -> None:
    from . import release

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
    from .collect import collect
    from .identity import shown

    written, left_out = collect(args.source, args.out)
    if left_out and not written:
        raise ValueError(f"nothing of {args.source} could be collected: {left_out[0]}" + " …" * (len(left_out) > 1))
    print("\n".join([*(shown(str(file), 4000) for file in written), *(f"left out: {line}" for line in left_out)]))


def grade(args) -> int:
    """0: every student has a mark. 1: some answers could not be graded, by no fault of their authors."""
    from . import gradebook, late, platforms
    from .grade import Options, grade
    from .sandbox import Limits
    from .secret import read_secret

    for name in ("out", "canvas", "moodle"):
        require_writable(name, getattr(args, name))
    for name in ("html", "gradescope"):
        require_writable(name, getattr(args, name) and getattr(args, name) / "index.html")
    if args.anonymous and (args.canvas or args.moodle):
        raise ValueError("anonymous: Canvas and Moodle need to know whose marks they are; give one or the other")
    if args.late and not args.due:
        raise ValueError(f"late={args.late:g}: give --due, too")
    roster = platforms.read_roster(args.roster) if args.roster else None
    chosen = Options(
        args.workers,
        Limits(seconds=args.seconds),
        args.require_sandbox,
        args.seed,
        args.per_student,
        read_secret(args.secret) if args.secret else None,
        partial=not args.all_or_nothing,
        again=tuple(args.again),
        anonymous=args.anonymous,
        policy=late.Policy(late.moment(args.due), args.late, args.grace) if args.due else None,
        times=late.read_times(args.times) if args.times else {},
        similar=args.similar,
    )
    results = grade(args.folder, args.out, args.sets, chosen)
    print(gradebook.summary(results))
    missing = []
    if args.canvas:
        missing += platforms.write_canvas(args.canvas, results, args.assignment, roster)
    if args.moodle:
        missing += platforms.write_moodle(args.moodle, results, roster)
    for student in dict.fromkeys(missing):
        print(f"not in the roster, or twice: {student}")
    if args.gradescope:
        platforms.write_gradescope(args.gradescope, results)
    if args.html:
        from . import classreport

        print(f"see {classreport.write(args.html, results)}")
    return int(any(result.outcome == gradebook.UNGRADED for result in results))
