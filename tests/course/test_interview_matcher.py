"""The matcher: what it finds, and how often it is wrong: on labelled answers, on what candidates typed, on the opposite
of it, and on answers to something else."""

from __future__ import annotations

import random
import re
import sys
import zlib
from pathlib import Path

import pytest
import yaml
from interview_answers import CANDIDATES, EARNED, OPPOSITES, Typed
from mutants.patching import rewrite

from minispec_course.interview import evidence, load, matcher, vocabulary
from minispec_course.interview.drill import FOLLOW_UP, PUSH_BACK, RAISES, SINKS, Box
from minispec_course.interview.evidence import graded, heard, refusal, suggest
from minispec_course.interview.matcher import (
    Match,
    find,
    match_boxes,
    plainly,
    sentences,
    suggestions,
    supports,
    terms,
    was_said,
)
from minispec_course.interview.question import LEVELS
from minispec_course.interview.questions import FOLDER
from minispec_course.interview.rounds import Reply, Turn, grading
from minispec_course.interview.vocabulary import SYNONYMS, claim, key_words, occurrences

BANK = load()
IRRELEVANT = (
    "I had a long breakfast this morning and the weather was rather nice.",
    "My team shipped a web shop last year. We used Python and had many meetings about priorities, and the customers "
    "were happy in the end.",
    "I would measure it first. It depends on the workload and the batch size. I would look at the numbers and then "
    "decide.",
    "That is a good question. I think the main point is that everything has trade-offs, and one has to know the costs "
    "before one decides anything.",
)
# Which points the spoken answer of the bank makes, judged by reading it: y or n for each point of L4, L5 and L6. Most
# L6 points go beyond what is said in ninety words. The matcher was set up with the first list in view, and without
# the second.
SEEN = """\
break-even yyn yyn yyn
tensor-parallelism yyy yyy ynn
medusa-cost yyy yyy nyn
exact-or-approximate yyn nyy nyn
explain-to-a-manager yyy yyy nnn
win-or-hurt yyy yyy ynn
preemption yyy ynn ynn
design-moe-mtp yyn yyn nny
accepted-tokens-law yyy yyy ynn
design-on-device yyy yny yny
typical-acceptance yyy yyy nnn
symmetric-quantisation yyy yyy nnn
rolled-back yyy yyy nnn
tree-verification nnn yyy nnn
copy-on-write yyy ynn ynn
lookahead-slots yyy yny nnn
medusa-eagle-dflash yyy yny nnn
multi-lora yyy yyy nyn
expert-parallelism yyy yyy nnn
training-time-test yyy yyy nny
speedup-formula nyn yyy ynn
speculation-in-rl yyy yyy nnn
forbidden-draft-tokens yyy yyy yyn
block-verification yyy yyy nnn
shifted-eagle yyn yyn yyn
step-level-speculation yyy yyn nnn
what-happens-on-rejection yyy yny yyn
verify-cost yny nyy nnn
verify-in-one-pass yyn yyy nnn
"""
UNSEEN = """\
continuous-batching yyy ynn nnn
nvfp4-bytes yyy yyn nnn
prefix-hits-without-hidden-states yyy yyn yny
which-parallelism yyy yyy nnn
drop-unlikely-drafts yyy yyy nyn
mtp-what yyy yyy nnn
retokenised-drafts yyn yyy nnn
thinking-and-k yyy yyy ynn
long-context-verification yyy yyy ynn
bonus-token yyy nny nyn
train-past-optimal yyn yyn ynn
fp8-target yyy yyy nyn
which-acceptance yyn yyy nnn
kv-rewind yyy ynn nnn
"""


def test_a_point_is_found_by_its_terms_its_names_and_its_numbers():
    point = "Decode is memory-bound: every step reads all parameters"
    match = find(point, "Well. The step is limited by bandwidth, since it reads the weights each time.")
    assert match.suggested and "limited by bandwidth" in match.quote and "Well" not in match.quote
    assert not find(point, IRRELEVANT[0]).suggested and find(point, "").quote == ""
    assert find("Says that the cache takes 320 KiB per token", "The cache takes 325 KiB for each token.").suggested
    assert not find("Says that the cache takes 320 KiB per token", "The cache takes 32 KiB for each token.").suggested
    assert not find("Says that the cache takes 320 KiB per token", "The cache takes 320 GB for each token.").suggested
    assert "bandwidth" not in match.missing and match.reason.startswith("found: ")
    assert "parameters (your “weights”)" in match.found  # the candidate's own words


def test_a_verb_that_tells_what_to_do_is_not_looked_for():
    assert set(terms(claim("Compares the cache with the weights"))) == set(terms("the cache and the weights"))
    point = "Computes the size of the cache"
    assert find(point, "The size of the cache is 16 GB.").share == 1 > find(point, "The cache has a size.").share
    assert claim("Computes both cases") == "Computes both cases"  # nothing would be left


def test_an_abbreviation_ends_no_sentence():
    assert sentences("Small batches, e.g. one, i.e. chat. Then more; and so on.") == [
        "Small batches, e.g. one, i.e. chat.",
        "Then more;",
        "and so on.",
    ]


def test_names_of_versions_are_no_numbers():
    assert matcher.numbers("EAGLE-2 and EAGLE-3 on an H100 reach 59 percent") == [(59.0, "%")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("effect", "effective"),
        ("pay", "paying"),
        ("store", "saves"),
        ("low", "large"),
        ("change", "differs"),
        ("depends", "conditions"),
    ],
)
def test_words_that_are_not_one(one, other):
    assert set(key_words(one)) != set(key_words(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("verify", "verification"),
        ("quantised", "quantization"),
        ("dropping", "drops"),
        ("a dictionary", "a dict"),
        ("lower bound", "floor"),
        ("switching off", "down to zero"),
        ("ridge point", "knee"),
        ("mean", "average"),
        ("raise k", "longer drafts"),
        ("shrink k", "shortens k"),
        ("plant bugs", "mutants"),
        ("16 over 4", "divides"),
        ("a part of the traffic", "a canary"),
        ("multiplies", "0.9*0.7"),
        ("utilisation", "occupancy"),
    ],
)
def test_words_that_are_one(one, other):
    assert set(key_words(one)) & set(key_words(other))


def test_names_of_one_thing_are_in_the_glossary():
    glossary = (FOLDER.parents[2] / "docs/glossary.md").read_text(encoding="utf-8").lower()
    known = [group for group in SYNONYMS if any(name in glossary for name in group)]
    assert len(known) >= 0.9 * len(SYNONYMS)


# ---------------------------------------------------------------- how often it is wrong


def labelled(*lists: str):
    """(level, whether it was said, whether it is suggested) of every point that has a label."""
    for line in "".join(lists).splitlines():
        id, *marks = line.split()
        question = BANK[id]
        assert [len(each) for each in marks] == [len(question.level(level)) for level in LEVELS], id
        found = suggestions([point for _, point in question.points], question.spoken)
        for (level, _), mark, match in zip(question.points, "".join(marks), found, strict=True):
            yield level, mark == "y", match.suggested


def share(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def check_what_was_said_is_suggested() -> None:
    """Three quarters of it; and a third of what was not, because the words of a question keep coming back."""
    for lists in ((SEEN,), (UNSEEN,)):
        points = list(labelled(*lists))
        assert share(suggested for _, said, suggested in points if said) >= 0.70
        assert share(suggested for _, said, suggested in points if not said) <= 0.33
    points = list(labelled(SEEN, UNSEEN))
    for level in LEVELS:
        assert share(suggested for name, said, suggested in points if said and name == level) >= 0.65, level


def check_answers_to_something_else_suggest_little() -> None:
    dice, questions, others = random.Random(0), list(BANK.values()), []
    for question in questions:
        points = [point for _, point in question.points]
        for stranger in dice.sample([q for q in questions if q.topic != question.topic], 2):
            others += [match.suggested for match in suggestions(points, stranger.spoken)]
    assert share(others) <= 0.05


def boxes_of(typed: Typed) -> list[tuple[Box, str, str]]:
    """(line of the rubric, its mark, what was typed for it)."""
    question = BANK[typed.question]
    asked = [Box(FOLLOW_UP, f"{each.question} → {each.short}") for each in question.follow_ups[:1]]
    asked += [Box(PUSH_BACK, f"{each.says} → {each.reply}") for each in question.push_backs]
    groups = (
        [Box(level, point) for level, point in question.points],
        asked[: len(typed.replies)],
        [Box(RAISES, tell) for tell in question.raises],
        [Box(SINKS, tell) for tell in question.sinks],
    )
    everything = "\n".join(filter(None, [typed.opening, *typed.replies]))
    found = []
    for boxes, marks in zip(groups, typed.marks.replace(" ", "").split("/"), strict=True):
        texts = typed.replies if boxes is groups[1] else [everything] * len(boxes)
        found += zip(boxes, marks.ljust(len(boxes), "-"), texts, strict=False)
    return found


def typed(*answers: Typed):
    """(group, mark, match) of every line."""
    for answer in answers:
        boxes, marks, texts = zip(*boxes_of(answer), strict=True)
        strict = [i for i, box in enumerate(boxes) if box.group == SINKS]
        found = match_boxes([box.text for box in boxes], texts, strict)
        yield from zip([box.group for box in boxes], marks, found, strict=True)


def check_what_candidates_said_is_suggested() -> None:
    """Nearly four fifths, of what was not said a tenth; and hardly any of it is taken for the opposite."""
    found = [(mark, match) for group, mark, match in typed(*CANDIDATES) if group != SINKS]
    assert share(match.suggested for mark, match in found if mark == "y") >= 0.78
    assert share(match.suggested for mark, match in found if mark == "n") <= 0.10
    assert share(match.opposite for mark, match in found) <= 0.04


def check_the_opposite_is_not_suggested() -> None:
    """What was said with the opposite meaning: two in 23 at most, and most of them are named as the opposite."""
    found = [match for group, mark, match in typed(*OPPOSITES) if mark == "x"]
    assert share(match.suggested for match in found) <= 0.1
    assert share(match.opposite for match in found) >= 0.4


def denials(point: str) -> list[str]:
    """A point said with the opposite meaning, in two ways."""
    claim = re.sub(r"^(?:Knows|Says|Explains|Points out|Notes|Sees|Argues|States|Concludes)(?: that)? ", "", point)
    claim = claim[0].lower() + claim[1:]
    return [f"It is not true that {claim}.", f"I would never say that {claim}."]


def check_what_is_denied_is_not_suggested() -> None:
    """Points of the bank that deny nothing themselves, of every eighth question."""
    found = []
    for question in list(BANK.values())[::8]:
        points = [point for _, point in question.points]
        for i, point in enumerate(points):
            if not any(word.denied or word.denied is None or word.undone for word in occurrences(point)):
                found += [suggestions(points, text)[i].suggested for text in denials(point)]
    assert len(found) > 150 and share(found) <= 0.05


def check_what_sinks_is_suggested_only_if_it_was_said() -> None:
    good = []
    for question in BANK.values():
        points = [point for _, point in question.points] + list(question.sinks)
        strict = range(len(question.points), len(points))
        good += [match.suggested for match in match_boxes(points, [question.spoken] * len(points), strict)[strict[0] :]]
        for sink in question.sinks:
            assert match_boxes([*points, sink], [sink] * (len(points) + 1), [len(points)])[-1].suggested, sink
    assert share(good) <= 0.12  # of good answers, which use the same words
    found = [(mark, match.suggested) for group, mark, match in typed(*CANDIDATES, *OPPOSITES) if group == SINKS]
    assert all(suggested for mark, suggested in found if mark == "y")
    assert not any(suggested for mark, suggested in found if mark == "n")


def check_push_backs_are_found_in_their_own_reply() -> None:
    own, others = [], []
    for question in BANK.values():
        first, second, *_ = question.push_backs
        lines = [point for _, point in question.points] + [f"{each.says} → {each.reply}" for each in (first, second)]
        said = [question.spoken] * len(question.points)
        own += [match.suggested for match in match_boxes(lines, [*said, first.reply, second.reply])[-2:]]
        others += [match.suggested for match in match_boxes(lines, [*said, second.reply, first.reply])[-2:]]
    assert share(own) >= 0.95 and share(others) <= 0.06


def check_the_sentence_that_earned_it_is_quoted() -> None:
    """For seven points in ten; for 17 in 20 of those that a debrief calls strengths (measured: 32 of 40, 20 of 22)."""
    found = []
    for answer in CANDIDATES:
        for (box, *_), (_, _, match) in zip(boxes_of(answer), typed(answer), strict=True):
            for start, words in EARNED.get(answer.question, {}).items():
                if box.text.startswith(start) and match.suggested:
                    earned = any(each in match.quote for each in ([words] if isinstance(words, str) else words))
                    found.append((earned, plainly(box.text, match.quote) >= evidence.PLAIN))
    assert len(found) >= 40 and share(earned for earned, _ in found) >= 0.7
    assert share(earned for earned, plain in found if plain) >= 0.85 and sum(plain for _, plain in found) >= 15


def spoken(*kinds: str, held_out: bool) -> list[tuple[str, list[str], Match]]:
    """(mark, the sentences that make the line, match) of what interview_spoken.yaml says of points and raises."""
    entries = yaml.safe_load((Path(__file__).parent / "interview_spoken.yaml").read_text(encoding="utf-8"))
    found = []
    for entry in entries[held_out::2]:
        question = BANK[entry["question"]]
        lines = [*(point for _, point in question.points), *question.raises]
        if zlib.crc32("\n".join(lines).encode()) != entry["rubric"]:
            continue
        lines += question.sinks
        for kind in kinds:
            marks = re.findall(r"(\d+)([yp])([\d+]+)", entry["made" if kind == "honest" else "made_thin"])
            made = {int(line): (mark, [int(n) for n in where.split("+")]) for line, mark, where in marks}
            told, sinks = sentences(entry[kind]), range(len(lines) - len(question.sinks), len(lines))
            for i, match in enumerate(match_boxes(lines, [entry[kind]] * len(lines), sinks)[: sinks[0]], start=1):
                mark, where = made.get(i, ("n", []))
                found.append((mark, [told[n - 1] for n in where], match))
    return found


def check_spoken_answers() -> None:
    """Measured when it was written, held out: of what is suggested 0.69 is made and 0.77 at least in part (before:
    0.58 and 0.70), of what is made 0.63 is suggested (0.60), with the right sentence in 0.79 (0.62); of what is
    suggested firmly 0.78 is made."""
    found = spoken("honest", "thin", held_out=True)
    suggested = [(mark, where, match) for mark, where, match in found if match.suggested]
    assert share(mark == "y" for mark, *_ in suggested) >= 0.65
    assert share(mark != "n" for mark, *_ in suggested) >= 0.74
    assert share(match.suggested for mark, _, match in found if mark == "y") >= 0.6
    assert share(match.quote in where for mark, where, match in suggested if mark == "y") >= 0.75
    firm = [mark for mark, _, match in suggested if match.firm]
    assert share(mark == "y" for mark in firm) >= 0.74 and len(firm) >= 0.6 * len(suggested)


def check_thin_answers_suggest_little() -> None:
    """Those which repeat the question and make few points: one line in twenty."""
    found = spoken("thin", held_out=False) + spoken("thin", held_out=True)
    assert share(match.suggested for mark, _, match in found if mark == "n") <= 0.05


def test_the_spoken_answers_are_still_those_that_were_judged():
    assert len(spoken("honest", held_out=False)) + len(spoken("honest", held_out=True)) >= 100


NEW_CHECKS = (
    check_spoken_answers,
    check_thin_answers_suggest_little,
    check_the_sentence_that_earned_it_is_quoted,
    check_what_candidates_said_is_suggested,
    check_the_opposite_is_not_suggested,
    check_what_is_denied_is_not_suggested,
    check_what_sinks_is_suggested_only_if_it_was_said,
    check_push_backs_are_found_in_their_own_reply,
)


@pytest.mark.slow
@pytest.mark.parametrize("check", NEW_CHECKS)
def test_measured(check):
    check()


def clear() -> None:
    vocabulary.occurrences.cache_clear()
    matcher.terms.cache_clear()
    matcher._answers_with.cache_clear()


def test_what_was_said_is_suggested():
    check_what_was_said_is_suggested()


@pytest.mark.slow
def test_answers_to_something_else_suggest_little():
    check_answers_to_something_else_suggest_little()


@pytest.mark.slow
def test_irrelevant_words_suggest_nothing():
    points = [[point for _, point in question.points] for question in BANK.values()]
    nothing, *talk = IRRELEVANT
    assert not any(match.suggested for some in points for match in suggestions(some, nothing))
    assert not any(supports(point, nothing) for some in points for point in some)
    for text in talk:  # empty words, some of which stand in rubrics too ("measures it", "names the cost")
        assert share(match.suggested for some in points for match in suggestions(some, text)) <= 0.02, text
        assert share(supports(point, text) for some in points for point in some) <= 0.02, text


@pytest.mark.slow
def test_what_is_suggested_and_confirmed_is_shown():
    """Or it is counted as a sentence that has earned two points already: no suggestion is lost without a word."""
    for question in BANK.values():
        turn = grading(question, [], [question.spoken])
        ticks = {i: match.quote for i, match in enumerate(suggest(turn)) if match.suggested}
        found = graded(turn, Reply(ticks=ticks))
        assert not found.claimed and not found.refused and len(found.shown) + len(found.empty) == len(ticks)
        assert f"Ticked: {len(ticks)}." in found.tally() or not ticks


def test_a_quote_is_one_sentence_of_the_answer():
    for question in BANK.values():
        points = [point for _, point in question.points]
        own = sentences(question.spoken)
        assert all(match.quote in own for match in suggestions(points, question.spoken) if match.suggested)


def test_a_reply_to_a_push_back_is_not_found_in_the_push_back():
    [match] = suggestions(
        ["We measured the opposite at batch 256. → Then v has risen above two"],
        "You measured the opposite at batch 256, I see.",
    )
    assert not match.suggested and "opposite" not in match.found


def check_each_reply_has_its_own_words() -> None:
    """A push-back is looked for in the reply to it, with what was gone into after it, and nowhere else."""
    question = BANK["which-acceptance"]
    push_back = question.push_backs[0]
    box = Box(PUSH_BACK, f"{push_back.says} → {push_back.reply}")
    opening = (question.spoken + " " + push_back.reply, "ask", question.question)
    for reply in ("I would rather talk about the weather of last week.", ""):
        said = [opening, (reply, "push-back", f"Well. {push_back.says}"), ("More of it.", "answer", "You decide.")]
        turn = grading(question, [box], [text for text, *_ in said])
        entries = [("concept", Turn(kind, says, question=question.id), Reply(text), 0.0) for text, kind, says in said]
        at = turn.boxes.index(box)
        assert heard(turn, entries)[at] == f"{reply}\nMore of it.".strip() and heard(turn, entries)[0] == turn.heard
        assert not suggest(turn, entries)[at].suggested and suggest(turn)[at].suggested
        assert "not in reply" in refusal(turn, at, sentences(push_back.reply)[0], entries)


def test_each_reply_has_its_own_words():
    check_each_reply_has_its_own_words()


def test_words_that_were_not_typed_are_refused():
    typed = "I would ship it behind a flag, and watch the acceptance by tenant and language."
    turn = grading(BANK["rollout"], [], [typed])
    for phrase in (
        "watch the acceptance by tenant",
        "Behind a FLAG — and watch",
        "I would ship it … watch the acceptance",
    ):
        assert was_said(phrase, typed) and refusal(turn, 0, phrase) == "", phrase
    for phrase in ("I would roll it out to a small part of the traffic first", "tenant language acceptance flag ship"):
        assert not was_said(phrase, typed) and "do not find" in refusal(turn, 0, phrase), phrase
        assert list(graded(turn, Reply(ticks={0: phrase})).refused) == [0]


MUTANTS = [
    (matcher, "match_boxes", "SHARE_IF_DENSE if dense else SHARE", "SHARE", check_what_was_said_is_suggested),
    (matcher, "match_boxes", ">= DENSE", ">= 0", check_answers_to_something_else_suggest_little),
    (matcher, "match_boxes", ">= DENSE", ">= 0", check_thin_answers_suggest_little),
    (matcher, "find", "len(missing) <= 1", "True", check_spoken_answers),
    (vocabulary, "_polarity", "STANDS_FOR.get(each, each)", "each", check_what_was_said_is_suggested),
    (vocabulary, "_polarity", "denied or whole or lacking > 0", "False", check_the_opposite_is_not_suggested),
    (vocabulary, "_polarity", "denied or whole or lacking > 0", "False", check_what_is_denied_is_not_suggested),
    (matcher, "find", "and not best.is_denied(tolerated)", "", check_the_opposite_is_not_suggested),
    (
        matcher,
        "match_boxes",
        "SHARE_OF_SINK if i in strict else share",
        "share",
        check_what_sinks_is_suggested_only_if_it_was_said,
    ),
    (matcher, "match_boxes", "least, held_by,", "least, None,", check_what_candidates_said_is_suggested),
    (evidence, "heard", "if box.group in (FOLLOW_UP, PUSH_BACK)", "if False", check_each_reply_has_its_own_words),
    (matcher, "plainly", "wanted.look(phrase).score", "wanted.most", check_the_sentence_that_earned_it_is_quoted),
    (
        matcher,
        "find",
        "key=lambda each: wanted.look(each).score",
        "key=lambda each: -wanted.look(each).score",
        check_the_sentence_that_earned_it_is_quoted,
    ),
    (matcher, "weight", "if used[term] < 2:", "if True:", check_what_was_said_is_suggested),
]


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "old", "new", "check"), MUTANTS)
def test_the_checks_see_what_they_are_for(owner, name, old, new, check, monkeypatch):
    rewrite(monkeypatch, owner, name, old, new)
    for each in (
        "suggestions",
        "key_words",
        "occurrences",
        "match_boxes",
        "heard",
        "plainly",
    ):  # names that were imported
        here = sys.modules[__name__]
        for module, home in ((matcher, vocabulary), (evidence, matcher), (here, matcher), (here, evidence)):
            if hasattr(module, each) and hasattr(home, each):
                monkeypatch.setattr(module, each, getattr(home, each))
    clear()
    with pytest.raises(AssertionError):
        check()
    monkeypatch.undo()
    clear()
