"""`minispec demo`: what is shown is what was generated, marked token by token, and the table is the trace's."""

import re
from types import SimpleNamespace

import pytest

import minispec as ms
from minispec import theory
from minispec.drafters import by_name
from minispec.trace import Cycle, Trace
from minispec_tools import demo

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def make_cycle(drafted, accepted, token=0, bonus=None, parents=None, **times):
    bonus = accepted == len(drafted) if bonus is None else bonus
    ones = [1.0] * len(drafted)
    return Cycle(drafted, parents, ones, ones, list(range(accepted)), token, bonus, accepted + 1, 1, **times)


def painted(model, cycles, colour=False) -> str:
    pieces = []
    painter = demo.Painter(model, colour, pieces.append)
    for cycle in cycles:
        painter.cycle(cycle)
    painter.end()
    return "".join(pieces).removesuffix("\n\n")


def test_what_is_shown_is_the_text_character_by_character(tiny_text):
    for text in ("Once upon a time, the fox.", "Das Mädchen läuft: 日本語 🦊🦊", "a 𝔘𝔫𝔦 b\n\n c"):
        for size in (1, 2, 5):
            tokens = tiny_text.encode(text)
            parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
            cycles = [make_cycle(part[:-1], len(part) - 1, part[-1]) for part in parts]
            assert ESCAPE.sub("", painted(tiny_text, cycles, colour=True)) == text
            assert re.sub(r"[\[\]{}]", "", painted(tiny_text, cycles)) == text


def test_a_line_ends_between_words_whatever_the_tokens_are(tiny_text, monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    tokens = tiny_text.encode(text := "Once upon a time there was a small fox who lived in the old wood.")
    for colour in (False, True):
        shown = ESCAPE.sub("", painted(tiny_text, [make_cycle([], 0, token) for token in tokens], colour))
        assert re.sub(r"[{}]", "", shown).split() == text.split()
        assert shown.count("\n") >= 2 and max(map(len, shown.splitlines())) <= 24


def test_every_character_carries_the_mark_of_the_token_that_completed_it(tiny_text):
    tokens = tiny_text.encode("a 🦊b")
    fox = len(tiny_text.encode("a 🦊")) - 1  # the token that completes the fox; it takes several
    before = make_cycle(tokens[: fox - 1], fox - 1, tokens[fox - 1], bonus=False)
    after = make_cycle(tokens[fox:-1], len(tokens) - 1 - fox, tokens[-1], bonus=True)
    assert painted(tiny_text, [before, after]).endswith("🦊{b}")  # accepted, then the bonus
    assert painted(tiny_text, [make_cycle(tokens[:fox], fox, tokens[fox], bonus=False)]).endswith("[🦊]")
    half = tokens[:fox]  # an output may end within a character
    assert painted(tiny_text, [make_cycle(half[:-1], len(half) - 1, half[-1])]).count("\ufffd") >= 1


@pytest.mark.slow
def test_the_watched_run_is_what_speculate_generates_and_the_table_is_its_traces(tiny_text, draft_folder):
    calls, drafter = [], by_name("model", tiny_text, str(draft_folder))
    witness = SimpleNamespace(cycle=calls.append, end=lambda: calls.append("end"))
    result = demo.demo(tiny_text, drafter, "The fox", 24, 3, temperature=0.8, seed=1, repeat=2, painter=witness)
    out = ms.speculate(tiny_text, "The fox", drafter, 3, 24, temperature=0.8, seed=1)
    trace = result.out.trace
    assert result.out.tokens == out.tokens and calls == [*trace.cycles, "end"]  # and nothing of the timed runs
    kinds = [kind for cycle in trace.cycles for kind in cycle.kinds]
    assert result.counts == {kind: kinds.count(kind) for kind in demo.COLOURS}
    assert result.plain.n == result.speculative.n == 2 and result.predicted == demo.predict(trace, result.c, result.v)
    for colour in (False, True):
        assert max(map(len, ESCAPE.sub("", result.text(colour)).splitlines())) <= 80
        assert ("\x1b" in result.text(colour)) == colour


def test_the_prediction_takes_each_drafts_own_length():
    trace = Trace([make_cycle([1] * 4, accepted) for accepted in (4, 0, 2, 1, 4)])  # 11 passed, 3 rejections
    assert demo.predict(trace, 0.1, 1.5) == pytest.approx(theory.speedup(11 / 14, 4, 0.1, 1.5))
    trace = Trace([make_cycle([], 0), make_cycle([1, 1], 1), make_cycle([1, 1, 1], 1, parents=[-1, -1, 1])])
    trace.cycles[2].path = [1]
    tokens = (1 + 2 * (1 + 0.5 + 0.5**2)) / 3  # nothing drafted, a chain of two, a tree two deep
    assert demo.predict(trace, 0.1, 1.5) == pytest.approx(tokens / (5 / 3 * 0.1 + 1.5))


def test_c_and_v_are_times_over_the_time_of_one_pass(monkeypatch, tiny_text):
    """Scripted times: drafting 3 tokens takes 6 ms, verifying 8 ms, a pass of one token 4 ms."""
    trace = Trace([make_cycle([5, 5, 5], 2, draft_seconds=0.006, verify_seconds=0.008)] * 4)
    monkeypatch.setattr(demo, "speculate", lambda *a, **o: ms.Output([5] * 12, "", 2, 0.06, "length", trace))
    monkeypatch.setattr(demo, "generate", lambda *a, **o: ms.Output([5] * 10, "", 2, 0.1, "length"))
    point = SimpleNamespace(time=demo.Timing(0.004, 0.004, 0.004, 1))
    monkeypatch.setattr(demo, "verify_curve", lambda *a: [point])
    result = demo.demo(tiny_text, ms.drafters.NGram(), "The fox", 12, 3, repeat=3)
    assert (result.c, result.v, result.measured) == pytest.approx((0.5, 2.0, 2.0))  # 10 ms per token against 5


@pytest.mark.slow
def test_the_command(run, tiny_folder, draft_folder):
    options = ["--tokens", 12, "--k", 3, "--temperature", 0.8, "--seed", 4, "--prompt", "The fox"]
    code, out, _ = run("demo", "--model", tiny_folder, "--draft", draft_folder, *options)
    drafter = ms.drafters.Model(ms.load(draft_folder))
    expected = ms.speculate(ms.load(tiny_folder), "The fox", drafter, 3, 12, temperature=0.8, seed=4)
    shown = re.sub(r"[\[\]{}]", "", out.split("\n\n", 1)[1]).replace("\n", " ")
    assert code == 0 and "\x1b" not in out
    assert shown.startswith("The fox" + re.sub(r"[\[\]{}]", "", expected.text).replace("\n", " ") + "  ")
    chat = ["--tokens", 8, "--temperature", 0, "--chat", "--k", "auto", "--prompt", "Why?"]
    shown = run("demo", "--model", tiny_folder, *chat)[1]
    text = ms.generate(ms.load(tiny_folder), [{"role": "user", "content": "Why?"}], 8).text
    shown, text = (re.sub(r"[\[\]{}]", "", each) for each in (shown, text))
    assert "drafts by NGram, k = auto" in shown and shown.split("\n\n")[2].split() == text.split()
    assert run("demo", "--model", tiny_folder, "--k", 0)[0] == 2
