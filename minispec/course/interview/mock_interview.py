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
from pathlib import Path

from ...files.write import write_whole
from .question import LEVELS, Question
from .rounds import CODE, FORMATS, GRADES, NOTHING, NUMBER, ROUNDS, WORDS, Reply, Turn, close, open_round, parts_of
from .schedule import place

MINUTES = ROUNDS["concept"]
LONGEST = 20_000  # characters of one answer
WANTED = {WORDS: "say", NUMBER: "say", CODE: "code", GRADES: "grade", NOTHING: "begin"}

PLEASE = {
    WORDS: "Answer in words, or skip.",
    NUMBER: "Give a number, or skip.",
    CODE: "Have the function checked, or skip.",
    GRADES: "Tick what you said, or skip.",
    NOTHING: "Begin when you are ready.",
}


class Interview:
    """An interview in progress. `now` gives seconds; tests move it by hand."""

    def __init__(self, bank: Mapping[str, Question], level: str = "L5", format: str = "concept", seed: int = 0,
                 now: Callable[[], float] = time.monotonic):  # fmt: skip
        if level not in LEVELS:
            raise ValueError(f"level={level!r}: give one of {', '.join(LEVELS)}")
        if format not in FORMATS:
            raise ValueError(f"format={format!r}: give one of {', '.join(FORMATS)}")
        self.bank, self.level, self.format, self.seed = bank, level, format, seed
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
            yield from close(i + 1 == len(rounds))

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
        reply = Reply(skipped=True) if action == "skip" else self._read(action, given)
        if isinstance(reply, str):
            return reply
        self._note(action, text=reply.text, ticks={str(k): v for k, v in reply.ticks.items()}, outcome=reply.outcome)
        self._take(reply)
        return ""

    def _read(self, action: object, given: Mapping[str, object]) -> Reply | str:
        expects = self.turn.expects
        if action != WANTED[expects]:
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
        return Reply(text.strip(), read, outcome if isinstance(outcome, str) else "")

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

    # ---- kept, and resumed

    def _note(self, action: object, **given: object) -> str:
        self.events.append({"do": action, "used": self._used, **{k: v for k, v in given.items() if v}})
        return ""

    def to_json(self) -> str:
        head = {"version": 1, "level": self.level, "format": self.format, "seed": self.seed}
        return json.dumps({**head, "events": self.events}, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, bank: Mapping[str, Question], text: str, now: Callable[[], float] = time.monotonic) -> Interview:
        """Do everything again, at the times at which it was done; the clock stands still until somebody goes on."""
        try:
            kept = json.loads(text)
            head = {name: kept[name] for name in ("level", "format", "seed")}
            events = [(event["do"], float(event["used"]), event) for event in kept["events"]]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no kept interview ({error}): begin a new one") from None
        made = cls(bank, **head, now=lambda: 0.0)
        for action, used, event in events:
            made._used = used
            if problem := made.do(action, **{k: event[k] for k in ("text", "ticks", "outcome") if k in event}):
                raise ValueError(f"this interview was kept with other questions ({problem}): begin a new one")
        made._stop()
        made._now = now
        return made


def kept_at() -> Path | None:
    """mock.json beside the drill's file; None where nothing is kept."""
    file = place()
    return None if file is None else file.with_name("mock.json")


def keep(interview: Interview, file: Path | None = None) -> None:
    """Write it down after every step. An interview that is over leaves no file to resume."""
    file = kept_at() if file is None else file
    try:
        if file is None:
            return
        if interview.ended:
            file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, interview.to_json())
    except OSError:
        return  # an interview goes on without


def unfinished(bank: Mapping[str, Question], file: Path | None = None) -> Interview | None:
    """The interview that was interrupted, if there is one that can be gone on with."""
    file = kept_at() if file is None else file
    try:
        return Interview.from_json(bank, file.read_text(encoding="utf-8")) if file and file.exists() else None
    except (OSError, ValueError):
        return None


def start_mock(bank: Mapping[str, Question], level: str = "L5", format: str = "concept", seed: int | None = None,
               now: Callable[[], float] = time.monotonic) -> Interview:  # fmt: skip
    """A new interview. Without a seed every one asks something else."""
    return Interview(bank, level, format, random.SystemRandom().randrange(10_000) if seed is None else seed, now)
