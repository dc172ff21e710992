"""The evaluations of a report: side by side, bounded, and text that stays text."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith.console import Table
from rewardsmith.jobs import Result
from rewardsmith.runs.report import read_evaluations
from rewardsmith.trainers.evaluate.eval_measures import evaluation_result
from rewardsmith.trainers.evaluate.evaluate_policy import JudgedGroup, evaluate_policy
from rewardsmith.trainers.evaluate.reward_measures import Verdicts, measure_grades
from tests.runs.test_report import HOSTILE, page_of
from tests.runs.test_report_scripts import run_page
from tests.trainers.evaluate.rewards import graded


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


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")
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


# ---- cards and charts ------------------------------------------------------------------------------------------------


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
