"""The commands for teachers: minispec release | collect | grade. What they need is imported when they run.

minispec release 03 05 --out handout/                    a copy of each set, without its solutions
minispec collect downloads.zip --out submissions/        a folder for each student (submission.py)
minispec grade submissions/ --out grades.csv             marks and diagnoses (grade.py)
"""

from collections.abc import Callable
from pathlib import Path

from minispec.load.write import require_writable, write_whole

from . import options


def commands_for_teachers(command: Callable) -> None:
    """Add them. command(name, function, help) makes a parser."""
    sub = command("release", release, "student copies of sets of exercises, for a class")
    sub.add_argument("names", nargs="+", metavar="NAME", help="the number of a set, such as 06")
    sub.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to put them")

    sub = command("collect", collect, "sort what a class handed in by student")
    sub.add_argument("source", type=Path, metavar="FOLDER", help="a folder or a zip archive of notebooks")
    sub.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="one folder per student goes here")

    sub = command("grade", grade, "grade the submissions of a class, each answer in a sandbox")
    add = sub.add_argument
    add("folder", type=Path, metavar="SUBMISSIONS", help="NAME.ipynb, or folders NAME with notebooks")
    add("--out", type=Path, required=True, metavar="FILE", help="the CSV to write; a journal goes beside it")
    add("--html", type=Path, metavar="FOLDER", help="also pages: the class, and one for each student")
    add("--sets", nargs="+", default=[], metavar="NAME", help="such as 05 06 (default: all handed in)")
    add("--workers", type=options.count, default=1, metavar="N", help="processes, at most one per core (%(default)s)")
    add("--seconds", type=options.positive, metavar="S", help="for one answer (default: the exercise's own)")
    add("--require-sandbox", action="store_true", help="refuse to grade without namespaces and seccomp")


def release(args) -> None:
    """Sets with stubs instead of solutions; the cases that follow from the grader's secret are nowhere in them."""
    import nbformat

    from minispec_course.build import builder

    found = builder.jobs(args.names)
    jobs = [job for job in found if job.kind == "exercise"]
    if {job.name for job in jobs} != {job.name for job in found}:
        raise ValueError(f"names={' '.join(args.names)}: give sets of exercises, such as 03 05")
    for job in jobs:
        place = args.out / f"{job.name}.ipynb"
        if place.exists():
            raise ValueError(f"{place} exists already: give another folder, or move it away")
        print(write_whole(place, nbformat.writes(builder.compose(job, whole=True)) + "\n"))


def collect(args) -> None:
    from minispec_course.check.submission import collect, shown

    written, left_out = collect(args.source, args.out)
    if left_out and not written:
        raise ValueError(f"nothing of {args.source} could be collected: {left_out[0]}" + " …" * (len(left_out) > 1))
    print("\n".join([*(shown(str(file), 4000) for file in written), *(f"left out: {line}" for line in left_out)]))


def grade(args) -> int:
    """0: every student has a mark. 1: some answers could not be graded, by no fault of their authors."""
    from minispec_course.check import report
    from minispec_course.check.grade import Options, grade
    from minispec_course.check.sandbox import Limits

    require_writable("out", args.out)
    require_writable("html", args.html and args.html / "index.html")
    if args.html:
        args.html.mkdir(parents=True, exist_ok=True)  # now, not after an hour
    chosen = Options(args.workers, Limits(seconds=args.seconds), args.require_sandbox)
    results = grade(args.folder, args.out, args.sets, chosen)
    print(report.summary(results))
    if args.html:
        print(f"see {report.write_pages(args.html, results)}")
    return int(any(result.outcome == report.UNGRADED for result in results))
