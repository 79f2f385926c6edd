"""Which browser the tests drive, and which lessons they open in it. nbval runs the others: every lesson runs once."""

import base64
import gzip
import json
import shutil
from importlib.util import find_spec

# A stepper with its play button, the editor that is JavaScript of our own, and a control room with a real engine.
DRIVEN = ("00_start_here.ipynb", "06_rejection_sampling.ipynb", "11b_under_load.ipynb")


OWN = ".minispec-panel, .minispec-predict"  # what the course adds to a page of JupyterLab


def find_chromium() -> str | None:
    """The path of a Chromium that playwright can drive."""
    if find_spec("playwright") is None:
        return None
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def violations(page, axe: str) -> list[str]:
    """What axe-core calls serious or critical in a page."""
    page.evaluate("script => { if (!window.axe) new Function(script).call(window); }", axe)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {node['html'][:200]}" for one in serious for node in one["nodes"][:6]]


def unpacked(text: str) -> list[tuple[dict | str, str]]:
    """What the page makes of a widget's pictures: static/widgets.js does the same."""
    data = json.loads(gzip.decompress(base64.b64decode(text)))
    pool, found = data["pool"], []
    for one in data["pictures"]:
        if "h" in one:
            found.append(("".join(pool[i] for i in one["h"]), one["w"]))
        else:
            traces = [{key: pool[i] for key, i in trace.items()} for trace in one["d"]]
            found.append(({"data": traces, "layout": {key: pool[i] for key, i in one["l"].items()}}, one["w"]))
    return found
