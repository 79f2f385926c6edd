"""The house rules: what may import what, versions that agree, and a README that names what is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "minispec"

# From the ground up. A room imports from itself and from rooms below it; the files of the core have an order, too.
ROOMS = [
    "kernels cache model sampling trace tree verify generate drafters.base speculate exact theory",
    "files",
    "drafters",
    "serving",
    "gpu parallel",
    "train bench",
    "course cli __main__",
]
HEIGHT = {room: height for height, rooms in enumerate(ROOMS) for room in rooms.split()}
NOTEBOOKS = ("course.viz", "course.classroom", "course.interview")  # may import what a GPU box does not have
# What the rest may import at its top; anything else waits inside the function that needs it.
CORE_PACKAGES = {"torch", "numpy", "safetensors", "tokenizers", "tqdm", "filelock"}


# ---------------------------------------------------------------- the import graph


def name_of(file: Path) -> str:
    """minispec/train/draft.py is "train.draft", minispec/train/__init__.py is "train"."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module if module in HEIGHT else module.partition(".")[0]


def is_for_notebooks(package: str) -> bool:
    known = {"IPython", "ipykernel", "ipywidgets", "anywidget", "plotly", "nbformat", "nbclient"}
    return package in known or package.startswith("jupy")


def imports(file: Path):
    """What a file imports: (our modules, other packages, whether at the top of the file), one statement at a time.

    What is imported for type hints alone (`if TYPE_CHECKING:`) is not imported at all.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.Lambda)) for n in ast.walk(f)}
    guarded = [f for f in ast.walk(tree) if isinstance(f, ast.If) and ast.unparse(f.test) == "TYPE_CHECKING"]
    hints = {id(n) for f in guarded for n in ast.walk(f)}
    package = ["minispec", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if id(node) in hints:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        ours = {module_in(name.removeprefix("minispec.")) for name in names if name.startswith("minispec.")}
        theirs = {name.split(".")[0] for name in names if not name.startswith("minispec")}
        yield ours, theirs - set(sys.stdlib_module_names), id(node) not in inside


FILES = {name_of(file): file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py" or file.parent != PACKAGE}


def module_in(name: str) -> str:
    """The module that a dotted name is in: "verify.chain" → "verify". What is in none is the package's own: ""."""
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name


def test_ls_shows_the_house():
    here = [path for path in PACKAGE.iterdir() if path.name not in ("__pycache__",)]
    assert len([path for path in here if path.is_file()]) <= 14
    assert len([path for path in here if path.is_dir()]) <= 9
    assert {room_of(name) for name in FILES} == HEIGHT.keys(), "give the new module its place in ROOMS"


def test_imports_go_down_only():
    for name, file in FILES.items():
        height = HEIGHT[room_of(name)]
        for ours, _, _ in imports(file):
            for module in ours:
                if module:
                    assert HEIGHT[room_of(module)] <= height, f"{name} must not know about {module}"
                else:  # a name of the package itself, as in `from . import load`: only for those on top
                    assert height >= HEIGHT["bench"], f"{name} takes a name from the package, not from its module"


def test_the_rest_runs_without_notebook_packages():
    looked = 0
    for name, file in FILES.items():
        if name.startswith(NOTEBOOKS):
            continue
        looked += 1
        for _, theirs, at_top in imports(file):
            if at_top:
                assert theirs <= CORE_PACKAGES, f"{name} imports {theirs - CORE_PACKAGES} at its top"
            elif name != "cli":  # which starts JupyterLab when asked to
                assert not any(map(is_for_notebooks, theirs)), f"{name} imports {theirs}"
    assert looked > 60


def test_no_module_imports_itself_through_others():
    graph = {name: set() for name in FILES}
    for name, file in FILES.items():
        for ours, _, _ in imports(file):
            graph[name] |= {
                module for module in ours if module and module != name and not name.startswith(module + ".")
            }
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_room_imports_itself_through_others():
    """The same for rooms, where an import inside a function counts as any other."""
    graph = {room: set() for room in HEIGHT}
    for name, file in FILES.items():
        for ours, _, _ in imports(file):
            graph[room_of(name)] |= {room_of(module) for module in ours if module} - {room_of(name)}
    TopologicalSorter(graph).prepare()


def test_importing_minispec_imports_no_notebook_packages():
    listing = "import sys, minispec, minispec.cli; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in loaded
    assert not any(map(is_for_notebooks, loaded))
    assert not {"transformers", "huggingface_hub", "numba", "scipy"} & set(loaded)  # slow to import, seldom needed


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
        assert requirement.specifier.contains(version(pins[canonicalize_name(requirement.name)])), requirement.name


def test_torch_is_pinned_exactly():
    assert version(read_pins()["torch"]) == "2.13.0"  # an open range would pull gigabytes of CUDA packages


def test_versions_of_the_package_agree():
    import minispec

    assert read_project()["version"] == minispec.__version__


# ---------------------------------------------------------------- what a newcomer reads


def test_readme_names_the_commands_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make lab" in text and "make test" in text and "pip install -c constraints.txt -e ." in text
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (ROOT / link).exists(), link


@pytest.mark.parametrize("target", ["lab", "test", "quick", "demo", "lint", "clean"])
def test_the_makefile_has_every_target(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0" in text and "END OF TERMS AND CONDITIONS" in text
    assert read_project()["license"] == "Apache-2.0"
