"""When a question comes back: FSRS, the scheduler that Anki uses, over a small JSON file.

The file lies beside the exercises' progress (see check/progress.py), and MINISPEC_PROGRESS moves both: "off" keeps
none. A file that makes no sense is kept aside and started anew, and `notice` says so. Where nothing can be written,
the drill works without.
"""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from filelock import FileLock
from fsrs import Card, Rating, Scheduler, State

from minispec.load.write import write_whole

from ..check import progress

# Days from the first answer on, no steps of minutes: a question takes minutes itself. What was known and is forgotten
# comes back in the next sitting. No fuzzing: the same answers, the same days.
FSRS = Scheduler(learning_steps=(), relearning_steps=[timedelta(minutes=10)], enable_fuzzing=False)


class Schedule:
    """A card for everything that was asked once. `now` can be set, for tests and for the curious."""

    def __init__(self, file: Path | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)):
        self.file, self.now, self.notice = file, now, ""
        self.cards: dict[str, Card] = {}
        try:
            self.cards = self._read()
        except OSError as error:
            self._cannot_keep(error)

    @classmethod
    def here(cls) -> "Schedule":
        """The reader's own: drill.json beside the exercises' progress.json."""
        file = progress.place()
        return cls(None if file is None else file.with_name("drill.json"))

    def seen(self, key: str) -> bool:
        return key in self.cards

    def is_due(self, key: str) -> bool:
        return self.seen(key) and self.cards[key].due <= self.now()

    def due(self, key: str) -> datetime:
        return self.cards[key].due

    def urgency(self, key: str) -> tuple[float, float]:
        """The smaller, the sooner: the chance that it is still known, and how many days it will keep."""
        return FSRS.get_card_retrievability(self.cards[key], self.now()), self.cards[key].stability

    def review(self, key: str, rating: Rating) -> None:
        """Note an answer, and keep it at once: whatever happens next, it is not lost."""
        card = self.cards.get(key) or Card(card_id=0, due=self.now())
        self.cards[key], _ = FSRS.review_card(card, rating, self.now())
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.file.with_name(f".{self.file.name}.lock")):
                self.cards = {**self._read(), key: self.cards[key]}  # another notebook may have added to it
                kept = {name: card.to_dict() for name, card in self.cards.items()}
                write_whole(self.file, json.dumps({"version": 1, "cards": kept}, indent=1))
        except OSError as error:
            self._cannot_keep(error)

    def _read(self) -> dict[str, Card]:
        """The cards of the file. One that makes no sense is moved away first."""
        if self.file is None:
            return {}
        try:
            kept = json.loads(self.file.read_text(encoding="utf-8"))
            return {key: _card(entry) for key, entry in kept["cards"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, LookupError, TypeError, AttributeError):
            os.replace(self.file, aside := progress.aside(self.file))
            self.notice = f"{self.file} could not be read: it is kept as {aside.name}, and a new one begins"
            return {}

    def _cannot_keep(self, error: OSError) -> None:
        self.file, self.notice = None, f"progress is not kept: {error}"


def _card(entry: dict) -> Card:
    """A card that has been reviewed; anything else is an accident."""
    card = Card.from_dict(entry)
    reviewed = card.due.tzinfo and card.last_review and card.last_review.tzinfo and card.stability > 0
    stepped = card.state is State.Review or isinstance(card.step, int)
    if not (reviewed and 1 <= card.difficulty <= 10 and stepped):
        raise ValueError(f"{entry!r} is no card")
    return card
