"""For `pytest --nbval notebooks/…`: cells that answer a prediction are stored covered, and compared uncovered."""

import os

os.environ.pop("MINISPEC_LAB", None)  # in a terminal of the lab too: no test waits for a guess
os.environ.setdefault("MINISPEC_PROGRESS", "off")  # nor depends on what whoever runs it has solved


def pytest_collection_modifyitems(items):
    cells = [item for item in items if hasattr(item, "cell_num")]  # cells of notebooks: nbval's IPyNbCell
    if cells:
        from minispec_course.build.spoilers import uncovered

        for item in cells:
            item.cell = uncovered(item.cell)
