"""`minispec demo`: the text shown is the text written, marked token by token, and the table is the trace's."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace

import pytest
import torch

import minispec as ms
from minispec import theory
from minispec.drafters import DRAFTERS, by_name, shipped_draft
from minispec.drafters.by_name import name_of
from minispec.load import registry
from minispec.load.folder import save_folder
from minispec.trace import Cycle, Trace
from minispec_course import demo
from minispec_course.demo import Painter, predict, wants_colour

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def result(tiny_text, draft_folder):
    drafter = by_name("model", tiny_text, str(draft_folder))
    return demo.demo(tiny_text, drafter, "The fox", 24, 3, temperature=0.8, seed=1, repeat=2)


def make_cycle(drafted, accepted, token=0, bonus=None, parents=None, **times):
    path = list(range(accepted))
    bonus = accepted == len(drafted) if bonus is None else bonus
    return Cycle(
        drafted, parents, [1.0] * len(drafted), [1.0] * len(drafted), path, token, bonus, accepted + 1, 1, **times
    )


# ---------------------------------------------------------------- the text


def painted(model, cycles, colour=False):
    pieces = []
    painter = Painter(model, colour, pieces.append)
    for cycle in cycles:
        painter.cycle(cycle)
    painter.end()
    return [piece for piece in pieces if piece]


def split(tokens, lengths=(2, 1, 3)):
    """The tokens as cycles of these lengths in turn; every other one ends with a bonus."""
    cycles, at = [], 0
    while at < len(tokens):
        part = tokens[at : at + lengths[len(cycles) % len(lengths)]]
        cycles.append(make_cycle(part[:-1], len(part) - 1, part[-1], bonus=len(cycles) % 2 == 1))
        at += len(part)
    return cycles


@pytest.mark.parametrize("text", ["Once upon a time, the fox.", "Das Mädchen läuft: 日本語 🦊🦊", "a 𝔘𝔫𝔦 b\n\n c"])
@pytest.mark.parametrize("lengths", [(1,), (2, 1, 3), (5,)])
def test_what_is_shown_is_the_text_character_by_character(tiny_text, text, lengths):
    cycles = split(tiny_text.encode(text), lengths)
    coloured = painted(tiny_text, cycles, colour=True)
    assert "".join(ESCAPE.sub("", piece) for piece in coloured) == text
    assert not any("\ufffd" in piece for piece in coloured)
    assert re.sub(r"[\[\]{}]", "", "".join(painted(tiny_text, cycles))) == text


def test_a_text_that_ends_within_a_character_is_shown_to_its_end(tiny_text):
    tokens = tiny_text.encode("fox 🦊")[:-1]
    assert tiny_text.decode(tokens).endswith("\ufffd")
    shown = painted(tiny_text, split(tokens), colour=True)
    assert "".join(ESCAPE.sub("", piece) for piece in shown) == tiny_text.decode(tokens)


def test_every_character_carries_the_mark_of_the_token_that_completed_it(tiny_text):
    tokens = tiny_text.encode("a 🦊b")
    fox = len(tiny_text.encode("a 🦊")) - 1  # the token that completes the fox
    assert fox > len(tiny_text.encode("a "))  # it takes several
    before = make_cycle(tokens[: fox - 1], fox - 1, tokens[fox - 1], bonus=False)
    after = make_cycle(tokens[fox:-1], len(tokens) - 1 - fox, tokens[-1], bonus=True)
    assert "".join(painted(tiny_text, [before, after])).endswith("🦊{b}")  # accepted, then the bonus
    alone = make_cycle(tokens[:fox], fox, tokens[fox], bonus=False)
    assert "".join(painted(tiny_text, [alone])).endswith("[🦊]")


def test_marks_tell_the_three_kinds_apart_with_and_without_colour():
    for colour in (True, False):
        assert len({demo.paint("word", kind, colour) for kind in ("accepted", "corrected", "bonus")}) == 3
        assert all(demo.paint(kind, kind, colour) in demo.legend(colour) for kind in ("accepted", "corrected", "bonus"))
    assert demo.paint(" word", "corrected", False) == " [word]"  # words stay apart
    assert "\x1b" not in demo.legend(False)


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_colour(Terminal()) and not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(Terminal())


# ---------------------------------------------------------------- the numbers


@pytest.mark.slow
def test_the_watched_run_is_what_speculate_writes(result, tiny_text, draft_folder):
    drafter = by_name("model", tiny_text, str(draft_folder))
    out = ms.speculate(tiny_text, "The fox", drafter, 3, 24, temperature=0.8, seed=1)
    assert result.out.tokens == out.tokens and result.out.text == out.text


def test_the_painter_sees_every_cycle_of_the_watched_run_and_its_end(tiny_text):
    calls = []
    witness = SimpleNamespace(cycle=calls.append, end=lambda: calls.append("end"))
    result = demo.demo(tiny_text, ms.drafters.NGram(), "The fox", 12, painter=witness, repeat=2)
    assert calls == [*result.out.trace.cycles, "end"]  # and nothing of the timed runs


def test_counts_in_the_table_are_the_traces(result):
    trace, facts, lines = result.out.trace, result.facts(), result.text().splitlines()
    kinds = [kind for cycle in trace.cycles for kind in cycle.kinds]
    assert sum(result.counts.values()) == len(kinds) == facts["tokens"] == len(result.out.tokens)
    for kind in ("accepted", "corrected", "bonus"):
        assert facts[kind] == result.counts[kind] == kinds.count(kind)
        assert any(re.search(rf"{kind}[\]}}]? {kinds.count(kind)}\b", line) for line in lines)
    [row] = [line for line in lines if line.startswith("passes")]
    assert row.split()[-2:] == [str(len(result.out.tokens)), str(trace.target_passes)]
    [row] = [line for line in lines if line.startswith("tokens per pass")]
    assert row.split()[-1] == f"{len(result.out.tokens) / trace.target_passes:.2f}"
    assert facts["acceptance"] == trace.acceptance_rate and f"α = {trace.acceptance_rate:.2f}" in result.text()
    assert facts["drafted"] == sum(len(cycle.drafted) for cycle in trace.cycles)
    assert Trace([Cycle(**cycle) for cycle in facts["trace"]]) == trace


def test_speedups_come_from_the_times(result):
    facts = result.facts()
    plain, own = facts["plain_seconds_per_token"], facts["speculative_seconds_per_token"]
    assert facts["speedup"]["measured"] == plain["median"] / own["median"]
    assert facts["speedup"]["predicted"] == predict(result.out.trace, result.c, result.v)
    assert plain["n"] == own["n"] == 2 and result.c > 0 and result.v > 0


def test_the_table_fits_a_terminal(result):
    for colour in (False, True):
        text = ESCAPE.sub("", result.text(colour))
        assert max(map(len, text.splitlines())) <= 80
        assert ("\x1b" in result.text(colour)) == colour


def test_the_prediction_is_theorys_where_every_draft_has_one_length():
    trace = Trace([make_cycle([1] * 4, accepted) for accepted in (4, 0, 2, 1, 4)])
    alpha = 11 / 14  # 11 passed, 3 rejections
    assert predict(trace, 0.1, 1.5) == pytest.approx(theory.speedup(alpha, 4, 0.1, 1.5))


def test_the_prediction_takes_each_drafts_own_length():
    trace = Trace([make_cycle([], 0), make_cycle([1, 1], 1), make_cycle([1, 1, 1], 1, parents=[-1, -1, 1])])
    trace.cycles[2].path = [1]
    alpha = 2 / 4
    tokens = (1 + 2 * (1 + alpha + alpha**2)) / 3  # nothing drafted, a chain of two, a tree two deep
    assert predict(trace, 0.1, 1.5) == pytest.approx(tokens / (5 / 3 * 0.1 + 1.5))


def test_c_and_v_are_times_over_the_time_of_one_pass(monkeypatch, tiny_text):
    """Scripted times: drafting 3 tokens takes 6 ms, verifying 8 ms, a pass of one token 4 ms."""
    trace = Trace([make_cycle([5, 5, 5], 2, draft_seconds=0.006, verify_seconds=0.008)] * 4)
    out = ms.Output([5] * 12, "", 2, 0.06, "length", trace)
    monkeypatch.setattr(demo, "speculate", lambda *a, **o: out)
    monkeypatch.setattr(demo, "generate", lambda *a, **o: ms.Output([5] * 10, "", 2, 0.1, "length"))
    point = type("Point", (), {"time": demo.Timing(0.004, 0.004, 0.004, 1)})
    monkeypatch.setattr(demo, "verify_curve", lambda *a: [point])
    result = demo.demo(tiny_text, ms.drafters.NGram(), "The fox", 12, 3, repeat=3)
    assert (result.c, result.v) == (pytest.approx(0.5), pytest.approx(2.0))
    assert result.measured == pytest.approx(2.0)  # 10 ms a token against 5


# ---------------------------------------------------------------- drafters by name


HEADS = {"medusa", "eagle", "dflash", "mtp"}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_can_be_watched(name, tiny_text, draft_folder, request):
    target = request.getfixturevalue("micro") if name in HEADS else tiny_text
    drafter = by_name(name, target, str(draft_folder))
    assert name_of(drafter).lower() == name.replace("-", "")
    result = demo.demo(target, drafter, "The fox", 8, 2, temperature=0.0, repeat=1)
    assert result.out.tokens == ms.generate(target, "The fox", 8).tokens
    json.dumps(result.facts())


@pytest.fixture(scope="module")
def micro():
    return ms.load("micro", device="cpu")


def test_unknown_drafters_and_missing_drafts_are_named(tiny_text):
    with pytest.raises(ValueError, match="micro"):
        by_name("eagle", tiny_text)
    with pytest.raises(ValueError, match="oracle.*ngram"):
        by_name("oracle", tiny_text)
    for name in ("model", "cascade"):
        with pytest.raises(ValueError, match="--draft"):
            by_name(name, tiny_text)


def test_a_known_model_finds_the_draft_that_comes_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "DATA", tmp_path)
    assert shipped_draft("micro") is None and shipped_draft("some/folder") is None
    (tmp_path / "micro-draft").mkdir()
    (tmp_path / "micro-draft/config.json").touch()
    assert shipped_draft("micro") == "micro-draft"


# ---------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_without_a_terminal_prints_plain_text(run, tiny_folder, draft_folder):
    options = ["--tokens", 12, "--k", 3, "--seed", 4, "--prompt", "The fox"]
    code, out, err = run("demo", "--model", tiny_folder, "--draft", draft_folder, *options)
    target, draft = ms.load(tiny_folder), ms.load(draft_folder)
    expected = ms.speculate(target, "The fox", ms.drafters.Model(draft), 3, 12, temperature=0.8, seed=4)
    assert (code, err) == (0, "") and "\x1b" not in out
    shown = out.split("\n\n", 1)[1]
    assert re.sub(r"[\[\]{}]", "", shown).startswith("The fox" + re.sub(r"[\[\]{}]", "", expected.text) + "\n\n")
    assert f"{len(expected.tokens)} tokens: " in out


@pytest.mark.parametrize(("options", "drafter"), [([], "NGram"), (["--drafter", "suffix"], "Suffix")])
def test_the_json_is_json_and_nothing_else(run, tiny_folder, options, drafter):
    code, out, err = run("demo", "--model", tiny_folder, "--tokens", 8, "--temperature", 0, "--json", *options)
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert facts["drafter"] == drafter  # without a draft: prompt lookup
    assert facts["text"] == ms.generate(ms.load(tiny_folder), "Once upon a time", 8).text
    assert {
        "model",
        "drafter",
        "k",
        "temperature",
        "seed",
        "prompt",
        "text",
        "tokens",
        "passes",
        "tokens_per_pass",
        "accepted",
        "corrected",
        "bonus",
        "drafted",
        "acceptance",
        "plain_seconds_per_token",
        "c",
        "v",
        "speculative_seconds_per_token",
        "speedup",
        "machine",
        "trace",
    } == set(facts)


@pytest.mark.slow
def test_chat_and_automatic_draft_length(run, tiny_folder):
    code, out, _ = run(
        "demo",
        "--model",
        tiny_folder,
        "--tokens",
        8,
        "--temperature",
        0,
        "--chat",
        "--k",
        "auto",
        "--prompt",
        "Why?",
        "--json",
    )
    facts, target = json.loads(out), ms.load(tiny_folder)
    assert code == 0 and facts["k"] == "auto"
    assert facts["text"] == ms.generate(target, [{"role": "user", "content": "Why?"}], 8).text


def test_bad_draft_lengths_and_strange_drafts_are_refused(run, tiny_folder, tmp_path, make_model):
    code, out, err = run("demo", "--model", tiny_folder, "--k", 0)
    assert (code, out) == (2, "") and "--k='0'" in err
    save_folder(make_model(vocab_size=99, dtype=torch.float32), tmp_path / "stranger", bits=None)
    code, out, err = run("demo", "--model", tiny_folder, "--draft", tmp_path / "stranger")
    assert (code, out) == (2, "") and "99" in err
    code, out, err = run("demo", "--k", "many")
    assert (code, out) == (2, "") and "--k='many'" in err and "auto" in err


@pytest.mark.slow
@pytest.mark.skipif(shipped_draft("micro") is None, reason="micro and its draft are not in the package yet")
def test_micro_is_drafted_for_by_its_own_draft(run):
    code, out, err = run("demo", "--json", "--tokens", 16, "--temperature", 0)
    facts = json.loads(out)
    assert (code, err) == (0, "") and facts["drafter"] == "Model"
    assert facts["accepted"] > 0 and facts["passes"] < facts["tokens"] == 16
