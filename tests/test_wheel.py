"""The wheel: what pip installs from it runs the course's lessons, without a clone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("minispec", "minispec_course", "minispec_tools")
# The first lesson, one that trains (minispec_tools.train), and one that starts processes of its own.
LESSONS = ("00_start_here", "09_medusa", "16_beyond_one_gpu")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_wheel_in_an_empty_environment_runs_lessons(tmp_path):
    """Built from a copy, as pip would leave its own folders in the clone; run where the clone is out of sight."""
    source, python = tmp_path / "source", tmp_path / "venv/bin/python"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MINISPEC_PROGRESS": "off", "OMP_NUM_THREADS": "1"}

    def run(*argv: object) -> str:
        options = dict(cwd=tmp_path, env=environment, text=True, capture_output=True)
        done = subprocess.run([str(word) for word in argv], **options)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    run(sys.executable, *pip, "wheel", "--no-deps", "-w", tmp_path, source)
    [wheel] = tmp_path.glob("minispec-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(python, *pip, "install", "-c", ROOT / "constraints.txt", f"{wheel}[course]")

    where = (
        "import minispec, minispec_course.viz, minispec_tools.bench as bench; print(minispec.__file__, bench.__file__)"
    )
    assert all(file.startswith(str(tmp_path / "venv")) for file in run(python, "-c", where).split())
    assert "in the package" in run(python, "-m", "minispec_tools", "models")
    assert "speed-up, measured" in run(python, "-m", "minispec_tools", "demo", "--tokens", "8")
    assert "hint 1 of 3" in run(python, "-m", "minispec_tools", "hint", "06.accept")
    for lesson in LESSONS:
        shutil.copy(ROOT / f"notebooks/{lesson}.ipynb", tmp_path)
        run(python, "-m", "jupyter", "execute", f"{lesson}.ipynb", "--timeout=300")
