"""Answers by people who saw the exercise notebooks and nothing else: 1,304 wrong ones, 322 right ones.

Those of set 14 (60 wrong, 20 right more) were written together with the set. `make test` takes every third of them,
which is a minute; MINISPEC_FOREIGN=all takes them all.

The wrong ones must be caught, the right ones accepted. `diagnosis` is the mistake that `check` named when all of these
were read one by one, and it fitted; another name would be a wrong diagnosis, none at all is allowed.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest
from test_exercises import SOURCES, cells_of, find, notebook, surroundings

from minispec_course.check.check import RIGHT, WRONG, judge
from minispec_course.exercises.exercise import everything

FOREIGN = [
    answer
    for file in sorted(Path(__file__).with_name("foreign").glob("*.json"))
    for answer in json.loads(file.read_text(encoding="utf-8"))
]
ASKED = FOREIGN if os.environ.get("MINISPEC_FOREIGN") == "all" else FOREIGN[::3]


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    monkeypatch.setenv("MINISPEC_TRIAL", "micro")
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")


def function_of(answer: dict):
    """The function that a cell defines, of the name that the exercise gives it."""
    id = answer["exercise"]
    [source] = [source for source in SOURCES if source.stem.split("_")[0] == id.split(".")[0]]
    names = dict(surroundings(id.split(".")[0]))
    stubs, solved = cells_of(notebook("exercises", source), "answer"), cells_of(notebook("solutions", source), "answer")
    if find(id).joins:
        for other in solved.keys() - {id}:
            exec(solved[other].source, names)
    exec("\n".join(answer["source"]), names)
    return names[[node.name for node in ast.parse(stubs[id].source).body if isinstance(node, ast.FunctionDef)][-1]]


def test_there_are_enough_of_them():
    assert sum(not answer["right"] for answer in ASKED) >= 300 and sum(answer["right"] for answer in ASKED) >= 100
    assert {answer["exercise"] for answer in ASKED} == everything().keys()


@pytest.mark.slow
@pytest.mark.parametrize("id", everything())
def test_wrong_ones_are_caught_and_right_ones_accepted(id: str):
    for answer in (answer for answer in ASKED if answer["exercise"] == id):
        judgement = judge(find(id), function_of(answer))
        assert judgement.outcome == (RIGHT if answer["right"] else WRONG), answer["what"]
        assert judgement.mutant in (None, answer["diagnosis"]), answer["what"]
