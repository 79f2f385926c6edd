"""Make a class with known marks, grade it, and print facts. Run it on a quiet machine:

    python tests/bench/grade_class.py --students 200 --workers 2

Each student has six answers: 06's five, and 07.speedup. About half are right, the others are wrong answers of
tests/mutants/exercises (all or nothing: no points), a few are hostile. The marks that come out are compared with those.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/course")]

from graders import notebook, solutions  # noqa: E402
from mutants.exercises import WRONG_ANSWERS  # noqa: E402

from minispec_course.check.grade import Options, grade  # noqa: E402
from minispec_course.exercises.exercise import find  # noqa: E402

HOSTILE = ["import os\nos._exit(0)", "raise SystemExit", "import socket\nsocket.socket()", "while True: pass"]


def make(folder: Path, students: int) -> dict[tuple[str, str], int]:
    """(student, exercise) → points, all or nothing."""
    draw, expected = random.Random(0), {}
    right = solutions("06") | {"07.speedup": solutions("07")["07.speedup"]}
    wrong = {id: [w.source for w in WRONG_ANSWERS if w.exercise == id] for id in right}
    for i in range(students):
        student, answers = f"student {i:03}", {}
        for id in right:
            kind = draw.random()
            good = kind < 0.5
            answers[id] = right[id] if good else draw.choice(wrong[id] if kind < 0.97 else HOSTILE)
            expected[student, id] = find(id).points if good else 0
        (folder / student).mkdir()
        for number in ("06", "07"):
            (folder / student / f"{number}.ipynb").write_text(json.dumps(notebook(number, answers)))
    return expected


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--students", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        expected = make(Path(folder) / "in", args.students)
        options = [Options(workers=args.workers, partial=partial) for partial in (False, True)]
        start = perf_counter()
        plain = grade(Path(folder) / "in", Path(folder) / "plain.csv", ["06", "07"], options[0])
        seconds = perf_counter() - start
        found = {(r.student, r.id): r.points for r in plain}
        off = {key: (points, found[key]) for key, points in expected.items() if found[key] != points}
        start = perf_counter()
        parts = grade(Path(folder) / "in", Path(folder) / "parts.csv", ["06", "07"], options[1])
        more = perf_counter() - start
    some = [r for r in parts if 0 < r.points < r.possible]
    unfair = [r.id for r in parts if (r.student, r.id) in expected and r.points < expected[r.student, r.id]]
    ran = sum(bool(r.level) for r in plain)
    print(f"students {args.students}, answers that ran {ran}, of them expected {len(expected)}, workers {args.workers}")
    print(f"all or nothing: {seconds:.0f} s; marks that are not as expected: {len(off)} {off or ''}")
    print(f"partial credit: {more:.0f} s; answers with a part of the points: {len(some)}; below expected: {unfair}")
    return int(bool(off or unfair))


if __name__ == "__main__":
    sys.exit(main())
