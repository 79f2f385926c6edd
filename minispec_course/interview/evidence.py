"""What a tick is worth: which words of the candidate speak for a line of the rubric, and whether they were said.

A line counts as shown if the candidate ticked it with words of the answer in which the matcher finds it. The matcher
knows words, not meanings: ticked with other words of the answer a line is claimed, the debrief says which level the
claims would make, and whoever reads it decides.
Words that are not in the answer are refused. The same words earn at most two lines, a long sentence up to four. A
follow-up or push-back is looked for in the reply to it, everything else in all that was said on the question.

In a design, a sentence that only repeats the interviewer earns nothing, and a point is made after a prompt if the
candidate made it only once the interviewer had named it. The line about scoping is judged by what was asked for, or
assumed, before the facts were told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from fsrs import Rating

from .drill import FOLLOW_UP, PUSH_BACK, SINKS
from .matcher import (
    QUOTED,
    SHARE_IF_DENSE,
    SHARE_OF_SINK,
    Match,
    find,
    lacks,
    match_boxes,
    mentions,
    plainly,
    sentences,
    supports,
    terms,
    was_said,
)
from .question import LEVELS, reached
from .reactions import ANSWERS, asked_for, corrects_itself, takes_back
from .rounds import SCOPE, SCOPED, Reply, Turn
from .stated import numbers
from .vocabulary import occurrences

PER_QUOTE = 2  # lines that the same words can earn
PER_LONG, WORDS_EACH = 4, 10  # and a long sentence that was suggested: one for every ten words
FEWEST = 3  # words of a quote
PLAIN, PLAIN_REPLY = 0.6, 0.3  # of a line's weight that makes its quote a strength
ABOUT_IT = 0.5  # of the weight of what sinks an answer, in a reply that takes it back
HALF_WAY = ("follow-up", "push-back", "change")  # turns
GOES_ON = ("answer", "check", "probe")  # turns that stay with what was asked before
MARKS = ("a number", "a formula")  # that a text holds one: no word of it
OPEN, NAMES = ("ask", "draw"), ("board", "number", "correction")  # turns that name no point, and all that is replied
Entry = tuple[str, Turn, Reply, float]  # of a transcript
Talk = Sequence[tuple[Turn, Reply]]  # all of it that belongs to one question


def talk_on(turn: Turn, transcript: Iterable[Entry]) -> Talk:
    of = (turn.question, turn.exercise)
    return [(t, r) for _, t, r, _ in transcript if (t.question, t.exercise) == of and t is not turn]


def heard(turn: Turn, transcript: Iterable[Entry] = ()) -> list[str]:
    """For every line of a rubric: what was typed that may speak for it."""
    talk = talk_on(turn, transcript)
    said = [(t, r) for t, r in talk if t.expects == "words" and not repeats_what_was_asked(t, r)]
    own = turn.heard
    if is_drawn(talk):
        own = "\n".join(text for text, (t, _) in zip(own_words(turn, talk), talk, strict=True) if t.number is None)
    return [
        reply_to(box.text.rpartition(" → ")[0], said) or turn.heard
        if box.group in (FOLLOW_UP, PUSH_BACK)
        else own
        if box.group in LEVELS
        else turn.heard
        for box in turn.boxes
    ]


def repeats_what_was_asked(turn: Turn, reply: Reply) -> bool:
    """Whether a reply to an objection has hardly a key word, and no number, of its own."""
    figures = {value for value, _ in numbers(reply.text)} - {value for value, _ in numbers(turn.says)}
    said, asked = terms(reply.text).keys(), terms(turn.says).keys()
    return turn.kind in HALF_WAY and bool(said) and not figures and len(said & asked) >= QUOTED * len(said)


def reply_to(asked: str, said: Talk) -> str:
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
    said = heard(turn, transcript)
    found = match_boxes([box.text for box in turn.boxes], said, _sinks(turn))
    alone = match_boxes([box.text for box in turn.boxes], by_themselves(turn, talk_on(turn, transcript)), _sinks(turn))
    for i, box in enumerate(turn.boxes):
        if box == SCOPE:
            found[i] = scoped(said[i])
        elif box.group in LEVELS and alone[i].suggested:
            found[i] = alone[i]  # the words from before a prompt
    sinks = [turn.boxes[i].text for i in _sinks(turn)]
    return [_weighed(box.group, match, sinks) for box, match in zip(turn.boxes, found, strict=True)]


def _weighed(group: str, match: Match, sinks: Sequence[str]) -> Match:
    """A sentence that holds as much of a mistake makes no point; of a reply, no word speaks against it."""
    if group not in LEVELS:
        return replace(match, opposite=False)
    wrong = [find(sink, match.quote, SHARE_OF_SINK) for sink in sinks]
    more = any(each.suggested and each.share >= match.share for each in wrong)
    return replace(match, suggested=False, firm=False) if more else match


def _sinks(turn: Turn) -> list[int]:
    return [i for i, box in enumerate(turn.boxes) if box.group == SINKS]


def scoped(text: str) -> Match:
    """What was asked for, or assumed, of the things that an interviewer can state: two of them are enough."""
    found = asked_for(text)
    missing = tuple(name for name, *_ in ANSWERS if name not in found)
    enough = len(found) >= SCOPED
    return Match(tuple(found), missing, " ".join(dict.fromkeys(found.values())), enough, firm=enough)


def own_words(turn: Turn, said: Talk) -> list[str]:
    """Of every reply the sentences that are no echo. An echo has its key words from the interviewer: most of all, and
    those of the rubric all and mostly in the same order; and no number of its own. Where it has fewer than two words of
    the rubric, the order of all its key words counts."""
    about = terms(" ".join(box.text for box in turn.boxes if box.group != SINKS)).keys()

    def in_order(text: str) -> list[list[str]]:
        words = [word.term for word in occurrences(text) if word.written not in MARKS]
        return [[word for word in words if word in about], words]

    told, found = "", []
    for each, reply in said:
        told = f"{told}\n{each.says}"
        theirs, figures = in_order(told), {value for value, _ in numbers(told)}
        own = []
        for sentence in sentences(reply.text):
            mine, words = in_order(sentence)
            which = len(mine) < 2
            pairs = set(pairwise((mine, words)[which]))
            new = len(pairs - set(pairwise(theirs[which]))) > (1 - QUOTED) * len(pairs)
            new = new or not {*mine} <= {*theirs[0]} or 2 * len({*words} & {*theirs[1]}) < len({*words})
            if new or not words or {value for value, _ in numbers(sentence)} - figures:
                own.append(sentence)
        found.append(" ".join(own))
    return found


def by_themselves(turn: Turn, said: Talk) -> list[str]:
    """For every point of a design's rubric: what the candidate said before the interviewer named it; otherwise "".

    The question and the empty whiteboard are open. Then its headings name whatever is said in reply to them, and a
    later turn names a point if the matcher finds it there.
    """
    points = {i: box.text for i, box in enumerate(turn.boxes) if is_drawn(said) and box.group in LEVELS}
    asked, named, found = "", set(), [[] for _ in turn.boxes]
    for (each, reply), own in zip(said, own_words(turn, said), strict=True) if points else ():
        asked = asked if each.kind == "answer" else each.kind
        if asked not in OPEN:
            says = each.says.replace("?", ".")  # to the matcher a question claims nothing, but it names
            says += f"\n{reply.text}" * (asked in NAMES)
            named |= {i for i in points.keys() - named if find(points[i], says, SHARE_IF_DENSE).suggested}
        for i in points.keys() - named if asked not in NAMES else ():
            found[i].append(own)
    return ["\n".join(texts) for texts in found]


def is_drawn(said: Talk) -> bool:
    return any(turn.kind == "draw" for turn, _ in said)


def prompted(turn: Turn, ticks: Mapping[int, str], said: Talk) -> frozenset[int]:
    """The points that were made only after a prompt: neither their words nor the point itself came before."""
    if not is_drawn(said):
        return frozenset()  # nobody asked for anything by its name
    alone = by_themselves(turn, said)
    made = match_boxes([box.text for box in turn.boxes], alone, _sinks(turn))
    return frozenset(
        i
        for i, phrase in ticks.items()
        if turn.boxes[i].group in LEVELS and not made[i].suggested and not was_said(phrase, alone[i])
    )


def taken_back(turn: Turn, said: Talk) -> dict[int, str]:
    """What sinks an answer and was doubted: box → the reply, or "" if that takes the statement back. Whoever takes it
    back unasked, in a reply that is about it, need not be doubted first."""
    lines = {box.text: i for i, box in enumerate(turn.boxes) if box.group == SINKS}
    found = {lines[t.doubts]: (t.doubts, r) for t, r in said if t.doubts in lines and r.text and not r.given_up}
    doubted = {i: "" if takes_back(sink, reply.text) else reply.text for i, (sink, reply) in found.items()}
    unasked = {
        i: ""
        for sink, i in lines.items()
        for _, reply in said
        if corrects_itself(reply.text) and mentions(sink, reply.text) >= ABOUT_IT
    }
    return {**unasked, **doubted}


def refusal(turn: Turn, box: int, phrase: str, transcript: Iterable[Entry] = ()) -> str:
    """Why words cannot be taken for a line, as a sentence; "" if they can."""
    if turn.boxes[box].group == SINKS:
        return ""
    texts = heard(turn, transcript)
    if turn.boxes[box] == SCOPE and not scoped(texts[box]).suggested:
        return f"Before the facts were told you asked for, or assumed, fewer than {SCOPED} of these things."
    if len(phrase.split()) < FEWEST:
        return f"Quote at least {FEWEST} words of your answer."
    if not was_said(phrase, turn.heard):
        return "I do not find these words in your answers: quote what you typed."
    if texts[box] != turn.heard and not was_said(phrase, texts[box]):
        return (
            "These are mostly the interviewer's words: quote your own."
            if turn.boxes[box].group in LEVELS
            else "You said that, but not in reply to this question."
        )
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
    prompted: frozenset[int] = frozenset()  # made only after the interviewer had named them
    doubted: dict[int, str] = field(default_factory=dict)  # box → reply, "" if it took the box back

    def is_plain(self, box: int) -> bool:
        """Whether a reader who knows only the quote would agree; of a reply, the whole of it counts."""
        return self.plain[box] >= (PLAIN_REPLY if self._group(box) in (FOLLOW_UP, PUSH_BACK) else PLAIN)

    def texts(self, *groups: str, among: Collection[int] | None = None) -> list[str]:
        found = [(i, box.text) for i, box in enumerate(self.turn.boxes) if box.group in groups]
        return [text for i, text in found if among is None or i in among]

    def level(self, with_claims: bool = False) -> int:
        """How many levels are reached. Each sinking tell costs one, unless it was taken back when it was doubted."""
        ticked = {**self.shown, **(self.claimed if with_claims else {})}
        return max(0, level_of(*self.counts(ticked), self.points, self.lacking(ticked)) - len(self.sunk))

    @property
    def points(self) -> dict[str, int]:
        return {name: len(self.texts(name)) for name in LEVELS}

    def counts(self, ticked: Collection[int]) -> tuple[dict[str, int], dict[str, int]]:
        """Level → the points that were made without a prompt, and those that were made after one."""
        after = self.prompted & set(ticked)
        return tuple(
            {name: len(self.texts(name, among=among)) for name in LEVELS} for among in (set(ticked) - after, after)
        )

    @property
    def sunk(self) -> list[str]:
        """What sinks an answer, was ticked, and was not taken back."""
        return self.texts(SINKS, among=[i for i in self.shown if self.doubted.get(i) != ""])

    def lacking(self, ticked: dict[int, str] | None = None) -> set[str]:
        """The levels of which a must-have is missing."""
        ticked = self.shown if ticked is None else ticked
        return {box.group for i, box in enumerate(self.turn.boxes) if box.must and i not in ticked}

    def opposite(self) -> dict[int, str]:
        """Points whose words were said with a "not": box → the sentence. Not where other words were given for the line,
        and not a sentence that has earned a point: who counts words does not know better than both."""
        ticked, earned = {**self.shown, **self.claimed}, set(self.shown.values())
        return {
            i: m.quote
            for i, m in enumerate(self.matches)
            if m.opposite
            and m.quote.strip(" …")
            and i not in ticked
            and m.quote not in earned
            and self._group(i) in LEVELS
        }

    def suspected(self) -> dict[int, str]:
        """What sinks a candidate and seems to have been said, without being ticked or taken back."""
        earned = {quote for i, quote in self.shown.items() if self._group(i) != SINKS}  # both cannot be
        return {
            i: m.quote
            for i, m in enumerate(self.matches)
            if self._group(i) == SINKS
            and i not in self.shown
            and ((m.suggested and m.quote not in earned) or i in self.doubted)
            and self.doubted.get(i) != ""
        }

    def _group(self, box: int) -> str:
        return self.turn.boxes[box].group

    def tally(self) -> str:
        """What became of the ticks: the counts add up to them."""
        ticked = sum(map(len, (self.shown, self.claimed, self.empty, self.refused)))
        sunk = len(self.sunk)
        back = len(self.texts(SINKS, among=self.shown)) - sunk
        parts = [f"shown {len(self.shown) - sunk - back}"]
        parts += [f"counts against you {sunk}"] * bool(sunk)
        parts += [f"taken back {back}"] * bool(back)
        parts += [f"claimed in other words {len(self.claimed)}"] * bool(self.claimed)
        parts += [f"not counted {len(self.empty)} (their words have earned other points)"] * bool(self.empty)
        parts += [f"refused {len(self.refused)} (these words are not in your answer)"] * bool(self.refused)
        return f"Ticked: {ticked}. Of these {', '.join(parts)}." if ticked else "Nothing was ticked."


def level_of(
    alone: Mapping[str, int], after: Mapping[str, int], points: Mapping[str, int], lacking: Collection[str] = ()
) -> int:
    """How many levels are reached with points made without a prompt, and points made after one.

    After a prompt a point counts one level lower, and L6 takes only points that were made without.
    """
    below_the_top = min(len(LEVELS) - 1, reached(lowered(alone, after), points, lacking))
    return max(below_the_top, reached(alone, points, lacking))


def lowered(alone: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Level → points, with those made after a prompt one level lower; below L4 there is nothing."""
    counts = {**alone}
    for name, below in zip(LEVELS, (LEVELS[0], *LEVELS), strict=False):
        counts[below] += after[name]
    return counts


def graded(turn: Turn, reply: Reply, transcript: Iterable[Entry] = ()) -> Graded:
    transcript = list(transcript)
    talk = talk_on(turn, transcript)
    matches, said = tuple(suggest(turn, transcript)), heard(turn, transcript)
    shown, claimed, empty, refused, quoted = {}, {}, {}, {}, Counter()
    for i, phrase in sorted(reply.ticks.items()):
        if turn.boxes[i].group == SINKS:
            shown[i] = phrase  # whoever ticks this is believed
            continue
        if turn.boxes[i] == SCOPE:
            (shown if matches[i].suggested else refused)[i] = matches[i].quote or phrase
            continue
        point = turn.boxes[i].text.rpartition(" → ")[2]
        confirmed = matches[i].suggested and phrase == matches[i].quote
        if len(phrase.split()) >= FEWEST and refusal(turn, i, phrase, transcript):
            refused[i] = phrase
            continue
        words = _plain(phrase)
        words = next((each for each in quoted if words and (words in each or each in words)), words)
        most = max(PER_QUOTE, min(PER_LONG, len(phrase.split()) // WORDS_EACH)) if confirmed else PER_QUOTE
        quoted[words] += 1  # a part of a sentence is that sentence
        if (len(phrase.split()) < FEWEST and not confirmed) or quoted[words] > most:
            empty[i] = phrase
        elif confirmed or supports(point, phrase):
            shown[i] = phrase
        else:
            claimed[i] = phrase
    plain = {
        i: plainly(
            turn.boxes[i].text.rpartition(" → ")[2],
            said[i] if turn.boxes[i].group in (FOLLOW_UP, PUSH_BACK) else phrase,
        )
        for i, phrase in shown.items()
        if turn.boxes[i].group != SINKS
    }
    plain |= {i: PLAIN_REPLY for i in shown if turn.boxes[i] == SCOPE}  # judged; a strength, and the last of its rank
    after = prompted(turn, {**shown, **claimed}, talk)
    return Graded(turn, shown, claimed, empty, refused, matches, plain, after, taken_back(turn, talk))


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
