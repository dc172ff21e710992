"""The report, opened as a file: light and dark, wide and narrow."""

from pathlib import Path

import pytest

from rewardsmith.viewer.report import write_report
from tests.browser.conftest import Open, no_sideways_scroll
from tests.runs.fake_run import write_fake_run, write_process_run
from tests.viewer.judged_run import HOSTILE, write_judged_run


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_draws_itself(open_page: Open, tmp_path: Path, scheme: str, width: int) -> None:
    report = write_report(write_fake_run(tmp_path / "run"))
    page = open_page(report.as_uri(), width=width, color_scheme=scheme)
    page.wait_for_selector(".plot canvas")
    assert no_sideways_scroll(page)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 380) == (scheme == "light")
    before = page.evaluate("document.querySelector('.plot canvas').toDataURL()")
    page.check("text=log y")
    assert page.evaluate("document.querySelector('.plot canvas').toDataURL()") != before
    tiles = page.locator(".head .name").all_text_contents()
    assert len(tiles) == len(set(tiles))


def test_the_cursor_of_a_chart_moves_by_the_keyboard(open_page: Open, tmp_path: Path) -> None:
    page = open_page(write_report(write_fake_run(tmp_path / "run")).as_uri())
    plot = page.locator("figure.chart:has(.metric:text-is('policy/entropy')) .plot")
    plot.focus()
    page.keyboard.press("Home")
    figure = page.locator("figure.chart:has(.metric:text-is('policy/entropy'))")
    assert "step 1" in figure.locator(".heard").inner_text()
    page.keyboard.press("ArrowRight")
    assert "step 2" in figure.locator(".heard").inner_text()


def test_tokens_and_hostile_answers_in_a_report(open_page: Open, tmp_path: Path) -> None:
    page = open_page(write_report(write_process_run(tmp_path / "process", steps=3)).as_uri())
    page.locator(".inked").first.scroll_into_view_if_needed()
    page.wait_for_selector(".tok.up")
    page = open_page(write_report(write_judged_run(tmp_path / "judged")).as_uri())
    assert page.locator(".rollout pre", has_text="onerror").first.inner_text() == HOSTILE
    assert page.locator("img").count() == 0
    assert "owned" not in page.title()
    facts = page.locator(".facts").inner_text().replace("\n", " ")
    assert "policy: tiny-llama, judge: grader-8b" in facts
    assert "seed 3" in facts
