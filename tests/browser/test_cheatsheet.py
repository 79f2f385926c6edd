"""What is printed: the two sheets, and the cards."""

import math
import re

import pytest

from minispec_course.interview import cards, load, sheets

pytestmark = [pytest.mark.browser, pytest.mark.nightly]
OVERFLOW = """nodes => nodes.filter(node => node.scrollHeight > node.clientHeight + 1
    || node.scrollWidth > node.clientWidth + 1).map(node => node.textContent)"""


def pages_of(sheet) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", sheet.pdf(prefer_css_page_size=True)))


@pytest.mark.parametrize(("name", "tables"), [("cheatsheet", 3), ("design_sheet", 6)])
def test_it_prints_on_one_sheet(browser, tmp_path, name, tables):
    sheets.main([name, str(tmp_path / "sheet.html")])
    sheet = browser.new_page()
    sheet.goto((tmp_path / "sheet.html").as_uri())
    assert sheet.locator("table").count() == tables and pages_of(sheet) == 1
    sheet.close()


def test_eight_cards_fill_a_sheet_and_nothing_is_cut_off(browser, tmp_path):
    bank = load()
    (tmp_path / "cards.html").write_text(cards.page(bank), encoding="utf-8")
    sheet = browser.new_page()
    sheet.goto((tmp_path / "cards.html").as_uri())
    sheet.emulate_media(media="print")
    assert sheet.locator(".front").count() == sheet.locator(".back").count() == len(bank)
    assert sheet.locator(".card").evaluate_all(OVERFLOW) == []
    assert pages_of(sheet) == sheet.locator(".sheet").count() == 2 * math.ceil(len(bank) / 8)
    labels = (
        """sheets => sheets.map(sheet => [...sheet.children].map(card => card.querySelector("small")?.textContent))"""
    )
    fronts, backs = sheet.locator(".sheet").evaluate_all(labels)[:2]
    for i in range(0, 8, 2):  # turned over the long edge, left is right
        assert backs[i].startswith(fronts[i + 1]) and backs[i + 1].startswith(fronts[i])
    sheet.close()
