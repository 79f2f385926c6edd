"""A constraint answers one question: which tokens may come after this output?

`choices=` given as lists of tokens are a few lines (`OneOf`). What is said about text (choices as strings, a regular
expression, a JSON schema) has to hold for every spelling of that text in tokens; llguidance, which vLLM and SGLang use
too, compiles it to an automaton over the vocabulary (`Guided`). A constraint may hold from a closing tag on (`After`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from reprlib import repr as shortened
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..require import require_packages

if TYPE_CHECKING:
    from ..load.model import Model


class OneOf:
    """One of some lists of tokens, then an end token. The output itself is the state, so nothing is rolled back."""

    def __init__(self, choices: Sequence[Sequence[int]], size: int, ends: Sequence[int]):
        self.choices, self.size, self.ends = [tuple(choice) for choice in choices], size, list(ends)

    def allowed(self, output: Sequence[int]) -> Tensor | None:
        """Which tokens may come after this output, [V] bool; None: it has left the constraint, or has ended."""
        n = len(output)
        rest = [choice[n:] for choice in self.choices if choice[:n] == tuple(output)]
        if not rest:
            return None
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[[choice[0] for choice in rest if choice]] = True
        if () in rest:
            mask[self.ends] = True
        return mask


class Guided:
    """The same by llguidance. Its matcher holds one state: when a draft was rejected, or a sibling of a tree is asked
    about, it rolls back to the position where the two outputs diverge."""

    def __init__(self, tokenizer, grammar: str, ends: Sequence[int], asked: str):
        from llguidance import LLMatcher

        self.unused, self.ends = LLMatcher(tokenizer, grammar, log_level=0), frozenset(ends)
        if self.unused.is_error():
            raise ValueError(f"{asked}: {self.unused.get_error().splitlines()[0]}")
        self.size, self.matcher, self.seen = tokenizer.vocab_size, self.unused.deep_copy(), []
        if not bool(self.allowed([]).any()):  # before any work
            raise ValueError(f"{asked}: no token of the vocabulary begins such an output")

    def allowed(self, output: Sequence[int]) -> Tensor | None:
        same = common(self.seen, output)
        self.matcher.rollback(len(self.seen) - same)
        del self.seen[same:]
        for token in output[same:]:
            # A token that does not fit would break the matcher for good: it is not shown any.
            if self.matcher.is_stopped() or not self.matcher.validate_tokens([token]):
                return self._begin_anew() if self.matcher.is_error() else None
            self.matcher.consume_token(token)
            self.seen.append(token)
        if not self.matcher.is_error() and self.matcher.is_stopped() and self.seen and self.seen[-1] in self.ends:
            return None
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        if self.matcher.is_error():
            return self._begin_anew()
        mask = torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self.size].astype(bool))
        if not self.matcher.is_accepting():  # where no token leads on, the library would rather end than say so
            mask[list(self.ends)] = False
        return mask

    def _begin_anew(self) -> Tensor:
        """No token leads on from here, or there is too much to keep track of. A matcher that has failed never recovers,
        and allows anything from then on: another one takes its place, and nothing is allowed here."""
        self.matcher, self.seen = self.unused.deep_copy(), []
        return torch.zeros(self.size, dtype=torch.bool)


class After:
    """What `inner` allows, from where `tag` first ends in the output: reasoning is free, the answer after it is not.
    (In vLLM and SGLang a server's `reasoning_parser` knows the tag.) A tag in the prompt does not count.

    The text decides, not the tokens: the tag may be spelt in any way, and a special token counts as its name. Where a
    token holds the end of the tag and more, such as ">{", what is left of it begins the answer; such a token is allowed
    if the answer may begin like that. All this is a function of the output. Nothing is remembered that a rejected draft
    could leave behind, even if the tag was a part of it.

    Before the tag no end token is allowed. vLLM allows it, SGLang does unless `--enable-strict-thinking` is on, and an
    output without any answer may then report "stop". Here that means a whole answer, unless a stop string has ended it.
    If the tag never comes, the output is free text of max_new_tokens, and reports "length".
    """

    def __init__(self, inner: OneOf | Guided, tag: str, model: Model, ends: Sequence[int]):
        if model.tokenizer is None:
            raise ValueError(f"constrain_after={tag!r} is text, and {model.name} has no tokenizer to find it with")
        self.inner, self.tag, self.ends = inner, tag.encode(), list(ends)
        self.texts, self.ids = spellings(model, ends)
        self.longer = [token for token, text in enumerate(self.texts) if self.tag[-1:] in text[:-1]]
        self.before: dict[int, Tensor] = {}  # how many bytes of the tag the output ends with → what may come next

    def allowed(self, output: Sequence[int]) -> Tensor | None:
        text = b"".join(self.texts[token] for token in output)
        end = text.find(self.tag) + len(self.tag)
        if end < len(self.tag):
            return self.free(max(n for n in range(len(self.tag)) if text.endswith(self.tag[:n])))
        n, length = len(output), len(text)  # the tag ends in token n − 1, and that at byte `length`
        while length - len(self.texts[output[n - 1]]) >= end:
            n, length = n - 1, length - len(self.texts[output[n - 1]])
        return self.answer(text[end:length], output[n:])

    def free(self, begun: int) -> Tensor:
        """What may follow `begun` bytes of the tag: any token that is no end, nor the tag and no such answer."""
        if begun not in self.before:
            mask = torch.ones(len(self.texts), dtype=torch.bool)
            for token in self.longer:
                if rest := (self.tag[:begun] + self.texts[token]).partition(self.tag)[2]:
                    follows = self.answer(rest, [])
                    mask[token] = follows is not None and follows.any()
            mask[self.ends] = False
            self.before[begun] = mask
        return self.before[begun]

    def answer(self, rest: bytes, output: Sequence[int]) -> Tensor | None:
        """What `inner` says after the rest of a token and an output. The rest goes as tokens of its own, the longest
        that fit: `inner` takes all spellings of a text for the same."""
        begun = []
        while rest:
            n = next((n for n in range(len(rest), 0, -1) if rest[:n] in self.ids), None)
            if n is None:
                return None
            begun.append(self.ids[rest[:n]])
            rest = rest[n:]
        return self.inner.allowed([*begun, *output])


def common(known: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(known, tokens, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(known), len(tokens)))


def follower(
    model: Model, ends: Sequence[int], choices=None, regex: str | None = None, schema: str | None = None
) -> OneOf | Guided | None:
    """What a request's constraint allows; None: it asks for none."""
    if choices is None and regex is None and schema is None:
        return None
    if not ends:
        raise ValueError(
            "a constraint ends with an end token, and this model has none (or ignore_eos is on): give stop_token_ids"
        )
    if choices is not None and not isinstance(choices[0], str):
        return OneOf(choices, model.config.vocab_size, ends)
    if model.tokenizer is None:
        raise ValueError(f"{model.name} has no tokenizer, so tokens have no text: give choices as lists of token ids")
    require_packages("a constraint on text", "structured", "llguidance")
    from llguidance import LLMatcher

    if schema is not None:
        # As json.dumps spaces it: where any white space is allowed, small models emit white space without end.
        grammar = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})
        return Guided(guide_of(model, ends), grammar, ends, f"json_schema={shortened(schema)}")
    asked = f"choices={shortened(choices)}" if regex is None else f"regex={shortened(regex)}"
    pattern = "|".join(map(re.escape, choices)) if regex is None else regex
    grammar = json.loads(LLMatcher.grammar_from_regex(pattern))
    # Where only one text can follow, llguidance would allow the tokenizer's own spelling alone; the model may know a
    # likelier one, so that is turned off.
    for part in grammar["grammars"]:
        part["lark_grammar"] = '%llguidance {"no_forcing": true}\n' + part["lark_grammar"]
    return Guided(guide_of(model, ends), json.dumps(grammar), ends, asked)


def spellings(model: Model, ends: Sequence[int]) -> tuple[list[bytes], dict[bytes, int]]:
    """The text of every token, a special one's name; and the tokens that are no special ones, by their text."""
    guide, made, key = guide_of(model, ends), GUIDES[model], ("spellings", *ends)
    if key not in made:
        texts = [guide.decode_bytes([token]) for token in range(guide.vocab_size)]
        made[key] = texts, {text: token for token, text in enumerate(texts) if not guide.is_special_token(token)}
    return made[key]


GUIDES: WeakKeyDictionary = WeakKeyDictionary()  # model → what is made of its tokenizer, in a second, for the same ends


def guide_of(model: Model, ends: Sequence[int] = ()):
    """With the model's own end tokens, unless others are given; it knows of every token's bytes, too."""
    from llguidance import LLTokenizer

    made, ends = GUIDES.setdefault(model, {}), tuple(ends) or tuple(sorted(model.end_tokens)) or (0,)
    if ends not in made:
        made[ends] = LLTokenizer(model.tokenizer.to_str(), n_vocab=model.config.vocab_size, eos_token=list(ends))
    return made[ends]
