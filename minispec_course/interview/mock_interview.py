"""The mock interview as a state machine: pure Python, kept as the list of what was done, so it can always be resumed.

    interview = Interview(load(), level="L5", format="concept", seed=3)
    interview.do("begin")                                   # the clock starts here, never by itself
    while interview.turn: print(interview.turn.says); interview.do("say", text="…")

`do` takes anything and never raises: what does not fit the current turn is answered with a sentence that says what
would. The terminal and the notebook (mock_terminal.py, mock_widget.py) show `turn` and call `do`; nothing else.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from minispec.load.write import write_whole

from .question import LEVELS, Question
from .reactions import has_question
from .rounds import (
    ALOUD,
    CODE,
    FORMATS,
    GRADES,
    NOTHING,
    NUMBER,
    ROUNDS,
    UNTOUCHED,
    WORDS,
    Reply,
    Turn,
    close,
    open_round,
    parts_of,
)
from .schedule import place, utc_now

MINUTES = ROUNDS["concept"]
LONGEST = 20_000  # characters of one answer
SLOTS = 5  # interviews that are kept at a time; then the one that has waited longest goes
VERSION = 3  # of a kept interview; another one asks in another order
WANTED = {WORDS: "say", NUMBER: "say", CODE: "code", GRADES: "grade", NOTHING: "begin"}

PLEASE = {
    WORDS: "Answer in words, or skip.",
    NUMBER: "Give a number, or skip.",
    CODE: "Have the function checked, say what you try, or skip.",
    GRADES: "Tick what you said, or skip.",
    NOTHING: "Begin when you are ready.",
}


class Interview:
    """An interview in progress. `now` gives seconds; tests move it by hand."""

    def __init__(
        self,
        bank: Mapping[str, Question],
        level: str = "L5",
        format: str = "concept",
        seed: int = 0,
        now: Callable[[], float] = time.monotonic,
    ):
        if level not in LEVELS:
            raise ValueError(f"level={level!r}: give one of {', '.join(LEVELS)}")
        if format not in FORMATS:
            raise ValueError(f"format={format!r}: give one of {', '.join(FORMATS)}")
        self.bank, self.level, self.format, self.seed = bank, level, format, seed
        self.begun = utc_now().isoformat(timespec="seconds")
        self.out: str | None = None  # where its debrief goes, if not to the folder exams
        self.notebook: str | None = None  # of the coding round
        self.file: Path | None = None  # where it is kept
        self.events: list[dict] = []
        self.transcript: list[tuple[str, Turn, Reply, float]] = []  # round, turn, reply, minutes used when it came
        self.round = ""
        self.ended = False
        self._now, self._since, self._used, self._moment, self._late = now, None, 0.0, 0.0, False
        self._script = self._run()
        self.turn: Turn | None = next(self._script)

    # ---- the clock

    @property
    def used(self) -> float:
        """Seconds of this round that the clock has counted."""
        return self._used + (0.0 if self._since is None else max(0.0, self._now() - self._since))

    @property
    def running(self) -> bool:
        return self._since is not None

    @property
    def minutes(self) -> int:
        return ROUNDS[self.round]

    def _look(self) -> None:
        """Read the clock once: all that a step does happens at this moment."""
        self._moment = self._now()
        if self._since is not None:
            self._used, self._since = self._used + max(0.0, self._moment - self._since), self._moment

    def _stop(self) -> None:
        self._since = None

    def _start(self) -> None:
        if self._since is None:
            self._since = self._moment

    # ---- what is asked

    def _run(self) -> Iterator[Turn]:
        """All turns, round after round. Nothing new is begun after the time; the current question is finished."""
        rounds = FORMATS[self.format]
        dice = random.Random(self.seed)
        for i, name in enumerate(rounds):
            self.round, self._used, self._late = name, 0.0, False
            yield from open_round(name, self.level, ROUNDS[name])
            for part in parts_of(name, self.bank, self.level, dice):
                if not self._late:
                    yield from part
            yield from close(i + 1 == len(rounds), self._late)

    # ---- what comes back

    def do(self, action: object = "", **given: object) -> str:
        """One step. Returns "" if it was taken, otherwise what would do."""
        if self.ended:
            return "The interview is over: read the debrief."
        self._look()
        if action == "pause":
            self._stop()
            return self._note("pause")
        if action == "go on":
            if self.turn.expects in (NOTHING, GRADES):
                return "The clock stands still here; it runs again with the next question."
            self._start()
            return self._note("go on")
        if action == "end":
            return self._end()
        reply = Reply(skipped=True) if action == "skip" else self.read(action, given)
        if isinstance(reply, str):
            return reply
        self._note(action, text=reply.text, ticks={str(k): v for k, v in reply.ticks.items()}, outcome=reply.outcome)
        self._take(reply)
        return ""

    def read(self, action: object, given: Mapping[str, object]) -> Reply | str:
        """The reply that this would be to the current turn, or what would do."""
        expects = self.turn.expects
        aloud = expects == CODE and action == "say"  # thinking aloud submits nothing
        if action != WANTED[expects] and not aloud:
            return PLEASE[expects]
        text = given.get("text", "")
        if not isinstance(text, str) or len(text) > LONGEST:
            return f"An answer is a text of at most {LONGEST:,} characters."
        ticks = given.get("ticks") or {}
        if not isinstance(ticks, Mapping):
            return "Ticks map the number of a box to the words that earn it."
        read: dict[int, str] = {}
        for box, phrase in ticks.items():
            number = int(box) if isinstance(box, (int, str)) and str(box).isdecimal() and str(box).isascii() else -1
            if not 0 <= number < len(self.turn.boxes) or not isinstance(phrase, str) or len(phrase) > LONGEST:
                return f"There is no box {box!r}: they go from 0 to {len(self.turn.boxes) - 1}, each with its words."
            read[number] = phrase.strip()
        outcome = given.get("outcome", "")
        outcome = ALOUD if aloud else outcome if isinstance(outcome, str) and outcome != ALOUD else ""
        return Reply(text.strip(), read, outcome)

    def _take(self, reply: Reply) -> None:
        waiting = self.turn.expects in (NOTHING, GRADES)
        self._late = self._late or self._used > 60 * self.minutes
        self.transcript.append((self.round, self.turn, reply, self._used / 60))
        try:
            self.turn = self._script.send(reply)
        except StopIteration:
            self._end(noted=True)
            return
        if self.turn.expects in (NOTHING, GRADES):
            self._stop()
        elif waiting:
            self._start()

    def _end(self, noted: bool = False) -> str:
        self._stop()
        self.ended, self.turn = True, None
        self._script.close()
        return "" if noted else self._note("end")

    def asides(self, name: str) -> list[tuple[str, list[str]]]:
        """What is counted nowhere and still belongs into the debrief of a round: a title, and lines of Markdown."""
        said = [(turn, reply) for round, turn, reply, _ in self.transcript if round == name and reply.text]
        begun: dict[str, list[str]] = {}
        for turn, reply in said:
            if turn.model:
                begun.setdefault(turn.model, []).append(reply.text)
        found = {
            "How you began the derivation": [
                f"- you: “{' '.join(texts)}” We would begin: {model}" for model, texts in begun.items()
            ],
            "Said while you wrote the code": [
                f"- “{r.text}”" for t, r in said if r.outcome == ALOUD and t.kind != UNTOUCHED
            ],
            "Your questions to the interviewer": [
                f"- “{r.text}”" for t, r in said if t.kind == "close" and has_question(r.text)
            ],
        }
        return [(title, lines) for title, lines in found.items() if lines]

    # ---- kept, and resumed

    def _note(self, action: object, **given: object) -> str:
        self.events.append({"do": action, "used": self._used, **{k: v for k, v in given.items() if v}})
        return ""

    @property
    def named(self) -> str:
        """ "L6 concept interview with seed 63, begun on 17 November at 06:41"."""
        when = datetime.fromisoformat(self.begun).astimezone()
        day = f"{when.day} {when:%B} at {when:%H:%M}"
        return f"{self.level} {self.format} interview with seed {self.seed}, begun on {day}"

    def to_json(self) -> str:
        head = {name: getattr(self, name) for name in ("level", "format", "seed", "begun", "out", "notebook")}
        return json.dumps({"version": VERSION, **head, "events": self.events}, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, bank: Mapping[str, Question], text: str, now: Callable[[], float] = time.monotonic) -> Interview:
        """Do everything again, at the times at which it was done; the clock stands still until somebody goes on."""
        try:
            kept = json.loads(text)
            version = kept.get("version")
            head = {name: kept[name] for name in ("level", "format", "seed")}
            rest = {name: kept[name] for name in ("begun", "out", "notebook")}
            datetime.fromisoformat(rest["begun"])
            events = [(event["do"], float(event["used"]), event) for event in kept["events"]]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no kept interview ({error}): begin a new one") from None
        if version != VERSION:
            raise ValueError("this interview was kept by a version that asks in another order: begin a new one")
        made = cls(bank, **head, now=lambda: 0.0)
        vars(made).update(rest)
        for action, used, event in events:
            made._used = used
            if problem := made.do(action, **{k: event[k] for k in ("text", "ticks", "outcome") if k in event}):
                raise ValueError(f"this interview was kept with other questions ({problem}): begin a new one")
        made._stop()
        made._now = now
        return made


# ---- files -----------------------------------------------------------------------------------------------------------


def slots() -> list[Path]:
    """Where interviews are kept, beside the drill's file: mock.json, mock-2.json, …; none where nothing is kept."""
    file = place()
    return [] if file is None else [file.with_name(f"mock{f'-{n}' * (n > 1)}.json") for n in range(1, SLOTS + 1)]


_held: dict[Path, FileLock] = {}  # the slots of this process


def claim(file: Path) -> bool:
    """Take a slot for this process until it ends; False if another one has it."""
    if file in _held:
        return True
    lock = FileLock(file.with_name(f".{file.name}.lock"))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except OSError:  # a file system without locks
        return True
    _held[file] = lock
    return True


def let_go(interview: Interview) -> None:
    if lock := _held.pop(interview.file, None):
        lock.release()


def keep(interview: Interview, file: Path | None = None) -> bool:
    """Write it down after every step. An interview that is over leaves no file to resume. Whether it is kept."""
    interview.file = file or interview.file
    try:
        if interview.ended:
            if interview.file is not None:
                interview.file.unlink(missing_ok=True)
                let_go(interview)
                interview.file = None  # somebody else's from now on
            return False
        interview.file = interview.file or _free_slot()
        if interview.file is not None:
            interview.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(interview.file, interview.to_json())
        return interview.file is not None
    except OSError:
        return False  # an interview goes on without


def _free_slot() -> Path | None:
    """An empty slot, or that of the interview which has waited longest; never one that somebody holds."""
    try:
        by_age = sorted(slots(), key=lambda file: file.stat().st_mtime if file.exists() else 0.0)
        ours = (file for file in by_age if file in _held)  # of other widgets in this notebook
        return next((file for file in by_age if file not in _held and claim(file)), None) or next(ours, None)
    except OSError:
        return None


def unfinished(bank: Mapping[str, Question], file: Path | None = None) -> Interview | None:
    """The interview that was interrupted last, if there is one that can be gone on with and no other process holds."""
    return next((found for found, live in _kept(bank, file) if not live), None)


def resume(bank: Mapping[str, Question]) -> Interview:
    """The same, and from now on it is this process's; ValueError if there is none."""
    kept = list(_kept(bank))
    for interview, live in kept:
        if not live and claim(interview.file):
            return interview
    if kept:
        raise ValueError(f"resume: the {kept[0][0].named}, is still open elsewhere; go on there, or end it with q")
    raise ValueError("resume: no interview was interrupted; leave --resume out to begin one")


def _kept(bank: Mapping[str, Question], file: Path | None = None) -> Iterator[tuple[Interview, bool]]:
    """(interview, whether another process holds it), the latest first."""
    files = [file for file in ([file] if file else slots()) if file.exists()]
    for file in sorted(files, key=lambda file: -file.stat().st_mtime):
        try:
            found = Interview.from_json(bank, file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found.file = file
        ours = file in _held
        live = not claim(file)
        if not ours and not live:
            let_go(found)
        yield found, live


def start_mock(
    bank: Mapping[str, Question],
    level: str = "L5",
    format: str = "concept",
    seed: int | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Interview:
    """A new interview. Without a seed every one asks something else."""
    return Interview(bank, level, format, random.SystemRandom().randrange(10_000) if seed is None else seed, now)
