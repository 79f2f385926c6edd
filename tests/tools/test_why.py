"""`minispec why`: known faults are named first, healthy runs name none, and every format gives the same figures.

tests/data/why: excerpts of vLLM, SGLang, TensorRT-LLM and llama.cpp are written in their formats, with sampled counts;
those of minispec are pages of real servers on a busy CPU, so their times mean little. Set-ups and sweeps are real.
"""

import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import minispec as ms
from minispec import theory
from minispec.trace import Cycle, Trace
from minispec_course.labs import slower
from minispec_course.labs.load import recorded_servers
from minispec_course.labs.pairs import STORIES
from minispec_tools import why
from minispec_tools.bench.slower import K, set_up

DATA = Path(__file__).parents[1] / "data" / "why"


def names(seen: why.Seen) -> list[str]:
    return [suspect.name for suspect in why.suspects(seen)]


# ---------------------------------------------------------------- known faults


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("mismatched draft", "acceptance collapsed"),
        ("k too large", "k is too large"),
        ("launch overhead", "the draft is too expensive"),
        ("full batch", "the batch is too large"),
        ("wrong kernel", "verification is not free"),
    ],
)
def test_the_slow_set_ups_of_lesson_07(fault, name, run, tmp_path):
    """Their traces and times as recorded, through the command that a reader types."""
    case = slower.cases()[fault]
    (tmp_path / "trace.json").write_text(case.trace.to_json())
    line = f"why {tmp_path / 'trace.json'} --plain {1e3 * case.one_pass} --batch {case.rows} --measured {case.measured}"
    code, out, _ = run(*line.split(), "--json")
    found = json.loads(out)
    assert code == 0 and found["suspects"][0]["name"] == name
    assert (found["c"], found["v"]) == pytest.approx((case.c, case.v), rel=0.01)
    assert found["alpha"] == pytest.approx(case.alpha) and found["length"] == pytest.approx(case.tokens_per_pass)


def test_a_draft_that_does_not_fit_run_now():
    target, draft, k, _ = set_up("mismatched draft", ms.load("micro"), ms.load("micro-draft"))
    out = ms.speculate(target, STORIES["stories"][0], ms.drafters.Model(draft), k=k, max_new_tokens=48, seed=0)
    assert names(why.diagnose(**as_input(out.trace)))[0] == "acceptance collapsed"


def as_input(trace: Trace) -> dict:
    """What was accepted, with the times of lesson 07's valid run: a busy machine's clock proves nothing here."""
    sound = slower.cases()[slower.SOUND]
    k = max(len(cycle.drafted) for cycle in trace.cycles)
    v = 1 + (sound.v - 1) * k / sound.k
    return dict(k=k, length=trace.tokens_per_cycle, alpha=trace.acceptance_rate, c=sound.c, v=v, batch=1)


@pytest.mark.parametrize("seed", range(10))
def test_healthy_runs_name_nobody(seed, tmp_path):
    """Ten runs with other prompts, seeds and draft lengths, and the valid one of lesson 07."""
    drafter, stories = ms.drafters.Model(ms.load("micro-draft")), STORIES["stories"]
    how = dict(k=1 + seed % K, max_new_tokens=96, temperature=0.3, seed=seed)
    trace = ms.speculate(ms.load("micro"), stories[seed % len(stories)], drafter, **how).trace
    assert names(why.diagnose(**as_input(trace))) == []
    for cycle in trace.cycles:  # cycle by cycle, for what falls along the way
        cycle.verify_seconds = 0.0
    (tmp_path / "trace.json").write_text(trace.to_json())
    assert names(why.diagnose(str(tmp_path / "trace.json"))) == []
    sound = slower.cases()[slower.SOUND]  # lesson 07's
    (tmp_path / "trace.json").write_text(sound.trace.to_json())
    assert names(why.diagnose(str(tmp_path / "trace.json"), str(1e3 * sound.one_pass), measured=sound.measured)) == []


@pytest.mark.parametrize(("rate", "name"), [(8.0, None), (48.0, "the draft is too expensive")])
def test_our_own_server_before_its_repair(rate, name):
    """At 48 requests per second it lost a fifth by speculating; the repaired one gains, and nothing is named."""

    def look(file: str) -> why.Seen:
        server = recorded_servers(file)
        plain, drafts = server["8b"][rate], server["8b:model"][rate]
        batch = drafts["tokens_per_second"] * drafts["tpot_ms"]["mean"] / 1e3  # Little's law
        times = dict(itl=drafts["itl_ms"]["mean"], plain=str(plain["itl_ms"]["mean"]), batch=batch)
        return why.diagnose(k=4, length=drafts["acceptance_length"], **times)

    before, after = look("serve_8b.json"), look("serve_8b_controller.json")
    assert (names(before) or [None])[0] == name
    assert names(after) == [] and after.measured > 1.4 > 1.2 > before.measured


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("vllm_full_batch.log", "the batch is too large"),
        ("vllm_random.log", "a first run, with compilation"),
        ("sglang_long_context.log", "acceptance falls with the context"),
        ("sglang_metrics.txt", "k is too large"),
        ("trtllm_metrics.txt", "acceptance collapsed"),
        ("llamacpp_dear_draft.log", "the draft is too expensive"),
        ("minispec_wrong_draft_metrics.txt", "acceptance collapsed"),
        *((file, None) for file in ("vllm_healthy.log", "sglang_healthy.log", "trtllm_iterations.json")),
        *((file, None) for file in ("vllm_metrics.txt", "llamacpp_metrics.txt", "minispec_metrics.txt")),
    ],
)
def test_every_format_and_its_first_suspect(file, first, run):
    code, out, _ = run("why", str(DATA / file))
    assert code == 0 and (names(why.diagnose(str(DATA / file))) or [None])[0] == first
    assert all(len(line) <= 80 for line in out.splitlines() if "try: " not in line)
    assert len(out.splitlines()) <= 40  # one screen, commands wrapped


def test_ranks_that_repeat_an_iteration_count_once(tmp_path):
    """TensorRT-LLM gives an object per rank, with the drafts of the first in each."""
    rows = json.loads((DATA / "trtllm_iterations.json").read_text())
    ranks = [row | {"attentionDpRank": rank} for row in rows for rank in range(4)]
    (tmp_path / "ranks.json").write_text(json.dumps(ranks))
    once, all_of_them = (why.diagnose(str(file)) for file in (DATA / "trtllm_iterations.json", tmp_path / "ranks.json"))
    assert why.facts(once) == why.facts(all_of_them) and once.windows == all_of_them.windows


def test_the_worked_cases_of_the_page_are_what_is_printed(run):
    """Its files are those of tests/data/why under the names that an engine's user has."""
    files = {"vllm.log": "vllm_full_batch.log", "sglang.log": "sglang_long_context.log"}
    files |= {"llama-server.log": "llamacpp_dear_draft.log", "metrics.txt": "vllm_metrics.txt"}
    files |= {"plain_metrics.txt": "vllm_plain_metrics.txt"}
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text(encoding="utf-8")
    cases = re.findall(r"```\n\$ minispec (why .*)\n((?:.*\n)*?)```", page)
    for command, said in cases:
        assert run(*(str(DATA / files[word]) if word in files else word for word in command.split()))[1] == said
    assert len(cases) == 5


def test_what_spoils_the_measurement_comes_first():
    said = names(why.diagnose(str(DATA / "vllm_random.log")))
    assert said[1] == "a benchmark with random prompts" and "the prefix cache is lost" in said[2:]


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


def test_drift_needs_more_than_noise():
    def hours(rates: list[float]) -> why.Seen:
        windows = [{"drafts": 100, "drafted": 400, "accepted": 400 * rate} for rate in rates]
        return why.Seen("vLLM", "log", windows).settle()

    assert names(hours([0.6, 0.62, 0.58, 0.5, 0.4, 0.38, 0.3, 0.31, 0.29])) == ["acceptance drifts"]
    assert names(hours([0.6, 0.55, 0.63, 0.58, 0.61, 0.57, 0.6, 0.52, 0.58])) == []


def test_sampling_that_the_drafter_does_not_see(tmp_path):
    text = (DATA / "vllm_healthy.log").read_text().replace("0.7", "0.4").replace("length: 2.", "length: 1.")
    request = (
        "\nReceived request cmpl-1: params: SamplingParams(n=1, repetition_penalty=1.0, temperature=0.9, seed=None)\n"
    )
    for config, named in (("", True), ("'draft_sample_method': 'probabilistic'", False)):
        (tmp_path / "vllm.log").write_text(text + request + config)
        seen = why.diagnose(str(tmp_path / "vllm.log"), alpha=0.45)
        assert ("sampling settings that the drafter does not see" in names(seen)) is named


def test_time_outside_of_the_cycle():
    for measured, named in ((1.0, ["time outside of drafting and verifying"]), (1.7, [])):
        assert names(why.diagnose(k=4, alpha=0.7, c=0.1, v=1.1, measured=measured)) == named


# ---------------------------------------------------------------- numbers


def test_all_definitions_of_acceptance_from_any_of_them():
    """β = 0.9, 0.7, 0.5: of 1000 drafts of three, 900, 630 and 315 are accepted to positions 1, 2 and 3."""
    at = [900, 630, 315]
    window = {"drafts": 1000, "drafted": 3000, "accepted": sum(at), "passed": [n / 1000 for n in at]}
    seen = why.Seen("vLLM", "log", [window]).settle()
    assert seen.length == pytest.approx(2.845) == theory.expected_tokens_by_position([0.9, 0.7, 0.5])
    assert seen.rate == pytest.approx(1845 / 3000)
    assert seen.alpha == pytest.approx(1845 / (1000 + 900 + 630))
    assert seen.betas[:3] == pytest.approx([0.9, 0.7, 0.5])
    rate, length = theory.accepted_fraction(0.7, 4), theory.expected_tokens(0.7, 4)
    for given in ({"alpha": 0.7}, {"rate": rate}, {"length": length}):
        one = why.diagnose(k=4, **given)
        assert (one.alpha, one.rate, one.length) == pytest.approx((0.7, 0.4433, 2.7731), abs=1e-4)


def test_costs_follow_from_the_times():
    seen = why.Seen("vLLM", "log", [{"seconds": 0.024}], k=4, length=2.77, plain=0.010, c=0.2).settle()
    assert seen.v == pytest.approx(1.6) and seen.speedup() == pytest.approx(2.77 / 2.4)
    both = why.Seen("vLLM", "log", [{"seconds": 0.024, "batch": 64}], k=4, length=2.77, plain=0.010).settle()
    assert both.v == pytest.approx(theory.verify_cost(theory.H200, 8e9, 4, 64))  # v is the roofline's, c the rest
    assert 4 * both.c + both.v == pytest.approx(2.4) and both.notes
    line = [0.6, 0.2, lambda k: 1 + 0.1 * k]  # v, straight from 1
    assert why.diagnose(k=8, alpha=0.6, c=0.2, v=1.8).best() == (theory.best_k(*line), theory.best_speedup(*line))


def test_the_thresholds_are_what_they_say():
    assert theory.best_speedup(why.USUAL_ALPHA, why.DEAR) <= why.WORTH < theory.best_speedup(why.USUAL_ALPHA, 0.36)
    assert theory.balance_point(theory.H200) / 2 == pytest.approx(why.FULL, rel=0.1)


def test_every_suspect_has_a_command_for_every_engine():
    trials = {suspect["trial"] for suspect in why.NAMED.values()}
    trials |= {*"k batch prompts greedy sampled graphs cache again".split()}
    for engine in why.ENGINES.values():
        assert {*engine["trials"]} >= trials


# ---------------------------------------------------------------- input


def test_a_server_on_this_machine_is_asked(run):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write((DATA / "vllm_metrics.txt").read_bytes())

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        assert run("why", address)[1] == run("why", str(DATA / "vllm_metrics.txt"))[1]
        assert run("why", f"{address}/elsewhere")[0] == 2
    finally:
        server.shutdown()
        server.server_close()
    assert run("why", address)[0] == 2  # nobody answers any more


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "speculat"),
        ("no/such.log", "no such file"),
        (str(Path(__file__)), "docs/why.md"),
        ("http://example.org", "this machine"),
        (str(DATA / "vllm_plain_metrics.txt"), "--acceptance"),
        ("--k 4", "--length"),
        ("--k 4 --acceptance 1.5", "0 to 1"),
        ("--k 2 --length 5", "--k"),
        ("--k 2 --length 2 --batch -1", "--batch"),
    ],
)
def test_bad_input_is_said_in_a_sentence(words, said, run):
    code, out, err = run("why", *words.split())
    assert (code, out) == (2, "") and err.count("\n") == 1 and said in err
