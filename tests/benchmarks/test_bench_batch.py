"""The serving benchmark at toy size: that the work was done, what stands beside it, and where drafts stop paying."""

from __future__ import annotations

import json
import threading
from typing import ClassVar

import pytest

import minispec as ms
from benchmarks import batch, full_batches, peers, serving
from minispec import cli, theory
from minispec.measure import Rate, weight_bytes
from minispec.serving.engine import Engine
from minispec_course.labs import pairs

TOY = pairs.SHAPES["toy"]
SMALL = [
    "--requests",
    5,
    "--prompt-lengths",
    3,
    30,
    "--output-lengths",
    2,
    12,
    "--max-num-seqs",
    3,
    "--sizes",
    2,
    1,
    "--context",
    20,
    "--tokens",
    16,
    "--k",
    3,
    "--repeat",
    2,
]


@pytest.fixture(scope="module")
def pair():
    """Target and draft in float64: greedy texts must not hang on rounding."""
    pair = pairs.random_pair(TOY, "cpu")
    for model in pair:
        model.transformer.double()
    return pair


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "read_bandwidth", lambda device: Rate(1e10, 9e9, 1.1e10, 3))  # to measure takes seconds
    monkeypatch.setattr(batch, "flops", lambda device, dtype: Rate(4e10, 4e10, 4e10, 3))

    def call(*options: object):
        file = tmp_path / "batch.json"
        code = cli.main(["bench", "batch", "--shape", "toy", "--json", str(file), *map(str, [*SMALL, *options])])
        out, err = capsys.readouterr()
        assert code == 0, err
        assert max(map(len, out.splitlines())) <= 80
        return json.loads(file.read_text(encoding="utf-8")), out

    return call


# ---------------------------------------------------------------- the requests


def test_lengths_are_drawn_between_their_bounds_and_the_seed_decides():
    work = serving.workload(512, 400, [3, 6], [1, 2], seed=1)
    assert {len(prompt) for prompt, _ in work} == {3, 4, 5, 6} and {new for _, new in work} == {1, 2}
    assert all(0 <= token < 512 for prompt, _ in work for token in prompt)
    assert (
        work == serving.workload(512, 400, [3, 6], [1, 2], seed=1) != serving.workload(512, 400, [3, 6], [1, 2], seed=2)
    )


def test_the_pool_is_just_large_enough_for_the_largest_requests():
    work = [([1] * 3, 5), ([1] * 16, 1), ([1] * 30, 3), ([1], 1)]  # 8, 17, 33 and 2 tokens
    assert [serving.blocks_for(work, rows) for rows in (1, 2, 3, 4, 9)] == [3, 5, 6, 7, 7]
    assert serving.blocks_for(work, 1, block=256) == 1 and serving.blocks_for(work, 1, spare=16) == 4


def test_the_floor_counted_by_hand():
    """Three requests, two at a time: 9 tokens in 5 passes, and what each row remembers when it writes each of them."""
    work = [([0] * 10, 2), ([0] * 4, 4), ([0], 3)]
    remembered = (10 + 11) + (4 + 5 + 6 + 7) + (1 + 2 + 3)
    slow = theory.Hardware("reads slowly", 100.0, 1e12)
    assert serving.floor_seconds(slow, 1000, 8.0, 2, work, 2) == pytest.approx((5 * 1000 + remembered * 8) / 100)
    assert serving.floor_seconds(slow, 1000, 8.0, 2, work, 9) == pytest.approx((4 * 1000 + remembered * 8) / 100)
    weak = theory.Hardware("computes slowly", 1e12, 100.0)
    assert serving.floor_seconds(weak, 1000, 8.0, 2, work, 2) == pytest.approx(2 * 500 * (9 + 15) / 100)


# ---------------------------------------------------------------- serving


@pytest.mark.slow
def test_both_engines_do_the_work_and_write_the_same(pair):
    target, draft = pair
    work = serving.workload(TOY.vocab_size, 6, [3, 30], [2, 14], seed=4)
    options = dict(
        num_blocks=serving.blocks_for(work, 3, spare=4), max_num_seqs=3, enable_prefix_caching=False, history=1
    )
    plain = Engine(target, **options)
    drafting = Engine(target, ms.drafters.Model(draft), **options)
    serving.served(drafting, work[:2])  # what an engine did before does not count
    ours, theirs, again = serving.served(plain, work), serving.served(drafting, work), serving.served(plain, work)
    assert all(again[key] == ours[key] for key in ("texts", "steps", "preemptions", "acceptance"))
    assert [len(text) for text in ours["texts"]] == [new for _, new in work]
    assert ours["texts"] == theirs["texts"] == [ms.generate(target, *request).tokens for request in work]
    assert ours["preemptions"] == theirs["preemptions"] == 0 and ours["acceptance"] is None
    assert 0 < theirs["acceptance"] <= 1 and theirs["steps"] < ours["steps"]
    assert max(new for _, new in work) <= ours["steps"] < sum(new for _, new in work)
    for way in (ours, theirs):
        assert sum(way["parts"].values()) == pytest.approx(1)


def test_rounds_take_turns_and_who_writes_too_little_is_found_out():
    order = []

    def way(name, texts):
        return lambda work: order.append(name) or {"texts": texts}

    work = [([1], 2), ([2], 1)]
    ways = {"a": way("a", [[1, 2], [3]]), serving.PEER: way("peer", [[1, 2], [3]])}
    last, seconds, broken = serving.in_turn(ways, work, 3, "cpu")
    assert order == ["a", "peer"] * 3 and not broken and list(last) == list(seconds) == ["a", serving.PEER]
    assert [len(taken) for taken in seconds.values()] == [3, 3]
    order.clear()
    last, seconds, broken = serving.in_turn(ways | {serving.PEER: way("peer", [[1], [3]])}, work, 3, "cpu")
    assert order == ["a", "peer", "a", "a"] and list(last) == list(seconds) == ["a"]  # ours goes on without it
    assert "as many tokens" in broken[serving.PEER]
    with pytest.raises(RuntimeError, match="as many tokens"):
        serving.in_turn({"a": way("a", [[1, 2], [3, 4]])}, work, 1, "cpu")


# ---------------------------------------------------------------- speculation


@pytest.mark.slow
def test_in_a_full_batch_all_rows_write_and_all_draft(pair):
    target, draft = pair
    prompts = [pairs.prompt_of(TOY, 20, row) for row in range(3)]
    options = dict(
        num_blocks=serving.blocks_for([(prompt, 18) for prompt in prompts], 3, spare=4),
        max_num_seqs=3,
        max_num_batched_tokens=48,
    )
    engines = {
        0: Engine(target, **options),
        4: Engine(target, ms.drafters.Model(draft), k=4, draft_budget=12, **options),
    }
    texts = []
    for _ in range(2):  # the second finds the prompts read
        for k, engine in engines.items():
            steps, text, trace = full_batches.full_batch(engine, prompts, 18, k)
            assert all(step.drafted == 3 * k and step.read == 3 * (k + 1) for step in steps)
            assert [len(row) for row in text] == [18] * 3
            texts.append(text)
            if k == 0:  # all begin at once: the prompts' pass writes one token, and one more step is left out
                assert len(steps) == 16 and not trace.cycles
            else:
                assert 1 <= len(steps) < 8 and trace.acceptance_rate > 0
    assert all(text == texts[0] for text in texts)
    assert texts[0] == [ms.generate(target, prompt, 18).tokens for prompt in prompts]


def test_the_shortest_text_that_is_accepted_leaves_one_full_step(pair):
    """A draft that is always right, and 2·k + 3 tokens: the prompt's one, the cycle that is left out, and one more."""
    target, _ = pair
    engine = Engine(target, ms.drafters.Model(target), k=4)
    steps, _, trace = full_batches.full_batch(engine, [pairs.prompt_of(TOY, 20)], 2 * 4 + 3, 4)
    assert len(steps) == 1 and trace.acceptance_rate == 1


def test_a_budget_for_few_drafts_leaves_no_full_batch(pair):
    """What the filter is for: were drafts cut short, the speed-up would be another one."""
    target, draft = pair
    prompts = [pairs.prompt_of(TOY, 20, row) for row in range(3)]
    engine = Engine(target, ms.drafters.Model(draft), k=4, draft_budget=6)
    assert not full_batches.full_batch(engine, prompts, 18, 4)[0]


@pytest.mark.parametrize(
    ("sizes", "curve", "at"),
    [
        ([1, 2, 4, 8], [2.0, 1.8, 1.5, 1.01], None),
        ([1, 2, 4, 8], [2.0, 1.5, 0.5, 0.4], 2 * 2**0.5),  # halfway between 2 and 4, on the scale of doublings
        ([1, 2, 4, 8], [2.0, 1.5, 1.0, 0.5], 4),
        ([1, 4, 64], [3.0, 1.3, 0.9], 4 * 16**0.75),
        ([1, 2, 4], [1.5, 0.9, 1.2], 2 ** (5 / 6)),  # the first time counts
        ([2, 4], [0.8, 1.7], 2),
        ([1], [1.0], None),
    ],
)
def test_the_crossover_of_made_up_curves(sizes, curve, at):
    assert full_batches.crossover(sizes, curve) == (None if at is None else pytest.approx(at))


def test_the_roofline_s_speedup(pair):
    """A machine that only reads: v = 1, and c is the ratio of bytes. One that only computes: v = k + 1."""
    reads, computes = theory.Hardware("reads", 1.0, 1e30), theory.Hardware("computes", 1e30, 1.0)
    bytes_read = [weight_bytes(model) for model in pair]
    kept = [8 * 2 * model.config.num_layers * TOY.num_kv_heads * TOY.head_dim for model in pair]
    big, small = (n + 6 * 50 * each for n, each in zip(bytes_read, kept, strict=True))
    found = full_batches.roofline(reads, TOY, 8, 0.7, 4, 6, 50)
    assert found == pytest.approx(theory.expected_tokens(0.7, 4) / (4 * small / big + 1))
    assert full_batches.roofline(computes, TOY, 8, 1.0, 4, 6, 50) < 1


# ---------------------------------------------------------------- on the command line


@pytest.mark.slow
def test_batch(run):
    result, out = run("--peers")
    served, speculation = result["serving"], result["speculation"]
    assert result["benchmark"] == "batch" and result["flops"] == 4e10 and result["bandwidth"]["median"] == 1e10
    assert list(served["results"]) == [serving.PLAIN, serving.DRAFTING] and served["peer"] is None
    work = serving.workload(TOY.vocab_size, 5, [3, 30], [2, 12])
    assert served["tokens"] == sum(new for _, new in work) and served["num_blocks"] == serving.blocks_for(
        work, 3, spare=3
    )
    for row in served["results"].values():
        assert row["of_floor"] == pytest.approx(row["tokens_per_second"]["median"] / served["floor_tokens_per_second"])
        assert row["over_peer"] is None and row["preemptions"] == 0 and row["tokens_per_second"]["n"] == 2
    assert served["results"][serving.PLAIN]["same_texts"] == 5
    assert [row["batch"] for row in speculation["results"]] == [1, 2]
    for row in speculation["results"]:
        plain, deep = (row[key]["median"] for key in ("plain_tokens_per_second", "tokens_per_second"))
        assert row["speedup"]["n"] == 2  # and not the round that warms up
        assert row["speedup"]["low"] <= row["speedup"]["median"] <= row["speedup"]["high"] and min(plain, deep) > 0
        formula = theory.speedup(row["acceptance"], 3, row["c"], row["v"])
        assert row["predicted_speedup"] == pytest.approx(formula) and row["steps"][0] == 14
        assert f"{row['predicted_speedup']:.2f}" in out and 1 <= row["tokens_per_cycle"] <= 4
    assert set(speculation["crossover"]) == {"measured", "predicted", "roofline"} and "Crossover" in out
    assert batch.text(result) + "\n" == out  # what is printed is made from what is kept


@pytest.mark.slow
def test_one_part_alone(run):
    """Seventeen rows with drafts of four are more than an engine drafts by itself: it must be told to."""
    result, out = run("--parts", "speculation", "--sizes", 17, "--temperature", 1, "--k", 4, "--repeat", 1)
    [row] = result["speculation"]["results"]
    assert result["serving"] is None and row["same_texts"] is None and row["steps"][1] > 0
    assert "temperature 1" in out
    result, out = run("--parts", "serving", "--peers", "--repeat", 1)
    assert result["speculation"] is None and "Crossover" not in out


def test_a_crossover_is_named(run):
    result, _ = run("--parts", "speculation", "--repeat", 1)
    result["speculation"]["crossover"] = {"measured": 41.3, "predicted": None, "roofline": 59.6}
    assert "41 rows measured, none up to 2 by the formula, 60 rows by the" in batch.text(result)


@pytest.mark.parametrize(
    "options",
    [
        ("--requests", 0),
        ("--prompt-lengths", 9, 3),
        ("--output-lengths", 0, 3),
        ("--max-num-seqs", 0),
        ("--sizes", 0),
        ("--peer-seqs", 0),
        ("--token-budget", 2),
        ("--num-blocks", 2),
        ("--tokens", 8),
        ("--k", 0),
        ("--repeat", 0),
        ("--context", 0),
        ("--prompt-lengths", 1, 2040),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_before_any_work(options, monkeypatch, capsys):
    monkeypatch.setattr(pairs, "random_pair", lambda *a: pytest.fail("worked before checking"))
    assert cli.main(["bench", "batch", "--shape", "toy", *map(str, options)]) == 2
    assert options[0].removeprefix("--") in capsys.readouterr().err.replace("_", "-")


# ---------------------------------------------------------------- the peer


def test_without_transformers_the_peer_is_left_out_with_the_reason(run, monkeypatch):
    def missing(model):
        raise ModuleNotFoundError("No module named 'transformers'")

    monkeypatch.setattr(peers, "as_transformers", missing)
    result, out = run("--parts", "serving", "--peers", "default", "graphs", "--peer-seqs", 2, 3, "--repeat", 1)
    assert len(result["serving"]["skipped"]) == 4 and result["serving"]["peer"] is None
    assert "No module named" in out and list(result["serving"]["results"]) == [serving.PLAIN, serving.DRAFTING]


class FakeServer:
    """Takes as long to serve as its number of requests at a time says; some cannot start at all."""

    log: ClassVar[list] = []

    def __init__(self, theirs, options, max_num_seqs, cache_tokens, token_budget):
        if max_num_seqs == 1:
            raise MemoryError("too small")
        self.seqs = max_num_seqs
        self.log.append(("start", max_num_seqs))

    def serve(self, work):
        self.log.append(("serve", self.seqs, max(new for _, new in work)))
        return [[0] * new for _, new in work]

    def close(self):
        self.log.append(("close", self.seqs))


def test_the_quickest_way_to_run_the_peer_is_the_one_that_runs(monkeypatch):
    seconds = iter([3.0, 1.0, 2.0])
    timed = lambda call, *_: call() and type("T", (), {"median": next(seconds)})  # noqa: E731
    monkeypatch.setattr(peers, "as_transformers", lambda model: None)
    monkeypatch.setattr(peers, "ContinuousBatching", FakeServer)
    monkeypatch.setattr(peers, "median_time", timed)
    monkeypatch.setattr(FakeServer, "log", [])
    target = type("Target", (), {"device": "cpu"})
    work = [([1], 500)] * 9
    server, trials, skipped = peers.continuous_batching(["default"], [2, 1, 4, 8], target, work, 100, 10)
    assert server.seqs == 4 and list(trials.values()) == [3.0, 1.0, 2.0]
    assert "too small" in skipped["transformers default, 1 at a time"] and len(skipped) == 1
    assert [entry for entry in FakeServer.log if entry[0] != "serve"] == [
        *(pair for seqs in (2, 4, 8) for pair in (("start", seqs), ("close", seqs))),
        ("start", 4),
    ]
    assert {entry[2] for entry in FakeServer.log if entry[0] == "serve"} == {peers.TRIAL}
    server, trials, skipped = peers.continuous_batching(["default"], [4], target, work, 100, 10)
    assert server.seqs == 4 and not trials and not skipped  # one needs no trial


@pytest.mark.slow
def test_transformers_continuous_batching_serves_the_same_texts(run):
    pytest.importorskip("transformers")
    before = threading.enumerate()
    result, out = run("--parts", "serving", "--peers", "default", "--peer-seqs", 2, 3)
    served = result["serving"]
    assert not served["skipped"] and len(served["trials"]) == 2 and served["peer"]["max_num_seqs"] in (2, 3)
    assert served["peer"]["attention"] in out and served["peer"]["cache_tokens"] >= served["num_blocks"] * 16 / 2
    rows = served["results"]
    assert (
        list(rows) == [serving.PLAIN, serving.DRAFTING, serving.PEER] and rows[serving.PEER]["over_peer"]["median"] == 1
    )
    # In float32 a near tie may fall to either side, and the text after it is another one.
    assert all(row["same_texts"] >= 4 for row in rows.values())
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    assert not left  # its thread would keep the program from ending
