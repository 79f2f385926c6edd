"""Every widget, over the values of its controls, and what holds for all of them."""

import inspect
import xml.etree.ElementTree as ElementTree

import pytest
from all_panels import PANELS

from minispec_course import viz
from minispec_course.site.widgets import knobs
from minispec_course.viz.panel import Panel

pytestmark = pytest.mark.slow


def settings(panel: Panel):
    """As the panel stands, and then one control after the other at its ends."""
    yield panel.values
    for knob in knobs(panel):
        last = 2 if knob.name == "draws" else len(knob.values) - 1  # a hundred cycles or thousands: the same picture
        for i in sorted({0, last}):
            yield panel.values | {knob.name: knob.values[i]}


@pytest.mark.parametrize("name", PANELS)
def test_every_setting_is_a_drawing_with_an_alternative_text(panel, name):
    for values in settings(panel(name)):
        picture, words = panel(name).draw(**values)
        root = ElementTree.fromstring(picture)  # well-formed
        assert words and root[0].text == words, values
        width, height = (float(root.get(side)) for side in ("width", "height"))
        turned = {text for group in root.iter("{*}g") if "transform" in group.attrib for text in group}
        for text in set(root.iter("{*}text")) - turned:
            inside = -1 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height
            assert inside, (values, text.text)


def test_every_widget_of_the_package_is_here():
    functions = inspect.getmembers(viz, inspect.isfunction)
    made = {name for name, one in functions if "Panel" in str(one.__annotations__.get("return"))}
    assert made | {"residual_explorer"} == PANELS.keys()
