"""Acceptance against temperature, the target's and the draft's. The experiment is labs/temperature.py of the course."""

from __future__ import annotations

from minispec.cli import options
from minispec.load.folder import load
from minispec_course.labs.temperature import DRAFT, TARGET, measure

from .page import Section, Table
from .prompts import read_prompts
from .slower import draft_for


def run(args) -> dict:
    target = load(args.model, device=args.device)
    draft = draft_for(args, target)
    prompts = [ids for of_it in read_prompts(args.prompts, target, args.tokens).values() for ids in of_it]
    return measure(target, draft, prompts, args.target_temperatures, args.draft_temperatures, args.tokens, args.seed)


def section(result: dict) -> Section:
    rows = []
    for T, row in zip(result["target_temperatures"], result["acceptance"], strict=True):
        rows.append([f"T = {T:g}", *(f"{x:.2f}{'*' if x == max(row) else ' '}" for x in row)])
    return Section(
        f"Acceptance by temperature, {result['draft']} for {result['target']}",
        "Σ min(p, q), averaged over the tokens that the target generated at each of its temperatures (0 is greedy).",
        [Table(["target, draft", *(f"T = {T:g}" for T in result["draft_temperatures"])], rows)],
        notes=["* the best draft temperature on its line"],
    )


def add_arguments(parser) -> None:
    options.add_model(parser, "micro")
    options.add(parser, "target-temperatures", options.temperature, TARGET, "0 is greedy", "T", nargs="+")
    options.add(parser, "draft-temperatures", options.temperature, DRAFT, "0 is greedy", "T", nargs="+")
