"""What the figures of the benchmarks mean: by hand, by scripted models, and by engines that do the work."""

import json

import pytest
import torch
from fakes import Given, continuation, scripted, whole_text, wrong_at

import minispec as ms
from minispec import theory
from minispec.drafters import Draft
from minispec.model import Config
from minispec.serving.engine import Engine
from minispec.trace import Cycle, Trace
from minispec_course.labs import drafting, pairs
from minispec_tools.bench import acceptance, batch, peers, shapes, speculate

D, TOY = ms.drafters, pairs.SHAPES["toy"]


@pytest.fixture(scope="module")
def pair():
    """Target and draft in float64: greedy outputs must not hang on rounding."""
    pair = pairs.random_pair(TOY, "cpu")
    for model in pair:
        model.transformer.double()
    return pair


def out_of(tokens, cycles=None, seconds=1.0):
    return ms.Output(tokens, None, 1, seconds, "length", None if cycles is None else Trace(cycles))


# ---------------------------------------------------------------- drafters


def test_the_summary_of_scripted_rounds():
    """Plain takes 10 ms per token, then 20; the drafter half of that, in two passes with 3 of 4 drafts accepted."""
    cycles = [
        Cycle([1, 2], None, [1, 1], [1, 1], [0, 1], 3, True, 3, 1),
        Cycle([4, 5], None, [1, 1], [1, 1], [0], 6, False, 2, 4),
    ]
    tokens = [1, 2, 3, 4, 6]
    rounds = {
        "plain": [[out_of(tokens, None, 0.05)], [out_of(tokens, None, 0.1)]],
        "scripted": [[out_of(tokens, cycles, 0.025)], [out_of(list(tokens), cycles, 0.05)]],
    }
    plain, own = drafting.summarise(rounds).values()
    assert (plain["tokens"], plain["passes"], plain["tokens_per_pass"], plain["acceptance"]) == (5, 5, 1.0, None)
    assert (own["tokens"], own["passes"], own["tokens_per_pass"]) == (5, 2, 2.5)
    assert own["acceptance"] == pytest.approx(3 / 4) and own["drafted_per_pass"] == 2 and own["same_text"]
    assert own["speedup"]["median"] == own["speedup"]["low"] == pytest.approx(2.0)  # in each round, whatever its pace
    assert own["tokens_per_second"]["median"] == pytest.approx(1 / 0.0075) and own["draft_and_verify"] is None
    for cycle in cycles:
        cycle.draft_seconds, cycle.verify_seconds = 0.005, 0.024  # of 20 ms for a plain token
    assert drafting.summarise(rounds)["scripted"]["draft_and_verify"] == pytest.approx([0.25, 1.2])
    rounds["scripted"][-1][0].tokens[0] = 9
    assert not drafting.summarise(rounds)["scripted"]["same_text"]


# ---------------------------------------------------------------- acceptance


def test_long_prompts_end_with_a_whole_one():
    assert acceptance.stretched([[1, 2, 3], [4], [5, 6]], 4, 2) == [[4, 1, 2, 3][-4:], [2, 3, 5, 6]]


def test_a_draft_that_is_never_wrong_is_worth_k_plus_one_tokens():
    """And one that is left its own length (k=None) is not cut short."""
    target = scripted(whole_text)
    perfect, poor = (D.Model(scripted(say)) for say in (whole_text, wrong_at(range(100))))
    own = Given(lambda context, k: Draft(continuation(context.tokens, min(7, k))))
    entrants = {"perfect": (perfect, 4), "poor": (poor, 4), "own": (own, None)}
    result = acceptance.measure(target, entrants, {"all": [[3, 1], [2]]}, 40)
    found = {name: row["overall"]["tokens_per_pass"] for name, row in result["results"].items()}
    assert found == {"perfect": 5.0, "poor": 1.0, "own": 8.0}


def test_a_drafter_that_changes_the_output_is_reported(tiny):
    """It changes a committed token of one prompt, which no verifier can notice."""

    def meddle(context, k):
        if context.tokens[0] == 7 and len(context.tokens) == 4:
            context.tokens[-1] = (context.tokens[-1] + 1) % 64
        return Draft([])

    prompts = {"tales": [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6]], "lists": [[3, 3, 3, 3], [8, 1]]}
    result = acceptance.measure(tiny, {"ngram": (D.NGram(), 4), "meddler": (Given(meddle), 4)}, prompts, 12, 2)
    honest, other = result["results"]["ngram"], result["results"]["meddler"]
    assert honest["overall"]["differing"] == 0 and honest["differences"] == []
    [found] = other["differences"]
    assert (found["group"], found["prompt"], found["place"]) == ("tales", 1, 2) and found["gap"] > 1e-3  # no tie
    assert any("1 of 5 outputs by meddler differ" in note for note in acceptance.section(result).notes)


def test_the_groups_are_spec_benchs_and_prompts_too_long_are_counted(tiny_text, tmp_path):
    long = "fox " * 600  # and the model takes 512 tokens
    texts = zip("qa qa qa rag stem writing x".split(), ["One", long, "Two", long, "Three", "Four", "5"], strict=True)
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps({"category": kind, "turns": [text, "And?"]}) for kind, text in texts))
    prompts, too_long = acceptance.read_groups(file, tiny_text, 2, 8)
    assert too_long == {"qa": 1, "retrieval": 1, "mt-bench": 0, "x": 0}  # of the first two, not of those that fit
    assert {group: len(of_it) for group, of_it in prompts.items()} == {"qa": 1, "mt-bench": 2, "x": 1}
    assert prompts["mt-bench"][0] == tiny_text.encode([{"role": "user", "content": "Three"}])
    with pytest.raises(ValueError, match="tokens=512"):
        acceptance.read_groups(file, tiny_text, 2, 512)


# ---------------------------------------------------------------- a server


def test_the_pool_and_the_floor_by_hand():
    """Three requests, two at a time: 9 tokens in 5 passes, and what each sequence has cached when it emits each."""
    work = [([1] * 3, 5), ([1] * 16, 1), ([1] * 30, 3), ([1], 1)]  # 8, 17, 33 and 2 tokens
    assert [batch.blocks_for(work, rows) for rows in (1, 2, 3, 4, 9)] == [3, 5, 6, 7, 7]
    assert batch.blocks_for(work, 1, spare=16) == 4
    work = [([0] * 10, 2), ([0] * 4, 4), ([0], 3)]
    cached = (10 + 11) + (4 + 5 + 6 + 7) + (1 + 2 + 3)
    slow, weak = theory.Hardware("reads slowly", 100.0, 1e12), theory.Hardware("computes slowly", 1e12, 100.0)
    assert batch.floor_seconds(slow, 1000, 8.0, 2, work, 2) == pytest.approx((5 * 1000 + cached * 8) / 100)
    assert batch.floor_seconds(slow, 1000, 8.0, 2, work, 9) == pytest.approx((4 * 1000 + cached * 8) / 100)
    assert batch.floor_seconds(weak, 1000, 8.0, 2, work, 2) == pytest.approx(2 * 500 * (9 + 15) / 100)


# ---------------------------------------------------------------- a pass, a cycle


def test_the_floor_of_a_pass_is_weights_and_cache_over_the_bandwidth():
    """2 layers, 2 heads of width 4 for keys and as many for values, in float32: 128 bytes per token of context."""
    config = Config(50, 24, 40, 2, 6, 2, 4, 96)
    result = {"dtype": "float32", "weight_bytes": 1000, "bandwidth": {"median": 100.0}}
    assert shapes.floor_seconds(result, config, 20) == pytest.approx((1000 + 20 * 128) / 100)


def test_a_cycles_speedup_measured_and_predicted():
    """Two cycles emit 3 tokens and 1. A plain token takes 10 ms, a draft token 1, a verify pass 12 and a cycle 16."""
    cycles = [
        Cycle([1, 2], None, [1, 1], [1, 1], [0, 1], 3, True, 3, 1),
        Cycle([4, 5], None, [1, 1], [1, 1], [], 6, False, 1, 4),
    ]
    names = speculate.PLAIN, speculate.DRAFT, speculate.VERIFY, speculate.CYCLE
    seconds = {name: {"median": each / 1000} for name, each in zip(names, (10, 1, 12, 16), strict=True)}
    found = speculate.summarise(seconds, Trace(cycles), 2)
    assert (found["c"], found["v"]) == pytest.approx((0.1, 1.2))
    assert (found["speedup"], found["predicted_speedup"]) == pytest.approx((2 * 10 / 16, 2 / 1.4))


# ---------------------------------------------------------------- full batches


@pytest.mark.slow
def test_in_a_full_batch_all_sequences_emit_and_all_draft(pair):
    target, draft = pair
    prompts, outputs = [pairs.prompt_of(TOY, 20, row) for row in range(3)], []
    options = dict(num_blocks=batch.blocks_for([(p, 18) for p in prompts], 3, spare=4), max_num_seqs=3)
    deep = Engine(target, D.Model(draft), k=4, draft_budget=12, max_num_batched_tokens=48, **options)
    for k, engine in ((0, Engine(target, max_num_batched_tokens=48, **options)), (4, deep)) * 2:
        steps, tokens, trace = batch.full_batch(engine, prompts, 18, k)
        assert all(step.drafted == 3 * k and step.read == 3 * (k + 1) for step in steps)
        outputs.append(tokens)
        if k == 0:  # all begin at once: the prompts' pass emits one token, and one more step is left out
            assert len(steps) == 16 and not trace.cycles
        else:
            assert 1 <= len(steps) < 8 and trace.acceptance_rate > 0
    assert outputs == [[ms.generate(target, prompt, 18).tokens for prompt in prompts]] * 4
    # What the filter is for: drafts that were cut short would change the speed-up.
    assert not batch.full_batch(Engine(target, D.Model(draft), k=4, draft_budget=6), prompts, 18, 4)[0]


def test_the_crossover_of_made_up_curves():
    for sizes, curve, at in (
        ([1, 2, 4, 8], [2.0, 1.8, 1.5, 1.01], None),
        ([1, 2, 4, 8], [2.0, 1.5, 0.5, 0.4], 2 * 2**0.5),  # halfway between 2 and 4, on the scale of doublings
        ([1, 2, 4, 8], [2.0, 1.5, 1.0, 0.5], 4),
        ([1, 2, 4], [1.5, 0.9, 1.2], 2 ** (5 / 6)),  # the first time counts
        ([2, 4], [0.8, 1.7], 2),
    ):
        assert batch.crossover(sizes, curve) == (None if at is None else pytest.approx(at)), curve


# ---------------------------------------------------------------- random models and peers


@pytest.mark.slow
def test_peers_have_the_very_same_weights():
    pytest.importorskip("transformers")
    target, draft = pairs.random_pair(TOY, "cpu")
    theirs, tokens = peers.as_transformers(target), torch.tensor([pairs.prompt_of(TOY, 20)])
    assert torch.allclose(theirs(tokens).logits, target.transformer(tokens).logits, atol=1e-3)
    assert theirs.lm_head.weight.data_ptr() == target.transformer.lm_head.weight.data_ptr()
    for temperature in (0.0, 1.0):
        calls, skipped = peers.transformers_peers(peers.PEERS, target, draft, tokens[0].tolist(), 6, 3, temperature, 0)
        assert list(calls) == ["transformers eager", "transformers static", "transformers assisted"] and not skipped
