"""Audits, alarms and replays as a person reads them, in the report and in the viewer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rewardsmith.viewer.report import write_report
from tests.browser.conftest import Open, no_sideways_scroll
from tests.viewer.audited_run import FAKE_VERDICT, make_audit, make_watch, watch_metrics, write_audited_run, write_trust

ATTACK = "details.finding:has(b:text-is('attack'))"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_an_audit_in_a_report(open_page: Open, tmp_path: Path, scheme: str, width: int) -> None:
    report = write_report(write_audited_run(tmp_path / "run"))
    page = open_page(report.as_uri(), width=width, color_scheme=scheme)
    panel = page.locator("#trust")
    assert "failed 2, could not measure 1 of 6 requirements" in panel.inner_text()
    row = panel.locator(ATTACK)
    assert row.locator("pre").count() == 2
    assert not row.locator("pre").first.is_visible()
    row.locator("summary").focus()
    page.keyboard.press("Enter")
    assert row.locator("pre").first.inner_text() == FAKE_VERDICT
    assert page.locator("#trust b:text-is('The answer is right.')").count() == 0
    for kind in (".span", ".limit", ".dot"):
        box, frame = (row.locator(f".interval {kind}").bounding_box(), row.locator(".interval").bounding_box())
        assert frame["x"] - 6 <= box["x"] <= box["x"] + box["width"] <= frame["x"] + frame["width"] + 6
    for name, sides in {"separation": [-1], "length_bias": [-1, 1]}.items():  # which side of the dot is tinted
        picture = panel.locator(f".finding:has(b:text-is('{name}')) .interval")
        edges = [line.bounding_box()["x"] for line in picture.locator(".limit").all()]
        tints = [
            (box["x"], box["x"] + box["width"])
            for box in (one.bounding_box() for one in picture.locator(".beyond").all())
        ]
        for side, edge, (left, right) in zip(sides, edges, tints, strict=True):
            assert abs((right if side < 0 else left) - edge) < 3
            assert right - left > 3
    page.locator(".alarms summary").first.click()
    assert page.locator(".alarms pre").first.is_visible()
    page.wait_for_selector("figure.chart:has(.metric:text-is('watch/false_discovery')) canvas")
    assert page.locator("h2:text-is('Replay: rule-only')").is_visible()
    assert no_sideways_scroll(page)


def test_alarms_arrive_while_a_reader_has_an_example_open(
    open_page: Open, view: Callable[[Path], str], tmp_path: Path
) -> None:
    folder = write_audited_run(tmp_path / "run")
    page = open_page(view(folder) + "#view=run&run=run")
    page.wait_for_selector("#trust")
    page.locator(f"{ATTACK} > summary").click()
    page.locator(".alarms summary").first.click()
    chart = "figure.chart:has(.metric:text-is('watch/reward')) .plot"
    page.wait_for_selector(f"{chart} canvas")
    canvas = page.query_selector(f"{chart} canvas")
    before = canvas.evaluate("(one) => one.toDataURL()")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": "policy", "step": 45, "metrics": watch_metrics(45, 40)}) + "\n")
    write_trust(folder, {"policy": make_audit().as_json()}, {"policy": make_watch((25, 30, 45))})
    page.wait_for_selector("#trust :text('3 alarms')")
    page.wait_for_selector(f"{chart}[aria-label*='marked: steps 25, 30, 45']")
    assert page.locator(".alarms details").count() == 3
    assert page.locator(f"{ATTACK} pre").first.is_visible()
    assert page.locator(".alarms pre").first.is_visible()
    assert canvas.evaluate("(one) => one.isConnected && one.toDataURL()") not in (False, before)
    prompt = json.loads((folder / "rollouts" / "policy.jsonl").read_text().splitlines()[-1])["scored"]["group"][
        "prompt"
    ]
    watch = make_watch((40,))
    watch["alarms"][0]["examples"][0]["prompt"] = prompt["id"]
    write_trust(folder, {}, {"policy": watch})
    page.wait_for_selector("#trust :text('1 alarm')")
    page.locator(".alarms summary").first.click()
    page.click(f".alarms a:text-is('{prompt['id']}')")
    page.wait_for_selector(".row")
    assert "step_min=40" in page.evaluate("location.hash")
