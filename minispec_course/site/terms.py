"""The glossary's words, wherever a page uses them for the first time: hover, tap or focus shows what they mean."""

from __future__ import annotations

import re
from functools import cache

from ..build.builder import ROOT

ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \|", re.MULTILINE)
EVERYDAY = {
    "token",
    "target",
    "draft",
    "greedy",
    "pass",
    "accepted",
    "decode",
    "verify",
    "temperature",
    "trace",
    "block",
}


def slug(word: str) -> str:
    return "term-" + re.sub(r"\W+", "-", word.lower()).strip("-")


@cache
def glossary() -> dict[str, tuple[str, str]]:
    """Word, in lower case → (where the glossary explains it, what it means, without markup)."""
    found = {}
    for words, meaning in ROW.findall((ROOT / "docs/glossary.md").read_text(encoding="utf-8")):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning).replace("\\|", "|")
        plain = re.sub(r"[*`]", "", plain)
        for word in words.split(", "):
            name = re.sub(r"^the ", "", word.strip())
            if len(name) > 3 and name.lower() not in EVERYDAY:
                found[name.lower()] = (slug(words), plain)
    return found


@cache
def pattern() -> re.Pattern:
    words = sorted(glossary(), key=len, reverse=True)
    return re.compile(r"(?<![\w-])(" + "|".join(map(re.escape, words)) + r")(s?)(?![\w-])", re.IGNORECASE)


def with_places(page: str) -> str:
    """The glossary's page with an anchor in front of each word."""
    return ROW.sub(lambda row: row[0].replace("| **", f'| <span id="{slug(row[1])}"></span>**', 1), page)
