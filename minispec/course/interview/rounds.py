"""What an interviewer says: each part of a round is a script that yields turns and is sent the replies.

    reply = yield Turn("ask", question.question)          # what comes next may depend on it

A script uses no random numbers and looks at no clock, so the same replies lead to the same turns. That is how an
interview is kept: as its replies (mock_interview.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from .arithmetic import worked
from .coding import TASKS, minutes_of, title_of
from .derivations import DERIVATIONS, Derivation
from .drill import FOLLOW_UP, PUSH_BACK, RAISES, SINKS, Box, Figure
from .matcher import find, numbers, suggestions
from .question import LEVELS, Number, Question
from .stated import asks_again, judge
from .summary import ROOT, digits

WORDS, NUMBER, CODE, GRADES, NOTHING = "words", "number", "code", "grades", "nothing"  # what a turn waits for
ROUNDS = {"concept": 45, "design": 60, "coding": 60, "experience": 45}  # minutes
FORMATS = {**{name: (name,) for name in ROUNDS}, "loop": ("coding", "concept", "design", "experience")}
TITLES = {"L4": "mid-level (L4)", "L5": "senior (L5)", "L6": "staff (L6)"}
KINDS = {  # which questions of the bank a round asks: one of each tuple
    "concept": (("concept",), ("debugging",), ("estimation", "derivation")),
    "design": (("design",),),
    "coding": (("coding",),),
    "experience": (("behavioural",), ("debugging", "design")),
}
FIRST_HELP = {
    "concept": "Which resource is short here, and what follows from that?",
    "debugging": "What would you look at first, and what would it tell you?",
    "coding": "What do you keep between two steps, and what does one step cost?",
    "behavioural": "Tell me about one case: what did you expect, and what happened?",
}
SHORT = 12  # words: an answer below this is helped along


@dataclass(frozen=True)
class Turn:
    """Something the interviewer says, and what it waits for."""

    kind: str  # open, ask, probe, follow-up, push-back, change, board, number, code, grade, close
    says: str
    expects: str = WORDS
    question: str = ""  # of the bank
    number: Number | None = None
    exercise: str = ""
    boxes: tuple[Box, ...] = ()  # of a grading
    heard: str = ""  # what the candidate has typed on this question so far


@dataclass(frozen=True)
class Reply:
    """What came back."""

    text: str = ""
    ticks: Mapping[int, str] = field(default_factory=dict)  # box → the words that earn it
    outcome: str = ""  # of code
    skipped: bool = False


Script = Generator[Turn, Reply, None]


def open_round(name: str, level: str, minutes: int) -> Script:
    what = {
        "concept": "I will ask about how inference works, then we derive something together.",
        "design": "We will design one system. Ask what you need, think aloud, and put numbers on it.",
        "coding": "You will write one function, and then we talk about what it costs and how it grows.",
        "experience": "I would like to hear about work you have done, and how you decide.",
    }[name]
    yield Turn("open", f"Hello, and thank you for coming. This is the {name} round for a {TITLES[level]} position; we "
               f"have {minutes} minutes. {what} The clock starts when you are ready.", NOTHING)  # fmt: skip


def talk(question: Question, level: str) -> Script:
    """A question, a probe where the answer is thin, a follow-up, push-backs; then the rubric."""
    asked: list[Box] = []
    said = yield from _first_answer(question, level)
    for follow_up in question.follow_ups[:1]:
        reply = yield Turn("follow-up", follow_up.question, question=question.id)
        asked.append(Box(FOLLOW_UP, f"{follow_up.question} → {follow_up.short}"))
        said.append(reply.text)
    if question.case:
        said += yield from _change(question, said)
    for push_back in question.push_backs[: 1 if level == LEVELS[0] else 2]:
        reply = yield Turn("push-back", push_back.says, question=question.id)
        asked.append(Box(PUSH_BACK, f"{push_back.says} → {push_back.reply}"))
        said.append(reply.text)
    yield grading(question, asked, said)


def _first_answer(question: Question, level: str) -> Generator[Turn, Reply, list[str]]:
    said: list[str] = []
    case = question.case
    if case:
        facts = " ".join(f"{fact}." for fact in case.requirements)
        reply = yield Turn("ask", f"{question.question} {facts} What would you like to know before you begin?",
                           question=question.id)  # fmt: skip
        said.append(reply.text)
        for box in case.whiteboard:
            reply = yield Turn("board", f"On the whiteboard: {box}", question=question.id)
            said.append(reply.text)
        for number in question.numbers[:3]:
            yield from figure(number, question.id)
    else:
        reply = yield Turn("ask", question.question, question=question.id)
        said.append(reply.text)
    if probe := probing(question, level, " ".join(said)):
        reply = yield Turn("probe", probe, question=question.id)
        said.append(reply.text)
    return said


def probing(question: Question, level: str, answer: str) -> str:
    """What an interviewer asks who has not heard enough; "" if there was enough for this level."""
    if len(answer.split()) < SHORT:
        return f"Take your time. {FIRST_HELP.get(question.kind, FIRST_HELP['concept'])}"
    found = suggestions([point for _, point in question.points], answer)
    heard = Counter(level for (level, _), match in zip(question.points, found, strict=True) if match.suggested)
    if not heard["L4"] and not heard["L5"]:
        return "Let us go back a step. What happens, in order, from the beginning?"
    if question.numbers and not numbers(answer):
        return "Can you put a number on that? Say what you assume."
    if level != "L4" and not heard["L5"]:
        return "Why is that so? Take me through the mechanism."
    if level == "L6" and not heard["L6"]:
        return "When would you not do it, and what would tell you?"
    return ""


def _change(question: Question, said: Sequence[str]) -> Generator[Turn, Reply, list[str]]:
    """A requirement changes half-way: the one that the answer has not dealt with yet."""
    changes = question.case.changes
    unseen = [change for change in changes if not find(change, " ".join(said)).suggested] or list(changes)
    reply = yield Turn("change", f"One thing has changed since this morning. {unseen[0]}. What do you do differently?",
                       question=question.id)  # fmt: skip
    return [reply.text]


def grading(question: Question, asked: Sequence[Box], said: Sequence[str]) -> Turn:
    must = question.must_haves
    boxes = [Box(level, point, point in must) for level, point in question.points] + list(asked)
    boxes += [Box(RAISES, tell) for tell in question.raises] + [Box(SINKS, tell) for tell in question.sinks]
    return Turn("grade", "Let us stop the clock and look at the rubric. Which of these did you say, in which words?",
                GRADES, question.id, boxes=tuple(boxes), heard="\n".join(filter(None, said)))  # fmt: skip


def figure(number: Number, question: str = "") -> Script:
    """A number; a wrong one is corrected with the arithmetic, and the interview goes on from the right one."""
    reply = yield Turn("number", f"{Figure(number).asks[0]}", NUMBER, question, number)
    judged = judge(number, reply.text)
    if not reply.skipped and asks_again(judged):  # unread or unclear is not wrong
        reply = yield Turn("correction", asks_again(judged), NUMBER, question, number)
        judged = judge(number, reply.text)
    if not reply.skipped and not judged.right:
        said = "" if judged.value is None else f"I have something else than {digits(judged.value)}. "
        yield Turn(
            "correction",
            f"{said}{worked(number)}. Where did your calculation differ?",
            question=question,
            number=number,
        )


def derive(derivation: Derivation) -> Script:
    yield Turn("ask", f"Let us derive something. {derivation.given} How would you begin?", question=derivation.id)
    for number in derivation.steps:
        yield from figure(number)


def code(exercise: str, title: str, minutes: int, follow_ups: Sequence[tuple[str, str]]) -> Script:
    """A function to write, then what it costs and how it would grow."""
    reply = yield Turn("code", f"Please write this function: {title}. Take up to {minutes} minutes, and say what you "
                       "try before you type it.", CODE, exercise=exercise)  # fmt: skip
    if reply.outcome not in ("right", ""):
        yield Turn("probe", "Your tests do not all pass. Which input would you try first, and what do you expect?",
                   exercise=exercise)  # fmt: skip
    said, asked = [], []
    for question, answer in follow_ups:
        reply = yield Turn("follow-up", question, exercise=exercise)
        said.append(reply.text)
        asked.append(Box(FOLLOW_UP, f"{question} → {answer}"))
    yield Turn("grade", "Let us stop the clock. Which of these did you say, in which words?", GRADES,
               exercise=exercise, boxes=tuple(asked), heard="\n".join(filter(None, said)))  # fmt: skip


def close(last: bool) -> Script:
    yield Turn("close", "Thank you, that is our time. What would you like to ask me?")
    if not last:
        yield Turn("open", "Have a break. The clock stands still until you go on with the next round.", NOTHING)


# ---- choosing -------------------------------------------------------------------------------------------------------


def pools(bank: Mapping[str, Question], name: str) -> list[list[Question]]:
    """The questions that a round chooses from, one list for each question that it asks."""
    return [[q for q in bank.values() if q.kind in kinds] for kinds in KINDS[name]]


def parts_of(name: str, bank: Mapping[str, Question], level: str, dice: random.Random) -> list[Script]:
    """A round, part by part."""
    chosen = [dice.choice(pool) for pool in pools(bank, name) if pool]
    parts = [talk(question, level) for question in chosen]
    if name == "concept":
        parts.append(derive(dice.choice(DERIVATIONS)(dice)))
    if name == "coding" and (ROOT / "course/exercises").is_dir():  # an installed package has no exercises
        id = dice.choice(sorted(TASKS))
        parts.insert(0, code(id, title_of(id), minutes_of(id), TASKS[id]))
    return parts
