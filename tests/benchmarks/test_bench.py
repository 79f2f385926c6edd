"""The benchmarks: overlaps against brute force, rounds that take turns, and JSON that holds what the tables show."""

from __future__ import annotations

import json
import re

import pytest
import torch

import minispec as ms
from benchmarks import drafters as racing
from minispec import theory
from minispec.trace import Cycle, Trace
from minispec_course.labs import temperature as warming
from minispec_course.labs.prompts import QUESTIONS, STORIES, read_prompts

PROMPTS = [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6]]


# ---------------------------------------------------------------- temperature: the overlap


def brute_force(target, draft, rows, prompts, T, draft_T):
    """One token at a time, each with a pass of its own, and the sum written out."""
    overlaps = []
    for row, start in zip(rows, prompts, strict=True):
        for end in range(start, len(row)):
            read = torch.tensor([row[:end]])
            p, q = (
                ms.Sampling(t).probs(model.transformer(read).logits[0, -1]).tolist()
                for model, t in ((target, T), (draft, draft_T))
            )
            overlaps.append(theory.acceptance(p, q))
    return sum(overlaps) / len(overlaps), len(overlaps)


@pytest.mark.parametrize("T", [0.0, 0.6, 1.0])
def test_the_overlap_is_brute_forces(tiny, tiny_draft, T, monkeypatch):
    monkeypatch.setattr(warming, "PLACES", 5)  # several helpings, the last one smaller
    rows, starts = [[5, 9, 2, 11, 60, 3], [7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9]], [3, 1, 6]
    draft_temperatures = [0.0, 0.5, 1.0, 2.0]
    means, count = warming.overlap(tiny, tiny_draft, rows, starts, T, draft_temperatures)
    for mean, draft_T in zip(means, draft_temperatures, strict=True):
        expected, tokens = brute_force(tiny, tiny_draft, rows, starts, T, draft_T)
        assert mean == pytest.approx(expected, abs=1e-12) and count == tokens == 7


def test_a_draft_that_is_the_target_is_always_accepted_at_the_same_temperature(tiny):
    temperatures = [0.0, 0.5, 1.0, 1.7]
    grid = warming.measure(tiny, tiny, PROMPTS, temperatures, temperatures, 8)["acceptance"]
    for i, row in enumerate(grid):
        assert row[i] == pytest.approx(1.0, abs=1e-12)
        assert all(0 < y < 1 - 1e-6 for j, y in enumerate(row) if j != i)  # and at no other


@pytest.mark.slow
def test_a_draft_of_fewer_words_is_measured_too(tiny, make_model):
    draft = make_model(num_layers=1, head_vocab=16)
    [means] = warming.measure(tiny, draft, PROMPTS, [1.0], [0.0, 1.0], 6)["acceptance"]
    assert all(0 < mean < 1 for mean in means)


# ---------------------------------------------------------------- temperature: the grid


@pytest.fixture(scope="module")
def grid(tiny, tiny_draft):
    return warming.measure(tiny, tiny_draft, PROMPTS, [0.0, 1.0], [0.0, 0.5, 1.0], 8, seed=2)


@pytest.mark.slow
def test_the_text_is_the_targets_own_at_that_temperature(grid, tiny, tiny_draft):
    for T, row, count in zip(grid["target_temperatures"], grid["acceptance"], grid["tokens"], strict=True):
        outs = ms.generate(tiny, PROMPTS, 8, temperature=T, seed=2)
        rows = [prompt + out.tokens for prompt, out in zip(PROMPTS, outs, strict=True)]
        for mean, draft_T in zip(row, grid["draft_temperatures"], strict=True):
            expected, tokens = brute_force(tiny, tiny_draft, rows, map(len, PROMPTS), T, draft_T)
            assert mean == pytest.approx(expected, abs=1e-12) and count == tokens == 24


def test_the_result_is_json_and_repeats(grid, tiny, tiny_draft):
    assert json.loads(json.dumps(grid)) == grid
    assert {
        "benchmark",
        "target",
        "draft",
        "dtype",
        "prompts",
        "new_tokens",
        "seed",
        "target_temperatures",
        "draft_temperatures",
        "acceptance",
        "tokens",
        "machine",
    } == set(grid)
    assert {"cpu", "cores", "torch"} <= grid["machine"].keys()
    assert warming.measure(tiny, tiny_draft, PROMPTS, [0.0, 1.0], [0.0, 0.5, 1.0], 8, seed=2) == grid


def test_the_table_shows_every_number_and_fits_a_terminal(grid):
    lines = warming.text(grid).splitlines()
    for T, row in zip(grid["target_temperatures"], grid["acceptance"], strict=True):
        [line] = [line for line in lines if line.startswith(f"{T:g} ")]
        assert re.findall(r"\d\.\d\d", line) == [f"{y:.2f}" for y in row]
        assert re.findall(r"(\d\.\d\d)\*", line) == [f"{max(row):.2f}"]
    wide = grid | {"draft_temperatures": [0.1 * i for i in range(19)], "acceptance": [[0.5] * 18 + [0.987]] * 2}
    text = warming.text(wide)
    assert text.count("0.50") == 36 and text.count("0.99*") == 2
    assert max(map(len, [*text.splitlines(), *lines])) <= 80


def test_impossible_grids_are_refused_before_any_work(tiny, tiny_draft, make_model, monkeypatch):
    monkeypatch.setattr(warming, "generate", lambda *a, **o: pytest.fail("worked before checking"))
    with pytest.raises(ValueError, match="temperature=-1"):
        warming.measure(tiny, tiny_draft, PROMPTS, [0.0], [0.0, -1.0])
    with pytest.raises(ValueError, match="65.*64"):
        warming.measure(tiny, make_model(vocab_size=65), PROMPTS)
    with pytest.raises(ValueError, match="new_tokens=12"):
        warming.measure(tiny, make_model(max_length=16), PROMPTS, new_tokens=12)


def test_bench_temperature_writes_what_it_prints(run, tiny_folder, draft_folder, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The fox"}\n{"prompt": "Why?"}\n', encoding="utf-8")
    files = ["--prompts", tmp_path / "prompts.jsonl", "--json", tmp_path / "r.json"]
    code, out, err = run(
        "bench",
        "temperature",
        "--model",
        tiny_folder,
        "--draft",
        draft_folder,
        "--tokens",
        4,
        "--target-temperatures",
        0,
        1,
        "--draft-temperatures",
        0,
        0.7,
        *files,
    )
    result = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (code, err, out) == (0, "", warming.text(result) + "\n")
    assert result["target_temperatures"] == [0, 1] and result["draft_temperatures"] == [0, 0.7]
    assert result["prompts"] == 2


def test_mistakes_cost_no_time(run, tiny_folder, tmp_path, monkeypatch):
    code, out, err = run("bench", "temperature", "--model", tiny_folder)
    assert (code, out) == (2, "") and "--draft" in err
    monkeypatch.setattr(warming, "load", lambda *a, **o: pytest.fail("worked before checking"))
    code, out, err = run("bench", "temperature", "--model", tiny_folder, "--json", tmp_path / "nowhere/r.json")
    assert (code, out) == (2, "") and "nowhere" in err


# ---------------------------------------------------------------- drafters


def out_of(tokens, seconds, cycles=None):
    return ms.Output(tokens, None, 1, seconds, "length", None if cycles is None else Trace(cycles))


def test_the_summary_of_scripted_rounds():
    """Plain takes 10 ms a token, then 20; the drafter half of that, in two passes with 3 of 4 drafts accepted."""
    cycles = [
        Cycle([1, 2], None, [1, 1], [1, 1], [0, 1], 3, True, 3, 1),
        Cycle([4, 5], None, [1, 1], [1, 1], [0], 6, False, 2, 4),
    ]
    rounds = {
        "plain": [[out_of([1, 2, 3, 4, 6], 0.05)], [out_of([1, 2, 3, 4, 6], 0.1)]],
        "scripted": [[out_of([1, 2, 3, 4, 6], 0.025, cycles)], [out_of([1, 2, 3, 4, 6], 0.05, cycles)]],
    }
    table = racing.summarise(rounds)
    plain, own = table["plain"], table["scripted"]
    assert (plain["tokens"], plain["passes"], plain["tokens_per_pass"], plain["acceptance"]) == (5, 5, 1.0, None)
    assert (own["tokens"], own["passes"], own["tokens_per_pass"]) == (5, 2, 2.5)
    assert own["acceptance"] == pytest.approx(3 / 4) and own["drafted_per_pass"] == 2 and own["same_text"]
    assert own["speedup"]["median"] == own["speedup"]["low"] == pytest.approx(2.0)  # in each round, whatever its pace
    assert own["tokens_per_second"]["median"] == pytest.approx(1 / 0.0075)
    assert plain["speedup"]["median"] == 1.0
    assert plain["draft_and_verify"] is None and own["draft_and_verify"] is None  # no part was timed
    for cycle in cycles:
        cycle.draft_seconds, cycle.verify_seconds = 0.005, 0.024  # of 20 ms for a plain token
    assert racing.summarise(rounds)["scripted"]["draft_and_verify"] == pytest.approx([0.25, 1.2])
    rounds["scripted"][-1][0].tokens[0] = 9
    assert not racing.summarise(rounds)["scripted"]["same_text"]


def test_a_race_takes_turns_and_leaves_the_warm_up_out(tiny, monkeypatch):
    order = []
    cycle = Cycle([], None, [], [], [], 3, True, 1, 1)

    def generate(target, ids, n, **options):
        order.append("plain")
        return out_of([3], 100.0 if len(order) < 7 else 1.0)  # the warm-up is slow

    def speculate(target, ids, drafter, k, n, **options):
        order.append(drafter)
        return out_of([3], 1.0, [cycle])

    monkeypatch.setattr(racing, "generate", generate)
    monkeypatch.setattr(racing, "speculate", speculate)
    result = racing.race(tiny, {"a": "A", "b": "B"}, {"kind": [[1], [2]]}, repeat=2)
    assert order == ["plain", "plain", "A", "A", "B", "B"] * 3
    assert result["results"]["kind"]["a"]["speedup"] == {"median": 1.0, "low": 1.0, "high": 1.0, "n": 2}


@pytest.mark.slow
def test_every_drafter_races_and_writes_the_same_text(run, tiny_folder, draft_folder, tmp_path):
    file = tmp_path / "r.json"
    lines = [{"prompt": "The fox", "category": "tales"}, {"turns": ["Why?", "And then?"], "category": "questions"}]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    code, out, err = run(
        "bench",
        "drafters",
        "--model",
        tiny_folder,
        "--draft",
        draft_folder,
        "--tokens",
        8,
        "--repeat",
        1,
        "--prompts",
        tmp_path / "prompts.jsonl",
        "--json",
        file,
    )
    result = json.loads(file.read_text(encoding="utf-8"))
    assert (code, err, out) == (0, "", racing.text(result) + "\n")
    assert max(map(len, out.splitlines())) <= 80
    assert result["prompts"] == {"tales": 1, "questions": 1} and "cpu" in result["machine"]
    assert list(result["skipped"]) == ["medusa", "eagle", "dflash", "mtp"]  # nobody has trained heads for this target
    for table in result["results"].values():
        assert list(table) == ["plain", *(name for name in racing.DRAFTERS if name not in result["skipped"])]
        assert all(row["same_text"] and row["tokens"] == table["plain"]["tokens"] for row in table.values())
        assert all(row["passes"] <= row["tokens"] for row in table.values())


def test_drafters_that_need_a_draft_are_left_out_unless_asked_for(run, tiny_folder, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "The fox"}\n', encoding="utf-8")
    options = ["--model", tiny_folder, "--prompts", file, "--tokens", 2, "--repeat", 1]
    code, out, _ = run("bench", "drafters", *options)
    assert code == 0 and "without model" in out and "without cascade" in out and "ngram" in out
    code, out, err = run("bench", "drafters", *options, "--drafters", "ngram", "model")
    assert (code, out) == (2, "") and "--draft" in err


# ---------------------------------------------------------------- prompts


def test_builtin_prompts_suit_the_model(tiny_text, make_model, tokenizer):
    storyteller = make_model(vocab_size=tokenizer.get_vocab_size(), tokenizer=tokenizer, max_length=1024)
    stories = read_prompts("builtin", storyteller, 64)
    assert stories.keys() == STORIES.keys()
    assert storyteller.decode(stories["stories"][0]) == STORIES["stories"][0]
    chatty = ms.Model("chatty", storyteller.transformer, tokenizer, [0], tiny_text.chat_template)
    questions = read_prompts("builtin", chatty, 64)
    assert questions.keys() == QUESTIONS.keys() >= {"free text", "repetitive", "code", "summarise"}
    assert questions["code"][0] == chatty.encode([{"role": "user", "content": QUESTIONS["code"][0]}])


def test_prompts_that_cannot_be_used_are_refused(tiny_text, tmp_path):
    file = tmp_path / "prompts.jsonl"
    for content in ("not json", '{"text": "The fox"}', "3", ""):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="prompts="):
            read_prompts(file, tiny_text, 8)
    with pytest.raises(ValueError, match="nowhere"):
        read_prompts(tmp_path / "nowhere", tiny_text, 8)
    with pytest.raises(ValueError, match="tokens=500"):
        read_prompts("builtin", tiny_text, 500)
