"""What judges say of themselves for the record of a run: which prompt, and which reader."""

import json
from typing import Any

import pytest

from rewardsmith.rewards import make_reward
from rewardsmith.text.templates import Template, load_template


def sha(name: str) -> str:
    return load_template(name, known=None).sha256


def facts(**table: Any) -> dict[str, Any]:
    found = make_reward({"model": "judge", **table}).reward.facts()  # type: ignore[attr-defined]
    assert json.loads(json.dumps(found)) == found
    return dict(found)


@pytest.mark.parametrize(
    ("table", "template", "parser"),
    [
        ({"type": "rubric"}, "rubric", "grade-3"),
        ({"type": "rubric", "calls": "each"}, "criterion", "grade-3"),
        ({"type": "rubric", "calls": "each", "mark": "met"}, "criterion_met", "verdict-2"),
        ({"type": "verifier"}, "verifier", "verdict-2"),
        ({"type": "ranking"}, "ranking", "ranking-1"),
        ({"type": "ranking", "template": "ranking_translation"}, "ranking_translation", "ranking-1"),
        ({"type": "pairwise"}, "pairwise", "comparison-2"),
        ({"type": "judge"}, "judge", "grade-3"),
    ],
)
def test_a_judge_names_its_prompt_and_its_reader(table: dict[str, Any], template: str, parser: str) -> None:
    assert facts(**table) == {"template": template, "template_sha256": sha(template), "parser": parser}


@pytest.mark.parametrize(
    ("read", "parser"), [("score", "grade-3"), ("number", "rating-1"), ("json", "rating-1"), ("boolean", "verdict-2")]
)
def test_a_judge_with_a_prompt_of_the_recipe(read: str, parser: str) -> None:
    found = facts(type="judge", prompt="Good? {{response}}", read=read)
    hashed = Template.parse("Good? {{response}}", "", known=None).sha256
    assert found == {"template": "", "template_sha256": hashed, "parser": parser}


def test_a_scalar_model_has_templates_only_with_a_critic() -> None:
    assert facts(type="classifier") == {}
    found = facts(type="classifier", critique={"model": "critic"})
    assert found["template_sha256"] == sha("critique")
    assert found["show_template_sha256"] == sha(found["show_template"])
