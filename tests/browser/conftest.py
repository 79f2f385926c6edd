"""A real JupyterLab and a real Chromium, for the tests that look at the course as a learner does.

The server works on copies of the notebooks, cleared of counts and outputs. It knows the course's settings and one more:
all cells are drawn at once, where JupyterLab would draw those in sight, so that every widget is there to be tried.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from browsers import OWN, find_chromium, violations

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "browser-test"
VIEW = {"width": 1280, "height": 860}
QUIET = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
NOTEBOOK = "window.jupyterapp.shell.currentWidget.content"
HOOK = "minispec_course.check.copies.keep_pictures"  # as `minispec lab` has it
WIDGET = "application/vnd.jupyter.widget-view+json"
CONTROLS = ".noUi-handle, .widget-dropdown select, .widget-checkbox input, .guess, .widget-play button, rect.hit"


class Watched:
    """A page, and what went wrong in it."""

    def __init__(self, page, home: str | tuple[str, ...]):
        self.page, self.home = page, home
        self.asked: list[str] = []  # addresses
        self.failures: list[str] = []  # requests that were not answered well
        self.errors: list[str] = []  # on the browser's console, and exceptions nobody caught
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", lambda socket: self.asked.append(socket.url.replace("ws", "http", 1)))
        page.on("requestfailed", lambda request: self._fail(request, request.failure))
        page.on("response", lambda answer: answer.status < 400 or self._fail(answer.request, answer.status))
        page.on("console", lambda said: said.type != "error" or self.errors.append(f"{said.text} ({said.location})"))
        page.on("pageerror", lambda error: self.errors.append(f"{error}\n{error.stack}"))

    def _fail(self, request, why: object) -> None:
        self.failures.append(f"{request.method} {request.url}: {why}")

    def unwatched(self, act):
        """Do something that is known to leave errors behind: a question that is cut off has not failed."""
        failures, errors = list(self.failures), list(self.errors)
        result = act()
        self.failures, self.errors = failures, errors
        return result

    @property
    def wrong(self) -> list[str]:
        """Errors, failures, and requests to anybody but the page's own server or folder."""
        own = (self.home, "data:", f"blob:{self.home}", "blob:null")
        return [*self.errors, *self.failures, *(url for url in self.asked if not url.startswith(own))]


class Reader(Watched):
    """A page that is opened from its folder."""

    def __init__(self, browser, size: tuple[int, int] = (1280, 860), theme: str = "", **media):
        super().__init__(browser.new_page(), "file:")
        self.page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        if theme:  # that of the site; the live page follows the media
            self.page.add_init_script(f"localStorage.mode = localStorage.theme = '{theme}'")
        self.page.emulate_media(**media)
        self.page.set_default_timeout(60_000)

    def open(self, file: Path, address: str = ""):
        self.asked.clear()
        self.page.goto(file.as_uri() + address)
        return self.page

    def violations(self, axe: str) -> list[str]:
        """What axe-core finds. It asks for style sheets, which a page from a folder may not read."""
        return self.unwatched(lambda: violations(self.page, axe))

    def bytes(self) -> int:
        """What was loaded from the folder."""
        asked = [url.removeprefix("file://").split("?")[0].split("#")[0] for url in self.asked]
        return sum(file.stat().st_size for file in {Path(path) for path in asked if path.startswith("/")})


class Lab(Watched):
    """JupyterLab in a browser window."""

    def __init__(self, url: str, page):
        super().__init__(page, url)
        self.url = url
        page.add_init_script(path=Path(__file__).with_name("lab.js"))

    def open(self, name: str) -> None:
        """Open a notebook and wait until its kernel is ready."""
        self.unwatched(lambda: self.page.goto("about:blank"))
        self.page.goto(f"{self.url}lab/tree/{name}?reset&token={TOKEN}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function("minispecLab.ready()")

    def run_all(self, timeout: float = 300) -> list[dict]:
        """Run the whole notebook; its code cells afterwards, as nbformat writes them."""
        self.page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        self.page.wait_for_function("minispecLab.ran()", timeout=1000 * timeout, polling=200)
        cells = self.page.evaluate(f"{NOTEBOOK}.model.toJSON().cells")
        return [cell for cell in cells if cell["cell_type"] == "code"]

    def widgets(self, cells: list[dict]) -> list:
        """Every panel that has controls and every prediction on the page, once all widgets are drawn."""
        wanted = sum(WIDGET in output.get("data", {}) for cell in cells for output in cell["outputs"])
        self.page.wait_for_function("wanted => minispecLab.drawn(wanted)", arg=wanted)
        return self.page.locator(OWN).filter(has_not=self.page.locator(".ms-loop")).all()  # the film moves by itself

    def settle(self, widget) -> str:
        """Wait until a widget has come to rest; what it shows then."""
        now = widget.evaluate("widget => minispecLab.state(widget)")
        for _ in range(100):
            self.page.wait_for_timeout(150)
            before, now = now, widget.evaluate("widget => minispecLab.state(widget)")
            if now == before:
                return now
        raise TimeoutError("a widget keeps changing by itself")

    def move(self, widget, patience: float = 20) -> float | None:
        """Move the first control by a step, as a learner would: milliseconds until the picture has followed.

        None: it does not follow.
        """
        from playwright.sync_api import TimeoutError as Impatience

        widget.scroll_into_view_if_needed()
        self.settle(widget)
        widget.evaluate("widget => minispecLab.watch(widget)")
        control = widget.locator(CONTROLS).first
        kind = control.evaluate("node => node.tagName + '.' + (node.type ?? node.className)")
        if "noUi-handle" in kind:
            at_end = control.evaluate("node => node.ariaValueNow === node.ariaValueMax")
            control.press("ArrowLeft" if at_end else "ArrowRight")
        elif kind.startswith("SELECT"):
            place, count = control.evaluate("node => [node.selectedIndex, node.options.length]")
            control.select_option(index=(place + 1) % count)
        elif kind == "INPUT.checkbox":
            control.click()
        elif kind.startswith("rect"):  # a bar of a distribution
            control.press("ArrowUp")
        elif kind.startswith("INPUT"):  # a prediction: type a number, then commit
            control.press_sequentially("3")
            control.press("Enter")
        else:
            control.click()
        try:
            self.page.wait_for_function("minispecLab.watched.after !== null", timeout=1000 * patience)
        except Impatience:
            return None
        return self.page.evaluate("minispecLab.watched.after")

    def close(self) -> None:
        """End the kernels, and the page with them."""
        self.unwatched(lambda: self.page.evaluate("window.jupyterapp.serviceManager.sessions.shutdownAll()"))
        self.unwatched(self.page.close)


@pytest.fixture(scope="session")
def chromium() -> str:
    return find_chromium() or pytest.skip("no playwright, or no chromium on this machine")


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """The server's folder. What lies in its "root" can be opened."""
    home = tmp_path_factory.mktemp("jupyter")
    (home / "root").mkdir()
    return home


@pytest.fixture(scope="session")
def jupyter(chromium, home):
    """The address of a JupyterLab server over cleared copies of the notebooks."""
    for file in (ROOT / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(file, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, home / "root" / file.name)
    settings = json.loads((ROOT / "minispec_course/jupyterlab/overrides.json").read_text(encoding="utf-8"))
    settings["@jupyterlab/notebook-extension:tracker"] = {"windowingMode": "none"}
    (home / "settings").mkdir()
    (home / "settings/overrides.json").write_text(json.dumps(settings), encoding="utf-8")
    folders = {f"JUPYTER_{kind.upper()}_DIR": str(home / kind) for kind in ("config", "data", "runtime")}
    folders["MINISPEC_PROGRESS"] = str(home / "progress.json")
    options = [
        "--no-browser",
        "--ip=127.0.0.1",
        "--port=0",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={home / 'root'}",
        f"--LabApp.app_settings_dir={home / 'settings'}",
        "--expose-app-in-browser",
        "--allow-root",
        f"--ContentsManager.pre_save_hook={HOOK}",
    ]
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
    for _ in range(900):
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


@pytest.fixture(scope="session")
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = not hasattr(os, "geteuid") or os.geteuid() != 0  # Chromium has none for root
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET, chromium_sandbox=sandbox)
        yield browser.new_context(viewport=VIEW)  # one for all pages: JupyterLab's scripts stay in its cache
        browser.close()


@pytest.fixture
def lab(jupyter, browser):
    page = browser.new_page()
    page.set_default_timeout(90_000)
    lab = Lab(jupyter, page)
    yield lab
    lab.close()


@pytest.fixture
def open_reader(browser):
    """open_reader(theme="dark"): a Reader; at the end nothing went wrong in any of them."""
    readers: list[Reader] = []

    def opened(*size_and_theme, **media) -> Reader:
        readers.append(Reader(browser, *size_and_theme, **media))
        return readers[-1]

    yield opened
    for reader in readers:
        reader.page.close()
    assert [what for reader in readers for what in reader.wrong] == []


@pytest.fixture(scope="session")
def axe(tmp_path_factory) -> str | None:
    """axe-core's script, fetched by npm; None where that cannot be."""
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        return None
    subprocess.run(["npm", "pack", "axe-core@4"], cwd=folder, capture_output=True, timeout=120, check=False)
    archives = list(folder.glob("axe-core-*.tgz"))
    if not archives:
        return None
    with tarfile.open(archives[0]) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()
