"""One field of a body at a time. A check returns the value to use, or raises ValueError("give …")."""

from __future__ import annotations

import math
from collections.abc import Callable
from reprlib import repr as shortened

STOPS, STOP_LENGTH = 4, 256  # of OpenAI's API; and characters, since every token is compared with every stop string
ROLES = ("system", "user", "assistant")


def text(value) -> str:
    if not isinstance(value, str):
        raise ValueError("give text")
    return value


def flag(value) -> bool:
    if not isinstance(value, bool):
        raise ValueError("give true or false")
    return value


def whole(least: int, most: int = 2**63 - 1) -> Callable:
    def check(value) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"give a whole number from {least} to {most}")
        return value

    return check


def number(least: float, most: float = math.inf, above: bool = False) -> Callable:
    """A finite number from `least` (or `above` it) to `most`."""

    def check(value) -> float:
        try:
            given = math.nan if isinstance(value, (bool, str)) else float(value)
        except (TypeError, OverflowError):
            given = math.nan
        if not (least <= given <= most and math.isfinite(given)) or (above and given == least):
            border = "" if most == math.inf else f" and at most {most:g}"
            raise ValueError(f"give a number {'>' if above else '≥'} {least:g}{border}")
        return given

    return check


def only(*harmless) -> Callable:
    """A field that we know but do not have: the values that ask for nothing are fine."""

    def check(value) -> None:
        if not any(type(value) is type(one) and value == one for one in harmless):
            raise ValueError("this server does not have it: leave it out")

    return check


def a_list(value, most: int, what: str) -> list:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise ValueError(f"give a list of 1 to {most} {what}")
    return value


def stops(value) -> list[str]:
    strings = [value] if isinstance(value, str) else a_list(value, STOPS, "strings")
    if not all(isinstance(s, str) and 1 <= len(s) <= STOP_LENGTH for s in strings):
        raise ValueError(f"give strings of 1 to {STOP_LENGTH} characters")
    return strings


def token_ids(value) -> list[int]:
    return [whole(0)(token) for token in a_list(value, 64, "token ids")]


def biases(value) -> dict[int, float]:
    """{"token id": number}: JSON has no keys but text."""
    if not isinstance(value, dict) or not all(token.isdecimal() and token.isascii() for token in value):
        raise ValueError('give {"token id": number from -100 to 100}')
    return {int(token): number(-100, 100)(bias) for token, bias in value.items()}


def response_format(value) -> dict | None:
    """The JSON schema that the output has to follow; None: any text will do."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    form = value.get("json_schema") if kind == "json_schema" else None
    if not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        raise ValueError(
            'give {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": {…}}}'
        )
    return form["schema"]


def prompt(value) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]  # a batch of one
    if isinstance(value, list) and any(isinstance(item, (str, list)) for item in value):
        raise ValueError("a request has one prompt here: send one request for each")
    if not isinstance(value, str) and not (isinstance(value, list) and all(type(item) is int for item in value)):
        raise ValueError("give text, or a list of token ids")
    return value


def messages(value) -> list[dict[str, str]]:
    return [_message(item) for item in a_list(value, 10_000, "messages")]


def _message(item) -> dict[str, str]:
    if not isinstance(item, dict) or item.get("role") not in ROLES:
        raise ValueError(f'give messages {{"role": "user", "content": "…"}}; roles are {", ".join(ROLES)}')
    if extra := sorted(key for key in item if key not in ("role", "content") and item[key] is not None):
        raise ValueError(f"a message has a role and a content; this server does not know {shortened(extra[0])}")
    content = item.get("content")
    if isinstance(content, list):  # parts, as clients write them that could send pictures, too
        if not all(
            isinstance(part, dict)
            and part.keys() == {"type", "text"}
            and part["type"] == "text"
            and isinstance(part["text"], str)
            for part in content
        ):
            raise ValueError('give content as text, or as parts {"type": "text", "text": "…"}')
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError("give content as text")
    return {"role": item["role"], "content": content}


def stream_options(value) -> dict:
    if not isinstance(value, dict) or not value.keys() <= {"include_usage", "continuous_usage_stats"}:
        raise ValueError("give include_usage or continuous_usage_stats, true or false")
    return {name: flag(given) for name, given in value.items()}
