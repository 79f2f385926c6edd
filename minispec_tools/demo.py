"""`minispec demo`: watch speculation write, token by token, then see what it was worth.

Every cycle is one pass of the target. It ends with one token that the target itself chose: a correction where it
rejected a draft, a bonus where it rejected none. All others are drafts that passed. So the fewer marked tokens the text
shows, the fewer passes it took.
"""

import os
import re
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean, median

from tqdm import tqdm

from minispec import theory, tree
from minispec.drafters import Drafter, name_of
from minispec.generate import generate
from minispec.load.model import Model
from minispec.measure import Timing, interleaved_times, machine, place, verify_curve
from minispec.output import Output
from minispec.speculate import speculate
from minispec.trace import Cycle, Trace

# ---------------------------------------------------------------- the text, as it is written

# Hues that colour-blind readers can tell apart on light and dark; an underline and bold help where they cannot.
COLOURS = {"accepted": "38;5;29", "corrected": "4;38;5;166", "bonus": "1;38;5;33"}
LOSES = (
    "Speculation does not always pay. Sampled instead of greedy, and with six draft tokens per forward pass, the same "
    "pair is slower than plain decoding:"
)
LOSER = "    minispec demo --temperature 0.8 --k 6 \\", '      --prompt "One day, a girl named Lily"'
BRACKETS = {"accepted": ("", ""), "corrected": ("[", "]"), "bonus": ("{", "}")}


def wants_colour(file) -> bool:
    """Colour belongs on terminals, unless the user does not want it (https://no-color.org)."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, kind: str, colour: bool) -> str:
    """A token's text, marked with how the token came about."""
    before, after = (f"\x1b[{COLOURS[kind]}m", "\x1b[0m") if colour else BRACKETS[kind]
    return f"{before}{text}{after}"


class Painter:
    """Shows each token's text, marked, as soon as the word that it belongs to is final: no word is broken at the edge.

    A character may take several tokens. It appears with the one that completes it, under that token's mark.
    """

    def __init__(self, model: Model, colour: bool, show: Callable[[str], None], prompt: str | None = None):
        self.model, self.colour, self.show = model, colour, show
        self.prompt = prompt  # shown before the first token: by then nothing can be wrong with the options
        self.tokens: list[int] = []
        self.shown = 0  # characters
        self.kind = "accepted"
        self.column, self.space, self.word, self.length = 0, "", "", 0  # what waits for the end of its word

    def cycle(self, cycle: Cycle) -> None:
        if not self.tokens and self.prompt is not None:
            for kind, rest in zip(COLOURS, ("drafts · ", "by the target · ", "where none was rejected"), strict=True):
                self._write(kind, kind)
                self._write(f" {rest}")
            self._write(f"\n\n{self.prompt}")
        for token, self.kind in zip(cycle.tokens, cycle.kinds, strict=True):
            self.tokens.append(token)
            self._show(self.model.decode(self.tokens).rstrip("\ufffd"))  # a half-read character waits for the rest

    def end(self) -> None:
        """Show what waits still: a text may end within a character. What follows begins below."""
        self._show(self.model.decode(self.tokens))
        self._write("\n\n")
        self._write_word()

    def _show(self, text: str) -> None:
        if len(text) > self.shown:
            self._write(text[self.shown :], self.kind)
            self.shown = len(text)

    def _write(self, text: str, kind: str | None = None) -> None:
        for part in re.findall(r"\s+|\S+", text):
            if part.isspace():
                self._write_word()
                self.space += part
            else:
                self.word += paint(part, kind, self.colour) if kind else part
                self.length += len(part) + (len("".join(BRACKETS[kind])) if kind and not self.colour else 0)

    def _write_word(self) -> None:
        _, newline, last = self.space.rpartition("\n")
        start = len(last) + (0 if newline else self.column)
        if self.word and last and not newline and start + self.length > shutil.get_terminal_size().columns:
            self.space, start = "\n", 0
        if self.word or newline:
            self.show(self.space + self.word)
            self.column, self.space, self.word, self.length = start + self.length, "", "", 0


# ---------------------------------------------------------------- the numbers


def predict(trace: Trace, c: float, v: float) -> float:
    """theory.speedup, E[N] / (k·c + v), from the measured α and each cycle's own draft length."""
    alpha = trace.acceptance_rate
    tokens = fmean(theory.expected_tokens(alpha, depth(cycle)) for cycle in trace.cycles)
    return tokens / (trace.drafted_per_cycle * c + v)


def depth(cycle: Cycle) -> int:
    """How many draft tokens of a cycle could be accepted: all of a chain, the longest path of a tree."""
    return len(cycle.drafted) if cycle.parents is None else max(tree.depths(cycle.parents), default=0)


@dataclass(frozen=True)
class Result:
    """One run that was watched, and what several others took. Times are seconds per token of the whole call."""

    model: str
    drafter: str
    k: int | str
    temperature: float
    seed: int | None
    prompt: str | list  # text, or chat messages
    out: Output
    plain: Timing
    speculative: Timing
    c: float  # time of drafting a token / time of a pass of one token
    v: float  # time of a verify pass / time of a pass of one token
    machine: dict

    @property
    def counts(self) -> dict[str, int]:
        """Tokens of the text by the way they came about."""
        kinds = [kind for cycle in self.out.trace.cycles for kind in cycle.kinds]
        return {kind: kinds.count(kind) for kind in COLOURS}

    @property
    def tokens_per_pass(self) -> float:
        return len(self.out.tokens) / self.out.trace.target_passes

    @property
    def measured(self) -> float:
        return self.plain.median / self.speculative.median

    @property
    def predicted(self) -> float:
        return predict(self.out.trace, self.c, self.v)

    def facts(self) -> dict:
        """Everything, ready for JSON."""
        trace, own = self.out.trace, ("model", "drafter", "k", "temperature", "seed", "prompt")
        return {
            **{name: getattr(self, name) for name in own},
            "text": self.out.text,
            "tokens": len(self.out.tokens),
            "passes": trace.target_passes,
            "tokens_per_pass": self.tokens_per_pass,
            **self.counts,
            "drafted": sum(len(cycle.drafted) for cycle in trace.cycles),
            "acceptance": trace.acceptance_rate,
            "plain_seconds_per_token": asdict(self.plain),
            "speculative_seconds_per_token": asdict(self.speculative),
            "c": self.c,
            "v": self.v,
            "speedup": {"measured": self.measured, "predicted": self.predicted},
            "machine": self.machine,
            "trace": [asdict(cycle) for cycle in trace.cycles],
        }

    def text(self, colour: bool = False) -> str:
        """The table for a terminal, in 60 columns, and beside a gain the case that loses."""
        trace, n = self.out.trace, len(self.out.tokens)
        counts = "  ".join(paint(kind, kind, colour) + f" {count}" for kind, count in self.counts.items())
        rows = [
            ("", "plain", "speculative"),
            ("passes of the target", n, trace.target_passes),
            ("tokens per pass", "1.00", f"{self.tokens_per_pass:.2f}"),
            ("ms per token", _ms(self.plain), _ms(self.speculative)),
            ("tokens per second", f"{1 / self.plain.median:.1f}", f"{1 / self.speculative.median:.1f}"),
            ("speed-up, measured", "1.00", f"{self.measured:.2f}"),
            ("speed-up, predicted", "", f"{self.predicted:.2f}"),
        ]
        formula = (
            f"predicted: E[N] / (k·c + v) with acceptance α = {trace.acceptance_rate:.2f}, "
            f"k = {trace.drafted_per_cycle:.1f} draft tokens per pass, c = {self.c:.2f} (drafting a token) and "
            f"v = {self.v:.2f} (a verify pass), both in passes of one token"
        )
        where = f"median (quartiles) of {self.plain.n} rounds in turn on {place(self.machine)}"
        how = f"{self.model}, drafts by {self.drafter}, k = {self.k}, temperature {self.temperature:g}"
        wrap = partial(textwrap.wrap, width=min(80, shutil.get_terminal_size().columns))
        lines = [*wrap(how), f"{n} tokens: {counts}", ""]
        lines += [f"{label:<20}{plain:>20}{speculative:>20}" for label, plain, speculative in rows]
        lines += ["", *wrap(formula), *wrap(where)]
        if (self.model, self.drafter) == ("micro", "Model") and self.measured > 1:
            lines += ["", *wrap(LOSES), *LOSER]
        return "\n".join(lines)


def _ms(timing: Timing) -> str:
    return f"{1e3 * timing.median:.2f} ({1e3 * timing.low:.2f}–{1e3 * timing.high:.2f})"


def demo(
    target: Model,
    drafter: Drafter,
    prompt,
    tokens: int = 100,
    k: int | str = 4,
    *,
    temperature: float = 0.0,
    seed: int | None = 0,
    painter: Painter | None = None,
    repeat: int = 5,
    seconds: float = 8.0,
) -> Result:
    """Generate one output for the painter to show, then time plain and speculative decoding, round by round.

    The two sample different outputs (of the same distribution), which may end early, so the time per token is compared.
    """
    sampled = dict(temperature=temperature, seed=seed)
    out = speculate(target, prompt, drafter, k, tokens, **sampled, on_cycle=painter.cycle if painter else None)
    if painter:
        painter.end()
    context = min(out.prompt_tokens + tokens // 2, target.config.max_length - 1)
    plain, speculative, passes = [], [], []
    calls = {
        "plain": lambda: plain.append(generate(target, prompt, tokens, **sampled)),
        "speculative": lambda: speculative.append(speculate(target, prompt, drafter, k, tokens, **sampled)),
        "one pass": lambda: passes.append(verify_curve(target, (1,), context, 5, 1)[0].time.median),
    }
    if target.backend:  # what is recorded and compiled once belongs to no round; the watched run did that for drafts
        calls["plain"]()
        plain.clear()
    with tqdm(total=len(calls) * repeat, desc="timing", leave=False, disable=None) as bar:  # on terminals only
        interleaved_times(calls, repeat, 0, target.device, seconds=seconds, reset=bar.update)
    drafting, verifying = [], []  # in passes of one token, one of each a round
    for run, one_pass in zip(speculative, passes, strict=True):
        drafted = sum(len(cycle.drafted) for cycle in run.trace.cycles) or run.trace.target_passes
        drafting.append(run.trace.seconds("draft") / drafted / one_pass)
        verifying.append(run.trace.seconds("verify") / run.trace.target_passes / one_pass)
    return Result(
        model=target.label,
        drafter=name_of(drafter),
        k=k,
        temperature=temperature,
        seed=seed,
        prompt=prompt,
        out=out,
        plain=Timing.of([run.seconds / len(run.tokens) for run in plain]),
        speculative=Timing.of([run.seconds / len(run.tokens) for run in speculative]),
        c=median(drafting),
        v=median(verifying),
        machine=machine(),
    )
