"""Variants of numeric exercises: the same question with a twist, whose numbers come from a seed.

The solutions are public. A class, or each of its students, can get a version of its own: a parameter that the published
answer does not know. The text says what it is, the check in the notebook is given its values, and the grader draws them
again from the seed. Whoever guesses the seed knows nothing but those values: the cases that no student has seen follow
from the teacher's secret.

A twist changes what goes into the formula. So the right answer is ours, with changed arguments, and so are the known
mistakes. One is added: to have handed in the published answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from ..exercises.exercise import Exercise, Mutant, find
from .identity import person
from .secret import generator

HIDDEN_CASES = 4


@dataclass(frozen=True)
class Variant:
    words: str  # what the text says, with {names} for the parameters
    draw: Callable[[Random], dict[str, float]]  # the parameters
    twist: Callable[..., tuple]  # (parameters, *arguments) → the arguments as the published formula wants them
    fresh: Callable[[Random], dict]  # one more case


VARIANTS = {
    "01.intensity": Variant(
        "every sequence has a system prompt of {system} tokens in front of its context. The cache holds it too, so a "
        "forward pass reads it for every sequence, in addition to `context`.",
        lambda r: {"system": r.randrange(20, 400)},
        lambda own, weights, bits, batch, tokens, context, kv_bytes: (
            weights,
            bits,
            batch,
            tokens,
            context + own["system"],
            kv_bytes,
        ),
        lambda r: dict(
            weights=1000 * r.randrange(1, 50),
            bits=r.choice([4, 8, 16]),
            batch=r.randrange(1, 9),
            tokens=r.randrange(1, 9),
            context=r.randrange(1, 500),
            kv_bytes=r.randrange(10, 200),
        ),
    ),
    "01.roofline": Variant(
        "kernels reach only {percent} % of `peak` (and all of `bandwidth`).",
        lambda r: {"percent": r.randrange(35, 75)},
        lambda own, bytes_read, flops, bandwidth, peak: (bytes_read, flops, bandwidth, peak * own["percent"] / 100),
        lambda r: dict(
            bytes_read=r.randrange(100, 5000),
            flops=r.randrange(100, 50_000),
            bandwidth=r.randrange(5, 50),
            peak=r.randrange(50, 500),
        ),
    ),
    "02.kv_bytes": Variant(
        "the cache is quantised in groups: every {group} numbers share one scale, which is kept beside them and takes "
        "{scale_bits} bits of its own.",
        lambda r: {"group": r.choice([16, 32, 64]), "scale_bits": r.choice([8, 16, 32])},
        lambda own, layers, heads, kv_heads, head_dim, bits, batch, length: (
            layers,
            heads,
            kv_heads,
            head_dim,
            bits + own["scale_bits"] / own["group"],
            batch,
            length,
        ),
        lambda r: dict(
            layers=r.randrange(20, 90),
            heads=8 * r.randrange(2, 9),
            kv_heads=r.choice([4, 8]),
            head_dim=r.choice([64, 128]),
            bits=r.choice([4, 8]),
            batch=r.randrange(2, 32),
            length=r.randrange(1000, 30_000),
        ),
    ),
    "04.static_waste": Variant(
        "every request decodes {extra} tokens more than its length says, which the server drops again (a stop string).",
        lambda r: {"extra": r.randrange(2, 7)},
        lambda own, lengths, slots: ([n + own["extra"] for n in lengths], slots),
        lambda r: dict(lengths=[r.randrange(1, 12) for _ in range(r.randrange(3, 9))], slots=r.randrange(2, 4)),
    ),
    "07.expected_tokens": Variant(
        "the drafter adds {extra} tokens to every draft on its own, so that k + {extra} tokens are verified.",
        lambda r: {"extra": r.randrange(2, 6)},
        lambda own, alpha, k: (alpha, k + own["extra"]),
        lambda r: dict(alpha=r.randrange(10, 95) / 100, k=r.randrange(1, 9)),
    ),
    "07.position_acceptance": Variant(
        "one more draft token stands before all others. A table gives it, and it is accepted with probability {first}.",
        lambda r: {"first": r.randrange(30, 80) / 100},
        lambda own, betas: ([own["first"], *betas],),
        lambda r: dict(betas=[r.randrange(10, 100) / 100 for _ in range(r.randrange(2, 6))]),
    ),
    "07.speedup": Variant(
        "every cycle also spends {overhead} of a target's pass on scheduling, besides the drafts and the verification. "
        "(Plain decoding does not.)",
        lambda r: {"overhead": r.randrange(5, 40) / 100},
        lambda own, alpha, k, c, v: (alpha, k, c, v + own["overhead"]),
        lambda r: dict(
            alpha=r.randrange(20, 95) / 100,
            k=r.randrange(1, 9),
            c=r.randrange(1, 40) / 100,
            v=r.randrange(100, 180) / 100,
        ),
    ),
    "07.best_k": Variant(
        "every cycle that drafts at all also spends {overhead} of a target's pass on scheduling.",
        lambda r: {"overhead": r.randrange(15, 40) / 100},
        lambda own, alpha, c, v: (alpha, c, [v[0], *(x + own["overhead"] for x in v[1:])]),
        lambda r: dict(
            alpha=r.randrange(30, 95) / 100,
            c=r.randrange(1, 15) / 100,
            v=[1.0, *(1.0 + i * r.randrange(1, 9) / 100 for i in range(1, 9))],
        ),
    ),
    "07.when_it_pays": Variant(
        "every cycle also spends {overhead} of a target's pass on scheduling. (Plain decoding does not.)",
        lambda r: {"overhead": r.randrange(5, 40) / 100},
        lambda own, k, c, v: (k, c, v + own["overhead"]),
        lambda r: dict(k=r.randrange(1, 7), c=r.randrange(1, 25) / 100, v=r.randrange(100, 150) / 100),
    ),
    "11.batch_k": Variant(
        "the draft model shares the GPU with another service, so that every draft step takes {factor} times as long.",
        lambda r: {"factor": r.choice([2.5, 3.0, 3.5, 4.0])},
        lambda own, alphas, longest, read, compute, draft: (alphas, longest, read, compute, draft * own["factor"]),
        lambda r: dict(
            alphas=[r.randrange(30, 95) / 100 for _ in range(r.randrange(2, 6))],
            longest=r.randrange(4, 9),
            read=float(r.randrange(8, 30)),
            compute=r.randrange(1, 20) / 10,
            draft=r.randrange(2, 12) / 10,
        ),
    ),
    "12.bytes_read": Variant(
        "every sequence has a system prompt of {system} tokens in front of its context. The cache holds it too, before "
        "and after.",
        lambda r: {"system": r.randrange(20, 200)},
        lambda own, weights, bits, group, batch, context, *rest: (
            weights,
            bits,
            group,
            batch,
            context + own["system"],
            *rest,
        ),
        lambda r: dict(
            weights=1000 * r.randrange(1, 20),
            bits=r.choice([4, 8]),
            group=r.choice([16, 32, 64]),
            batch=r.randrange(1, 9),
            context=r.randrange(1, 200),
            kv_bytes=r.randrange(1, 20),
            bandwidth=float(r.randrange(1, 5)),
            peak=float(r.randrange(5, 500)),
        ),
    ),
    "16.kv_per_rank": Variant(
        "{percent} % of every rank's memory are kept free for activations.",
        lambda r: {"percent": r.randrange(8, 25)},
        lambda own, *given: (*given[:-1], given[-1] * (100 - own["percent"]) / 100),
        lambda r: dict(
            layers=r.randrange(10, 60),
            heads=32,
            kv_heads=r.choice([4, 8]),
            head_dim=r.choice([64, 128]),
            bits=r.choice([8, 16]),
            weight_bytes=r.randrange(4, 60) * 10**9,
            ranks=r.choice([1, 2, 4, 8]),
            memory=r.randrange(70, 200) * 10**9,
        ),
    ),
    "appendix.compute_optimal": Variant(
        "training takes {flops} FLOPs per parameter and token, not 6: part of the forward pass is computed again on "
        "the way back.",
        lambda r: {"flops": r.choice([7, 8, 9, 10])},
        lambda own, flops, tokens_per_parameter: (flops * 6 / own["flops"], tokens_per_parameter),
        lambda r: dict(flops=r.randrange(10, 99) * 1e21, tokens_per_parameter=float(r.randrange(10, 60))),
    ),
}


def parameters(id: str, seed: int, student: str | None = None) -> dict:
    """The values of a class, or of one student in it. The same seed gives the same ones, on every machine."""
    return VARIANTS[id].draw(Random(f"{seed}/{id}/{person(student).name if student else ''}"))


def words(id: str, own: dict) -> str:
    """What the text of the exercise says in addition."""
    return f"**In your version** {VARIANTS[id].words.format(**own)}"


def varied(id: str, own: dict, hidden: Random | None = None) -> Exercise:
    """The exercise with this twist; with cases that are not in the notebook, if they are to be drawn."""
    if id not in VARIANTS:
        raise ValueError(f"id={id!r} has no variants; these have: {', '.join(VARIANTS)}")
    variant, exercise = VARIANTS[id], find(id)
    if own.keys() != variant.draw(Random(0)).keys():
        raise ValueError(f"parameters {sorted(own)} of {id}: it takes {', '.join(variant.draw(Random(0)))}")

    def twisted(function: Callable) -> Callable:
        return lambda *args: function(*variant.twist(own, *args))

    published = Mutant(
        "as_published",
        exercise.reference,
        f"This is the answer to the published exercise. {words(id, own).replace('**', '')}",
    )
    mutants = {m.name: replace(m, function=twisted(m.function)) for m in exercise.mutants.values()}
    cases = [*exercise.cases, *(variant.fresh(hidden) for _ in range(HIDDEN_CASES if hidden else 0))]
    return replace(
        exercise,
        reference=twisted(exercise.reference),
        cases=cases,
        mutants={"as_published": published, **mutants},
        seen={},
        picture=None,
    )


def graded(id: str, seed: int | None, student: str | None = None, secret: bytes | None = None) -> Exercise:
    """The exercise as the grader judges it: the twist follows from the seed, the hidden cases from the secret."""
    if seed is None or id not in VARIANTS:
        return find(id)
    return varied(id, parameters(id, seed, student), generator(secret, id, "hidden") if secret else None)
