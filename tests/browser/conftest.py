"""A real JupyterLab and a real Chromium, for the tests that look at the course as a learner does.

The server works on copies of the notebooks, cleared of counts and outputs, and knows no settings but the course's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "browser-test"
QUIET = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
READY = """() => {
    const session = window.jupyterapp?.shell.currentWidget?.sessionContext;
    return session?.isReady && session.session?.kernel?.connectionStatus === 'connected'
        && session.session.kernel.status === 'idle';
}"""
NOTEBOOK = "window.jupyterapp.shell.currentWidget.content"


class Lab:
    """JupyterLab in a browser window."""

    def __init__(self, url: str, page):
        self.url, self.page = url, page

    def open(self, name: str) -> None:
        """Open a notebook and wait until its kernel is ready."""
        self.page.goto(f"{self.url}lab/tree/{name}?reset&token={TOKEN}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function(READY)

    def run_all(self, timeout: float = 300) -> list[dict]:
        """Run the whole notebook; its code cells afterwards, as nbformat writes them."""
        self.page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            cells = self.page.evaluate(f"{NOTEBOOK}.model.toJSON().cells")
            cells = [cell for cell in cells if cell["cell_type"] == "code"]
            failed = any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
            if failed or all(cell["execution_count"] for cell in cells):  # an error ends the run
                return cells
            self.page.wait_for_timeout(200)
        raise TimeoutError(f"the notebook was still running after {timeout} s")

    def show(self, text: str) -> None:
        """Scroll to the first cell that contains a text."""
        self.page.evaluate(
            f"""async (text) => {{
                const cells = {NOTEBOOK}.widgets;
                const index = cells.findIndex(cell => cell.model.sharedModel.source.includes(text));
                await {NOTEBOOK}.scrollToItem(index, 'start');
            }}""",
            text,
        )
        self.page.wait_for_timeout(500)


@pytest.fixture(scope="session")
def chromium() -> str:
    pytest.importorskip("playwright", reason="playwright is not installed")
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no chromium on this machine")


@pytest.fixture(scope="session")
def jupyter(chromium, tmp_path_factory):
    """The address of a JupyterLab server over cleared copies of the notebooks."""
    home = tmp_path_factory.mktemp("jupyter")
    (home / "root").mkdir()
    for file in (ROOT / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(file, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, home / "root" / file.name)
    folders = {f"JUPYTER_{kind.upper()}_DIR": str(home / kind) for kind in ("config", "data", "runtime")}
    options = [
        "--no-browser", "--ip=127.0.0.1", "--port=0", f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={home / 'root'}", f"--LabApp.app_settings_dir={ROOT / 'course/jupyterlab'}",
        "--expose-app-in-browser", "--allow-root",
    ]  # fmt: skip
    with open(home / "log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=os.environ | folders, stdout=log, stderr=log
        )
    try:
        yield _address(server, home)
    finally:
        server.terminate()  # the server ends its kernels
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


def _address(server: subprocess.Popen, home: Path) -> str:
    """Where the server listens, once it does."""
    for _ in range(300):
        for file in (home / "runtime").glob("jpserver-*.json"):
            try:
                url = json.loads(file.read_text())["url"]
                urllib.request.urlopen(f"{url}api/status?token={TOKEN}", timeout=5).close()
                return url
            except (OSError, ValueError):  # not there yet, or half written
                pass
        if server.poll() is not None:
            break
        time.sleep(0.2)
    pytest.fail("JupyterLab did not start:\n" + (home / "log").read_text()[-2000:])


@pytest.fixture
def lab(jupyter, chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = not hasattr(os, "geteuid") or os.geteuid() != 0  # Chromium has none for root
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET, chromium_sandbox=sandbox)
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(90_000)
        yield Lab(jupyter, page)
        browser.close()
