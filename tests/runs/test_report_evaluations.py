"""The evaluations of a report: side by side, bounded, and text that stays text."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.console import Table
from rewardsmith.jobs import Result
from rewardsmith.runs.report import read_evaluations
from rewardsmith.trainers.evaluate.eval_measures import evaluation_result
from rewardsmith.trainers.evaluate.evaluate_grades import GradedAnswer, measure_grades
from rewardsmith.trainers.evaluate.evaluate_policy import JudgedGroup, evaluate_policy
from tests.runs.fake_run import write_fake_run, write_lines
from tests.runs.test_report import HOSTILE, page_of
from tests.runs.test_report_scripts import run_page


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


def test_a_report_without_evaluations_has_none(tmp_path: Path) -> None:
    assert page_of(write_fake_run(tmp_path)).data["evaluations"] == []


def shown(folder: Path, query: str) -> Any:
    """Return what a query of the page comes to, in node."""
    return json.loads(run_page(folder, f"\nconsole.log(JSON.stringify({query}))"))


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")
def test_the_page_compares_stages_and_shows_their_tables(tmp_path: Path) -> None:
    answers = [GradedAnswer(1.0, 0.9, True, True), GradedAnswer(0.2, 0.3, True, False)]
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


def test_chance_stands_beside_the_accuracy_where_it_is_known(tmp_path: Path) -> None:
    metrics = {"accuracy": 0.4, "chance": 0.3, "kendall": 0.2}
    main = ("accuracy", "kendall")
    keep(tmp_path, a=evaluation("rankings", metrics, main), b=evaluation("rankings", {"accuracy": 1}, main))
    found = read_evaluations(tmp_path, [])
    assert [list(one["main"]) for one in found] == [["accuracy", "chance", "kendall"], ["accuracy"]]
    assert found[0]["shares"] == ["accuracy", "chance"]


# ---- cards and charts ------------------------------------------------------------------------------------------------


def write_metrics(folder: Path, **stages: list[dict[str, float]]) -> None:
    rows = [
        {"stage": stage, "step": step, "metrics": {f"validation/{name}": value for name, value in metrics.items()}}
        for stage, steps in stages.items()
        for step, metrics in enumerate(steps)
    ]
    write_lines(folder / "metrics.jsonl", rows)


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")
def test_every_stage_has_a_card_before_any_has_its_second(tmp_path: Path) -> None:
    judge = {
        "loss": 0.7,
        "reward/mean": 0.1,
        "accuracy/x": 0.2,
        "accuracy": 0.5,
        "margin": 0.1,
        "tied": 0,
        "a": 1,
        "b": 1,
        "c": 1,
    }
    policy = {"length": 3.0, "best@2": 0.5, "mean@2": -0.5, "pass@1": 0.5, "failed": 0.0}
    write_metrics(
        tmp_path, judge=[judge, judge | {"accuracy": 0.75}], policy=[policy, policy | {"mean@2": 0.25}], end=[policy]
    )
    cards = shown(
        tmp_path,
        'page.all("article").filter((x) => /head/.test(x["@class"])).map((x) => x.all("p").map((y) => y.text()))',
    )
    names = [" ".join(card[0].split()) for card in cards]
    assert names[:5] == ["mean@2 policy", "accuracy judge", "mean@2 end", "loss judge", "pass@1 policy"]
    assert names[-1] == "accuracy/x judge"
    assert not [name for name in names if name.startswith(("tied", "failed"))]
    assert [" ".join(card[1].split()) for card in cards[:3]] == [
        "−0.500 → 0.250 ▲ 0.750",
        "50.0% → 75.0% ▲ 25.0%",
        "−0.500",
    ]


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")
def test_held_out_parts_of_a_reward_share_a_chart(tmp_path: Path) -> None:
    write_metrics(
        tmp_path,
        policy=[{"reward/rule": 0.5, "reward/judge": 0.25, "accuracy": 0.5, "accuracy/x": 0.5, "reward/other": 1}],
    )
    charts = 'window.report.grouped(window.report.data.stages[0].curves, ["rule", "judge"])[0][1]'
    found = dict(shown(tmp_path, f"{charts}.map(([name, all]) => [name, all.map((one) => one.label)])"))
    assert found["validation/reward"] == ["rule", "judge"]
    assert found["validation/accuracy"] == ["accuracy", "x"]


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")
def test_hostile_text_stays_text(tmp_path: Path) -> None:
    rows = [[text, 1.0] for text in HOSTILE]
    table = Table(HOSTILE[0], {HOSTILE[1]: "text", "n": "number"}, rows, HOSTILE[2])
    keep(tmp_path, evil=evaluation(HOSTILE[3], {HOSTILE[0]: 0.5}, (HOSTILE[0],), [table]))
    page = page_of(tmp_path)
    assert [tag for tag, _ in page.tags].count("script") == 2
    text = shown(tmp_path, "page.text()")
    assert HOSTILE[0] in text
    assert "\0" not in text
