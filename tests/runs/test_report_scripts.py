"""The scripts of the report, run by node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rewardsmith import Failure, Score
from tests.runs.fake_run import line, write_fake_run, write_lines
from tests.runs.test_report import page_of


@pytest.mark.skipif(shutil.which("node") is None, reason="node checks the syntax")
def test_the_scripts_are_scripts(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    whole = page_of(tmp_path)
    (tmp_path / "report.js").write_text(whole.texts["script"][1])
    subprocess.run(["node", "--check", str(tmp_path / "report.js")], check=True, timeout=30)


# As little of a browser as the scripts need: elements with children, and all text that they hold. All is in sight.
BROWSER = """
class Classes extends Set { remove(name) { this.delete(name); } }
class Node {
  constructor(tag) { this.tag = tag; this.children = []; this.style = {}; this.classList = new Classes(); }
  setAttribute(name, value) { this[`@${name}`] = String(value); }
  append(...all) { this.children.push(...all); }
  replaceChildren(...all) { this.children = all; }
  addEventListener(name, listener) { this[`on${name}`] = listener; }
  scrollIntoView() {}
  text() { return this.children.map((one) => (one instanceof Node ? one.text() : one)).join(" "); }
  all(tag) { return this.children.filter((one) => one instanceof Node)
    .flatMap((one) => [...(one.tag === tag ? [one] : []), ...one.all(tag)]); }
}
const page = new Node("div");
const document = { createElement: (tag) => new Node(tag), createElementNS: (_, tag) => new Node(tag),
  getElementById: (id) => (id === "page" ? page : { textContent: require("fs").readFileSync(0, "utf-8") }) };
const window = { addEventListener() {} };
class ResizeObserver { observe() {} }
class IntersectionObserver {
  constructor(callback) { this.callback = callback; }
  observe(target) { this.callback([{ target, isIntersecting: true }]); }
  unobserve() {}
}
"""


def run_page(folder: Path, after: str) -> str:
    """Run the scripts of the folder's report, and then `after`; return what was printed."""
    page = page_of(folder)
    script = folder / "page.js"
    script.write_text(BROWSER + page.texts["script"][1] + after)
    done = subprocess.run(
        ["node", str(script)], input=page.texts["script"][0], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ASIDES = (
    'console.log(JSON.stringify(page.all("details").filter((one) => one["@class"] === "aside").map((x) => x.text())))'
)


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")
def test_the_page_shows_the_parts_words_the_times_of_a_step_and_the_models(tmp_path: Path) -> None:
    judge = Score(0.5, feedback="Step 2 is wrong.")
    parts = {"judge": judge, "rule": Score(failure=Failure("crashed", "division by zero"))}
    rows = [line("a", Score(0.5, parts=parts)), line("b", Score(0.5, parts={"judge": judge, "rule": judge}))]
    rows[1]["scored"]["scores"][0]["feedback"] = judge.feedback  # what a part output too is not output twice
    write_lines(tmp_path / "rollouts" / "policy.jsonl", rows)
    times = {"time/write": 1.0, "time/wait": 2.0, "time/reward/p50": 3.0}
    write_lines(tmp_path / "metrics.jsonl", [{"stage": "policy", "step": 1, "metrics": times}])
    (tmp_path / "summary.json").write_text(json.dumps({"models": {"judge": {"calls": 11, "cost": 0.125}}}))
    show = 'console.log(JSON.stringify([page.all("table")[0].text(), window.report.grouped(window.report.data.stages[0]'
    show += ".curves, []).flatMap(([, charts]) => charts.map(([name]) => name))]))"
    asides, (models, charts) = map(json.loads, run_page(tmp_path, ASIDES + "\n" + show).splitlines())
    assert asides == [
        "what failed in rule division by zero",
        "feedback of judge Step 2 is wrong.",
        "feedback of judge Step 2 is wrong.",
        "feedback of rule Step 2 is wrong.",
    ]
    assert models == "model calls cost judge 11 0.125"
    assert charts == ["time/step", "time/reward/p50"]
