"""The field's words, not ours: private words stay out of everything that people read.

What is read: lessons, exercises, docs, the question bank, hints, diagnoses, captions, labels, and what the program
prints. Code, formulas in backquotes and addresses of links are not. Some private words are right in some sentences
("scaling laws", "rows of the matrix"): those are listed beside them.

Until all prose is rewritten, word_allowance.json holds how often each file may still use each word. It is a ratchet:

    python tests/course/test_words.py                  how often every file uses private words, the worst last
    python tests/course/test_words.py FILE …           every use in these files, with its sentence
    python tests/course/test_words.py --update         lower the allowances to what is there now; none is ever raised
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jupytext
import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ALLOWANCE = Path(__file__).with_name("word_allowance.json")


class Word(NamedTuple):
    name: str
    private: re.Pattern
    legitimate: re.Pattern | None  # in the same sentence
    better: str


def word(name: str, private: str, better: str, legitimate: str = "") -> Word:
    ignore = 0 if name in ("K", "γ") else re.IGNORECASE
    return Word(name, re.compile(private, ignore), re.compile(legitimate, re.I) if legitimate else None, better)


TABLES = r"column|matri(x|ces)|tensor|\btable|\bmask|\[[^\]]*[,·+][^\]]*\]|in a row|row[- ]parallel|shape"
PICTURES = r"pictur|figure|\bbars?\b|plot|chart|diagram|curve|\bmap\b|sketch|by hand|colou?r|on paper|circle|arrow"
UNITS = "tokens? bytes? KiB MiB GiB MB GB ms µs FLOPs? seconds passes drafts rows ranks requests numbers weights"
UNITS = "|".join([*UNITS.split(), "all-reduces", "all-to-alls"])
EACH = "pass cycle token step row request layer weight parameter byte rank expert stage prompt head channel draft block"
EACH = "|".join([*EACH.split(), "sequence", "position", "place"])
MANY = "accepted rejected all late early four five three two more these those many few unlikely greedy [Kkγ]"
MANY = "|".join(MANY.split())
IDEAS = "idea code implementation reasons? papers? numbers? formulas? package machinery thinking course"
IDEAS = "|".join(IDEAS.split())
OURS = r"same|two|both|greedy|plain|other|its|their|target's( own)?|emitted|drafted"

WORDS = [
    word("law", r"\blaws?\b", "distribution", r"\b(scaling|power|Moore's|Amdahl's|Little's) laws?\b"),
    word(
        "place",
        r"\bplaces?\b",
        "position (in a sequence), slot (in memory or a batch)",
        r"\bin[- ]place\b|\btak\w+ (the )?place|first place|decimal places?|\bplaces? (it|them|both|the|all|each)\b"
        r"|\b(no|second|one|right|same) place (where|that|to)\b|\bto place\b",
    ),
    word("row", r"\brows?\b", "sequence, request, or 'batch of 32'; a row is a row of a tensor", TABLES),
    word("draw", r"\b(draws?|drawn|drew|drawing)\b", "sample, sampled", PICTURES),
    word("text", rf"\b({OURS}) texts?\b|\btexts? (part|differ|agree)", "output, completion, sequence, prompt"),
    word(
        "write",
        r"\b(writes?|wrote|written|writing|rewritten)\b( \w+){0,3} (tokens?|story|stories|texts?)\b"
        r"|\b(tokens?|texts?)( \w+){0,3} (writes?|wrote|written)\b",
        "generate, emit",
    ),
    word(
        "read",
        r"\b(reads?|reading)( \w+){0,2} (tokens?|prompts?|drafts?|story)\b|\btokens?( \w+)? read\b",
        "process, run the model on; bytes are read",
    ),
    word("drafts", rf"\b({MANY}) drafts\b", "draft tokens"),
    word("a", rf"\b({UNITS}) an? ({EACH})\b", "per: bytes per token, ms per step", r"how many \w+ an? \w+ \w+s\b"),
    word("pass", r"^the forward pass is never named$", "forward pass at first use, then pass"),
    word("prefix sharing", r"\bprefix[- ]sharing\b", "prefix caching"),
    word(
        "balance point",
        r"\bbalance points?\b|\bbalance of (a|an|the) (H200|GPU|machine)|machine's balance",
        "ridge point",
    ),
    word(
        "weights",
        r"\b(million|billion) weights\b|\d B? ?(bf16 |int8 )?weights\b|\bper weight\b|\ba weight and\b",
        "parameters, where they are counted",
    ),
    word("behind", r"\bbehind\b", "after", rf"\b({IDEAS})( \w+)? behind\b"),
    word("dear", r"\bdear(er|est|ly)?\b", "expensive"),
    word(
        "part", r"\bparting\b|\b(texts?|outputs?|they|sequences?) part\b|\bparts? (ways|company|at token)\b", "diverge"
    ),
    word("mend", r"\bmend(s|ed|ing)?\b", "fix"),
    word("astray", r"\bastray\b", "wrong"),
    word("listener", r"\blisteners?\b|\blisten at the door\b", "forward hook"),
    word("bend", r"\b(bends?|bent|bending)\b", "bias, biased, change the distribution"),
    word("meeting", r"\bmeetings?\b", "all-reduce"),
    word("nobody", r"\b(nobody|everybody|anybody)\b", "say which thing does it"),
    word(
        "who",
        r"\bwho (decodes|drafts|passed|is behind|goes where)\b|\b(tokens?|drafts?|rows?|models?) who\b",
        "which, that",
    ),
    word("K", r"\$K\$|\bK = |\bK \+ 1|\bbest K\b|\bK too large\b|\bK c\b|\^K\b|\^\{K|\bK tokens|\bchoose K\b", "k"),
    word("γ", r"γ|\bgamma\b|\\gamma", "k (γ in Leviathan's paper, said once)", r"Leviathan|paper|our k\b"),
]


# ---------------------------------------------------------------- what people read


def plain(markdown: str) -> str:
    """Markdown without code, addresses and HTML."""
    text = re.sub(r"^```.*?^```", " ", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", " ` ", text)
    text = re.sub(r"\]\([^()\s]+\)", "]", text)
    return re.sub(r"<[^<>]*>", " ", text)


def strings(source: str, docstrings: bool) -> Iterator[str]:
    """The texts in a Python file: literals of more than one word, and the labels of controls."""
    tree = ast.parse(source)
    skipped, labels = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body and not docstrings:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                skipped.add(id(first.value))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in LABELS:
            labels |= {id(arg) for arg in node.args[:1]}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            skipped |= {id(part) for part in node.values}
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            if re.search(r"=> |\bconst |[;{}]\s*\n", node.value):  # JavaScript or CSS: what it says stands in quotes
                yield from re.findall(r"""["'`]([^"'`(){};=\n]+ [^"'`(){};=\n]+)["'`]""", node.value)
            elif " " in node.value.strip() or id(node) in labels:
                yield node.value


LABELS = {"slider", "choice", "switch", "stops", "Button", "Label"}


def comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def values(entry) -> Iterator[str]:
    """The texts of a YAML file, without ids, formulas and names of functions."""
    if isinstance(entry, dict):
        for key, value in entry.items():
            if key not in ("id", "expression", "function", "lesson", "source", "topic", "kind", "items"):
                yield from values(value)
    elif isinstance(entry, list):
        for value in entry:
            yield from values(value)
    elif isinstance(entry, str):
        yield entry


def pieces(file: Path, text: str | None = None) -> list[str]:
    """What people read in a file, piece by piece."""
    text = file.read_text(encoding="utf-8") if text is None else text
    if file.suffix == ".md":
        return [plain(text)]
    if file.suffix == ".yaml":
        return [plain(value) for value in values(yaml.safe_load(text))]
    if file.parent.parent.name == "course" and file.parent.name in ("lessons", "exercises"):
        found = []
        for cell in jupytext.reads(text, fmt="py:percent").cells:
            is_code = cell.cell_type == "code"
            read = [*strings(cell.source, True), *comments(cell.source)] if is_code else [cell.source]
            found += map(plain, read)
        return found
    course = "minispec_course" in file.as_posix() or file.name == "cli.py"
    return [plain(string) for string in strings(text, docstrings=course)]


def sentences(piece: str) -> list[str]:
    return [" ".join(s.split()) for s in re.split(r"(?<=[.!?;])\s|\s\|\s|\n\s*\n|\n\s*[-*|]\s", piece) if s.strip()]


def uses(found: list[str]) -> list[tuple[str, str]]:
    """(private word, sentence) for every use in these pieces."""
    used = []
    for sentence in (s for piece in found for s in sentences(piece)):
        for w in WORDS:
            if not (w.legitimate and w.legitimate.search(sentence)):
                used += [(w.name, sentence)] * len(w.private.findall(sentence))
    return used


def of_file(file: Path) -> list[tuple[str, str]]:
    found = pieces(file)
    used = uses(found)
    whole = "\n".join(found)
    if file.parent.name in ("lessons", "exercises", "bank") and re.search(r"\bpass(es)?\b", whole):
        used += [] if re.search(r"\bforward pass", whole) else [("pass", "the forward pass is never named")]
    return used


@cache
def files() -> list[Path]:
    """Everything that is read."""
    patterns = ("course/lessons/*.py", "course/exercises/*.py", "docs/*.md", "README.md", "minispec/**/*.py")
    patterns += ("minispec_course/interview/audit.yaml", "minispec_course/interview/bank/*.yaml")
    return sorted(file for pattern in patterns for file in ROOT.glob(pattern))


def allowed_uses() -> dict[str, dict[str, int]]:
    return json.loads(ALLOWANCE.read_text(encoding="utf-8"))


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


# ---------------------------------------------------------------- tests


def test_private_words_stay_out():
    allowances = allowed_uses()
    for file in files():
        used, allowed = of_file(file), allowances.get(name(file), {})
        for w, count in Counter(w for w, _ in used).items():
            where = "\n  ".join(sentence for found, sentence in used if found == w)
            better = next(one.better for one in WORDS if one.name == w)
            assert count <= allowed.get(w, 0), (
                f"{name(file)} uses {w!r} {count} times, {allowed.get(w, 0)} are allowed. Better: {better}.\n  {where}"
            )


def test_no_allowance_is_for_a_file_or_a_word_that_is_gone():
    assert allowed_uses().keys() <= {name(file) for file in files()}
    assert {w for counts in allowed_uses().values() for w in counts} <= {w.name for w in WORDS}


PLANTED = {
    "The law of the emitted token is bent.": ["law", "bend"],
    "Each place has a row of its own.": ["place", "row"],
    "The token was drawn from q, four drafts behind.": ["draw", "drafts", "behind"],
    "That is 2.8 tokens a cycle and 20 bytes a token.": ["a", "a"],
    "The balance point is 188, with 8 billion weights.": ["balance point", "weights"],
    "Nobody mends a listener that went astray; it is dear.": ["mend", "astray", "listener", "nobody", "dear"],
    "With $K = 4$ the best K is 6, and γ is the same.": ["K", "K", "γ"],
    "The two texts part at token 14.": ["text", "part"],
    # and where the same words are right
    "Scaling laws, in place, take place: no private word.": [],
    "Multiply the rows of the matrix with its columns.": [],
    "Draw a picture of the block table by hand. `law` is code, [place](place.md) a link with a word.": ["place"],
    "Leviathan's paper calls k γ. Bytes per token, tokens per forward pass.": [],
    "The code behind it samples five draft tokens per position.": [],
}


def test_planted_words_are_found_and_legitimate_ones_are_not():
    for sentence, expected in PLANTED.items():
        assert sorted(w for w, _ in uses([plain(sentence)])) == sorted(expected), sentence


def test_words_are_found_wherever_people_read(tmp_path):
    planted = {
        "docs/page.md": "The law.\n\n```\nlaw\n```\n",
        "course/lessons/99_x.py": '# %% [markdown]\n# A law.\n\n# %%\nlaw = 1  # the law\nprint(f"a law: {law}")\n',
        "minispec_course/interview/bank/x.yaml": "- {id: law, short: The law., expression: law}\n",
        "minispec_course/viz/x.py": '"""A law."""\nlaw = slider("law", 1)\nother = {"law": 1}\n',
        "minispec/x.py": '"""A law."""\nraise ValueError("no law here")\n',
    }
    for path, text in planted.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    found = {path: len(of_file(tmp_path / path)) for path in planted}
    assert list(found.values()) == [1, 3, 1, 2, 1], found


# ---------------------------------------------------------------- counting


def counts() -> dict[str, dict[str, int]]:
    found = {name(file): Counter(w for w, _ in of_file(file)) for file in files()}
    return {file: dict(sorted(used.items())) for file, used in found.items() if used}


def update() -> None:
    """Lower the allowances to what is there now."""
    old, lowered = allowed_uses() if ALLOWANCE.exists() else None, {}
    for file, used in counts().items():
        kept = {w: n if old is None else min(n, old.get(file, {}).get(w, 0)) for w, n in used.items()}
        lowered[file] = {w: n for w, n in kept.items() if n}
    lines = [f"  {json.dumps(file)}: {json.dumps(used, ensure_ascii=False)}" for file, used in lowered.items() if used]
    ALLOWANCE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")  # a line for each file: easy to merge


def main(argv: list[str]) -> None:
    if argv == ["--update"]:
        return update()
    if argv:
        for w, sentence in (use for path in argv for use in of_file(Path(path).resolve())):
            print(f"{w:15} {sentence}")
        return None
    found = counts()
    for file, used in sorted(found.items(), key=lambda pair: sum(pair[1].values())):
        print(f"{sum(used.values()):5}  {file}  {used}")
    print(f"{sum(sum(used.values()) for used in found.values()):5}  in all")


if __name__ == "__main__":
    main(sys.argv[1:])
