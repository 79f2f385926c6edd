"""How an interviewer takes a reply: as a question back, as "I don't know", as a value to go through again, as too thin.

Words and numbers are all that is looked at, as in matcher.py, so a reaction never says that a reply is wrong: it asks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from .matcher import find, numbers, sentences, suggestions
from .question import Question
from .summary import digits

SHORT = 12  # words: an answer below this is helped along
SPEECHLESS = 4  # words: below this the candidate is given time
QUOTED = 90  # characters of a sentence that is repeated
NEAR = 3  # two values further apart than this factor are two quantities
ALL_BUT = 0.85  # of a mistake's terms, before a reply is taken for it

WORD = r"(?:what|which|how|who|when|where|why|may|can|could|shall|should|am|is|are|do|does|did|will|would|have|has|any)"
QUESTION = re.compile(rf"(?:^|[,:–]\s*|\b(?:and|or|so|but|then|sorry|ok|okay)\s+){WORD}\b.*\?$", re.IGNORECASE)
MAY_I = re.compile(r"\b(?:(?:may|can|could|shall|should) (?:i|we)|(?:ok|okay|fine|fair) to) assume\b", re.IGNORECASE)
GIVES_UP = re.compile(r"\b(?:(?:don't|do not|dont) (?:really )?know|no (?:idea|clue)|not sure)\b|^(?:pass|idk)\b", re.I)

NEGATED = re.compile(r"\b(?:no|not|never|nor|neither|cannot|without|instead|rather|wrong)\b|n't\b", re.IGNORECASE)
# A question about the one is answered by facts that hold the other.
ANSWERS = tuple((re.compile(asked, re.IGNORECASE), re.compile(fact)) for asked, fact in (
    (r"latenc|slo\b|\bfast|deadline|response time|p9\d|target", r"\bms\b|p95|within|speed|hours"),
    (r"hardware|gpu|card|machine|memory|bandwidth|network", r"H200|\bGB|bandwidth"),
    (r"traffic|users?\b|requests?\b|qps|load|concurren|batch|how many",
     r"at a time|[Ll]oad|[Tt]raffic|requests|sessions"),
    (r"\blong\b|length|context|prompt|output|answer", r"tokens,|tokens$|[Pp]rompt|contexts"),
    (r"model|parameter|architecture|layers|experts?\b", r"\d B |B model|[Mm]odels?\b|drafter"),
))  # fmt: skip

# What is asked after an answer that was: hardly one; about something else; without the reasons; without the limits.
THIN, LOST, WHY, LIMIT = range(4)
PROBES = {
    "concept": (
        "What happens, step by step, and why?",
        "Let us go back a step. What happens, in order, from the beginning?",
        "Why is that so?",
        "When does that stop being true, and what would tell you?",
    ),
    "derivation": (
        "How do you get there?",
        "Let us write it down from the start. What is given, and what follows first?",
        "Which assumption does that need?",
        "Where does an assumption of yours fail in practice, and what becomes of the result?",
    ),
    "estimation": (
        "Which quantities do you need, and what do you do with them?",
        "Let us do it together. Which resource sets the limit, and how much of it is there?",
        "What does that leave out, and does it move the number up or down?",
        "If practice gave twice that number, where would you look?",
    ),
    "design": (
        "Which parts does it have, and what goes from one to the next?",
        "Let us follow one request. Which parts does it pass through, and what is decided in each?",
        "Why that, and not the obvious alternative?",
        "What would make you not build it, and what would you measure to find out?",
    ),
    "debugging": (
        "Where would you start, and what would that tell you?",
        "Let us go back a step. Take the smallest example: what happens in it?",
        "How would you tell that from the next likely explanation?",
        "How would you notice if you were wrong about that?",
    ),
    "coding": (
        "What do you keep between two steps, and what does one step cost?",
        "Let us go back a step. What goes in, what comes out, and what do you keep?",
        "What does one step cost, and why?",
        "At which size does that stop being the right choice?",
    ),
    "behavioural": (
        "Tell me about one case: what did you expect, and what happened?",
        "Tell me about one case: what did you expect, and what happened?",
        "Which part of that was yours, and why did you decide so?",
        "What would you do differently today?",
    ),
}


def asks_back(text: str) -> bool:
    """Whether a reply is a question to the interviewer, perhaps with a few words around it, and not an answer."""
    said = sentences(text)
    asked = [sentence for sentence in said if QUESTION.search(sentence)]
    rest = sum(len(sentence.split()) for sentence in said if sentence not in asked)
    return bool(asked) and rest < SHORT and (said[-1] in asked or "assum" in said[-1].lower())


def answer_to(text: str, facts: Sequence[str] = ()) -> str:
    """What a candidate who asks is told: the facts that are about it, or to decide."""
    holding = [fact for asked, fact in ANSWERS if asked.search(text)]
    known = [fact for fact in facts if any(held.search(fact) for held in holding)]
    if known:
        return f"{'. '.join(known)}. For the rest, say what you assume."
    if MAY_I.search(text):
        return "You may. Say where your answer depends on it."
    return "You decide: say what you assume, and why."


def gives_up(text: str) -> bool:
    return len(text.split()) < SHORT and bool(GIVES_UP.search(text.strip().replace("’", "'")))


def shortened(text: str, most: int = QUOTED) -> str:
    """The beginning of a sentence, cut after a word, without its full stop."""
    text = text.strip().rstrip(".;,: ")
    return text if len(text) <= most else f"{text[: text.rfind(' ', 0, most)].rstrip('.;,: ')} …"


def probing(question: Question, level: str, answer: str) -> str:
    """What an interviewer asks who has not heard enough; "" if there was enough for this level."""
    probes = PROBES[question.kind]
    words = len(answer.split())
    if words < SHORT:
        return f"{'Take your time. ' * (words < SPEECHLESS or gives_up(answer))}{probes[THIN]}"
    found = suggestions([point for _, point in question.points], answer)
    heard = Counter(at for (at, _), match in zip(question.points, found, strict=True) if match.suggested)
    if not heard["L4"] and not heard["L5"]:
        return probes[LOST]
    if question.numbers and not numbers(answer):
        return "Can you put a number on that? Say what you assume."
    quote = next(match.quote for match in found if match.suggested)
    if level != "L4" and not heard["L5"]:
        return f"You said: “{shortened(quote)}”. {probes[WHY]}"
    if level == "L6" and not heard["L6"]:
        return f"You said: “{shortened(quote)}”. {probes[LIMIT]}"
    return ""


def doubt(question: Question, reply: str, wanted: Iterable[tuple[float, str]], given: str, one: bool = False) -> str:
    """What an interviewer asks after something that a good answer would not say, or a value that is not the one wanted.

    wanted: values of a good answer, with units; one: any of them will do. given: all that has been asked, whose numbers
    may be repeated. "" where nothing is strange.
    """
    for sink in question.sinks:
        match = find(sink, reply, ALL_BUT)
        if match.suggested and not NEGATED.search(match.quote):
            return f"You said: “{shortened(match.quote)}”. How sure are you, and what would change your mind?"
    wanted = list(wanted)
    missing = [value for value in wanted if not any(_same(value, other) for other in numbers(reply))]
    if not missing or (one and len(missing) < len(wanted)):
        return ""
    known = [*wanted, *numbers(given)]
    for value, unit in numbers(reply):
        strange = not any(_same((value, unit), other) for other in known)
        if strange and any(_comparable((value, unit), other) for other in missing):
            return f"Take me through the {digits(value)}{'' if unit in ('', '%') else ' '}{unit}: what do you put in?"
    return ""


def _same(a: tuple[float, str], b: tuple[float, str], within: float = 0.05) -> bool:
    """As near as one gets without a calculator; 59 % is 0.59."""
    scales = (1, 100, 0.01) if "%" in (a[1], b[1]) else (1,)
    units = {a[1], b[1]} - {"", "%"}
    return len(units) < 2 and any(abs(a[0] - scale * b[0]) <= within * abs(a[0]) for scale in scales)


def _comparable(a: tuple[float, str], b: tuple[float, str]) -> bool:
    """Whether the one may be meant for the other: a number that counts something small is none of these."""
    whole = a[0] == int(a[0]) and a[0] <= 10 and not a[1]
    return not whole and min(abs(a[0]), abs(b[0])) > 0 and 1 / NEAR <= abs(a[0] / b[0]) <= NEAR and _same_unit(a, b)


def _same_unit(a: tuple[float, str], b: tuple[float, str]) -> bool:
    return not a[1] or not b[1] or a[1] == b[1]
