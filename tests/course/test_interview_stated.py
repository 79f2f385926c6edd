"""Numbers as candidates state them: with the working, with a reason, in percent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants.patching import rewrite

from minispec_course.interview import stated
from minispec_course.interview.question import Number
from minispec_course.interview.stated import RIGHT, UNCLEAR, UNREAD, WRONG, asks_again, judge, numbers

# {x} is the number, {a} and {b} are what it was computed from: x = a / b.
FRAMES = (
    "{x}",
    "It is {x}.",
    "I get {a} / {b} = {x}",
    "{a} over {b}, so {x}",
    "{a} over {b} is {x}",
    "{a} / {b} → {x}",
    "about {x} tokens per cycle with k = 4",
    "It's {x}, because {a} was only the numerator",
    "The answer: {x}",
    "I would say roughly {x}, since only a has p above q.",
    "EAGLE-2 on an H100 gives {x}, if I am not mistaken.",
    "All of it goes to a, so {x} for a, none and 0 for the others",
    "sum of min(p, q) is {a} / {b} = {x} for α = 0.8",
)
FORMATS = {
    "plain": lambda x: f"{x:.4g}",
    "many digits": lambda x: f"{x:.9f}",
    "percent sign": lambda x: f"{100 * x:.4g}%",
    "in words": lambda x: f"{100 * x:.4g} percent",
    "two words": lambda x: f"{100 * x:.4g} per cent",
    "decimal comma": lambda x: f"{x:.4f}".replace(".", ","),
    "power of ten": lambda x: f"{1000 * x:.4g}e-3",
    "fraction": lambda x: f"{round(1000 * x)}/1000",
    "sum": lambda x: f"{x / 2:.6f} + {x / 2:.6f}",
    "product": lambda x: f"{x / 4:.6f} × 4",
    "no zero": lambda x: f"{x:.4f}".removeprefix("0"),
}
HUNDREDTHS = st.integers(3, 97).map(lambda n: n / 100)


def number(value: float, unit: str = "") -> Number:
    return Number("a number", repr(value), value, 0.0, unit=unit)


@settings(max_examples=150, deadline=None)
@given(HUNDREDTHS, HUNDREDTHS, st.sampled_from(FRAMES), st.sampled_from(sorted(FORMATS)))
def check_frames(x, b, frame, name) -> None:
    """In every sentence and every way to write it the right number is right, and another one is wrong."""
    a, wanted, write = x * b, number(x), FORMATS[name]
    assert judge(wanted, frame.format(x=write(x), a=f"{a:.4f}", b=b)).verdict == RIGHT
    other = 1.3 * x if 1.3 * x < 1 else 0.7 * x
    assert judge(wanted, frame.format(x=write(other), a=f"{a:.4f}", b=b)).verdict == WRONG


@pytest.mark.slow
def test_the_right_number_is_right_and_another_one_is_wrong_in_every_sentence():
    check_frames()


@pytest.mark.parametrize(
    "text, value, unit",
    [
        ("Fifty-five percent accepted.", 0.55, ""),
        ("about fifty five percent of them", 55.0, "%"),
        ("twelve", 12.0, ""),
        ("zero point five five", 0.55, ""),
        ("It is a hundred.", 100.0, "ms"),
        ("82 percent gain", 1.82, "×"),
        ("so roughly 82% faster", 1.82, "×"),
        ("9 in 25", 0.36, ""),
        ("1.82 times", 1.82, "×"),
    ],
)
def test_spoken_numbers_and_gains_in_percent(text, value, unit):
    assert judge(number(value, unit), text).verdict == RIGHT
    assert judge(number(1.5 * value, unit), text).verdict == WRONG


def test_a_share_is_no_gain():
    assert judge(number(1.82, "×"), "82 percent of the time").verdict == WRONG
    assert judge(number(1.0), "one of them is not like the others, I think").verdict != RIGHT


REPORTED = [  # what candidates typed, and the number it was
    (0.7, "0.7, as I said; 0.3 is the complement."),
    (0.25, "0.25, the 0.05 was only the numerator"),
    (1.0, "One: max(p - q, 0) is 0.3 for a and zero for b and c, so normalised by 0.3 it is all on a."),
    (0.25, "0.05 over 0.2 is 0.25"),
    (0.85, "0.1 + 0.05 + 0.7 = 0.85"),
    (0.15, "15%"),
    (2 / 3, "2/3"),
    (0.2, "It's 0.2, because 0.1 + 0.15 times 2/3 is 0.1 + 0.1"),
    (0.1, "0.05 over 0.5, so 0.1"),
    (0.55, "sum of min(p, q) is 0.05 + 0.05 + 0.45 = 0.55"),
    (0.45, "45 percent"),
    (0.45, "0.45, no difference"),
    (1.0, "It is 1, since only a has p above q."),
    (0.2, "1 - 0.8 = 0.2"),
    (0.64, "64%"),
    (2.03, "2.03x"),
    (2.44, "about 2.44 tokens per cycle with k = 2"),
    (2.44 / 1.2, "2.44 / 1.2"),
    (4 / 7, "Right, 0.4 is drafted and accepted. Given that b was drafted it is p/q = 0.4/0.7 = 4/7, about 0.571."),
    (0.5, "p - q is 0.3 for a and 0 for b, that's one half for a"),
    (6, "ten times 0.6, that makes six GPU-days"),
    (4 / 7, "Since b is drafted with 0.7, it is 0.571"),
    (2.77, "so one of the 5 gives 2.77"),
    (1 / 3, "the 0.3 that is left goes to three tokens, each one third"),
]


def check_reported() -> None:
    assert [text for value, text in REPORTED if judge(number(value), text).verdict != RIGHT] == []


def test_what_two_candidates_typed():
    check_reported()


def check_other_verdicts() -> None:
    for text in ("", "no idea", "EAGLE-2 on an H100", "EAGLE-2", "1/0", "9**9**9**9", "not 0.3", "k is large"):
        assert judge(number(2.0), text).verdict == UNREAD, text
    for text in (
        "0.25 or 0.3",
        "0.3 or 0.25",
        "between 0.2 and 0.25",
        "It's 0.25, so the rest is 0.75",
        "0.2-0.25",
        "0.25 + 0.1",
    ):
        assert judge(number(0.25), text).verdict == UNCLEAR, text
    for text in ("it is not 0.25 but 0.3", "0.05 / 0.2 = 0.3", "I get 0.05 / 0.2 = 0.3", "25"):
        assert judge(number(0.25), text).verdict == WRONG, text


def test_what_cannot_be_read_or_is_unclear_is_asked_again_and_is_not_wrong():
    check_other_verdicts()
    assert "final" in asks_again(judge(number(0.25), "0.25 or 0.3"))
    assert "could not read" in asks_again(judge(number(0.25), "no idea"))
    assert asks_again(judge(number(0.25), "0.25")) == "" == asks_again(judge(number(0.25), "0.3"))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (320, "KiB", "320"),
        (320, "KiB", "so 0.3125 MiB"),
        (14950, "", "14,950 tokens"),
        (1000, "", "1 000"),
        (59, "%", "2.36/4 = 59 percent"),
        (59, "%", "0.59"),
        (16, "B", "16 billion"),
        (2.5, "ms", "about 2500 µs"),
        (2 / 3, "", "two thirds"),
        (0, "", "zero"),
        (-0.24, "", "minus 24 percent"),
        (4000, "", "4 thousand"),
    ],
)
def test_units_and_words(value, unit, text):
    assert judge(number(value, unit), text).verdict == RIGHT


# What is meant, what is taken back, the unit, the words: written before the code that reads them.
CORRECTED = [
    (33, 16, "GB", "16 GB, no, sorry, 33 GB"),
    (7.8, 20, "ms", "I said 20 but it is 7.8 ms"),
    (2.77, 5, "", "first 5 then no: 2.77"),
    (33, 16, "GB", "16 GB. Wait, 33 GB."),
    (33, 16, "GB", "16, I mean 33"),
    (33, 16, "GB", "16 GB... actually 33 GB"),
    (0.25, 0.2, "", "0.2, correction: 0.25"),
    (0.25, 0.2, "", "0.2 -> no, 0.25"),
    (2.77, 3.5, "", "3.5? no, 2.77"),
    (2.77, 3.5, "", "not 3.5, 2.77"),
    (2.77, 3.5, "", "2.77, not 3.5"),
    (2.77, 3.5, "", "2.77 rather than 3.5"),
    (2.77, 3.5, "", "2.77 instead of 3.5"),
    (2.77, 3.5, "", "3.5, scratch that, 2.77"),
    (2.77, 3.5, "", "3.5 hmm no that's with k = 5, with k = 4 it's 2.77"),
    (42, 21, "ms", "21 ms. Sorry, I forgot the factor of two: 42 ms."),
    (42, 21, "ms", "21 ms, times two because of bf16, so 42 ms"),
    (42, 21, "ms", "I had 21 before, now I get 42"),
    (42, 21, "ms", "earlier I said 21 ms, that was wrong, 42 ms"),
    (42, 21, "ms", "42 ms, I said 21 by mistake"),
    (42, 21, "ms", "42 ms (not 21)"),
    (42, 21, "ms", "21... make that 42 ms"),
    (42, 21, "ms", "21 or rather 42 ms"),
    (42, 21, "ms", "21 ms, no wait, 42"),
    (42, 21, "ms", "oops, 42 ms, I read 21 off the wrong line"),
    (59, 64, "%", "0.64, let me recompute, 59 %"),
    (59, 64, "%", "64 percent. No. 59 percent."),
    (59, 64, "%", "64%, well, more like 59%"),
    (320, 160, "KiB", "160 KiB, ah, keys and values, so 320 KiB"),
    (320, 160, "KiB", "160 KiB — times two for keys and values — 320 KiB"),
    (320, 160, "KiB", "160, sorry 320"),
    (14950, 15900, "", "15,900, no 14,950 tokens"),
    (1.8, 2, "×", "Two times. Hmm, 1.8 times rather."),
    (1 / 3, None, "", "about a third"),
    (30, None, "", "roughly 30-ish"),
    (33, None, "GB", "32.8, call it 33"),
    (33, None, "GB", "32.8 GB, so let's say 33"),
    (0.5, 0.25, "", "a quarter, no, half"),
    (5, None, "ms", "4.8, round it to 5 ms"),
    (1 / 3, 0.3, "", "I'd say a bit over 0.3, so one third"),
    (12, 16, "GB", "twelve GB, not sixteen"),
    (1.5, 2, "s", "It was 2 s in my head, but the overlap hides half a second, so 1.5 s"),
]


def check_corrections() -> None:
    """Of a reply that corrects itself the last word counts, and what was taken back is not right."""
    wrong = [text for value, _, unit, text in CORRECTED if judge(number(value, unit), text).verdict != RIGHT]
    wrong += [text for _, old, unit, text in CORRECTED if old and judge(number(old, unit), text).verdict == RIGHT]
    assert wrong == []


def test_a_reply_that_corrects_itself_is_read_as_its_last_word():
    check_corrections()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (33, "33 GB, no doubt; 80 would be more than enough"),
        (33, "It is 33 GB. No more than 2 requests fit."),
        (33, "As I said 33 GB, and the card has 80"),
        (0.7, "0.7, as I said; 0.3 is the complement."),
        (33, "33 GB, which is actually small"),
        (5, "I had 16 GB over 3.35 TB/s, so 5 ms"),
    ],
)
def test_what_sounds_like_a_correction_and_is_none(value, text):
    assert judge(number(value), text).verdict in (RIGHT, UNCLEAR)


def test_one_definition_of_a_number_and_its_unit():
    text = "16 GB over 3.35 TB/s is about 5 milliseconds, 59 per cent of 2,77 seconds; 14,950 tokens, 2x on EAGLE-2"
    assert numbers(text) == [(16, "gb"), (3.35, "tb/s"), (5, "ms"), (59, "%"), (2.77, "s"), (14950, "tokens"), (2, "×")]
    assert {value.unit for value in stated.stated(text)} >= {"gb", "ms", "s", "tokens"}


MUTANTS = [
    (stated, "judge", "if not value.working", "", check_other_verdicts),
    (stated, "judge", "(final, last)", "(last,)", check_frames),
    (stated, "judge", "(final, last)", "found", check_other_verdicts),
    (stated, "judge", "if not value.reason", "", check_frames),
    (stated, "judge", "if not value.given", "", check_reported),
    (stated, "judge", "(same or not value.either)", "True", check_other_verdicts),
    (stated, "judge", "UNCLEAR if unclear else WRONG", "WRONG", check_other_verdicts),
    (stated, "stated", "    _take_back(found)\n", "", check_corrections),
    (stated, "_take_back", "len(recalled) < len(meant)", "False", check_corrections),
    (stated, "stated", "in REASONS and not opens", "in REASONS", check_reported),
    (stated, "in_words", "said[1] + _digit_of(said[2], names), text)", "said[0], text)", check_reported),
    (stated, "in_words", "FRACTIONS[said[1]], text)", "said[0], text)", check_reported),
    (stated, "stated", "in_words(text.lower())", "text.lower().replace('percent', '')", check_reported),
]


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "old", "new", "check"), MUTANTS)
def test_the_checks_see_what_they_are_for(owner, name, old, new, check, monkeypatch):
    rewrite(monkeypatch, owner, name, old, new)
    monkeypatch.setitem(globals(), "judge", stated.judge)
    with pytest.raises(AssertionError):
        check()
