"""Which points of a rubric a typed answer seems to make. A suggestion with its reasons, never a verdict.

    match = find("Decode reads every weight for one token", "It is memory bound: it reads all weights for each token.")
    match.suggested, match.opposite, match.found, match.missing, match.quote

Nothing is learned and nothing is hidden. A point's key terms are its words without the filler, cut to their stems, with
names of one thing counted as one (vocabulary.py). A term weighs the more, the fewer questions of the bank use it in
their answers and the fewer points of the same rubric hold it; a number of the point, found within 5 % and with the same
unit where both have one, weighs as much as a good term, and where a point is mostly about quantities, one of them must
be there. A verb that tells what to do ("compares") is not looked for; "computes" wants a figure. A point is suggested
if enough of its weight stands in one sentence, or more of it in up to three neighbouring ones, one of its distinctive
terms among it: 0.6, or 0.28 if the answer as a whole holds much of the rubric, for which the words of the question do
not count. It is a firm suggestion if at most one term is missing or half of the weight is there. The quote is the one
sentence that holds most of it, of a reply perhaps some more.

A term that is denied where the point is not ("no rollback", "never falls"), or the other way round, speaks against the
point. If too much does, the point is not suggested but marked as the opposite. So the right words in a wrong sentence
without such a word are still suggested, and the right idea in other words is not: that is why you confirm. How often it
is wrong is measured in tests/course/test_interview_matcher.py.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from .questions import load
from .stated import numbers
from .vocabulary import claim, key_words, occurrences

ENDED = r"(?<=[.!?])(?<!\b[EeIi]\.[ge]\.)(?<!\bvs\.)\s+"  # where a sentence ends
ASKS = re.compile(r"(?:.*: )?(?:what|which|how|who|when|where|why|is|are|do|does)\b", re.IGNORECASE)
# Of a point's weight, what has to be found: in general; where the answer is about the rubric; where the point is spread
# over sentences; in a quote; in a reply; of what sinks a candidate; and for a firm suggestion that lacks several terms.
SHARE, SHARE_IF_DENSE, SHARE_OF_SEVERAL, SHARE_OF_QUOTE, SHARE_OF_REPLY, SHARE_OF_SINK, FIRM = (
    0.6,
    0.28,
    0.38,
    0.33,
    0.2,
    0.75,
    0.5,
)
NUMBERS_MATTER = 0.25  # of a point's weight: from here on one of its quantities must be there
LEAST = 2  # terms or numbers that have to be found, where a point has more than two
WINDOW, REPLY = 3, 8  # sentences that a point may be spread over, and a reply to a push-back
LONGER = 0.2  # weight that a longer window has to add
DISTINCTIVE, LITTLE = 0.45, 0.35  # of the weight of a point's heaviest term: one such must be there if little else is
AGAINST, AGAINST_REPLY, MOSTLY = 0.1, 0.3, 0.8  # of the weight that speaks for a point: what is tolerated, the opposite
NAMED = 3  # terms in a reason
QUOTE = 200  # characters of a reply that are quoted, if it is more than a sentence
QUOTED = 0.75  # of a quote's pairs of words that have to stand in the answer
CLOSE = 0.05  # numbers
SMALL = 10  # a whole number below it, without a unit, proves little
NUMBER_WEIGHT, SMALL_WEIGHT, RUBRIC_WEIGHT, MOST_WEIGHT, COMMON_WEIGHT = 1.5, 0.3, 0.5, 3.0, 0.4
ENOUGH, MOST_OF_LITTLE = 0.7, 0.6  # weight, whatever the share: two of the commonest words prove nothing
IN_QUESTION = 8  # points that a term of the question counts for
DENSE = 0.2  # an answer that holds so much of a rubric is about it: less of a single point is enough


@dataclass(frozen=True)
class Match:
    """What of a point was found in an answer, and where."""

    found: tuple[str, ...]  # of the point's words; with the candidate's own, where they are others
    missing: tuple[str, ...]
    quote: str  # the sentence that holds the most of it; "" if nothing was found
    suggested: bool
    opposite: bool = False  # as much of it is there, but denied
    share: float = 0.0  # of the point's weight that was found
    firm: bool = False  # suggested, and hardly anything is missing

    @property
    def reason(self) -> str:
        """Why it is suggested, in words: what was found and what was not, of both what weighs the most."""
        both = {"found": self.found[:NAMED], "not found": self.missing[:NAMED]}
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


@lru_cache(maxsize=1)
def _asked() -> dict[str, str]:
    """Point → the question that it belongs to, of our bank."""
    return {point: question.question for question in load().values() for _, point in question.points}


def _held_by(points: Sequence[str], in_question: int = IN_QUESTION) -> Counter:
    """Term → how many points hold it. What stands in the question counts as some more: to repeat it proves little."""
    held = Counter(term for point in points for term in terms(point))
    asked = next((terms(_asked()[point]) for point in points if point in _asked()), ())
    held.update({term: in_question for term in asked if term in held})
    return held


def weight(term: str) -> float:
    """log(questions / questions that use it), and a little for the commonest; used once or never: a rubric's word."""
    used, questions = _answers_with()
    if used[term] < 2:
        return RUBRIC_WEIGHT
    return min(MOST_WEIGHT, math.log(questions / used[term]) + COMMON_WEIGHT)


def _same(wanted: tuple[float, str], given: tuple[float, str]) -> bool:
    (a, unit), (b, other) = wanted, given
    return (not unit or not other or unit == other) and abs(a - b) <= CLOSE * abs(a)


def sentences(text: str) -> list[str]:
    return [part.strip() for part in re.split(rf"{ENDED}|(?<=;)\s+|\n+", text) if part.strip()]


def claimed(text: str) -> list[str]:
    """The sentences that are no questions, nor parts of one."""
    found = []
    for whole in re.split(ENDED, text):
        asks = whole.endswith("?")
        found += [part for part in sentences(whole) if not asks or not (part.endswith("?") or ASKS.match(part))]
    return found


def density(points: Sequence[str], answer: str) -> float:
    """How much of a rubric an answer holds: the share of a point in its best sentence, averaged over the points."""
    said, held_by = claimed(answer), _held_by(points)
    wanted = [Wanted(point, held_by) for point in points]
    shares = [
        max((each.look(text).turned.score for text in said), default=0.0) / each.most for each in wanted if each.most
    ]
    return sum(shares) / len(shares) if shares else 0.0


# ---- one point ------------------------------------------------------------------------------------------------------


class Wanted:
    """A point: its terms with their weights and whether it denies them, and its numbers."""

    def __init__(self, point: str, held_by: Mapping[str, int] | None = None, signed: bool = False) -> None:
        """signed: whoever affirms what the point denies does not make it, as with what sinks a candidate."""
        self.words, self.signed = terms(claim(point)), signed
        self.weights = {term: weight(term) / math.sqrt((held_by or {}).get(term, 1)) for term in self.words}
        self.denied = _polarities([claim(point)], self.words)
        self.figures = numbers(point)
        self.figure_weights = [
            SMALL_WEIGHT if a < SMALL and a == int(a) and not unit else NUMBER_WEIGHT for a, unit in self.figures
        ]
        heaviest = max(self.weights.values(), default=0.0)
        affirmed = [term for term in self.words if False in self.denied[term]] or list(self.words)
        self.distinctive = {term for term in affirmed if self.weights[term] >= DISTINCTIVE * heaviest}

    @property
    def heaviest(self) -> list[str]:
        return sorted(self.words, key=self.weights.get, reverse=True)

    @property
    def most(self) -> float:
        return sum(self.weights.values()) + sum(self.figure_weights)

    def look(self, *said_in: str) -> Found:
        """Of the point, in these sentences together."""
        said = _polarities(said_in, self.words)
        shared = [term for term in self.words if term in said]
        for_it = [
            term
            for term in shared
            if (said[term] & self.denied[term] if self.signed else False in said[term] or True in self.denied[term])
        ]
        given = [number for text in said_in for number in numbers(text)]
        right = [any(_same(figure, other) for other in given) for figure in self.figures]
        return Found(
            sum(self.weights[term] for term in for_it),
            sum(heavy for heavy, hit in zip(self.figure_weights, right, strict=True) if hit),
            tuple(for_it),
            tuple(term for term in shared if term not in for_it),
            sum(self.weights[term] for term in shared if term not in for_it),
            sum(right),
        )

    def enough(self, found: Found, share: float) -> bool:
        least = min(LEAST, max(1, len(self.words) + len(self.figures) - (share < SHARE)))
        if (
            found.right == 0
            and any(unit for _, unit in self.figures)
            and (sum(self.figure_weights) >= NUMBERS_MATTER * self.most)
        ):
            return False  # a quantity is what such a point is about
        scored = found.term_weight + found.number_weight
        little = scored < LITTLE * self.most and found.number_weight < NUMBER_WEIGHT
        if self.words and little and self.distinctive.isdisjoint(found.hits):
            return False
        return len(found.hits) + found.right >= least and scored >= max(
            share * self.most, min(ENOUGH, MOST_OF_LITTLE * self.most)
        )


@dataclass(frozen=True)
class Found:
    """Of a point, in a text."""

    term_weight: float
    number_weight: float
    hits: tuple[str, ...]
    denied: tuple[str, ...]  # terms that are there with the opposite sign
    against: float  # their weight
    right: int  # numbers

    @property
    def score(self) -> float:
        return self.term_weight + self.number_weight - self.against

    def is_denied(self, tolerated: float = AGAINST) -> bool:
        return self.against > tolerated * self.term_weight

    @property
    def turned(self) -> Found:
        """The same, if what is denied counted for it."""
        return Found(self.term_weight + self.against, self.number_weight, self.hits + self.denied, (), 0.0, self.right)


def _polarities(texts: Iterable[str], wanted: Mapping[str, str]) -> dict[str, set[bool]]:
    """Wanted term → whether it is denied, of all its occurrences. "drop" denies nothing if the point is to drop."""
    found: dict[str, set[bool]] = {}
    for word in (word for text in texts for word in occurrences(text) if word.term in wanted):
        signs = {True, False} if word.denied is None else {word.denied or (word.undone and "drop" not in wanted)}
        found.setdefault(word.term, set()).update(signs)
    return found


def find(
    point: str, answer: str, share: float = SHARE, held_by: Mapping[str, int] | None = None, reply: bool = False
) -> Match:
    """Look for a point of a rubric in an answer; reply: the answer replies to nothing else, so all of it may count."""
    sinks = share >= SHARE_OF_SINK and not reply  # one sentence has to say it, and to mean it
    longest, tolerated = (REPLY, AGAINST_REPLY) if reply else (1 if sinks else WINDOW, AGAINST)
    claims = sentences if point.startswith("Asks") else claimed  # otherwise a question says nothing
    turns = [claims(turn) for turn in answer.splitlines()]  # a quote does not join two answers
    windows = [said[i : i + n] for n in range(1, longest + 1) for said in turns for i in range(len(said) - n + 1)]
    wanted = Wanted(point, held_by, signed=sinks)
    best, where = wanted.look(), []
    against, there = best, []
    for window in windows:  # the shorter windows come first, so a single sentence wins over two
        found = wanted.look(*window)
        spread = len(window) > 1 and not reply
        if found.score > best.score + LONGER and (not spread or found.score >= SHARE_OF_SEVERAL * wanted.most):
            best, where = found, window
        if len(window) == 1 and found.against > against.against:
            against, there = found, window
    suggested = wanted.enough(best, share) and not best.is_denied(tolerated)
    opposite = not suggested and against.is_denied(MOSTLY) and wanted.enough(against.turned, share)
    if opposite:
        best, where = against.turned, there
    own, said = terms(" ".join(where)), " ".join(where).lower()
    shown = [_named(wanted.words[term], own[term], said) for term in wanted.heaviest if term in best.hits]
    shown += [f"{best.right} of {len(wanted.figures)} numbers"] if wanted.figures else []
    missing = [wanted.words[term] for term in wanted.heaviest if term not in best.hits]
    quotes = [" ".join(where[i:n]) for i in range(len(where)) for n in range(i + 1, len(where) + 1)]
    quotes = [each for each in quotes if each in where or (reply and len(each) <= QUOTE)]  # of a reply perhaps all
    quote = max(quotes, key=lambda each: wanted.look(each).score, default="")
    held = best.score / wanted.most if wanted.most else 0.0
    firm = suggested and (reply or len(missing) <= 1 or held >= FIRM)
    return Match(tuple(dict.fromkeys(shown)), tuple(missing), quote, suggested, opposite, held, firm)


def _named(word: str, own: str, said: str) -> str:
    """The point's word, and the candidate's where it is another."""
    return word if own in word or word in said else f"{word} (your “{own}”)"


def plainly(point: str, phrase: str) -> float:
    """The share of a point's weight that a phrase holds by itself."""
    wanted = Wanted(point)
    return wanted.look(phrase).score / wanted.most if wanted.most else 0.0


def mentions(point: str, text: str) -> float:
    """The share of a point's weight that a text speaks of, whether it affirms or denies it."""
    wanted = Wanted(point)
    return wanted.look(text).turned.score / wanted.most if wanted.most else 0.0


def excerpt(point: str, phrase: str, most: int) -> str:
    """The part of a long quote that holds the most of a point, cut between words."""
    phrase = phrase.rstrip(";, ")
    if len(phrase) <= most:
        return phrase
    words, wanted = phrase.split(), Wanted(point)
    best, where = -1.0, (0, 0)
    for i in range(len(words)):
        n = i + 1
        while n < len(words) and len(" ".join(words[i : n + 1])) <= most - 4:
            n += 1
        score = wanted.look(" ".join(words[i:n])).score
        if score > best + 1e-9:
            best, where = score, (i, n)
        if n == len(words):
            break
    i, n = where
    return f"{'… ' * (i > 0)}{' '.join(words[i:n])}{' …' * (n < len(words))}"


def supports(point: str, phrase: str) -> bool:
    """Whether words that somebody quotes for a point have anything to do with it, and do not deny it."""
    wanted = Wanted(point)
    found = wanted.look(phrase)
    return len(phrase.split()) >= 3 and wanted.enough(found, SHARE_OF_QUOTE) and not found.is_denied()


def lacks(point: str, phrase: str) -> list[str]:
    """What of a point is not in a phrase, what weighs the most first; "not …" where the phrase says the opposite."""
    wanted = Wanted(point)
    found = wanted.look(phrase)
    absent = [wanted.words[term] for term in wanted.heaviest if term not in found.hits + found.denied]
    return [f"“{wanted.words[term]}” is denied" for term in found.denied] + absent


def was_said(phrase: str, heard: str) -> bool:
    """Whether words that somebody quotes stand in the answer: most pairs of neighbouring words, whatever the signs."""

    def pairs(text: str) -> set[tuple[str, str]]:
        words = re.findall(r"\w+", text.lower())
        return set(pairwise(words)) or {(word, "") for word in words}

    quoted = pairs(phrase)
    return bool(quoted) and len(quoted & pairs(heard)) >= QUOTED * len(quoted)


# ---- a rubric -------------------------------------------------------------------------------------------------------


def match_boxes(points: Sequence[str], answers: Sequence[str], strict: Collection[int] = ()) -> list[Match]:
    """Every point in the answer that belongs to it. Of "what was asked → what to say" the second half is looked for.

    strict: points for which being about the question is not enough, such as what sinks a candidate.
    """
    replies = [" → " in point for point in points]
    points = [point.rpartition(" → ")[2] for point in points]
    told = [point for i, point in enumerate(points) if i not in strict and not replies[i]] or points
    dense = density(told, "\n".join(dict.fromkeys(answers))) >= DENSE
    held_by, share = _held_by(points, 0 if dense else IN_QUESTION), SHARE_IF_DENSE if dense else SHARE
    found = []
    for i, (point, answer, reply) in enumerate(zip(points, answers, replies, strict=True)):
        least = SHARE_OF_REPLY if reply else SHARE_OF_SINK if i in strict else share
        found.append(find(point, answer, least, held_by, reply))
    return found


def suggestions(points: Sequence[str], answer: str) -> list[Match]:
    """All points of a question, in one answer."""
    return match_boxes(points, [answer] * len(points))
