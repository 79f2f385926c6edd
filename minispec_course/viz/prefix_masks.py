"""Which tokens a constraint allows after each prefix of a draft: a picture of an automaton at work."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer
from tokenizers import Tokenizer, decoders, models

from minispec.processors.constraint import Guided, any_spelling

from . import light as go
from .style import GREY, KINDS, LEGEND_ABOVE, TEMPLATE

OUTSIDE, FORBIDDEN, ALLOWED, DRAFTED, REJECTED = range(5)


def prefix_masks_figure(pattern: str, pieces: Sequence[str], draft: Sequence[str], emitted: str = "") -> go.Figure:
    """One line for each position of a draft: its prefix, and every token of the vocabulary, allowed or forbidden there.
    The drafted token is marked. Below a forbidden one no prefix can be completed any more."""
    constraint = _constraint(pattern, pieces)
    prefix, lines, names = _spelt(emitted, pieces), [], []
    for piece in [*draft, None]:
        mask = constraint.allowed([pieces.index(part) for part in prefix])
        line = [OUTSIDE] * (len(pieces) + 1) if mask is None else [ALLOWED if ok else FORBIDDEN for ok in mask]
        lines.append(line)
        names.append(f"{len(names)}: “{''.join(prefix)}”")
        if piece is not None:
            at, prefix = pieces.index(piece), [*prefix, piece]
            line[at] = DRAFTED if line[at] == ALLOWED else REJECTED
    colours = [GREY, "#f2f2f2", KINDS["accepted"], KINDS["bonus"], KINDS["corrected"]]
    scale = [pair for i, colour in enumerate(colours) for pair in ([i / 5, colour], [(i + 1) / 5, colour])]
    words = {
        OUTSIDE: "left the automaton",
        FORBIDDEN: "forbidden",
        ALLOWED: "allowed",
        DRAFTED: "drafted, allowed",
        REJECTED: "drafted, forbidden",
    }
    columns = [*(f"“{piece}”" for piece in pieces), "end"]
    figure = go.Figure(layout=dict(template=TEMPLATE, height=150 + 44 * len(lines)))
    figure.add_heatmap(
        z=lines,
        x=columns,
        y=names,
        zmin=-0.5,
        zmax=4.5,
        colorscale=scale,
        xgap=2,
        ygap=2,
        customdata=[[words[cell] for cell in line] for line in lines],
        hovertemplate="%{y} %{x}: %{customdata}<extra></extra>",
        showscale=False,
    )
    for kind, word in words.items():  # the colours in a legend above, where no width of the page cuts its words
        mark = dict(symbol="square", size=12, color=colours[kind], line=dict(color=GREY, width=1))
        figure.add_scatter(x=[None], y=[None], mode="markers", name=word, marker=mark)
    return figure.update_layout(
        title=dict(text="Every position of the draft has a mask of its own", y=0.97),
        legend=LEGEND_ABOVE,
        margin_t=90,
        xaxis_title="token",
        yaxis=dict(title="position: prefix", autorange="reversed", type="category"),
    )


def _constraint(pattern: str, pieces: Sequence[str]) -> Guided:
    """A pattern over a toy vocabulary: these pieces of text, and an end token."""
    end = len(pieces)
    tokenizer = Tokenizer(models.WordLevel({piece: token for token, piece in enumerate([*pieces, "<end>"])}, "<end>"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    guide = LLTokenizer(tokenizer.to_str(), n_vocab=end + 1, eos_token=end)
    return Guided(guide, any_spelling(pattern), [end], f"pattern={pattern!r}")


def _spelt(text: str, pieces: Sequence[str]) -> list[str]:
    """A text as tokens, the longest that fits first."""
    spelt = []
    while text:
        spelt.append(max((piece for piece in pieces if text.startswith(piece)), key=len))
        text = text[len(spelt[-1]) :]
    return spelt
