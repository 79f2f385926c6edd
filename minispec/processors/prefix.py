"""Processors: what a request's sampling makes of logits before temperature and truncation, given everything before.

In the order of vLLM:

    logit_bias            z(x) += bias(x)
    repetition_penalty    z(x) = z(x)/r if z(x) > 0 else z(x)·r          for x in prompt or output
    frequency_penalty     z(x) −= f · (how often x is in the output)
    presence_penalty      z(x) −= s                                       for x in the output
    forbidden             z(x) = −∞: end tokens before min_new_tokens, and what a constraint does not allow

All but the bias depend on the prefix, so they differ from one position of a draft to the next. Plain decoding meets the
prefixes one after the other. A verify pass meets them all at once: node i of a draft is judged by the logits after the
output so far and the nodes above i, so these must be processed as plain decoding would process them there, with exactly
that prefix. Then p is the same distribution in both, and the verifier does the rest.

A constraint has the last word. Where min_new_tokens leaves nothing of what it allows, it yields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..require import real, require, whole
from .constraint import After, follower

if TYPE_CHECKING:
    from ..load.model import Model

PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}  # what changes nothing
CONSTRAINTS = ("choices", "regex", "json_schema")
FIELDS = (*PENALTIES, "logit_bias", *CONSTRAINTS)  # of SamplingParams


class Processors:
    """Those of one sequence. `params` is a SamplingParams; the prompt's tokens count for some of them."""

    def __init__(self, params, model: Model, prompt: Sequence[int]):
        self.params, self.prompt, self.size = params, list(prompt), model.config.vocab_size
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else model.end_tokens)
        self.ends = sorted(token for token in ends if 0 <= token < self.size)
        self.always = params.by_prefix
        self.penalised = any(getattr(params, name) != nothing for name, nothing in PENALTIES.items())
        self.bias = torch.zeros(self.size, dtype=torch.float64)
        for token, bias in params.logit_bias:
            known = f"tokens up to {self.size - 1}, where the vocabulary of {model.name} ends"
            require(0 <= token < self.size, known, logit_bias=token)
            self.bias[token] = bias
        self.seen_in_prompt = torch.bincount(torch.tensor(self.prompt), minlength=self.size) > 0  # [V]
        self.constraint = follower(model, self.ends, params.choices, params.regex, params.json_schema)
        if params.constrain_after is not None:
            self.constraint = After(self.constraint, params.constrain_after, model, self.ends)

    def active(self, length: int) -> bool:
        """Whether there is anything to do for a sequence of so many tokens, or after it, within a draft."""
        return self.always or (length < len(self.prompt) + self.params.min_new_tokens and bool(self.ends))

    def __call__(self, logits: Tensor, outputs: Sequence[Sequence[int]], guessed: bool = False) -> Tensor:
        """Logits [n, V], row i after the prompt and outputs[i]: processed, in memory of their own. The first output is
        what was emitted, the others are drafts of what may follow; unless all are guessed."""
        z, where = logits.clone(), logits.device
        if self.params.logit_bias:
            z += self.bias.to(where, z.dtype)
        if self.penalised:
            emitted = [torch.tensor(output, dtype=torch.long) for output in outputs]
            counts = torch.stack([torch.bincount(tokens, minlength=self.size) for tokens in emitted])  # [n, V]
            seen, counts = (self.seen_in_prompt | (counts > 0)).to(where), counts.to(where, z.dtype)
            r = self.params.repetition_penalty
            z = torch.where(seen, torch.where(z > 0, z / r, z * r), z)
            z = z - self.params.frequency_penalty * counts - self.params.presence_penalty * (counts > 0).to(z.dtype)
        for row, output in enumerate(outputs):
            if (forbidden := self.forbidden(output, real=row == 0 and not guessed)) is not None:
                z[row] = z[row].masked_fill(forbidden.to(where), -math.inf)
        return z

    def forbidden(self, output: Sequence[int], real: bool = False) -> Tensor | None:
        """The tokens that cannot come after this output, [V] bool; None: any may. Where no token can, a real output is
        an error; what is drafted after it does not matter."""
        ids = self.ends if len(output) < self.params.min_new_tokens else []
        allowed = self.constraint and self.constraint.allowed(output)
        if allowed is not None and not bool(allowed.any()):
            if real:
                raise ValueError(f"no token of the vocabulary continues {output[-8:]} as the constraint asks")
            allowed = None
        if not ids and allowed is None:
            return None
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[ids] = True
        if allowed is None:
            return mask
        return ~allowed | mask if bool((allowed & ~mask).any()) else ~allowed

    def possible(self, output: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The nodes of a draft after this output that are not forbidden, nor below one that is."""
        kept, prefixes, masks = [], {-1: list(output)}, {}
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if parent in prefixes:
                if parent not in masks:
                    masks[parent] = self.forbidden(prefixes[parent])
                if masks[parent] is None or not bool(masks[parent][token]):
                    kept.append(node)
                    prefixes[node] = [*prefixes[parent], token]
        return kept


# ---- what a request may ask for --------------------------------------------------------------------------------------


def checked(params) -> dict:
    """The fields of SamplingParams that depend on the prefix, checked and as they are kept: so that they can be
    compared and hashed."""
    r, given = params.repetition_penalty, params.logit_bias
    require(
        real(r, 0.01, 100), "a number from 0.01 to 100, so that no logit overflows (1: no change)", repetition_penalty=r
    )
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        require(real(value), "a finite number (0 changes nothing)", **{name: value})
    pairs = tuple(given.items() if isinstance(given, dict) else given)
    fits = all(whole(token) and real(bias) for token, bias in pairs)
    require(fits, "{token id: number to add to its logit}", logit_bias=given)
    kept = dict(logit_bias=pairs)
    if sum(getattr(params, name) is not None for name in CONSTRAINTS) > 1:
        raise ValueError(f"give one of {', '.join(CONSTRAINTS)}: an output follows one constraint")
    if (tag := params.constrain_after) is not None:
        asked = any(getattr(params, name) is not None for name in CONSTRAINTS) and isinstance(tag, str) and tag
        require(asked, f"a text that is not empty, beside one of {', '.join(CONSTRAINTS)}", constrain_after=tag)
    if (choices := params.choices) is not None:
        lists = tuple(choice if isinstance(choice, str) else tuple(choice) for choice in choices)
        alike = len({isinstance(choice, str) for choice in lists}) == 1
        fits = alike and all(lists) and not isinstance(choices, str)
        require(fits, "strings, or lists of token ids, none of them empty", choices=choices)
        kept["choices"] = lists
    require(isinstance(params.regex, (str, type(None))), "a pattern as text", regex=params.regex)
    if (schema := params.json_schema) is not None:
        require(isinstance(schema, (dict, str)), "a schema, as a dict or as text", json_schema=schema)
        kept["json_schema"] = schema if isinstance(schema, str) else json.dumps(schema)
    return kept
