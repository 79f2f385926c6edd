"""Lesson 15's experiment on prefixes: what penalties and constraints come to if a draft does not see its own prefix.

The distributions of a toy are exact, so 0 means equal to the last digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from minispec import exact, verify
from minispec.processors.prefix import Processors
from minispec.sampling import Sampling, SamplingParams

TOKENS, END = 5, 4  # a vocabulary of five tokens, of which the last is the end
PLAIN = Sampling(temperature=1.0)
TOY = SimpleNamespace(
    name="toy", tokenizer=None, end_tokens=frozenset({END}), config=SimpleNamespace(vocab_size=TOKENS)
)
P = torch.tensor([0.34, 0.26, 0.2, 0.12, 0.08], dtype=torch.float64)
Q = torch.tensor([0.22, 0.34, 0.12, 0.24, 0.08], dtype=torch.float64)
PENALTY = dict(frequency_penalty=1.0)
CHOICES = dict(choices=[(0, 1, 2), (0, 2), (1, 0), (1, 1, 3), (2,)])


def toy_logits(probs: torch.Tensor, output: Sequence[int]) -> torch.Tensor:
    """A toy model: the same probabilities after every output, turned by what it holds."""
    return probs.roll(sum(token + 1 for token in output)).log()


def toy_table() -> str:
    """The toy in words: two models, a penalty and a constraint."""
    rows = (f"{name} {' '.join(f'{float(x):.2f}' for x in probs)}" for name, probs in (("p", P), ("q", Q)))
    spelled = ", ".join("".join("abcd"[token] for token in choice) for choice in CHOICES["choices"])
    return (
        "tokens             a    b    c    d    end\n"
        + "\n".join(f"first token, {row}" for row in rows)
        + "\nAfter tokens the same numbers, rotated to the right: by 1 for each a, by 2 for each b, and so on."
        + f"\nfrequency_penalty = {PENALTY['frequency_penalty']:g}; or a constraint: one of {spelled}, and then the end"
    )


def cycle(
    processors: Processors,
    output: tuple[int, ...],
    random,
    *,
    own_prefix=True,
    processed_draft=True,
    honest_q=True,
    cut=False,
) -> tuple[int, ...]:
    """One cycle with a draft of two tokens, and a switch for each way to get it wrong."""
    drafted, qs = (), []
    for _ in range(2):
        raw = toy_logits(Q, output + drafted)[None]
        made = processors(raw, [output + drafted], guessed=True) if processed_draft else raw
        drafted += (verify.pick(PLAIN.probs(made)[0], random()),)
        qs.append(PLAIN.probs(made if honest_q else raw)[0])
    if cut:  # leave out what the constraint forbids, sampled or not
        drafted = drafted[: len(processors.possible(output, drafted, [-1, 0]))]
    prefixes = [output + drafted[:i] for i in range(len(drafted) + 1)]
    logits = torch.stack([toy_logits(P, prefix) for prefix in prefixes])
    p = PLAIN.probs(processors(logits, prefixes if own_prefix else [output] * len(prefixes)))
    q = torch.stack(qs[: len(drafted)]) if drafted else None
    return verify.chain(p, q, drafted, [random() for _ in p]).run(drafted)


def experiment(options: dict, tokens: int = 2, **switches) -> tuple[float, float]:
    """How far outputs of two tokens are from plain decoding's (total variation), and the tokens per first cycle."""
    processors = Processors(SamplingParams(**options), TOY, [0])

    def ended(output):  # plain decoding stops there: what follows does not count
        return output[: output.index(END) + 1] if END in output else output

    def plain(output):
        return plain_next(processors, output)

    def speculative(output):
        return exact.exact_distribution(lambda random: cycle(processors, output, random, **switches))

    found, right = (exact.joint_distribution(step, tokens) for step in (speculative, plain))
    outputs = [{}, {}]
    for kept, joint in zip(outputs, (found, right), strict=True):
        for output, probability in joint.items():
            kept[ended(output)] = kept.get(ended(output), 0.0) + probability
    length = sum(probability * len(run) for run, probability in speculative(()).items())
    return exact.total_variation(*outputs), length


def plain_next(processors: Processors, output: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    p = PLAIN.probs(processors(toy_logits(P, output)[None], [output]))[0]
    return {(x,): float(px) for x, px in enumerate(p) if px > 0}


WAYS = {
    "frequency penalty": {
        "every position by its own prefix": (PENALTY, {}),
        "the same, and the draft is not penalised": (PENALTY, dict(processed_draft=False)),
        "wrong: one prefix for the whole draft": (PENALTY, dict(own_prefix=False)),
    },
    "constraint": {
        "draft and target are masked": (CHOICES, {}),
        "only the target is masked": (CHOICES, dict(processed_draft=False)),
        "wrong: sampled tokens left out if forbidden": (CHOICES, dict(processed_draft=False, cut=True)),
        "wrong: masked draft, q from before the mask": (CHOICES, dict(honest_q=False)),
    },
}


def prefix_errors() -> dict[str, tuple[float, float]]:
    return {
        name: experiment(options, **switches) for ways in WAYS.values() for name, (options, switches) in ways.items()
    }


def prefix_table(errors: dict[str, tuple[float, float]]) -> str:
    lines = [f"{'':46s} two tokens  tokens per cycle"]
    for kind, ways in WAYS.items():
        lines.append(kind)
        for name in ways:
            off, tokens = errors[name]
            lines.append(f"  {name:44s} {'exact' if off < 1e-12 else f'{off:.4f}':>10s}  {tokens:.4f}")
    return "\n".join(lines)
