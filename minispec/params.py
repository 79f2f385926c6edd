"""SamplingParams: everything a request may ask for."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

from .processors.prefix import FIELDS, PENALTIES, Processors, checked
from .require import require, require_counts, whole
from .sampling import Coins, Sampling

if TYPE_CHECKING:
    from .load.model import Model


@dataclass(frozen=True)
class SamplingParams(Sampling):
    """Everything a request may ask for: the distribution, the seed, and when to stop. Each field is a keyword of
    `generate`, `speculate` and `Engine.add`, too; the names are those of vLLM and transformers."""

    seed: int | None = None  # None: another one every time; each sequence of a batch has its own, derived from this
    max_new_tokens: int = 64
    min_new_tokens: int = 0  # until then no token that would end the sequence is sampled, and no stop string counts
    stop: str | Sequence[str] = ()  # strings, or special tokens by name, that end the output; its text ends before them
    stop_token_ids: Sequence[int] = ()  # tokens that end it, and its text, besides the model's own end tokens
    ignore_eos: bool = False  # go on past the model's own end tokens
    logprobs: int | None = None  # `out.logprobs`: of each token, and of so many most likely ones beside it
    # What depends on the prefix (processors/prefix.py): the same distribution with and without a draft.
    repetition_penalty: float = 1.0  # > 1: tokens of prompt and output become less likely
    presence_penalty: float = 0.0  # off the logits of tokens that are in the output
    frequency_penalty: float = 0.0  # the same, as often as they are in it
    logit_bias: Mapping[int, float] = ()  # token → what is added to its logit
    choices: Sequence[str] | Sequence[Sequence[int]] | None = None  # the output is one of these, and then ends
    regex: str | None = None  # the whole output matches this
    json_schema: dict | str | None = None  # the output is JSON of this schema
    constrain_after: str | None = None  # these three hold after this text in the output, such as "</think>"

    def __post_init__(self):
        super().__post_init__()
        bits = self.seed is None or whole(self.seed, -(2**63), 2**63 - 1)
        require(bits, "a whole number of at most 64 bits, or None for any", seed=self.seed)
        most, least, beside = self.max_new_tokens, self.min_new_tokens, self.logprobs
        require_counts(max_new_tokens=most)
        require(whole(least, 0, most), f"a whole number from 0 to max_new_tokens={most}", min_new_tokens=least)
        meaning = "how many tokens beside the emitted one, or None for no log-probabilities"
        require(beside is None or whole(beside, 0), f"a whole number ≥ 0, {meaning}", logprobs=beside)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        full = all(isinstance(s, str) and s for s in stop)
        require(full, "strings that are not empty (every text begins with '')", stop=self.stop)
        ids = tuple(self.stop_token_ids)
        require(all(map(whole, ids)), "token ids, whole numbers", stop_token_ids=ids)
        for name, value in (checked(self) | dict(stop=stop, stop_token_ids=tuple(map(int, ids)))).items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    @classmethod
    def of(cls, params: SamplingParams | None = None, **options) -> SamplingParams:
        """`params` with some fields replaced; an option that is None changes nothing."""
        ours = isinstance(params, (SamplingParams, type(None)))
        require(ours, "ms.SamplingParams(...), or its fields as keywords", params=params)
        known = [field.name for field in fields(cls)]
        if unknown := sorted(options.keys() - set(known)):
            raise TypeError(f"{unknown[0]!r} is no sampling parameter; they are {', '.join(known)}")
        options = {name: value for name, value in options.items() if value is not None}
        return replace(params or cls(), **options)

    @cached_property
    def sampling(self) -> Sampling:
        """The distribution alone: requests that differ in nothing but seeds and stops share it."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def by_prefix(self) -> bool:
        """Whether anything but min_new_tokens depends on the prefix."""
        return any(getattr(self, name) not in (None, (), PENALTIES.get(name)) for name in FIELDS)

    def processors(self, model: Model, prompt: Sequence[int]) -> Processors | None:
        """What to do to the logits of one sequence; None: nothing, ever."""
        return Processors(self, model, prompt) if self.by_prefix or self.min_new_tokens else None

    def coins(self, index: int = 0) -> Coins:
        """The randomness of sequence `index` of a batch. The first one's seed is the seed itself; the others' are not
        seed + 1, + 2, …, because batches with the seeds 0 and 1 would share all but one of them."""
        if self.seed is None:
            return Coins(secrets.randbits(64))
        return Coins(Random(f"{self.seed} {index}").getrandbits(64) if index else int(self.seed))
