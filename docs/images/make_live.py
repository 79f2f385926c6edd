"""The moving picture at the head of the README: `python docs/images/make_live.py` writes docs/images/live.webp.

The real page plays in Chromium. Its `wait` is replaced by one that keeps a picture and waits for nothing, so that the
film shows every state as long as a visitor sees it, however busy the machine is. A frame is the lines that changed."""

import base64
import shutil
from pathlib import Path

from minispec_course.build.builder import ROOT
from minispec_course.site import live

WIDTH, HEIGHT, TOKENS, SHORTEST = 860, 522, 24, 110  # pixels; tokens of the story; milliseconds of a frame
STYLE = """#start, .top, .lead, #rate, .legend, .note { display: none !important } main { padding: 2px 10px }
    h1 { font-size: 1.6rem } #told { min-height: 3.4rem } #plain .tokens { height: 5.2rem }"""
PLAY = """async tokens => {
    window.wait = async (mine, ms) => { if (ms) await keepFrame(ms); };
    Object.assign(run, {length: tokens, chosen: {}});  // chosen: nothing is looked into
    await play(run).then(() => keepFrame(6000));
}"""
CHANGED = """async png => {  // first line that differs from the picture before, how many lines, their WebP
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const {width: w, height: h} = image, pen = new OffscreenCanvas(w, h).getContext('2d'), old = window.before;
    pen.drawImage(image, 0, 0);
    const now = window.before = new Uint32Array(pen.getImageData(0, 0, w, h).data.buffer);
    const differs = (pixel, i) => pixel !== old?.[i], top = Math.floor(Math.max(0, now.findIndex(differs)) / w) & ~1;
    const lines = Math.max(1, Math.ceil((now.findLastIndex(differs) + 1) / w) - top);
    const part = new OffscreenCanvas(w, lines);
    part.getContext('2d').drawImage(image, 0, -top);
    const bytes = new Uint8Array(await (await part.convertToBlob({type: 'image/webp', quality: 0.6})).arrayBuffer());
    return [top, lines, bytes.reduce((text, byte) => text + String.fromCharCode(byte), '')];
}"""


def webp(file: Path) -> bytes:
    from playwright.sync_api import sync_playwright

    frames, data = [], b""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), chromium_sandbox=False)
        page, encoder = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}), browser.new_page()
        page.goto(f"{file.as_uri()}#step=0")
        page.wait_for_function("() => run && !$('play').disabled")
        page.add_style_tag(content=STYLE)

        def keep(ms: float) -> None:
            before = frames.pop()[0] if frames and frames[-1][0] < SHORTEST else 0
            frames.append((before + ms, base64.b64encode(page.screenshot(animations="disabled")).decode()))

        page.expose_function("keepFrame", keep)
        page.evaluate(PLAY, TOKENS)
        for ms, picture in frames:
            top, lines, made = encoder.evaluate(CHANGED, picture)
            pixels = b"\2" + made[made.index("VP8 ") :].encode("latin-1")  # 2: no blending; and nothing about colours
            data += chunk(b"ANMF", short(0, top // 2, WIDTH - 1, lines - 1, round(ms)) + pixels)
        browser.close()
    size = b"\2\0\0\0" + short(WIDTH - 1, HEIGHT - 1)  # 2: it is animated
    return chunk(b"RIFF", b"WEBP" + chunk(b"VP8X", size) + chunk(b"ANIM", bytes(6)) + data)


def chunk(name: bytes, data: bytes) -> bytes:
    return name + len(data).to_bytes(4, "little") + data + b"\0" * (len(data) % 2)


def short(*numbers: int) -> bytes:
    return b"".join(n.to_bytes(3, "little") for n in numbers)


if __name__ == "__main__":
    (ROOT / "docs/images/live.webp").write_bytes(webp(live.build(ROOT / "build/live")))
