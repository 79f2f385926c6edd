"""How long a check takes: every exercise, with the right answer and each known wrong one.

    python tests/bench/check_times.py                 all exercises; about three minutes
    python tests/bench/check_times.py 06 07.best_k    some of them
    python tests/bench/check_times.py --times 5       each answer five times: the figures to keep
    python tests/bench/check_times.py --foreign       also the stored wrong answers

The bars are 0.5 s for a right answer, 1.5 s for a wrong one, 4 s for the last exercise of the capstone, by the wall
clock of a quiet machine with two cores. Beside other work that clock says little: --by processor judges by the
processor's seconds instead, which others can hardly change. Each line is printed as soon as it is known, so a run that
is interrupted has its lines and its summary; --minutes ends a run by itself, and what was left out is named.

The first check of an exercise in a fresh kernel also computes what is expected; that one is the column `first`. For
wrong answers nothing of what mutants do is known beforehand, as in a learner's notebook.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/course/exercises")]
os.environ["MINISPEC_TRIAL"], os.environ["MINISPEC_PROGRESS"] = "micro", "off"

from minispec_course.check.check import RIGHT, WRONG, judge  # noqa: E402
from minispec_course.exercises.exercise import Exercise, everything  # noqa: E402

BARS = {"right": 0.5, "wrong": 1.5}
OTHER_BARS = {"18.whole": 4.0}
CLOCKS = ("wall", "processor")
ENOUGH = 6.0  # seconds for one answer: what takes longer is known to be slow, and is not asked again


@dataclass
class Times:
    """Of one exercise and one sort of answer: what each answer took, the median of its repetitions."""

    wall: dict[str, float] = field(default_factory=dict)
    processor: dict[str, float] = field(default_factory=dict)

    def worst(self, clock: str) -> tuple[float, str]:
        return max(((seconds, name) for name, seconds in getattr(self, clock).items()), default=(0.0, "nothing"))

    def median(self, clock: str) -> float:
        return statistics.median(getattr(self, clock).values() or [0.0])


def timed(exercise: Exercise, answer: Callable, wanted: str, times: int, name: str, found: Times, odd: list) -> None:
    """Judge an answer some times. One that is not judged as it should be is noted, and ends nothing."""
    wall, processor = [], []
    while len(wall) < times and sum(wall) < ENOUGH:
        if wanted == WRONG:
            forget_mutants(exercise)
        start = perf_counter(), process_time()
        try:
            outcome = judge(exercise, answer).outcome
        except Exception as error:  # a fault of the check itself
            outcome = f"{type(error).__name__}: {error}"
        wall.append(perf_counter() - start[0])
        processor.append(process_time() - start[1])
    found.wall[name], found.processor[name] = statistics.median(wall), statistics.median(processor)
    if outcome != wanted:
        odd.append(f"{exercise.id}, {name}: {outcome} instead of {wanted}")


def forget_mutants(exercise: Exercise) -> None:
    for key in [key for key in exercise.seen if key[0] not in ("trials", "expected")]:
        del exercise.seen[key]


def wrong_answers(exercise: Exercise, foreign: bool) -> Iterator[tuple[str, Callable]]:
    yield from ((mutant.name, mutant.function) for mutant in exercise.mutants.values())
    if foreign:
        from exercise_cells import function_in
        from mutants.exercises import ANSWERS

        for i, answer in enumerate(ANSWERS):
            if answer.exercise == exercise.id and not answer.right:
                yield f"foreign {i} ({answer.what[:60]})", function_in(answer.source, answer.exercise)


def times_of(exercise: Exercise, times: int, foreign: bool, odd: list[str]) -> dict[str, Times]:
    found = {"first": Times(), "right": Times(), "wrong": Times()}
    timed(exercise, exercise.reference, RIGHT, 1, "first", found["first"], odd)
    timed(exercise, exercise.reference, RIGHT, times, "reference", found["right"], odd)
    for name, function in wrong_answers(exercise, foreign):
        timed(exercise, function, WRONG, times, name, found["wrong"], odd)
    return found


def line_of(id: str, found: dict[str, Times], clock: str) -> str:
    first, right, wrong = (found[kind] for kind in ("first", "right", "wrong"))
    cells = [first.median(clock), right.median(clock), wrong.median(clock), wrong.worst(clock)[0]]
    other = CLOCKS[clock == CLOCKS[0]]
    beside = f"{right.median(other):.2f} / {wrong.worst(other)[0]:.2f}"
    return f"{id:26}" + "".join(f"{cell:8.2f}" for cell in cells) + f"  {beside:>15}  {len(wrong.wall):4}"


def above(id: str, found: dict[str, Times], clock: str) -> list[str]:
    """The bars that this exercise misses, with the answer that takes longest."""
    return [
        f"{id} {kind} {found[kind].worst(clock)[0]:.2f} s ({found[kind].worst(clock)[1]})"
        for kind, bar in BARS.items()
        if found[kind].worst(clock)[0] > OTHER_BARS.get(id, bar)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets or exercises (default: all)")
    parser.add_argument("--times", type=int, default=1, help="how often each answer is judged")
    parser.add_argument("--by", choices=CLOCKS, default="wall", help="the clock that is held against the bars")
    parser.add_argument("--foreign", action="store_true", help="wrong answers of tests/course/data, too")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no other exercise after these")
    args = parser.parse_args()
    over, odd, left, load, start = [], [], [], os.getloadavg()[0], perf_counter()
    print(f"{'exercise':26}{'first':>8}{'right':>8}{'wrong':>8}{'worst':>8}  {'by other clock':>15}  wrong answers")
    for id, exercise in everything().items():
        if args.names and not {id, id.split(".")[0]} & {*args.names}:
            continue
        if perf_counter() - start > 60 * args.minutes:
            left.append(id)
            continue
        try:
            found = times_of(exercise, args.times, args.foreign, odd)
        except KeyboardInterrupt:
            left.append(f"{id} (interrupted) and those after it")
            break
        print(line_of(id, found, args.by), flush=True)
        over += above(id, found, args.by)
    print(f"\nabove its bar, by the {args.by} clock: {'; '.join(over) or 'none'}")
    print(f"judged otherwise than they should be: {'; '.join(odd) or 'none'}")
    print(f"left out: {', '.join(left) or 'none'}")
    print(f"{perf_counter() - start:.0f} s in all; load of the machine at the start {load:.1f}")
    return int(bool(over or odd or left))


if __name__ == "__main__":
    sys.exit(main())
