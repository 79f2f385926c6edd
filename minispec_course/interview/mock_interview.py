"""A mock interview: which questions a round asks, what was answered, and the record from which it can be resumed.

    interview = begin(load(), level="L5", format="concept", seed=3)      # a Session, see session.py
    … interview.say(text) while something is `asked`; then mark and settle every place of `to_mark` …

Answers come first and marks afterwards: by the candidate, by a partner, or proposed by a model (judge.py). The program
checks numbers and code, and reads no prose.
"""

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import count
from math import inf
from pathlib import Path

from minispec.load.write import write_whole

from .coding import Code, tasks
from .fresh import derivation
from .judge import Judge
from .question import LEVELS, Number
from .questions import ROOT
from .schedule import Schedule
from .session import FOLLOW_UP, HALF, PUSH_BACK, SAID, Bank, Computed, Figure, Item, Mark, Marks, Said, Session, Talk

FOLDER = ROOT / "exams"  # as in check/exam.py, which takes seconds to load
ROUNDS = {"concept": 45, "design": 60, "coding": 60, "experience": 45}  # minutes
KINDS = {  # which questions of the bank a round asks: one of each tuple
    "concept": (("concept",), ("debugging",), ("estimation", "derivation")),
    "design": (("design",),),  # a whole case, and a smaller question
    "coding": (("coding",),),
    "experience": (("behavioural",), ("debugging", "design")),
}
ROUND_RULE = "The round is the middle one of its questions' levels, of two the lower one."
CHANGED = "One thing has changed since this morning. {}. What do you do differently?"
OPENING = """This is the {0.format} round for an {0.level} position, and you have {0.minutes} minutes. Answer aloud, as
on the day, and type what you said, or notes of it; an empty line ends an answer. Afterwards the clock stops, and the
rubric is marked beside your words. With a partner: `minispec mock --interviewer --level {0.level} --format {0.format}
--seed {0.seed}` is the sheet to ask from, and q leaves the marks to them."""


@dataclass(frozen=True)
class Asked(Talk):
    """A question as a round asks it: fewer turns than in a drill, and a design is changed half-way."""

    position: str = "L5"  # the level that the interview is for

    @property
    def goal(self) -> int:
        return 1 + LEVELS.index(self.position)

    @property
    def facts(self) -> tuple[str, ...]:
        """What the interviewer says only when asked."""
        return self.question.case.requirements if self.question.case else ()

    @property
    def turns(self) -> list[tuple[str, str, str]]:
        changes = self.question.case.changes[:1] if self.question.case else ()
        turns = [(PUSH_BACK, CHANGED.format(change.says), change.reply) for change in changes]
        turns += [(FOLLOW_UP, each.question, each.short) for each in self.question.follow_ups[:1]]
        pushed = self.question.push_backs[: 1 if self.position == LEVELS[0] else 2]
        return turns + [(PUSH_BACK, each.says, each.reply) for each in pushed]


class Interview(Session):
    """One round. `judge`, if there is one, proposes the marks of an item."""

    def __init__(self, bank: Bank, level="L5", format="concept", seed=None, schedule=None, clock=time.monotonic):
        for name, value, known in (("level", level, LEVELS), ("format", format, ROUNDS)):
            if value not in known:
                raise ValueError(f"{name}={value!r}: give one of {', '.join(known)}")
        self.bank, self.level, self.format, self.begun = bank, level, format, datetime.now()
        self.seed: int = unasked(bank, level, format) if seed is None else seed
        super().__init__(items_of(bank, level, format, self.seed), ROUNDS[format], schedule, clock)
        self.opening = " ".join(OPENING.format(self).split())
        self.facts: list[tuple[str, int | None]] = []  # what was asked in a design, and which fact was the answer
        self.marks: dict[int, dict[int, Mark]] = {}  # place → what is marked so far
        self.marked_by, self.judge, self.file, self.notice, self.gone = "you", None, None, "", []

    def say(self, text: str) -> None:
        super().say(text)
        if self.asked is None:
            self.advance()
        self.keep()

    def computed(self, text: str) -> Computed:
        self.texts[self.place] = [text]
        result = super().computed(text)
        self.keep()
        return result

    def skip(self) -> None:
        """Nothing to say: that counts, as it does on the day."""
        place = self.place
        if isinstance(self.current, Figure):
            self.computed("")
        while self.place == place:
            self.say("")

    @property
    def to_mark(self) -> list[int]:
        """The places that were answered, in part at least, and are not settled."""
        return [place for place in sorted(self.texts) if place not in self.noted]

    def proposed(self, place: int) -> Marks:
        """The marks so far; at first those of the judge, if there is one. Where it fails, `notice` says why."""
        if self.judge and place not in self.marks:
            self.notice = ""
            try:
                self.mark(place, self.judge(self.items[place], self.texts[place]))
            except ValueError as error:
                self.notice = f"no marks from the judge: {error}"
        return self.marks.get(place, {})

    def mark(self, place: int, marks: Marks) -> None:
        """Lines of a rubric were marked. A claim without the words that make it does not count."""
        sound = {i: mark for i, mark in marks.items() if mark.quote.strip() or mark.verdict not in (SAID, HALF)}
        self.marks[place] = {**self.marks.get(place, {}), **sound}
        self.keep()

    def settle(self, place: int) -> Said:
        """The marks of an answer are complete."""
        said = self.note(place, Said(self.items[place], self.marks.get(place, {}), tuple(self.texts[place])))
        self.keep()
        return said

    @property
    def reached(self) -> int:
        """How many levels the round reaches: see ROUND_RULE."""
        levels = sorted(said.reached for said in self.all(Said))
        return levels[(len(levels) - 1) // 2] if levels else 0

    def keep(self) -> None:
        """Write everything down, as exams/mock-N.json; where that cannot be, `notice` says so and the round goes on."""
        try:
            self.file = self.file or next_file()
            write_whole(self.file, json.dumps(self.record(), indent=1))
        except OSError as error:
            self.notice = f"answers are not kept: {error}"

    def record(self) -> dict:
        numbers = [number.right for number in self.all(Computed)]
        kept = {name: getattr(self, name) for name in ("level", "format", "seed", "marked_by", "facts", "reached")}
        kept |= {"begun": self.begun.isoformat(), "minutes": self.elapsed, "numbers": [sum(numbers), len(numbers)]}
        kept |= {"finished": self.current is None and not self.to_mark, "items": []}
        for place, item in enumerate(self.items):
            entry = {"name": name_of(item), "texts": self.texts.get(place, []), "settled": place in self.noted}
            if isinstance(item, Figure):
                entry["figure"] = asdict(item)
            elif isinstance(item, Code):
                entry["code"] = {"file": str(item.file or ""), "outcome": item.outcome}
            marks = self.marks.get(place, {})  # by the words of the rubric: a bank may change
            entry["marks"] = {item.rubric[i].text: [mark.verdict, mark.quote] for i, mark in marks.items()}
            kept["items"].append(entry)
        return kept | {"items": kept["items"] + self.gone}

    @classmethod
    def resume(cls, file: Path, bank: Bank, schedule=None, clock=time.monotonic) -> "Interview":
        """A round as it was kept. A question that has left the bank leaves the round until it is back."""
        kept = json.loads(file.read_text(encoding="utf-8"))
        made = cls(bank, kept["level"], kept["format"], kept["seed"], schedule, clock)
        made.file, made.begun, made._used = file, datetime.fromisoformat(kept["begun"]), 60 * kept["minutes"]
        made.marked_by, made.facts = kept["marked_by"], [tuple(pair) for pair in kept["facts"]]
        entries = [e for e in kept["items"] if "figure" in e or e["name"] in (tasks() if "code" in e else bank)]
        made.items = [_item(entry, made) for entry in entries]
        made.gone = [entry for entry in kept["items"] if entry not in entries]  # their answers stay
        for place, (item, entry) in enumerate(zip(made.items, entries, strict=True)):
            if not entry["texts"]:
                continue
            made.texts[place] = entry["texts"]
            if isinstance(item, Figure):
                made.noted[place] = Computed(item, entry["texts"][0])
                continue
            lines = {box.text: i for i, box in enumerate(item.rubric)}
            made.marks[place] = {lines[text]: Mark(*mark) for text, mark in entry["marks"].items() if text in lines}
            if entry["settled"]:
                made.noted[place] = Said(item, made.marks[place], tuple(entry["texts"]))
        while made.current and made.asked is None:
            made.place += 1
        return made

    def as_held(self) -> "Interview":
        """For the partner: the answers, where the candidate's record is on this machine, and no marks yet."""
        asked = (self.level, self.format, self.seed)
        file = last(lambda kept: (kept["level"], kept["format"], kept["seed"]) == asked)
        held = Interview.resume(file, self.bank, self.schedule) if file else self
        held.texts |= {} if file else {i: [] for i, item in enumerate(self.items) if not isinstance(item, Figure)}
        held.noted = {place: result for place, result in held.noted.items() if isinstance(result, Computed)}
        held.marked_by, held.over, held.marks = "a partner", True, {}
        return held


def _item(entry: dict, made: Interview) -> Item | Code:
    if figure := entry.get("figure"):
        return Figure(**{**figure, "number": Number(**figure["number"])})
    if code := entry.get("code"):
        return Code(entry["name"], made.seed, file=Path(f) if (f := code["file"]) else None, outcome=code["outcome"])
    return Asked(made.bank[entry["name"]], position=made.level)


def name_of(item: Item | Code) -> str:
    return item.exercise if isinstance(item, Code) else item.key or item.topic


def items_of(bank: Bank, level: str, format: str, seed: int) -> list[Item | Code]:
    """A round, item by item."""
    dice = random.Random(seed)
    pools = [[q for q in bank.values() if q.kind in kinds] for kinds in KINDS[format]]
    if format == "design":
        pools = [[q for q in pools[0] if q.case], [q for q in pools[0] if not q.case]]
    items: list[Item | Code] = []
    if format == "coding" and (ROOT / "exercises").is_dir():  # an installed package has no exercises
        items.append(Code(dice.choice(sorted(tasks())), seed))
    items += [Asked(dice.choice(pool), position=level) for pool in pools if pool]
    return items + (derivation(dice, level) if format == "concept" else [])


def begin(bank: Bank, level="L5", format="concept", seed=None, resume=False, judge="", model="") -> Interview:
    """A new round, or the last one that was not finished. A judge (its URL, and a model's name) proposes marks."""
    if bool(judge) != bool(model):
        raise ValueError("a judge needs both: give judge=URL (with its /v1) and model=NAME")
    file = last(lambda kept: not kept["finished"]) if resume else None
    if resume and file is None:
        raise ValueError("resume=True: no round is unfinished")
    schedule = Schedule.here()
    made = Interview.resume(file, bank, schedule) if file else Interview(bank, level, format, seed, schedule)
    if judge:
        made.judge, made.marked_by = Judge(judge, model), f"you and {model}"
    return made


def next_file() -> Path:
    names = (FOLDER / f"mock-{number}.json" for number in count(1))
    return next(name for name in names if not name.exists() and not name.with_suffix(".md").exists())


def records() -> list[tuple[Path, dict]]:
    """What is kept of every round, the oldest first. A file that makes no sense is left alone."""
    found = []
    for file in FOLDER.glob("mock-*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            kept = json.loads(file.read_text(encoding="utf-8"))
            _line(kept), kept["finished"], [entry["name"] for entry in kept["items"]]  # it is one of ours
            found.append((datetime.fromisoformat(kept["begun"]), file, kept))
    return [(file, kept) for _, file, kept in sorted(found, key=lambda each: each[0])]


def last(accepts: Callable[[dict], bool]) -> Path | None:
    """The newest record that will do."""
    return next((file for file, kept in reversed(records()) if accepts(kept)), None)


def unasked(bank: Bank, level: str, format: str) -> int:
    """A seed: of a hundred the one whose questions were asked longest ago, so no two rounds in a row repeat one."""
    rounds_ago: dict[str, float] = {}
    for age, (_, kept) in enumerate(reversed(records())):
        rounds_ago = {entry["name"]: age for entry in kept["items"]} | rounds_ago

    def age(seed: int) -> float:
        return min((rounds_ago.get(name_of(item), inf) for item in items_of(bank, level, format, seed)), default=inf)

    return max(random.SystemRandom().sample(range(10_000), 100), key=age)


def trend() -> list[str]:
    """A line for every finished round: what it was for, and what it reached."""
    return [_line(kept) for _, kept in records() if kept["finished"]]


def _line(kept: dict) -> str:
    level, (right, asked) = ("-", *LEVELS)[kept["reached"]], kept["numbers"]
    numbers = f", {right} of {asked} numbers right" if asked else ""
    round_ = f"{kept['level']} {kept['format']}"
    return f"mock {kept['begun'][:10]}  {round_:13}  reached {level:2}  marked by {kept['marked_by']}{numbers}"
