"""Ten minutes a day: short items only, whose numbers are new every time.

    session = practise(load(), seed=0)          # a Session of Choices, fresh numbers and numbers that are due
    minispec drill --daily

A Choice is an exercise of the course with fresh numbers. Its wrong options are what the exercise's known mistakes
compute, so whoever picks one reads the diagnosis. A fresh number is a formula with other parameters. A small file
beside the drill's keeps the days, what was right by topic, and the level that each question has reached.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from fsrs import Rating

from minispec.load.write import write_whole

from ..exercises.exercise import find
from .arithmetic import result as shown
from .drill import Computed, Figure, Item, Said, Session
from .expressions import evaluate
from .question import LEVELS, Number, Question
from .questions import topics
from .schedule import Schedule, place

MINUTES = 10
OPTIONS = 4
APART = 0.03  # two options closer than this look the same
BAR = 20  # characters of the longest bar
# exercise → its topic, the prompt, and parameters that are easy to compute with
ASKED: dict[str, tuple[str, str, Callable[[random.Random], dict]]] = {
    "07.expected_tokens": (
        "speed",
        "k = {k}, each draft token is accepted with probability {alpha}. How many tokens per cycle?",
        lambda r: dict(alpha=r.choice([0.5, 0.6, 0.7, 0.8, 0.9]), k=r.choice([2, 3, 4, 5])),
    ),
    "07.speedup": (
        "speed",
        "α = {alpha}, k = {k}, c = {c}, v = {v}. What is the speed-up?",
        lambda r: dict(
            alpha=r.choice([0.6, 0.7, 0.8]),
            k=r.choice([2, 3, 4]),
            c=r.choice([0.05, 0.1, 0.2]),
            v=r.choice([1.0, 1.25, 1.5, 2.0]),
        ),
    ),
    "02.kv_bytes": (
        "kv-cache",
        "{layers} layers, {heads} query heads and {kv_heads} KV heads of {head_dim}, {bits} bits, {batch} "
        "requests of {length} tokens. How many GiB of cache?",
        lambda r: dict(
            layers=r.choice([32, 40, 80]),
            heads=r.choice([32, 64]),
            kv_heads=r.choice([4, 8]),
            head_dim=128,
            bits=r.choice([8, 16]),
            batch=r.choice([8, 16, 32]),
            length=r.choice([2048, 4096, 8192]),
        ),
    ),
    "17.kv_size": (
        "kv-cache",
        "MLA: {layers} layers, a latent of {latent} and {rope} for positions, {bits} bits, groups of {group} "
        "with 2-byte scales below 16 bits. How many bytes do {tokens} tokens take?",
        lambda r: dict(
            layers=r.choice([27, 61]),
            kv_heads=128,
            head_dim=128,
            latent=r.choice([256, 512]),
            rope=64,
            bits=r.choice([8, 16]),
            group=r.choice([32, 64]),
            tokens=r.choice([10, 100, 1000]),
        ),
    ),
    "01.intensity": (
        "bottlenecks",
        "{weights:,.0f} parameters of {bits} bits, batch {batch}, {tokens} new and {context} cached tokens "
        "per sequence, {kv_bytes:,} bytes of cache per token. How many FLOP per byte?",
        lambda r: dict(
            weights=r.choice([1e9, 8e9]),
            bits=r.choice([8, 16]),
            batch=r.choice([1, 8, 32]),
            tokens=r.choice([1, 5]),
            context=r.choice([0, 1000, 4000]),
            kv_bytes=131072,
        ),
    ),
}
# topic, name, expression, unit: formulas with room for fresh parameters
FORMULAS: list[tuple[str, str, str, str, Callable[[random.Random], dict]]] = [
    (
        "bottlenecks",
        "the time to read {n} B bf16 parameters at {bw} TB/s, in ms",
        "1e3 * pass_bytes({n}e9) / {bw}e12",
        "ms",
        lambda r: dict(n=r.choice([1, 3, 8, 14, 70]), bw=r.choice([1, 2, 3.35, 4.8])),
    ),
    (
        "kv-cache",
        "the cache per token of {l} layers and {h} KV heads of 128 in bf16, in KiB",
        "kv_bytes_per_token({l}, {h}, 128) / 1024",
        "KiB",
        lambda r: dict(l=r.choice([28, 32, 48, 80]), h=r.choice([2, 4, 8])),
    ),
    (
        "paging",
        "the empty slots of a request of {n} tokens in blocks of 16",
        "wasted_slots({n})",
        "",
        lambda r: dict(n=r.randrange(20, 400)),
    ),
    (
        "speed",
        "the tokens per cycle at α = {a}, k = {k}",
        "expected_tokens({a}, {k})",
        "",
        lambda r: dict(a=r.choice([0.5, 0.6, 0.75, 0.8]), k=r.choice([1, 2, 3, 4])),
    ),
    (
        "speed",
        "the speed-up at α = {a}, k = {k}, c = {c}, v = 1",
        "speedup({a}, {k}, {c})",
        "×",
        lambda r: dict(a=r.choice([0.6, 0.7, 0.8]), k=r.choice([2, 3, 4]), c=r.choice([0.05, 0.1, 0.2])),
    ),
    (
        "speed",
        "the positions that the target computes per token kept at α = {a}, k = {k}",
        "target_work({a}, {k})",
        "",
        lambda r: dict(a=r.choice([0.5, 0.7, 0.8]), k=r.choice([2, 4])),
    ),
    (
        "exactness",
        "the acceptance for p = ({p}, {pp}), q = ({q}, {qq})",
        "acceptance([{p}, {pp}], [{q}, {qq}])",
        "",
        lambda r: _two(r.randrange(1, 10), r.randrange(1, 10)),
    ),
    (
        "fewer-bytes",
        "the gain when {f} of the bytes shrink {x} ×",
        "fewer_bytes_speedup({f}, {x})",
        "×",
        lambda r: dict(f=r.choice([0.5, 0.75, 0.8, 0.9]), x=r.choice([2, 4])),
    ),
    (
        "scale",
        "the idle share of a pipeline with {s} stages and {m} microbatches",
        "pipeline_bubble({s}, {m})",
        "",
        lambda r: dict(s=r.choice([2, 4, 8]), m=r.choice([4, 8, 16])),
    ),
    (
        "batching",
        "the least time of a step that reads {w} GB of weights and {c} GB of cache at 4 TB/s, in ms",
        "({w} + {c}) / 4",
        "ms",
        lambda r: dict(w=r.choice([2, 8, 16]), c=r.choice([4, 10, 24])),
    ),
]


def _two(a: int, b: int) -> dict:
    return dict(p=a / 10, pp=(10 - a) / 10, q=b / 10, qq=(10 - b) / 10)


@dataclass(frozen=True)
class Choice:
    """Four numbers, one right; each wrong one is what a known mistake computes."""

    topic: str
    prompt: str
    options: tuple[str, ...]
    right: int
    why: tuple[str, ...]  # of each option: the diagnosis of the mistake; "" for the right one
    question = key = None
    minutes = 0.7

    @property
    def asks(self) -> list[str]:
        return [self.prompt]


@dataclass(frozen=True)
class Chosen:
    item: Choice
    given: int | None

    @property
    def right(self) -> bool:
        return self.given == self.item.right

    @property
    def rating(self) -> Rating:
        return Rating.Good if self.right else Rating.Again


@dataclass(frozen=True)
class Fresh(Figure):
    """A number with parameters that were chosen a moment ago. It does not come back: the next one is another."""

    topic: str = ""


def choice(dice: random.Random) -> Choice:
    """An exercise with fresh numbers, as multiple choice."""
    while True:
        id, (topic, prompt, parameters) = dice.choice(list(ASKED.items()))
        exercise, case = find(id), parameters(dice)
        right = float(exercise.reference(*case.values()))
        found: list[tuple[float, str]] = [(right, "")]
        mutants = list(exercise.mutants.values())
        dice.shuffle(mutants)
        for mutant in mutants:
            value = _value(mutant.function, case)
            if value and all(abs(value - other) > APART * abs(other) for other, _ in found) and len(found) < OPTIONS:
                found.append((value, mutant.diagnosis))
        if len(found) == OPTIONS:
            dice.shuffle(found)
            return Choice(
                topic,
                prompt.format(**case),
                tuple(shown(value) for value, _ in found),
                [why for _, why in found].index(""),
                tuple(why for _, why in found),
            )


def _value(function: Callable, case: Mapping) -> float | None:
    """What a mistake computes; None where that is no positive number."""
    try:
        value = float(function(*case.values()))
    except Exception:  # a mistake may be of any kind
        return None
    return value if 0 < value < float("inf") else None


def fresh_number(dice: random.Random) -> Fresh:
    topic, name, expression, unit, parameters = dice.choice(FORMULAS)
    given = parameters(dice)
    expression = expression.format(**given)
    return Fresh(Number(name.format(**given), expression, evaluate(expression), 0.0, unit=unit), topic=topic)


def practise(
    bank: dict[str, Question], seed: int | None = None, schedule: Schedule | None = None, minutes: float = MINUTES
) -> Session:
    """Numbers that are due, then choices and fresh numbers in turn, until the minutes are full."""
    schedule = Schedule(place()) if schedule is None else schedule
    dice = random.Random(random.SystemRandom().randrange(10_000) if seed is None else seed)
    figures = [Figure(number, question) for question in bank.values() for number in question.numbers]
    due = sorted((f for f in figures if schedule.is_due(f.key)), key=lambda f: schedule.urgency(f.key))
    items: list[Item] = due[:4]
    while sum(item.minutes for item in items) + 1 <= minutes:
        items.append(choice(dice) if len(items) % 2 == 0 else fresh_number(dice))
    return Session(items, minutes, schedule)


# ---- what is kept of it ---------------------------------------------------------------------------------------------


class Record:
    """Days, answers by topic, levels by question: daily.json beside drill.json. A file that makes no sense is left."""

    def __init__(self, file: Path | None = None, today: Callable[[], date] = date.today):
        drill = place()
        self.file = file or (drill and drill.with_name("daily.json"))
        self.today = today
        self.days: set[str] = set()
        self.topics: dict[str, list[int]] = {}  # topic → right, asked
        self.levels: dict[str, int] = {}
        try:
            kept = json.loads(self.file.read_text(encoding="utf-8")) if self.file and self.file.exists() else {}
            self.days = {date.fromisoformat(day).isoformat() for day in kept.get("days", [])}
            self.topics = {
                str(name): [int(right), int(asked)] for name, (right, asked) in kept.get("topics", {}).items()
            }
            self.levels = {str(id): int(level) for id, level in kept.get("levels", {}).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self.file = None

    def reach(self, id: str, level: int) -> None:
        """A question was graded in an interview."""
        self.levels[id] = level
        self._keep()

    def note(self, results: Sequence) -> None:
        """Count what was answered today, and keep it."""
        for result in results:
            if isinstance(result, Said):
                self.levels[result.item.key] = result.reached
            elif isinstance(result, (Computed, Chosen)):
                item = result.item
                counts = self.topics.setdefault(item.question.topic if item.question else item.topic, [0, 0])
                counts[0] += result.right
                counts[1] += 1
        if results:
            self._keep()

    def _keep(self) -> None:
        self.days.add(self.today().isoformat())
        if self.file is not None:
            kept = {"days": sorted(self.days), "topics": self.topics, "levels": self.levels}
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.file, json.dumps(kept, indent=1))
            except OSError:
                self.file = None

    @property
    def streak(self) -> int:
        """Days in a row up to today, or up to yesterday if today is still open."""
        day = self.today()
        if day.isoformat() not in self.days:
            day -= timedelta(days=1)
        count = 0
        while day.isoformat() in self.days:
            count, day = count + 1, day - timedelta(days=1)
        return count

    def readiness(self, bank: Mapping[str, Question]) -> dict[str, tuple[int, int, list[str]]]:
        """Level → questions that have reached it, all questions, the topics in which the fewest have."""
        found = {}
        for wanted, level in enumerate(LEVELS, start=1):
            there = {id for id, reached in self.levels.items() if id in bank and reached >= wanted}

            def share(topic: str, there=there) -> float:
                some = [question.id for question in bank.values() if question.topic == topic]
                return sum(id in there for id in some) / len(some)

            found[level] = (len(there), len(bank), sorted(topics(dict(bank)), key=share)[:3])
        return found


def overview(record: Record, schedule: Schedule, bank: Mapping[str, Question]) -> list[str]:
    """Streak, due, weakest topics as bars, readiness per level with what is missing. Lines of Markdown."""
    due = sum(schedule.is_due(key) for key in schedule.cards)
    lines = [f"Streak: {record.streak} {'day' if record.streak == 1 else 'days'}. Due now: {due}.", ""]
    weakest = sorted(record.topics.items(), key=lambda pair: pair[1][0] / pair[1][1])[:5]
    if weakest:
        wide = max(len(topic) for topic, _ in weakest)
        lines += ["Weakest topics:", ""]
        for topic, (right, asked) in weakest:
            full = round(BAR * right / asked)
            lines.append(f"- `{topic:{wide}} {'█' * full}{'░' * (BAR - full)} {right} of {asked}`")
        lines.append("")
    lines += ["Readiness, by questions that have reached a level in a drill or an interview:", ""]
    for level, (there, of, missing) in record.readiness(bank).items():
        lines.append(f"- {level}: {there} of {of}; next: {', '.join(missing)}")
    return lines
