"""The page of `rewardsmith view`, as a person uses it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rewardsmith import Score
from tests.browser.conftest import Open, no_sideways_scroll
from tests.runs.fake_run import line, write_fake_run, write_process_run
from tests.viewer.judged_run import HOSTILE, write_judged_run

View = Callable[[Path], str]
NOTES = ".listside > p"


def count_of(page: Any) -> int:
    found = re.search(r"of ([\d,]+)", page.text_content(NOTES))
    return int(found[1].replace(",", "")) if found else 0


def wait_for(page: Any, condition: str, argument: Any = None) -> None:
    page.wait_for_function(condition, arg=argument)


def press(key: str) -> str:
    """Return a script that presses a key at once, before the page has heard of what went before."""
    return f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true }}));"


def write_runs(folder: Path) -> Path:
    write_fake_run(folder / "long", steps=24, prompts=6)
    write_fake_run(folder / "short", steps=8, prompts=6)
    recipe = folder / "short" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("high = 0.28", "high = 0.4"))
    write_judged_run(folder / "judged")
    return folder


@pytest.fixture(scope="module")
def address(view: View, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a server of three runs, which no test changes."""
    return view(write_runs(tmp_path_factory.mktemp("runs")))


def test_from_the_list_of_runs_to_a_group(open_page: Open, address: str) -> None:
    page = open_page(address)
    page.wait_for_selector("text=Runs")
    assert page.locator(".runname").all_text_contents() == ["judged", "long", "short"]
    page.click("a.runname:text-is('long')")
    page.wait_for_selector(".head.hero")
    assert "points" not in page.text_content(".head.hero")  # the mean of this reward is no share
    page.wait_for_selector(".plot canvas")
    names = page.locator("figure.chart .metric").all_text_contents()
    assert "reward/mean" in names
    assert "time/step" not in names  # constant: its values are in a table
    assert page.locator("details:has(> summary:has-text('Constant')):has-text('time/generate')").count() == 1
    page.click("a.action:has-text('rollouts')")
    page.wait_for_selector(".row")
    page.click(".row >> nth=3")
    page.wait_for_selector(".group .rollout")
    assert page.locator(".group .rollout").count() == 4
    assert page.locator(".row.on").count() == 1


def test_filters_searches_and_orders(open_page: Open, address: str) -> None:
    page = open_page(address + "#view=rollouts&run=long&stage=policy")
    page.wait_for_selector(".row")
    everything = count_of(page)
    page.click(".morefilters summary")
    page.select_option("select[name=failure]", "timeout")
    wait_for(page, "(all) => !document.querySelector('.listside > p').textContent.includes(all)", f"of {everything}")
    assert 0 < count_of(page) < everything
    assert "failed" in page.text_content(".row >> nth=0")
    page.select_option("select[name=by]", "rollouts")
    page.wait_for_selector(".listside > p:has-text('rollouts')")
    assert set(page.locator(".row .value b").all_text_contents()) == {"✕"}
    page.click("text=clear the filters")
    page.fill("input[name=reward_min]", "0.9")
    page.select_option("select[name=sort]", "reward")
    page.select_option("select[name=order]", "up")
    wait_for(page, "() => [...document.querySelectorAll('.row .value b')].every((b) => Number(b.textContent) >= 0.9)")
    values = [float(text) for text in page.locator(".row .value b").all_text_contents()]
    assert values == sorted(values)
    page.fill("#search", "no such text")
    page.wait_for_selector("text=no rollout matches")
    page.fill("#search", "easy to follow")
    page.wait_for_selector(".row")
    page.reload()  # the filters are in the address
    page.wait_for_selector(".row")
    assert page.input_value("#search") == "easy to follow"
    assert page.input_value("input[name=reward_min]") == "0.9"


def test_a_run_that_goes_on_is_followed_without_losing_the_place(open_page: Open, view: View, tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "long", steps=24, prompts=6)
    address = view(folder)
    page = open_page(address + "#view=rollouts&run=long&stage=policy&line=20&rollout=1")
    page.wait_for_selector(".rollout.on")
    before = count_of(page)
    page.evaluate("document.querySelector('.rows').scrollTop = 150; window.scrollTo(0, 120)")
    text = page.text_content(".group")
    place = page.evaluate("[document.querySelector('.rows').scrollTop, window.scrollY]")
    with (folder / "rollouts" / "policy.jsonl").open("a") as file:
        file.write(json.dumps(line("a new answer", Score(1.0), step=25)) + "\n")
    wait_for(page, "(n) => document.querySelector('.listside > p').textContent.includes(n)", f"of {before + 1}")
    assert page.evaluate("[document.querySelector('.rows').scrollTop, window.scrollY]") == place
    assert page.text_content(".group") == text
    page.goto(address + "#view=run&run=long")
    chart = "figure.chart:has(.metric:text-is('policy/entropy')) .plot"
    page.wait_for_selector(f"{chart} canvas")
    page.evaluate("window.scrollTo(0, 700)")
    canvas = page.query_selector(f"{chart} canvas")
    metrics = {"stage": "policy", "step": 25, "metrics": {"policy/entropy": 0.5}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(metrics) + "\n")
    page.wait_for_selector(f"{chart}[aria-label*='at step 25']")
    assert canvas.evaluate("(one) => one.isConnected")  # the same drawing, with another point
    assert page.evaluate("window.scrollY") == 700


def test_runs_are_compared(open_page: Open, address: str) -> None:
    page = open_page(address)
    for name in ("long", "short"):
        page.check(f"input[aria-label='compare {name}']")
    page.click("text=Compare 2 runs")
    page.wait_for_selector("text=Settings that differ")
    table = page.text_content("details:has(> summary:has-text('Settings that differ')) table")
    assert "stages.0.loss.high" in table
    assert "0.28" in table
    assert "0.4" in table
    assert "title" not in table
    chart = page.wait_for_selector("figure.chart:has(.metric:text-is('reward/mean')):has(canvas)")
    assert [text.split()[0] for text in chart.query_selector(".values").inner_text().split("\n") if text] == [
        "long",
        "short",
    ]
    page.wait_for_selector(".cases table")
    all_cases = page.locator(".cases tbody tr").count()
    page.click("button:has-text('worse ')")
    wait_for(page, "(n) => document.querySelectorAll('.cases tbody tr').length < n", all_cases)
    page.click(".cases a.case >> nth=0")
    page.wait_for_selector(".group .rollout")


def test_the_first_and_the_last_validation_of_one_run(open_page: Open, address: str) -> None:
    page = open_page(address + "#view=compare&with=long")
    page.wait_for_selector(".cases table")
    heads = page.locator(".cases thead th").all_text_contents()
    assert heads == ["prompt", "step 0", "step 24", "change"]
    assert page.locator(".cases .better").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_never_scrolls_sideways(open_page: Open, address: str, scheme: str) -> None:
    page = open_page(address, width=390, height=844, color_scheme=scheme)
    for place, found in {
        "view=runs": ".runname",
        "view=run&run=long": ".plot canvas",
        "view=rollouts&run=long&stage=policy": ".row",
        "view=rollouts&run=judged&stage=policy&line=1&rollout=2": ".rollout.on",
        "view=compare&with=long&with=short": ".cases table",
    }.items():
        page.goto(f"{address}#{place}")
        page.wait_for_selector(found)
        assert no_sideways_scroll(page), place
    page.goto(f"{address}#view=rollouts&run=judged&stage=policy&line=1")
    page.click("text=← list")
    page.wait_for_selector(".row:visible")
    assert page.locator(".group").is_hidden()


def test_the_keyboard_goes_everywhere(open_page: Open, address: str) -> None:
    page = open_page(address + "#view=rollouts&run=long&stage=policy")
    page.wait_for_selector(".row")
    page.keyboard.press("j")
    page.wait_for_selector(".row.on >> nth=0")
    first = page.evaluate("location.hash")
    page.keyboard.press("j")
    wait_for(page, "(hash) => location.hash !== hash", first)
    page.keyboard.press("k")
    wait_for(page, "(hash) => location.hash === hash", first)
    page.keyboard.press("Escape")
    wait_for(page, "() => !document.querySelector('.row.on')")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("output:has-text('step 0')")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("output:has-text('step 1 ')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("jjj?")
    assert page.locator("dialog").count() == 0
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_selector("dialog.help[open]")
    page.keyboard.press("Escape")
    wait_for(page, "() => !document.querySelector('dialog')")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, a, input, select')].filter((one) => !(one.textContent.trim()"
        " || one.getAttribute('aria-label') || one.labels?.length)).map((one) => one.outerHTML)"
    )
    assert unnamed == []


def test_j_goes_over_the_end_of_a_page(open_page: Open, address: str) -> None:
    page = open_page(address + "#view=rollouts&run=long&stage=policy&line=49")
    page.wait_for_selector(".row.on")
    page.click(".row >> nth=49")
    page.keyboard.press("j")
    page.wait_for_selector("text=page 2 of")
    page.wait_for_selector(".row.on >> nth=0")
    page.keyboard.press("k")
    page.wait_for_selector("text=page 1 of")


def test_j_goes_over_the_end_of_a_page_that_is_drawn_meanwhile(open_page: Open, address: str) -> None:
    page = open_page(address + "#view=rollouts&run=long&stage=policy&line=49")
    page.wait_for_selector(".row.on")
    page.evaluate(press("j") + "window.dispatchEvent(new HashChangeEvent('hashchange'))")
    page.wait_for_selector("text=page 2 of")
    page.wait_for_selector(".row.on >> nth=0")


def test_keys_that_come_faster_than_the_page_is_drawn(open_page: Open, address: str) -> None:
    page = open_page(address + "#view=rollouts&run=long&stage=policy&line=0")
    page.wait_for_selector(".row.on")
    page.evaluate(press("j") * 3 + press("k"))
    wait_for(page, "() => document.querySelectorAll('.row')[2].classList.contains('on')")
    page.evaluate("document.querySelectorAll('.row')[5].click();" + press("j"))
    wait_for(page, "() => document.querySelectorAll('.row')[6].classList.contains('on')")


def test_a_deep_link_shows_its_rollout_and_hostile_text_stays_text(open_page: Open, address: str) -> None:
    page = open_page(address + "#view=rollouts&run=judged&stage=policy&line=2&rollout=1")
    page.wait_for_selector(".rollout.on")
    assert page.locator(".rollout.on pre >> nth=0").inner_text() == HOSTILE
    assert "rule" in page.text_content(".rollout.on .parts")
    page.click("text=Show the prompts of the judges")
    page.wait_for_selector("summary:has-text('judge to judge: rollout 2')", timeout=60_000)
    page.click("summary:has-text('judge to judge: rollout 2')")
    assert HOSTILE in page.text_content("details[open]:has(> summary:has-text('rollout 2'))")
    assert page.locator("main script, main img").count() == 0
    assert "owned" not in page.title()
    failed = page.locator(".rollout.failed").inner_text()
    assert "unparsable" in failed
    page.click(".rollout.failed summary:has-text('what failed') >> nth=0")
    assert "3 attempts" in page.locator(".rollout.failed").inner_text()


def test_tokens_have_the_colours_of_their_rewards(open_page: Open, view: View, tmp_path: Path) -> None:
    folder = write_process_run(tmp_path / "process", steps=3)
    page = open_page(view(folder) + "#view=rollouts&run=process&stage=policy&line=0")
    page.wait_for_selector(".tok.up")
    assert page.locator(".legend").get_attribute("aria-label").startswith("Colours of process")
    page.click(".key button:text-is('step')")
    page.wait_for_selector(".legend[aria-label^='Colours of step']")


def test_a_server_that_is_gone_is_noticed(open_page: Open, address: str) -> None:
    page = open_page(address)
    page.wait_for_selector(".runname")
    page.route("**/api/version*", lambda route: route.fulfill(status=200, body="{"))
    page.wait_for_selector("[role=alert]:has-text('does not answer')")
    page.unroute("**/api/version*")
    wait_for(page, "() => !document.querySelector('[role=alert]')")


def test_a_bundle_is_the_same_page_from_files(open_page: Open, tmp_path: Path) -> None:
    runs, site = write_runs(tmp_path / "runs"), tmp_path / "site"
    command = [sys.executable, "-m", "rewardsmith", "view", str(runs), "--bundle", str(site)]
    environment = os.environ | {"REWARDSMITH_CACHE": str(tmp_path / "cache")}
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=120)
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            page = open_page(f"http://127.0.0.1:{server.server_address[1]}/")
            page.wait_for_selector(".runname")
            page.click("a.runname:text-is('long')")
            page.wait_for_selector(".plot canvas")
            page.click("a.action:has-text('rollouts')")
            page.wait_for_selector(".row")
            everything = count_of(page)
            page.click(".morefilters summary")
            page.select_option("select[name=failure]", "timeout")
            wait_for(
                page, "(all) => !document.querySelector('.listside > p').textContent.includes(all)", f"of {everything}"
            )
            page.click("text=clear the filters")
            page.fill("#search", "easy to follow")
            wait_for(page, "() => location.hash.includes('text=easy')")
            page.wait_for_selector(".row")
            page.click(".row >> nth=0")
            page.wait_for_selector(".group .rollout")
            page.goto(
                f"http://127.0.0.1:{server.server_address[1]}/#view=rollouts&run=judged&stage=policy&line=2&rollout=1"
            )
            page.wait_for_selector(".rollout.on")
            assert page.locator(".rollout.on pre >> nth=0").inner_text() == HOSTILE
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/#view=compare&with=long&with=short")
            page.wait_for_selector(".cases table")
        finally:
            server.shutdown()
            thread.join()


def test_what_is_typed_is_kept_by_other_filters_and_left_behind_in_another_run(open_page: Open, address: str) -> None:
    page = open_page(address + "#view=rollouts&run=long&stage=policy")
    page.wait_for_selector(".row")
    typed = "const box = document.getElementById('search'); box.value = TEXT; box.dispatchEvent(new Event('input'));"
    page.evaluate(
        typed.replace("TEXT", "'easy'")
        + "const sort = document.querySelector('select[name=sort]'); sort.value = 'reward';"
        + "sort.dispatchEvent(new Event('change'));"
    )
    wait_for(page, "() => location.hash.includes('text=easy') && location.hash.includes('sort=reward')")
    deep = "#view=rollouts&run=judged&stage=policy&line=2&rollout=1"
    page.evaluate(f"{typed.replace('TEXT', repr('follow'))} location.hash = '{deep}';")
    page.wait_for_selector(".rollout.on")
    page.wait_for_timeout(600)  # longer than a search waits for the next key
    assert page.evaluate("location.hash") == deep
