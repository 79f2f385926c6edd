"""One valid set-up and five with a fault each, measured: what lesson 07 lets its readers diagnose.

Every run is an engine in a steady state: all prompts are processed, no sequence ends. Plain and speculative runs take
turns, and the times kept are those of the round in the middle. The run that ships had OMP_NUM_THREADS=1.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor
from tqdm import tqdm

from minispec.drafters import Model as Drafter
from minispec.drafters import shipped_draft
from minispec.load.folder import build, load
from minispec.load.model import Model
from minispec.measure import machine, weight_bytes
from minispec.model import Linear
from minispec.serving.engine import Engine
from minispec.trace import Cycle, Trace
from minispec_course.labs.batching import endless
from minispec_course.labs.pairs import STORIES
from minispec_course.labs.slower import FAULTS, SOUND, Case

from ..cli import options
from .page import Section, Table

WITHOUT_MODEL = True
K, LONG_K, ROWS, EXTRA_LAYERS = 3, 16, 64, 8
KEPT = 8  # sequences of a batch whose traces are kept: the others look alike


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
    """Target, draft, k and sequences of one case."""
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
    target: Model, drafter: Drafter | None, prompts: Sequence, k: int, steps: int, temperature: float, seed: int
) -> tuple[float, float, list[Cycle]]:
    """So many steps of a batch that no sequence leaves: seconds of a pass (median), seconds per token, the cycles."""
    rows = len(prompts)
    engine = Engine(
        endless(target),
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
    engine.step()  # processes the prompts
    records = [engine.step() for _ in range(steps)]
    cycles = [cycle for sequence in list(engine.sequences.values())[:KEPT] for cycle in sequence.trace.cycles[1:]]
    engine.shutdown()
    seconds = sum(sum(record.seconds.values()) for record in records)
    one_pass = median(record.seconds["pass"] for record in records)
    return one_pass, seconds / sum(record.emitted for record in records), cycles


def measure(name: str, target: Model, draft: Model, steps: int, repeat: int, temperature: float, seed: int) -> Case:
    """Run one case, eight outputs of it (the full batch: its sequences), plain and speculative in turn."""
    target, draft, k, rows = set_up(name, target, draft)
    stories = [target.encode(text) for text in STORIES["stories"]]
    prompts = [stories[i % len(stories)] for i in range(max(rows, len(stories)))]
    rounds = []
    for _ in range(repeat + 1):
        passes, plain, spoken, cycles = [], [], [], []
        for first in range(0, len(prompts), rows):
            how = dict(k=k, steps=steps, temperature=temperature, seed=seed + first)
            one_pass, per_token, _ = steady(target, None, prompts[first : first + rows], **how)
            passes.append(one_pass), plain.append(per_token)
            _, per_token, some = steady(target, Drafter(draft), prompts[first : first + rows], **how)
            spoken.append(per_token), cycles.extend(some)
        rounds.append((median(plain) / median(spoken), median(passes), median(plain), median(spoken), cycles))
    _, one_pass, plain, spoken, cycles = sorted(rounds[1:], key=lambda lap: lap[0])[repeat // 2]  # the first warms up
    ratio = weight_bytes(draft) / weight_bytes(target)
    return Case(name, k, rows, Trace(cycles), one_pass, plain, spoken, ratio)


# ---------------------------------------------------------------- the command


def run(args) -> dict:
    target = load(args.model, device="cpu")
    if (name := args.draft or shipped_draft(args.model)) is None:
        raise ValueError(f"model={args.model!r} comes with no draft: name one with --draft")
    draft = load(name, device="cpu")
    how = dict(steps=args.steps, repeat=args.repeat, temperature=args.temperature, seed=args.seed)
    cases = [measure(name, target, draft, **how) for name in tqdm((SOUND, *FAULTS), leave=False, disable=None)]
    about = {"benchmark": "slower", "target": target.name, "draft": draft.name, **how, "machine": machine()}
    return about | {"cases": [case.to_dict() for case in cases]}


def section(result: dict) -> Section:
    cases = [Case.from_dict(raw) for raw in result["cases"]]
    rows = [[one.name, *(f"{x:.2f}" if isinstance(x, float) else x for x in one.numbers().values())] for one in cases]
    return Section(
        f"Why is it slower? {result['target']}, drafts by {result['draft']}",
        f"One valid set-up and five with a single fault each, temperature {result['temperature']:g}, on the CPU.",
        [Table(["", *cases[0].numbers()], rows)],
    )


def add_arguments(parser) -> None:
    options.add_model(parser, "micro")
    options.add_draft(parser)
    options.add(parser, "steps", options.count, 12, "of each output")
    options.add_temperature(parser, 0.3)
    options.add_repeat(parser, 5)
