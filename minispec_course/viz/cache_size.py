"""What a KV cache weighs: as it grows, beside the weights, and in the memory of a GPU."""

from minispec import theory
from minispec.model import Config

from ..labs import presets
from .drawing import Axes, Canvas
from .panel import Panel, choice, stops
from .style import GREY, PALETTE

GIB = 2**30
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
GPUS = {"24 GB, a desktop GPU": 24e9, "80 GB, an A100 or H100": 80e9, "141 GB, an H200": 141e9}


def per_token(config: Config, bytes_per_value: float = 2, kv_heads: int | None = None) -> float:
    """Bytes one token keeps; `kv_heads` other than the model's own shows what another design would."""
    heads = config.num_kv_heads if kv_heads is None else kv_heads
    return theory.kv_bytes_per_token(config.num_layers, heads, config.head_dim, bytes_per_value)


def designs(config: Config) -> dict[str, int]:
    """Key/value heads by design: one per query head, as the model has them, one for all."""
    own = {f"GQA: {config.num_kv_heads}": config.num_kv_heads} if 1 < config.num_kv_heads < config.num_heads else {}
    return {f"MHA: {config.num_heads}": config.num_heads} | own | {"MQA: 1": 1}


def sequences_that_fit(config: Config, length: int, memory: float, bytes_per_value: float = 2) -> int:
    """Sequences of `length` tokens that a GPU holds beside the model's weights in bf16."""
    room = memory - 2 * presets.weights(config)
    return max(0, int(room // theory.kv_bytes(1, length, per_token(config, bytes_per_value))))


def cache_size_svg(config: Config, length=4096, batch=1, bytes_per_value=2.0, memory=80e9, words="") -> str:
    """GiB of cache against tokens per sequence, a line per design; the weights and the room they leave as levels."""
    lines = {
        name: [theory.kv_bytes(batch, n, per_token(config, bytes_per_value, heads)) / GIB for n in LENGTHS]
        for name, heads in designs(config).items()
    }
    stored = 2 * presets.weights(config)
    levels = {"weights in bf16": stored / GIB, "room beside the weights": (memory - stored) / GIB}
    levels = {name: level for name, level in levels.items() if level > 0}
    every = [*levels.values(), *(y for ys in lines.values() for y in ys)]
    canvas = Canvas(470)
    names = dict(
        title=f"Keys and values of {presets.counted(batch, 'sequence')}", x="tokens per sequence", y="cache, GiB"
    )
    ends = (LENGTHS[0] / 1.1, LENGTHS[-1] * 1.1), (min(every) / 1.5, max(every) * 2)
    chart = Axes(canvas, (84, 90, 660, 310), *ends, "xy", **names, x_ticks=LENGTHS[::2], room=68)
    key = []
    for (name, ys), colour in zip(lines.items(), PALETTE[1::-1] + PALETTE[2:3], strict=False):
        own = designs(config)[name] == config.num_kv_heads
        chart.line(LENGTHS, ys, colour, 4 if own else 1.5, "" if own else "6 4", name)
        if own:
            here = theory.kv_bytes(batch, length, per_token(config, bytes_per_value)) / GIB
            chart.dot(length, here, colour, f"{length:,} tokens: {here:.3g} GiB", r=7)
        key.append(("line" if own else "dash", colour, f"{name} KV heads{', this model' if own else ''}"))
    for name, level in levels.items():
        chart.level(level, GREY, "2 3", f"{name}: {presets.figures(level)} GiB")
        _, y = chart.at(LENGTHS[0], level)
        above = level == max(levels.values())
        canvas.text(90, y - 5 if above else y + 14, f"{name}, {presets.figures(level)} GiB", 12)
    canvas.key(14, 24, key)
    return canvas.svg(words)


def cache_size(model: str = "Llama-3-8B") -> Panel:
    """The calculator: how much a cache takes, how that compares with the weights, and how many sequences fit."""

    def draw(length: int, batch: int, model: str, stored: float, memory: float) -> tuple[str, str]:
        config, weights = presets.SHAPES[model], 2 * presets.weights(presets.SHAPES[model])
        each, whole = per_token(config, stored), theory.kv_bytes(batch, length, per_token(config, stored))
        words = (
            f"{model} keeps {each / 1024:,.4g} KiB per token: 2 × {config.num_layers} layers × {config.num_kv_heads} "
            f"key/value heads × {config.head_dim} × {stored:g} bytes. {batch:,} × {length:,} tokens take "
            f"{presets.figures(whole / GIB)} GiB, {presets.figures(whole / weights)} times the weights. "
        )
        if (groups := config.num_heads // config.num_kv_heads) > 1:
            words += (
                f"With a key and a value for each of its {config.num_heads} query heads it would be {groups} × that. "
            )
        if weights >= memory:
            words += f"The weights alone do not fit on a GPU of {memory / 1e9:.0f} GB."
        else:
            fit = sequences_that_fit(config, length, memory, stored)
            words += f"Beside the weights, {fit:,} sequences of this length fit on a GPU of {memory / 1e9:.0f} GB."
        return cache_size_svg(config, length, batch, stored, memory, words), words

    controls = {
        "length": stops("tokens per sequence", LENGTHS, 4096),
        "batch": stops("sequences", (1, 2, 4, 8, 16, 32, 64, 128, 256), 1),
        "model": choice("model", list(presets.SHAPES), model),
        "stored": choice("cache in", {name: size for name, size in presets.STORED.items() if size >= 1}, 2),
        "memory": choice("GPU", GPUS, 80e9),
    }
    return Panel(draw, controls)
