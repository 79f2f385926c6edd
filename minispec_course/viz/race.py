"""Several ways to generate, side by side: the same text, cut into what each forward pass gave, and played."""

from html import escape

from minispec.load.model import Model
from minispec.output import Output

from .style import PALETTE

SHOWN = 6.0  # seconds that the slowest way takes on the page
STYLE = "@keyframes ms-in{from{opacity:.1}}@media(prefers-reduced-motion){.ms-race span{animation:none!important}}"


class Race:
    def __init__(self, model: Model, ways: dict[str, Output]) -> None:
        self.decode, self.ways = model.decode, ways

    def __repr__(self) -> str:
        return "; ".join(f"{name}: {told(out)}" for name, out in self.ways.items())

    def _repr_html_(self) -> str:
        slower, lanes = SHOWN / max(out.seconds for out in self.ways.values()), ""
        for name, out in self.ways.items():
            lane, pieces = "", passes(out)
            for i, tokens in enumerate(pieces):
                look = f"background:color-mix(in srgb, {PALETTE[i % 2]} 22%, transparent);border-radius:3px;"
                look += f"animation:ms-in .1s {(i + 1) / len(pieces) * out.seconds * slower:.2f}s backwards"
                lane += f'<span style="{look}">{escape(self.decode(tokens))}</span>'
            lanes += f'<div style="flex:1 1 300px"><b>{escape(name)}</b>: {told(out)}'
            lanes += f'<div style="line-height:1.7;margin:4px 0">{lane}</div></div>'
        row = f'<div style="display:flex;flex-wrap:wrap;gap:8px 24px;max-width:760px">{lanes}</div>'
        note = f"Each patch of colour is one forward pass, shown at 1/{slower:.0f} of the real speed."
        return f'<div class="ms-race"><style>{STYLE}</style>{row}<small style="opacity:.75">{note}</small></div>'


def race(model: Model, ways: dict[str, Output]) -> Race:
    """Outputs of one model, by the name of how they were generated."""
    return Race(model, ways)


def passes(out: Output) -> list[list[int]]:
    """The tokens of an output, by the forward pass that gave them. Plain decoding gives one each."""
    return [cycle.tokens for cycle in out.trace.cycles] if out.trace else [[token] for token in out.tokens]


def told(out: Output) -> str:
    return f"{len(out.tokens)} tokens from {len(passes(out))} forward passes"
