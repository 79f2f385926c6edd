"""The conversation of a mock interview: what is talk and what is an answer, what an interviewer makes of it, and how an
interview that was interrupted is found again."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from interview_checks import Script
from mutants.patching import rewrite

from minispec import exact, theory, verify
from minispec.cli import main
from minispec_course.check import exam, terminal
from minispec_course.interview import coding, debrief, load, mock, mock_interview, mock_terminal, reactions, rounds
from minispec_course.interview.debrief import Debrief, report
from minispec_course.interview.derivations import losslessness
from minispec_course.interview.matcher import numbers
from minispec_course.interview.mock_interview import Interview, keep, resume, slots, unfinished
from minispec_course.interview.reactions import PROBES, answer_to, asks_back, gives_up, probing
from minispec_course.interview.rounds import CODE, GRADES, NOTHING, NUMBER, UNTOUCHED, WORDS, Reply, talk
from minispec_course.interview.schedule import Schedule
from minispec_course.interview.terminal import Console

ROOT = Path(__file__).resolve().parents[2]
BANK = load()
TALK = "I would keep a count for every block, and a table for every request."


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(exam, "FOLDER", tmp_path / "exams")
    monkeypatch.setattr(debrief, "FOLDER", tmp_path / "exams")
    monkeypatch.setattr(mock_interview, "_held", {})
    yield
    for lock in mock_interview._held.values():
        lock.release()


def interview(level="L5", format="concept", seed=0) -> Interview:
    return Interview(BANK, level, format, seed, lambda: 0.0)


def turns(script, *texts: str) -> list:
    """The turns of a script, answered with these texts and then with silence."""
    found, replies = [next(script)], list(texts)
    while True:
        reply = Reply(replies.pop(0)) if replies and found[-1].expects != GRADES else Reply()
        try:
            found.append(script.send(reply))
        except StopIteration:
            return found


# ---------------------------------------------------------------- what is a question, what an answer


@pytest.mark.parametrize(
    "text",
    [
        "may I assume batch 1?",
        "sorry, which q?",
        "What is the traffic? Which GPUs? And is user data allowed?",
        "Two scoping questions first: what model and hardware are we on, is the objective latency or cost; and what load?",
        "Before I begin: how many requests per second, and what target? I would assume 100.",
    ],
)
def test_a_question_back_is_one(text):
    assert asks_back(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.77/4, so 44%",
        "It reads all weights.",
        "It is memory bound?",
        "Does it hold? No, p changes.",
        "Why does it help? " + "Because it reads less. " * 4,
    ],
)
def test_an_answer_is_no_question_back(text):
    assert not asks_back(text)


def test_no_model_answer_is_taken_for_a_question_or_for_silence():
    texts = [text for question in BANK.values() for text in question.answers()]
    assert not [text for text in texts if asks_back(text) or gives_up(text)]


def check_a_question_back_leaves_the_question_open() -> None:
    question = BANK["expected-tokens"]
    asked, again, *rest = turns(talk(question, "L5"), "may I assume independence?", question.spoken)
    assert asked.says == question.question and again.kind == "answer" and again.expects == WORDS
    assert again.says.startswith("You may.") and again.says.endswith(question.question)
    assert "probe" not in [turn.kind for turn in rest[:1]]


def test_a_question_back_leaves_the_question_open():
    check_a_question_back_leaves_the_question_open()


def test_not_every_question_is_answered_for_ever():
    found = turns(talk(BANK["expected-tokens"], "L4"), *["what do you mean?"] * 20)
    assert [turn.kind for turn in found][:6] == ["ask", "answer", "answer", "answer", "probe", "answer"]
    assert found[-1].kind == "grade"


def test_scoping_is_answered_with_facts_and_credited():
    question = BANK["design-8b-node"]
    asks = "What latency target do we have? How many requests at a time?"
    _, told, *rest = turns(talk(question, "L6"), asks, "I assume two cards.")
    assert "300 ms" in told.says and "at most 64 at a time" in told.says and "KV heads" not in told.says
    [grade] = [turn for turn in rest if turn.kind == "grade"]
    assert rounds.SCOPE in grade.boxes and asks in grade.heard
    assert "assume" in answer_to("Which tenant is the largest?", question.case.requirements)
    for question in BANK.values():
        *_, grade = turns(talk(question, "L4"))
        assert (rounds.SCOPE in grade.boxes) == (question.case is not None)  # where it was asked


def test_a_question_back_is_no_shrug():
    held = interview(seed=3)
    held.do("begin")
    held.do("say", text="may I assume batch 1?")
    assert Debrief(held, "concept").counts()["communication"] == (0, 0)


# ---------------------------------------------------------------- reactions


def test_a_probe_fits_its_question():
    assert set(PROBES) == {question.kind for question in BANK.values()}
    for question in BANK.values():
        for answer in (
            "",
            "It reads all weights.",
            "I had a long breakfast and the weather was rather nice, I think, today.",
        ):
            probe = probing(question, "L6", answer)
            assert any(probe.endswith(text) for text in PROBES[question.kind]) and "not do it" not in probe
    formula = "(1-α^(k+1))/(1-α), which goes to 1/(1-α) for large k"
    assert probing(BANK["expected-tokens"], "L5", formula) == "How do you get there?"
    assert probing(BANK["expected-tokens"], "L5", "I don't know, sorry").startswith("Take your time.")


@pytest.mark.slow
def test_a_probe_names_what_it_is_about():
    question = BANK["expected-tokens"]
    quoted = [probing(q, "L6", ". ".join(q.L4) + ". 3 GB.") for q in BANK.values()]
    quoted = [probe for probe in quoted if probe.startswith("You said: “")]
    assert len(quoted) > 20 and all(re.search(r"[^.…:]”\. |…”\. ", probe) for probe in quoted)
    assert "…" not in reactions.shortened("One two.", 20) and reactions.shortened(question.spoken).endswith(" …")


def check_a_follow_up_that_was_answered_is_not_asked() -> None:
    for id in ("drop-unlikely-drafts", "expected-tokens"):
        question = BANK[id]
        first, second = question.follow_ups[:2]
        found = [turn.says for turn in turns(talk(question, "L5"), f"{question.spoken} {first.short}")]
        assert first.question not in found and second.question in found


def test_a_follow_up_that_was_answered_is_not_asked():
    check_a_follow_up_that_was_answered_is_not_asked()


def test_an_objection_that_was_met_is_introduced():
    question = BANK["drop-unlikely-drafts"]
    everything = " ".join([question.spoken, *(push_back.reply for push_back in question.push_backs)])
    pushed = [turn.says for turn in turns(talk(question, "L5"), everything) if turn.kind == "push-back"]
    assert len(pushed) == 2 and all(says.startswith("You have touched on this") for says in pushed)


def check_nothing_is_presupposed_after_i_do_not_know() -> None:
    question = BANK["adaptive-length"]
    found = turns(talk(question, "L5"), *["I don't know, sorry."] * 9)
    pushed = [turn.says for turn in found if turn.kind == "push-back"]
    assert len(pushed) == 1 and pushed[0].startswith("Suppose a colleague") and "oscillates" in pushed[0]
    answered = [turn.says for turn in turns(talk(question, "L5"), question.spoken) if turn.kind == "push-back"]
    assert answered == [push_back.says for push_back in question.push_backs[:2]]


def test_nothing_is_presupposed_after_i_do_not_know():
    check_nothing_is_presupposed_after_i_do_not_know()


def test_no_objection_speaks_of_what_the_candidate_may_not_have_said():
    said = [
        push_back.says
        for question in BANK.values()
        if question.kind != "behavioural" and not question.case
        for push_back in question.push_backs
    ]
    words = re.compile(r"\b(?:you (?:said|predicted|multiplied|quantised)|still say|your (?!mind|opinion)\w+)", re.I)
    assert not [text for text in said if words.search(text)]


def check_a_value_that_is_off_is_gone_through() -> None:
    question = BANK["moe-verification"]
    follow_up = question.follow_ups[0]
    for value, asked in (("76 %", False), ("0.76", False), ("55 %", True)):
        found = turns(
            talk(question, "L4"), question.spoken + " " + ". ".join(question.L5), f"I get {value} of the experts."
        )
        place = [turn.says for turn in found].index(follow_up.question)
        assert (found[place + 1].kind == "check") == asked, value
    assert found[place + 1].says == "Take me through the 55%: what do you put in?"


def test_a_value_that_is_off_is_gone_through():
    check_a_value_that_is_off_is_gone_through()


def check_only_a_result_is_gone_through() -> None:
    """A number on the way, in a range, in a condition or of another kind is none; what was asked for and is off is."""
    question = BANK["cost-per-million"]
    follow_up = question.follow_ups[0]
    for reply, asked in (
        ("The ridge is 790 over 4.2, about 188; in practice it bends from about 100 to 128.", ""),
        ("It bends from about 100 to 128, and I would measure where.", ""),
        ("With 100 requests I look again.", ""),
        ("It is limited by the cache, for 100 reasons, because 120 are too many.", ""),
        ("So 120 ms per step.", ""),
        ("Our 120 nodes do this daily.", ""),
        ("I get about 120.", "120"),
        ("That makes 90 requests.", "90"),
    ):
        says = reactions.doubt(question, reply, [(188.0, "tokens")], follow_up.question)
        assert (f"through the {asked}" in says) if asked else says == "", (reply, says)


def test_only_a_result_is_gone_through():
    check_only_a_result_is_gone_through()


def check_two_questions_in_one_line_are_both_answered() -> None:
    line = (
        "Two scoping questions first: on which hardware are we, and do we mind more how it feels or what it brings "
        "us in the end; and what does a request cost us today?"
    )
    facts = BANK["design-8b-node"].case.requirements
    told = turns(talk(BANK["design-8b-node"], "L6"), line)[1].says
    assert facts[0] in told and "Not known: the traffic, the objective." not in told and "the objective" in told
    small = next(question for question in BANK.values() if question.kind == "design" and not question.case)
    told = turns(talk(small, "L6"), line)[1]
    assert told.kind == "answer" and "Not known: the hardware, the traffic, the objective." in told.says
    concept = turns(talk(BANK["expected-tokens"], "L6"), "Is that for the target only, or for the output, too?")[1]
    assert concept.says.startswith("You decide")  # no setting to speak of


def test_two_questions_in_one_line_are_both_answered():
    check_two_questions_in_one_line_are_both_answered()


def check_a_question_at_the_end_of_an_answer_is_answered() -> None:
    held = interview(seed=next(seed for seed in range(50) if kv_derivation(seed)))
    while not held.turn.model:
        held.do("begin" if held.turn.expects == NOTHING else "skip")
    held.do(
        "say",
        text="I begin with the bytes that one token keeps in every layer, keys and values, and multiply. "
        "Which card is it, how much memory does it have?",
    )
    assert held.turn.expects == NUMBER and held.turn.says.startswith("To your question: ") and "80 GB" in held.turn.says
    case = BANK["design-8b-node"]
    found = turns(talk(case, "L6"), f"{case.spoken} What latency do we promise?", "Fine.")
    assert found[1].says.startswith("To your question: ") and "300 ms" in found[1].says
    assert not found[2].says.startswith("To your question")


def kv_derivation(seed: int) -> bool:
    held = interview(seed=seed)
    while not held.turn.model:
        held.do("begin" if held.turn.expects == NOTHING else "skip")
    return "on a card with 80 GB" in held.turn.says


def test_a_question_at_the_end_of_an_answer_is_answered():
    check_a_question_at_the_end_of_an_answer_is_answered()


def test_a_price_that_is_off_is_gone_through():
    question = BANK["cost-per-million"]
    good = ". ".join(point for _, point in question.points)
    right, wrong = (turns(talk(question, "L6"), f"{good}. It is {price} dollars.")[1] for price in ("2.12", "3.50"))
    assert right.kind != "check" and wrong.says == "Take me through the 3.5: what do you put in?"


def test_what_a_good_answer_says_is_rarely_doubted():
    """Words cannot tell a mistake from the warning against it, so the reaction asks and does not judge."""
    doubted, texts = 0, 0
    for question in BANK.values():
        numeric = question.kind in ("estimation", "derivation")
        wanted = [(number.computed, number.unit.lower()) for number in question.numbers] if numeric else []
        pairs = [(question.spoken, wanted, "")]
        pairs += [(f.short, numbers(f.short), f.question) for f in question.follow_ups]
        for text, values, asked in pairs:
            texts += 1
            found = reactions.doubt(question, text, values, f"{question.question} {asked}")
            assert "Take me through" not in found, (question.id, found)
            doubted += bool(found)
    assert doubted < 0.08 * texts


# ---------------------------------------------------------------- closing, derivation, pause


def until(held: Interview, kind: str) -> Interview:
    while held.turn.kind != kind:
        held.do("begin" if held.turn.expects == NOTHING else "skip")
    return held


def test_the_end_says_why_and_the_candidates_question_is_kept():
    held = until(interview(), "close")
    assert held.turn.says.startswith("That was my last question") and "time" not in held.turn.says
    held.do("say", text="How do you measure goodput?")
    assert held.turn.kind == "close" and held.turn.expects == NOTHING and "debrief" in held.turn.says
    held.do("begin")
    assert held.ended and "“How do you measure goodput?”" in report(held).split("### Your questions")[1]
    late = interview()
    late.do("begin")
    late._now = lambda: 46 * 60.0
    assert until(late, "close").turn.says.startswith("Our time is up")
    check_no_question_is_kept_as_one()
    quiet = until(interview(), "close")
    quiet.do("skip")
    assert quiet.ended


def check_no_question_is_kept_as_one() -> None:
    for text in ("Nothing, thank you.", "No questions.", "That’s all, thanks", "no", "I'm fine."):
        held = until(interview(), "close")
        held.do("say", text=text)
        assert held.ended and "Your questions" not in report(held), text
    held = until(interview(), "close")
    held.do("say", text="No, but how do you release?")
    assert not held.ended and "how do you release?" in report(held)


def test_how_a_derivation_was_begun_is_in_the_debrief():
    held = interview(seed=3)
    while not held.turn.model:
        held.do("begin" if held.turn.expects == NOTHING else "skip")
    model, mine = held.turn.model, "I would split it into two cases, and add their probabilities."
    held.do("say", text=mine)
    assert held.turn.expects == NUMBER and model in held.turn.says and held.turn.says.startswith("I would begin so.")
    shown = report(held).split("### How you began")[1]
    assert mine in shown and model in shown
    again = interview(seed=3)
    while not again.turn.model:
        again.do("begin" if again.turn.expects == NOTHING else "skip")
    again.do("say", text=again.turn.model)
    assert again.turn.says.startswith("That is how I would begin, too.")


def test_a_derivation_asks_for_what_it_shows():
    assert "the first token of a cycle with one draft token is a" in losslessness(random.Random(0)).given


def test_after_a_pause_the_question_is_asked_again(tmp_path):
    held = interview(seed=3)
    script = Script("", "p", "", "q")
    mock_terminal.hold(held, script.console, None, tmp_path / "debrief.md")
    first = next(turn for _, turn, *_ in held.transcript if turn.kind == "open")
    question = BANK[first_question(3)].question
    assert first and script.words.count(" ".join(question.split())) == 2


def first_question(seed: int) -> str:
    held = interview(seed=seed)
    held.do("begin")
    return held.turn.question


# ---------------------------------------------------------------- code


def coding_round(monkeypatch, outcome="right") -> tuple[Interview, list]:
    """At its task; checks are counted and not run."""
    ran = []
    monkeypatch.setattr(mock_terminal, "check_file", lambda file, id: ran.append(file) or (outcome, f"{id}: {outcome}"))
    return interview(format="coding", seed=1), ran


def fill_in(file: Path) -> None:
    kept = json.loads(file.read_text(encoding="utf-8"))
    for cell in kept["cells"]:
        if cell["metadata"].get("minispec", {}).get("role") == "answer":
            cell["source"] = "".join(cell["source"]).replace("raise NotImplementedError", "return None  #")
    file.write_text(json.dumps(kept), encoding="utf-8")


class Typing(Script):
    """Replies may be functions, which are called before the next one."""

    def read(self, prompt: str) -> str:
        while self.replies and callable(self.replies[0]):
            self.replies.pop(0)()
        return super().read(prompt)


def check_talk_submits_nothing(monkeypatch, tmp_path) -> None:
    held, ran = coding_round(monkeypatch)
    script = Script("", TALK, "Which block is taken first?", "Now I type it, I think I am done soon", "q")
    mock_terminal.hold(held, script.console, None, tmp_path / "debrief.md", tmp_path)
    assert not ran and "All right, go on." in script.words and "you decide" in script.words
    assert f"“{TALK}”" in report(held).split("### Said while you wrote the code")[1]
    assert [turn.expects for _, turn, *_ in held.transcript] == [NOTHING] + [CODE] * 3 and not Debrief(
        held, "coding"
    ).code
    assert len(list(tmp_path.glob("mock-*.ipynb"))) == 1


def test_talk_submits_nothing(monkeypatch, tmp_path):
    check_talk_submits_nothing(monkeypatch, tmp_path)


@pytest.mark.parametrize("word", ["", "done", "Done"])
def test_an_empty_line_or_done_submits(monkeypatch, tmp_path, word):
    held, ran = coding_round(monkeypatch)
    script = Typing("", TALK, lambda: fill_in(Path(held.notebook)), word, "q")
    mock_terminal.hold(held, script.console, None, tmp_path / "debrief.md", tmp_path)
    assert ran == [Path(held.notebook)] and Debrief(held, "coding").code[0][1].outcome == "right"


def check_an_untouched_notebook_is_asked_about(monkeypatch, tmp_path) -> None:
    held, ran = coding_round(monkeypatch, "not attempted")
    script = Script("", "", "no, wait", "done", "yes", "I would keep counts.", "q")
    mock_terminal.hold(held, script.console, None, tmp_path / "debrief.md", tmp_path)
    asked = [turn.kind for _, turn, *_ in held.transcript]
    assert asked[:6] == ["open", "code", UNTOUCHED, "aloud", UNTOUCHED, "probe"] and len(ran) == 1
    assert "Nothing is filled in yet; submit anyway?" in script.words and "not all tests" not in script.words.lower()
    assert "Then without code" in script.words and "no, wait" not in report(held)


def test_an_untouched_notebook_is_asked_about(monkeypatch, tmp_path):
    check_an_untouched_notebook_is_asked_about(monkeypatch, tmp_path)


def test_the_task_is_shown_with_its_signature_and_an_example(monkeypatch, tmp_path):
    for id in coding.TASKS:
        task = coding.task_of(id)
        name = id.partition(".")[2]
        assert f"def {name}(" in task and '"""' in task and "For example, with" in task and "SOLUTION" not in task
        file = coding.write_notebook(id, 0, tmp_path / name)
        assert coding.is_untouched(file, id)
        fill_in(file)
        assert not coding.is_untouched(file, id)
    held, _ = coding_round(monkeypatch)
    script = Script("", "q")
    mock_terminal.hold(held, script.console, None, tmp_path / "debrief.md", tmp_path)
    assert "def " in script.text and "it returns" in script.text and max(map(len, script.lines)) <= 80


def test_no_hint_is_spoken_of_that_cannot_be_had(monkeypatch, tmp_path):
    said = 'x: not attempted yet. Stuck? hint("17.kv_size")'
    monkeypatch.setattr(terminal, "check_notebook", lambda file: [terminal.Result("17.kv_size", "not attempted", said)])
    assert coding.check_file(tmp_path / "a.ipynb", "17.kv_size") == ("not attempted", "x: not attempted yet.")


def test_a_notebook_that_is_gone_is_said(tmp_path):
    assert coding.check_file(tmp_path / "gone.ipynb", "17.kv_size")[0] == "wrong"
    assert not coding.is_untouched(tmp_path / "gone.ipynb", "17.kv_size")


def test_at_the_desk_talk_submits_nothing_either(tmp_path):
    desk = mock(format="coding", seed=1)
    for content in ({"do": "start"}, {"do": "begin"}, {"do": "say", "text": TALK}):
        desk.act(content)
    assert desk.view["expects"] == CODE and desk.view["says"].startswith("All right, go on.")
    notebook = desk.notebook
    desk.act({"do": "check"})
    assert desk.view["kind"] == UNTOUCHED and desk.view["says"].startswith("Nothing is filled in yet; submit anyway?")
    desk.act({"do": "say", "text": "no, wait"})
    assert desk.view["kind"] == "aloud" and desk.notebook == notebook
    again = mock()
    again.act({"do": "resume"})
    assert again.notebook == notebook and again.view["kind"] == "aloud"  # the same file, with what was typed there


def test_a_closed_window_does_not_lose_the_notebook(monkeypatch, tmp_path):
    class Closed(BaseException):
        pass

    held, _ = coding_round(monkeypatch)
    with pytest.raises(Closed):
        mock_terminal.hold(held, Script("", Closed()).console, None, None, tmp_path)
    assert resume(BANK).notebook == held.notebook == str(tmp_path / "mock-1.ipynb")
    desk = mock(format="coding", seed=1)
    for content in ({"do": "start"}, {"do": "begin"}):
        desk.act(content)
    again = mock()
    again.act({"do": "resume"})
    assert again.notebook == desk.notebook


# ---------------------------------------------------------------- interrupted, and resumed


def check_ctrl_c_interrupts(tmp_path) -> None:
    """No verdict, nothing overwritten, and the next --resume goes on, clock and all, to the same file."""
    out = tmp_path / "debrief.md"
    out.write_text("an older one")
    held = interview("L6", seed=63)
    script = Script("", "Keys and values are kept.", KeyboardInterrupt())
    assert mock_terminal.hold(held, script.console, None, out) == 130
    assert "Interrupted; `minispec mock --resume` goes on." in script.words and "hire" not in script.words.lower()
    assert out.read_text() == "an older one" and not held.ended
    again = resume(BANK)
    assert again.turn == held.turn and again.out == str(out)
    more = Script("q")
    mock_terminal.hold(again, more.console, None, None)
    assert "This is the L6 concept interview with seed 63, begun on " in more.words
    assert out.read_text().startswith("# Debrief") and not (tmp_path / "exams").exists()
    assert unfinished(BANK) is None


def test_ctrl_c_interrupts(tmp_path):
    check_ctrl_c_interrupts(tmp_path)


def test_where_nothing_is_kept_ctrl_c_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    script = Script("", KeyboardInterrupt())
    assert mock_terminal.hold(interview(), script.console, None, tmp_path / "debrief.md") == 130
    assert "nothing is kept here" in script.words


OPEN = """
import sys
from minispec_course.interview import load
from minispec_course.interview.mock_interview import Interview, keep
held = Interview(load(), "L4", "coding", 42)
held.do("begin")
keep(held)
print("open", flush=True)
sys.stdin.readline()
"""


def check_a_live_session_is_refused() -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", OPEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(ValueError, match=r"L4 coding interview with seed 42, begun on .* is still open elsewhere"):
            resume(BANK)
        assert not mock().view["resumable"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mock_interview, "SLOTS", 1)
            assert not keep(interview())  # rather not at all than over it
        mine = interview("L6", seed=7)
        mine.do("begin")
        keep(mine)  # beside it
        assert resume(BANK).seed == 7 and len([file for file in slots() if file.exists()]) == 2
    finally:
        other.communicate("\n")
    mine.do("end")
    keep(mine)
    assert resume(BANK).seed == 42  # it was closed


@pytest.mark.slow
def test_a_live_session_is_refused():
    check_a_live_session_is_refused()


def test_the_latest_is_resumed_and_only_so_many_are_kept(tmp_path):
    for seed in range(8):
        held = interview(seed=seed)
        held.do("begin")
        keep(held)
        os.utime(held.file, (seed + 1, seed + 1))
        mock_interview.let_go(held)
    assert len([file for file in slots() if file.exists()]) == mock_interview.SLOTS
    assert resume(BANK).seed == 7


def test_an_interview_that_is_over_leaves_the_others_alone():
    over, other = interview(seed=1), interview(seed=2)
    for held in (over, other):
        held.do("begin")
    keep(over)
    over.do("end")
    keep(over)
    keep(other)  # takes the same slot
    keep(over)
    mock_interview.let_go(other)
    assert resume(BANK).seed == 2


def test_resume_says_when_there_is_nothing(tmp_path, capsys):
    assert main(["mock", "--resume"]) == 2
    assert "no interview was interrupted" in capsys.readouterr().err


# ---------------------------------------------------------------- 80 by 40


class Watching(Script):
    def __init__(self, *replies):
        super().__init__(*replies)
        self.screens, self.seen = [], 0

    def read(self, prompt: str) -> str:
        self.screens.append(self.lines[self.seen :])
        self.seen = len(self.lines)
        return super().read(prompt)


def long_interview(level: str, seed: int, height: int) -> Watching:
    """Every answer is all that the rubric wants to hear, so that everything is suggested."""
    script = Watching(*[""] * 400)
    held = interview(level, seed=seed)
    script.console.height = height
    answers = {q.id: ". ".join(point for _, point in q.points) for q in BANK.values()}

    def read(prompt: str) -> str:
        Watching.read(script, prompt)
        turn = held.turn
        if turn is not None and turn.expects == WORDS and turn.question in answers:
            return answers[turn.question]
        return "?" if turn is not None and turn.expects == GRADES else ""

    script.console._read = read
    mock_terminal.hold(held, script.console, Schedule(None), None)
    return script


def check_no_screen_is_longer_than_the_terminal() -> None:
    for level, seed in (("L4", 41), ("L6", 61)):
        script = long_interview(level, seed, 40)
        assert max(map(len, script.lines)) <= 80
        assert max(map(len, script.screens)) < 40, max(script.screens, key=len)
        assert "2 of " in script.text and "Enter for more" in script.text and "kept as" in script.text


@pytest.mark.slow
def test_no_screen_is_longer_than_the_terminal():
    check_no_screen_is_longer_than_the_terminal()


def test_ticks_of_all_screens_count_and_a_question_mark_is_for_its_own(tmp_path):
    held = interview("L6", seed=61)
    held.do("begin")
    question = BANK[held.turn.question]
    while held.turn.expects != GRADES:
        held.do("say", text=". ".join(point for _, point in question.points))
    boxes = held.turn.boxes
    script = Script("?", "", KeyboardInterrupt())
    script.console.height = 40
    mock_terminal.hold(held, script.console, None, tmp_path / "a.md")
    assert held.turn is not None and held.turn.expects == GRADES
    script = Script("?", *[""] * 9)
    script.console.height = 40
    try:
        mock_terminal._grade(script.console, held, None)
    except mock_terminal.Quit:
        pytest.fail("more screens than replies")
    ticks = held.transcript[-1][2].ticks
    assert ticks and max(ticks) < len(boxes) - 1 and min(ticks) == 0


@pytest.mark.slow
def test_a_point_stands_apart_from_its_number_and_no_word_is_broken(tmp_path):
    lines = []
    console = Console(lambda prompt: "", lines.append)
    console.say("x " * 35 + "copy-on-write")
    assert any("copy-on-write" in line for line in lines)
    script = long_interview("L4", 41, 0)
    assert re.search(r"^ +\d+\? \w", script.text, re.M) and not re.search(r"\d\?\w", script.text)
    assert "….:" not in script.text and "….”" not in script.text


# ---------------------------------------------------------------- what the bank says


def test_a_symbol_is_introduced_before_it_is_used():
    """v is the verify cost; whoever asks says so, and so does an answer that uses it."""
    used = re.compile(r"(?<![\w.′}])v(?=[\s,.;:)(]|$)")
    defined = re.compile(r"verif\w*[^.;]*\bv\b|\bv\b[^.;]*(?:verif|t_verify)|k \+ 1[^.;]*\bv\b")
    for question in BANK.values():
        asked = [question.question, *(f.question for f in question.follow_ups), *(p.says for p in question.push_backs)]
        assert not [text for text in asked if used.search(text) and not defined.search(text)], question.id
        if not defined.search(question.spoken):
            assert not [text for text in question.answers() if used.search(text) and not defined.search(text)], (
                question.id
            )


def test_no_answer_speaks_of_what_we_measured():
    texts = [text for question in BANK.values() if question.kind != "behavioural" for text in question.answers()]
    assert not [text for text in texts if re.search(r"\bwe measured|\bour measurements?\b(?! and)", text)]


def test_a_change_says_of_what():
    says = BANK["rollout"].push_backs[0].says
    assert "time per token" in says and not re.search(
        r"\b(?:plus|minus) \d",
        " ".join(push_back.says for question in BANK.values() for push_back in question.push_backs),
    )


def test_dropping_unlikely_drafts_is_biased_and_its_repair_is_not():
    """p = q = (0.9, 0.1), the second token dropped: 0.99 as the answer says; with the renormalised q, p again."""
    p = torch.tensor([0.9, 0.1], dtype=torch.float64)

    def first(q_of_the_rule, random) -> tuple[int]:
        if not random() < 0.9:  # the draft token was the second one: dropped, and sampled from the target
            return (0,) if random() < 0.9 else (1,)
        if random() < float(verify.accept_probability(p, q_of_the_rule, 0)):
            return (0,)
        rest = verify.residual(p, q_of_the_rule)
        return (0,) if random() < float(rest[0]) else (1,)

    biased = exact.exact_distribution(lambda random: first(p, random))
    repaired = exact.exact_distribution(lambda random: first(torch.tensor([1.0, 0.0], dtype=torch.float64), random))
    [number] = BANK["drop-unlikely-drafts"].numbers
    assert biased[(0,)] == pytest.approx(number.computed) == 0.99 and repaired[(0,)] == pytest.approx(0.9)


def test_what_speculation_does_to_the_cost_follows_from_the_roofline():
    def gain(batch: int, k: int) -> float:
        return theory.speedup(0.7, k, 0.05, v=theory.verify_cost(theory.H200, 8e9, k=k, batch=batch))

    assert max(gain(64, k) for k in (1, 2, 3, 4)) == gain(64, 2) > 1.9 and gain(188, 1) < 1
    reply = BANK["cost-per-million"].push_backs[1].reply
    assert "1.95 ×" in reply and "0.83 ×" in reply and "hardly" not in reply


# What each check is for: with this piece of the code changed, it fails.
SUBMITS = "reply.lower() not in (YES if turn.kind == UNTOUCHED else DONE)"
MUTANTS = {
    "a typed line submits": (mock_terminal, "_code", SUBMITS, "False", check_talk_submits_nothing),
    "an untouched notebook is run": (
        mock_terminal,
        "_code",
        "is_untouched(file, turn.exercise)",
        "False",
        check_an_untouched_notebook_is_asked_about,
    ),
    "Ctrl-C gives a verdict": (mock_terminal, "hold", "return 130", "interrupted = 130", check_ctrl_c_interrupts),
    "Ctrl-C forgets where the debrief goes": (
        Interview,
        "to_json",
        '"begun", "out", "notebook"',
        '"begun"',
        check_ctrl_c_interrupts,
    ),
    "a live session is opened": (
        mock_interview,
        "claim",
        "return False",
        "return True",
        check_a_live_session_is_refused,
    ),
    "a new one takes the slot of a live one": (
        mock_interview,
        "_free_slot",
        "and claim(file)",
        "",
        check_a_live_session_is_refused,
    ),
    "a question back is an answer": (
        rounds,
        "put",
        "not asks_back(replies[-1].text)",
        "True",
        check_a_question_back_leaves_the_question_open,
    ),
    "a follow-up is asked again": (
        rounds.Conversation,
        "follow_up",
        "find(follow_up.short, self.answer).suggested",
        "False",
        check_a_follow_up_that_was_answered_is_not_asked,
    ),
    "an objection presupposes": (
        rounds.Conversation,
        "push_back",
        "if self.lost:",
        "if False:",
        check_nothing_is_presupposed_after_i_do_not_know,
    ),
    "a value passes": (reactions, "doubt", "if strange and", "if False and", check_a_value_that_is_off_is_gone_through),
    "any number is a result": (reactions, "_results", "value.concludes and", "", check_only_a_result_is_gone_through),
    "a right number beside it is not heard": (
        reactions,
        "doubt",
        "for other in said",
        "for other in ()",
        check_only_a_result_is_gone_through,
    ),
    "a semicolon ends a question": (
        reactions,
        "_said",
        "[.!?]",
        "[.!?;]",
        check_two_questions_in_one_line_are_both_answered,
    ),
    "what is not known is not named": (
        reactions,
        "answer_to",
        "scoping and",
        "False and",
        check_two_questions_in_one_line_are_both_answered,
    ),
    "a question at the end is ignored": (
        reactions,
        "answer_at_the_end",
        "asks_back(text) or",
        "True or",
        check_a_question_at_the_end_of_an_answer_is_answered,
    ),
    "thanks are a question": (
        reactions,
        "has_question",
        "not NO_QUESTION.search(plain)",
        "True",
        check_no_question_is_kept_as_one,
    ),
    "a rubric runs off the screen": (
        Console,
        "screens",
        "if self.height and",
        "if False and",
        check_no_screen_is_longer_than_the_terminal,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_checks_see_what_they_are_for(name, monkeypatch, tmp_path):
    owner, function, old, new, check = MUTANTS[name]
    rewrite(monkeypatch, owner, function, old, new)
    for module in (rounds, mock_interview):
        if owner is reactions and hasattr(module, function):
            monkeypatch.setattr(module, function, getattr(reactions, function))
    wanted = {"monkeypatch": monkeypatch, "tmp_path": tmp_path}
    given = {name: wanted[name] for name in check.__code__.co_varnames[: check.__code__.co_argcount]}
    with pytest.raises((AssertionError, ValueError, KeyError, pytest.fail.Exception)):
        check(**given)
