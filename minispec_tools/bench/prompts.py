"""What the benchmarks ask: a few prompts of each kind, because acceptance depends on what is being generated."""

import json
from pathlib import Path

from minispec.load.model import Model
from minispec_course.labs.pairs import STORIES

QUESTIONS = {  # for models that chat
    "free text": ["Describe a walk through a city at night.", "Why do people enjoy music? Answer in one paragraph."],
    "repetitive": [
        "Write the multiplication table of 7, one line each: 7 x 1 = 7, and so on up to 7 x 20.",
        "Repeat this list three times, exactly as it is: apple, banana, cherry, orange, lemon, grape, melon.",
    ],
    "code": [
        "Write a Python class Stack with the methods push, pop, peek, size and is_empty.",
        "Rename the variable x to total in this function and print all of it again:\n\n"
        "def add(values):\n    x = 0\n    for value in values:\n        if value > 0:\n            x = x + value\n"
        "    return x\n",
    ],
    "summarise": [
        "Summarise this text in three sentences, in its own words:\n\n"
        "A lighthouse is a tower that shows a light to ships at sea. In the old days the light was a wood "
        "fire, later an oil lamp that a keeper had to watch every night. Lenses made of many glass rings, "
        "each ground at its own angle, gather the light of a small lamp into a beam that can be seen thirty "
        "kilometres away. Every lighthouse has its own rhythm of flashes, so that a captain who counts the "
        "seconds knows which tower he sees, and with it where he is. Today the lamps switch themselves on and "
        "off, the keepers have gone, and ships find their way by satellite. Still, many towers are kept "
        "working, because a light needs no receiver and no chart can run out of power."
    ],
}


def read_texts(source: str | Path, model: Model) -> list[tuple[str, str]]:
    """(category, prompt) in the file's order: JSON lines with "prompt" (or "turns") and perhaps "category".

    Or "builtin": what suits the model. Of several turns the first is the prompt.
    """
    if str(source) == "builtin":
        builtin = STORIES if model.chat_template is None else QUESTIONS
        return [(category, text) for category, of_it in builtin.items() for text in of_it]
    try:
        rows = [json.loads(line) for line in Path(source).read_text(encoding="utf-8").splitlines() if line.strip()]
        texts = [(row.get("category", "all"), row["turns"][0] if "turns" in row else row["prompt"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f'prompts={str(source)!r} cannot be used ({error!r}): give a file with a line {{"prompt": "…"}} each'
        ) from None
    if not texts:
        raise ValueError(f"prompts={str(source)!r} is empty: give at least one prompt")
    return texts


def encode(model: Model, text: str) -> list[int]:
    """A prompt as token ids: as chat where the model knows how to."""
    return model.encode(text if model.chat_template is None else [{"role": "user", "content": text}])


def read_prompts(source: str | Path, model: Model, room: int) -> dict[str, list[list[int]]]:
    """Category -> prompts as token ids; `room` is what has to fit after each of them."""
    prompts: dict[str, list[list[int]]] = {}
    for category, text in read_texts(source, model):
        prompts.setdefault(category, []).append(encode(model, text))
    longest = max(len(ids) for of_it in prompts.values() for ids in of_it)
    if longest + room > model.config.max_length:
        raise ValueError(
            f"tokens={room} after the longest prompt, {longest} tokens, exceed the {model.config.max_length} that "
            f"{model.name} can read: ask for fewer tokens or give shorter prompts"
        )
    return prompts
