"""The cheat sheet: one page to print, made from theory.py (formulas) and from the bank (numbers, tells).

python -m minispec_course.interview.cheatsheet               writes docs/cheatsheet.md
python -m minispec_course.interview.cheatsheet sheet.html    the same to print: one sheet of A4
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from minispec import theory
from minispec.load.write import write_whole

from .plain_markdown import to_html
from .question import Number, Question
from .questions import load

PAGE = Path(__file__).parents[2] / "docs" / "cheatsheet.md"
PRINT = """@page { size: A4; margin: 9mm } body { font: SIZEpt/1.15 sans-serif; margin: 0 } p { margin: 2pt 0 }
table { border-collapse: collapse; width: 100% } td, th { border: .3pt solid #999; padding: 0 2pt; text-align: left }
h1 { font-size: 11pt; margin: 0 } td b { white-space: nowrap } h2 { font-size: 1.25em; margin: 3pt 0 1pt }"""

FORMULAS = """arithmetic_intensity balance_point roofline_time kv_bytes_per_token kv_bytes block_waste static_batch_idle
acceptance expected_tokens expected_tokens_by_position token_ceiling accepted_fraction target_work speedup break_even
draft_cost staged_cost expected_tokens_of_tree verify_cost quantization_step fewer_bytes_speedup pipeline_bubble
compute_optimal""".split()

# drafter, its class, question of the bank: what drafts, what it costs, training, lossless, when
VARIANTS = [
    (
        "n-gram",
        "ngram.NGram",
        "ngram",
        "the sequence itself: what followed the last match",
        "nothing (c ≈ 0)",
        "none",
        "yes",
        "output copies input",
    ),
    (
        "suffix",
        "suffix.Suffix",
        "suffix-decoding",
        "token counts over this and past outputs",
        "nothing; a trie in memory",
        "none",
        "yes",
        "agents, repeated workflows",
    ),
    (
        "draft model",
        "model.Model",
        "choose-draft-model",
        "a small model, k forward passes in sequence",
        "c = its time / target's; weights and cache",
        "distil, or a sibling",
        "yes",
        "general traffic, memory to spare",
    ),
    (
        "early exit",
        "early_exit.EarlyExit",
        "early-exit",
        "the target's first layers",
        "c ≈ share of layers + LM head",
        "an exit adapter",
        "yes",
        "no room for a second model",
    ),
    (
        "quantised",
        "quantized.Quantized",
        "quantised-draft",
        "the target in INT8 or INT4",
        "c ≈ 0.5 or 0.25; a second copy",
        "none",
        "yes",
        "fast 4-bit kernels, no small sibling",
    ),
    (
        "cascade",
        "cascade.Cascade",
        "staged-speculation",
        "a middle model, sped up by a smaller drafter",
        "c / inner speed-up; α stays",
        "as its parts",
        "yes",
        "the middle model is expensive",
    ),
    (
        "lookahead",
        "lookahead.Lookahead",
        "lookahead",
        "the target's own Jacobi guesses, pooled",
        "window × levels more tokens per pass",
        "none",
        "yes",
        "batch 1, much idle arithmetic",
    ),
    (
        "Medusa",
        "medusa.Medusa",
        "medusa",
        "heads on h_t: head k guesses t+1+k; a tree",
        "one small step; nodes to verify",
        "heads, base frozen",
        "tree rule: yes; typical acceptance: no",
        "small batch, short drafts",
    ),
    (
        "EAGLE",
        "eagle.Eagle",
        "eagle",
        "one layer on the target's hidden states and the sampled token",
        "k steps of a layer + LM head",
        "head, unrolled",
        "yes",
        "general chat, high α for its cost",
    ),
    (
        "DFlash",
        "dflash.DFlash",
        "dflash",
        "a masked block filled at once from the target's hidden states",
        "one pass per block",
        "block head",
        "yes",
        "long drafts at small batch",
    ),
]

SINKS = """exact-or-approximate decode-memory-bound prefill-and-decode verify-cost residual-not-p greedy-draft
expected-tokens total-flops kv-size paged-attention medusa flash-attention""".split()


MEASURED, SHEET = theory.H200, theory.Hardware("H200, bf16, data sheet", 4.8e12, 989e12)
HARDWARE = (
    "Numbers for an H200 are roofline estimates that count weights only, with the "
    f"{MEASURED.flops / 1e12:.0f} TFLOP/s and {MEASURED.bandwidth / 1e12:.1f} TB/s that we measured (data sheet: "
    f"{SHEET.flops / 1e12:.0f} and {SHEET.bandwidth / 1e12:.1f}, ridge point {theory.balance_point(SHEET):.0f}). "
    "They are pessimistic for full batches, because there real steps do not reach the roofline: after 500 tokens of "
    "context, batch 128 still gained 1.16 × on an H200 (α = 0.72, c = 0.14, v = 1.90; see [benchmarks](benchmarks.md))."
)


def formula(name: str) -> str:
    """What the docstring of a formula begins with."""
    return inspect.getdoc(getattr(theory, name)).split("\n\n")[0].replace("\n", " ").rstrip(".")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def numbers_to_remember(bank: dict[str, Question]) -> list[Number]:
    """Those marked in the bank, each expression once."""
    marked = {number.expression: number for q in bank.values() for number in q.numbers if number.remember}
    return list(marked.values())


def cells_of(number: Number) -> tuple[str, str]:
    """Name and computed value, to as many digits as the bank quotes, with the unit at the value."""
    decimals = len(repr(number.value).partition(".")[2]) if isinstance(number.value, float) else 0
    name = number.name.removeprefix("the ").removesuffix(f", in {number.unit}")
    return name, f"**{number.computed:.{decimals}f}{number.unit and f' {number.unit}'}**"


def page(bank: dict[str, Question] | None = None) -> str:
    bank = load() if bank is None else bank
    cells = [cells_of(number) for number in numbers_to_remember(bank)]
    half = (len(cells) + 1) // 2
    columns = [(*a, *b) for a, b in zip_longest(cells[:half], cells[half:], fillvalue=("", ""))]
    lines = [
        "# Cheat sheet",
        "",
        "Made from theory.py and the question bank by `python -m minispec_course.interview.cheatsheet`; "
        "not for editing.",
        "",
        f"**In one breath.** {bank['walk-me-through'].spoken}",
        "",
        f"**The proof.** {bank['prove-lossless'].spoken}",
        "",
        "## Formulas",
        "",
        *table(["theory.", "formula"], [(f"`{name}`", formula(name)) for name in FORMULAS]),
        "",
        "## Numbers to remember",
        "",
        *table(["number", "", "number", ""], columns),
        "",
        HARDWARE,
        "",
        "## Drafters",
        "",
        *table(
            ["", "what drafts", "cost", "training", "lossless?", "when"],
            [(name, *cells) for name, _, _, *cells in VARIANTS],
        ),
        "",
        "## What sinks a candidate",
        "",
        " · ".join(bank[id].sinks[0] for id in SINKS) + ".",
    ]
    return "\n".join(lines) + "\n"


def to_print(text: str, title: str = "Cheat sheet", size: float = 6.6) -> str:
    """A page of Markdown, ready to print; `size` of its letters in points."""
    style = PRINT.replace("SIZE", str(size))
    return f"<!doctype html><meta charset='utf-8'><title>{title}</title><style>{style}</style>{to_html(text)}"


def main(argv: Sequence[str]) -> None:
    file = Path(argv[0]) if argv else PAGE
    write_whole(file, to_print(page()) if file.suffix == ".html" else page())
    print(f"wrote {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
