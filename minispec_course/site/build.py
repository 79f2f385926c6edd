"""From the repository to a folder of pages: widgets, staging, Sphinx, and what makes pages light."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docutils import nodes

from ..build.builder import ROOT
from . import live, sources, stage
from . import widgets as drawn_ahead

WORK = ROOT / "build/site"
THEIRS = ("searchtools", "language_data", "base-stemmer", "english-stemmer")  # search, which would fetch its excerpts
ICONS = "_static/scripts/fontawesome.js"
SETTINGS = {
    "project": "minispec",
    "author": "minispec",
    "extensions": ["myst_nb", "minispec_course.site.extension"],
    "html_theme": "sphinx_book_theme",
    "html_title": "minispec",
    "html_static_path": ["_static"],
    "html_css_files": ["site.css"],
    "html_js_files": [("formulas.js", {"defer": "defer"}), ("widgets.js", {"defer": "defer"})],
    "html_math_renderer": "mathml",
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "html_last_updated_fmt": None,
    "html_context": {"default_mode": "auto"},  # without it the theme complains on every first visit
    "html_theme_options": {
        "use_download_button": False,
        "use_fullscreen_button": False,
        "home_page_in_toc": True,
        "navbar_persistent": [],
        "show_navbar_depth": 1,
        "show_toc_level": 2,
        "pygments_light_style": "a11y-high-contrast-light",
        "pygments_dark_style": "a11y-high-contrast-dark",
    },
    "nb_execution_mode": "off",
    "nb_merge_streams": True,
    "nb_mime_priority_overrides": [("html", "text/html", 0)],
    "nb_code_prompt_show": "the answer",
    "nb_code_prompt_hide": "the answer",
    "myst_enable_extensions": ["dollarmath", "amsmath", "colon_fence"],
    "myst_heading_anchors": 3,
    "myst_url_schemes": ["http", "https", "mailto", "src"],
    "suppress_warnings": ["myst.header", "mystnb.mime_priority", "config.cache", "toc.not_included"],
}


@dataclass
class Site:
    """What was built: the page to open, and the widgets that could not be made, with the reason."""

    index: Path
    failed: dict[str, str] = field(default_factory=dict)


def build(
    out: Path, names: Sequence[str] = (), *, fresh: bool = False, widgets: bool = True, quiet: bool = False
) -> Site:
    """Build all of it, or a small site of some lessons."""
    chosen = tuple(name for name in sources.lessons() if not names or name in names or name.split("_")[0] in names)
    if not chosen:
        raise ValueError(f"names={list(names)!r}: there are {', '.join(sources.lessons())}")
    if out.is_dir() and any(out.iterdir()) and not (out / "_static/widgets.js").is_file():
        raise ValueError(f"out={str(out)!r} holds something else than a site: give a folder that is empty or new")
    work = WORK if not names else WORK.with_name("site-part")
    say = (lambda _: None) if quiet else print
    made, failed = drawn_ahead.export(chosen, WORK.with_name("site-widgets"), fresh, say=say) if widgets else ({}, {})
    say("pages")
    stage.stage(work / "pages", made, chosen if names else ())
    run_sphinx(work, out, quiet, missing=["myst.xref_missing"] if names else [])
    live.build(out)
    sources.write_pages(out)  # also what the live page links to
    lighten(out)
    return Site(out / "index.html", failed)


def run_sphinx(work: Path, out: Path, quiet: bool, missing: list[str]) -> None:
    import io
    import sys

    from sphinx.application import Sphinx

    made = work / "html"  # and not `out` at once: myst-nb leaves a folder of its own beside what it makes
    shutil.rmtree(made, ignore_errors=True)
    app = Sphinx(
        work / "pages",
        None,
        made,
        work / "doctrees",
        "html",
        SETTINGS | {"suppress_warnings": SETTINGS["suppress_warnings"] + missing},
        parallel=2,
        status=None,
        warning=io.StringIO() if quiet else sys.stderr,
    )
    app.build()
    if app.statuscode:
        raise RuntimeError("Sphinx could not build the pages: see its messages above")
    (made / "_static/search-index.js").write_text(f"minispecIndex({sections(app)})\n", encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(made, out)


def sections(app) -> str:
    """What the search page looks through: page, anchor, title of page and of section, what is bold there, all words."""
    found = []
    for page in sorted(app.env.found_docs):
        title = app.env.titles[page].astext()
        for section in app.env.get_doctree(page).findall(nodes.section):
            own = [part for part in section if not isinstance(part, nodes.section)]
            words = " ".join(text.astext() for part in own for text in part.findall(nodes.paragraph))
            top = section.parent.parent is None
            anchor = "" if top else section["ids"][0]
            bold = "|".join(text.astext() for part in own for text in part.findall(nodes.strong))
            words = " ".join(words.replace("\\", "").split())  # a formula's words do not begin with a backslash
            found.append([page, anchor, title, title if top else section[0].astext(), bold, words])
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def lighten(out: Path) -> None:
    """The theme's icons are a script of 1.5 MB for two dozen of them: site.css has those as characters instead."""
    (out / ICONS).write_text("", encoding="utf-8")
    shutil.rmtree(out / "_sources", ignore_errors=True)
    for extra in [*out.glob("_static/scripts/*.map"), *out.glob("_static/*webpack-macros.html")]:  # no page loads these
        extra.unlink()
    drop = re.compile(
        rf"<script[^>]*{re.escape('scripts/fontawesome.js')}[^>]*></script>|<link[^>]*scripts/fontawesome.js[^>]*>"
    )
    for name in ("searchindex.js", *(f"_static/{one}.js" for one in THEIRS)):
        (out / name).unlink()
    theirs = re.compile(rf'<script src="[./]*(_static/)?({"|".join(THEIRS)}|searchindex)\.js"></script>')
    for page in out.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(named(theirs.sub("", drop.sub("", text))), encoding="utf-8")
    search = (out / "search.html").read_text(encoding="utf-8")
    ours = '<script src="_static/search.js"></script></body>'
    (out / "search.html").write_text(search.replace("</body>", ours), encoding="utf-8")


def named(page: str) -> str:
    """Names that a screen reader speaks, where the theme gives none, or another one than it shows."""
    page = page.replace('<summary aria-label="Toggle hidden content">', "<summary>")
    page = page.replace(
        '<summary><span class="toctree-toggle"', '<summary aria-label="sub-pages"><span class="toctree-toggle"'
    )
    return re.sub(r'(<button class="btn search-button-field[^>]*?)\s+aria-label="Search"', r"\1", page)
