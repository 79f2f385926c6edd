"""Drawings: their numbers are computed, they speak, they follow a theme, and they are the same on every run."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("ipywidgets")

from minispec import theory
from minispec_course import viz
from minispec_course.viz import drawing, presets
from minispec_course.viz.weights_stream import BUSY, WEIGHTS, one_pass, weights_stream_svg

SVG = "{http://www.w3.org/2000/svg}"
LLAMA = presets.SHAPES["Llama-3-8B"]


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def inside(svg: str) -> None:
    """Well-formed, spoken, and every word and box on the card (by the estimate that the drawings are laid out with)."""
    root = ElementTree.fromstring(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    assert root.get("role") == "img" and len(root.find(f"{SVG}title").text) > 20
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
    for node in root.iter(f"{SVG}text"):
        long = drawing.text_width(node.text or "", float(node.get("font-size")))
        left = float(node.get("x")) - {"start": 0, "middle": long / 2, "end": long}[node.get("text-anchor")]
        assert left >= -1 and left + long <= width + 1, node.text
        assert 0 < float(node.get("y")) <= height, node.text
        assert float(node.get("font-size")) >= 10.5
    for node in list(root.iter(f"{SVG}rect"))[1:]:
        x, y, w, h = (float(node.get(name)) for name in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width + 0.02 and y + h <= height + 0.02


def test_a_drawing_is_an_image_with_its_words():
    pencil = drawing.Canvas(40).rect(1, 1, 10, 10, "#0072b2").text(20, 20, "a < b & c").arrow(0, 0, 30, 30)
    done = pencil.drawing("two boxes & an arrow")
    bundle = done._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/plain"} and bundle["text/plain"] == repr(done)
    root = ElementTree.fromstring(bundle["image/svg+xml"])
    assert root.find(f"{SVG}title").text == "two boxes & an arrow" and texts(done.svg) == ["a < b & c"]


def test_ink_and_card_follow_the_page_and_have_a_fallback():
    svg = drawing.Canvas(20).text(1, 10, "x").svg("words of this drawing")
    for name, (variable, plain) in drawing.THEME.items():
        assert f".ms-{name}{{fill:var({variable},{plain})}}" in svg
    assert 'class="ms-ink"' in svg and 'class="ms-card"' in svg and 'fill="black"' not in svg


@pytest.mark.parametrize("name", [drawing.INK, drawing.SOFT])
def test_text_can_be_read_on_the_card(name):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    assert (luminance(drawing.THEME[drawing.CARD][1]) + 0.05) / (luminance(drawing.THEME[name][1]) + 0.05) >= 4.5


def test_lines_break_and_tokens_are_cut_where_there_is_no_room():
    lines = drawing.wrapped("a sentence that is much too long for one line of this width", 120)
    assert len(lines) > 1 and all(drawing.text_width(line) <= 120 for line in lines)
    assert " ".join(lines) == "a sentence that is much too long for one line of this width"
    assert drawing.text_width(drawing.shorten("incomprehensible", 40)) <= 40 and drawing.shorten("cat", 40) == "cat"


# ---------------------------------------------------------------- weights past tokens


def test_a_pass_reads_the_weights_once_whatever_its_tokens():
    one, five, many = (one_pass(LLAMA, theory.H200, tokens) for tokens in (1, 5, 200))
    assert one.weight_bytes == five.weight_bytes == many.weight_bytes == 2 * presets.weights_read(LLAMA)
    assert one.cache_bytes == 0 and five.flops == 5 * one.flops
    assert one.seconds == five.seconds == theory.pass_time(theory.H200, presets.weights_read(LLAMA)) < many.seconds
    assert many.seconds == many.computing > many.reading


def test_the_cache_is_read_for_each_sequence():
    per_token = theory.kv_bytes_per_token(LLAMA.num_layers, LLAMA.num_kv_heads, LLAMA.head_dim)
    it = one_pass(LLAMA, theory.H200, 1, context=4096, batch=8)
    assert it.cache_bytes == 8 * 4096 * per_token


def _bars(svg: str, colour: str, at: float) -> float:
    """Length of the faint bar of a colour at a height: what the whole pass needs."""
    bars = [
        float(rect.get("width"))
        for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect")
        if rect.get("fill") == colour and float(rect.get("y", -1)) == at and rect.get("fill-opacity") == "0.18"
    ]
    return max(bars)


@pytest.mark.parametrize("tokens", [1, 5, 100, 400])
def test_the_meters_are_to_scale(tokens):
    svg, words = weights_stream_svg(LLAMA, theory.H200, tokens)
    it = one_pass(LLAMA, theory.H200, tokens)
    read, done = _bars(svg, WEIGHTS, 284), _bars(svg, BUSY, 318)
    assert done / read == pytest.approx(it.computing / it.reading, abs=0.01)
    assert ("Memory-bound" in words) == (tokens < theory.balance_point(theory.H200)) != ("Compute-bound" in words)


def test_every_control_of_the_stream_draws_something_on_the_card():
    panel = viz.weights_stream()
    seen = set()
    for name, value in (
        ("tokens", 1),
        ("tokens", 400),
        ("context", 65_536),
        ("batch", 64),
        ("moment", 3),
        ("moment", 0),
    ):
        panel.controls[name].value = value
        inside(panel.picture)
        seen.add(panel.picture)
        assert not re.search(r"\de[+-]\d", panel.words)
    assert len(seen) == 6
    heights = {re.search(r'viewBox="([^"]+)"', picture)[1] for picture in seen}
    assert len(heights) == 1  # the page below does not jump


def test_the_rows_name_what_they_show():
    rows = viz.pass_rows(tokens=(1, 5, 200), contexts=(8192,))
    inside(rows.svg)
    for tokens, context in ((1, 0), (5, 0), (200, 0), (1, 8192)):
        it = viz.one_pass(LLAMA, theory.H200, tokens, context)
        assert presets.duration(it.seconds) in rows.words and presets.si(it.flops, "FLOP") in rows.words
    assert viz.pass_rows().svg == viz.pass_rows().svg
