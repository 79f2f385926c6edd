"""The explorer's errors are those of files/quantize.py, its effects a quantised model's; the tiles end in softmax."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("plotly")

import torch
from tiny_models import random_model

from minispec import theory
from minispec.drafters.quantized import quantized_copy
from minispec.gpu.attention import flash_decode_torch
from minispec.load.quantize import quantize
from minispec_course import viz
from minispec_course.viz.online_softmax import LATER, State
from minispec_course.viz.quantisation import matrices, round_trip, scale_name
from minispec_course.viz.style import PALETTE

SVG, ORANGE = "{http://www.w3.org/2000/svg}", PALETTE[1]

# ---------------------------------------------------------------- quantisation


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    w = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    w[2] *= 10  # a loud channel
    return w


@pytest.mark.parametrize(("scale", "scales"), [("tensor", 1), ("channel", 6), (4, 24)])
def test_every_kind_of_scale_keeps_its_bound(weight, scale, scales):
    rounded, s = round_trip(weight, 4, scale)
    assert s.numel() == scales
    step = s.repeat_interleave(weight.numel() // s.numel()).view_as(weight)
    assert ((rounded - weight).abs() <= step / 2 * (1 + 1e-6)).all()
    assert torch.allclose(rounded / step, (rounded / step).round(), atol=1e-5)  # on the grid


def test_the_error_is_what_it_says(weight):
    errors = [viz.error_of(weight, 4, scale) for scale in ("tensor", "channel", 4)]
    for error, scale in zip(errors, ("tensor", "channel", 4), strict=True):
        off = (round_trip(weight, 4, scale)[0] - weight).double()
        assert error.largest == pytest.approx(float(off.abs().max()))
        assert error.relative == pytest.approx(float(off.norm() / weight.double().norm()))
        assert error.snr == pytest.approx(-20 * math.log10(error.relative))
    assert errors[0].relative > errors[1].relative > errors[2].relative  # the fewer share a scale, the better
    assert [error.bits_per_weight for error in errors] == pytest.approx([4 + 16 / 96, 4 + 16 / 16, 4 + 16 / 4])


def test_what_lies_on_the_grid_already_loses_nothing(weight):
    there = round_trip(weight, 8, "channel")[0]
    assert math.isinf(viz.error_of(there, 8, "channel").snr) and not math.isinf(viz.error_of(there, 7, "channel").snr)


TEXT = [1, 5, 2, 9, 3, 3, 7, 1, 4]


@pytest.fixture(scope="module")
def model(make_model):
    return make_model(seed=3, tie_embeddings=True)  # rounding the head must leave the embedding alone


@pytest.fixture(scope="module")
def effects(model):
    return viz.effects_of(model, TEXT, bits=(4, 8), scales=("tensor", "channel", 4))


def test_effects_are_those_of_the_quantised_model(model, effects):
    ids = torch.tensor([TEXT])
    law = lambda m: m.transformer(ids).logits[0, :-1].double()  # noqa: E731
    plain = law(model)
    for bits, scale in ((4, "channel"), (4, 4), (8, "channel")):
        logits = law(quantized_copy(model, bits, scale if isinstance(scale, int) else None))
        effect = effects[bits, scale]
        surprise = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
        assert effect.perplexity == pytest.approx(math.exp(surprise), rel=1e-5)
        assert effect.logits == pytest.approx(float((logits - plain).square().mean().sqrt()), rel=1e-4)
        overlap = torch.minimum(logits.softmax(-1), plain.softmax(-1)).sum(-1).mean()
        assert effect.overlap == pytest.approx(float(overlap), rel=1e-6)
    assert effects[16, "none"].overlap == pytest.approx(1) and effects[16, "none"].logits == 0
    assert effects[4, "tensor"].overlap < effects[8, "tensor"].overlap


def test_the_model_is_left_as_it_was(model):
    before = {name: weight.clone() for name, weight in matrices(model).items()}
    viz.effects_of(model, TEXT, bits=(2,), scales=("tensor",))
    assert all(torch.equal(weight, before[name]) for name, weight in matrices(model).items())


def told(svg: str, kind: str) -> list[tuple[str, dict]]:
    """What the shapes of one kind say to the pointer, with their attributes."""
    shapes = ElementTree.fromstring(svg).iter(SVG + kind)
    return [(shape.findtext(f"{SVG}title") or "", shape.attrib) for shape in shapes]


def test_the_picture_shows_the_channel_its_grid_and_the_errors(model, effects):
    name, weight = next(iter(matrices(model).items()))
    for scale in ("tensor", "channel", 4):
        svg, words = viz.quantisation_svg(name, weight, 4, scale, effects)
        channel = int(weight.abs().amax(1).argmin())
        _, scales = quantize(weight.reshape(1, -1) if scale == "tensor" else weight, 4, 4 if scale == 4 else None)
        step = float(scales[0 if scale == "tensor" else channel, 0])
        bars = [text for text, _ in told(svg, "rect")]
        counted = [
            sum(int(n) for text in bars for n in re.findall(rf"^{what} .*: (\d+)", text))
            for what in ("weight", "error")
        ]
        assert counted == [4 if scale == 4 else weight.shape[1], weight.numel()]
        edge = 1.08 * float(weight[channel][: 4 if scale == 4 else None].abs().max())
        marks = [float(line["x1"]) for _, line in told(svg, "line") if line.get("stroke") == ORANGE]
        steps = [(x - 211) * 2 * edge / 290 / step for x in marks]  # the chart's middle and width, in pixels
        assert len(steps) > 2 and steps == pytest.approx([round(x) for x in steps], abs=0.05)
        assert f"acceptance as a draft {effects[4, scale].overlap:.2f}" in words
        dots = dict(told(svg, "circle"))
        lines = {
            f"{scale_name(s)}, {b} bits: {value:,.3f}"
            for (b, s), one in effects.items()
            if s != "none"
            for value in (one.overlap, one.perplexity)
        }
        assert set(dots) - {""} == lines
        rings = [(ring["cx"], ring["cy"]) for text, ring in told(svg, "circle") if not text]
        here = [
            dots[f"{scale_name(scale)}, 4 bits: {value:,.3f}"]
            for value in (effects[4, scale].overlap, effects[4, scale].perplexity)
        ]
        assert rings == [(dot["cx"], dot["cy"]) for dot in here]


def test_controls_of_the_explorer_move_it(model, effects):
    panel = viz.quantisation(model, TEXT, effects)
    seen = {panel.words}
    for name, value in (("bits", 8), ("scale", "channel"), ("name", "lm_head")):
        panel.controls[name].value = value
        assert panel.words not in seen
        seen.add(panel.words)
    before = panel.picture
    panel.controls["loudest"].value = True
    assert panel.picture != before


def test_bad_scales_are_refused(weight, effects):
    with pytest.raises(ValueError, match="scale='row'"):
        round_trip(weight, 4, "row")
    with pytest.raises(ValueError, match="does not divide"):
        round_trip(weight, 4, 5)
    with pytest.raises(ValueError, match="bits=3"):
        viz.quantisation_svg("w", weight, 3, "tensor", effects)


# ---------------------------------------------------------------- online softmax


def random_scores(n: int, scale: float = 8.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return (torch.randn(n, generator=generator) * scale).double(), torch.randn(n, 5, generator=generator).double()


@pytest.mark.parametrize("tile", [1, 3, 8, 100])
def test_after_every_tile_the_answer_is_the_softmax_of_what_was_seen(tile):
    scores, values = random_scores(20)
    states = viz.online_softmax(scores, values, tile)
    assert len(states) == -(-20 // tile)
    for i, state in enumerate(states, start=1):
        seen = slice(0, i * tile)
        assert torch.allclose(state.answer, scores[seen].softmax(0) @ values[seen], rtol=1e-12, atol=1e-12)
        assert state.m == float(scores[seen].max())
        assert state.ell == pytest.approx(float((scores[seen] - state.m).exp().sum()))


def test_huge_scores_do_not_overflow():
    scores, values = random_scores(20, scale=1e4)
    assert torch.allclose(viz.online_softmax(scores, values, 4)[-1].answer, scores.softmax(0) @ values)


def test_states_of_splits_merge_to_the_whole():
    scores, values = random_scores(23)
    parts = [viz.online_softmax(s, v, 4)[-1] for s, v in zip(scores.split(9), values.split(9), strict=True)]
    merged, whole = viz.merge_states(parts), viz.online_softmax(scores, values, 23)[-1]
    assert isinstance(merged, State) and merged.m == whole.m and merged.ell == pytest.approx(whole.ell)
    assert torch.allclose(merged.answer, whole.answer, rtol=1e-12, atol=1e-12)


def test_the_models_own_attention_is_what_is_shown(model):
    ids = torch.tensor([TEXT])
    seen = {}
    module = model.transformer.layers[1].self_attn.o_proj
    hook = module.register_forward_hook(lambda _, inputs, __: seen.update(o=inputs[0][0, -1]))
    model.transformer(ids)
    hook.remove()
    attention = viz.read_attention(model, TEXT)
    heads = [
        viz.online_softmax(*attention.scores(1, head), tile=2)[-1].answer for head in range(model.config.num_heads)
    ]
    assert torch.allclose(torch.cat(heads).float(), seen["o"].detach().float(), atol=1e-5)
    q, k, v = attention.queries[1][None, :, None], attention.keys[1][None], attention.values[1][None]
    twin = flash_decode_torch(q, k, v, torch.tensor([len(TEXT) - 1]))[0, :, 0]
    assert torch.allclose(torch.stack(heads), twin.double(), atol=1e-5)


def test_the_bars_are_the_weights_so_far(model):
    attention = viz.read_attention(model, TEXT)
    scores, _ = attention.scores(0, 1)
    for seen in (1, 2, 3):
        svg, words = viz.online_softmax_svg(attention, 0, 1, tile=4, seen=seen)
        bars, weights, circles = (
            [
                (int(text.split(":")[0]), float(text.split(f"{what} ")[1]), shape)
                for text, shape in told(svg, kind)
                if f", {what} " in text
            ]
            for kind, what in (("rect", "score"), ("rect", "weight so far"), ("circle", "full softmax"))
        )
        for found, wanted in ((bars, scores), (weights, scores[: 4 * seen].softmax(0)), (circles, scores.softmax(0))):
            assert [slot for slot, *_ in found] == list(range(len(wanted)))
            assert [value for _, value, _ in found] == pytest.approx(wanted.tolist(), abs=0.006)
        later = [slot for slot, _, bar in bars if bar["fill"] == LATER]
        assert later == list(range(min(4 * seen, len(scores)), len(scores)))
        heights = [float(bar["height"]) for *_, bar in weights]  # drawn as long as they say
        drawn = max(heights) / max(value for _, value, _ in weights)
        assert heights == pytest.approx([value * drawn for _, value, _ in weights], rel=0.02, abs=0.5)
        [line] = [path["d"] for _, path in told(svg, "path") if path.get("stroke") == PALETTE[2]]
        _, score, bar = max(bars[: 4 * seen], key=lambda one: one[1])
        end = float(bar["y"]) + (0 if score > 0 else float(bar["height"]))
        assert float(line.split()[-1]) == pytest.approx(end, abs=0.1)  # the running maximum ends at the largest score
        assert f"Tile {seen} of 3" in words
    assert "full softmax's answer" in words  # the last tile


def test_controls_of_the_tiles_move_them(model):
    panel = viz.online_softmax_tiles(model, TEXT)
    for name, value in (("tile", 4), ("seen", 3), ("layer", 0), ("head", 1)):
        before = panel.picture
        panel.controls[name].value = value
        assert panel.picture != before
    panel.controls["tile"].value = 16  # fewer tiles than asked for: the last
    assert "Tile 1 of 1" in panel.words


def test_bad_arguments_of_the_tiles(model):
    attention, (scores, values) = viz.read_attention(model, TEXT), random_scores(4)
    for call in (
        lambda: viz.online_softmax(scores, values, 0),
        lambda: viz.online_softmax(scores, values[:3], 2),
        lambda: viz.online_softmax(scores[:0], values[:0], 2),
        lambda: attention.scores(99, 0),
        lambda: viz.online_softmax_svg(attention, tile=4, seen=4),
    ):
        with pytest.raises(ValueError, match="give|there are"):
            call()


# ---------------------------------------------------------------- two rooflines


def test_int8_reads_a_quarter_and_meets_its_ridge_point_at_a_quarter_as_many_tokens():
    hardware, config = theory.Hardware("a machine", 20e9, 40e9), viz.presets.SHAPES["smollm2"]
    whole, small = viz.two_rooflines(hardware, config, range(1, 33), context=0)
    assert (whole.weights, small.weights) == ("float32", "int8")
    assert whole.roofline[1] / small.roofline[1] == pytest.approx(4, rel=0.01)
    bound = lambda curve: next(m for m, t in curve.roofline.items() if t > 1.001 * curve.roofline[1])  # noqa: E731
    assert bound(whole) > 4 > bound(small)
    assert whole.roofline[32] == small.roofline[32]  # computing takes as long for both
    assert all(small.roofline[m] <= whole.roofline[m] for m in range(1, 33))


@pytest.mark.slow
def test_what_was_measured_goes_to_its_own_curve():
    model = random_model(dtype=torch.float32, head_dim=16)
    both = viz.measure_both(model, (1, 2), context=8, seconds=0.01)
    assert [here.bytes_per_weight for here in both] == [4, 1]
    curves = viz.two_rooflines(both[0].hardware, model.config, (1, 2), 8, both)
    for curve, here in zip(curves, both, strict=True):
        assert curve.measured == {point.tokens: point.time for point in here.curve}
    dots = [trace for trace in viz.two_rooflines_figure(curves).data if trace.mode == "markers"]
    assert [list(trace.y) for trace in dots] == [[1e3 * t.median for t in c.measured.values()] for c in curves]
    assert len(viz.two_rooflines_figure(viz.two_rooflines(both[0].hardware, model.config)).data) == 2
    with pytest.raises(ValueError, match="float32 model"):
        viz.measure_both(random_model(dtype=torch.float32, device="meta"))
