"""Figures show the numbers they were given, in the course's one style, and load only when asked for."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("plotly")

import minispec as ms
from minispec_course.viz import style

RESULT = {
    "benchmark": "temperature",
    "target": "big",
    "draft": "small",
    "target_temperatures": [0.0, 0.5, 1.0],
    "draft_temperatures": [0.0, 0.4, 0.8, 1.2],
    "acceptance": [[0.8, 0.7, 0.6, 0.5], [0.6, 0.75, 0.7, 0.6], [0.4, 0.5, 0.6, 0.6]],
    "tokens": [10, 10, 10],
}


def test_plots_are_part_of_the_package_when_asked_for():
    assert ms.viz is sys.modules["minispec_course.viz"] and "viz" not in ms.__all__  # test_import: not before
    with pytest.raises(AttributeError, match="vizz"):
        _ = ms.vizz


def test_the_figures_lines_are_the_results_rows():
    figure = ms.viz.acceptance_by_temperature(RESULT)
    lines = [trace for trace in figure.data if "lines" in trace.mode]
    assert [list(line.y) for line in lines] == RESULT["acceptance"]
    assert all(list(line.x) == RESULT["draft_temperatures"] for line in lines)
    assert [float(line.name.split()[0]) for line in lines] == RESULT["target_temperatures"]
    assert len({(line.line.color, line.marker.symbol) for line in lines}) == len(lines)


def test_rings_mark_the_best_draft_temperatures():
    rings = [trace for trace in ms.viz.acceptance_by_temperature(RESULT).data if trace.mode == "markers"]
    assert [(list(ring.x), list(ring.y)) for ring in rings] == [
        ([0.0], [0.8]),
        ([0.4], [0.75]),
        ([0.8, 1.2], [0.6, 0.6]),
    ]


def test_other_results_are_refused():
    with pytest.raises(ValueError, match="bench temperature"):
        ms.viz.acceptance_by_temperature({"benchmark": "drafters"})


def test_figures_wear_the_courses_style():
    layout = ms.viz.acceptance_by_temperature(RESULT).layout.template.layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert layout.font.color == style.TEXT and layout.xaxis.gridcolor == "rgba(128,128,128,.3)"
    assert None not in (layout.margin.l, layout.margin.r, layout.margin.t, layout.margin.b)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_is_readable_on_white_and_on_black():
    """A plain figure is drawn for no page in particular: on white as WCAG asks, on JupyterLab's black as large text."""
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast(style.TEXT, "#ffffff") >= 4.5 > contrast(style.GREY, "#ffffff")
    assert contrast(style.TEXT, "#111111") >= 4


def test_colours_can_be_told_apart():
    assert len(set(style.KINDS.values())) == 3 and set(style.KINDS) == {"accepted", "corrected", "bonus"}
    for count in (1, 2, 9):
        assert len(set(style.shades(count))) == count
