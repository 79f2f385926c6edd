"""What a tick is worth: which words of the candidate speak for a line of the rubric, and whether they were said.

A line counts as shown if the candidate ticked it with words of the answer in which the matcher finds it, or with a
sentence about the question that has earned nothing yet: the matcher knows words, not meanings. Ticked with other words
of the answer it is claimed, and whoever reads the debrief decides.
Words that are not in the answer are refused. The same words earn at most two lines, a long sentence up to four. A
follow-up or push-back is looked for in the reply to it, everything else in all that was said on the question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fsrs import Rating

from .drill import FOLLOW_UP, PUSH_BACK, SINKS
from .matcher import Match, lacks, match_boxes, plainly, supports, terms, was_said
from .question import LEVELS, reached
from .rounds import Reply, Turn

PER_QUOTE = 2  # lines that the same words can earn
PER_LONG, WORDS_EACH = 4, 10  # and a long sentence that was suggested: one for every ten words
FEWEST = 3  # words of a quote
PLAIN, PLAIN_REPLY = 0.6, 0.3  # of a line's weight that makes its quote a strength
LONG_ENOUGH, ON_THE_QUESTION = 6, 3  # words of a sentence, and terms of its rubric, that need no term of the point
GOES_ON = ("answer", "check", "probe")  # turns that stay with what was asked before
Entry = tuple[str, Turn, Reply, float]  # of a transcript


def heard(turn: Turn, transcript: Iterable[Entry] = ()) -> list[str]:
    """For every line of a rubric: what was typed that may speak for it."""
    of = (turn.question, turn.exercise)
    said = [(t, r) for _, t, r, _ in transcript if (t.question, t.exercise) == of and t.expects == "words"]
    return [_reply_to(box.text.rpartition(" → ")[0], said) or turn.heard
            if box.group in (FOLLOW_UP, PUSH_BACK) else turn.heard for box in turn.boxes]  # fmt: skip


def _reply_to(asked: str, said: Sequence[tuple[Turn, Reply]]) -> str:
    """The reply to what was asked, with what was typed when it was gone into; " " if that was nothing."""
    for i, (turn, reply) in enumerate(said):
        if asked and asked in turn.says:
            texts = [reply.text]
            for after, more in said[i + 1 :]:
                if after.kind not in GOES_ON:
                    break
                texts.append(more.text)
            return "\n".join(filter(None, texts)) or " "
    return ""


def suggest(turn: Turn, transcript: Iterable[Entry] = ()) -> list[Match]:
    """For every line of a rubric, what the words of the answer suggest; what sinks a candidate is among them."""
    strict = [i for i, box in enumerate(turn.boxes) if box.group == SINKS]
    return match_boxes([box.text for box in turn.boxes], heard(turn, transcript), strict)


def refusal(turn: Turn, box: int, phrase: str, transcript: Iterable[Entry] = ()) -> str:
    """Why words cannot be taken for a line, as a sentence; "" if they can."""
    if turn.boxes[box].group == SINKS:
        return ""
    if len(phrase.split()) < FEWEST:
        return f"Quote at least {FEWEST} words of your answer."
    if not was_said(phrase, turn.heard):
        return "I do not find these words in your answers: quote what you typed."
    texts = heard(turn, transcript)
    if texts[box] != turn.heard and not was_said(phrase, texts[box]):
        return "You said that, but not in reply to this question."
    return ""


@dataclass(frozen=True)
class Graded:
    """One grading: every line, whether it was shown, claimed or neither, and the words."""

    turn: Turn
    shown: dict[int, str]  # box → quote
    claimed: dict[int, str]
    empty: dict[int, str]  # without words, or with a sentence that has earned two lines already
    refused: dict[int, str] = field(default_factory=dict)  # with words that were not said
    matches: tuple[Match, ...] = ()
    plain: dict[int, float] = field(default_factory=dict)  # box → how much of its line the words hold (matcher.plainly)

    def is_plain(self, box: int) -> bool:
        """Whether a reader who knows only the quote would agree; of a reply, the whole of it counts."""
        return self.plain[box] >= (PLAIN_REPLY if self._group(box) in (FOLLOW_UP, PUSH_BACK) else PLAIN)

    def texts(self, *groups: str, among: Sequence[int] | dict | None = None) -> list[str]:
        found = [(i, box.text) for i, box in enumerate(self.turn.boxes) if box.group in groups]
        return [text for i, text in found if among is None or i in among]

    def level(self, with_claims: bool = False) -> int:
        """How many levels are reached; each sinking tell costs one. Of a coding task: none, its tests speak."""
        ticked = {**self.shown, **(self.claimed if with_claims else {})}
        said = {name: len(self.texts(name, among=ticked)) for name in LEVELS}
        points = {name: len(self.texts(name)) for name in LEVELS}
        return max(0, reached(said, points, self.lacking(ticked)) - len(self.texts(SINKS, among=self.shown)))

    def lacking(self, ticked: dict[int, str] | None = None) -> set[str]:
        """The levels of which a must-have is missing."""
        ticked = self.shown if ticked is None else ticked
        return {box.group for i, box in enumerate(self.turn.boxes) if box.must and i not in ticked}

    def opposite(self) -> dict[int, str]:
        """Lines whose words were said with a "not": box → the sentence. Not where other words were given for the line,
        and not a sentence that has earned a point: who counts words does not know better than both."""
        ticked, earned = {**self.shown, **self.claimed}, set(self.shown.values())
        return {i: m.quote for i, m in enumerate(self.matches) if m.opposite and m.quote.strip(" …")
                and i not in ticked and m.quote not in earned and self._group(i) != SINKS}  # fmt: skip

    def suspected(self) -> dict[int, str]:
        """What sinks a candidate and seems to have been said, without being ticked."""
        found = enumerate(self.matches)
        return {i: m.quote for i, m in found if m.suggested and i not in self.shown and self._group(i) == SINKS}

    def _group(self, box: int) -> str:
        return self.turn.boxes[box].group

    def tally(self) -> str:
        """What became of the ticks: the counts add up to them."""
        ticked = sum(map(len, (self.shown, self.claimed, self.empty, self.refused)))
        sunk = len(self.texts(SINKS, among=self.shown))
        parts = [f"shown {len(self.shown) - sunk}"]
        parts += [f"counts against you {sunk}"] * bool(sunk)
        parts += [f"claimed in other words {len(self.claimed)}"] * bool(self.claimed)
        parts += [f"not counted {len(self.empty)} (their words have earned other points)"] * bool(self.empty)
        parts += [f"refused {len(self.refused)} (these words are not in your answer)"] * bool(self.refused)
        return f"Ticked: {ticked}. Of these {', '.join(parts)}." if ticked else "Nothing was ticked."


def graded(turn: Turn, reply: Reply, transcript: Iterable[Entry] = ()) -> Graded:
    transcript = list(transcript)
    matches, said = tuple(suggest(turn, transcript)), heard(turn, transcript)
    shown, claimed, empty, refused, quoted = {}, {}, {}, {}, Counter()
    for i, phrase in sorted(reply.ticks.items()):
        if turn.boxes[i].group == SINKS:
            shown[i] = phrase  # whoever ticks this is believed
            continue
        point = turn.boxes[i].text.rpartition(" → ")[2]
        confirmed = matches[i].suggested and phrase == matches[i].quote
        if len(phrase.split()) >= FEWEST and refusal(turn, i, phrase, transcript):
            refused[i] = phrase
            continue
        most = max(PER_QUOTE, min(PER_LONG, len(phrase.split()) // WORDS_EACH)) if confirmed else PER_QUOTE
        quoted[_plain(phrase)] += 1
        own = quoted[_plain(phrase)] == 1 and speaks_of(turn, phrase)
        if (len(phrase.split()) < FEWEST and not confirmed) or quoted[_plain(phrase)] > most:
            empty[i] = phrase
        elif confirmed or own or supports(point, phrase):
            shown[i] = phrase
        else:
            claimed[i] = phrase
    plain = {i: plainly(turn.boxes[i].text.rpartition(" → ")[2],
                        said[i] if turn.boxes[i].group in (FOLLOW_UP, PUSH_BACK) else phrase)
             for i, phrase in shown.items() if turn.boxes[i].group != SINKS}  # fmt: skip
    return Graded(turn, shown, claimed, empty, refused, matches, plain)


def speaks_of(turn: Turn, phrase: str) -> bool:
    """Whether words of the candidate are about what was asked: the matcher does not know every way to say a point, so
    a sentence on the question earns the one line for which it is quoted first."""
    about = terms(" ".join(box.text for box in turn.boxes if box.group != SINKS))
    return len(phrase.split()) >= LONG_ENOUGH and len(terms(phrase).keys() & about.keys()) >= ON_THE_QUESTION


def _plain(phrase: str) -> str:
    return " ".join(phrase.lower().split())


def rating(grading: Graded) -> Rating:
    """What the drill's schedule is told about a conversation."""
    return (Rating.Again, Rating.Hard, Rating.Good, Rating.Easy)[grading.level()]


LACKING = 4  # words of a line that are named where a quote lacks them


def unshown(turn: Turn, ticks: dict[int, str], transcript: Iterable[Entry] = ()) -> dict[int, str]:
    """The ticks whose words do not show their line by themselves: box → why, as a sentence."""
    found = graded(turn, Reply(ticks=ticks), transcript)
    why = {i: "These words have earned other points already, so it does not count." for i in found.empty}
    for i, phrase in found.claimed.items():
        missing = lacks(turn.boxes[i].text.rpartition(" → ")[2], phrase)[:LACKING]
        lacking = f" (not found: {', '.join(missing)})" * bool(missing)
        why[i] = f"By themselves these words do not show it{lacking}, so it stays a claim."
    return why
