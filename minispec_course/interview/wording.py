"""Whose words? No text of the course may share eight words in a row with one of the guides it was checked against.

The guides are not part of the project. What is kept of them is a hash of every eight consecutive words, from which
nothing can be read back but the answer to: is this run of words in there?

    python -m minispec_course.interview.wording FILE …          which runs of words these files share with the guides
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

RUN = 8  # words
BYTES = 5  # of each hash: a text of a million words is wrongly accused once in two hundred
HASHES = Path(__file__).parent / "source_hashes.bin"
# Names that cannot be said otherwise: titles of papers, and formulas.
ALLOWED = (
    "Fast Inference from Transformers via Speculative Decoding",
    "Accelerating Large Language Model Decoding with Speculative Sampling",
    "Medusa: Simple LLM Inference Acceleration with Multiple Decoding Heads",
)


def words(text: str) -> list[str]:
    """Letters and digits only, in small letters: punctuation, markup and line breaks do not make a text original."""
    return re.findall(r"[^\W_]+", text.lower())


def runs(text: str) -> Iterator[str]:
    said = words(text)
    return (" ".join(said[i : i + RUN]) for i in range(len(said) - RUN + 1))


def hash_of(run: str) -> bytes:
    return blake2b(run.encode(), digest_size=BYTES).digest()


def known() -> set[bytes]:
    data = HASHES.read_bytes()
    return {data[i : i + BYTES] for i in range(0, len(data), BYTES)}


def shared(text: str, allowed: Sequence[str] = ALLOWED) -> list[str]:
    """The runs of eight words that a text has in common with a guide."""
    guides, exempt = known(), {run for phrase in allowed for run in runs(phrase)}
    return [run for run in runs(text) if run not in exempt and hash_of(run) in guides]


def pack(texts: Sequence[str]) -> bytes:
    """The content of source_hashes.bin for these guides."""
    return b"".join(sorted({hash_of(run) for text in texts for run in runs(text)}))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for run in shared(Path(name).read_text(encoding="utf-8")):
            print(f"{name}: {run}")
