"""Answers that resemble each other more than chance explains: pairs of students, with the lines that they share.

Sources are compared as tokens: comments, blanks and line breaks do not count, names that an answer gives to its own
variables are all the same name, and so are all texts. Every run of `RUN` tokens is a fingerprint (as in Schleimer,
Wilkerson and Aiken, "Winnowing", 2003, without the thinning: answers are short). What all answers share does not count:
fingerprints of the stubs and of the published solutions are taken out first. The score of a pair is the share of the
smaller answer's remaining fingerprints that the other one has, too.

A high score is a reason to talk with two people, and proves nothing.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import jupytext

from ..build import builder, cells
from .gradebook import harmless, write_rows
from .submission import Submission

RUN = 8  # tokens of a fingerprint: about a line and a half
FEWEST = 12  # fingerprints that must remain of the smaller answer; below that everything resembles everything
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Pair:
    exercise: str
    one: str
    other: str
    score: float
    shared: int  # fingerprints
    lines: tuple[str, ...]  # of the first one's answer


def tokens_of(source: str) -> list[tuple[str, int]]:
    """(token, line) each, in a form in which renamed variables are equal. What is no Python is split at blanks."""
    own = own_names(source)
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in SKIPPED:
                continue
            text = token.string
            if token.type == tokenize.NAME and not keyword.iskeyword(text) and text in own:
                text = "name"
            elif token.type == tokenize.STRING:
                text = "text"
            found.append((text, token.start[0]))
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        return [(word, i) for i, line in enumerate(source.splitlines(), start=1) for word in line.split()]
    return found


def own_names(source: str) -> set[str]:
    """Names that the source itself gives: variables, arguments, functions."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return names | {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def fingerprints(source: str) -> dict[tuple[str, ...], set[int]]:
    """Every run of tokens → the lines that it touches."""
    tokens = without_docstrings(tokens_of(source))
    found: dict[tuple[str, ...], set[int]] = {}
    for i in range(len(tokens) - RUN + 1):
        run = tokens[i : i + RUN]
        found.setdefault(tuple(text for text, _ in run), set()).update(line for _, line in run)
    return found


def without_docstrings(tokens: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """A text that stands alone after a colon says something to readers only."""
    return [t for i, t in enumerate(tokens) if not (t[0] == "text" and i and tokens[i - 1][0] == ":")]


@cache
def common(id: str) -> frozenset:
    """What an answer may share with all others: the fingerprints of the stub and of the published solution."""
    [job] = [job for job in builder.jobs([id.split(".")[0]]) if job.kind == "exercise"]
    raw = jupytext.reads(job.source.read_text(encoding="utf-8"), fmt="py:percent")
    sources = [c.source for c in raw.cells if c.metadata.get("exercise") == id and cells.MARKER.search(c.source)]
    versions = [version for source in sources for version in (cells.solution(source), cells.stub(source, id))]
    return frozenset(run for version in versions for run in fingerprints(version))


def pairs(submissions: Sequence[Submission], ids: Iterable[str], threshold: float) -> list[Pair]:
    """All pairs of answers whose score is at least the threshold, the most alike first."""
    if not 0 < threshold <= 1:
        raise ValueError(f"similar={threshold:g}: give a share above 0, up to 1")
    found = []
    for id in ids:
        known = common(id)
        sources = {s.student: s.answers[id] for s in submissions if id in s.answers}
        prints = {
            student: {run: lines for run, lines in fingerprints(source).items() if run not in known}
            for student, source in sources.items()
        }
        long_enough = [student for student in sources if len(prints[student]) >= FEWEST]
        for one, other in combinations(long_enough, 2):
            shared = prints[one].keys() & prints[other].keys()
            score = len(shared) / min(len(prints[one]), len(prints[other]))
            if score >= threshold:
                numbers = sorted(set().union(*(prints[one][run] for run in shared)))
                text = sources[one].splitlines()
                lines = tuple(text[n - 1].strip() for n in numbers if n <= len(text))
                found.append(Pair(id, one, other, round(score, 3), len(shared), lines))
    return sorted(found, key=lambda p: (-p.score, -p.shared, p.exercise, p.one, p.other))


def write_pairs(file: Path, found: Sequence[Pair]) -> None:
    heading = ["exercise", "student", "other student", "score", "shared", "lines"]
    rows = [[p.exercise, harmless(p.one), harmless(p.other), p.score, p.shared, "\n".join(p.lines)] for p in found]
    write_rows(file, [heading, *rows])
