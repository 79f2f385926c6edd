"""Which points of a rubric a typed answer seems to make. A suggestion with its reasons, never a verdict.

    match = find("Decode reads every weight for one token", "It is memory bound: it reads all weights for each token.")
    match.suggested, match.found, match.missing, match.quote

Nothing is learned and nothing is hidden. A point's key terms are its words without the filler, cut to their stems, with
names of one thing counted as one (vocabulary.py). A term weighs the more, the fewer questions of the bank use it in
their answers; a word that rubrics use and answers do not weighs little; a number of the point, found within 5 % and
with the same unit where both have one, weighs as much as a good term, and where a point is mostly about quantities, one
of them must be there. A point is suggested if enough of its weight stands in up to three neighbouring sentences: half,
or a third if the answer as a whole is about the question. So the right words in a wrong sentence are suggested too, and
the right idea in other words is not: that is why you confirm. How often it is wrong is measured in
tests/course/test_interview_matcher.py.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .questions import load
from .vocabulary import key_words

NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s?(%|×|x\b|kib|mib|gib|kb|mb|gb|tb/s|gb/s|tb|ms|µs|s\b|tokens)?")
SHARE, SHARE_ON_TOPIC = 0.6, 0.33  # of a point's weight that has to be found
NUMBERS_MATTER = 0.25  # of a point's weight: from here on one of its quantities must be there
LEAST = 2  # terms or numbers that have to be found, where a point has more than two
WINDOW = 3  # sentences that a point may be spread over
LONGER = 0.2  # weight that a longer quote has to add
QUOTED = 0.75  # of a quote's words that have to stand in the answer
CLOSE = 0.05  # numbers
NUMBER_WEIGHT, RUBRIC_WEIGHT, MOST_WEIGHT, COMMON_WEIGHT = 1.5, 0.5, 3.0, 0.2
ENOUGH, MOST_OF_LITTLE = 1.0, 0.6  # weight, whatever the share: two of the commonest words prove nothing
ON_TOPIC = 0.2, 8.0  # of an answer's weight that is about the question, and how much weight at least


@dataclass(frozen=True)
class Match:
    """What of a point was found in an answer, and where."""

    found: tuple[str, ...]
    missing: tuple[str, ...]
    quote: str  # the sentence or two that hold the most of it; "" if nothing was found
    suggested: bool

    @property
    def reason(self) -> str:
        """Why it is suggested, in words: what was found, what was not."""
        both = {"found": self.found, "not found": self.missing}
        return "; ".join(f"{label}: {', '.join(terms)}" for label, terms in both.items() if terms)


@lru_cache(maxsize=8192)
def terms(text: str) -> dict[str, str]:
    """What each key word stands for → the word as it stands there."""
    return key_words(text)


@lru_cache(maxsize=1)
def _answers_with() -> tuple[Counter, int]:
    """Term → the questions of the bank whose answers use it; and how many questions there are."""
    bank, found = load(), Counter()
    for question in bank.values():
        texts = [question.spoken, *(follow_up.short for follow_up in question.follow_ups)]
        texts += [push_back.reply for push_back in question.push_backs]
        found.update({term for text in texts for term in terms(text)})
    return found, len(bank)


def weight(term: str) -> float:
    """log(questions / questions that use it), and a little for the commonest; used once or never: a rubric's word."""
    used, questions = _answers_with()
    if used[term] < 2:
        return RUBRIC_WEIGHT
    return min(MOST_WEIGHT, math.log(questions / used[term]) + COMMON_WEIGHT)


@lru_cache(maxsize=4096)
def numbers(text: str) -> list[tuple[float, str]]:
    """(value, unit) of every number in a text."""
    found = NUMBER.findall(text.lower())
    return [(float(value.replace(",", "")), "×" if unit == "x" else unit) for value, unit in found if value.strip(",")]


def _same(wanted: tuple[float, str], given: tuple[float, str]) -> bool:
    (a, unit), (b, other) = wanted, given
    return (not unit or not other or unit == other) and abs(a - b) <= CLOSE * abs(a)


def sentences(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<=[.!?;])\s+|\n+", text) if part.strip()]


def on_topic(points: Sequence[str], answer: str) -> bool:
    """Whether an answer as a whole speaks about what the points are about."""
    about = {term for point in points for term in terms(point)}
    said = {term: weight(term) for term in terms(answer)}
    shared = sum(said[term] for term in said.keys() & about)
    share, least = ON_TOPIC
    return shared >= max(least, share * sum(said.values()))


def find(point: str, answer: str, share: float = SHARE) -> Match:
    """Look for a point of a rubric in an answer."""
    turns = [sentences(turn) for turn in answer.splitlines()]  # a quote does not join two answers
    windows = [" ".join(said[i : i + n]) for n in range(1, WINDOW + 1) for said in turns
               for i in range(len(said) - n + 1)]  # fmt: skip
    wanted, figures = terms(point), numbers(point)
    best, quote = (0.0, (), 0), ""
    for window in windows:  # the shorter windows come first, so a single sentence wins over two
        found = _found(wanted.keys(), figures, window)
        if found[0] > best[0] + LONGER:
            best, quote = found, window
    shown = [wanted[term] for term in wanted if term in best[1]]
    shown += [f"{best[2]} of {len(figures)} numbers"] if figures else []
    missing = [wanted[term] for term in wanted if term not in best[1]]
    return Match(tuple(shown), tuple(missing), quote, _enough(wanted, figures, best, share))


def _found(wanted: Collection[str], figures: Sequence, text: str) -> tuple[float, Collection[str], int]:
    """Of a point, in a text: the weight that is there, the terms, and how many of its numbers."""
    hits = wanted & terms(text).keys()
    right = sum(any(_same(figure, given) for given in numbers(text)) for figure in figures)
    return sum(map(weight, hits)) + NUMBER_WEIGHT * right, hits, right


def _enough(wanted: Collection[str], figures: Sequence, found: tuple, share: float) -> bool:
    scored, hits, right = found
    most = sum(map(weight, wanted)) + NUMBER_WEIGHT * len(figures)
    least = min(LEAST, max(1, len(wanted) + len(figures) - 1))
    if right == 0 and any(unit for _, unit in figures) and NUMBER_WEIGHT * len(figures) >= NUMBERS_MATTER * most:
        return False  # a quantity is what such a point is about
    return len(hits) + right >= least and scored >= max(share * most, min(ENOUGH, MOST_OF_LITTLE * most))


def supports(point: str, phrase: str) -> bool:
    """Whether words that somebody quotes for a point have anything to do with it: three words, a third of its weight in
    two of its terms (or one of very few)."""
    wanted, figures = terms(point), numbers(point)
    return len(phrase.split()) >= 3 and _enough(wanted, figures, _found(wanted.keys(), figures, phrase), SHARE_ON_TOPIC)


def was_said(phrase: str, heard: str) -> bool:
    """Whether words that somebody quotes stand in the answer: most of them, in whatever order and form."""
    quoted = key_words(phrase).keys()
    return len(quoted & key_words(heard).keys()) >= QUOTED * len(quoted) and bool(heard.strip())


def suggestions(points: Sequence[str], answer: str) -> list[Match]:
    """All points of a question. Of "what was asked → what to say" only the second half is looked for."""
    points = [point.rpartition(" → ")[2] for point in points]
    share = SHARE_ON_TOPIC if on_topic(points, answer) else SHARE
    return [find(point, answer, share) for point in points]
