"""What an interviewer says: each part of a round is a script that yields turns and is sent the replies.

    reply = yield Turn("ask", question.question)          # what comes next may depend on it

A script uses no random numbers and looks at no clock, so the same replies lead to the same turns. That is how an
interview is kept: as its replies (mock_interview.py).
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .arithmetic import worked
from .coding import TASKS, minutes_of, task_of, title_of
from .derivations import Derivation, derivations_for
from .drill import FOLLOW_UP, PUSH_BACK, RAISES, SINKS, Box, Figure
from .matcher import find, sentences, terms
from .question import LEVELS, Case, Number, PushBack, Question
from .reactions import (
    ANSWERS,
    answer_at_the_end,
    answer_to,
    asks_back,
    doubt,
    gives_up,
    has_question,
    mistaken,
    probing,
)
from .stated import UNREAD, WRONG, asks_again, judge, numbers
from .summary import ROOT, digits

WORDS, NUMBER, CODE, GRADES, NOTHING = "words", "number", "code", "grades", "nothing"  # what a turn waits for
ALOUD, UNTOUCHED = "aloud", "untouched"  # replies to CODE that submit nothing: thinking aloud, an empty notebook
NOT_SUBMITTED = (ALOUD, UNTOUCHED)
ROUNDS = {"concept": 45, "design": 60, "coding": 60, "experience": 45}  # minutes
FORMATS = {**{name: (name,) for name in ROUNDS}, "loop": ("coding", "concept", "design", "experience")}
TITLES = {"L4": "mid-level (L4)", "L5": "senior (L5)", "L6": "staff (L6)"}
KINDS = {  # which questions of the bank a round asks: one of each tuple
    "concept": (("concept",), ("debugging",), ("estimation", "derivation")),
    "design": (("design",),),
    "coding": (("coding",),),
    "experience": (("behavioural",), ("debugging", "design")),
}
SETTINGS = ("design", "debugging")  # kinds of questions about a service, of which not all is known
QUESTIONS_BACK = 3  # that are answered before a question counts as the reply
SCOPING, BEGIN = "What would you like to know before you begin?", "Anything else, or shall we begin?"
DRAW = (
    "The whiteboard is yours: which parts, which numbers, which decisions? Type what you would write and say, in "
    "your order."
)
ELSE = "What else belongs on it?"
DEALT_WITH = 1 / 3  # of a heading's weight that a drawing holds
SCOPED = 2  # of the things in ANSWERS that are asked for, or assumed, before the facts are told
SCOPE = Box(
    FOLLOW_UP,
    f"{SCOPING} → Asks for, or assumes, at least {SCOPED} of these before they are told: "
    f"{', '.join(name for name, *_ in ANSWERS)}",
)


@dataclass(frozen=True)
class Turn:
    """Something the interviewer says, and what it waits for."""

    kind: str  # open, ask, answer, draw, board, number, probe, check, follow-up, push-back, change, code, grade, close
    says: str
    expects: str = WORDS
    question: str = ""  # of the bank
    number: Number | None = None
    exercise: str = ""
    boxes: tuple[Box, ...] = ()  # of a grading
    heard: str = ""  # what the candidate has typed on this question so far
    model: str = ""  # how we would begin, beside which the debrief shows the reply
    doubts: str = ""  # what sinks an answer and seems to have been said, where a check is about it
    shows: str = ""  # lines to be shown as they stand: the signature and an example of what is to be written


@dataclass(frozen=True)
class Reply:
    """What came back."""

    text: str = ""
    ticks: Mapping[int, str] = field(default_factory=dict)  # box → the words that earn it
    outcome: str = ""  # of code
    skipped: bool = False

    @property
    def given_up(self) -> bool:
        return self.skipped or gives_up(self.text)


Script = Generator[Turn, Reply, None]


def open_round(name: str, level: str, minutes: int) -> Script:
    what = {
        "concept": "I will ask about how inference works, then we derive something together.",
        "design": "We will design a system, then a part of one. Ask what you need, think aloud, and put numbers on it.",
        "coding": "You will write one function, and then we talk about what it costs and how it grows.",
        "experience": "I would like to hear about work you have done, and how you decide.",
    }[name]
    yield Turn(
        "open",
        f"Hello, and thank you for coming. This is the {name} round for a {TITLES[level]} position; we "
        f"have {minutes} minutes. {what} The clock starts when you are ready.",
        NOTHING,
    )


def put(
    turn: Turn, again: str = "", facts: Sequence[str] = (), scoping: bool = False
) -> Generator[Turn, Reply, list[Reply]]:
    """Say something and wait for a reply. A question back is answered, and ours stays open, in full or as `again`."""
    replies, says = [], again or turn.says
    for left in reversed(range(QUESTIONS_BACK + 1)):
        replies.append((yield turn))
        if not left or not asks_back(replies[-1].text):
            return replies
        new = [fact for fact in facts if fact not in turn.says] or facts  # what has just been told is not told again
        turn = replace(turn, kind="answer", says=f"{answer_to(replies[-1].text, new, scoping)} {says}")


class Conversation:
    """One question: what has been said on it so far, and what that leads to."""

    def __init__(self, question: Question, level: str) -> None:
        self.question, self.level = question, level
        self.said: list[str] = []
        self.asked: list[Box] = []
        self.lost = True  # nothing but "I don't know" so far
        self.doubted = False
        self.met: PushBack | None = None  # the objection that the change has already made
        self.before = ""  # said before the next question: an answer to what the candidate asked last

    @property
    def answer(self) -> str:
        return "\n".join(self.said)

    def put(self, kind: str, says: str, again: str = "", doubts: str = "") -> Generator[Turn, Reply, Reply]:
        turn = Turn(kind, f"{self.before}{says}", question=self.question.id, doubts=doubts)
        replies = yield from put(turn, again or says, *self.setting)
        self.before = answer_at_the_end(replies[-1].text, *self.setting)
        self.said += [reply.text for reply in replies]
        self.lost = self.lost and (replies[-1].given_up or not replies[-1].text)
        return replies[-1]

    @property
    def setting(self) -> tuple[Sequence[str], bool]:
        """The facts that can be asked for, and whether there is more to ask for than is known. Without a case they are
        what the question says."""
        scoping, case = self.question.kind in SETTINGS, self.question.case
        stated = [part.rstrip(".") for part in sentences(self.question.question) if not part.endswith("?")]
        return case.requirements if case else stated if scoping else (), scoping

    def first_answer(self) -> Script:
        question = self.question
        if question.case:
            reply = yield from self.drawing(question.case)
            for number in question.numbers[:3]:
                yield from figure(number, question.id)
        else:
            reply = yield from self.put("ask", question.question)
        if reply.skipped:
            return
        if probe := probing(question, self.level, self.answer):
            yield from self.put("probe", probe)
        else:
            numeric = question.kind in ("estimation", "derivation")
            wanted = [(number.computed, number.unit.lower()) for number in question.numbers] if numeric else []
            yield from self.doubt(self.answer, wanted)

    def drawing(self, case: Case) -> Generator[Turn, Reply, Reply]:
        """The candidate asks, then fills the whiteboard; only what is left out there is asked for by its heading."""
        yield from self.put("ask", f"{self.question.question} {SCOPING}", BEGIN)
        self.lost = True  # "No, let us begin" is no answer yet
        told = " ".join([*(answer_to(text, *self.setting) for text in self.said[:-1]), self.before])
        untold = [fact for fact in case.requirements if fact not in told]
        given = f"Let us take {'these' if untold[1:] else 'this'} as given: {'. '.join(untold)}. " if untold else ""
        drawn = yield from self.put("draw", f"{given}{DRAW}", DRAW)
        if drawn.text and not drawn.given_up:
            yield from self.put("draw", ELSE)
        for heading in (heading.partition(" (")[0] for heading in case.whiteboard):  # in brackets stand the numbers
            if not find(heading, self.answer, DEALT_WITH).suggested:
                reply = yield from self.put(
                    "board", f"I do not see this on the whiteboard yet: {heading}. What belongs there?"
                )
                if self.lost and reply.given_up:
                    break  # what is not known is not asked for six times
        return drawn

    def follow_up(self) -> Script:
        """The first one that has not been answered already."""
        for follow_up in self.question.follow_ups:
            if find(follow_up.short, self.answer).suggested:
                continue
            self.asked.append(Box(FOLLOW_UP, f"{follow_up.question} → {follow_up.short}"))
            reply = yield from self.put("follow-up", follow_up.question)
            yield from self.doubt(reply.text, numbers(follow_up.short), follow_up.question)
            return

    def doubt(self, reply: str, wanted: Sequence, says: str = "") -> Script:
        """A result or a statement that a good answer would not hold is gone through again, once in a question."""
        if not self.doubted and (asks := doubt(self.question, reply, wanted, f"{self.question.question} {says}")):
            self.doubted = True
            yield from self.put("check", asks, doubts=mistaken(self.question, reply)[0])

    def change(self) -> Script:
        """A requirement changes half-way: one that the answer has not dealt with yet, and to which we know a reply."""
        known = {}
        for change in self.question.case.changes:
            met = next((each for each in self.question.push_backs if repeats(each.says, change.says)), None)
            known[change.says] = change.reply or (met.reply if met else ""), met

        def order(says: str) -> tuple[bool, bool]:
            reply, _ = known[says]
            return find(reply or says, self.answer).suggested, not reply

        says = min(known, key=order)
        reply, self.met = known[says]
        if reply:
            self.asked.append(Box(PUSH_BACK, f"{says} → {reply}"))
        yield from self.put("change", f"One thing has changed since this morning. {says}. What do you do differently?")

    def push_back(self) -> Script:
        """Those first that have not been answered already."""
        left = [push_back for push_back in self.question.push_backs if push_back != self.met]
        dealt_with = {push_back.says: find(push_back.reply, self.answer).suggested for push_back in left}
        ordered = sorted(left, key=lambda push_back: dealt_with[push_back.says])
        for push_back in ordered[: 1 if self.level == LEVELS[0] else 2]:
            says = push_back.says
            if self.lost:
                says = f"Suppose a colleague has proposed a solution, and is told: “{says}” What would you reply?"
            elif dealt_with[push_back.says]:
                says = f"You have touched on this; I would like to hear more of it. {says}"
            self.asked.append(Box(PUSH_BACK, f"{push_back.says} → {push_back.reply}"))
            reply = yield from self.put("push-back", says)
            if self.lost and reply.given_up:
                return  # what is not known is not asked for three times


def repeats(one: str, other: str) -> bool:
    """Whether two sentences bring up the same thing: half of the key words of the shorter one."""
    fewest = min(len(terms(one)), len(terms(other)))
    return 0 < fewest <= 2 * len(terms(one).keys() & terms(other).keys())


def talk(question: Question, level: str) -> Script:
    """A question, a probe where the answer is thin, a follow-up, push-backs; then the rubric."""
    held = Conversation(question, level)
    yield from held.first_answer()
    yield from held.follow_up()
    if question.case:
        yield from held.change()
    yield from held.push_back()
    yield grading(question, [SCOPE] * bool(question.case) + held.asked, held.said)


def grading(question: Question, asked: Sequence[Box], said: Sequence[str]) -> Turn:
    must = question.must_haves
    boxes = [Box(level, point, point in must) for level, point in question.points] + list(asked)
    boxes += [Box(RAISES, tell) for tell in question.raises] + [Box(SINKS, tell) for tell in question.sinks]
    return Turn(
        "grade",
        "Let us stop the clock and look at the rubric. Which of these did you say, in which words?",
        GRADES,
        question.id,
        boxes=tuple(boxes),
        heard="\n".join(filter(None, said)),
    )


def figure(number: Number, question: str = "", before: str = "") -> Script:
    """A number. Whoever gives a wrong one may look again; then comes the arithmetic, and what is said after that no
    longer counts. The interview goes on from the right one."""
    reply = yield Turn("number", f"{before}{Figure(number).asks[0]}", NUMBER, question, number)
    judged = judge(number, reply.text)
    unknown = judged.verdict == UNREAD and gives_up(reply.text)
    if not reply.skipped and asks_again(judged):  # unread or unclear is not wrong
        says = "That is all right. Is there a rough value that you would try?" if unknown else asks_again(judged)
        reply = yield Turn("correction", says, NUMBER, question, number)
        judged = judge(number, reply.text)
    if not reply.skipped and judged.verdict == WRONG:
        says = f"I have something else than {digits(judged.value)}. What do you get if you go through it again?"
        reply = yield Turn("correction", says, NUMBER, question, number)
        judged = judge(number, reply.text)
    if not reply.skipped and not judged.right:
        said = "" if judged.value is None else f"I have something else than {digits(judged.value)}. "
        asks = "Which step was missing?" if judged.value is None else "Where did your calculation differ?"
        yield Turn("correction", f"{said}{worked(number)}. {asks}", question=question, number=number)


def derive(derivation: Derivation) -> Script:
    """The beginning in words, then number by number."""
    asks = f"Let us derive something. {derivation.given} How would you begin?"
    turn = Turn("ask", asks, question=derivation.id, model=derivation.begin)
    facts = derivation.given.split(". ")[:-1]
    begun = yield from put(turn, "So: how would you begin?", facts)
    said = "\n".join(reply.text for reply in begun)
    taken = "That is how I would begin, too." if find(derivation.begin, said).suggested else "I would begin so."
    before = f"{answer_at_the_end(begun[-1].text, facts)}{taken} {derivation.begin} Now with numbers. "
    for number in derivation.steps:
        yield from figure(number, before=before)
        before = ""


def code(exercise: str, title: str, minutes: int, follow_ups: Sequence[tuple[str, str]], shows: str = "") -> Script:
    """A function to write, then what it costs and how it would grow. What is said while writing submits nothing."""
    turn = Turn(
        "code",
        f"Please write this function: {title}. Take up to {minutes} minutes, and say what you try before you type it.",
        CODE,
        exercise=exercise,
        shows=shows,
    )
    said, asked = [], []
    reply = yield turn
    while reply.outcome in NOT_SUBMITTED:
        said.append(reply.text)
        says = "All right, go on."
        if reply.outcome == UNTOUCHED:
            says = "Nothing is filled in yet; submit anyway? If something is, save the notebook first."
        elif asks_back(reply.text):
            says = "What the notebook does not say, you decide: say what you assume."
        reply = yield replace(turn, kind=reply.outcome, says=says)
    after = {"right": "", "not attempted": "Then without code: what would you keep, and what would one step do?"}.get(
        reply.outcome, "Not all tests pass. What goes wrong there, and how would you fix it?"
    )
    if after and not reply.skipped:
        replies = yield from put(Turn("probe", after, exercise=exercise))
        said += [reply.text for reply in replies]
    for question, answer in follow_ups:
        replies = yield from put(Turn("follow-up", question, exercise=exercise))
        said += [reply.text for reply in replies]
        asked.append(Box(FOLLOW_UP, f"{question} → {answer}"))
    yield Turn(
        "grade",
        "Let us stop the clock. Which of these did you say, in which words?",
        GRADES,
        exercise=exercise,
        boxes=tuple(asked),
        heard="\n".join(filter(None, said)),
    )


def close(last: bool, late: bool) -> Script:
    """The candidate asks. There is no team to speak for, so the question is written down, and not answered."""
    end = "Our time is up" if late else "That was my last question"
    reply = yield Turn("close", f"{end}; thank you. What would you like to ask me?")
    asked = has_question(reply.text)
    noted = "I have no team to speak for, so I write your question into the debrief; keep it for the day."
    if not last:
        rest = "Have a break. The clock stands still until you go on with the next round."
        yield Turn("open", f"{noted} {rest}" if asked else rest, NOTHING)
    elif asked:
        yield Turn("close", noted, NOTHING)


# ---- choosing -------------------------------------------------------------------------------------------------------


def pools(bank: Mapping[str, Question], name: str) -> list[list[Question]]:
    """The questions that a round chooses from, one list for each question that it asks. A design round has a whole case
    and a smaller question."""
    found = [[q for q in bank.values() if q.kind in kinds] for kinds in KINDS[name]]
    if name == "design":
        found = [[q for q in found[0] if q.case], [q for q in found[0] if not q.case]]
    return found


def parts_of(name: str, bank: Mapping[str, Question], level: str, dice: random.Random) -> list[Script]:
    """A round, part by part."""
    chosen = [dice.choice(pool) for pool in pools(bank, name) if pool]
    parts = [talk(question, level) for question in chosen]
    if name == "concept":
        parts.append(derive(dice.choice(derivations_for(level))(dice)))
    if name == "coding" and (ROOT / "course/exercises").is_dir():  # an installed package has no exercises
        id = dice.choice(sorted(TASKS))
        parts.insert(0, code(id, title_of(id), minutes_of(id), TASKS[id], task_of(id)))
    return parts
