"""The pictures of the README: those that the stored lessons show, taken out of them by every build.

python -m minispec_course.build.front     takes them out again
"""

from __future__ import annotations

import base64
from pathlib import Path

import nbformat

from minispec.load.write import write_whole

from .builder import ROOT

FOLDER = "docs/images"
TAKEN = {  # name of the file → (lesson, the function of viz whose picture it is)
    "course_two_lanes": ("00_start_here", "two_lanes"),
    "course_weights_stream": ("01_why_decoding_is_slow", "weights_stream"),
    "course_memory_map": ("03_paged_blocks", "memory_map"),
    "course_overlap": ("06_rejection_sampling", "overlap"),
}
ENDINGS = {"image/svg+xml": "svg", "image/png": "png"}


def pictures(root: Path = ROOT) -> dict[str, bytes]:
    """Path of each picture → what is in it, for all lessons that are there."""
    found = {}
    for name, (lesson, function) in TAKEN.items():
        file = root / f"notebooks/{lesson}.ipynb"
        for cell in nbformat.read(file, as_version=4).cells if file.is_file() else ():
            if cell.cell_type != "code" or f"viz.{function}(" not in cell.source:
                continue
            for output in cell.outputs:
                for kind in ENDINGS.keys() & output.get("data", {}).keys():
                    stored = output.data[kind]
                    content = base64.b64decode(stored) if kind == "image/png" else (stored.strip() + "\n").encode()
                    found[f"{FOLDER}/{name}.{ENDINGS[kind]}"] = content
    return found


def take(root: Path = ROOT) -> list[str]:
    """Write the pictures that differ from what is there."""
    changed = []
    for name, content in pictures(root).items():
        if not (root / name).is_file() or (root / name).read_bytes() != content:
            write_whole(root / name, content)
            changed.append(name)
    return changed


if __name__ == "__main__":
    print("\n".join(take()) or "the pictures of the README are those of the lessons")
