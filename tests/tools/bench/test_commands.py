"""Every benchmark at toy size, as typed, runs and shows what it stores. What its figures mean: test_figures.py."""

from importlib import import_module

import pytest

from minispec_course import viz
from minispec_tools.bench import batch, command_line

SMALL = "--shape toy --requests 5 --prompt-lengths 3 30 --output-lengths 2 12 --max-num-seqs 3 --sizes 2 1 --context 20"


@pytest.fixture
def result_of(bench):
    """The result of a command whose output is made from what it stored, and from nothing else."""

    def call(words: str) -> dict:
        result, out = bench(words)
        name = words.split()[0]
        assert result["benchmark"] == name and result["command"] == f"minispec bench {words}"
        section = import_module(f"minispec_tools.bench.{name}").section(result)
        assert section.text(result.get("machine")) + "\n" == out
        return result

    return call


@pytest.fixture
def files(tiny_folder, draft_folder, tmp_path) -> dict:
    """What the names in braces stand for."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The fox", "category": "tales"}\n{"turns": ["Why?", "And?"], "category": "asked"}\n')
    return {"model": f"--model {tiny_folder}", "draft": f"--draft {draft_folder}", "prompts": f"--prompts {prompts}"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "decode --shape toy --context 20 --repeat 1 --tokens 4 --peers",
        "verify --shape toy --context 20 --repeat 1 --sizes 5 2",
        "speculate --shape toy --context 20 --repeat 1 --tokens 4 --k 2 --cycles 6 --texts 2 --peers",
        "limit --models toy --context 8 --repeat 1 --device cpu --k 2",
        "memory --requests 12 --lengths 20 80 --blocks 64",
        "batching {model} {draft} {prompts} --requests 5 --tokens 12 --repeat 1 --batch 2 --drafter ngram",
        pytest.param("cpu {model} --context 20 --repeat 1", marks=pytest.mark.nightly),
        pytest.param("slower --steps 2 --repeat 1", marks=pytest.mark.nightly),
    ],
    ids=lambda words: words.split()[0],
)
def test_a_benchmark_runs_and_shows_what_it_stores(result_of, files, words):
    result_of(words.format(**files))


@pytest.mark.slow
def test_batch(result_of):
    """The engines emit the same tokens, and drafts save steps."""
    result = result_of(f"batch {SMALL} --tokens 16 --k 3 --repeat 2")
    served, speculation = result["serving"], result["speculation"]
    plain, drafting = served["results"][batch.PLAIN], served["results"][batch.DRAFTING]
    for row in (plain, drafting):
        assert row["preemptions"] == 0 and row["tokens_per_second"]["n"] == 2 and row["same_texts"] == 5
        assert row["steps"] < served["tokens"] and sum(row["parts"].values()) == pytest.approx(1)
    assert drafting["steps"] < plain["steps"]  # what an engine did in other rounds does not count
    assert plain["acceptance"] is None and 0 < drafting["acceptance"] <= 1
    assert [row["batch"] for row in speculation["results"]] == [1, 2]
    for row in speculation["results"]:
        assert row["speedup"]["n"] == 2 and row["steps"][0] == 14  # and not the round that warms up
        assert 1 <= row["tokens_per_cycle"] <= 4
    assert set(speculation["crossover"]) == {"measured", "predicted", "roofline"}


def test_attention(result_of):
    result = result_of("attention --cases 2x20 --new-tokens 1 5 --heads 4 2 8 --repeat 1 --device cpu")
    assert [case["tokens"] for case in result["cases"]] == [1, 5]
    for case in result["cases"]:
        assert case["results"].keys() == {"torch", "contiguous", "paged"}
        # keys and values · batch · heads · tokens · head_dim · bytes
        assert case["bytes"] == 2 * 2 * 2 * (20 + case["tokens"]) * 8 * 4
        assert all(row["error"] < 1e-5 for row in case["results"].values())


@pytest.mark.slow
def test_drafters(result_of, bench, files):
    """All emit what plain decoding does; those that are not available are left out, unless asked for by name."""
    options = "drafters {model} {prompts} --tokens 8 --repeat 1".format(**files)
    result = result_of(f"{options} {files['draft']}")
    assert result["prompts"] == {"tales": 1, "asked": 1}
    assert list(result["skipped"]) == "medusa eagle dflash dflash2 dspark mtp".split()  # there are no heads for it
    for table in result["results"].values():
        assert {"plain", "model", "ngram", "lookahead"} <= table.keys() and not table.keys() & result["skipped"].keys()
        for name, row in table.items():
            assert row["same_text"] and row["tokens"] == table["plain"]["tokens"] >= row["passes"], name
    assert {"model", "cascade"} <= bench(f"{options} --tokens 2")[0]["skipped"].keys()
    bench(f"{options} --drafters ngram model", wrong="--draft")


@pytest.mark.nightly
def test_acceptance(result_of, bench, tiny_folder, draft_folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    texts = {"writing": "The fox", "math_reasoning": "Why?", "coding": "One day", "qa": "fox " * 600}
    prompts.write_text("\n".join(f'{{"category": "{kind}", "turns": ["{text}"]}}' for kind, text in texts.items()))
    options = f"acceptance --model {tiny_folder} --draft {draft_folder} --prompts {prompts} --tokens 8"
    result = result_of(f"{options} --k 3 --drafters model suffix ngram ngram:6")
    assert [row["k"] for row in result["drafters"].values()] == [3, 3, 3, 6]
    assert result["prompts"] == {"mt-bench": 2, "math reasoning": 1} and result["too_long"]["qa"] == 1
    assert result["prompts_from"] == "prompts.jsonl" and result["skipped"] == {}
    assert all(row["overall"]["differing"] == 0 for row in result["results"].values())
    result = result_of(f"{options} --k 3 --drafters model ngram --lengths 30 60 --long 40 --per-length 2")
    assert [[*of] for of in result["lengths"].values()] == [["30", "60"]] * 2
    for by_length in result["lengths"].values():
        assert all(row["prompts"] == 2 and not row["differing"] for of in by_length.values() for row in of.values())
    assert [part["from"] for part in result["along"]["model"]] == [*range(0, 40, 5)]
    viz.real_and_random(result)  # as lesson 08 does
    for words, wrong in (("--drafters guess", "guess"), ("--drafters ngram:0", "ngram:0"), ("--heads x", "--drafters")):
        bench(f"{options} {words}", wrong)


@pytest.mark.nightly
def test_ahead(result_of):
    result = result_of("ahead --shape toy --context 20 --tokens 24 --repeat 1 --k 2 --outcomes 6")
    [rows] = result["results"].values()
    assert [*rows] == ["one launch", "in turn", "prepared beside, 6", "prepared after, 6"]
    assert all(row["same_tokens"] for row in rows.values())
    assert rows["in turn"]["hit_rate"]["median"] == 0 < rows["prepared beside, 6"]["hit_rate"]["median"] <= 1
    assert rows["prepared beside, 6"]["tokens_per_cycle"] == rows["in turn"]["tokens_per_cycle"]


BAD = """
decode --shape 9b; decode --context 9000 --shape toy; verify --sizes 0; verify --shape toy --device cuda:99
speculate --epsilon nan; speculate --k 0; speculate --cycles 0; batch --shape toy --requests 0
batch --shape toy --prompt-lengths 9 3; batch --shape toy --output-lengths 0 3; batch --shape toy --token-budget 2
batch --shape toy --tokens 8; batch --shape toy --prompt-lengths 1 2040
attention --cases 64; attention --cases 0x4; attention --heads 3 2 8
memory --requests 0; memory --lengths 9 3; memory --block-size 0; batching --batch 0; cpu --context 0
serve --url ftp://x; serve --rate 0; serve --output-tokens 5 3; serve --sweep micro:x; limit --models gpt
drafters --drafters guess; drafters --tokens 0; drafters --model micro --prompts nowhere; acceptance --drafters magic
report --from nowhere; report --out nowhere; memory --json /dev/null/r.json; juggle"""


def test_bad_options_are_refused_in_a_sentence_before_any_work(bench, monkeypatch):
    monkeypatch.setattr("minispec_tools.bench.shapes.random_pair", lambda *args: pytest.fail("worked before checking"))
    for words in BAD.strip().replace("\n", "; ").split("; "):
        bench(words, wrong=" ")


def test_a_result_that_could_not_be_written_is_refused_before_any_work(bench, monkeypatch, tmp_path):
    monkeypatch.setattr("minispec_tools.bench.memory.serve", lambda *args: pytest.fail("worked before checking"))
    bench(f"memory --json {tmp_path}/nowhere/r.json", wrong="nowhere")


def test_the_command_that_is_stored_has_no_keys_and_no_files():
    words = "bench serve --url http://x --api-key secret --rate 1 2 --json /home/me/r.json --ignore-eos".split()
    assert command_line(words) == "minispec bench serve --url http://x --rate 1 2 --ignore-eos"
