"""The second sheet, for system design: the arithmetic of a budget on one page, every number computed by theory.py.

python -m minispec_course.interview.design_sheet               writes docs/design_sheet.md
python -m minispec_course.interview.design_sheet sheet.html    the same to print: one sheet of A4
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minispec.load.write import write_whole

from .cheatsheet import table, to_print
from .expressions import evaluate

PAGE = Path(__file__).parents[2] / "docs" / "design_sheet.md"
KV = "kv_bytes_per_token(32, 8, 128)"  # bytes of one token in the cache of the model of this page
STEP = f"pass_time(H200, 8e9, batch=64, context=2000, kv_bytes={KV})"
CHUNK = "pass_flops(8e9, tokens=512) / H200.flops"
CONDITIONS = (
    "**The model of this page**: 8 B parameters in bf16, 32 layers, 8 KV heads of 128. **The machine**: one H200 with "
    "141 GB, at the 4.2 TB/s and 790 TFLOP/s that we measured. Unless a line says otherwise, 64 requests decode, each "
    "with 2,000 tokens of context. Times are rooflines, so lower bounds without kernel and host overhead: say so, and "
    "plan with a measured step. On an H200 we measured v = 1.90 and a gain of 1.16 × at batch 128 after 500 tokens of "
    "context (α = 0.72, c = 0.14; see [benchmarks](benchmarks.md))."
)


@dataclass(frozen=True)
class Row:
    """One line of the arithmetic: what is asked, how it is computed in words, the same as an expression."""

    name: str
    how: str
    expression: str
    unit: str = ""
    digits: int = 0

    @property
    def value(self) -> float:
        return evaluate(self.expression)

    @property
    def cells(self) -> tuple[str, str, str]:
        return self.name, self.how, f"**{self.value:,.{self.digits}f}{self.unit and ' ' + self.unit}**"


def verify(batch: int, context: int = 2000) -> str:
    """v at k = 4 as an expression. Matrices and attention run one after the other, so each has its own roofline."""
    return f"verify_cost(H200, 8e9, 4, {batch}, context={context}, kv_bytes={KV})"


MEMORY = [
    Row("parameters", "N · bytes", "pass_bytes(8e9) / 1e9", "GB"),
    Row("cache per token", "2 · layers · KV heads · head_dim · bytes", f"{KV} / 1024", "KiB"),
    Row("left for the cache", "90 % of 141 GB − parameters", "0.9 * 141 - pass_bytes(8e9) / 1e9", "GB"),
    Row(
        "requests that fit at 2,000 tokens",
        "left / (2,000 · bytes per token)",
        f"(0.9 * 141e9 - pass_bytes(8e9)) / kv_bytes(1, 2000, {KV})",
    ),
    Row(
        "tokens in all at which the cache weighs as much as the parameters",
        "N · bytes / bytes per token",
        f"pass_bytes(8e9) / {KV}",
    ),
]
DECODE = [
    Row(
        "bytes of a step",
        "parameters + B · context · bytes per token",
        f"pass_bytes(8e9, batch=64, context=2000, kv_bytes={KV}) / 1e9",
        "GB",
        1,
    ),
    Row("time per token (TPOT), at best", "bytes / bandwidth", f"1e3 * {STEP}", "ms", 1),
    Row("the same at batch 1, no context", "parameters / bandwidth", "1e3 * pass_time(H200, 8e9)", "ms", 1),
    Row("output tokens per second", "B / TPOT", f"64 / {STEP}"),
    Row(
        "requests per second, answers of 500 tokens", "B / (500 · TPOT), by Little's law", f"64 / (500 * {STEP})", "", 1
    ),
    Row(
        "price of a million output tokens at 3 dollars per GPU-hour",
        "price / (tokens per second · 3,600) · 10⁶",
        f"3 / (64 / {STEP} * 3600) * 1e6",
        "dollars",
        2,
    ),
]
PREFILL = [
    Row("a prompt of 1,000 tokens", "2 · N · tokens / FLOP/s", "1e3 * pass_time(H200, 8e9, tokens=1000)", "ms"),
    Row(
        "prompts of 1,000 tokens per second, nothing else running", "1 / that", "1 / pass_time(H200, 8e9, tokens=1000)"
    ),
    Row(
        "a step that decodes and takes in a chunk of 512",
        "decode + 2 · N · 512 / FLOP/s",
        f"1e3 * ({STEP} + {CHUNK})",
        "ms",
    ),
    Row(
        "chunk that keeps such a step at 20 ms",
        "(20 ms − decode) · FLOP/s / (2 · N)",
        f"(20e-3 - {STEP}) * H200.flops / (2 * 8e9)",
        "tokens",
    ),
    Row(
        "steps to take in 1,000 tokens by chunks of 512: first token after",
        "2 steps, with an empty queue",
        f"1e3 * 2 * ({STEP} + {CHUNK})",
        "ms",
    ),
    Row(
        "sending that prompt's cache to another machine at 50 GB/s",
        "tokens · bytes per token / link",
        f"1e3 * kv_bytes(1, 1000, {KV}) / 50e9",
        "ms",
        1,
    ),
]
SPECULATION = [
    Row("tokens per cycle at α = 0.7, k = 4", "(1 − α^{k+1}) / (1 − α)", "expected_tokens(0.7, 4)", "", 2),
    Row("v at batch 1", "(parameters with k + 1 tokens + cache) / the same with 1", verify(1), "", 2),
    Row("v at batch 64", "parameters are compute-bound at 320 tokens, the cache is read once", verify(64), "", 2),
    Row("v at batch 64, no context", "as verified tokens pass the ridge point", verify(64, 0), "", 2),
    Row("v at batch 128", "as at 64", verify(128), "", 2),
    Row("gain at batch 1, c = 0.05", "E[N] / (k·c + v)", f"speedup(0.7, 4, 0.05, {verify(1)})", "×", 2),
    Row("gain at batch 64, c = 0.05", "the same", f"speedup(0.7, 4, 0.05, {verify(64)})", "×", 2),
    Row("gain at batch 128, c = 0.05", "the same", f"speedup(0.7, 4, 0.05, {verify(128)})", "×", 2),
    Row("tokens per sequence below the ridge point at batch 64", "ridge point / B", "free_tokens(H200, 64)", "", 1),
]
SCALE = [
    Row(
        "70 B in bf16 on 8 ranks: parameters that each reads",
        "N · bytes / ranks",
        "pass_bytes(70e9) / 8 / 1e9",
        "GB",
        1,
    ),
    Row(
        "idle share of 4 pipeline stages with 12 micro-batches",
        "(s − 1) / (m + s − 1)",
        "100 * pipeline_bubble(4, 12)",
        "%",
    ),
    Row(
        "FP8 parameters, bf16 cache: the step gets faster by",
        "1 / (1 − f + f/2), f = parameters' share of the bytes",
        f"fewer_bytes_speedup(pass_bytes(8e9) / pass_bytes(8e9, batch=64, context=2000, kv_bytes={KV}), 2)",
        "×",
        2,
    ),
    Row(
        "contexts of 8,000 tokens instead: time per token",
        "bytes / bandwidth",
        f"1e3 * pass_time(H200, 8e9, batch=64, context=8000, kv_bytes={KV})",
        "ms",
    ),
]
SECTIONS = [
    ("Memory: how many fit", MEMORY),
    ("A decode step: what the user feels", DECODE),
    ("Prompts: what they take from it", PREFILL),
    ("Speculation: where it pays", SPECULATION),
    ("More machines, fewer bytes, longer contexts", SCALE),
]
ORDER = (
    "**Order of work.** Targets (TTFT, TPOT, at which percentile, at which load) → memory → one decode step → one "
    "prompt and its chunk → k by load → admission and overload → what is measured, and what would change the plan."
)
CHANGES = [
    (
        "the context grows four times",
        "cache bytes × 4: fewer requests fit, TPOT rises; the cache, not the parameters, is what is read, so "
        "v stays near 1 and speculation pays at larger batches",
    ),
    (
        "the batch is 256",
        "beyond the ridge point verification costs arithmetic: k goes to 0 at peak, drafts only from what the "
        "token budget leaves",
    ),
    (
        "half of the memory",
        "FP8 parameters and cache first, then fewer requests, then tensor parallelism; a draft model costs "
        "requests, so prefer a head or prompt lookup",
    ),
    (
        "temperature 1 instead of 0",
        "the same rule, exact in distribution; α falls where the target is unsure, so measure it by request class",
    ),
    (
        "TTFT halves",
        "smaller batch of decodes beside a prompt, larger chunks, prefix caching, or prefill on its own "
        "machines; speculation does not help TTFT",
    ),
    (
        "we measured twice your time",
        "split a step: kernels, attention, host, communication; plan with the measurement until the gap is explained",
    ),
]
MEASURE = (
    "**Always measured.** p50 and p95 of TTFT and TPOT, per request class · v at the production batch · acceptance by "
    "position · preemptions and free blocks · prefix hit rate · goodput, the requests per second within the targets. "
    "**Always said.** What is assumed, what happens at overload, how it is switched off again."
)


def page() -> str:
    lines = [
        "# System design sheet",
        "",
        "Made from theory.py by `python -m minispec_course.interview.design_sheet`; not for editing.",
        "",
        CONDITIONS,
        "",
        ORDER,
    ]
    for title, rows in SECTIONS:
        lines += ["", f"## {title}", "", *table(["", "how", ""], [row.cells for row in rows])]
    lines += ["", "## If the interviewer changes something", "", *table(["", "then"], CHANGES), "", MEASURE]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> None:
    file = Path(argv[0]) if argv else PAGE
    write_whole(file, to_print(page(), "System design sheet", size=8.4) if file.suffix == ".html" else page())
    print(f"wrote {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
