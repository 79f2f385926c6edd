"""What a KV cache weighs: as it grows, beside the weights, and in the memory of a card."""

from __future__ import annotations

from math import log10

from minispec import theory
from minispec.model import Config

from . import light as go
from . import presets
from .panel import Panel, choice
from .style import GREY, PALETTE, TEMPLATE

GIB = 2**30
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
CARDS = {"24 GB, a desktop card": 24e9, "80 GB, an A100 or H100": 80e9, "141 GB, an H200": 141e9}


def per_token(config: Config, bytes_per_value: float = 2, kv_heads: int | None = None) -> float:
    """Bytes one token keeps; `kv_heads` other than the model's own shows what another design would."""
    heads = config.num_kv_heads if kv_heads is None else kv_heads
    return theory.kv_bytes_per_token(config.num_layers, heads, config.head_dim, bytes_per_value)


def designs(config: Config) -> dict[str, int]:
    """Key/value heads by design: one per query head, as the model has them, one for all."""
    own = {f"GQA: {config.num_kv_heads}": config.num_kv_heads} if 1 < config.num_kv_heads < config.num_heads else {}
    return {f"MHA: {config.num_heads}": config.num_heads} | own | {"MQA: 1": 1}


def rows_that_fit(config: Config, length: int, memory: float, bytes_per_value: float = 2) -> int:
    """Sequences of `length` tokens that a card holds beside the model's weights in bf16."""
    room = memory - 2 * presets.weights(config)
    return max(0, int(room // theory.kv_bytes(1, length, per_token(config, bytes_per_value))))


def cache_size_figure(
    config: Config, length: int = 4096, batch: int = 1, bytes_per_value: float = 2, memory: float | None = None
) -> go.Figure:
    """GiB of cache against tokens per sequence, a line per design; the weights and the room they leave as levels."""
    figure = go.Figure(layout=dict(template=TEMPLATE))
    xs = sorted({*LENGTHS, length})
    for colour, (name, heads) in zip(PALETTE[1::-1] + PALETTE[2:3], designs(config).items(), strict=False):
        own = heads == config.num_kv_heads
        bytes_each = per_token(config, bytes_per_value, heads)
        line = go.Scatter(
            x=xs,
            y=[theory.kv_bytes(batch, x, bytes_each) / GIB for x in xs],
            name=f"{name} key/value head{'s' * (heads > 1)}" + (", this model" if own else ""),
            mode="lines",
            line=dict(color=colour, width=4 if own else 1.5, dash="solid" if own else "dash"),
        )
        figure.add_trace(line)
        if own:
            mark = go.Scatter(
                x=[length],
                y=[theory.kv_bytes(batch, length, bytes_each) / GIB],
                name="your length",
                mode="markers",
                marker=dict(size=13, color=colour),
                showlegend=False,
            )
            figure.add_trace(mark)
    figure.update_traces(hovertemplate="%{x:,} tokens per sequence<br>%{y:.3g} GiB")
    stored = 2 * presets.weights(config)
    levels = {"weights in bf16": stored}
    if memory is not None and memory > stored:
        levels["room beside the weights"] = memory - stored
    for i, (name, level) in enumerate(levels.items()):
        figure.add_hline(y=level / GIB, line=dict(color=GREY, width=1.5, dash=("dot", "dashdot")[i]))
        above = level == max(levels.values())
        label = dict(
            text=f"{name}, {presets.figures(level / GIB)} GiB", showarrow=False, yanchor="bottom" if above else "top"
        )
        figure.add_annotation(x=0, xref="paper", xanchor="left", y=log10(level / GIB), **label)
    drawn = [y for line in figure.data for y in line.y] + [level / GIB for level in levels.values()]
    figure.update_layout(
        title=f"Keys and values of {batch:,} sequence{'s' * (batch > 1)}",
        xaxis=dict(title="tokens per sequence", type="log", tickvals=LENGTHS, ticktext=[_tokens(x) for x in LENGTHS]),
        yaxis=dict(
            title="cache, GiB",
            automargin=False,  # a margin that follows the ticks is drawn twice
            type="log",
            range=[log10(min(drawn) / 1.5), log10(max(drawn) * 2)],
            tickvals=[10.0**n for n in range(-6, 6)],
            ticktext=[f"{10.0**n:,.{max(0, -n)}f}" for n in range(-6, 6)],
        ),
        legend=dict(orientation="h", y=-0.22),
        margin=dict(l=90, b=90),
        height=430,
    )
    return figure


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count >= 1024 else str(count)


def cache_size(model: str = "Llama-3-8B") -> Panel:
    """The calculator: how much a cache takes, how that compares with the weights, and how many sequences fit."""
    if model not in presets.SHAPES:
        raise ValueError(f"model={model!r}: give one of {', '.join(presets.SHAPES)}")

    def draw(length: int, batch: int, model: str, stored: float, memory: float):
        config = presets.SHAPES[model]
        each, whole = per_token(config, stored), theory.kv_bytes(batch, length, per_token(config, stored))
        weights = 2 * presets.weights(config)
        words = (
            f"{model} keeps {each / 1024:,.4g} KiB per token: 2 × {config.num_layers} layers × {config.num_kv_heads} "
            f"key/value heads × {config.head_dim} × {stored:g} bytes. {batch:,} × {length:,} tokens take "
            f"{presets.figures(whole / GIB)} GiB, {presets.figures(whole / weights)} times the weights. "
        )
        if (groups := config.num_heads // config.num_kv_heads) > 1:
            words += (
                f"With a key and a value for each of its {config.num_heads} query heads it would be {groups} × that. "
            )
        rows = rows_that_fit(config, length, memory, stored)
        if weights >= memory:
            words += f"The weights alone do not fit on a card of {memory / 1e9:.0f} GB."
        else:
            words += f"Beside the weights, {rows:,} sequences of this length fit on a card of {memory / 1e9:.0f} GB."
        return cache_size_figure(config, length, batch, stored, memory), words

    controls = {
        "length": presets.stops("tokens per sequence", LENGTHS, 4096),
        "batch": presets.stops("sequences", (1, 2, 4, 8, 16, 32, 64, 128, 256), 1),
        "model": choice("model", list(presets.SHAPES), model),
        "stored": choice("cache in", {name: size for name, size in presets.STORED.items() if size >= 1}, 2),
        "memory": choice("card", CARDS, 80e9),
    }
    return Panel(draw, controls)
