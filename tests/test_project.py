"""What may import what, what stays out of an import, and versions that agree."""

import ast
import json
import os
import subprocess
import sys
import tomllib
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

ROOT = Path(__file__).resolve().parent.parent

# ---------------------------------------------------------------- the import graph

PACKAGES = ("minispec", "minispec_tools", "minispec_course")
# The floors of minispec from the ground up. A file imports from its own floor and from those below.
FLOORS = (
    "lazy require theory",
    "cpu cache recurrent experts linear model",
    "processors sampling tree trace verify exact",
    "params output sequence",
    "generate controller drafters.base speculate",
    "load",
    "drafters measure",
    "serving",
    "gpu",
    "api",
)
FLOOR = {f"minispec.{name}": floor for floor, names in enumerate(FLOORS) for name in names.split()}
COURSE_PACKAGES = {*minispec_course.PACKAGES, "IPython", "ipykernel", "jupyter", "jupyter_client", "notebook"}
# What minispec may import at the top of a file; anything else waits inside the function that needs it.
CORE_PACKAGES = {"torch", "numpy", "safetensors", "tokenizers", "tqdm", "filelock"}


class Import(NamedTuple):
    module: str  # one of ours, or another package
    at_top: bool  # or inside a function, where it waits for the first call
    ours: bool


def modules() -> dict[str, Path]:
    files = {
        file: file.relative_to(ROOT).with_suffix("").parts for name in PACKAGES for file in (ROOT / name).rglob("*.py")
    }
    named = {".".join(parts[:-1] if parts[-1] == "__init__" else parts): file for file, parts in files.items()}
    return {name: file for name, file in named.items() if name.split(".")[1:2] != ["lessons"]}  # notebooks, no modules


KNOWN = modules()


def imports(node: ast.AST, package: list[str], at_top: bool = True) -> Iterator[Import]:
    """What the statements below a node import. Imports for annotations alone (TYPE_CHECKING) do not happen."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
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


def floor_of(module: str) -> int:
    while module not in FLOOR:
        module = module.rpartition(".")[0]
        assert module, "give the new room its floor in FLOORS"
    return FLOOR[module]


def may_import(name: str, module: str, at_top: bool) -> bool:
    """Whether a file of ours may import another of ours."""
    here, there = name.partition(".")[0], module.partition(".")[0]
    if here == "minispec":
        return there == here and (here in (name, module) or floor_of(module) <= floor_of(name))
    if here == "minispec_tools" and there == "minispec_course":  # inside a command, as every benchmark is
        return not at_top or name.startswith("minispec_tools.bench.")
    return not (here == "minispec_course" and module.startswith("minispec_tools.bench"))


def test_imports_go_down_only(found):
    wrong = [
        f"{name} must not know about {module}"
        for name, statements in found.items()
        for module, at_top, ours in statements
        if ours and not may_import(name, module, at_top)
    ]
    assert wrong == []


def test_no_circle_of_imports(found):
    """Among files, imports inside functions included; and none while importing, where a file of a folder runs the
    folder's __init__ first."""
    for running in (False, True):
        graph = {name: set() for name in found}
        for name, statements in found.items():
            ours = {module for module, at_top, ours in statements if ours and (at_top or not running)}
            ours |= {module.rpartition(".")[0] for module in ours if running}
            graph[name] |= {m for m in ours & found.keys() - {*PACKAGES, name} if not name.startswith(f"{m}.")}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_core_asks_for_no_notebook_packages(found):
    compiled = ("minispec.cpu.gemm",)  # imported when first needed
    for name, statements in found.items():
        if name.partition(".")[0] != "minispec":
            continue
        allowed = CORE_PACKAGES | ({"numba", "llvmlite"} if name in compiled else set())
        for module, at_top, ours in statements:
            assert ours or not at_top or module in allowed, f"{name} imports {module} at its top"
            assert ours or module not in COURSE_PACKAGES, f"{name} imports {module}"


# ---------------------------------------------------------------- what an import brings along


def loaded(code: str) -> set[str]:
    """The modules that a fresh process has imported after this."""
    probe = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return {*json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("module, most", [("verify", 8), ("model", 6), ("speculate", 20)])
def test_an_import_loads_few_files(module, most):
    """What a reader of this file has to know of the rest. Beside the package itself and how it waits for its names."""
    ours = {name for name in loaded(f"import minispec.{module}") if name.startswith("minispec.")} - {"minispec.lazy"}
    assert len(ours) <= most, sorted(ours)


def test_a_cpu_loads_nothing_of_a_gpu():
    code = "import minispec as ms; model = ms.load('micro', device='cpu'); ms.generate(model, 'Once', 4)"
    assert not {name for name in loaded(code) if name.startswith("minispec.gpu")}


def test_everything_public_is_there():
    """Even where a module of the same name is imported first. What the command line lists are the names there are."""
    assert all(getattr(ms, name, None) is not None for name in ms.__all__)
    assert len(set(ms.__all__)) == len(ms.__all__) and {*ms.__all__} <= {*dir(ms)}
    assert all(getattr(ms.drafters, name, None) is not None for name in ms.drafters.HOMES)
    slow = {"transformers", "huggingface_hub", "numba", "scipy"}  # and seldom needed
    assert not slow & loaded("import minispec.load.write, minispec as ms; assert callable(ms.load)")
    assert [*ms.drafters.DRAFTERS] == options.DRAFTERS


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


def names(requirements: list[str]) -> set[str]:
    return {Requirement(line).name.replace("-", "_") for line in requirements} - {"minispec"}  # another extra


def test_every_dependency_has_an_exact_pin_within_its_range():
    project, pins = read_project(), read_pins()
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    for requirement in map(Requirement, wanted):
        if requirement.name != "minispec":  # an extra that includes another
            assert requirement.specifier.contains(version(pins[canonicalize_name(requirement.name)])), requirement.name
    assert version(pins["torch"]) == "2.13.0"  # an open range would pull gigabytes of CUDA packages


def test_what_is_not_needed_by_everybody_comes_with_an_extra():
    project = read_project()
    extras = {name: names(lines) for name, lines in project["optional-dependencies"].items()}
    core = names(project["dependencies"])
    assert core == CORE_PACKAGES - {"filelock"} | {"huggingface_hub", "jinja2"}  # which brings filelock
    assert not core & set().union(*extras.values())
    assert extras["course"] >= {"pyyaml" if name == "yaml" else name for name in minispec_course.PACKAGES}
    assert extras["serve"] == {*serve.PACKAGES}
    assert "minispec[cpu,structured,gguf]" in project["optional-dependencies"]["course"]
