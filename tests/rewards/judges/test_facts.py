"""What judges say of themselves for the record of a run: which prompt, and which reader."""

import json
from pathlib import Path
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


def test_a_judge_whose_prompts_come_with_the_data_has_no_template() -> None:
    assert facts(type="judge", prompt_field="rm_prompt") == {"parser": "grade-3"}


def test_a_scalar_model_has_templates_only_with_a_critic() -> None:
    assert facts(type="classifier") == {}
    found = facts(type="classifier", critique={"model": "critic"})
    assert found["template_sha256"] == sha("critique")
    assert found["told_sha256"] == sha(found["told"])


def test_the_hash_is_that_of_the_words_and_not_of_the_file(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("=== user ===\n{{criteria}}\r\n{{response}}\n")
    first = facts(type="rubric", template=str(own))
    own.write_text("{{criteria}}\n{{response}}")
    assert facts(type="rubric", template=str(own)) == first
    own.write_text("{{criteria}}\n\n{{response}}")
    assert facts(type="rubric", template=str(own))["template_sha256"] != first["template_sha256"]
    own.write_text("=== system ===\n{{criteria}}\n{{response}}")
    assert facts(type="rubric", template=str(own))["template_sha256"] != first["template_sha256"]
