"""Where a cycle may begin: two distributions of your own, or those of two real models in the middle of an output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from minispec import exact, verify
from minispec.drafters import Model as ModelDrafter
from minispec.load.handle import Model
from minispec.sampling import Sampling
from minispec.speculate import speculate

PRESETS = {
    "a fair draft": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.20, 0.35, 0.15, 0.25, 0.05]),
    "a good draft": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.36, 0.28, 0.18, 0.12, 0.06]),
    "a bad draft": ([0.60, 0.25, 0.10, 0.05, 0.00], [0.05, 0.10, 0.15, 0.30, 0.40]),
    "too sure of itself": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.85, 0.10, 0.03, 0.01, 0.01]),
    "too timid": ([0.80, 0.10, 0.05, 0.03, 0.02], [0.20, 0.20, 0.20, 0.20, 0.20]),
    "nothing in common": ([0.50, 0.30, 0.20, 0.00, 0.00], [0.00, 0.00, 0.00, 0.60, 0.40]),
    "the target itself": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.40, 0.25, 0.20, 0.10, 0.05]),
    "greedy target": ([0.00, 1.00, 0.00, 0.00, 0.00], [0.20, 0.45, 0.20, 0.10, 0.05]),
}


@dataclass(frozen=True)
class Place:
    """Where a cycle begins: what both models say there, and after any tokens that may follow."""

    name: str
    target: exact.Model
    draft: exact.Model
    labels: Sequence[str]  # of the whole vocabulary
    shown: tuple[int, ...]  # the tokens that have a bar

    @property
    def probs(self) -> dict[str, list[float]]:
        """p and q over the shown tokens, as the editor takes them."""
        return {name: model(())[list(self.shown)].tolist() for name, model in (("p", self.target), ("q", self.draft))}

    def edited(self, p: Sequence[float], q: Sequence[float]) -> Place:
        """The same position with other distributions over the shown tokens. What comes after stays."""

        def begin(model: exact.Model, probs: Sequence[float]) -> exact.Model:
            first = torch.zeros(len(self.labels), dtype=torch.float64)
            first[list(self.shown)] = torch.tensor(probs, dtype=torch.float64)
            return lambda context: model(context) if context else first

        return replace(self, target=begin(self.target, p), draft=begin(self.draft, q))


@dataclass(frozen=True)
class Toy(Place):
    """A position with two made-up distributions. After token number n both are rotated by n + 1 tokens: the next token
    has another favourite, and the acceptance probability stays what it was."""

    def edited(self, p: Sequence[float], q: Sequence[float]) -> Place:
        return toy_place(p, q, self.name, self.labels)


def toy_place(p, q, name: str = "p and q", labels: Sequence[str] = ()) -> Place:
    """A position with two distributions of your own."""
    p, q = exact.as_distribution("p", p), exact.as_distribution("q", q)
    if p.shape != q.shape or p.dim() != 1:
        raise ValueError(f"p has {len(p)} tokens and q {len(q)}: give both distributions over the same tokens")
    labels = list(labels) or [chr(ord("a") + i) for i in range(len(p))]

    def turned(probs: Tensor) -> exact.Model:
        return cache(lambda context: probs.roll(sum(x + 1 for x in context)))

    return Toy(name, turned(p), turned(q), labels, tuple(range(len(p))))


def real_places(
    target: Model, draft: Model, prompt="Once upon a time", *, count=6, top_k=3, temperature=1.0, seed=0
) -> list[Place]:
    """Positions of a real speculative run where p and q differ. top_k on both sides keeps the bars few."""
    ids, sampling = target.encode(prompt), Sampling(temperature, top_k)
    options = dict(temperature=temperature, top_k=top_k, seed=seed)
    out = speculate(target, ids, ModelDrafter(draft), k=2, max_new_tokens=64, **options)
    sequence = [*ids, *out.tokens]

    def name(token: int) -> str:
        return f"{token}" if target.tokenizer is None else target.tokenizer.decode([token], skip_special_tokens=False)

    def reader(model: Model, before: Sequence[int]) -> exact.Model:
        @torch.inference_mode()
        def probs(context: verify.Context) -> Tensor:
            read = torch.tensor([[*before, *context]], device=model.device)
            return sampling.probs(model.transformer(read, last_only=True).logits[0, -1].double()).cpu()

        return cache(probs)

    found = []
    labels = [name(token) for token in range(target.config.vocab_size)]
    for turn in out.trace.cycles:
        for i in range(min(turn.accepted + 1, len(turn.drafted))):  # the draft tokens that were tested
            before = [*sequence[: turn.committed], *turn.drafted[:i]]
            models = reader(target, before), reader(draft, before)
            p, q = (model(()) for model in models)
            if exact.total_variation(p, q) < 0.1:
                continue  # nothing to see
            likeliest_first = (p + q).argsort(descending=True)[: int(((p + q) > 0).sum())].tolist()
            fate = "accepted" if i < turn.accepted else "rejected"
            said = "".join(map(name, before[-4:]))
            title = f"“…{said}” → “{name(turn.drafted[i])}” {fate}"
            found.append(Place(title, *models, labels, tuple(likeliest_first)))
            if len(found) == count:
                return found
    return found
