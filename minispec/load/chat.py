"""Chat templates, filled in as transformers fills them in: the same extensions, functions and special tokens.

A template is a program from a stranger, so it runs in jinja's sandbox. Beyond plain jinja it may use what published
templates use: `break` and `continue`, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, and the tag
`generation`, which marks replies for training and prints them as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path


class Refusal(Exception):
    """What a chat template says when it calls raise_exception: these messages are not for it."""


@lru_cache(maxsize=8)
def compiled_template(source: str):
    """A chat template, ready to be filled in: to compile it takes longer than to fill it in a hundred times."""
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = frozenset({"generation"})

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise Refusal(message)

    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, Generation]
    )
    jinja.filters["tojson"] = tojson
    jinja.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    return jinja.from_string(source)


def filled_in(source: str, messages: Sequence[dict], special_tokens: Mapping[str, str]) -> str:
    """The prompt of a conversation, ending where the reply begins."""
    return compiled_template(source).render(
        messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **special_tokens
    )


def special_tokens_of(settings: dict) -> dict[str, str]:
    """The tokens that a template may name, of tokenizer_config.json: bos_token, eos_token and others, as text."""
    found = {}
    for key, value in settings.items():
        value = value.get("content") if isinstance(value, dict) else value  # an object where a token has settings
        if key.endswith("_token") and isinstance(value, str):
            found[key] = value
    return found


def template_of(folder: Path, settings: dict) -> str | None:
    """chat_template.jinja, else that of tokenizer_config.json: one template, or several of which one is "default"."""
    if (file := folder / "chat_template.jinja").is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (ValueError, OSError) as error:
            raise ValueError(f"{file} is not readable text ({error}): delete it and fetch the model again") from None
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None
