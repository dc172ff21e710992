"""A judge that was trained with one prompt is not called with another."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.data import Jsonl, open_source
from rewardsmith.errors import RecipeError
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.lineage import LINEAGE
from rewardsmith.runs.start import start
from rewardsmith.runs.trained_prompts import JUDGE_PROMPT, MAX_BYTES, check_trained_prompts, prompts_by_stage
from rewardsmith.text.judge_prompts import load_ranking_template
from tests.data.prepare.jobs import group_row, prepare_gqm

RANKER = {"type": "ranking", "model": "judge", "template": "ranking_short", "max_candidates": 3}
LEARN = {"type": "sft", "name": "learn", "model": "judge", "data": "rankings", "steps": 1, "batch_size": 2}


def use(*parts: dict[str, Any], **stage: Any) -> dict[str, Any]:
    """Return a stage in which judges score a policy."""
    return {
        "type": "policy",
        "name": "use",
        "model": "policy",
        "data": "sentences",
        "steps": 1,
        "prompts_per_step": 1,
        "rollouts_per_prompt": 2,
        "reward": {"type": "sum", "parts": {f"p{i}": part for i, part in enumerate(parts)}},
        **stage,
    }


def recipe(*stages: dict[str, Any], judge: Any = None, **rankings: Any) -> Any:
    models = {"judge": judge or {"init": "tiny-qwen3"}, "policy": {"init": "tiny-llama"}}
    models |= {"copy": {"copy_of": "judge"}, "later": {"copy_of": "judge"}}
    data = {"rankings": rankings or {"type": "translation-ranking"}, "sentences": {"type": "translation"}}
    return parse_recipe({"cache": "", "models": models, "data": data, "stages": list(stages)})


def found(made: Any) -> tuple[dict[str, str], list[str]]:
    """Return what the check says: the message of each problem by its path, and the warnings."""
    logged: list[str] = []
    try:
        check_trained_prompts(made, lambda name: open_source(name, made.data[name]), logged.append)
    except RecipeError as error:
        return {problem.path: problem.message for problem in error.problems}, logged
    return {}, logged


def test_each_setting_that_differs_is_named_with_both_values_and_the_remedy() -> None:
    assert found(recipe(LEARN, use(RANKER))) == ({}, [])
    changed = {"noun": "Translation", "lowest": -5.0, "decimals": True, "template": "ranking"}
    problems, _ = found(recipe(LEARN, use({"type": "rule", "rule": "exact"}, RANKER | changed)))
    assert problems.keys() == {f"stages.1.reward.parts.p1.{name}" for name in changed}
    remedy = "use the same, or set allow_other_prompt = true to call it with a prompt that it does not know"
    was = 'models.judge was trained with noun = "Candidate"'
    assert problems["stages.1.reward.parts.p1.noun"] == f"{was}: {remedy}"
    assert found(recipe(LEARN, use(RANKER | changed | {"allow_other_prompt": True}))) == ({}, [])
    assert found(recipe(use(RANKER | changed), LEARN)) == ({}, [])  # it has learned nothing by then
    problems, _ = found(recipe(LEARN, use({"type": "rubric", "model": "judge"})))
    assert problems.keys() == {"stages.1.reward.parts.p0.template"}


def test_judges_of_other_kinds_are_warned_about() -> None:
    problems, warned = found(recipe(LEARN, use({"type": "pairwise", "model": "judge"})))
    assert problems == {}
    assert len(warned) == 1
    assert warned[0].startswith('warning: stages.1.reward.parts.p0.template = "pairwise", but models.judge was trained')


def test_a_copy_has_learned_what_its_origin_had_when_the_copy_was_first_used() -> None:
    other = {**RANKER, "noun": "Answer"}
    first = use(other | {"model": "copy"}, name="before")
    problems, _ = found(recipe(first, LEARN, use(other | {"model": "copy"}, other | {"model": "later"})))
    assert problems.keys() == {"stages.2.reward.parts.p1.noun"}


def test_a_published_judge_carries_its_prompt_into_the_next_run(tmp_path: Path) -> None:
    rows, file = [group_row(i, 2) for i in range(4)], tmp_path / "out.jsonl"
    template = tmp_path / "own.txt"
    template.write_text("{{source_text}}{{criteria}}{{candidates}}")
    prepare_gqm(tmp_path, rows, form="sft", noun="Translation", criteria=" tone ", template=str(template), max_score=9)
    source = {"type": "jsonl", "path": str(file)}
    made = recipe(LEARN | {"steps": 1, "max_tokens": None}, **source)
    folder = start(made, "x", folder=tmp_path / "run")
    published = folder / "models" / "judge"
    identity = {
        "template": str(template),
        "template_sha256": load_ranking_template(str(template)).sha256,
        "output": "both",
        "lowest": 0.0,
        "highest": 9.0,
        "decimals": False,
        "noun": "Translation",
        "criteria": "tone",
    }
    assert json.loads((published / JUDGE_PROMPT).read_text()) == identity
    (stage,) = json.loads((folder / LINEAGE).read_text())["stages"]
    assert identity.items() <= stage["data"]["rankings"].items()
    judge = {"init": str(published)}
    same = RANKER | {"template": str(template), "noun": "Translation", "criteria": "tone", "highest": 9}
    assert found(recipe(use(same), judge=judge)) == ({}, [])
    for model in (judge, {"type": "managed", "command": "vllm", "model": str(published)}):
        problems, _ = found(recipe(use(same | {"highest": 10}), judge=model))
        assert list(problems) == ["stages.0.reward.parts.p0.highest"]
    served = {"type": "server", "urls": ["http://localhost:1/v1"], "model": str(published)}
    assert found(recipe(use(same | {"highest": 10}), judge=served)) == ({}, [])
    template.write_text("{{source_text}}{{criteria}}\n{{candidates}}")
    problems, _ = found(recipe(use(same), judge=judge))
    assert "was trained with another text of this template" in problems["stages.0.reward.parts.p0.template"]
    file.write_text(file.read_text() + "\n{}\n")  # what prepare wrote is no longer known
    assert list(prompts_by_stage(recipe(LEARN, **source), lambda name: Jsonl(path=str(file))))[-1] == {}


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"template": "x"}', '{"template": "x", "template_sha256": {}}', " " * MAX_BYTES + "{}"]
)
def test_a_folder_from_outside_may_have_any_file_of_that_name(tmp_path: Path, text: str) -> None:
    (tmp_path / JUDGE_PROMPT).write_text(text)
    assert found(recipe(use(RANKER), judge={"init": str(tmp_path)})) == ({}, [])
