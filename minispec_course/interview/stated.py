"""Numbers with their units, as people write and say them; and the one that a sentence states as its answer.

    numbers("16 GB over 3.35 TB/s, so 5 ms")                # (16, gb), (3.35, tb/s), (5, ms)
    judge(number, "0.05 over 0.2 is 0.25").verdict          # RIGHT, WRONG, UNCLEAR or UNREAD

What counts is the last number after "=", "so", "is", "about" and their like, or the last one at all. A number that the
next one follows from ("0.05 / 0.2 = …") is working; one after "because" is a reason; "k = 4" and "with 5 tokens" repeat
what was given; of "16, no, 33" and "33 rather than 16" only 33 is meant. A right number beside another statement is
unclear, and a text without a number is unread: in both cases the interviewer asks again (`asks_again`), and neither is
wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from .expressions import evaluate
from .question import Number

RIGHT, WRONG, UNCLEAR, UNREAD = "right", "wrong", "unclear", "unread"
AGAIN = {
    UNCLEAR: "Which is your final number?",
    UNREAD: "I could not read a number in that. Please give only the number.",
}
DIGITS = (
    r"(?:[1-9]\d{0,2}(?:\.\d{3})+,\d+|[1-9]\d{0,2}(?:[, ]\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:[.,]\d+)?|\.\d+)"
    r"(?:e[+-]?\d+)?"
)
FREE = r"(?<![\w.,])(?<![^\W\d_]-)"  # no digits of a name: EAGLE-2, H100
PERCENT = r"(?:%|percent\b|per cent\b|pct\b)"
BEFORE, AFTER = r"(?<=[\d)%])\s*", r"\s*(?=[-−]?[(\d.])"
SIGNS = {  # as people write arithmetic → as Python does
    r"[−–]": "-",
    rf"(?<=\d)\s*{PERCENT}": "%",
    rf"{BEFORE}(?:\b(?:over|divided by|out of|in)\b|÷){AFTER}": " / ",
    rf"{BEFORE}(?:\b(?:times|multiplied by|x)\b|[×·]|(?<=\d)x(?=[\d(])){AFTER}": " * ",
    rf"{BEFORE}\bplus\b{AFTER}": " + ",
    rf"{BEFORE}\bminus\b{AFTER}": " - ",
    rf"{BEFORE}(?:\bto the (?:power of )?|\^){AFTER}": "**",
    r"(?<=\d)\s*(?:squared\b|²)": "**2",
    r"\bminus (?=\d)": "-",
}
TOKEN = re.compile(rf"{FREE}({DIGITS})(%)?|(=>|->|[=≈→~⇒])|(\*\*|[-+*/()])|([^\W\d_]+(?:['’][^\W\d_]+)?|[^\W_]+|\S)")
LEAD = re.compile(rf"\s*[-−]?{DIGITS}%?\s*(?:[,;:.](?=\s)|$)")
CONCLUDES = set(
    """so is it's that's its are was be equals equal makes make gives give gets get about roughly around
    approximately approx nearly almost circa therefore thus hence then answer result total altogether finally say
    becomes become comes mean sorry call final namely = ≈ → ~ ⇒ => ->""".split()
)
LINKS = CONCLUDES | set("to which that it the a an just exactly only simply up out at of or , : - — …".split())
JOINTS = {"or", "to", "and"}
REASONS, ENDS_REASON = {"because", "since", "given"}, set(". ; so thus hence therefore".split())
# Between two numbers: the first is taken back.
CORRECTS = re.compile(
    r"\bno\b(?=\s*(?:[,.:;!—–-]|wait|sorry|that|it|$))|(?:^|[,.:;!?…—–-] ?)wait\b|\bsorry\b|\bscratch that\b"
    r"|\bcorrection\b|\bi mean\b|\bmake (?:that|it)\b|\bmore like\b|\bor rather\b|\blet me re"
    r"|\b(?:was|is|that's) (?:wrong|a mistake)\b|\bactually(?: it'?s| it is| about| ,)*$"
)
# Before a number: it is an old one, or not meant.
RECALLS = re.compile(r"(?<!as )\bi (?:just |first )?(?:said|had|read|thought|wrote|took)(?: about| roughly| it was)?$")
DENIES = re.compile(r"\b(?:not|isn't|never|rather than|instead of)(?: \S+){0,2}$")
PARAMETERS = {"k", "c", "v", "b", "n", "batch", "temperature", "α", "alpha", "β", "beta", "γ"}
CONDITIONS = {"with", "for", "per", "under", "after", "from", "at"}
FRACTIONS = {
    "two thirds": "2/3",
    "one third": "1/3",
    "a third": "1/3",
    "three quarters": "3/4",
    "one quarter": "1/4",
    "a quarter": "1/4",
    "one half": "1/2",
    "a half": "1/2",
    "half": "1/2",
    "two-thirds": "2/3",
}
COUNTS = {word: str(i) for i, word in enumerate("zero one two three four five six seven eight nine ten".split())}
TEENS = "eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
LARGER = {  # "fifty-five"; unlike one and two, such words are always meant as numbers. Longer ones first
    **{f"{ten}[- ]{one}": f"{i}{COUNTS[one]}" for i, ten in enumerate(TENS, 2) for one in list(COUNTS)[1:10]},
    **{word: str(i) for i, word in enumerate(TEENS, 11)},
    **{ten: str(10 * i) for i, ten in enumerate(TENS, 2)},
    **{"(?:a|one) hundred": "100"},
}
DIGIT = "|".join(list(COUNTS)[:10])
RESULT = (
    "that's|that is|that makes|makes|which is|which makes|gives|so|equals|about|roughly"  # a word after it is a number
)
GAINS = {"gain", "faster", "more", "speedup", "speed", "increase", "better", "improvement"}  # 82 % faster is 1.82 ×
SCALES = {  # unit → (what it measures, how much)
    **{unit: ("bytes", 1000.0**i) for i, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: ("bytes", 1024.0**i) for i, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
    **{"µs": ("time", 1e-6), "ms": ("time", 1e-3), "s": ("time", 1.0)},
    **{"gflop": ("work", 1e9), "tflop": ("work", 1e12), "gflops": ("work", 1e9), "tflops": ("work", 1e12)},
}
UNITS = {"x": "×", "us": "µs", "microseconds": "µs", "milliseconds": "ms", "seconds": "s", "second": "s", "sec": "s"}
UNIT = "|".join(map(re.escape, ("×", "tb/s", "gb/s", "tokens", *SCALES, *UNITS)))
QUANTITY = re.compile(rf"{FREE}({DIGITS})(?:\s?(?:({PERCENT})|({UNIT})(?!\w)))?")
MULTIPLES = {"thousand": 1e3, "k": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}


@dataclass
class Value:
    """One number of a text and how it stands there."""

    value: float
    percent: bool = False
    unit: str = ""  # the word after it, as in UNITS
    leaves: tuple[float, ...] = ()  # the numbers it was computed from
    concludes: bool = False  # after "=", "so", "is" …
    given: bool = False  # k = 4, with 5 tokens
    name: str = ""  # the word that it is given for: k, with
    reason: bool = False  # after "because"
    denied: bool = False  # not 0.3, or taken back: 0.3, no, …
    either: bool = False  # 0.2 or 0.3, 3-4
    working: bool = False  # the next number follows from it
    leads: bool = False  # "0.7, as I said": it begins the reply and stands alone
    before: list[str] = field(default_factory=list)  # the words since the number before it

    def readings(self, unit: str) -> Iterator[float]:
        """What it may be in the unit of the answer."""
        if unit == "%":
            yield self.value * 100 if self.percent else self.value
            if not self.percent and abs(self.value) <= 1:
                yield self.value * 100
            return
        if unit == "×" and self.percent and self.unit in GAINS:
            yield 1 + self.value
            return
        (kind, much), (other, wanted) = SCALES.get(self.unit, ("", 1.0)), SCALES.get(unit.lower(), ("-", 1.0))
        if kind != other or 0.9 < much / wanted < 1.1:  # many say GB for GiB; 320 GB are no 320 KiB
            yield self.value
        if kind == other:
            yield self.value * much / wanted
        elif self.unit in MULTIPLES:
            yield self.value * MULTIPLES[self.unit]


@dataclass(frozen=True)
class Judged:
    verdict: str
    value: float | None  # what was taken for the answer

    @property
    def right(self) -> bool:
        return self.verdict == RIGHT


def judge(number: Number, text: str) -> Judged:
    """Whether a text states this number."""
    found = [value for value in stated(text) if not value.denied]
    if not found:
        return Judged(UNREAD, None)
    if found[0].leads and any(map(number.matches, found[0].readings(number.unit))):
        return Judged(RIGHT, next(filter(number.matches, found[0].readings(number.unit))))
    found = [value for value in found if not value.reason] or found
    asked = set(re.findall(r"\w+", number.name.lower()))  # "the best k is 7" gives k only where k is not asked for
    found = [value for value in found if not value.given or value.name in asked & PARAMETERS] or found
    found = [value for value in found if not value.working] or found
    last = found[-1]
    final = next((value for value in reversed(found) if value.concludes), last)
    right = {id(value): x for value in found for x in value.readings(number.unit) if number.matches(x)}
    same = all(id(value) in right for value in found if value.either)  # 3 ms or 0.003 s
    for value in (final, last):
        if id(value) in right and (same or not value.either):
            return Judged(RIGHT, right[id(value)])
    unclear = final.either or right or any(map(number.matches, final.leaves))
    return Judged(UNCLEAR if unclear else WRONG, next(final.readings(number.unit)))


def asks_again(judged: Judged) -> str:
    """What an interviewer says who cannot tell which number it is; "" if that is clear."""
    return AGAIN.get(judged.verdict, "")


@lru_cache(maxsize=4096)
def numbers(text: str) -> list[tuple[float, str]]:
    """(value, unit) of every number as it is written, the working included. The 2 of EAGLE-2 is none."""
    found = QUANTITY.findall(text.lower())
    return [(_digits(value), "%" if percent else UNITS.get(unit, unit)) for value, percent, unit in found]


def in_words(text: str) -> str:
    """Fractions in words, and in a short reply counts too: "two thirds", "zero". Beside digits: "so one third" at the
    end."""
    first = re.match(rf"\s*({'|'.join(COUNTS)})(?=[,;:.])", text)
    text = COUNTS[first[1]] + text[first.end() :] if first else text
    if re.search(r"\d", text):  # only what is stated as a result: "… that makes six GPU-days", "… so one third"
        names = {**FRACTIONS, **LARGER, **COUNTS}
        word = rf"(\b(?:{RESULT}) )({'|'.join(names)})\b"
        text = re.sub(word, lambda said: said[1] + _digit_of(said[2], names), text)
        return re.sub(rf"\b({'|'.join(FRACTIONS)})(?=[.!]?\s*$)", lambda said: FRACTIONS[said[1]], text)
    spelt = rf"\b({DIGIT}) point ((?:{DIGIT})(?: (?:{DIGIT}))*)\b"  # zero point five five
    text = re.sub(spelt, lambda said: COUNTS[said[1]] + "." + "".join(map(COUNTS.get, said[2].split())), text)
    words = FRACTIONS | LARGER | (COUNTS if len(text.split()) <= 4 else {})
    for word, value in words.items():
        text = re.sub(rf"\b{word}\b", value, text)
    return text


def _digit_of(word: str, names: dict[str, str]) -> str:
    return next(value for name, value in names.items() if re.fullmatch(name, word))


def stated(text: str) -> list[Value]:
    """Every number of a text, in order."""
    text = in_words(text.lower())
    for sign, python in SIGNS.items():
        text = re.sub(sign, python, text)
    found: list[Value] = []
    run: list[re.Match] = []
    words: list[str] = []
    reason = False
    for token in [*TOKEN.finditer(text), None]:
        number = token is not None and token[1]
        operator = token is not None and token[4]
        if run and not (operator or (number and run[-1][4])):
            for value in _values(run, text):
                value.before, words = words, []
                value.reason = reason and bool(found)
                found.append(value)
            run = []
        if number or operator:
            run.append(token)
        elif token is not None:
            opens = not words or words[-1] in ".;!?"  # "Given that b was drafted, it is …": the main clause follows
            words.append(token[0])
            reason = (reason or (token[0] in REASONS and not opens)) and token[0] not in ENDS_REASON
    for i, value in enumerate(found):
        _place(value, found[i + 1] if i + 1 < len(found) else None)
    _take_back(found)
    if found and LEAD.match(text):
        found[0].leads = not found[0].before
    return found


def _place(value: Value, after: Value | None) -> None:
    """What the words around a number make of it."""
    end = max((i + 1 for i, word in enumerate(value.before) if word in ".;"), default=0)
    near = value.before[end:][-6:]
    value.concludes = any(word in CONCLUDES for word in near)
    name = [word for word in near if word not in ("=", "size", "of", "is")][-1:]
    value.name = name[0] if name else ""
    value.given = value.name in PARAMETERS | CONDITIONS
    value.denied = bool(DENIES.search(" ".join(near)))
    if after is not None:
        value.working = LINKS.issuperset(after.before) and not CONCLUDES.isdisjoint(after.before)
        joint = [word for word in after.before if word in JOINTS or word not in (value.unit, ",")]
        if joint in (["or"], ["to"]) or (joint == ["and"] and "between" in near):
            value.either = after.either = True


def _take_back(found: Sequence[Value]) -> None:
    """Of "16, no, 33" and of "I said 16, but it is 33" the 16 is denied."""
    for i, value in enumerate(found):
        if not value.denied and CORRECTS.search(" ".join(value.before)):
            for old in found[:i]:
                old.denied = True
    meant = [value for value in found if not value.denied]
    recalled = [value for value in meant if RECALLS.search(" ".join(value.before))]
    for old in recalled if len(recalled) < len(meant) else ():
        old.denied = True


def _values(run: Sequence[re.Match], text: str) -> list[Value]:
    """The value of a run of numbers and signs; of 3-4 both; nothing where it makes no sense."""
    while run and (run[-1][4] not in (None, ")") or (run[-1][4] == ")" and _open(run) < 0)):
        run = run[:-1]
    while run and (
        run[0][4] in ("*", "/", "+", ")", "**")
        or (run[0][4] == "(" and _open(run) > 0)
        or (run[0][4] == "-" and text[run[0].end() :][:1].isspace())
    ):
        run = run[1:]
    leaves = [Value(_digits(token[1]) / (100 if token[2] else 1), bool(token[2])) for token in run if token[1]]
    if not leaves:
        return []
    unit = re.match(r"\s?([^\W\d_]+)", text[run[-1].end() :])
    signs = [token[4] for token in run if token[4]]
    tight = text[run[0].start() : run[-1].end()].count(" ") == 0
    if signs == ["-"] and tight and len(leaves) == 2 and leaves[0].value < leaves[1].value:
        for leaf in leaves:
            leaf.either = True
    elif signs:
        python = "".join(token[4] or repr(_digits(token[1]) / (100 if token[2] else 1)) for token in run)
        try:
            value = float(evaluate(python))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            return []
        leaves = [Value(value, any(leaf.percent for leaf in leaves), leaves=tuple(leaf.value for leaf in leaves))]
    leaves[-1].unit = UNITS.get(unit[1], unit[1]) if unit else ""
    return leaves


def _open(run: Sequence[re.Match]) -> int:
    return sum({"(": 1, ")": -1}.get(token[4], 0) for token in run)


def _digits(text: str) -> float:
    """14,950 and 1 000 have thousands; 2,77 has a decimal comma; 1.000,5 has both."""
    if re.match(r"[1-9]\d{0,2}(\.\d{3})+,", text):
        text = text.replace(".", "")
    if re.fullmatch(r"[1-9]\d{0,2}([, ]\d{3})+(\.\d+)?(e[+-]?\d+)?", text):
        return float(re.sub("[, ]", "", text))
    return float(text.replace(",", "."))
