"""The automaton that a request asks for: ours where it knows how, else the one of a library.

`choices=` and regular expressions without tricks are ours. JSON schemas, and what our parser refuses, are llguidance's
(the extra "constraints"), which vLLM and SGLang use, too. Whoever parsed it, a `Follower` is asked one thing: which
tokens may come after this prefix?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from .automaton import Automaton, Choices, Vocabulary, either, literal, parse

if TYPE_CHECKING:
    from ..load.handle import Model

INSTALL = 'install the extra "constraints": pip install "minispec[constraints]"'


class NotInstalled(ValueError, ImportError):
    """A constraint that only the extra knows."""


def agreed(known: Sequence[int], output: Sequence[int]) -> int:
    """How many tokens two prefixes have in common, from the start."""
    n = min(len(known), len(output))
    if list(known[:n]) == list(output[:n]):
        return n
    return next(i for i in range(n) if known[i] != output[i])


class Follower:
    """One sequence on its way through an automaton. The states of all its positions are kept: when a draft was
    rejected, or a sibling of a tree is asked about, it goes back to the position where the two prefixes diverge."""

    def __init__(self, automaton: Automaton | Choices):
        self.automaton, self.states, self.seen = automaton, [automaton.start], []

    def allowed(self, output: Sequence[int]) -> Tensor | None:
        """Which tokens may come after this output, [V] bool; None: it has left the automaton, or has ended."""
        same = agreed(self.seen, output)
        del self.seen[same:], self.states[same + 1 :]
        for token in output[same:]:
            self.seen.append(token)
            self.states.append(self.automaton.next(self.states[-1], token))
        return None if self.states[-1] is None else self.automaton.allowed(self.states[-1])


class Guided:
    """The same by llguidance, whose matcher holds one state and can roll back."""

    def __init__(self, tokenizer, grammar: str, size: int, asked: str):
        from llguidance import LLMatcher

        self.matcher, self.size, self.seen = LLMatcher(tokenizer, grammar, log_level=0), size, []
        if self.matcher.is_error():
            raise ValueError(f"{asked}: {self.matcher.get_error().splitlines()[0]}")

    def allowed(self, output: Sequence[int]) -> Tensor | None:
        same = agreed(self.seen, output)
        self.matcher.rollback(len(self.seen) - same)
        del self.seen[same:]
        for token in output[same:]:
            # A token that does not fit would break the matcher for good: it is not shown any.
            if self.matcher.is_stopped() or not self.matcher.validate_tokens([token]):
                return None
            self.matcher.consume_token(token)
            self.seen.append(token)
        if self.matcher.is_stopped() and self.seen and self.seen[-1] in self.ends:
            return None
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")[: self.size].astype(bool))


# ---- what a model's tokens look like ---------------------------------------------------------------------------------

VOCABULARIES: WeakKeyDictionary = WeakKeyDictionary()  # model → Vocabulary: to make one takes a moment


def vocabulary(model: Model) -> Vocabulary:
    if model not in VOCABULARIES:
        VOCABULARIES[model] = Vocabulary(pieces(model))
    return VOCABULARIES[model]


def pieces(model: Model) -> list[str | None]:
    """Every token as the text that it adds to a text. None: it adds none (a special token), or only a part of a
    character, which our automaton does not follow."""
    tokenizer, size = model.tokenizer, model.config.vocab_size
    before = tokenizer.encode("a", add_special_tokens=False).ids[-1:]  # some tokens drop their space at the beginning
    known = range(min(size, tokenizer.get_vocab_size()))
    texts = tokenizer.decode_batch([[*before, token] for token in known], skip_special_tokens=True)
    start = len(tokenizer.decode(before))
    found = [None if "\ufffd" in text else text[start:] or None for text in texts]
    return [*found, *[None] * (size - len(found))]


# ---- one request's ---------------------------------------------------------------------------------------------------


def follower(model: Model, ends: Sequence[int], choices=None, regex: str | None = None, schema: str | None = None):
    """The Follower of a request's constraint; None: it asks for none."""
    if choices is None and regex is None and schema is None:
        return None
    if not ends:
        raise ValueError(
            "a constraint ends with an end token, and this model has none (or ignore_eos is on): give stop_token_ids"
        )
    size = model.config.vocab_size
    if choices is not None and not isinstance(choices[0], str):
        return Follower(Choices(choices, size, ends))
    if model.tokenizer is None:
        raise ValueError(f"{model.name} has no tokenizer, so tokens have no text: give choices as lists of token ids")
    if choices is not None:
        return Follower(Automaton(either(map(literal, choices)), vocabulary(model), ends))
    if schema is not None:
        # As json.dumps spaces it: where any white space is allowed, small models emit white space without end.
        spaced = {"whitespace_flexible": False}
        return guided(model, ends, "grammar_from_json_schema", schema, f"json_schema={schema}", defaults=spaced)
    try:
        return Follower(Automaton(parse(regex), vocabulary(model), ends))
    except NotImplementedError as beyond:
        try:
            return guided(model, ends, "grammar_from_regex", regex, f"regex={regex!r}")
        except NotInstalled:
            raise ValueError(str(beyond)) from None


TOKENIZERS: WeakKeyDictionary = WeakKeyDictionary()  # model → {ends: llguidance's view of its tokenizer}


def guided(model: Model, ends: Sequence[int], kind: str, source: str, asked: str, **options) -> Guided:
    try:
        from llguidance import LLMatcher, LLTokenizer
    except ImportError:
        raise NotInstalled(f"{asked}: {INSTALL}") from None
    made, ends = TOKENIZERS.setdefault(model, {}), tuple(ends)
    if ends not in made:
        made[ends] = LLTokenizer(model.tokenizer.to_str(), n_vocab=model.config.vocab_size, eos_token=list(ends))
    guided = Guided(made[ends], getattr(LLMatcher, kind)(source, **options), model.config.vocab_size, asked)
    guided.ends = frozenset(ends)
    return guided
