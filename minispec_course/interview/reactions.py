"""How an interviewer takes a reply: as a question back, as "I don't know", as a value to go through again, as too thin.

Words and numbers are all that is looked at, as in matcher.py, so a reaction never says that a reply is wrong: it asks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .matcher import find, suggestions, terms
from .question import Question
from .stated import SCALES, numbers, stated
from .summary import digits

SHORT = 12  # words: an answer below this is helped along
SPEECHLESS = 4  # words: below this the candidate is given time
QUOTED = 90  # characters of a sentence that is repeated
NEAR = 3  # two values further apart than this factor are two quantities
ALL_BUT = 0.85  # of a mistake's terms, before a reply is taken for it

WORD = r"(?:what|which|how|who|when|where|why|may|can|could|shall|should|am|is|are|do|does|did|will|would|have|has|any)"
QUESTION = re.compile(rf"(?:^|[,;:–]\s*|\b(?:and|or|so|but|then|sorry|ok|okay)\s+){WORD}\b.*\?$", re.IGNORECASE)
NO_QUESTION = re.compile(
    r"^(?:no|nope|none|nothing|all good|i(?:'m| am) (?:good|fine)|that(?:'s| is| was| will be) (?:all|it))\b", re.I
)
MAY_I = re.compile(r"\b(?:(?:may|can|could|shall|should) (?:i|we)|(?:ok|okay|fine|fair) to) assume\b", re.IGNORECASE)
GIVES_UP = re.compile(r"\b(?:(?:don't|do not|dont) (?:really )?know|no (?:idea|clue)|not sure)\b|^(?:pass|idk)\b", re.I)

# How one assumes something, or wants to know it, without a question mark; and takes back what was doubted.
ASSUMES = re.compile(
    r"\b(?:assum\w*|suppos\w*|let(?:'s| us) (?:say|take)|say we|i(?:'ll|'d| will| would)? take|"
    r"(?:like|want|need|have) to (?:know|ask|hear)|tell me|i(?:'d| would) ask|depends on)\b",
    re.I,
)
TAKES_BACK = re.compile(
    r"\bi (?:was|am|had (?:it|that)) (?:\w+ )?wrong\b|\b(?:take|took) (?:it|that|this) back\b|\bmy mistake\b|"
    r"\bmisspoke\b|\bi (?:retract|withdraw)\b|\bscratch that\b|\bnot (?:\w+ )?sure\b|^not (?:very|so|really|at all)\b|"
    r"\bi should have\b|\byou(?:'re| are) right\b|\bon reflection\b|\bactually,? (?:no|not)\b|"
    r"\b(?:that|it)(?: was| is|'s) (?:wrong|false|(?:not|n't) (?:\w+ )?(?:right|true|correct|so))\b",
    re.I,
)

CORRECTS = re.compile(  # unasked
    r"\bi (?:was|am) (?:\w+ )?wrong\b|\b(?:let me|i have to|i must) correct (?:what i|that|this|my)|"
    r"\bmy mistake\b|\bmisspoke\b|\b(?:take|took) (?:it|that|this) back\b|\bscratch that\b|\bi (?:retract|withdraw)\b|"
    r"\bwhat i said (?:before|earlier|above|about \w+) (?:was|is) (?:wrong|false)",
    re.IGNORECASE,
)
NEGATED = re.compile(r"\b(?:no|not|never|nor|neither|cannot|without|instead|rather|wrong)\b|n't\b", re.IGNORECASE)
# What is asked for, how one asks for it, and the facts that answer it.
ANSWERS = tuple(
    (name, re.compile(asked, re.IGNORECASE), re.compile(fact))
    for name, asked, fact in (
        (
            "latency target",
            r"latenc|\bslos?\b|\bfast|deadline|response time|p9\d|\btarget\b(?! model)",
            r"\bms\b|p95|within|speed|hours",
        ),
        ("hardware", r"hardware|gpu|card\b|machine|memory|bandwidth|network", r"H200|\bGB|bandwidth"),
        (
            "traffic",
            r"traffic|users?\b|requests?\b|qps|\bload\b|concurren|batch|how many",
            r"at a time|[Ll]oad|[Tt]raffic|requests|sessions",
        ),
        ("lengths", r"\blong\b|length|context|prompt|output|answer", r"tokens,|tokens$|[Pp]rompt|contexts"),
        ("model", r"model|parameter|architecture|layers|experts?\b", r"\d B |B model|[Mm]odels?\b|drafter"),
        ("objective", r"objective|throughput|\bcosts?\b|budget|optimi[sz]e for", r"cost|dollar|throughput|cheap"),
    )
)

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
        "Where would a measurement differ most from your estimate, and how would you find out?",
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
    said = _said(text)
    asked = [sentence for sentence in said if QUESTION.search(sentence)]
    rest = sum(len(sentence.split()) for sentence in said if sentence not in asked)
    return bool(asked) and rest < SHORT and (said[-1] in asked or "assum" in said[-1].lower())


def _said(text: str) -> list[str]:
    """Sentences; two questions that a semicolon joins are one."""
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", text) if part.strip()]


def answer_to(text: str, facts: Sequence[str] = (), scoping: bool = False) -> str:
    """What a candidate who asks is told: the facts that are about it; or to decide. scoping: in a design, what is asked
    for and is not among the facts is named."""
    asked = [(name, held) for name, asks, held in ANSWERS if asks.search(text)]
    known = [fact for fact in facts if any(held.search(fact) for _, held in asked) or _names(text, fact, facts)]
    if MAY_I.search(text) and not known:
        return "You may. Say where your answer depends on it."
    told = f"{'. '.join(known)}. " if known else ""
    missing = [name for name, held in asked if scoping and not any(held.search(fact) for fact in facts)]
    if missing:
        return f"{told}Not known: the {', the '.join(missing)}. Say what you assume."
    return f"{told}For the rest, say what you assume." if told else "You decide: say what you assume, and why."


def _names(text: str, fact: str, facts: Sequence[str]) -> bool:
    """Whether a question uses a key word that only this fact has."""
    others = {term for other in facts if other != fact for term in terms(other)}
    return bool(terms(text).keys() & terms(fact).keys() - others)


def asked_for(text: str) -> dict[str, str]:
    """Of what the interviewer can state: its name → the sentence that asks for it, or assumes something for it."""
    found: dict[str, str] = {}
    for sentence in _said(text.replace("’", "'")):
        if sentence.endswith("?") or ASSUMES.search(sentence):
            for name, asks, fact in ANSWERS:
                if asks.search(sentence) or fact.search(sentence):
                    found.setdefault(name, sentence)
    return found


def answer_at_the_end(text: str, facts: Sequence[str] = (), scoping: bool = False) -> str:
    """The answer to a question about the setting that ends a reply, if that is otherwise an answer; or ""."""
    *_, last = _said(text) or [""]
    if asks_back(text) or not QUESTION.search(last):
        return ""
    told = answer_to(last, facts, scoping)
    return "" if told.startswith(("You may", "You decide")) else f"To your question: {told} "


def has_question(text: str) -> bool:
    """Whether the candidate wants to know something at the end; "Nothing, thank you." is no question."""
    plain = text.strip().replace("’", "'")
    return bool(plain) and ("?" in plain or not NO_QUESTION.search(plain))


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


def doubt(question: Question, reply: str, wanted: Iterable[tuple[float, str]], given: str) -> str:
    """What an interviewer asks after something that a good answer would not say, or a result that is not the one.

    wanted: values of a good answer, with units, of which one will do. given: all that has been asked, whose numbers may
    be repeated. "" where nothing is strange.
    """
    if quote := mistaken(question, reply)[1]:
        return f"You said: “{shortened(quote)}”. How sure are you, and what would change your mind?"
    wanted, results = list(wanted), list(_results(reply))
    said = [*numbers(reply), *results]
    if any(_same(value, other) for value in wanted for other in said):
        return ""
    for value, unit in results:
        strange = not any(_same((value, unit), other) for other in numbers(given))
        if strange and any(_comparable((value, unit), other) for other in wanted):
            shown = {name.lower(): name for name in "KB MB GB TB KiB MiB GiB TiB".split()}.get(unit, unit)
            return f"Take me through the {digits(value)}{'' if unit in ('', '%') else ' '}{shown}: what do you put in?"
    return ""


def mistaken(question: Question, reply: str) -> tuple[str, str]:
    """What sinks an answer and seems to be said in a reply, with the sentence; or nothing twice."""
    for sink in question.sinks:
        match = find(sink, reply, ALL_BUT)
        if match.suggested and not NEGATED.search(match.quote):
            return sink, match.quote
    return "", ""


def corrects_itself(reply: str) -> bool:
    """Whether a reply says, unasked, that something said before was wrong."""
    return bool(CORRECTS.search(reply.replace("’", "'")))


def takes_back(statement: str, reply: str) -> bool:
    """Whether a reply to "How sure are you?" gives the statement up: in so many words, or by saying its opposite."""
    return bool(TAKES_BACK.search(reply.strip().replace("’", "'"))) or find(statement, reply).opposite


def _results(reply: str) -> Iterator[tuple[float, str]]:
    """(value, unit) of what a reply states as a result: "so 3.5 dollars", not "from about 100 to 128"."""
    for value in stated(reply):
        if value.concludes and not (value.given or value.working or value.denied or value.either or value.reason):
            unit = value.unit if value.unit in SCALES else ""
            yield (100 * value.value, "%") if value.percent else (value.value, unit)


def _same(a: tuple[float, str], b: tuple[float, str], within: float = 0.05) -> bool:
    """As near as one gets without a calculator; 59 % is 0.59."""
    scales = (1, 100, 0.01) if "%" in (a[1], b[1]) else (1,)
    units = {a[1], b[1]} - {"", "%"}
    return len(units) < 2 and any(abs(a[0] - scale * b[0]) <= within * abs(a[0]) for scale in scales)


def _comparable(a: tuple[float, str], b: tuple[float, str]) -> bool:
    """Whether the one may be meant for the other: a number that counts something small is none of these."""
    whole = a[0] == int(a[0]) and a[0] <= 10 and not a[1]
    return not whole and min(abs(a[0]), abs(b[0])) > 0 and 1 / NEAR <= abs(a[0] / b[0]) <= NEAR and a[1] in ("", b[1])
