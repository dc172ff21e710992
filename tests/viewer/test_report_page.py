"""The page of the report as node runs it: its scripts, the tokens in the colours of their rewards, evaluations."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Failure, Message, Prompt, Rollout, Score
from rewardsmith.console import Table
from rewardsmith.jobs import Result
from rewardsmith.trainers.evaluate.eval_measures import evaluation_result
from rewardsmith.trainers.evaluate.evaluate_policy import JudgedGroup, evaluate_policy
from rewardsmith.trainers.evaluate.reward_measures import Verdicts, measure_grades
from rewardsmith.viewer.rollout_view import IN_REPORT, Limits, token_rewards
from rewardsmith.viewer.run_overview import read_evaluations
from tests.runs.fake_run import by_letter, dense, line, record, write_lines, write_process_run
from tests.trainers.evaluate.rewards import graded
from tests.viewer.test_report import HOSTILE, page_of

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")

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
const matchMedia = () => ({ addEventListener() {} }), navigator = { language: "en" }, devicePixelRatio = 1;
const document = { addEventListener() {},
  createElement: (tag) => new Node(tag), createElementNS: (_, tag) => new Node(tag),
  getElementById: (id) => (id === "page" ? page : { textContent: require("fs").readFileSync(0, "utf-8") }) };
const window = { addEventListener() {}, dispatchEvent() {}, matchMedia };
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
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


ASIDES = (
    'console.log(JSON.stringify(page.all("details").filter((one) => one["@class"] === "aside").map((x) => x.text())))'
)


@needs_node
def test_the_page_shows_the_parts_words_the_times_of_a_step_and_the_models(tmp_path: Path) -> None:
    judge = Score(0.5, feedback="Step 2 is wrong.")
    parts = {"judge": judge, "rule": Score(failure=Failure("crashed", "division by zero"))}
    rows = [line("a", Score(0.5, parts=parts)), line("b", Score(0.5, parts={"judge": judge, "rule": judge}))]
    rows[1]["scored"]["scores"][0]["feedback"] = judge.feedback  # what a part output too is not output twice
    write_lines(tmp_path / "rollouts" / "policy.jsonl", rows)
    times = {"time/write": 1.0, "time/wait": 2.0, "time/reward/p50": 3.0}
    write_lines(tmp_path / "metrics.jsonl", [{"stage": "policy", "step": 1, "metrics": times}])
    (tmp_path / "summary.json").write_text(json.dumps({"models": {"judge": {"calls": 11, "cost": 0.125}}}))
    show = 'console.log(JSON.stringify([page.all("table")[0].text(), window.rs.grouped(window.rs.data.stages[0]'
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


# ---- tokens in the colours of their rewards --------------------------------------------------------------------------


def rewards_of(rollout: Rollout, limit: int = IN_REPORT.text, **parts: Score) -> dict[str, Any] | None:
    return token_rewards(rollout, Score(1.0, parts=parts), Limits(text=limit))


@given(data=st.data())
def test_the_tokens_tile_what_is_shown(data: st.DataObject) -> None:
    text = data.draw(st.text("ab \n🙂", max_size=12))
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=1, max_size=12)))
    support = data.draw(st.lists(st.booleans(), min_size=len(ends), max_size=len(ends)))
    limit = data.draw(st.integers(1, 14))
    values = [float(i + 1) for i in range(len(ends))]
    found = rewards_of(Rollout(text, [1] * len(ends), ends=ends), limit, p=dense(values, support))
    starts = [0, *ends[:-1]]
    shown = [i for i in range(len(ends)) if len(text) <= limit or starts[i] < limit]
    if not any(support[i] for i in shown):
        assert found is None
        return
    assert found is not None
    assert sum(found["sizes"]) == min(ends[shown[-1]], limit)
    assert np.cumsum([0, *found["sizes"]])[:-1].tolist() == [starts[i] for i in shown]
    assert found["parts"][0]["values"] == [values[i] if support[i] else None for i in shown]
    assert found["parts"][0]["sum"] == sum(value for value, carries in zip(values, support, strict=True) if carries)


def test_a_report_of_huge_rollouts_stays_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rollouts = [by_letter("z" * 6_000)] * 8
    parts = {f"part{i}": Score(1.0, token_values=rng.normal(size=6_001)) for i in range(9)}
    scores = [Score(1.0, parts=parts)] * 8
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [record(rollouts, scores, step) for step in (1, 1, 2, 3)])
    page = page_of(tmp_path)
    (stage,) = page.data["stages"]
    found = [one["rewards"] for key in ("first", "last") for g in stage["rollouts"][key] for one in g["rollouts"]]
    assert {len(one["parts"]) for one in found} == {IN_REPORT.coloured}
    assert {len(one["sizes"]) for one in found} == {IN_REPORT.tokens}
    numbers = IN_REPORT.tokens * (IN_REPORT.coloured + 1)
    assert len(page.texts["script"][0]) < len(found) * (IN_REPORT.text + 1_500 + 8 * numbers)


# ---- the page --------------------------------------------------------------------------------------------------------

# Of every coloured text: the pieces as [text, class, title, sign], and the line below it.
INKED = """
const inked = () => page.all("article").filter((one) => (one["@class"] || "").startsWith("rollout")).map((one) => {
  const pre = one.all("pre")[0], sum = one.all("p").find((line) => (line["@class"] || "").startsWith("sum"));
  return { pieces: pre.children.map((span) => (span instanceof Node
    ? [span.text(), span["@class"], span["@title"], span["@data-sign"]] : span)), sum: sum && sum.text() };
});
const print = (value) => console.log(JSON.stringify(value === undefined ? null : value));
"""


def lines_of(folder: Path, *after: str) -> list[Any]:
    return [json.loads(text) for text in run_page(folder, INKED + "\n".join(after)).splitlines()]


@needs_node
def test_the_page_colours_tokens_by_sign_and_size(tmp_path: Path) -> None:
    values = [1.0, -0.5, 0.05, -1.0, 0.9]
    rollouts = [by_letter("a🙂<b"), Rollout("plain", [1])]
    scores = [Score(1.0, parts={"process": dense(values)}), Score(1.0, parts={"process": Score(0.5)})]
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [record(rollouts, scores)])
    (first, second) = lines_of(tmp_path, "print(inked());")[0]
    assert first["pieces"] == [
        ["a", "tok up l6", "token 1: +1", None],
        ["🙂", "tok down l3", "token 2: −0.5", None],
        ["<", "tok ", "token 3: +0.05", None],
        ["b", "tok down l6", "token 4: −1", None],
        ["", "tok up l5", "token 5: +0.9", "◦"],
    ]
    assert first["sum"].split() == ["sum", "of", "process", "+0.45"]
    assert second["pieces"] == ["plain"]
    assert "sum" not in second


@needs_node
def test_hostile_tokens_stay_text(tmp_path: Path) -> None:
    prompt = Prompt("p", [Message("user", "?")])
    texts = [text for text in HOSTILE if "\0" not in text]
    rows = [
        record([by_letter(text)], [Score(1.0, parts={text: dense([1.0] * (len(text) + 1))})], 1, prompt)
        for text in texts
    ]
    write_lines(tmp_path / "rollouts" / "policy.jsonl", rows[:3])
    shown = lines_of(tmp_path, 'print(inked().map((one) => one.pieces.map((piece) => piece[0]).join("")));')[0]
    assert shown == texts[:3]


@needs_node
def test_what_a_process_reward_learned_stands_at_the_top_of_its_stage(tmp_path: Path) -> None:
    write_process_run(tmp_path, steps=4)
    found = lines_of(
        tmp_path,
        'const folds = page.all("details").filter((one) => one["@class"] === "fold");',
        "const spans = (fold, kind) => fold.all('span').filter((x) => x['@class'] === kind).map((x) => x.text());",
        "const names = (fold) => spans(fold, 'metric');",
        "print(folds.map((one) => one.all('summary')[0].children[0])); print(names(folds[0]));",
        'print(spans(folds[0], "values").map((text) => text.replace(/\\s+/g, " ").trim()));',
        "print(folds[0].all('figure')[0].all('b').map((one) => one.textContent));",
        "print(folds.slice(1).flatMap(names).filter((name) => name.startsWith('learned')));",
    )
    assert found[0][0] == "Process rewards"
    measures = ["accuracy", "steps", "trust", "loss"]
    assert found[1] == [f"learned/{part}/{name}" for part in ("process", "step") for name in measures]
    assert found[2][:2] == ["fresh after chance", "wrong step found by chance"]
    assert found[3][2] == "0.500"
    assert found[4] == ["learned/grad_norm"]  # all else stays where it was


# ---- evaluations -----------------------------------------------------------------------------------------------------


def keep(folder: Path, **found: Result) -> None:
    (folder / "evaluations").mkdir(parents=True, exist_ok=True)
    for name, one in found.items():
        text = json.dumps({"name": name, **one.as_json()}, allow_nan=False)
        (folder / "evaluations" / f"{name}.json").write_text(text, encoding="utf-8")


def evaluation(kind: str, metrics: Any, main: Any = (), tables: Any = ()) -> Result:
    return evaluation_result(kind, metrics, main, tables, [], 0.0)


def policy(unsound: int) -> Result:
    return evaluate_policy([JudgedGroup((True, False), (i >= unsound, None)) for i in range(10)])


def test_stages_of_a_kind_stand_in_their_order_with_their_main_measures(tmp_path: Path) -> None:
    keep(tmp_path, b_alone=policy(7), a_judged=policy(1))
    found = read_evaluations(tmp_path, ["sft", "b_alone", "a_judged"])
    assert [one["name"] for one in found] == ["b_alone", "a_judged"]
    assert [one["main"]["unsound"] for one in found] == [0.7, 0.1]
    assert found[0]["tables"][0]["columns"][1] == {"name": "value", "form": "number"}
    assert read_evaluations(tmp_path, [])[0]["name"] == "a_judged"


def shown(folder: Path, query: str) -> Any:
    """Return what a query of the page comes to, in node."""
    return json.loads(run_page(folder, f"\nconsole.log(JSON.stringify({query}))"))


@needs_node
def test_the_page_compares_stages_and_shows_their_tables(tmp_path: Path) -> None:
    items = [(graded(1.0, "x", True, True), 0.9), (graded(0.2, "x", True, False), 0.3)]
    answers = [Verdicts(item, np.array([score])) for item, score in items]
    metrics, tables = measure_grades(answers)
    judge = evaluation("grades", metrics, ("mad",), tables)
    keep(tmp_path, alone=policy(7), judged=policy(1), judge=judge)
    rows = shown(tmp_path, 'page.all("table").slice(0, 2).map((t) => t.all("tr").map((r) => r.text()))')
    policies = [[cell for cell in row.split(" ") if cell] for row in rows[0]]
    assert policies[0][:4] == ["stage", "accuracy", "verified", "unsound"]
    assert policies[1][:4] == ["alone", "50.0%", "15.0%", "70.0%"]
    assert policies[2][:4] == ["judged", "50.0%", "45.0%", "10.0%"]
    assert "accuracy 50.0%" in shown(tmp_path, 'page.all("table").map((t) => t.text()).join(" ")')  # and so in its own
    assert [row.split() for row in rows[1]] == [["stage", "mad"], ["judge", "0.100"]]
    titles = shown(tmp_path, 'page.all("h3").map((h) => h.text())')
    assert titles[:2] == ["Policies", "Rewards on graded answers"]
    assert "by score" in titles
    assert "100.0%" in shown(tmp_path, 'page.all("table").map((t) => t.text()).join(" ")')


@needs_node
def test_hostile_text_of_an_evaluation_stays_text(tmp_path: Path) -> None:
    rows = [[text, 1.0] for text in HOSTILE]
    table = Table(HOSTILE[0], {HOSTILE[1]: "text", "n": "number"}, rows, HOSTILE[2])
    keep(tmp_path, evil=evaluation(HOSTILE[3], {HOSTILE[0]: 0.5}, (HOSTILE[0],), [table]))
    page = page_of(tmp_path)
    assert [tag for tag, _ in page.tags].count("script") == 2
    text = shown(tmp_path, "page.text()")
    assert HOSTILE[0] in text
    assert "\0" not in text


# ---- no number twice -------------------------------------------------------------------------------------------------


@needs_node
def test_tiles_do_not_repeat_each_other_and_differ_by_points(tmp_path: Path) -> None:
    both = {"validation/mean@2": 0.25, "validation/pass@1": 0.25, "validation/pass@2": 0.5, "validation/prompts": 64}
    after = {**both, "validation/mean@2": 0.5, "validation/pass@1": 0.5}
    metrics = [{"stage": "policy", "step": i, "metrics": values} for i, values in enumerate([both, after])]
    write_lines(tmp_path / "metrics.jsonl", metrics)
    tiles = shown(tmp_path, 'page.all("article").filter((a) => a["@class"].startsWith("head")).map((a) => a.text())')
    assert [" ".join(tile.split()) for tile in tiles] == [
        "mean@2 policy 25.0% → 50.0% ▲ 25.0 points",
        "pass@2 policy 50.0% → 50.0% = 0.0 points",
    ]


@needs_node
def test_constant_curves_are_a_table(tmp_path: Path) -> None:
    metrics = [
        {"stage": "policy", "step": i, "metrics": {"lr": 0.1, "loss": 1.0 / i, "time/a": 1.0, "time/b": float(i)}}
        for i in (1, 2, 3)
    ]
    write_lines(tmp_path / "metrics.jsonl", metrics)
    names = shown(tmp_path, 'page.all("span").filter((x) => x["@class"] === "metric").map((x) => x.text())')
    assert names == ["loss", "time/step"]  # a constant part of a step's time stays with the others
    assert shown(tmp_path, 'page.all("td").map((x) => x.text())') == ["lr", "0.100"]
