"""Fresh cases of set 15: its parts are in files of their own, and cases are looked for by the number of a set."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
    if module.name.startswith("c15_"):
        import_module(f".{module.name}", __package__)
