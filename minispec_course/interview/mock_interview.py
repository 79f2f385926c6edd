"""A mock interview: which questions a round asks, what was answered, and the record from which it can be resumed.

    interview = Interview(load(), level="L5", format="concept", seed=3)       # a Session, see session.py
    interview.start_clock()                                                   # it stands still until somebody begins
    … interview.say(text) while something is `asked` …                        # every answer is kept at once
    for place in interview.to_mark:
        interview.mark(place, {0: Mark(SAID, "the sentence that says it")})

Answers come first and marks afterwards: by the candidate, by a partner, or proposed by a model (judge.py). The program
checks numbers and code, and reads no prose.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from math import inf
from pathlib import Path

from minispec.load.write import write_whole

from .coding import Code, tasks
from .fresh import derivation
from .question import LEVELS, Number
from .questions import ROOT
from .schedule import Schedule, place
from .session import FOLLOW_UP, HALF, PUSH_BACK, SAID, Bank, Computed, Figure, Item, Mark, Marks, Said, Session, Talk

FOLDER = ROOT / "exams"  # as in check/exam.py, which takes seconds to load
ROUNDS = {"concept": 45, "design": 60, "coding": 60, "experience": 45}  # minutes
KINDS = {  # which questions of the bank a round asks: one of each tuple
    "concept": (("concept",), ("debugging",), ("estimation", "derivation")),
    "design": (("design",),),  # a whole case, and a smaller question
    "coding": (("coding",),),
    "experience": (("behavioural",), ("debugging", "design")),
}
YOU, PARTNER = "you", "a partner"  # who marks; or the name of a model
ROUND_RULE = "The round is the middle one of its questions' levels, of two the lower one."


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
        question, turns = self.question, []
        if question.case:
            change = question.case.changes[0]
            changed = f"One thing has changed since this morning. {change.says}. What do you do differently?"
            turns.append((PUSH_BACK, changed, change.reply))
        turns += [(FOLLOW_UP, each.question, each.short) for each in question.follow_ups[:1]]
        pushed = question.push_backs[: 1 if self.position == LEVELS[0] else 2]
        return turns + [(PUSH_BACK, each.says, each.reply) for each in pushed]


def opening_of(fact: str) -> str:
    """What a fact is about, without giving it away: "The model …"."""
    return f"{' '.join(fact.split()[:2])} …"


def sentences(texts: Iterable[str]) -> list[str]:
    """An answer in pieces that a mark can point at."""
    return [piece.strip() for text in texts for piece in re.split(r"(?<=[.!?;])\s+|\n", text) if piece.strip()]


class Interview(Session):
    """One round. The clock stands still until `start_clock`; `judge` proposes the marks of an item, if there is one."""

    def __init__(
        self, bank: Bank, level="L5", format="concept", seed: int | None = None, schedule=None, clock=time.monotonic
    ):
        if level not in LEVELS:
            raise ValueError(f"level={level!r}: give one of {', '.join(LEVELS)}")
        if format not in ROUNDS:
            raise ValueError(f"format={format!r}: give one of {', '.join(ROUNDS)}")
        self.level, self.format, self.begun = level, format, datetime.now()
        self.seed = unasked(bank, level, format) if seed is None else seed
        super().__init__(items_of(bank, level, format, self.seed), ROUNDS[format], schedule, clock)
        self.bank = bank
        self.opening = (
            f"This is the {format} round for an {level} position, and you have {self.minutes} minutes. Answer aloud, as "
            "on the day, and type what you said, or notes of it; an empty line ends an answer. Afterwards the clock "
            "stops, and the rubric is marked beside your words. With a partner: minispec mock --interviewer --level "
            f"{level} --format {format} --seed {self.seed} is the sheet to ask from; press q when it comes to marks."
        )
        self.facts: list[tuple[str, int | None]] = []  # what was asked in a design, and which fact was the answer
        self.marks: dict[int, dict[int, Mark]] = {}  # place → what is marked so far
        self.marked_by, self.judge = YOU, None
        self.file: Path | None = None
        self.notice = ""

    # ---- answers

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

    def ask_fact(self, question: str, fact: int | None) -> None:
        """A question of the candidate, and which of the facts it asked for; None if there is no such fact."""
        self.facts.append((question, fact))
        self.keep()

    # ---- marks

    def as_held(self) -> "Interview":
        """For the partner: the answers, where the candidate's record is on this machine, and no marks yet."""
        asked = (self.level, self.format, self.seed)
        file = last(lambda kept: (kept["level"], kept["format"], kept["seed"]) == asked)
        held = Interview.resume(file, self.bank, self.schedule) if file else self
        held.texts |= {} if file else {i: [] for i, item in enumerate(self.items) if not isinstance(item, Figure)}
        held.noted = {place: result for place, result in held.noted.items() if isinstance(result, Computed)}
        held.marked_by, held.over, held.marks = PARTNER, True, {}
        return held

    @property
    def to_mark(self) -> list[int]:
        """The places that were answered, in part at least, and are not marked."""
        return [place for place in sorted(self.texts) if place not in self.noted]

    def proposed(self, place: int) -> Marks:
        """The marks so far; at first those of the judge, if there is one. Where it fails, `notice` says why."""
        if self.judge and place not in self.marks:
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

    @property
    def finished(self) -> bool:
        return self.current is None and not self.to_mark

    # ---- the record

    def keep(self) -> None:
        """Write everything down, as exams/mock-N.json; where that cannot be, `notice` says so and the round goes on."""
        try:
            self.file = self.file or next_file()
            write_whole(self.file, json.dumps(self.record(), indent=1))
        except OSError as error:
            self.notice = f"answers are not kept: {error}"

    def record(self) -> dict:
        entries = []
        for place, item in enumerate(self.items):
            entry = {"name": name_of(item), "texts": self.texts.get(place, [])}
            if isinstance(item, Figure):
                entry["figure"] = asdict(item)
            elif isinstance(item, Code):
                entry |= {"file": str(item.file or ""), "outcome": item.outcome}
            if marks := self.marks.get(place):  # by the words of the rubric: a bank may change
                entry["marks"] = {item.rubric[i].text: [mark.verdict, mark.quote] for i, mark in marks.items()}
            entry["settled"] = place in self.noted
            entries.append(entry)
        numbers = self.all(Computed)
        return {
            **{"version": 1, "level": self.level, "format": self.format, "seed": self.seed},
            **{"begun": self.begun.isoformat(), "minutes": self.elapsed, "marked_by": self.marked_by},
            **{"finished": self.finished, "reached": self.reached},
            "numbers": [sum(number.right for number in numbers), len(numbers)],
            **{"facts": self.facts, "items": entries},
        }

    @classmethod
    def resume(cls, file: Path, bank: Bank, schedule=None, clock=time.monotonic) -> "Interview":
        """A round as it was kept. A question that has left the bank leaves the round, too."""
        kept = json.loads(file.read_text(encoding="utf-8"))
        made = cls(bank, kept["level"], kept["format"], kept["seed"], schedule, clock)
        made.file, made.begun = file, datetime.fromisoformat(kept["begun"])
        made.marked_by, made._used = kept["marked_by"], 60 * kept["minutes"]
        made.facts, made.items = [tuple(pair) for pair in kept["facts"]], []
        for entry in kept["items"]:
            place, texts = len(made.items), entry["texts"]
            if "figure" in entry:
                item = Figure(**{**entry["figure"], "number": Number(**entry["figure"]["number"])})
                made.noted |= {place: Computed(item, texts[0])} if texts else {}
            elif "outcome" in entry and entry["name"] in tasks():
                file = Path(entry["file"]) if entry["file"] else None
                item = Code(entry["name"], kept["seed"], file=file, outcome=entry["outcome"])
            elif entry["name"] in bank:
                item = Asked(bank[entry["name"]], position=kept["level"])
            else:
                continue
            made.items.append(item)
            made.texts |= {place: texts} if texts else {}
            if marks := entry.get("marks"):
                lines = enumerate(item.rubric)
                made.marks[place] = {i: Mark(*marks[box.text]) for i, box in lines if box.text in marks}
            if entry["settled"] and not isinstance(item, Figure):
                made.noted[place] = Said(item, made.marks.get(place, {}), tuple(texts))
        while made.place < len(made.items) and made.asked is None:
            made.place += 1
        return made


def begin(bank: Bank, level="L5", format="concept", seed: int | None = None, resume=False, judge="", model=""):
    """An Interview: a new one, or the last one that was not finished. A judge (its URL, and a model) proposes marks."""
    if bool(judge) != bool(model):
        raise ValueError("a judge needs both: give judge=URL (with its /v1) and model=NAME")
    schedule = Schedule(place())
    if not resume:
        made = Interview(bank, level, format, seed, schedule)
    elif file := last(lambda kept: not kept["finished"]):
        made = Interview.resume(file, bank, schedule)
    else:
        raise ValueError("resume=True: no round is unfinished")
    if judge:
        from .judge import Judge

        made.judge, made.marked_by = Judge(judge, model), f"{YOU} and {model}"
    return made


def name_of(item: Item | Code) -> str:
    return item.exercise if isinstance(item, Code) else item.key or item.topic


def items_of(bank: Bank, level: str, format: str, seed: int) -> list[Item | Code]:
    """A round, item by item."""
    dice = random.Random(seed)
    pools = [[q for q in bank.values() if q.kind in kinds] for kinds in KINDS[format]]
    if format == "design":
        pools = [[q for q in pools[0] if q.case], [q for q in pools[0] if not q.case]]
    items: list[Item | Code] = []
    if format == "coding" and (ROOT / "course/exercises").is_dir():  # an installed package has no exercises
        items.append(Code(dice.choice(sorted(tasks())), seed))
    items += [Asked(dice.choice(pool), position=level) for pool in pools if pool]
    return items + (derivation(dice, level) if format == "concept" else [])


# ---- earlier rounds -------------------------------------------------------------------------------------------------


def next_file() -> Path:
    number = 1
    while any((FOLDER / f"mock-{number}{kind}").exists() for kind in (".json", ".md")):
        number += 1
    return FOLDER / f"mock-{number}.json"


def records() -> list[tuple[Path, dict]]:
    """What is kept of every round, the oldest first. A file that makes no sense is left alone."""
    found = []
    for file in FOLDER.glob("mock-*.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            kept = json.loads(file.read_text(encoding="utf-8"))
            datetime.fromisoformat(kept["begun"]), [entry["name"] for entry in kept["items"]]
            found.append((file, kept))
    return sorted(found, key=lambda pair: pair[1]["begun"])


def last(accepts: Callable[[dict], bool]) -> Path | None:
    """The newest record that will do."""
    return next((file for file, kept in reversed(records()) if accepts(kept)), None)


def unasked(bank: Bank, level: str, format: str) -> int:
    """A seed: of a hundred the one whose questions were asked longest ago, so no two rounds in a row repeat one."""
    rounds_ago: dict[str, float] = {}
    for age, (_, kept) in enumerate(reversed(records())):
        for entry in kept["items"]:
            rounds_ago.setdefault(entry["name"], age)

    def age(seed: int) -> float:
        return min((rounds_ago.get(name_of(item), inf) for item in items_of(bank, level, format, seed)), default=inf)

    return max(random.SystemRandom().sample(range(10_000), 100), key=age)


def trend() -> list[str]:
    """A line for every finished round: what it was for, and what it reached."""
    lines = []
    for _, kept in records():
        if kept.get("finished"):
            reached = LEVELS[kept["reached"] - 1] if kept["reached"] else f"below {LEVELS[0]}"
            (right, asked), by = kept["numbers"], kept["marked_by"]
            numbers = f", {right} of {asked} numbers right" if asked else ""
            lines.append(f"{kept['begun'][:10]}  {kept['level']} {kept['format']:10}  {reached:8}  by {by}{numbers}")
    return lines
