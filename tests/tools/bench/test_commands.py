"""Every benchmark at toy size, as typed: it runs, prints what it stores, and its figures belong together."""

from importlib import import_module

import pytest

from minispec import theory
from minispec_course import viz
from minispec_course.labs import ladder, pairs, slower
from minispec_tools.bench import batch, command_line

TOY = pairs.SHAPES["toy"]
PASSES = "--shape toy --context 20 --repeat 1"
SMALL = "--shape toy --requests 5 --prompt-lengths 3 30 --output-lengths 2 12 --max-num-seqs 3 --sizes 2 1 --context 20"


@pytest.fixture
def told(bench):
    """The result of a command whose output is made from what it stored, and from nothing else."""

    def call(words: str) -> dict:
        result, out = bench(words)
        name = words.split()[0]
        assert result["benchmark"] == name and result["command"] == f"minispec bench {words}"
        section = import_module(f"minispec_tools.bench.{name}").section(result)
        assert section.text(result.get("machine")) + "\n" == out
        return result

    return call


@pytest.mark.slow
def test_decode(told):
    result = told(f"decode {PASSES} --tokens 4 --peers")
    ways = result["results"]
    assert list(ways) == ["launch", "fast.generate", "generate"] and ways["launch"]["times_launch"] == pytest.approx(1)
    kept = 2 * 4 * TOY.num_layers * TOY.num_kv_heads * TOY.head_dim
    floor = (result["weight_bytes"] + 20 * kept) / 1e10
    for way in ways.values():
        assert way["fraction_of_bandwidth"] == pytest.approx(floor / way["seconds_per_token"]["median"])


@pytest.mark.slow
def test_verify(told):
    result = told(f"verify {PASSES} --sizes 5 2")
    assert [row["tokens"] for row in result["results"]] == [1, 2, 5] and result["results"][0]["ratio"] == 1
    assert [row["predicted_ratio"] for row in result["results"]] == [1, 1, 1]  # 4 FLOP per byte: free up to eight


@pytest.mark.slow
def test_speculate(told):
    result = told(f"speculate {PASSES} --tokens 4 --k 2 --cycles 6 --texts 2 --peers")
    seconds = {name: row["median"] for name, row in result["seconds"].items()}
    c, v = seconds["draft, a token"] / seconds["plain token"], seconds["verify pass"] / seconds["plain token"]
    assert result["cycles"] == 12 and (result["c"], result["v"]) == pytest.approx((c, v))
    assert result["predicted_speedup"] == pytest.approx(result["tokens_per_cycle"] / (2 * c + v))
    per_token = seconds["whole cycle"] / result["tokens_per_cycle"]
    assert result["speedup"] == pytest.approx(seconds["plain token"] / per_token)


@pytest.mark.slow
def test_batch(told):
    result = told(f"batch {SMALL} --tokens 16 --k 3 --repeat 2")
    served, speculation = result["serving"], result["speculation"]
    assert list(served["results"]) == [batch.PLAIN, batch.DRAFTING]
    work = batch.workload(TOY.vocab_size, 5, [3, 30], [2, 12])
    assert served["tokens"] == sum(new for _, new in work)
    assert served["num_blocks"] == batch.blocks_for(work, 3, spare=3)
    for row in served["results"].values():
        assert row["of_floor"] == pytest.approx(row["tokens_per_second"]["median"] / served["floor_tokens_per_second"])
        assert row["preemptions"] == 0 and row["tokens_per_second"]["n"] == 2 and row["same_texts"] == 5
        assert row["steps"] < served["tokens"] and sum(row["parts"].values()) == pytest.approx(1)
    plain, drafting = served["results"].values()  # what an engine did in other rounds does not count
    assert drafting["steps"] < plain["steps"] and plain["acceptance"] is None and 0 < drafting["acceptance"] <= 1
    assert [row["batch"] for row in speculation["results"]] == [1, 2]
    for row in speculation["results"]:
        assert row["speedup"]["n"] == 2 and row["steps"][0] == 14  # and not the round that warms up
        formula = theory.speedup(row["acceptance"], 3, row["c"], row["v"])
        assert row["predicted_speedup"] == pytest.approx(formula) and 1 <= row["tokens_per_cycle"] <= 4
    assert set(speculation["crossover"]) == {"measured", "predicted", "roofline"}


@pytest.mark.slow
def test_limit(told):
    result = told("limit --models toy --context 8 --repeat 1 --device cpu --k 2")
    assert result["recorded"] is False and result["models_asked"] == ["toy"]
    assert set(result["models"]["toy"]["steps"]) == {*ladder.STEPS, ladder.EAGER_CYCLE}


def test_attention(told):
    result = told("attention --cases 2x20 --new-tokens 1 5 --heads 4 2 8 --repeat 1 --device cpu")
    assert [case["tokens"] for case in result["cases"]] == [1, 5]
    for case in result["cases"]:
        assert case["results"].keys() == {"torch", "contiguous", "paged"}
        assert (
            case["bytes"] == 2 * 2 * 2 * (20 + case["tokens"]) * 8 * 4
        )  # k, v · batch · heads · tokens · width · bytes
        for row in case["results"].values():
            assert row["error"] < 1e-5 and not row["kernel"]
            assert row["of_bandwidth"] == pytest.approx(case["bytes"] / row["seconds"]["median"] / 1e10)


@pytest.mark.nightly
def test_cpu(told, tiny_folder):
    result = told(f"cpu --model {tiny_folder} --context 20 --repeat 1")
    assert [setting["busy"] for setting in result["settings"]] == [False, True]  # tests have one thread
    assert [row["tokens"] for row in result["settings"][0]["results"]] == [1, 2, 3, 4, 5, 6, 8]


@pytest.mark.slow
def test_drafters(told, bench, tiny_folder, draft_folder, tmp_path):
    """All of them emit what plain decoding does; those that cannot be had are left out, unless asked for by name."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The fox", "category": "tales"}\n{"turns": ["Why?", "And?"], "category": "asked"}\n')
    options = f"drafters --model {tiny_folder} --prompts {prompts} --tokens 8 --repeat 1"
    result = told(f"{options} --draft {draft_folder}")
    assert result["prompts"] == {"tales": 1, "asked": 1}
    unheard = "medusa eagle dflash dflash2 dspark mtp".split()  # nobody has trained heads for this target
    assert list(result["skipped"]) == unheard
    for table in result["results"].values():
        assert {"plain", "model", "ngram", "lookahead"} <= table.keys() and not table.keys() & result["skipped"].keys()
        for name, row in table.items():
            assert row["same_text"] and row["tokens"] == table["plain"]["tokens"] >= row["passes"], name
    assert {"model", "cascade"} <= bench(f"{options} --tokens 2")[0]["skipped"].keys()
    bench(f"{options} --drafters ngram model", wrong="--draft")


@pytest.mark.nightly
def test_acceptance(told, bench, tiny_folder, draft_folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    texts = {"writing": "The fox", "math_reasoning": "Why?", "coding": "One day", "qa": "fox " * 600}
    prompts.write_text("\n".join(f'{{"category": "{kind}", "turns": ["{text}"]}}' for kind, text in texts.items()))
    options = f"acceptance --model {tiny_folder} --draft {draft_folder} --prompts {prompts} --tokens 8"
    result = told(f"{options} --k 3 --drafters model suffix ngram ngram:6")
    assert [row["k"] for row in result["drafters"].values()] == [3, 3, 3, 6]
    assert result["prompts"] == {"mt-bench": 2, "math reasoning": 1} and result["too_long"]["qa"] == 1
    assert result["prompts_from"] == "prompts.jsonl" and result["skipped"] == {}
    assert all(row["overall"]["differing"] == 0 for row in result["results"].values())
    result = told(f"{options} --k 3 --drafters model ngram --lengths 30 60 --long 40 --per-length 2")
    assert [[*of] for of in result["lengths"].values()] == [["30", "60"]] * 2
    for by_length in result["lengths"].values():
        assert all(row["prompts"] == 2 and not row["differing"] for of in by_length.values() for row in of.values())
    assert [part["from"] for part in result["along"]["model"]] == [*range(0, 40, 5)]
    drawn = viz.real_and_random(result).data
    assert [line.xaxis for line in drawn[:3]] == ["x", "x2", "x3"] and {line.name for line in drawn[:3]} == {"model"}
    assert list(drawn[0].y) == [of["model"]["tokens_per_pass"] for of in result["lengths"]["real"].values()]
    for words, wrong in (("--drafters guess", "guess"), ("--drafters ngram:0", "ngram:0"), ("--heads x", "--drafters")):
        bench(f"{options} {words}", wrong)


@pytest.mark.nightly
def test_ahead(told):
    result = told("ahead --shape toy --context 20 --tokens 24 --repeat 1 --k 2 --outcomes 6")
    [rows] = result["results"].values()
    assert [*rows] == ["one launch", "in turn", "prepared beside, 6", "prepared after, 6"]
    assert all(row["same_tokens"] for row in rows.values())
    assert rows["in turn"]["hit_rate"]["median"] == 0 < rows["prepared beside, 6"]["hit_rate"]["median"] <= 1
    assert rows["prepared beside, 6"]["tokens_per_cycle"] == rows["in turn"]["tokens_per_cycle"]


@pytest.mark.slow
def test_the_labs(told, tiny_folder, draft_folder, tmp_path):
    models = f"--model {tiny_folder} --draft {draft_folder}"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The fox"}\n{"prompt": "Why?"}\n')
    served = told(
        f"batching {models} --prompts {prompts} --requests 5 --tokens 12 --repeat 1 --batch 2 --drafter ngram"
    )
    assert served["drafter"] == "NGram" and list(served["results"]) == ["padded", "static", "continuous", "speculative"]
    memory = told("memory --requests 12 --lengths 20 80 --blocks 64")
    assert memory["lengths"] == [20, 80] and memory["max_length"] == 160


@pytest.mark.nightly
def test_slower(told):
    assert [case["name"] for case in told("slower --steps 2 --repeat 1")["cases"]] == [slower.SOUND, *slower.FAULTS]


BAD = """decode --shape 9b; decode --context 9000 --shape toy; verify --sizes 0
verify --shape toy --device cuda:99; speculate --epsilon nan; speculate --k 0; speculate --cycles 0
batch --shape toy --requests 0; batch --shape toy --prompt-lengths 9 3; batch --shape toy --output-lengths 0 3
batch --shape toy --token-budget 2; batch --shape toy --tokens 8
batch --shape toy --prompt-lengths 1 2040; attention --cases 64; attention --cases 0x4; attention --heads 3 2 8
memory --requests 0; memory --lengths 9 3; memory --block-size 0; batching --batch 0; cpu --context 0
serve --url ftp://x; serve --rate 0; serve --output-tokens 5 3; serve --sweep micro:x; limit --models gpt
drafters --drafters guess; drafters --tokens 0; report --from nowhere
report --out nowhere; juggle
drafters --model micro --prompts nowhere; memory --json /dev/null/r.json; acceptance --drafters magic"""


def test_bad_options_are_refused_in_a_sentence_before_any_work(bench, monkeypatch):
    monkeypatch.setattr("minispec_tools.bench.shapes.random_pair", lambda *args: pytest.fail("worked before checking"))
    for words in BAD.replace("\n", "; ").split("; "):
        bench(words, wrong=" ")


def test_a_result_that_could_not_be_written_is_refused_before_any_work(bench, monkeypatch, tmp_path):
    monkeypatch.setattr("minispec_tools.bench.memory.serve", lambda *args: pytest.fail("worked before checking"))
    bench(f"memory --json {tmp_path}/nowhere/r.json", wrong="nowhere")


def test_the_command_that_is_stored_has_no_keys_and_no_files():
    words = "bench serve --url http://x --api-key secret --rate 1 2 --json /home/me/r.json --ignore-eos".split()
    assert command_line(words) == "minispec bench serve --url http://x --rate 1 2 --ignore-eos"
