"""What a stored draft is worth: its overlap with the target on text the target writes for prompts nobody trained on."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from minispec.cli import options
from minispec.load.handle import Model
from minispec.load.write import publish, require_writable

from . import corpus as writing
from .corpus import Corpus


@torch.no_grad()
def acceptance(target: Model, draft: Model, corpus: Corpus, batch: int = 8) -> dict[str, float]:
    """On text the target wrote: mean Σ min(p, q) at T = 1, and how often both agree on the best token."""
    overlap = agree = count = 0.0
    order = corpus.length.argsort()  # rows of like length share a batch
    for rows in order.split(batch):
        part = corpus[rows]
        tokens = part.tokens[:, : int(part.length.max())].long().to(target.device)
        asked = part.asked(tokens.shape[1]).to(target.device)
        p, q = (m.transformer.head(m.transformer.body(tokens)[0][asked]).float() for m in (target, draft))  # [m, V]
        agree += float((p.argmax(-1) == q.argmax(-1)).sum())
        overlap += float(torch.minimum(p.softmax(-1), q.softmax(-1)).sum())
        count += int(asked.sum())
    return {"acceptance": overlap / count, "greedy_agreement": agree / count, "tokens": int(count)}


def by_category(
    target: Model,
    draft: Model,
    prompts: dict[str, list[str]],
    work: Path,
    *,
    batch: int,
    max_prompt: int,
    max_new_tokens: int,
    seed: int = 0,
) -> dict[str, dict]:
    """Let the target answer each category's prompts, sampled at T = 1 and greedily, and measure the draft on both."""
    table = {}
    for category, texts in prompts.items():
        ids = writing.encode_prompts(target, texts, max_prompt)
        if not ids:
            continue
        table[category] = {"prompts": len(ids)}
        for name, temperature in (("T=1", 1.0), ("greedy", 0.0)):
            text = writing.write(
                target,
                ids,
                work / f"{category} {name}",
                rows=len(ids),
                temperatures=[temperature],
                batch=min(batch, len(ids)),
                max_new_tokens=max_new_tokens,
                seed=seed,
            )
            table[category][name] = acceptance(target, draft, text)
    return table


def add_arguments(parser) -> None:
    options.add_draft(parser, "the draft model to measure", required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines, with a category each or without")
    parser.add_argument(
        "--hold-out", type=options.natural, default=0, metavar="N", help="only the N prompts that the corpus left out"
    )
    parser.add_argument("--batch", type=options.count, default=16)
    parser.add_argument("--max-prompt", type=options.count, default=1024)
    options.add_tokens(parser, 128, "of each reply at most")
    parser.add_argument("--work", type=Path, required=True, help="a folder for what is generated on the way")
    options.add_json(parser)


def run(args, target: Model) -> None:
    from minispec.load.folder import load

    require_writable("json", args.json)
    draft = load(args.draft, device=target.device, dtype=target.dtype)
    prompts: dict[str, list[str]] = {}
    rows = writing.read_rows(args.prompts)
    for row in writing.split(rows, args.hold_out)[1] if args.hold_out else rows:
        prompts.setdefault(row.get("category", "all"), []).append(row["prompt"])
    table = by_category(
        target,
        draft,
        prompts,
        args.work,
        batch=args.batch,
        max_prompt=args.max_prompt,
        max_new_tokens=args.tokens,
        seed=args.seed,
    )
    lines = [f"{'':24}{'prompts':>8}{'Σmin(p,q)':>11}{'greedy':>8}"]
    for category, row in table.items():
        overlap, agree = row["T=1"]["acceptance"], row["greedy"]["greedy_agreement"]
        lines.append(f"{category:24}{row['prompts']:8}{overlap:11.3f}{agree:8.3f}")
    publish("\n".join(lines), json.dumps(table, indent=1), args.json)
