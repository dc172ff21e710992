"""The report in a real browser, as wide as a phone: nothing makes the page scroll sideways."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Failure, Score
from rewardsmith.runs.report import write_report
from rewardsmith.trainers.evaluate.evaluate_policy import JudgedGroup, evaluate_policy
from tests.runs.fake_process import write_process_run
from tests.runs.fake_run import line, write_fake_run, write_lines

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
PHONE, WIDTHS = 390, (320, 390, 1200)
LONG = "a_name_without_a_single_place_to_break_it_which_somebody_has_given_to_this_part_of_a_recipe"

# A browser's own window cannot be that narrow, a frame can. All folds are opened before anything is measured.
FRAMES = """<!doctype html><meta charset="utf-8"><body><pre id="found"></pre><script>
function measure(frame) {
  const inside = frame.contentDocument, rail = inside.querySelector(".rail");
  const stuck = rail && frame.contentWindow.getComputedStyle(rail).position === "sticky";
  return { room: inside.documentElement.clientWidth, needed: inside.documentElement.scrollWidth,
    text: inside.body.innerText.length, stuck: stuck ? rail.offsetHeight : 0 };
}
const frames = ADDRESSES.flatMap((address) => WIDTHS.map((width) => Object.assign(document.body.appendChild(
  document.createElement("iframe")), { src: address, width, height: 800, frameBorder: 0 })));
addEventListener("load", () => setTimeout(() => {
  for (const frame of frames) for (const fold of frame.contentDocument.querySelectorAll("details")) fold.open = true;
  setTimeout(() => { document.getElementById("found").textContent = JSON.stringify(frames.map(measure)); }, 300);
}, 300));
</script>"""


def measured(folders: list[Path]) -> list[dict[str, Any]]:
    """Return how wide the reports of runs are in frames of all widths, in CSS pixels; one browser looks at all."""
    for one in folders:
        write_report(one)
    addresses = json.dumps([(one / "report.html").as_uri() for one in folders])
    folder = folders[0]
    frames = FRAMES.replace("ADDRESSES", addresses).replace("WIDTHS", json.dumps(WIDTHS))
    (folder / "frame.html").write_text(frames, encoding="utf-8")
    done = subprocess.run(
        [
            str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
            "--disable-web-security", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000",
            "--dump-dom", (folder / "frame.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout)
    assert found, done.stderr[-2000:]
    return list(json.loads(unescape(found[1])))


def write_long_run(folder: Path) -> Path:
    """Write a run of many stages with long names, as lifecycles of reward models have them."""
    parts = {LONG: Score(0.5, feedback=LONG), "rule": Score(failure=Failure("crashed", LONG))}
    rows = [line(LONG, Score(0.5, parts=parts)) for _ in range(3)]
    rows[1]["dropped"] = LONG
    stages = [f"stage_{i}" for i in range(9)] + [LONG]
    for stage in stages:
        write_lines(folder / "rollouts" / f"{stage}.jsonl", rows)
    values = {LONG: 1.0, f"reward/{LONG}": 2.0, f"validation/{LONG}": 0.5, "policy/loss": 1e-7}
    lines = [{"stage": stage, "step": step, "metrics": values} for stage in stages for step in range(3)]
    write_lines(folder / "metrics.jsonl", lines)
    (folder / "recipe.toml").write_text(f'title = "{LONG}"\n')
    summary = {
        "title": LONG, "state": "stopped", "models": {LONG: {"calls": 11, "cost": 0.125, "tokens": 10**9}},
        "stages": [{"name": s, "type": "policy", "steps": 3, "seconds": 1e5, "after": values} for s in stages],
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    found = evaluate_policy([JudgedGroup((True, False), (True, None))] * 3)
    (folder / "evaluations").mkdir()
    (folder / "evaluations" / f"{LONG}.json").write_text(json.dumps({"name": LONG, **found.as_json()}))
    return folder


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")
def test_the_page_never_scrolls_sideways_and_what_stays_in_sight_is_low(tmp_path: Path) -> None:
    runs = {name: tmp_path / name for name in ("plain", "process", "long")}
    for write, folder in zip((write_fake_run, write_process_run, write_long_run), runs.values(), strict=True):
        write(folder)
    found = iter(measured(list(runs.values())))
    for name in runs:
        for width in WIDTHS:
            page = next(found)
            assert page["text"] > 500, (name, width)
            assert page["needed"] <= page["room"], (name, width)
            assert page["stuck"] < 100 or width > PHONE, (name, width)
