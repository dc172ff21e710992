"""What is written, read back by those who use it: our sources, the rubric reward, the reward that trains a judge."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Rollout, RolloutGroup
from rewardsmith.data import Jsonl, Parquet
from rewardsmith.data.preparing import rows_to
from rewardsmith.data.rows import Layout
from rewardsmith.data.rubrics import Grades, SolutionRows, Teacher
from rewardsmith.data.rubrics.asking import Asking
from rewardsmith.data.rubrics.files import RowFiles
from rewardsmith.data.rubrics.rows import GradedSolution, Uniform, rubric_facts, with_criteria
from rewardsmith.errors import UserError
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.judges.rubric import Rubric
from rewardsmith.text.judge_prompts import load_grading_template
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.rubrics import parse_rubric
from tests.rewards.judges.asked import connected
from tests.rewards.models import Scripted
from tests.runs.preparing.serving import rubric

ROW: dict[str, Any] = {
    "id": "p1",
    "data_source": "maths",
    "prompt": [{"role": "user", "content": "How much is 6 · 7?"}],
    "reward_model": {"ground_truth": "42"},
    "extra_info": {"criteria": [{"name": "a", "points": 6.0, "text": "Right."}, {"points": 4.0, "text": "Shown."}]},
    "responses": ["6 · 7 = 42", "43"],
    "sound": [True, None],
}


def graded(number: int = 0, **changes: Any) -> GradedSolution:
    solution = SolutionRows(Layout()).read(ROW, "file", 1)[number]
    prompt = Teacher(Scripted([]), load_grading_template("rubric"), Asking()).prompt(solution)
    made = GradedSolution(
        id=f"p1#{number}",
        solution=solution,
        prompt=prompt,
        grades=Grades(
            (0.7, 0.9, 0.9), ("Low.\nTotal Score: 7/10", "High.\n**Total Score**: 9", "Again.\nTotal Score: 90%"), 4
        ),
        right=True,
        made_by={"model": "m", "parser": "grade-1"},
        where="file.jsonl, line 1",
        band="8-10",
    )
    return replace(made, **changes)


def written(tmp_path: Path, rows: list[dict[str, Any]], suffix: str = ".jsonl") -> Any:
    file = tmp_path / f"rows{suffix}"
    with rows_to(file) as write:
        for row in rows:
            write(row)
    return (Jsonl if suffix == ".jsonl" else Parquet)(path=str(file), shuffle=False)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_demonstrations(tmp_path: Path, suffix: str) -> None:
    source = written(tmp_path, [graded(0).sft(), graded(1).sft(), graded(1, copy=1).sft()], suffix)
    source.check(of="demonstrations")
    first, second, copy = source.demonstrations(0)
    assert tuple(first.prompt.messages) == tuple(graded().prompt)
    assert first.response == "High.\n\nTotal Score: 9/10"  # the vote nearest to the mean, with its own number
    assert (first.prompt.source, first.prompt.id, copy.prompt.id) == ("grade", "p1#0", "p1#1~1")
    assert second.response == copy.response
    facts = first.prompt.info["extra_info"]
    assert (facts["problem"], facts["problem_source"], facts["response_index"]) == ("p1", "maths", 0)
    assert (facts["band"], facts["from"]) == ("8-10", "file.jsonl, line 1")
    assert dict(facts["graded_by"]) == {"model": "m", "parser": "grade-1"}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_prompts_to_train_against(tmp_path: Path, suffix: str) -> None:
    (prompt, _) = written(tmp_path, [graded(0).rl(), graded(1).rl()], suffix).prompts(0)
    assert prompt.answer == "0.833333"
    assert prompt.source == "grade"
    assert tuple(prompt.messages) == tuple(graded().prompt)
    reward = make_reward({"type": "grade_accuracy"})
    texts = ["Total Score: 8.33333/10", "Total Score: 3.33333/10", "no grade"]
    scores = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text) for text in texts])))
    assert [score.value for score in scores] == pytest.approx([1, 0.25, 0], abs=1e-4)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_solutions_to_measure_a_judge_on(tmp_path: Path, suffix: str) -> None:
    source = written(tmp_path, [graded(0).eval(), graded(1, right=None).eval()], suffix)
    source.check(of="graded")
    first, second = source.graded(0)
    assert (first.response, first.grade, first.right, first.sound) == ("6 · 7 = 42", 0.833333, True, True)
    assert (second.response, second.right, second.sound) == ("43", None, None)
    assert first.prompt.answer == "42"
    # The judge is asked about it just as the teacher was.
    reward, model = connected(Rubric, ["Total Score: 1"])
    asyncio.run(reward.score(RolloutGroup(first.prompt, [Rollout(first.response)])))
    assert model.asked[0].prompt == graded().prompt


def test_a_grade_without_an_analysis_is_no_demonstration() -> None:
    with pytest.raises(Unparsable):
        graded(grades=Grades((0.7,), ("Total Score: 7/10",))).sft()
    assert graded(grades=Grades((0.7,), ("Total Score: 7/10",))).rl()["reward_model"]["ground_truth"] == "0.7"


def test_the_rubric_reward_reads_criteria_as_they_are(tmp_path: Path) -> None:
    found = parse_rubric(json.dumps(rubric()))
    row = {"prompt": "How much is 6 · 7?", "criteria": None, "extra_info": {"index": 3}}
    made = with_criteria(row, found.criteria(), rubric_facts(found, {"model": "m", "tries": 2}))
    assert made["extra_info"]["index"] == 3
    assert made["extra_info"]["criteria_made_by"]["parts"] == ["strategy", "computation", "synthesis", "conclusion"]
    assert "criteria" not in made  # null would hide those in extra_info
    (prompt,) = written(tmp_path, [made]).prompts(0)
    reward, model = connected(Rubric, ["Total Score: 8/10"])
    reward.require(prompt)
    (score,) = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout("42")])))
    assert score.value == pytest.approx(0.8)
    assert "## Criteria (points in all: 10)" in model.seen[0]
    assert all(f"(points: {item.points:g}) {item.text}" in model.seen[0] for item in found.items)


def test_rows_of_one_file_have_the_same_fields() -> None:
    rows = [
        {"prompt": "a", "extra_info": {"x": 1}},
        {"prompt": "b", "difficulty": 3},
        {"prompt": "c", "extra_info": None},
    ]
    uniform = Uniform()
    for row in rows:
        uniform.learn(row)
    made = [uniform(with_criteria(row, [], {})) for row in rows]
    assert len({tuple(sorted(row)) for row in made}) == 1
    assert len({tuple(sorted(row["extra_info"])) for row in made}) == 1
    assert [row["difficulty"] for row in made] == [None, 3, None]
    assert [row["extra_info"]["x"] for row in made] == [1, None, None]


def test_files_of_both_kinds_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{i}", "n": i} for i in range(5)]
    for suffix in (".jsonl", ".parquet"):
        written(tmp_path, rows, suffix)
    (tmp_path / "other.jsonl").write_text('{"prompt": "x"}\nbroken\n')
    read = RowFiles(str(tmp_path / "rows.parquet"), limit=4)
    assert [one.row for one in read] == rows[:4]
    assert [one.where.rpartition(", ")[2] for one in read] == ["row 1", "row 2", "row 3", "row 4"]
    every = RowFiles(str(tmp_path / "*.jsonl"))
    assert [one.number for one in every] == [1, 2, 1, 2, 3, 4, 5]
    assert [type(one.row).__name__ for one in every][:3] == ["dict", "RowError", "dict"]
    assert {file.name: count for file, count in every.counts.items()} == {"other.jsonl": 2, "rows.jsonl": 5}
    with pytest.raises(UserError, match="there is no file"):
        RowFiles(str(tmp_path / "nowhere.jsonl"))
