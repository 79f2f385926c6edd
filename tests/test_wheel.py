"""The wheel, and where the course runs without one: what is installed works, and in the versions that are tested."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOOK = "import minispec, minispec_course.check.check, minispec_course.viz; print(minispec.__file__)"


@pytest.mark.nightly
def test_the_wheel_installs_into_a_clean_folder_and_works(tmp_path):
    """Built from a copy, as pip would leave its own folders in the clone."""
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("minispec", "minispec_course"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], check=True)
    [wheel] = tmp_path.glob("minispec-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", target, wheel], check=True)

    def run(*argv) -> str:
        environment = {**os.environ, "PYTHONPATH": str(target)}  # before the clone that is installed with -e
        options = dict(cwd=tmp_path, env=environment, text=True, capture_output=True)
        done = subprocess.run([sys.executable, *argv], **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-c", LOOK).startswith(str(target))
    assert "in the package" in run("-m", "minispec_tools", "models")
    assert "speed-up, measured" in run("-m", "minispec_tools", "demo", "--tokens", "8")
    assert "hint 1 of 3" in run("-m", "minispec_tools", "hint", "06.accept")


def test_binder_and_the_devcontainer_install_what_is_tested():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    script = ROOT / ".binder/postBuild"
    assert container["postCreateCommand"] == f"bash {script.relative_to(ROOT)}" and os.access(script, os.X_OK)
    assert "-c constraints.txt" in (text := script.read_text(encoding="utf-8")) and '-e ".[course]"' in text
    version = (ROOT / ".binder/runtime.txt").read_text(encoding="utf-8").strip()
    assert container["image"].endswith(version.replace("python-", ":"))
