"""Acceptance by position, by drafter: how far down a draft each of them can see. From the traces of real runs."""

from collections.abc import Mapping, Sequence

from minispec.drafters import Drafter
from minispec.load.handle import Model
from minispec.speculate import speculate
from minispec.trace import Trace

from .drawing import CARD, INK, Axes, Canvas, shorten, text_width
from .panel import Panel, choice
from .style import PALETTE

SYMBOLS = ("circle", "square", "diamond", "triangle", "cross", "x")


def reached(trace: Trace) -> list[int]:
    """How many cycles came to position 1, 2, …: those with a draft there, and every one before it accepted.

    So `trace.acceptance_by_position` is a share of these. Of a tree, any of several siblings may be the accepted one.
    """
    tested = [cycle.accepted + (not cycle.bonus) for cycle in trace.cycles]
    return [sum(count > i for count in tested) for i in range(max(tested, default=0))]


Runs = dict[tuple[str, float, str], Trace]  # text, temperature, drafter → all cycles of its prompts


def measure_positions(
    target: Model,
    drafters: Mapping[str, Drafter],
    texts: Mapping[str, Sequence],
    k=5,
    new_tokens=32,
    temperatures=(0.0, 1.0),
    seed=0,
) -> Runs:
    """Let every drafter draft k deep for the same prompts, at each temperature of the target.

    `texts` has a list of prompts, as `speculate` takes them, for each kind of text.
    """
    runs = {}
    for text, prompts in texts.items():
        for T in temperatures:
            for name, drafter in drafters.items():
                outs = speculate(target, list(prompts), drafter, k, new_tokens, temperature=T, seed=seed)
                # The last cycles of an output have no room for a whole draft: left out, where there are others.
                cycles = [cycle for out in outs for cycle in out.trace.cycles[:-1] or out.trace.cycles]
                runs[text, T, name] = Trace(cycles)
    return runs


def positions_svg(runs: Runs, text: str, temperature: float, drafter: str | None = None) -> tuple[str, str]:
    """Left the acceptance at every position, right tokens per forward pass and how many it processes.

    `drafter`: the one to highlight.

    The fewer cycles reached a position, the smaller its mark. The axes are those of all runs: choices can be compared.
    """
    traces = {name: trace for (kind, T, name), trace in runs.items() if (kind, T) == (text, temperature)}
    deepest = max(1, *(cycle.tested for trace in runs.values() for cycle in trace.cycles))
    most = 1.04 * max(1, *(trace.tokens_per_cycle for trace in runs.values()))
    canvas, count = Canvas(400), len(traces)
    names = dict(title="accepted here, if all before were", x="position in the draft", y="share of the cycles")
    places = range(1, deepest + 1)
    left = Axes(canvas, (66, 50, 340, 290), (0.7, deepest + 0.3), (0, 1.04), **names, x_ticks=places)
    names = dict(title="tokens per forward pass of the target", x="tokens (dashed: plain decoding)", y_ticks=())
    right = Axes(canvas, (452, 50, 290, 290), (0, most), (count, 0), **names)
    for i, (name, trace) in enumerate(traces.items()):
        rates, came = trace.acceptance_by_position, reached(trace)
        colour, symbol, bold = PALETTE[i % 6], SYMBOLS[i % 6], drafter == name
        with canvas.group(f'opacity="{1 if drafter in (None, name) else 0.25}"'):  # not the text beside a bar
            left.line(range(1, len(rates) + 1), rates, colour, 4 if bold else 2)
            for place, (rate, n) in enumerate(zip(rates, came, strict=True), 1):
                told = f"{name}, position {place}: {rate:.2f} of {n} cycles"
                left.dot(place, rate, colour, told, symbol, round(2.5 + 4.5 * (n / came[0]) ** 0.5, 2))
            (x, top), (end, bottom) = right.at(0, i), right.at(trace.tokens_per_cycle, i + 1)
            told = f"{name}: {trace.tokens_per_cycle:.2f} tokens per pass"
            canvas.rect(x, top + 22, end - x, bottom - top - 26, colour, None, round=0, title=told)
        plain, _ = right.at(1, i)
        canvas.line(plain, top + 20, plain, bottom - 2, INK, 1.5, "4 3")
        label = f": {trace.tokens_per_cycle:.2f} emitted, {trace.drafted_per_cycle:.0f} drafted"
        label = shorten(name, 268 - text_width(label, 12.5), 12.5) + label
        canvas.rect(x, top + 3, 24 + text_width(label, 12.5), 17, CARD, None)  # no grid behind the words
        canvas.mark(x + 9, top + 12, symbol, colour, 6).text(x + 22, top + 16, label, 12.5, bold=bold)
    words = _words(traces, text, temperature, drafter)
    return canvas.svg(words), words


def _words(traces: dict[str, Trace], text: str, temperature: float, drafter: str | None) -> str:
    best = max(traces, key=lambda name: traces[name].tokens_per_cycle)
    name = best if drafter is None else drafter
    trace = traces[name]
    rates = ", ".join(f"{rate:.2f}" for rate in trace.acceptance_by_position)
    return (
        f"{text}, temperature {temperature:g}: {best} emits most, {traces[best].tokens_per_cycle:.2f} tokens per pass. "
        f"{name}: accepted at position 1, 2, … {rates}; {trace.tokens_per_cycle:.2f} tokens per pass, "
        f"{trace.drafted_per_cycle:.1f} drafted, over {trace.target_passes} passes."
    )


def positions(runs: Runs) -> Panel:
    """Bring out one drafter, choose the temperature of the target and the kind of text."""
    names, kinds = list(dict.fromkeys(name for *_, name in runs)), list(dict.fromkeys(kind for kind, *_ in runs))
    hot = {f"{T:g}" + (" (greedy)" if T == 0 else ""): T for _, T, _ in runs}
    controls = {
        "drafter": choice("bring out", {"all": ""} | {name: name for name in names}),
        "temperature": choice("temperature", hot),
        "text": choice("text", kinds),
    }
    return Panel(lambda drafter, temperature, text: positions_svg(runs, text, temperature, drafter or None), controls)
