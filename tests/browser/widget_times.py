"""How long every control of every widget takes, in JupyterLab on this machine:

    python -m pytest -q -s tests/browser/widget_times.py            all lessons, about ten minutes on two quiet cores
    python -m pytest -q -s tests/browser/widget_times.py -k 06      one of them

From the key, click or change to the moment at which the new picture is complete, with the way to the kernel and back:
the median of five, and the longest. For a slider also the longest frame while its handle is dragged to and fro. The bar
for both is 100 ms. Work that takes longer has to show that it works ("computing …"): whether it did is noted. Nothing
is judged here, because a busy machine is no bug.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(file.name for file in (ROOT / "notebooks").glob("*.ipynb"))
ROUNDS = 5
CONTROLS = ".noUi-handle, .widget-dropdown select, .widget-checkbox input"
WATCH = """panel => {
    const picture = panel.querySelector('.minispec-picture'), busy = picture.querySelector('.busy');
    const watch = window.minispecTimed = {after: null, busy: false};
    let start = null;
    const begin = () => { start ??= performance.now(); };
    const events = ['keydown', 'change', 'click'];
    for (const event of events) panel.addEventListener(event, begin, {capture: true, once: true});
    const looks = new MutationObserver(() => {
        watch.busy ||= busy.textContent !== '';
        if (start === null || picture.dataset.drawn === drawn) return;
        watch.after = performance.now() - start;
        looks.disconnect();
        for (const event of events) panel.removeEventListener(event, begin, {capture: true});
    });
    const drawn = picture.dataset.drawn;
    looks.observe(picture, {attributes: true, childList: true, subtree: true, characterData: true});
}"""
FRAMES = """() => {
    const frames = window.minispecFrames = {longest: 0, on: true};
    let last = performance.now();
    const frame = now => {
        frames.longest = Math.max(frames.longest, now - last);
        last = now;
        if (frames.on) requestAnimationFrame(frame);
    };
    requestAnimationFrame(now => { last = now; requestAnimationFrame(frame); });
}"""


def press(control, back: bool) -> None:
    kind = control.evaluate("node => node.tagName + '.' + (node.type ?? node.className)")
    if "noUi-handle" in kind:
        control.press("ArrowLeft" if back else "ArrowRight")
    elif kind.startswith("SELECT"):
        place, count = control.evaluate("node => [node.selectedIndex, node.options.length]")
        control.select_option(index=(place + 1) % count)
    else:
        control.click()


def times(lab, panel, control) -> tuple[list[float], bool]:
    """Milliseconds of each round in which the picture followed, and whether it said that it was computing."""
    found, said, back = [], False, control.evaluate("node => node.ariaValueNow === node.ariaValueMax")
    for _ in range(ROUNDS):
        panel.evaluate(WATCH)
        press(control, back)
        for _ in range(400):
            lab.page.wait_for_timeout(25)
            after, busy = lab.page.evaluate("[window.minispecTimed.after, window.minispecTimed.busy]")
            if after is not None:
                found.append(after)
                break
            if _ == 40 and not busy:  # a second without a sign: this step changes nothing (a row of handles at its end)
                back = not back
                break
        said |= busy
    return found, said


def longest_frame(lab, handle) -> float:
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    lab.page.evaluate(FRAMES)
    lab.page.mouse.move(x, y)
    lab.page.mouse.down()
    for step in range(30):
        lab.page.mouse.move(x + 4 * (step if step < 15 else 30 - step), y)
        lab.page.wait_for_timeout(30)
    lab.page.mouse.up()
    lab.page.wait_for_timeout(300)
    return lab.page.evaluate("(window.minispecFrames.on = false, window.minispecFrames.longest)")


@pytest.mark.browser
@pytest.mark.parametrize("name", LESSONS)
def test_times(lab, name):
    lab.open(name)
    began = perf_counter()
    cells = lab.run_all()
    print(f"\n{name}: the lesson ran in {perf_counter() - began:.0f} s")
    lab.widgets(cells)
    for number, panel in enumerate(lab.page.locator(".minispec-panel").all(), start=1):
        if panel.locator(".minispec-picture").count() != 1:
            continue
        panel.scroll_into_view_if_needed()
        lab.settle(panel)
        for control in panel.locator(CONTROLS).all():
            if not control.is_visible():
                continue
            label = control.evaluate(
                "n => n.ariaLabel ?? n.closest('.jupyter-widgets')?.innerText.split('\\n')[0] ?? ''"
            )
            found, busy = times(lab, panel, control)
            lab.settle(panel)
            frame = longest_frame(lab, control) if "noUi" in (control.get_attribute("class") or "") else None
            lab.settle(panel)
            drag = f"  longest frame {frame:4.0f}" if frame is not None else ""
            if found:
                note = "  computing …" if busy else ""
                print(
                    f"  {number:2}  {label[:28]:28}  median {median(found):5.0f}  longest {max(found):5.0f}{drag}{note}"
                )
            else:
                print(f"  {number:2}  {label[:28]:28}  does not move the picture{drag}")
