"""What a drafter is: something that proposes tokens for a target to verify.

The loop calls `propose` before a cycle and `settle` after it, once per row. A drafter may be a model, a lookup table or
a set of trained heads. The verifier does not care, as long as `Draft.probs` is the law that was really drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..sampling import Sampling


@dataclass
class Context:
    """One row of a batch, as a drafter sees it."""

    row: int  # the row's id, for drafters that remember something about it
    tokens: list[int]  # prompt and everything emitted so far; the last one has not been read by any model yet
    sampling: Sampling
    generator: torch.Generator
    hidden: dict[int, Tensor] = field(default_factory=dict)  # layers → target's states of newly read tokens [n, d]


@dataclass
class Scratch:
    """Tokens that ride along in the target's pass without being candidates: lookahead's window.

    They see the committed text (the last token included) and, of each other, what `mask` allows.
    """

    tokens: list[int]
    offsets: list[int]  # position of each, counted from the last committed token: 1 is the place right after it
    mask: Tensor  # [s, s] bool, True where scratch token i sees scratch token j


@dataclass
class Draft:
    tokens: list[int]
    probs: Tensor | None = None  # [n, V], the law each token was drawn from; None: not drawn at all (one-hot)
    parents: list[int] | None = None  # None: a chain; otherwise a tree, −1 is the last committed token
    scratch: Scratch | None = None


class Drafter:
    """The protocol. Adding a drafter is adding one file with one subclass."""

    hidden_layers: Sequence[int] = ()  # ask for the target's residual stream after these many layers
    vocab_size: int | None = None  # of the model behind it, if there is one: must be the target's
    lossless: bool = True  # False: judged by verify.typical, and what comes out no longer follows the target's law
    chain_model = None  # the Model whose plain chain this drafts, and nothing else: a device may run it all alone
    extra_slots: int = 0  # cache slots a pass may need beyond a chain's: side branches and scratch tokens

    def propose(self, contexts: Sequence[Context], k: int) -> list[Draft]:
        """Up to k tokens deep for every row."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it proposes")

    def settle(self, row: int, path: Sequence[int], emitted: int, scratch: Tensor | None = None) -> None:
        """The cycle is over: these nodes were accepted, this token was emitted after them.

        `scratch` holds the target's logits [s, V] at the draft's scratch tokens.
        """

    def rewind(self, row: int, length: int) -> None:
        """Only the row's first `length` tokens still hold: inside a cascade, the target may refuse the rest.

        To start afresh is always right. Override it where less will do.
        """
        self.forget(row)

    def forget(self, row: int) -> None:
        """The row is finished; drop what was kept for it."""

    def record(self) -> None:
        """An engine whose passes are recorded (buckets.py) wishes that yours were, too. Called before the first row."""


def uniforms(contexts: Sequence[Context], counts: int | Sequence[int]) -> Tensor:
    """Random numbers in [0, 1) for every row, [B, longest], each from its row's own generator.

    A row with a generator of its own draws its own count and no more (zeros follow): which numbers it gets next must
    not depend on how many somebody else needed.
    """
    counts = [counts] * len(contexts) if isinstance(counts, int) else counts
    first = contexts[0].generator
    if all(context.generator is first for context in contexts):
        return torch.rand(len(contexts), max(counts), generator=first, dtype=torch.float64, device=first.device)
    own = [
        torch.rand(count, generator=c.generator, dtype=torch.float64, device=c.generator.device)
        for c, count in zip(contexts, counts, strict=True)
    ]
    return pad_sequence(own, batch_first=True)


def laws(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Logits [B, ..., V] to laws, each row by its own Sampling."""
    if all(sampling == samplings[0] for sampling in samplings):
        return samplings[0].probs(logits)
    p: Tensor | None = None
    for sampling in dict.fromkeys(samplings):  # not row by row: `probs` looks at the numbers, and a GPU would wait
        rows = [row for row, other in enumerate(samplings) if other == sampling]
        law = sampling.probs(logits[rows])
        p = law.new_empty(logits.shape) if p is None else p
        p[rows] = law
    return p


def stack(drafts: Sequence[Draft], p: Tensor) -> Tensor | None:
    """The laws of all drafts as one tensor [B, n, V], zero where a row drafted less; None if nothing was drawn."""
    if all(draft.probs is None for draft in drafts):
        return None
    drawn = next(draft.probs for draft in drafts if draft.probs is not None)
    # In the draft's own precision: that is how close to one its laws can sum, whatever the target's is.
    q = torch.zeros_like(p[:, :-1], dtype=torch.promote_types(drawn.dtype, torch.float32))
    for i, draft in enumerate(drafts):
        if draft.probs is not None:
            q[i, : len(draft.tokens)] = draft.probs
        else:  # not drawn: could have been nothing else
            q[i, range(len(draft.tokens)), draft.tokens] = 1.0
    return q
