"""For `pytest --nbval notebooks/…`: cells that answer a prediction are stored covered, and compared uncovered."""


def pytest_collection_modifyitems(items):
    cells = [item for item in items if hasattr(item, "cell_num")]  # cells of notebooks: nbval's IPyNbCell
    if cells:
        from minispec.course.classroom.spoilers import uncovered

        for item in cells:
            item.cell = uncovered(item.cell)
