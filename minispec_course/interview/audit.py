"""The audit: what guides to speculative decoding claim, what comes out when it is computed, and a verdict.

    python -m minispec_course.interview.audit          writes docs/audit.md

The claims are in audit.yaml, in our words, with a few of the guide's own beside them. Every number is evaluated here:
an expression of theory.py, or one of the CHECKS below, which run real verifiers on toy distributions down every branch
(exact.py) and return a distance from the target's distribution: 0 is exact.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import yaml
from torch import Tensor

from minispec import exact
from minispec.load.write import write_whole
from minispec.verify import Verdict, accept_probability, chain, pick, tree, typical

from .expressions import evaluate

FILE = Path(__file__).parent / "audit.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
HOLDS, DEPENDS, FAILS, UNKNOWN = "holds", "depends", "does not hold", "cannot be checked"
CLOSE = 0.05  # a claimed figure may be rounded
MARKS = {HOLDS: "✓", DEPENDS: "~", FAILS: "✗", UNKNOWN: "?"}

# ---------------------------------------------------------------- checks on toy distributions

# A vocabulary of three tokens. The target's distribution depends on the last token, the draft's does not.
TARGET = {None: [0.5, 0.3, 0.2], 0: [0.6, 0.3, 0.1], 1: [0.1, 0.2, 0.7], 2: [0.3, 0.4, 0.3]}
DRAFT = [0.2, 0.5, 0.3]


def target(context: Sequence[int]) -> Tensor:
    return torch.tensor(TARGET[context[-1] if context else None], dtype=torch.float64)


def draft(context: Sequence[int]) -> Tensor:
    return torch.tensor(DRAFT, dtype=torch.float64)


def from_target(p: Tensor, q: Tensor) -> Tensor:
    """The wrong replacement: p itself."""
    return p


def bias(cycle: Callable[[tuple], dict], tokens: int = 1) -> float:
    """Total variation between the first tokens that cycles emit and those of the target."""
    mine = exact.joint_distribution(cycle, tokens)
    return exact.total_variation(mine, exact.joint_distribution(partial(exact.plain_distribution, target), tokens))


def chain_bias(tokens: int = 2, draft: exact.Model = draft, **rules) -> float:
    verify = partial(chain, **rules)
    return bias(lambda context: exact.chain_distribution(target, draft, 2, context, verify=verify), tokens)


def sound_rule() -> float:
    return chain_bias()


def replacement_from_target() -> float:
    return chain_bias(replace=from_target)


def greedy_draft() -> float:
    """The draft model always proposes its likeliest token, and q is one-hot."""

    def favourite(draft, context, k, random):
        return (int(torch.tensor(DRAFT).argmax()),) * k, None

    return bias(lambda context: exact.chain_distribution(target, draft, 2, context, propose=favourite), 2)


def hot(context: Sequence[int]) -> Tensor:
    """The draft's distribution at temperature 2."""
    q = draft(context) ** 0.5
    return q / q.sum()


def other_temperature() -> float:
    return chain_bias(draft=hot)


def inconsistent_temperature() -> float:
    """Draft tokens are sampled at temperature 2, but q is computed at temperature 1."""

    def propose(draft, context, k, random):
        return exact.propose_chain(hot, context, k, random)[0], torch.stack([draft(context)] * k)

    return bias(lambda context: exact.chain_distribution(target, draft, 2, context, propose=propose), 2)


def accepted_tokens() -> float:
    """The distribution of accepted tokens alone, min(p, q)/β, compared with p."""
    p, q = target(()), draft(())
    overlap = torch.minimum(p, q)
    return exact.total_variation(overlap / overlap.sum(), p)


def residual_of_one_number() -> float:
    """Only q(d) was kept, so only d can be lowered before the replacement is sampled."""

    def verify(p: Tensor, q: Tensor, drafted: Sequence[int], u) -> Verdict:
        d = drafted[0]
        if u[0] < float(accept_probability(p[0], q[0], d)):
            return Verdict([0], pick(p[1], u[-1]))
        left = p[0].clone()
        left[d] = (p[0, d] - q[0, d]).clamp(min=0)
        return Verdict([], pick(left / left.sum(), u[-1]))

    return bias(lambda context: exact.chain_distribution(target, draft, 1, context, verify=verify))


def replacement_without_offset() -> float:
    """The first draft token is rejected after the prompt 0, 1, 2; logits[0] is the prediction after the prompt's 0."""
    return exact.total_variation(target((0,)), target((0, 1, 2)))


def prompt_never_advanced() -> float:
    return bias(lambda context: exact.chain_distribution(target, draft, 1), 2)


def tree_bias(**rules) -> float:
    return bias(lambda context: exact.tree_distribution(target, draft, [2], context, **rules), 2)


def tree_of_naive_siblings() -> float:
    return tree_bias(verify=partial(tree, replace=from_target))


def tree_of_residuals() -> float:
    return tree_bias()


def typical_acceptance() -> float:
    return tree_bias(verify=lambda p, q, tokens, parents, u: typical(p, tokens, parents, u))


def tokens_of_a_cycle() -> float:
    """E[N] of a real verifier where each of two draft tokens is accepted with probability 0.75."""
    p, q = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    runs = exact.chain_distribution(lambda context: p, lambda context: q, 2)
    return sum(len(run) * probability for run, probability in runs.items())


def tokens_after_the_last_rejection() -> float:
    """How many tokens the verifier keeps if it accepts three of four draft tokens and rejects the fourth."""
    p, q = torch.full((5, 2), 0.5), torch.tensor([[0.1, 0.9]] * 4)
    return len(chain(p, q, [1] * 4, [0.0, 0.0, 0.0, 0.9, 0.0]).run([1] * 4))


CHECKS = {
    check.__name__: check
    for check in (
        sound_rule,
        replacement_from_target,
        greedy_draft,
        other_temperature,
        inconsistent_temperature,
        accepted_tokens,
        residual_of_one_number,
        replacement_without_offset,
        prompt_never_advanced,
        tree_of_naive_siblings,
        tree_of_residuals,
        typical_acceptance,
        tokens_of_a_cycle,
        tokens_after_the_last_rejection,
    )
}


@cache
def compute(expression: str) -> float:
    """A check by its name, or an expression of theory.py."""
    return CHECKS[expression]() if expression in CHECKS else evaluate(expression)


# ---------------------------------------------------------------- claims


@dataclass(frozen=True)
class Figure:
    what: str
    compute: str
    claimed: float | tuple[float, float] | None = None  # a value, or the ends of a range; None: shown, not compared

    @property
    def value(self) -> float:
        return compute(self.compute)

    @property
    def agrees(self) -> bool | None:
        """Whether the computation bears the claim out; None: nothing was claimed."""
        if self.claimed is None:
            return None
        if isinstance(self.claimed, tuple):
            return self.claimed[0] - 1e-9 <= self.value <= self.claimed[1] + 1e-9
        return abs(self.value - self.claimed) <= max(CLOSE * abs(self.claimed), 1e-9)

    def text(self) -> str:
        said = "" if self.claimed is None else f" (claimed: {_claimed(self.claimed)})"
        return f"{self.what}: **{_digits(self.value)}**{said}"


@dataclass(frozen=True)
class Claim:
    id: str
    topic: str
    claim: str
    right: str
    items: tuple[str, ...]  # labels of coverage.yaml
    numbers: tuple[Figure, ...] = ()
    given: str | None = None  # a verdict by hand
    quote: str | None = None  # a few of the guide's own words

    @property
    def guides(self) -> str:
        return " ".join(sorted({item[0] for item in self.items}))

    def text(self) -> str:
        return self.claim if self.quote is None else f"{self.claim} (“{self.quote}”)"

    @property
    def verdict(self) -> str:
        """All figures agree: holds; none: does not; some: depends."""
        if self.given:
            return self.given
        agree = [figure.agrees for figure in self.numbers if figure.agrees is not None]
        return HOLDS if all(agree) else DEPENDS if any(agree) else FAILS


@cache
def topics() -> dict[str, tuple[str, tuple[Claim, ...], tuple[str, ...]]]:
    """The audit by topic: title, claims, and labels of coverage.yaml that say nothing to compute."""
    found = {}
    for part in yaml.safe_load(FILE.read_text(encoding="utf-8")):
        claims = tuple(_claim(raw, part["topic"]) for raw in part["claims"])
        found[part["topic"]] = part["title"], claims, tuple(part.get("items", ()))
    return found


def _claim(raw: dict, topic: str) -> Claim:
    figures = []
    for number in raw.get("numbers", ()):
        claimed = number.get("claimed")
        figures.append(
            Figure(number["what"], str(number["compute"]), tuple(claimed) if isinstance(claimed, list) else claimed)
        )
    given = raw.get("verdict")
    if given is None and not any(figure.claimed is not None for figure in figures):
        raise ValueError(f"{FILE.name}, {raw['id']}: give a claimed number to compare with, or a verdict")
    if given not in (None, *MARKS):
        raise ValueError(f"{FILE.name}, {raw['id']}: verdict={given!r}; give one of {', '.join(MARKS)}")
    said = (raw["claim"], raw["right"], tuple(raw["items"]))
    return Claim(raw["id"], topic, *said, tuple(figures), given, raw.get("quote"))


def claims(topic: str | None = None) -> list[Claim]:
    if topic is not None and topic not in topics():
        raise ValueError(f"topic={topic!r}: give one of {', '.join(topics())}, or None")
    return [claim for name, (_, some, _) in topics().items() if topic in (None, name) for claim in some]


def counts(topic: str | None = None) -> dict[str, int]:
    """How many claims got which verdict."""
    verdicts = [claim.verdict for claim in claims(topic)]
    return {verdict: verdicts.count(verdict) for verdict in MARKS}


def table(topic: str) -> str:
    """One topic's claims, what was computed, and the verdicts, in Markdown."""
    lines = ["| guide | claim | computed | verdict | what is right |", "|---|---|---|---|---|"]
    for claim in claims(topic):
        computed = "<br>".join(figure.text() for figure in claim.numbers) or "–"
        cells = (claim.guides, claim.text(), computed, f"{MARKS[claim.verdict]} {claim.verdict}", claim.right)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def page() -> str:
    """docs/audit.md."""
    verbs = ("hold", "depend on more", "do not hold", "cannot be checked")
    tally = ", ".join(f"{count} {verb}" for verb, count in zip(verbs, counts().values(), strict=True))
    lines = [
        "# Audit",
        "",
        "Made by `python -m minispec_course.interview.audit`; not for editing.",
        "",
        "Which of the things that are commonly said about speculative decoding are true? Five guides, called A to E, "
        "make claims that can be computed, and this page computes them. A claim is given in our words; where the "
        "guide's own wording matters, a few of its words follow in quotation marks. "
        f"Of {len(claims())} claims {tally}.",
        "",
        f"How a verdict is reached: a claimed figure may be off by {CLOSE:.0%}. A claim *holds* if all of its figures "
        "agree with the computation, it *depends* if some of them do, and it *does not hold* if none does.",
        "",
        "What the symbols mean: k is the number of draft tokens per cycle, α the probability that a draft token is "
        "accepted, c the time to draft one token and v the time to verify k + 1 tokens, both in units of one forward "
        "pass of the target over one token. *Best* is the speed-up at the best k. A distance is the total variation "
        "between what a verifier emits and what the target would emit, computed exactly on a vocabulary of three "
        "tokens; 0 means that the verifier is lossless. Figures for an H200 are roofline estimates that count weights "
        "only, with the 790 TFLOP/s and 4.2 TB/s that we measured on one (its data sheet says 989 and 4.8).",
    ]
    for topic, (title, some, _) in topics().items():
        if some:
            lines += ["", f"## {title}", "", table(topic)]
    return "\n".join(lines) + "\n"


def _digits(x: float) -> str:
    """Three figures; whole numbers as they are; what is zero but for rounding as 0."""
    if abs(x) < 1e-9:
        return "0"
    if x == round(x):
        return f"{x:,.0f}"
    return f"{x:.2f}" if 1 <= x < 100 else f"{x:.3g}" if x < 1 else f"{x:,.0f}"


def _claimed(claimed: float | tuple[float, float]) -> str:
    if isinstance(claimed, tuple):
        low, high = claimed
        return f"{low:g} to {high:g}"
    return f"{claimed:g}"


def main(argv: Sequence[str]) -> None:
    file = Path(argv[0]) if argv else PAGE
    write_whole(file, page())
    print(f"wrote {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
