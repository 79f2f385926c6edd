"""The house rules: what may import what, versions that agree, and a README that names what is there."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Container, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import minispec as ms
from minispec import server
from minispec.serving.engine import Engine
from minispec.speculate import Eager
from minispec_course import minispec_course as course

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "minispec"

# From the ground up. A room imports from itself and from rooms below it; the files of the core have an order, too.
ROOMS = [
    "cpu kernels cache theory moe model processors sampling trace tree rules verify generate drafters.base "
    "drafters.adaptive speculate exact",
    "files",
    "drafters",
    "serving",
    "gpu parallel server",
    "train bench",
    "course cli __main__",
]
HEIGHT = {room: height for height, rooms in enumerate(ROOMS) for room in rooms.split()}
NOTEBOOKS = (
    "course.viz",
    "course.classroom",
    "course.interview",
    "course.exactness",
    "course.site",
)  # these need the packages of the extra "course"
COURSE_PACKAGES = {*course.PACKAGES, "IPython", "ipykernel", "jupyter", "jupyter_client", "notebook"}
# What the rest may import at its top; anything else waits inside the function that needs it.
CORE_PACKAGES = {"torch", "numpy", "safetensors", "tokenizers", "tqdm", "filelock"}
SERVED = ("server.app", "server.metrics", "server.process", "server.service")  # these need the extra "serve"
COMPILED = ("cpu.code", "cpu.products", "cpu.layers")  # imported by cpu.machine when they are first needed


# ---------------------------------------------------------------- the import graph


def modules(package: Path) -> dict[str, Path]:
    """recipes/draft.py is "train.draft", recipes/__init__.py "train". The package itself is left out."""
    files = {file.relative_to(package).with_suffix("").parts: file for file in package.rglob("*.py")}
    names = {".".join(parts[:-1] if parts[-1] == "__init__" else parts): file for parts, file in files.items()}
    return {name: file for name, file in names.items() if name}


def module_in(name: str, known: Container[str]) -> str:
    """The module that a dotted name is in: "verify.chain" → "verify". What is in none is the package's own: ""."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


class Import(NamedTuple):
    ours: set[str]  # modules of minispec; "" is the package itself
    theirs: set[str]  # other packages, less those of Python
    at_top: bool  # or inside a function, where it waits for the first call


def statements(node: ast.AST, at_top: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements below a node, and whether each runs when the file is imported.

    What is imported for type hints alone (`if TYPE_CHECKING:`) is not imported at all.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, at_top
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from statements(ast.Module(child.orelse, []), at_top)
        elif not isinstance(child, ast.expr):
            yield from statements(child, at_top and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def imports(source: str, folder: Path, known: Container[str]) -> Iterator[Import]:
    """What a file in this folder of the package imports."""
    package = ["minispec", *folder.parts]
    for node, at_top in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        split = [name.partition(".") for name in names]
        ours = {module_in(rest, known) for first, _, rest in split if first == "minispec"}
        theirs = {first for first, _, _ in split} - {"minispec"} - set(sys.stdlib_module_names)
        yield Import(ours, theirs, at_top)


def read_imports(package: Path) -> dict[str, list[Import]]:
    """Every module of a package → its imports."""
    known = modules(package)
    return {
        name: list(imports(file.read_text(encoding="utf-8"), file.parent.relative_to(package), known))
        for name, file in known.items()
    }


def room_of(module: str) -> str:
    return module if module in HEIGHT else module.partition(".")[0]


def upward(found: dict[str, list[Import]]) -> list[str]:
    """The imports that do not go down."""
    complaints = []
    for name, statements in found.items():
        height = HEIGHT[room_of(name)]
        for module in set().union(*(statement.ours for statement in statements)):
            if module and HEIGHT[room_of(module)] > height:
                complaints.append(f"{name} must not know about {module}")
            if not module and height < HEIGHT["bench"]:  # as in `from . import load`: only for those on top
                complaints.append(f"{name} takes a name from the package, not from its module")
    return complaints


def circles(found: dict[str, list[Import]], part=lambda module: module) -> list[str]:
    """A circle among modules, or among the rooms that they are part of. An import inside a function counts, too."""
    graph = {part(name): set() for name in found}
    for name, statements in found.items():
        for module in set().union(*(statement.ours for statement in statements)) - {"", name}:
            if part(module) != part(name) and not name.startswith(
                f"{module}."
            ):  # a folder is imported before its files
                graph[part(name)].add(part(module))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" imports ".join(reversed(error.args[1]))]
    return []


@pytest.fixture(scope="module")
def found() -> dict[str, list[Import]]:
    return read_imports(PACKAGE)


@pytest.mark.slow
def test_ls_shows_the_house(found):
    here = [path for path in PACKAGE.iterdir() if path.name not in ("__pycache__",)]
    assert len([path for path in here if path.is_file()]) <= 14
    assert len([path for path in here if path.is_dir()]) <= 14
    assert {room_of(name) for name in found} == HEIGHT.keys(), "give the new module its position in ROOMS"


def test_imports_go_down_only(found):
    assert upward(found) == []


def test_nothing_imports_itself_through_others(found):
    assert circles(found) == []
    assert circles(found, room_of) == []


def test_the_rest_asks_for_no_notebook_packages(found):
    rest = {name: statements for name, statements in found.items() if not name.startswith(NOTEBOOKS)}
    assert len(rest) > 60
    for name, statements in rest.items():
        for _, theirs, at_top in statements:
            if at_top and name in COMPILED:
                assert theirs <= CORE_PACKAGES | {"numba", "llvmlite"}
            elif at_top and name in SERVED:
                assert theirs <= CORE_PACKAGES | {*server.PACKAGES}
            elif at_top:
                assert theirs <= CORE_PACKAGES, f"{name} imports {theirs - CORE_PACKAGES} at its top"
            elif name != "cli":  # which starts JupyterLab when asked to
                assert not theirs & COURSE_PACKAGES, f"{name} imports {theirs}"


ENGINE = {"serving/engine": "import torch"}
CORRECT = {
    "cache": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .serving import engine",
    "serving/engine": "from ..cache import KVCache\nfrom . import blocks",
    "serving/blocks": "import torch",
    "bench/run": "from .. import load",
}
UPWARD = "cache must not know about serving.engine"
OF_THE_PACKAGE = "cache takes a name from the package, not from its module"
WRONG = [
    ({"cache": "from .serving import engine", **ENGINE}, UPWARD),
    ({"cache": "from .serving.engine import Engine", **ENGINE}, UPWARD),
    ({"cache": "import minispec.serving.engine as engine", **ENGINE}, UPWARD),
    ({"cache": "def grow():\n    from .serving import engine", **ENGINE}, UPWARD),
    ({"cache": "class A:\n    async def f(self):\n        from .serving import engine", **ENGINE}, UPWARD),
    ({"cache": "if TYPE_CHECKING:\n    pass\nelse:\n    from .serving import engine", **ENGINE}, UPWARD),
    ({"cache": "from . import load"}, OF_THE_PACKAGE),
    ({"cache": "import minispec as ms"}, OF_THE_PACKAGE),
    (
        {
            "cache": "from . import model",
            "model": "from . import tree",
            "tree": "def f():\n    from .cache import KVCache",
        },
        "cache imports model imports tree imports cache",
    ),
    (  # no circle of files, but one of rooms
        {"gpu/a": "from ..parallel import b", "gpu/c": "", "parallel/b": "", "parallel/d": "from ..gpu import c"},
        "gpu imports parallel imports gpu",
    ),
]


def complaints(package: Path, files: dict[str, str]) -> list[str]:
    for name, source in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(source)
    made = read_imports(package)
    assert made.keys() == {name.replace("/", ".") for name in files}
    return upward(made) + (circles(made) or circles(made, room_of))


def test_a_wrong_import_is_noticed(tmp_path):
    """The tests above can fail: small packages with one mistake each, and one without."""
    assert complaints(tmp_path / "correct", CORRECT) == []
    for number, (files, expected) in enumerate(WRONG):
        [said] = complaints(tmp_path / str(number), files)
        assert {*said.split(" imports ")} == {*expected.split(" imports ")}  # a circle has no first module


# ---------------------------------------------------------------- without the extra "course"

PROBE = """
import contextlib, io, json, sys
from importlib import import_module

sys.modules.update(dict.fromkeys({blocked}))  # as if they were not installed: an import of these fails
import minispec.cli
loaded = sorted({{name.partition(".")[0] for name, module in sys.modules.items() if module}})
for name in {names}:
    import_module(f"minispec.{{name}}")
said = {{}}
for line in {lines}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = minispec.cli.main(line.split())
    said[line] = code, out.getvalue(), err.getvalue()
print(json.dumps([loaded, said]))
"""
RUNS = ["models", "demo --tokens 4 --json"]
REFUSED = ["lab", "check 06", "hint 06.accept", "drill", "mock", "exam 30", "grade . --out grades.csv", "build --check"]


@pytest.mark.slow
def test_an_engine_needs_no_notebook_packages(found):
    """In one process without them: what `import minispec` loads, every module outside the course, and the commands."""
    names = [name for name in found if not name.startswith((*NOTEBOOKS, *SERVED)) and name != "__main__"]
    blocked = sorted(COURSE_PACKAGES | {*server.PACKAGES})
    probe = PROBE.format(blocked=blocked, names=names, lines=[*RUNS, *REFUSED, "serve"])
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded, said = json.loads(done.stdout)
    assert "torch" in loaded
    assert not {"transformers", "huggingface_hub", "numba", "scipy"} & set(loaded)  # slow to import, seldom needed
    for line in RUNS:
        assert said[line][0] == 0 and said[line][1], said[line]
    for line in REFUSED:
        code, out, err = said[line]
        assert (code, out) == (2, "") and err.count("\n") == 1, (line, err)
        assert "plotly" in err and '.[course]"' in err
    code, out, err = said["serve"]
    assert (code, out) == (2, "") and "starlette" in err and '.[serve]"' in err


def test_everything_public_is_there():
    assert all(getattr(ms, name, None) is not None for name in ms.__all__)
    assert len(set(ms.__all__)) == len(ms.__all__)


# ---------------------------------------------------------------- versions


def read_project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read_pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
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


def test_the_notebook_packages_come_with_the_extra_alone():
    project = read_project()
    extras = project["optional-dependencies"]
    engine, notebooks = (
        {Requirement(line).name for line in lines} for lines in (project["dependencies"], extras["course"])
    )
    assert engine >= CORE_PACKAGES and not engine & notebooks
    assert notebooks == {"pyyaml" if name == "yaml" else name for name in course.PACKAGES}
    assert "minispec[course,serve,constraints,site]" in extras["dev"]
    assert {Requirement(line).name.replace("-", "_") for line in extras["serve"]} == {*server.PACKAGES}


def test_torch_is_pinned_exactly():
    assert version(read_pins()["torch"]) == "2.13.0"  # an open range would pull gigabytes of CUDA packages


def test_versions_of_the_package_agree():
    assert read_project()["version"] == ms.__version__


# ---------------------------------------------------------------- what a newcomer reads

CORE = "model cache sampling generate verify tree trace speculate drafters.base drafters.ngram drafters.model "
CORE += "drafters.medusa"


def test_what_one_reads_comes_in_pieces_that_fit_a_sitting():
    files = [PACKAGE / f"{name.replace('.', '/')}.py" for name in CORE.split()] + list(
        (PACKAGE / "serving").glob("*.py")
    )
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 320, f"{file}: would two files teach better?"
    for function, lines in ((ms.speculate, 30), (Eager.cycles, 30), (Engine.step, 40), (Engine._step, 40)):
        body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].body[1:]  # without the docstring
        assert body[-1].end_lineno - body[0].lineno < lines, function.__qualname__


def test_readme_names_the_commands_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in ("make lab", "make test", 'pip install -c constraints.txt -e ".[course]"'):
        assert command in text
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_the_makefile_has_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target, stamp in {"lab": "-course", "demo": "", "quick": "-dev", "lint": "-dev"}.items():
        assert re.search(rf"^{target}: \$\(VENV\)/\.installed{stamp}$", text, re.MULTILINE), target
    assert re.search("^test: lint", text, re.MULTILINE) and re.search("^clean:", text, re.MULTILINE)


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0" in text and "END OF TERMS AND CONDITIONS" in text
    assert read_project()["license"] == "Apache-2.0"
