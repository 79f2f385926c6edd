"""The house rules: a budget for every room, what may import what, versions that agree, a README whose links hold.

`pytest -s tests/test_project.py` prints the lines of every room beside its budget.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import minispec as ms
import minispec_course
from minispec_tools import serve
from minispec_tools.cli import options

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent

# ---------------------------------------------------------------- lines

# Lines of Python that a room may have. They bound rooms, not files: one idea a file, however long it is.
BUDGETS = {
    "minispec": 18_935,  # the plan: 15,500
    "minispec_course": 24_655,  # 213 of them are commands that minispec_tools/cli had
    "minispec_course/exercises": 11_000,
    "minispec_course/check": 3_500,
    "minispec_course/viz": 5_000,
    "minispec_course/interview": 2_000,
    "minispec_course/site": 1_500,
    "benchmarks": 3_000,
    "recipes": 2_000,
    "tests": 26_000,
}


def lines(room: str) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in (ROOT / room).rglob("*.py"))


def test_every_room_keeps_its_budget():
    found = {room: lines(room) for room in BUDGETS}
    for room, budget in BUDGETS.items():
        print(f"{room:28} {found[room]:7,} of {budget:7,}")
    over = {room: count - BUDGETS[room] for room, count in found.items() if count > BUDGETS[room]}
    assert over == {}, "lines above the budget: something has to leave"


def test_the_formatter_formats():
    marked = re.compile(r"# fmt: (skip|off)")
    rooms = ("minispec", "minispec_course", "benchmarks", "recipes", "course", "tests")
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py") if file != Path(__file__)]
    assert [file for file in files if marked.search(file.read_text(encoding="utf-8"))] == []


# ---------------------------------------------------------------- the import graph

PACKAGES = ("minispec", "recipes", "minispec_course", "benchmarks")
# The rooms of minispec from the ground up; the other packages stand above them in the order of PACKAGES. A room imports
# from itself and from rooms below it. cli is on top: it imports the course when a command asks for it.
ROOMS = [
    "lazy require cpu kernels recurrent cache experts theory model cpu.fused processors sampling tree verify trace "
    "output sequence generate drafters.base controller speculate exact load.handle",
    "load",
    "drafters",
    "serving",
    "gpu parallel server",
    "api measure why cli.options cli.failure",
]
HEIGHT = {f"minispec.{room}": height for height, rooms in enumerate(ROOMS) for room in rooms.split()}
HEIGHT |= {package: len(ROOMS) + height for height, package in enumerate(PACKAGES[1:])}
HEIGHT |= dict.fromkeys(("minispec_tools.cli", "minispec.__main__"), len(ROOMS) + len(PACKAGES))

COURSE_PACKAGES = {*minispec_course.PACKAGES, "IPython", "ipykernel", "jupyter", "jupyter_client", "notebook"}
# What minispec may import at the top of a file; anything else waits inside the function that needs it.
CORE_PACKAGES = {"torch", "numpy", "safetensors", "tokenizers", "tqdm", "filelock"}
SERVED = tuple(f"minispec_tools.serve.{name}" for name in ("app", "process", "schemas", "service"))
COMPILED = ("minispec.cpu.gemm",)  # imported when first needed


class Import(NamedTuple):
    module: str  # one of ours, or another package
    at_top: bool  # or inside a function, where it waits for the first call
    ours: bool


def modules() -> dict[str, Path]:
    files = {
        file: file.relative_to(ROOT).with_suffix("").parts for name in PACKAGES for file in (ROOT / name).rglob("*.py")
    }
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): file for file, parts in files.items()}


KNOWN = modules()


def imports(node: ast.AST, package: list[str], at_top: bool = True) -> Iterator[Import]:
    """What the statements below a node import; those for type hints count, since they show where things lie wrong."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            else:
                start = package[: len(package) - child.level + 1] if child.level else []
                module = ".".join([*start, *filter(None, [child.module])])
                names = [f"{module}.{alias.name}" for alias in child.names]
            for name in names:
                top = name.partition(".")[0]
                while top in PACKAGES and name not in KNOWN:
                    name = name.rpartition(".")[0]
                if top in PACKAGES or top not in sys.stdlib_module_names:
                    yield Import(name if top in PACKAGES else top, at_top, top in PACKAGES)
        elif not isinstance(child, ast.expr):
            yield from imports(
                child, package, at_top and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            )


@pytest.fixture(scope="module")
def found() -> dict[str, list[Import]]:
    """Every module → its imports."""
    made = {}
    for name, file in KNOWN.items():
        package = list(file.parent.relative_to(ROOT).parts)
        made[name] = list(imports(ast.parse(file.read_text(encoding="utf-8")), package))
    return made


def room_of(module: str) -> str:
    while module and module not in HEIGHT:
        module = module.rpartition(".")[0]
    return module


def test_imports_go_down_only(found):
    names = [name for name in found if name != "minispec"]
    assert [name for name in names if not room_of(name)] == [], "give the new room its position in ROOMS"
    wrong = []
    for name in names:
        for module, _, ours in found[name]:
            if ours and module != "minispec" and HEIGHT[room_of(module)] > HEIGHT[room_of(name)]:
                wrong.append(f"{name} must not know about {module}")
            if (
                module == "minispec"
                and name.startswith("minispec.")
                and not name.startswith(("minispec_tools.cli", "minispec.__"))
            ):
                wrong.append(f"{name} takes a name from the package, not from its module")
    assert wrong == []


def test_no_circle_of_imports(found):
    """Among files, and among rooms; imports inside functions and for type hints count. And none while importing, where
    a file of a folder runs the folder's __init__ first."""
    itself = lambda module: module  # noqa: E731
    for part, running in ((itself, False), (room_of, False), (itself, True)):
        graph = {part(name): set() for name in found}
        for name, statements in found.items():
            ours = {module for module, at_top, ours in statements if ours and (at_top or not running)}
            ours |= {module.rpartition(".")[0] for module in ours if running}
            ours = {module for module in ours & found.keys() - {*PACKAGES} if not name.startswith(f"{module}.")}
            graph[part(name)] |= {part(module) for module in ours} - {part(name)}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_core_asks_for_no_notebook_packages(found):
    for name, statements in found.items():
        if not name.startswith("minispec.") and name != "minispec":
            continue
        allowed = CORE_PACKAGES | ({"numba", "llvmlite"} if name in COMPILED else set())
        allowed |= {*serve.PACKAGES} if name in SERVED else set()
        for module, at_top, ours in statements:
            if not ours and at_top:
                assert module in allowed, f"{name} imports {module} at its top"
            elif not ours and not name.startswith("minispec_tools.cli"):  # which starts JupyterLab when asked to
                assert module not in COURSE_PACKAGES, f"{name} imports {module}"


# ---------------------------------------------------------------- without the extra "course"

PROBE = """
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys({blocked}))  # as if they were not installed: an import of these fails
import minispec_tools.cli
said, heavy = {{}}, "torch numba plotly ipywidgets jupyter_client jupyterlab transformers scipy".split()
for line in {lines}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = minispec_tools.cli.main(line.split())
    loaded = [name for name in heavy if sys.modules.get(name)]
    said[line] = code, out.getvalue(), err.getvalue(), loaded
print(json.dumps(said))
"""
QUICK = ["", "demo --k x", "models", "hint 06.accept", "progress", "drill"]  # …, in this order, without torch
RUNS = ["models", "demo --tokens 4 --json"]
REFUSED = ["lab", "check 06", "hint 06.accept", "drill", "mock", "exam 30", "grade . --out grades.csv", "build --check"]


def in_a_process(blocked: set[str], lines: list[str]) -> dict[str, list]:
    """Command line → its exit code, what it said, and which heavy packages are imported by then."""
    probe = PROBE.format(blocked=sorted(blocked), lines=lines)
    environment = {**os.environ, "MINISPEC_PROGRESS": "off"}
    options = dict(stdin=subprocess.DEVNULL, env=environment, capture_output=True, text=True, timeout=120)
    done = subprocess.run([sys.executable, "-c", probe], **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_torch_waits_until_something_is_computed():
    said = in_a_process(set(), QUICK)
    assert {line: loaded for line, (*_, loaded) in said.items() if loaded} == {}
    assert [code for code, *_ in said.values()] == [0, 2, 0, 0, 0, 0], said


@pytest.mark.slow
def test_an_engine_needs_no_notebook_packages():
    """In one process without them: which commands run. Two of them come with huggingface_hub, an engine's own."""
    without = (COURSE_PACKAGES | {*serve.PACKAGES}) - {"yaml", "h11"}
    said = in_a_process(without, [*REFUSED, "serve", *RUNS])
    assert not said["serve"][3]
    for line in RUNS:
        assert said[line][0] == 0 and said[line][1], said[line]
    for line in REFUSED:
        code, out, err, _ = said[line]
        assert (code, out) == (2, "") and err.count("\n") == 1, (line, err)
        assert "plotly" in err and '.[course]"' in err
    code, out, err, _ = said["serve"]
    assert (code, out) == (2, "") and "starlette" in err and '.[serve]"' in err


def test_everything_public_is_there():
    """Even where a module of the same name is imported first. What the command line lists are the names there are."""
    assert all(getattr(ms, name, None) is not None for name in ms.__all__)
    assert len(set(ms.__all__)) == len(ms.__all__) and {*ms.__all__} <= {*dir(ms)}
    code = "import sys, minispec.load.write, minispec as ms; assert callable(ms.load)\n"
    code += "assert not {'transformers', 'huggingface_hub', 'numba', 'scipy'} & {*sys.modules}  # slow, seldom needed"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [*ms.drafters.DRAFTERS] == options.DRAFTERS


# ---------------------------------------------------------------- versions


def read_project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_pins() -> dict[str, Requirement]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in text if line and not line.startswith("#")]
    assert len({canonicalize_name(pin.name) for pin in pins}) == len(pins)
    return {canonicalize_name(pin.name): pin for pin in pins}


def version(pin: Requirement) -> str:
    [exact] = pin.specifier
    assert exact.operator == "=="
    return exact.version


def test_every_dependency_has_an_exact_pin_within_its_range():
    project, pins = read_project(), read_pins()
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    for requirement in map(Requirement, wanted):
        if requirement.name != "minispec":  # an extra that includes another
            assert requirement.specifier.contains(version(pins[canonicalize_name(requirement.name)])), requirement.name
    assert version(pins["torch"]) == "2.13.0"  # an open range would pull gigabytes of CUDA packages
    assert project["version"] == ms.__version__


def test_the_notebook_packages_come_with_the_extra_alone():
    project = read_project()
    extras = project["optional-dependencies"]
    engine, notebooks = (
        {Requirement(line).name for line in text} for text in (project["dependencies"], extras["course"])
    )
    assert engine >= CORE_PACKAGES and not engine & notebooks
    assert notebooks >= {"pyyaml" if name == "yaml" else name for name in minispec_course.PACKAGES}
    assert {Requirement(line).name.replace("-", "_") for line in extras["serve"]} == {*serve.PACKAGES}


# ---------------------------------------------------------------- what a newcomer reads


def test_readme_names_the_commands_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("make lab", "make test", 'pip install -c constraints.txt -e ".[course]"'):
        assert command in text
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0" in text and "END OF TERMS AND CONDITIONS" in text
    assert read_project()["license"] == "Apache-2.0"
