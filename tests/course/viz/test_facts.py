"""What the lessons read off the pictures: the numbers are those of the theory, of a trace, or of a measurement.

Alternative texts are asked for their numbers, never for their wording.
"""

import math
import re
from pathlib import Path

import pytest
import torch

import minispec as ms
from minispec import theory, tree
from minispec_course import formulas, viz
from minispec_course.labs import cycles, presets
from minispec_course.labs.numerics import error_of, matrices, round_trip
from minispec_course.labs.slower import SOUND, cases
from minispec_course.viz.diagnose import suspects, verdict
from minispec_course.viz.drafting_steps import first_draft
from minispec_course.viz.pictures import cut_matrices
from minispec_course.viz.race import passes
from minispec_course.viz.roofline import roof_of
from minispec_course.viz.surface import ALPHAS, EXPECTED, KS, shade, surface_svg
from minispec_course.viz.surface import verify_cost as verify_cost_of
from minispec_course.viz.tree import reaches, rows_of
from minispec_course.viz.weights_stream import weights_stream_svg

ROOT = Path(__file__).resolve().parents[3]
LLAMA = presets.SHAPES["Llama-3-8B"]


def numbers(words: str) -> list[float]:
    return [float(x.replace(",", "")) for x in re.findall(r"\d[\d,]*\.?\d*", words)]


def says(words: str, *values: float) -> bool:
    """These numbers are in a text, in this order."""
    found = iter(numbers(words))
    return all(any(value == pytest.approx(one, abs=1e-9) for one in found) for value in values)


# ---- shapes and rooflines --------------------------------------------------------------------------------------------


def test_the_shapes_are_those_of_the_models():
    published = {
        "smollm2": 134.5e6,
        "Llama-3.2-1B": 1.24e9,
        "Llama-2-7B": 6.74e9,
        "Llama-3-8B": 8.03e9,
        "Llama-3-70B": 70.6e9,
    }
    for name, count in published.items():
        assert presets.weights(presets.SHAPES[name]) == pytest.approx(count, rel=0.005), name
    assert presets.weights_read(LLAMA) == presets.weights(LLAMA) - LLAMA.vocab_size * LLAMA.hidden_size


def test_the_roof_is_the_functions_own():
    roofline = lambda read, flops, bandwidth, peak: (max(read / bandwidth, flops / peak), "")  # noqa: E731
    for machine in presets.MACHINES:
        assert all(y == pytest.approx(min(machine.flops, x * machine.bandwidth)) for x, y in roof_of(roofline, machine))
    assert says(viz.roof(roofline).words, math.floor(theory.balance_point(theory.H200)))


def test_a_pass_reads_its_weights_once_however_many_tokens():
    for tokens in (1, 5):  # 15 GB, and 15 GFLOP per token
        assert says(weights_stream_svg(LLAMA, theory.H200, tokens)[1], 15, 15 * tokens)


# ---- the surface, the cycle and its diagnosis ------------------------------------------------------------------------


def test_the_surface_is_the_formula(panel):
    assert EXPECTED[35, 3] == pytest.approx(theory.expected_tokens(ALPHAS[35], 4)) and EXPECTED.shape == (50, len(KS))
    assert shade(1.0) == 12 and shade(4.0) == 24 and shade(0.25) == 0 and shade(99.0) == 24
    svg = surface_svg(0.7, 0.1, 1.2)
    cells = {int(n): d.count("M") for n, d in re.findall(r'data-part="cells (\d+)" d="([^"]*)"', svg)}
    wanted = [int(shade(theory.speedup(a, k, 0.1, 1.2))) for a in ALPHAS for k in KS]
    assert {n: count for n, count in cells.items() if count} == {n: wanted.count(n) for n in set(wanted)}
    for values in ({"alpha": 0.8, "c": 0.1}, {"alpha": 0.1, "c": 0.9}, {"cost": "grows", "v": 2.0}):
        chosen = panel("surface").values | values
        cost = verify_cost_of(chosen["v"], chosen["cost"] == "grows")
        _, words = panel("surface").draw(**chosen)
        assert says(words, theory.best_k(chosen["alpha"], chosen["c"], cost, 16)), values
    dot = viz.Dot.recorded()  # the first of the menu, and chosen
    assert says(words, round(dot.predicted, 2), round(dot.measured, 2))


def test_a_recorded_cycle_is_its_parts():
    run = viz.CycleParts.recorded()
    assert run.cycle == pytest.approx(run.draft + run.verify + run.host) and min(run.draft, run.verify) > 0
    assert says(viz.cycle_over_steps().words, round(run.speedup, 2))


def test_the_numbers_convict_exactly_the_right_fault():
    runs = cases()
    for name, case in runs.items():
        found = suspects(case, runs[SOUND])
        guilty = [fault for fault, suspect in found.items() if suspect.guilty]
        assert guilty == ([] if name == SOUND else [name])
        if name != SOUND:
            assert found[name].fixed > case.predicted
            assert says(verdict(case, runs[SOUND], name), round(found[name].fixed, 2))


# ---- cycles and races ------------------------------------------------------------------------------------------------


def test_the_stepper_walks_three_stages_a_cycle(panel, run):
    trace = run[0].trace
    walk, cycle = cycles.steps(trace), trace.cycles[0]
    assert len(walk) == 3 * len(trace.cycles) and walk[-1].passes == len(trace.cycles)
    assert walk[-1].emitted == len(run[0].tokens) == sum(len(cycles.chips(c, "rewind")) for c in trace.cycles)
    stepper = panel("cycle_stepper")
    assert says(stepper.draw(**stepper.values | {"step": 1})[1], cycle.accepted, len(cycle.drafted))


def test_a_race_cuts_the_same_text_into_passes(micro, run):
    output, prompt = run
    plain = ms.generate(micro, prompt, max_new_tokens=24, temperature=0)
    assert [len(passes(out)) for out in (plain, output)] == [24, output.trace.target_passes]
    assert [token for tokens in passes(output) for token in tokens] == output.tokens
    page = viz.race(micro, {"plain": plain, "<drafts>": output})._repr_html_()
    assert page.count("<span") == 24 + len(passes(output)) and "<drafts>" not in page


def test_the_film_is_a_real_cycle_and_the_stored_one():
    """What it says was emitted is what plain decoding emits; the README and the site show the file."""
    film = viz.loop_picture()
    assert film.picture == (ROOT / "docs/images/course_loop.svg").read_text(encoding="utf-8")
    target = ms.load("micro", device="cpu", dtype=torch.float64)
    plain = target.decode(ms.generate(target, target.encode("One day, a girl named Lily"), max_new_tokens=60).tokens)
    before, drafted, accepted, token = re.search(
        r"after (\S+) .*? proposes (.*?)\..* (\d) of them.* (\S+) as", film.words
    ).groups()
    assert "".join([before, *drafted.split(", ")[: int(accepted)], token]).replace("␣", " ") in plain


def test_judges_are_shifted_by_one():
    for words, equal, of, emitted in (
        (viz.judge_arrows("the", ["a", "b", "c"], ["a", "x", "c", "d"]).words, 1, 3, "x"),  # the correction
        (viz.judge_arrows("the", "ab", "abc").words, 2, 2, "c"),  # the bonus
    ):
        assert says(words, equal, of) and re.search(rf"\b{emitted}\b", words)
    p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
    assert says(viz.overlap(p, q).words, round(formulas.acceptance(p, q), 2))


# ---- drafters --------------------------------------------------------------------------------------------------------


def test_every_position_is_a_share_of_the_cycles_that_came_there(run):
    trace = run[0].trace
    [line] = viz.acceptance_by_position({"model": trace}).data
    came = list(line.customdata)
    assert came[0] == len(trace.cycles) and came == sorted(came, reverse=True)
    assert list(line.y) == trace.acceptance_by_position and len(came) == len(line.y)
    for rate, n, after in zip(line.y, came, [*came[1:], 0], strict=True):
        assert rate * n >= after


def test_trees_are_laid_out_and_masked_as_in_the_pass():
    assert rows_of([-1, -1, 0, 0]) == [1.25, 0.5, 2.0, 0.0, 1.0]
    drawn, mask = viz.tree_and_mask([1, 2, 3, 4], [-1, -1, 0, 0], str, [7]), tree.verify_mask([-1, -1, 0, 0])
    assert says(drawn.words, int(mask.sum()))
    accuracy = [[0.6, 0.2], [0.5, 0.1]]
    assert sum(reaches(accuracy, 3)) + 1 == pytest.approx(tree.expected_tokens(accuracy, tree.best_tree(accuracy, 3)))


def test_drafts_are_those_of_the_drafters(micro, panel):
    draft = first_draft(micro, ms.drafters.Eagle(micro, tree=False), "Once upon a time", 3)
    for step, token in enumerate(draft, start=1):
        said = panel("drafting_steps").draw(drafter="EAGLE", step=step)[1]
        assert micro.decode([token]).strip() in said and says(said, step, len(draft))


# ---- fewer bytes, near the limit, several ranks ----------------------------------------------------------------------


def test_rounding_keeps_its_bound_and_the_error_is_what_it_says(micro):
    weight = matrices(micro)["layers.0.self_attn.q_proj"]
    for scale in ("tensor", "channel", 32):
        rounded, scales = round_trip(weight, 4, scale)
        error = error_of(weight, 4, scale)
        assert (
            error.largest == pytest.approx(float((rounded - weight).abs().max()))
            and error.largest <= float(scales.max()) * 0.501
        )
        assert error.relative == pytest.approx(float((rounded - weight).norm() / weight.norm()), rel=1e-4)
    assert error_of(rounded, 4, 32).relative < 1e-6  # on the grid already
    assert error_of(weight, 4, 32).bits_per_weight == pytest.approx(4.5)


def test_a_cut_pair_reads_its_share_and_sends_the_ring():
    for ranks in (1, 2, 8):
        words = cut_matrices(ranks, 3, tokens=8)[1]
        assert presets.si(4 * 8192 * 28_672 / ranks, "B") in words
        assert presets.si(theory.all_reduce_bytes(8 * 8192, ranks), "B") in words


def test_a_cache_is_rewound_by_its_length_alone():
    words = viz.cache_grid(kept=7, rejected=4, new=2).words
    assert says(words, 11, 7)
