"""One valid set-up and five with a fault each, measured. The set-ups are minispec_course/labs/slower.py."""

from __future__ import annotations

import torch
from tqdm import tqdm

from minispec.cli import options
from minispec.drafters.by_name import shipped_draft
from minispec.load.folder import load
from minispec.load.handle import Model
from minispec.measure import machine
from minispec_course.labs.slower import FAULTS, SOUND, Case, measure

from .page import Section, Table

WITHOUT_MODEL = True


def draft_for(args, target: Model) -> Model:
    """--draft, or the draft model that ships for --model, where the target is."""
    name = args.draft or shipped_draft(args.model)
    if name is None:
        raise ValueError(f"model={args.model!r} comes with no draft: name one with --draft")
    return load(name, device=target.device, dtype=target.dtype)


def run(args) -> dict:
    target = load(args.model, device="cpu")
    draft = draft_for(args, target)
    if args.threads:
        torch.set_num_threads(args.threads)
    how = dict(steps=args.steps, temperature=args.temperature, repeat=args.repeat, seed=args.seed)
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
    options.add(parser, "threads", options.natural, 0, "of torch, 0: as torch likes")
