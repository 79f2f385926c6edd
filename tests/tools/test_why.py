"""`minispec why`: known faults are named first, healthy runs name none, and every format gives the same figures.

tests/data/why: excerpts of vLLM, SGLang, TensorRT-LLM and llama.cpp are written in their formats, with sampled counts;
those of minispec are pages of real servers on a busy CPU, so their times mean little. Set-ups and sweeps are real.
"""

import io
import json
import re
import threading
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

import minispec as ms
from minispec.trace import Cycle, Trace
from minispec_course.labs import slower
from minispec_course.labs.load import recorded_servers
from minispec_course.labs.pairs import STORIES
from minispec_tools import why
from minispec_tools.bench.slower import K, set_up

DATA = Path(__file__).parents[1] / "data" / "why"


def names(seen: why.Seen) -> list[str]:
    return [suspect.name for suspect in why.suspects(seen)]


# ---------------------------------------------------------------- known faults, and healthy runs


@pytest.mark.parametrize(
    ("fault", "names"),
    {
        slower.SOUND: [],
        "mismatched draft": ["acceptance collapsed"],
        "k too large": ["k is too large"],
        "launch overhead": ["the draft is too expensive"],
        "full batch": ["the batch is too large"],
        "wrong kernel": ["verification is not free"],
    }.items(),
)
def test_the_fault_of_each_set_up_of_lesson_07_is_named_first(fault, names, run, tmp_path):
    """From recorded traces and times, through the command that a reader types."""
    case = slower.cases()[fault]
    (tmp_path / "trace.json").write_text(case.trace.to_json())
    line = f"why {tmp_path / 'trace.json'} --plain {1e3 * case.one_pass} --batch {case.rows} --measured {case.measured}"
    code, out, _ = run(*line.split(), "--json")
    found = json.loads(out)
    assert code == 0 and [suspect["name"] for suspect in found["suspects"]][:1] == names
    assert (found["c"], found["v"]) == pytest.approx((case.c, case.v), rel=0.01)
    assert found["alpha"] == pytest.approx(case.alpha) and found["length"] == pytest.approx(case.tokens_per_pass)


def diagnosed(trace: Trace) -> list[str]:
    """By what was accepted, at the costs of lesson 07's valid run: a busy machine's clock says nothing here."""
    sound, k = slower.cases()[slower.SOUND], max(len(cycle.drafted) for cycle in trace.cycles)
    costs = dict(c=sound.c, v=1 + (sound.v - 1) * k / sound.k, batch=1)
    return names(why.diagnose(k=k, length=trace.tokens_per_cycle, alpha=trace.acceptance_rate, **costs))


def test_a_draft_of_another_target_is_named_in_a_run_of_now():
    target, draft, k, _ = set_up("mismatched draft", ms.load("micro"), ms.load("micro-draft"))
    out = ms.speculate(target, STORIES["stories"][0], ms.drafters.Model(draft), k=k, max_new_tokens=48, seed=0)
    assert diagnosed(out.trace)[0] == "acceptance collapsed"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_run_names_no_suspect(seed, tmp_path):
    """Ten runs with other prompts, seeds and draft lengths: as a whole, and cycle by cycle."""
    drafter, stories = ms.drafters.Model(ms.load("micro-draft")), STORIES["stories"]
    how = dict(k=1 + seed % K, max_new_tokens=96, temperature=0.3, seed=seed)
    trace = ms.speculate(ms.load("micro"), stories[seed % len(stories)], drafter, **how).trace
    assert diagnosed(trace) == []
    for cycle in trace.cycles:
        cycle.verify_seconds = 0.0  # which means that no times were taken
    (tmp_path / "trace.json").write_text(trace.to_json())
    assert names(why.diagnose(str(tmp_path / "trace.json"))) == []


@pytest.mark.parametrize(("rate", "before_repair"), [(8.0, []), (48.0, ["the draft is too expensive"])])
def test_our_own_server_before_and_after_its_repair(rate, before_repair):
    """At 48 requests per second it lost a fifth by speculating; the repaired one gains, and nothing is named."""

    def look(file: str) -> why.Seen:
        server = recorded_servers(file)
        plain, drafts = server["8b"][rate], server["8b:model"][rate]
        batch = drafts["tokens_per_second"] * drafts["tpot_ms"]["mean"] / 1e3  # Little's law
        times = dict(itl=drafts["itl_ms"]["mean"], plain=str(plain["itl_ms"]["mean"]), batch=batch)
        return why.diagnose(k=4, length=drafts["acceptance_length"], **times)

    before, after = look("serve_8b.json"), look("serve_8b_controller.json")
    assert names(before)[:1] == before_repair and names(after) == []
    assert after.measured > 1.4 > 1.2 > before.measured


# ---------------------------------------------------------------- formats


@pytest.mark.parametrize(
    ("file", "first"),
    {
        "vllm_full_batch.log": ["the batch is too large"],
        "vllm_random.log": ["a first run, with compilation", "a benchmark with random prompts"],
        "sglang_long_context.log": ["acceptance falls with the context"],
        "sglang_metrics.txt": ["k is too large"],
        "trtllm_metrics.txt": ["acceptance collapsed"],
        "llamacpp_dear_draft.log": ["the draft is too expensive"],
        "minispec_wrong_draft_metrics.txt": ["acceptance collapsed"],
        "vllm_healthy.log": [],
        "vllm_metrics.txt": [],
        "sglang_healthy.log": [],
        "trtllm_iterations.json": [],
        "llamacpp_metrics.txt": [],
        "minispec_metrics.txt": [],
    }.items(),
)
def test_every_format_and_its_first_suspects(file, first, run):
    """What spoils the measurement comes first."""
    found = names(why.diagnose(str(DATA / file)))
    assert found[: len(first)] == first and bool(found) == bool(first)
    assert run("why", DATA / file)[0] == 0


def test_the_worked_cases_of_the_page_are_what_is_printed(run):
    """Its files are those of tests/data/why under the names that an engine's user has."""
    files = {"vllm.log": "vllm_full_batch.log", "sglang.log": "sglang_long_context.log"}
    files |= {"llama-server.log": "llamacpp_dear_draft.log", "metrics.txt": "vllm_metrics.txt"}
    files |= {"plain_metrics.txt": "vllm_plain_metrics.txt"}
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text(encoding="utf-8")
    cases = re.findall(r"```\n\$ minispec (why .*)\n((?:.*\n)*?)```", page)
    assert cases
    for command, printed in cases:
        words = [str(DATA / files[word]) if word in files else word for word in command.split()]
        assert run(*words)[1] == printed


def test_ranks_that_repeat_an_iteration_count_once(tmp_path):
    """TensorRT-LLM gives an object per rank, with the drafts of the first in each."""
    rows = json.loads((DATA / "trtllm_iterations.json").read_text())
    ranks = [row | {"attentionDpRank": rank} for row in rows for rank in range(4)]
    (tmp_path / "ranks.json").write_text(json.dumps(ranks))
    once, all_of_them = (why.diagnose(str(file)) for file in (DATA / "trtllm_iterations.json", tmp_path / "ranks.json"))
    assert why.facts(once) == why.facts(all_of_them) and once.windows == all_of_them.windows


def test_a_server_on_this_machine_is_asked(run, tmp_path):
    (tmp_path / "metrics").write_bytes((DATA / "vllm_metrics.txt").read_bytes())

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        assert run("why", address)[1] == run("why", DATA / "vllm_metrics.txt")[1]
        assert run("why", f"{address}/elsewhere")[0] == 2
    finally:
        server.shutdown()
        server.server_close()
    assert run("why", address)[0] == 2  # there is no answer any more


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "speculat"),
        ("no/such.log", "no such file"),
        (__file__, "docs/why.md"),
        ("http://example.org", "this machine"),
        (str(DATA / "vllm_plain_metrics.txt"), "--acceptance"),
        ("--k 4", "--length"),
        ("--k 4 --acceptance 1.5", "0 to 1"),
        ("--k 2 --length 5", "--k"),
        ("--k 2 --length 2 --batch -1", "--batch"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(words, named, run):
    code, out, err = run("why", *words.split())
    assert (code, out) == (2, "") and err.count("\n") == 1 and named in err


# ---------------------------------------------------------------- single suspects


def test_a_plain_run_shows_what_was_lost():
    seen = why.diagnose(str(DATA / "vllm_metrics.txt"), str(DATA / "vllm_plain_metrics.txt"))
    assert names(seen) == ["the prefix cache is lost"]
    assert seen.k * seen.c + seen.v == pytest.approx(13.2 / 7.4)  # milliseconds of a cycle and of a plain step
    assert seen.measured == pytest.approx(seen.length * 7.4 / 13.2, rel=1e-3)


def test_a_slow_first_cycle_and_an_acceptance_of_one(run, monkeypatch):
    cycles = [Cycle([1, 2], None, [1.0] * 2, [1.0] * 2, [0, 1], 3, True, 3, 9) for _ in range(100)]
    for i, cycle in enumerate(cycles):
        cycle.draft_seconds, cycle.verify_seconds = 0.001, 0.004 if i else 1.0
    monkeypatch.setattr("sys.stdin", io.StringIO(Trace(cycles).to_json()))
    found = json.loads(run("why", "-", "--json")[1])["suspects"]
    assert [one["name"] for one in found][:2] == ["a first run, with compilation", "acceptance is too good"]


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ([0.6, 0.62, 0.58, 0.5, 0.4, 0.38, 0.3, 0.31, 0.29], ["acceptance drifts"]),
        ([0.6, 0.55, 0.63, 0.58, 0.61, 0.57, 0.6, 0.52, 0.58], []),
    ],
)
def test_drift_is_more_than_noise(rates, found):
    windows = [{"drafts": 100, "drafted": 400, "accepted": 400 * rate} for rate in rates]
    assert names(why.Seen("vLLM", "log", windows).settle()) == found


@pytest.mark.parametrize(("config", "named"), [("", True), ("'draft_sample_method': 'probabilistic'", False)])
def test_sampling_that_the_drafter_does_not_see(config, named, tmp_path):
    log = (DATA / "vllm_healthy.log").read_text().replace("0.7", "0.4").replace("length: 2.", "length: 1.")
    params = "SamplingParams(n=1, repetition_penalty=1.0, temperature=0.9, seed=None)"
    (tmp_path / "vllm.log").write_text(f"{log}\nReceived request cmpl-1: params: {params}\n{config}")
    seen = why.diagnose(str(tmp_path / "vllm.log"), alpha=0.45)
    assert ("sampling settings that the drafter does not see" in names(seen)) is named


@pytest.mark.parametrize(("measured", "found"), [(1.0, ["time outside of drafting and verifying"]), (1.7, [])])
def test_time_outside_of_the_cycle(measured, found):
    assert names(why.diagnose(k=4, alpha=0.7, c=0.1, v=1.1, measured=measured)) == found


def test_every_suspect_has_a_command_for_every_engine():
    trials = {suspect["trial"] for suspect in why.NAMED.values()}
    trials |= {*"k batch prompts greedy sampled graphs cache again".split()}
    assert all({*engine["trials"]} >= trials for engine in why.ENGINES.values())


# ---------------------------------------------------------------- numbers


def test_all_definitions_of_acceptance_from_counts_by_position():
    """β = 0.9, 0.7, 0.5: of 1000 drafts of three, 900, 630 and 315 are accepted to positions 1, 2 and 3."""
    at = [900, 630, 315]
    window = {"drafts": 1000, "drafted": 3000, "accepted": sum(at), "passed": [n / 1000 for n in at]}
    seen = why.Seen("vLLM", "log", [window]).settle()
    assert (seen.length, seen.rate) == pytest.approx((2.845, 1845 / 3000))
    assert seen.alpha == pytest.approx(1845 / (1000 + 900 + 630))
    assert seen.betas[:3] == pytest.approx([0.9, 0.7, 0.5])


@pytest.mark.parametrize("given", [{"alpha": 0.7}, {"rate": 0.44328}, {"length": 2.7731}])
def test_any_definition_of_acceptance_gives_the_others(given):
    """α = 0.7 and k = 4: 2.7731 tokens per cycle, so 1.7731 of 4 draft tokens are accepted."""
    seen = why.diagnose(k=4, **given)
    assert (seen.alpha, seen.rate, seen.length) == pytest.approx((0.7, 0.4433, 2.7731), abs=1e-4)


def test_costs_follow_from_the_times():
    """A cycle takes 24 ms and a plain token 10 ms, so k·c + v = 2.4."""
    seen = why.Seen("vLLM", "log", [{"seconds": 0.024}], k=4, length=2.77, plain=0.010, c=0.2).settle()
    assert seen.v == pytest.approx(1.6) and seen.speedup() == pytest.approx(2.77 / 2.4)
    both = why.Seen("vLLM", "log", [{"seconds": 0.024, "batch": 64}], k=4, length=2.77, plain=0.010).settle()
    assert 4 * both.c + both.v == pytest.approx(2.4) and both.v > 1  # v is a roofline's and c the rest …
    assert any("c and v apart" in note for note in both.notes)  # … which is said
