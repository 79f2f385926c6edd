"""Functions that a learner writes inside a lesson: the lesson goes on whatever they are, and right ones are kept."""

from __future__ import annotations

import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from minispec_course.build import builder
from minispec_course.build.cells import REGION, YOURS, solution
from minispec_course.check import mine, progress, reference, yours
from minispec_course.exercises.exercise import find

ID = "05.greedy_verify"
FIRST = 0


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


def choices(logits):
    return logits.argmax(-1).tolist()


def right(logits, drafted):
    best, accepted = choices(logits), FIRST
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return accepted, best[accepted]


def test_what_is_not_written_is_ours_and_no_attempt(capsys):
    def dots(logits, drafted):
        """Only a docstring."""
        ...

    def stub(logits, drafted):
        raise NotImplementedError

    for empty in (dots, stub):
        assert yours(ID)(empty) is reference(ID)
        assert len(capsys.readouterr().out.splitlines()) == 1
    assert progress.read() == {}


def test_what_is_wrong_is_diagnosed_and_ours_goes_on(capsys, monkeypatch):
    monkeypatch.setattr(find(ID), "seconds", 0.2)

    def endless(logits, drafted):
        while True:
            pass

    def leaves(logits, drafted):
        raise SystemExit

    for mutant in [*find(ID).mutants.values()]:
        assert yours(ID)(mutant.function) is reference(ID)
        assert mutant.diagnosis[:40] in capsys.readouterr().out
    for broken in (endless, leaves):
        assert yours(ID)(broken) is reference(ID)
    assert not progress.read()[ID]["solved"] and mine(ID) is reference(ID)


def test_what_is_right_is_theirs_in_a_later_process_with_what_it_uses(file):
    assert yours(ID)(right) is right and progress.read()[ID]["solved"]
    yours(ID)(find(ID).mutants["one_row_late"].function)  # a later mistake takes nothing away
    program = f"""import torch; from minispec_course.check import mine
verify = mine("{ID}")
print(verify.__name__, verify(torch.eye(3), [0, 2]))"""
    later = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert later.stdout.split("\n")[0] == "right (1, 1)"


def test_it_may_call_itself():
    @yours(ID)
    def again(logits, drafted):
        if not drafted or drafted[0] != int(logits[0].argmax()):
            return 0, int(logits[0].argmax())
        accepted, token = globals()["again"](logits[1:], drafted[1:])  # a global, as in a notebook
        return accepted + 1, token

    assert again is not reference(ID)


def test_what_cannot_be_kept_is_theirs_here_and_ours_later(capsys):
    notebook = {"verdicts": object(), "right": right, "__name__": __name__}
    exec("def bound(logits, drafted):\n    verdicts\n    return right(logits, drafted)", notebook)
    assert yours(ID)(notebook["bound"]) is notebook["bound"]  # its source is nowhere
    assert mine(ID) is reference(ID) and "later lessons on ours" in capsys.readouterr().out


# ---- lesson 05 -------------------------------------------------------------------------------------------------------


def run_lesson(folder, answers: dict[str, str]) -> tuple[dict[str, str], str]:
    """Lesson 05 with these cells in place of its own: what they print, and what all other cells print."""
    [job] = [job for job in builder.jobs(["05_draft_and_verify"]) if job.kind == "lesson"]
    notebook = builder.compose(job)
    functions = {found[1]: cell for cell in builder.code_cells(notebook) if (found := YOURS.search(cell.source))}
    for id, source in answers.items():
        functions[id].source = source
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    printed = {cell.id: "".join(o.get("text", "") for o in cell.outputs) for cell in builder.code_cells(notebook)}
    said = {id: printed.pop(cell.id) for id, cell in functions.items()}
    return said, "".join(printed.values())


def answers() -> dict[str, str]:
    [job] = [job for job in builder.jobs(["05_draft_and_verify"]) if job.kind == "lesson"]
    cells = builder.jupytext.reads(job.source.read_text(encoding="utf-8"), fmt="py:percent").cells
    return {YOURS.search(c.source)[1]: solution(c.source) for c in cells if REGION.search(c.source)}


def test_lesson_05_runs_on_the_learners_functions_and_says_where_they_are_wrong(tmp_path, file):
    said, plain = run_lesson(tmp_path, {})
    assert all("not written yet" in text for text in said.values()) and progress.read() == {}

    right = answers()
    said, printed = run_lesson(tmp_path, right)
    assert said.keys() == right.keys() and all(text.startswith("✓") for text in said.values())
    assert printed == plain and all(progress.read()[id]["source"] for id in right)
    assert mine("05.loop").__globals__["greedy_verify"].exercise == "05.greedy_verify"  # theirs runs on theirs

    file.unlink()
    wrong = {
        "05.greedy_verify": right["05.greedy_verify"].replace("return accepted,", "return len(drafted),"),
        "05.rewind": right["05.rewind"].replace("min(right, draft_processed)", "right"),
        "05.loop": right["05.loop"].replace("        target.rewind(target_length)\n", ""),
    }
    said, printed = run_lesson(tmp_path, wrong)
    assert all(f"{id}: wrong" in text and "smallest case" in text for id, text in said.items())
    assert printed == plain and not any(entry["solved"] for entry in progress.read().values())


def test_the_stored_lesson_has_stubs_and_folded_answers():
    notebook = nbformat.read(builder.ROOT / "notebooks/05_draft_and_verify.ipynb", as_version=4)
    for id, answer in answers().items():
        [at] = [i for i, cell in enumerate(notebook.cells) if cell.source.startswith(f'@yours("{id}")')]
        stub, folded = notebook.cells[at : at + 2]
        assert stub.source.endswith("    ...") and folded.source.startswith("<details>") and answer in folded.source
