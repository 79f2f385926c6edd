"""Why is it slower? One sound set-up and five with a single fault each, run for real and kept with their traces.

    mismatched draft    the layers of the draft were loaded in the wrong order
    k too large         sixteen draft tokens per cycle instead of three
    launch overhead     a draft of many thin layers: a third of the target's bytes, but every layer has to be started
    full batch          many rows at once, so that a pass has no idle arithmetic left
    wrong kernel        the target's product repacks its weights in every pass of more than one token

Every run is an engine in a steady state: all prompts are read, nobody ends. Plain and speculative runs take turns, and
the times kept are those of the round in the middle. Lesson 07 shows the recorded numbers and lets the learner diagnose.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from minispec import theory
from minispec.drafters import Model as Drafter
from minispec.load.folder import build
from minispec.load.handle import Model
from minispec.load.registry import DATA
from minispec.measure import weight_bytes
from minispec.model import Linear
from minispec.serving.engine import Engine
from minispec.trace import Cycle, Trace

from .prompts import STORIES

RECORDED = DATA / "traces" / "slower.json"
SOUND = "sound"
FAULTS = ("mismatched draft", "k too large", "launch overhead", "full batch", "wrong kernel")
K, LONG_K, ROWS, EXTRA_LAYERS = 3, 16, 64, 8
KEPT = 8  # rows of a batch whose traces are kept: the others look alike


@dataclass(frozen=True)
class Case:
    """One set-up: its trace, and the times that a trace alone does not tell. Seconds."""

    name: str  # SOUND, or one of FAULTS
    k: int
    rows: int  # in the batch
    trace: Trace  # of up to KEPT rows; the seconds of a cycle are shared by all rows of its step
    one_pass: float  # a plain pass of as many rows
    plain: float  # plain decoding, a token
    speculative: float  # the same with drafts, everything included
    bytes_ratio: float  # what a token makes the draft read / what it makes the target read

    @property
    def alpha(self) -> float:
        return self.trace.acceptance_rate

    @property
    def tokens_per_pass(self) -> float:
        return self.trace.tokens_per_cycle

    @property
    def c(self) -> float:
        """t_draft / t_target."""
        return median(cycle.draft_seconds for cycle in self.trace.cycles) / self.k / self.one_pass

    @property
    def v(self) -> float:
        """t_verify(K + 1) / t_target(1), at this batch."""
        return median(cycle.verify_seconds for cycle in self.trace.cycles) / self.one_pass

    @property
    def predicted(self) -> float:
        return theory.speedup(self.alpha, self.k, self.c, self.v)

    @property
    def measured(self) -> float:
        return self.plain / self.speculative

    def numbers(self) -> dict[str, float]:
        """All that the learner gets to see."""
        return {
            "batch": self.rows,
            "k": self.k,
            "α": self.alpha,
            "tokens per pass": self.tokens_per_pass,
            "c": self.c,
            "c by bytes": self.bytes_ratio,
            "v": self.v,
            "predicted": self.predicted,
            "measured": self.measured,
        }

    def to_dict(self) -> dict:
        cycles = [asdict(cycle) for cycle in self.trace.cycles]
        for cycle in cycles:  # a few digits will do, and keep the file small
            cycle["p"], cycle["q"] = ([round(x, 3) for x in cycle[law]] for law in "pq")
            cycle |= {part: round(cycle[part], 6) for part in ("draft_seconds", "verify_seconds", "sample_seconds")}
        own = {field: getattr(self, field) for field in self.__dataclass_fields__}
        return own | {"trace": json.dumps(cycles, separators=(",", ":"))}  # in one line, as Trace.from_json reads it

    @classmethod
    def from_dict(cls, raw: dict) -> Case:
        return cls(**{**raw, "trace": Trace.from_json(raw["trace"])})


# ---------------------------------------------------------------- the faults


class Repacking(Linear):
    """x Wᵀ as some libraries do it for more than one token: W is first copied into another order, at every call."""

    def forward(self, x: Tensor) -> Tensor:  # [B, T, d]
        if x.shape[:-1].numel() == 1:
            return super().forward(x)
        y = x @ self.weight.t().contiguous()
        return y if self.bias is None else y + self.bias


def with_wrong_kernel(model: Model) -> Model:
    """The same weights, the same results, by another product."""
    transformer = copy.deepcopy(model.transformer)
    for module in transformer.modules():
        if type(module) is Linear:
            module.__class__ = Repacking
    return Model(model.name, transformer, model.tokenizer)


def with_layers(model: Model, order: Sequence[int], silent: int = 0) -> Model:
    """The model with its layers in this order, and `silent` layers on top that compute but change nothing."""
    tensors = {name: t for name, t in model.transformer.state_dict().items() if not name.startswith("layers.")}
    if model.config.tie_embeddings:
        tensors.pop("lm_head.weight", None)
    for place_now, origin in enumerate([*order, *[0] * silent]):
        for name, tensor in model.transformer.layers[origin].state_dict().items():
            mute = place_now >= len(order) and name.endswith(("o_proj.weight", "down_proj.weight"))
            tensors[f"layers.{place_now}.{name}"] = torch.zeros_like(tensor) if mute else tensor
    config = replace(model.config, num_layers=len(order) + silent)
    transformer = build(config, tensors, where=f"a copy of {model.name}", device=model.device, dtype=model.dtype)
    return Model(model.name, transformer, model.tokenizer)


def set_up(name: str, target: Model, draft: Model) -> tuple[Model, Model, int, int]:
    """Target, draft, K and rows of one case."""
    if name not in (SOUND, *FAULTS):
        raise ValueError(f"name={name!r}: give one of {', '.join((SOUND, *FAULTS))}")
    layers = range(draft.config.num_layers)
    if name == "mismatched draft":
        draft = with_layers(draft, layers[::-1])
    elif name == "launch overhead":
        draft = with_layers(draft, layers, EXTRA_LAYERS)
    elif name == "wrong kernel":
        target = with_wrong_kernel(target)
    return target, draft, LONG_K if name == "k too large" else K, ROWS if name == "full batch" else 1


# ---------------------------------------------------------------- the runs


def steady(
    target: Model,
    drafter: Drafter | None,
    prompts: Sequence[Sequence[int]],
    k: int,
    steps: int,
    temperature: float,
    seed: int,
) -> tuple[float, float, list[Cycle]]:
    """So many steps of a batch that nobody leaves: seconds of a pass (median), seconds a token, and the cycles."""
    endless = Model(target.name, target.transformer, target.tokenizer)  # no end tokens
    rows = len(prompts)
    engine = Engine(
        endless,
        drafter,
        max_num_seqs=rows,
        k=k,
        draft_budget=rows * k,
        enable_prefix_caching=False,
        max_num_batched_tokens=rows * (k + 1) + sum(map(len, prompts)),
        num_blocks=rows * 32,
    )
    for i, prompt in enumerate(prompts):
        engine.add(prompt, (k + 1) * (steps + 1) + 1, temperature=temperature, seed=seed + i)
    engine.step()  # reads the prompts
    records = [engine.step() for _ in range(steps)]
    cycles = [cycle for job in list(engine.jobs.values())[:KEPT] for cycle in job.trace.cycles[1:]]
    engine.shutdown()
    seconds = sum(sum(record.seconds.values()) for record in records)
    one_pass = median(record.seconds["pass"] for record in records)
    return one_pass, seconds / sum(record.emitted for record in records), cycles


def measure(
    name: str,
    target: Model,
    draft: Model,
    *,
    steps: int = 12,
    texts: int = 8,
    temperature: float = 0.3,
    repeat: int = 5,
    seed: int = 0,
) -> Case:
    """Run one case, `texts` texts of it (the full batch: its rows), plain and speculative in turn, `repeat` rounds."""
    for argument, value in (("steps", steps), ("texts", texts), ("repeat", repeat)):
        if value < 1:
            raise ValueError(f"{argument}={value}: give a whole number ≥ 1")
    target, draft, k, rows = set_up(name, target, draft)
    stories = [target.encode(text) for text in STORIES["stories"]]
    if (longest := max(map(len, stories)) + (k + 1) * (steps + 2)) > target.config.max_length:
        raise ValueError(
            f"steps={steps}: {name} may write up to {longest} tokens, the target reads "
            f"{target.config.max_length}; give fewer"
        )
    prompts = [stories[i % len(stories)] for i in range(max(rows, texts))]
    batches = [prompts[first : first + rows] for first in range(0, len(prompts), rows)]
    rounds = []
    for _ in range(repeat + 1):
        passes, plain, spoken, cycles = [], [], [], []
        for i, batch in enumerate(batches):
            how = dict(prompts=batch, k=k, steps=steps, temperature=temperature, seed=seed + i * rows)
            one_pass, a_token, _ = steady(target, None, **how)
            passes.append(one_pass), plain.append(a_token)
            _, a_token, some = steady(target, Drafter(draft), **how)
            spoken.append(a_token), cycles.extend(some)
        rounds.append((median(plain) / median(spoken), median(passes), median(plain), median(spoken), cycles))
    _, one_pass, plain, spoken, cycles = sorted(rounds[1:], key=lambda lap: lap[0])[repeat // 2]  # the first warms up
    ratio = weight_bytes(draft) / weight_bytes(target)
    return Case(name, k, rows, Trace(cycles), one_pass, plain, spoken, ratio)


def cases(file: Path = RECORDED) -> dict[str, Case]:
    """The recorded cases, by name, the sound one first."""
    return {raw["name"]: Case.from_dict(raw) for raw in json.loads(file.read_text(encoding="utf-8"))["cases"]}


def unnamed_order(runs: Iterable[str]) -> list[str]:
    """The faults among these, in an order that gives nothing away."""
    return sorted((name for name in runs if name != SOUND), key=lambda name: name[::-1])


def table(cases: Iterable[Case], named: bool = True) -> str:
    """The numbers of some cases, a line each. Without names, and reordered: for the learner who is to find them."""
    by_name = {case.name: case for case in cases}
    if not named:
        by_name = {name: by_name[name] for name in [*(by_name.keys() & {SOUND}), *unnamed_order(by_name)]}
    cases, first = list(by_name.values()), 18 if named else 8
    head = list(cases[0].numbers())
    lines = [" " * first + "".join(f"{name:>{max(6, len(name)) + 2}}" for name in head)]
    for i, case in enumerate(cases):
        cells = [
            f"{x:>{max(6, len(name)) + 2}{'.2f' if isinstance(x, float) else 'd'}}"
            for name, x in case.numbers().items()
        ]
        label = case.name if named or case.name == SOUND else f"set-up {i}"
        lines.append(f"{label:<{first}}" + "".join(cells))
    return "\n".join(lines)
