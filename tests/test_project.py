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

# From the ground up. A module imports from its own layer and from those below.
LAYERS = [
    "model cache weights gguf fetch lock registry sampling generate trace verify tree laws blocks quantize kernels "
    "flash_decode skinny theory scaling adaptive measure",
    "drafters paged graphs buckets scheduler metrics",
    "engine speculate fast decoders parallel pipeline experts handover train",
    "viz classroom interview bench demo cli __main__",
]
LAYER = {unit: height for height, units in enumerate(LAYERS) for unit in units.split()}
WITH_NOTEBOOKS = {"viz", "classroom", "interview"}  # the only ones that may import what a GPU box does not have
# What the core may import at its top; anything else waits inside the function that needs it.
CORE_PACKAGES = {"torch", "numpy", "safetensors", "tokenizers", "tqdm"}


# ---------------------------------------------------------------- layers


def unit_of(file: Path) -> str:
    """minispec/train/draft.py belongs to "train", minispec/cache.py to "cache"."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def is_for_notebooks(package: str) -> bool:
    known = {"IPython", "ipykernel", "ipywidgets", "anywidget", "plotly", "nbformat", "nbclient"}
    return package in known or package.startswith("jupy")


def imports(file: Path):
    """What a file imports: (our units, other packages, whether at the top of the file), one statement at a time."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.Lambda)) for n in ast.walk(f)}
    package = ["minispec", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        ours = {name.split(".")[1] for name in names if name.startswith("minispec.")}
        theirs = {name.split(".")[0] for name in names if not name.startswith("minispec")}
        yield ours, theirs - set(sys.stdlib_module_names), id(node) not in inside


FILES = sorted(file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py" or file.parent != PACKAGE)
UNITS = {unit_of(file) for file in FILES}
every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))


def test_every_module_has_a_layer():
    assert not UNITS - LAYER.keys(), "give the new module its place in LAYERS"


@every_file
def test_imports_go_down_only(file):
    height = LAYER[unit_of(file)]
    for ours, _, _ in imports(file):
        for unit in ours:
            if unit in LAYER:
                assert LAYER[unit] <= height, f"{file.name} must not know about {unit}"
            else:  # a name of the package itself, as in `from . import load`: only for those on top
                assert height == len(LAYERS) - 1, f"{file.name} takes {unit} from the package, not from its module"


@every_file
def test_the_core_runs_without_notebook_packages(file):
    if unit_of(file) in WITH_NOTEBOOKS:
        return
    for _, theirs, at_top in imports(file):
        if at_top:
            assert theirs <= CORE_PACKAGES, f"{file.name} imports {theirs - CORE_PACKAGES} at its top"
        elif unit_of(file) != "cli":  # which starts JupyterLab when asked to
            assert not any(map(is_for_notebooks, theirs)), f"{file.name} imports {theirs}"


def test_no_module_imports_itself_through_others():
    graph = {unit: set() for unit in UNITS}
    for file in FILES:
        for ours, _, at_top in imports(file):
            graph[unit_of(file)] |= {unit for unit in ours if at_top and unit in UNITS} - {unit_of(file)}
    TopologicalSorter(graph).prepare()  # raises CycleError


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
