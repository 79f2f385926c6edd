"""The teacher's secret: a long random text in a file, from which every hidden case follows.

    key = read_secret(Path("grades.secret"))         made at the first use, readable by its owner alone
    rng = generator(key, "06.residual", "hidden")    a random.Random; the same key and labels, the same numbers

A small seed can be guessed from the numbers in a notebook: 100,000 of them are tried in seconds. 256 random bits
cannot, and what is derived from them with HMAC says nothing about anything else that is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from random import Random

SHORTEST = 32  # characters


def read_secret(file: Path) -> bytes:
    """The secret in a file. Where there is no such file, one is made."""
    with suppress(FileExistsError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w") as stream:
            stream.write(secrets.token_hex(32) + "\n")
    found = file.read_bytes().strip()
    if len(found) < SHORTEST:
        raise ValueError(f"secret={str(file)!r} holds {len(found)} characters: give ≥ {SHORTEST}, or delete the file")
    return found


def seed(secret: bytes, *labels: str) -> bytes:
    """32 bytes for one purpose. They tell nothing about those for another purpose."""
    return hmac.new(secret, json.dumps(labels).encode(), hashlib.sha256).digest()


def generator(secret: bytes, *labels: str) -> Random:
    return Random(int.from_bytes(seed(secret, *labels), "big"))
