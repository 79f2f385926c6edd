"""The cheat sheet, printed."""

from __future__ import annotations

import re

import pytest

from minispec.course.interview import cheatsheet

pytestmark = pytest.mark.browser


def test_it_prints_on_one_sheet(browser, tmp_path):
    cheatsheet.main([str(tmp_path / "sheet.html")])
    sheet = browser.new_page()
    sheet.goto((tmp_path / "sheet.html").as_uri())
    assert sheet.locator("table").count() == 3
    assert len(re.findall(rb"/Type\s*/Page\b", sheet.pdf(prefer_css_page_size=True))) == 1
    sheet.close()
