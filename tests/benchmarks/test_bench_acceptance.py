"""Tokens per pass: the figure against the traces, Spec-Bench's groups, prompts too long, and drafters that cheat."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import chain

import pytest
import torch
from all_drafters import random_medusa
from fakes import Given, continuation, scripted, whole_text, wrong_at

import minispec as ms
from benchmarks import acceptance as bench
from minispec.drafters import Draft
from minispec.drafters.by_name import name_of
from minispec.trace import Cycle, Trace

D = ms.drafters
PROMPTS = {"tales": [[5, 9, 2], [7], [1, 2, 3, 4, 5, 6]], "lists": [[3, 3, 3, 3], [8, 1]]}
MT_BENCH = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]


@pytest.fixture
def traces(monkeypatch):
    """Everything that `speculate` returns to the benchmark, with the drafter and the k it was called with."""
    seen = []

    def spy(target, prompts, drafter, k, *args, **options):
        outs = ms.speculate(target, prompts, drafter, k, *args, **options)
        seen.extend((drafter, k, ids, out) for ids, out in zip(prompts, outs, strict=True))
        return outs

    monkeypatch.setattr(bench, "speculate", spy)
    return seen


def write_prompts(file, rows) -> None:
    lines = [{"question_id": i, "category": category, "turns": [text, "And?"]} for i, (category, text) in rows]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


# ---------------------------------------------------------------- the figures


def out_of(tokens, cycles=None):
    return ms.Output(tokens, None, 1, 1.0, "length", None if cycles is None else Trace(cycles))


def test_the_summary_of_scripted_cycles():
    """A chain of which the end of the text threw a token away, a tree of four nodes, and a pass without drafts."""
    first = out_of([1, 2, 3], [Cycle([1, 2, 3], None, [1] * 3, [1] * 3, [0, 1, 2], 4, True, 3, 1)])
    second = out_of(
        [7, 9, 5],
        [
            Cycle([6, 7, 8, 9], [-1, -1, 1, 1], [0, 1, 0, 1], [1] * 4, [1], 9, False, 2, 1),
            Cycle([], None, [], [], [], 5, True, 1, 3),
        ],
    )
    row = bench.summarise([first, second], [out_of([1, 2, 3]), out_of([7, 9, 5])])
    assert (row["prompts"], row["tokens"], row["passes"], row["differing"]) == (2, 6, 3, 0)
    assert row["tokens_per_pass"] == pytest.approx(6 / 3)  # of all cycles: neither 3 and 1.5 averaged, nor 4 + 2 + 1
    assert row["acceptance"] == pytest.approx(4 / 5)  # three and one passed, one was refused
    assert row["drafted_per_pass"] == pytest.approx(7 / 3)
    assert bench.summarise([first, second], [out_of([1, 2, 3]), out_of([7, 9, 4])])["differing"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_the_figures_are_those_of_the_traces(tiny, tiny_draft, traces, batch):
    entrants = {"model": (D.Model(tiny_draft), 3), "suffix": (D.Suffix(), 5), "look": (D.Lookahead(tiny), 4)}
    result = bench.measure(tiny, entrants, PROMPTS, 12, batch)
    assert list(result["results"]) == list(entrants)
    for name, (drafter, k) in entrants.items():
        runs = [(ids, out) for who, asked, ids, out in traces if who is drafter and asked == k]
        assert len(runs) == 5
        found = result["results"][name]
        assert list(found["groups"]) == list(PROMPTS) and found["differences"] == []
        for group, ids in [*PROMPTS.items(), (None, [*chain(*PROMPTS.values())])]:
            row = found["groups"][group] if group else found["overall"]
            outs = [out for read, out in runs if read in ids]
            cycles = [cycle for out in outs for cycle in out.trace.cycles]
            emitted = sum(len(cycle.tokens) for cycle in cycles)
            assert emitted == sum(len(out.tokens) for out in outs) == 12 * len(ids)
            assert (row["prompts"], row["tokens"], row["passes"]) == (len(ids), emitted, len(cycles))
            assert row["tokens_per_pass"] == emitted / len(cycles)
            assert row["drafted_per_pass"] == sum(len(cycle.drafted) for cycle in cycles) / len(cycles)
    assert result["results"]["model"]["overall"]["tokens_per_pass"] > 1.0


def test_a_draft_that_is_never_wrong_is_worth_k_plus_one_tokens():
    target = scripted(whole_text)
    perfect, poor = (D.Model(scripted(say)) for say in (whole_text, wrong_at(range(100))))
    result = bench.measure(target, {"perfect": (perfect, 4), "poor": (poor, 4)}, {"all": [[3, 1], [2]]}, 15)
    best, worst = (result["results"][name]["overall"] for name in ("perfect", "poor"))
    assert (best["tokens_per_pass"], best["acceptance"]) == (5.0, 1.0)
    assert (worst["tokens_per_pass"], worst["acceptance"]) == (1.0, 0.0)


def test_heads_are_asked_for_as_much_as_they_see():
    """k=None: a drafter that stops by itself is not cut short."""
    own = Given(lambda context, k: Draft(continuation(context.tokens, min(7, k))))
    result = bench.measure(scripted(whole_text), {"own": (own, None)}, {"all": [[3, 1]]}, 16)
    assert result["results"]["own"]["overall"]["tokens_per_pass"] == 8.0
    assert result["drafters"]["own"] == {"class": "Given", "k": None, "nodes": None, "width": None}


def test_trees_are_those_of_eagles_authors(monkeypatch, tiny):
    """60 nodes, and of EAGLE the ten likeliest are expanded at each depth."""
    asked = {}
    for name, kind in bench.HEADS.items():
        monkeypatch.setattr(D, kind, lambda target, name=name, **options: asked.update({name: options}))
        bench.make(name, tiny)
    assert asked == {"medusa": {"nodes": 60}, "eagle": {"nodes": 60, "width": 10}, "dflash": {"nodes": 60}}


def test_rows_of_like_length_share_a_batch_and_all_rows_are_there():
    rows = [[0] * n for n in (9, 1, 5, 8, 2)]
    batches = bench.by_length(rows, 2)
    assert sorted(chain(*batches)) == [0, 1, 2, 3, 4]
    assert [[len(rows[i]) for i in batch] for batch in batches] == [[1, 2], [5, 8], [9]]


# ---------------------------------------------------------------- the guard


def test_a_drafter_that_changes_the_text_is_reported(tiny):
    """It writes over the committed text of one prompt, which no verifier can notice."""

    def meddle(context, k):
        if context.tokens[0] == 7 and len(context.tokens) == 4:
            context.tokens[-1] = (context.tokens[-1] + 1) % 64
        return Draft([])

    result = bench.measure(tiny, {"ngram": (D.NGram(), 4), "meddler": (Given(meddle), 4)}, PROMPTS, 12, 2)
    honest, other = result["results"]["ngram"], result["results"]["meddler"]
    assert honest["overall"]["differing"] == 0 and honest["differences"] == []
    assert [row["differing"] for row in (*other["groups"].values(), other["overall"])] == [1, 0, 1]
    [found] = other["differences"]
    assert (found["group"], found["prompt"], found["place"]) == ("tales", 1, 3)
    assert found["gap"] > 1e-3  # no tie
    lines = bench.text(result).splitlines()
    assert any(line.startswith("meddler: 1 of 5 outputs differ") for line in lines)
    assert not any(line.startswith("ngram:") or "token for token" in line for line in lines)


def test_the_gap_is_between_the_targets_logits_where_the_texts_part(tiny):
    tokens = ms.generate(tiny, [7], 4).tokens
    logits = tiny.transformer(torch.tensor([[7, *tokens[:2]]])).logits[0, -1]
    best, second = logits.topk(2).indices.tolist()
    assert best == tokens[2]
    found = bench.parting(tiny, [7], tokens, [*tokens[:2], second, 0])
    assert found["place"] == 2 and found["gap"] == pytest.approx(float(logits[best] - logits[second]), abs=1e-5)


# ---------------------------------------------------------------- groups and prompts


def test_the_groups_are_spec_benchs(tiny_text, tmp_path):
    """MT-bench's eight are one, in the file's order; a category nobody knows is a group of its own."""
    categories = ["writing", "rag", *MT_BENCH, "math_reasoning", "qa", "translation", "summarization", "sonnets", "qa"]
    rows = [(i, (category, f"The fox {i}")) for i, category in enumerate(categories)]
    write_prompts(tmp_path / "p.jsonl", rows)
    prompts, too_long = bench.read_groups(tmp_path / "p.jsonl", tiny_text, 40, 8)
    assert {group: len(of_it) for group, of_it in prompts.items()} == {
        "mt-bench": 9,
        "retrieval": 1,
        "math reasoning": 1,
        "qa": 2,
        "translation": 1,
        "summarization": 1,
        "sonnets": 1,
    }
    assert set(too_long.values()) == {0}
    asked = [i for i, (category, _) in rows if category in MT_BENCH]
    assert prompts["mt-bench"] == [tiny_text.encode([{"role": "user", "content": f"The fox {i}"}]) for i in asked]
    some, _ = bench.read_groups(tmp_path / "p.jsonl", tiny_text, 3, 8)
    assert some == {group: of_it[:3] for group, of_it in prompts.items()}


def test_prompts_too_long_are_left_out_and_counted(tiny_text, tmp_path):
    long = "fox " * 600  # and the model reads 512 tokens
    rows = [("qa", "One"), ("qa", long), ("qa", "Two"), ("rag", long), ("stem", "Three")]
    write_prompts(tmp_path / "p.jsonl", enumerate(rows))
    prompts, too_long = bench.read_groups(tmp_path / "p.jsonl", tiny_text, 2, 8)
    assert too_long == {"qa": 1, "retrieval": 1, "mt-bench": 0}  # of the first two, not of those that fit
    assert {group: len(of_it) for group, of_it in prompts.items()} == {"qa": 1, "mt-bench": 1}
    room = tiny_text.config.max_length - len(prompts["qa"][0])
    assert "qa" in bench.read_groups(tmp_path / "p.jsonl", tiny_text, 2, room)[0]  # it just fits
    with pytest.raises(ValueError, match="tokens=512"):
        bench.read_groups(tmp_path / "p.jsonl", tiny_text, 2, 512)


# ---------------------------------------------------------------- the command


@pytest.mark.slow
def test_bench_acceptance_writes_what_it_prints(run, traces, tiny_folder, draft_folder, tmp_path):
    rows = [("writing", "The fox"), ("math_reasoning", "Why?"), ("coding", "One day"), ("qa", "fox " * 600)]
    write_prompts(tmp_path / "p.jsonl", enumerate(rows))
    models, files = ["--model", tiny_folder, "--draft", draft_folder], ["--json", tmp_path / "r.json"]
    code, out, err = run(
        "bench",
        "acceptance",
        *models,
        *files,
        "--prompts",
        tmp_path / "p.jsonl",
        "--k",
        3,
        "--tokens",
        8,
        "--per-group",
        5,
        "--batch",
        2,
        "--drafters",
        "model",
        "suffix",
        "ngram",
        "ngram:6",
    )
    result = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (code, err, out) == (0, "", bench.text(result) + "\n")
    assert {row["k"] for row in result["drafters"].values()} == {3, 6} and result["drafters"]["ngram:6"]["k"] == 6
    assert Counter((name_of(drafter), k) for drafter, k, _, _ in traces) == {
        ("Model", 3): 3,
        ("Suffix", 3): 3,
        ("NGram", 3): 3,
        ("NGram", 6): 3,
    }
    assert result["prompts"] == {"mt-bench": 2, "math reasoning": 1} and result["too_long"]["qa"] == 1
    assert result["skipped"] == {} and result["prompts_from"] == "p.jsonl"
    assert {"cpu", "cores", "torch", "python"} <= result["machine"].keys() and result["minispec"] == ms.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"])
    settings = {name: result[name] for name in ("dtype", "device", "new_tokens", "per_group", "batch", "seed")}
    assert settings == {
        "dtype": "float32",
        "device": result["device"],
        "new_tokens": 8,
        "per_group": 5,
        "batch": 2,
        "seed": 0,
    }
    assert all(row["overall"]["differing"] == 0 for row in result["results"].values())


@pytest.mark.slow
def test_the_table_shows_every_number_and_fits_a_terminal(tiny):
    names = ["mt-bench", "translation", "summarization", "qa", "math reasoning", "retrieval"]
    many = [f"a group of many words {i}" for i in range(30)]
    for groups in (names, many):  # six fit side by side, thirty go on below
        prompts = {group: [[i + 1, 2]] for i, group in enumerate(groups)}
        result = bench.measure(tiny, {"ngram": (D.NGram(), 4), "suffix:12": (D.Suffix(), 12)}, prompts, 4)
        text = bench.text(result)
        assert max(map(len, text.splitlines())) <= 80
        for name, row in result["results"].items():
            lines = [line for line in text.splitlines() if line.startswith(f"{name} ")]
            assert (len(lines) == len(bench.FIGURES)) == (groups == names)
            numbers = re.findall(r"\d+\.\d+", " ".join(line.removeprefix(name) for line in lines))
            assert numbers == [
                f"{part[figure]:.{digits}f}"
                for figure, (_, digits) in bench.FIGURES.items()
                for part in (*row["groups"].values(), row["overall"])
            ]


# ---------------------------------------------------------------- drafters that are not there


class Heads(D.NGram):
    """Stands for a drafter with trained heads."""

    def __init__(self, target, nodes):
        super().__init__()


def test_what_cannot_be_had_is_left_out_unless_asked_for(run, traces, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(D, "Medusa", Heads)
    write_prompts(tmp_path / "p.jsonl", [(1, ("qa", "The fox"))])
    options = ["--model", tiny_folder, "--prompts", tmp_path / "p.jsonl", "--tokens", 4, "--json", tmp_path / "r.json"]
    code, out, err = run("bench", "acceptance", *options)
    result = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (code, err) == (0, "")
    assert list(result["results"]) == ["medusa", "ngram", "suffix"]
    assert list(result["skipped"]) == ["model", "eagle", "dflash"]  # nobody has trained any for this target
    assert all(f"without {name}: " in out for name in ("model", "eagle", "dflash"))
    assert {type(drafter): k for drafter, k, _, _ in traces}[Heads] == bench.DEEP and bench.DEEP >= 8
    for name, reason in (("model", "--draft"), ("eagle", "train eagle"), ("dflash", "train dflash")):
        code, out, err = run("bench", "acceptance", *options, "--drafters", "ngram", name)
        assert (code, out) == (2, "") and reason in err
    traces.clear()
    assert run("bench", "acceptance", *options, "--drafters", "medusa:2", "early-exit")[0] == 0
    assert {type(drafter).__name__: k for drafter, k, _, _ in traces} == {"Heads": 2, "EarlyExit": 4}


def test_heads_by_folder(run, traces, tiny_folder, tmp_path):
    target = ms.load(tiny_folder, device="cpu", dtype=torch.float32)
    random_medusa(target, count=2).save(target, tmp_path / "heads")
    write_prompts(tmp_path / "p.jsonl", [(1, ("qa", "The fox"))])
    code, _, err = run(
        "bench",
        "acceptance",
        "--model",
        tiny_folder,
        "--prompts",
        tmp_path / "p.jsonl",
        "--tokens",
        4,
        "--drafters",
        "medusa",
        "ngram",
        "--heads",
        tmp_path / "heads",
    )
    assert (code, err) == (0, "") and {drafter.heads.count for drafter, *_ in traces if hasattr(drafter, "heads")} == {
        2
    }


@pytest.mark.parametrize(
    "options",
    [
        ("--drafters", "ngrams"),
        ("--drafters", "ngram:x"),
        ("--drafters", "ngram:0"),
        ("--drafters", "ngram:"),
        ("--k", 0),
        ("--batch", 0),
        ("--per-group", 0),
        ("--tokens", 0),
        ("--heads", "some/heads"),
        ("--heads", "some/heads", "--drafters", "ngram"),
        ("--heads", "some/heads", "--drafters", "eagle", "medusa"),
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_mistakes_cost_no_time(run, monkeypatch, options):
    monkeypatch.setattr(bench, "load", lambda *a, **o: pytest.fail("worked before checking"))
    code, out, err = run("bench", "acceptance", *options)
    assert (code, out) == (2, "") and f"{options[0].strip('-')}={str(options[1])!r}" in err
