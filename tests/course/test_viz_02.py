"""The cache calculator shows the formulas' sizes, and the race the passes that were timed."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("plotly")

from minispec import theory
from minispec_course import viz
from minispec_course.viz import presets

size_module, race_module = sys.modules["minispec_course.viz.cache_size"], sys.modules["minispec_course.viz.cache_race"]
LLAMA = presets.SHAPES["Llama-3-8B"]


# ---- the calculator ----


def test_lines_are_the_formulas_sizes():
    figure = viz.cache_size_figure(LLAMA, length=3000, batch=4, bytes_per_value=1)
    lines = [t for t in figure.data if t.mode == "lines"]
    assert [line.name.split()[:2] for line in lines] == [["MHA:", "32"], ["GQA:", "8"], ["MQA:", "1"]]
    for line, heads in zip(lines, (32, 8, 1), strict=True):
        per_token = theory.kv_bytes_per_token(32, heads, 128, 1)
        assert 3000 in line.x
        assert list(line.y) == [theory.kv_bytes(4, n, per_token) / 2**30 for n in line.x]
    [mark] = [t for t in figure.data if t.mode == "markers"]
    assert (mark.x[0], mark.y[0]) == (3000, theory.kv_bytes(4, 3000, theory.kv_bytes_per_token(32, 8, 128, 1)) / 2**30)
    assert ["this model" in line.name for line in lines] == [False, True, False]


def test_a_model_without_groups_is_its_own_mha():
    lines = [t for t in viz.cache_size_figure(presets.SHAPES["Llama-2-7B"]).data if t.mode == "lines"]
    assert [("this model" in line.name, line.name.split()[1]) for line in lines] == [(True, "32"), (False, "1")]


def test_levels_are_the_weights_and_the_room_they_leave():
    stored = 2 * presets.weights(LLAMA)
    heights = lambda **o: [shape.y0 for shape in viz.cache_size_figure(LLAMA, **o).layout.shapes]  # noqa: E731
    assert heights(memory=80e9) == [stored / 2**30, (80e9 - stored) / 2**30]
    assert heights(memory=1e9) == heights() == [stored / 2**30]  # no room, no level


@pytest.mark.parametrize(("length", "memory", "stored"), [(4096, 80e9, 2), (8192, 24e9, 1), (131_072, 141e9, 2)])
def test_so_many_rows_fit_and_not_one_more(length, memory, stored):
    rows = size_module.rows_that_fit(LLAMA, length, memory, stored)
    taken = lambda n: 2 * presets.weights(LLAMA) + n * length * size_module.per_token(LLAMA, stored)  # noqa: E731
    assert rows > 0 and taken(rows) <= memory < taken(rows + 1)
    assert size_module.rows_that_fit(presets.SHAPES["Llama-3-70B"], length, 80e9, stored) == 0


def test_the_calculator_speaks_the_audits_numbers():
    panel = viz.cache_size("Llama-2-70B")
    for name, value in (("length", 4096), ("batch", 32)):
        panel.controls[name].value = value
    assert "320 KiB per token" in panel.words and "40 GiB" in panel.words and "8 × that" in panel.words
    assert "do not fit" in panel.words
    panel.controls["model"].value = "Llama-2-7B"
    assert "512 KiB" in panel.words and "query heads it would" not in panel.words


def test_every_option_draws():
    panel = viz.cache_size()
    for control in panel.controls.values():
        for option in control.options:
            before, words = panel.picture, panel.words
            value = option[1] if isinstance(option, tuple) else option
            moved, control.value = control.value != value, value
            assert not moved or (panel.picture is not before and panel.words != words)
    with pytest.raises(ValueError, match="model='nobody'"):
        viz.cache_size("nobody")


# ---- the race ----


class Ticking:
    """A transformer whose passes take a second per token read, and which notes what it is given."""

    def __init__(self, transformer):
        self.inner, self.now, self.log = transformer, 0.0, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __call__(self, tokens, cache=None, **options):
        self.log.append((tokens[0].tolist(), None if cache is None else int(cache.lengths[0])))
        self.now += tokens.shape[1]
        return self.inner(tokens, cache, **options)


@pytest.fixture
def timed(tiny, monkeypatch):
    """A race of six tokens after a prompt of three, on the fake clock; and what the passes read."""
    text = race_module.generate(tiny, [5, 6, 7], 6).tokens
    ticking = Ticking(tiny.transformer)
    monkeypatch.setattr(race_module, "generate", lambda *a: type("Out", (), {"tokens": text}))
    monkeypatch.setattr(tiny, "transformer", ticking)
    race = viz.measure_race(tiny, [5, 6, 7], 6, repeat=2, clock=lambda: ticking.now)
    return race, ticking.log, [5, 6, 7, *text]


def test_both_ways_are_timed_over_the_same_text(timed):
    race, log, text = timed
    assert race.cached == (3, 1, 1, 1, 1, 1)  # the prompt, then one token a pass
    assert race.uncached == (3, 4, 5, 6, 7, 8)  # everything, every time
    for tokens, held in log:
        start = held or 0
        assert tokens == text[start : start + len(tokens)]
        assert held is None or start + len(tokens) in (3, *range(4, 9))
    assert race.prompt_tokens == 3 and len(race.pieces) == 6
    assert race.finish == (8, 33)


def test_the_clock_decides_who_has_written_what(timed):
    race, _, _ = timed
    assert [race.written(s) for s in (0, 2.9, 3, 4, 7, 8, 32.9, 33)] == [
        (0, 0),
        (0, 0),
        (1, 1),
        (2, 1),
        (5, 2),
        (6, 2),
        (6, 5),
        (6, 6),
    ]


def test_the_figure_shows_every_pass(timed):
    race, _, _ = timed
    kept, lost = viz.cache_race_figure(race).data
    assert list(kept.x) == list(lost.x) == [3, 4, 5, 6, 7, 8]
    assert list(kept.y) == [1e3 * t for t in race.cached] and list(lost.y) == [1e3 * t for t in race.uncached]


def test_text_in_the_lanes_is_escaped():
    race = race_module.Race("a<b", 1, ("<script>", "&"), (1.0, 1.0), (1.0, 2.0))
    drawn = viz.cache_race_html(race, 2.5)
    assert "<script>" not in drawn and "&lt;script&gt;" in drawn and "a&lt;b" in drawn
    assert 'role="img"' in drawn and "aria-label=" in drawn
    assert "done after 2.00 s" in drawn and "1 of 2 tokens" in drawn


def test_the_race_can_be_moved_and_ends_with_both_done(timed):
    panel = viz.cache_race(timed[0])
    before, words = panel.picture, panel.words
    assert "0 tokens with a cache, 0 without" in words
    panel.controls["step"].value = 1
    assert panel.words != words
    panel.controls["step"].value = 25  # 8.25 s
    assert "6 tokens with a cache, 2 without" in panel.words and panel.picture != before
    panel.controls["play"].value = panel.controls["step"].max  # the play button moves the slider
    assert "6 tokens with a cache, 6 without" in panel.words
    assert panel.picture.count("done after") == 2


def test_only_a_race_can_be_run():
    with pytest.raises(ValueError, match="measure_race"):
        viz.cache_race("micro")
