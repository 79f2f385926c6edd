"""Achieved bandwidth against how a kernel's work is cut: tiles of a skinny product, splits of attention."""

from __future__ import annotations

from collections.abc import Mapping

from . import light as go
from . import presets
from .limit_steps import machine_of, stored_limit
from .panel import Panel, choice
from .style import GREY, PALETTE, TEMPLATE

PRODUCT, ATTENTION = "skinny product, by tile", "attention, by splits"


def tile_sizes_figure(sweep: Mapping, bandwidth: float | None = None, rows: int | None = None) -> go.Figure:
    """Bytes/s of one skinny product against the matrix rows per program, a line per strip width.

    `sweep` is what tiles.sweep_product measured, `bandwidth` the machine's; `rows` marks a choice.
    """
    figure = go.Figure(layout=dict(template=TEMPLATE))
    widths = sorted({row["wide"] for row in sweep["results"]})
    for wide, colour in zip(widths, PALETTE, strict=False):
        of_it = [row for row in sweep["results"] if row["wide"] == wide]
        chosen = [row["rows"] == rows for row in of_it]
        figure.add_trace(
            go.Scatter(
                x=[row["rows"] for row in of_it],
                y=[row["bytes_per_second"] / 1e9 for row in of_it],
                customdata=[[row["programs"], row["stages"]] for row in of_it],
                mode="lines+markers",
                name=f"strips of {wide}",
                line=dict(color=colour),
                marker=dict(size=[14 if mark else 8 for mark in chosen], color=colour),
                hovertemplate="%{x} matrix rows: %{y:,.3g} GB/s<br>%{customdata[0]} programs, %{customdata[1]} stages",
            )
        )
    _lines(figure, sweep, bandwidth)
    figure.update_layout(xaxis=dict(title="matrix rows per program", type="log", tickvals=[16, 32, 64, 128]))
    return figure


def splits_figure(sweep: Mapping, bandwidth: float | None = None) -> go.Figure:
    """Bytes/s of attention over a long context against the number of splits."""
    rows = sweep["results"]
    figure = go.Figure(layout=dict(template=TEMPLATE))
    figure.add_trace(
        go.Scatter(
            x=[row["splits"] for row in rows],
            y=[row["bytes_per_second"] / 1e9 for row in rows],
            customdata=[row["programs"] for row in rows],
            mode="lines+markers",
            name="flash decoding",
            marker=dict(size=9),
            hovertemplate="%{x} splits: %{y:,.3g} GB/s<br>%{customdata} programs",
        )
    )
    _lines(figure, sweep, bandwidth)
    ticks = [row["splits"] for row in rows]
    figure.update_layout(xaxis=dict(title="splits of the context", type="log", tickvals=ticks))
    return figure


def _lines(figure: go.Figure, sweep: Mapping, bandwidth: float | None) -> None:
    """What torch's own kernel and the memory reach, and the axis."""
    levels = {"torch's own": (sweep["torch"]["bytes_per_second"], GREY, "dash")}
    if bandwidth:
        levels["read bandwidth, measured"] = (bandwidth, PALETTE[1], "dot")
    xs = [row.get("rows", row.get("splits")) for row in sweep["results"]] or [1, 128]
    for name, (rate, colour, dash) in levels.items():
        figure.add_trace(
            go.Scatter(
                x=[min(xs), max(xs)],
                y=[rate / 1e9] * 2,
                name=name,
                mode="lines",
                line=dict(color=colour, dash=dash),
                hovertemplate="%{y:,.3g} GB/s",
            )
        )
    figure.update_layout(
        yaxis=dict(title="read, GB/s", rangemode="tozero"), legend=dict(orientation="h", y=-0.25), height=420
    )


def tile_sizes(live: Mapping | None = None, recorded: Mapping | None = None) -> Panel:
    """The sweeps to look at. `live` is a result of this machine with "tiles", "splits" and "bandwidth", as
    `python -m benchmarks limit` makes it."""
    recorded = stored_limit() if recorded is None else recorded
    runs = {machine_of(recorded): recorded} | ({} if live is None else {"this machine, measured now": live})

    def draw(kernel: str, rows: int, machine: str):
        result = runs[machine]
        bandwidth = result["bandwidth"]["median"]
        sweep = result["tiles" if kernel == PRODUCT else "splits"]
        doubt = (
            " Triton's interpreter acted out these kernels on a CPU: their results are right, but these speeds say "
            "nothing about a GPU."
            if sweep["interpreted"]
            else ""
        )
        if not sweep["results"]:
            return tile_sizes_figure(sweep, bandwidth), f"Our kernels did not run there: {sweep['unavailable']}."
        best = max(sweep["results"], key=lambda row: row["bytes_per_second"])
        if kernel == ATTENTION:
            words = (
                f"{machine}: attention of one token over {sweep['context']:,} cached ones reads "
                f"{presets.si(sweep['bytes'], 'B')}. It is fastest with {best['splits']} splits, "
                f"{best['programs']} programs: {presets.si(best['bytes_per_second'], 'B/s')}, "
                f"{best['bytes_per_second'] / bandwidth:.0%} of the read bandwidth.{doubt}"
            )
            return splits_figure(sweep, bandwidth), words
        chosen = [row for row in sweep["results"] if row["rows"] == rows] or [best]
        top = max(chosen, key=lambda row: row["bytes_per_second"])
        units = sweep["multiprocessors"]
        shared = f" for {units} multiprocessors" if units else ""
        words = (
            f"{machine}: W is {sweep['shape'][0]:,} × {sweep['shape'][1]:,}, {presets.si(sweep['bytes'], 'B')}. With "
            f"{top['rows']} matrix rows per program there are {top['programs']} programs{shared}, and the best strip, "
            f"{top['wide']} wide, reads {presets.si(top['bytes_per_second'], 'B/s')}, "
            f"{top['bytes_per_second'] / bandwidth:.0%} of the read bandwidth. The best tile of all is "
            f"{best['rows']} × {best['wide']}.{doubt}"
        )
        return tile_sizes_figure(sweep, bandwidth, top["rows"]), words

    controls = {
        "kernel": choice("kernel", [PRODUCT, ATTENTION]),
        "rows": choice("matrix rows per program", [16, 32, 64, 128]),
        "machine": choice("machine", list(runs)),
    }
    return Panel(draw, controls)
