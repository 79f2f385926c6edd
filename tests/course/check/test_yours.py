"""Functions that a learner writes inside a lesson: the lesson goes on whatever they are, and right ones are kept."""

from __future__ import annotations

import dis
import io
import linecache
import re
import subprocess
import sys
from contextlib import redirect_stdout
from random import Random
from types import CodeType

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from minispec_course.build import builder
from minispec_course.build.cells import YOURS, in_lessons, own_metadata, solution
from minispec_course.check import mine, progress, reference, yours
from minispec_course.check.check import RIGHT, tried
from minispec_course.exercises.exercise import find

ID = "05.greedy_verify"
FIRST = 0


@pytest.fixture(autouse=True)
def gradients_as_before():
    """A lesson may switch them off, in its own kernel: here it is this process."""
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        yield


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


def choices(logits):
    return logits.argmax(-1).tolist()


agree = lambda drafted, best: drafted == best  # noqa: E731


def right(logits, drafted):
    best, accepted = choices(logits), FIRST
    while accepted < len(drafted) and agree(drafted[accepted], best[accepted]):
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
    assert yours(ID)(lambda logits, drafted: None).__name__ == "right"  # nor does a fresh notebook
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


# ---- every lesson ----------------------------------------------------------------------------------------------------

ASKED = in_lessons(builder.ROOT / "minispec_course/lessons")  # id → the lesson, and its cell there
LESSONS = sorted({lesson for lesson, *_ in ASKED.values()})


def globals_of(code: CodeType) -> set[str]:
    """The names that a program takes from around it."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*map(globals_of, inner))


def cells_for_functions(lesson: str) -> list[str]:
    """Of the lesson's code, the cells with its functions, answered, and those whose names these need."""
    [job] = [job for job in builder.jobs([lesson]) if job.kind == "lesson"]
    chosen, needed = [], set()
    for cell in reversed(builder.jupytext.reads(job.source.read_text(encoding="utf-8"), fmt="py:percent").cells):
        if cell.cell_type == "code" and not cell.source.startswith("%"):
            code = compile(solution(cell.source), "", "exec")
            made = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_NAME"}
            if YOURS.search(cell.source) or made & needed:
                chosen, needed = [solution(cell.source), *chosen], needed | globals_of(code)
    return chosen


def run(source: str, names: dict) -> str:
    """Run a cell as a kernel does, and return what it printed."""
    file = f"<cell {hash(source)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(source, file, "exec"), names)
    return out.getvalue()


@pytest.mark.parametrize("lesson", LESSONS)
def test_our_answers_are_right_where_a_lesson_asks_for_them_and_stand_alone_afterwards(lesson):
    names = {"__name__": "__main__"}
    for source in cells_for_functions(lesson):
        printed = run(source, names)
        assert not YOURS.search(source) or printed.startswith("✓"), printed
    for id in [id for id, (place, *_) in ASKED.items() if place == lesson]:
        assert progress.read()[id]["source"] and tried(id, mine(id))[0] == RIGHT
    if "sampler" in names:  # it takes its random numbers in the order of ours, so what a lesson counts is the same
        p, q = torch.rand(2, 5, 9, generator=torch.manual_seed(0)).softmax(-1)
        both = names["sampler"], reference("06.sampler")
        for seed in range(30):
            random = Random(seed), Random(seed)
            printed, ours = (f(p, q[:4], [1, 2, 3, 4], one.random) for f, one in zip(both, random, strict=True))
            assert printed == ours and random[0].getstate() == random[1].getstate()


def test_a_wrong_answer_in_any_one_place_is_told_and_ours_goes_on(capsys):
    """So the cells after it run as nbval runs them."""
    for id in ASKED:
        wrong = next(iter(find(id).mutants.values()))
        assert yours(id)(wrong.function) is reference(id), id
        assert wrong.diagnosis[:40] in capsys.readouterr().out.replace("\n", " "), id
    assert not any(entry["solved"] for entry in progress.read().values())


@pytest.mark.nightly
@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_shows_the_same_with_right_and_with_wrong_answers(lesson, tmp_path, file):
    [job] = [job for job in builder.jobs([lesson]) if job.kind == "lesson"]
    shown = []
    for said in ("✓", "goes on with ours"):
        notebook = builder.compose(job)
        asked = {cell.id: cell for cell in builder.code_cells(notebook) if own_metadata(cell).get("exercise")}
        for cell in asked.values():
            id, right = own_metadata(cell)["exercise"], solution(ASKED[own_metadata(cell)["exercise"]][1])
            name, mutant = re.search(r"^def (\w+)", right, re.MULTILINE)[1], next(iter(find(id).mutants))
            before = cell.source.partition("@yours")[0]  # later cells may use what stands there
            wrong = f'{before}{name} = yours("{id}")(find("{id}").mutants["{mutant}"].function)'
            cell.source = right if said == "✓" else f"from {find.__module__} import find\n{wrong}"
        NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
        cells = [c for c in builder.code_cells(notebook) if "nbval-ignore-output" not in c.metadata.get("tags", [])]
        printed = {cell.id: "".join(o.get("text", "") for o in cell.outputs) for cell in cells}
        assert all(said in printed.pop(id) for id in asked)
        shown.append(printed)
        file.unlink()
    assert shown[0] == shown[1]


def test_a_stored_lesson_has_stubs_and_folded_answers():
    for id, (lesson, source, _) in ASKED.items():
        cells = nbformat.read(builder.ROOT / f"notebooks/{lesson}.ipynb", as_version=4).cells
        [at] = [i for i, cell in enumerate(cells) if own_metadata(cell).get("exercise") == id]
        assert cells[at].source.endswith("    ...") and solution(source) in cells[at + 1].source
