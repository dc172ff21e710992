"""`offload = true` where it would do nothing, or where a server would sleep while somebody needs it, is refused."""

from typing import Any

import pytest

from rewardsmith.config import Choice
from rewardsmith.errors import Problem, RecipeError
from rewardsmith.recipe import parse_models, parse_recipe

POLICY = {"init": "tiny-llama"}
RUBRIC = {"type": "rubric", "model": "judge", "criteria": "right: 10"}


def server(*urls: str, **more: Any) -> dict[str, Any]:
    return {"type": "server", "urls": list(urls or ("http://localhost:8000/v1",)), **more}


def problems(**models: dict[str, Any]) -> list[Problem]:
    stage = {"type": "policy", "model": "policy", "data": "d", "steps": 1, "reward": RUBRIC}
    recipe = {"models": {"policy": POLICY, **models}, "data": {"d": {"type": "arithmetic"}}, "stages": [stage]}
    try:
        parse_recipe(recipe)
    except RecipeError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize(
    "judge",
    [
        server(offload=True),
        {"type": "managed", "command": "vllm", "model": "m", "offload": True},
        {"init": "tiny-llama", "offload": True},
    ],
)
def test_a_model_that_would_sleep_alone_is_refused_with_the_remedy(judge: dict[str, Any]) -> None:
    (problem,) = problems(judge=judge)
    assert problem.path == "models.judge.offload"
    assert "leave it out" in problem.message
    assert problems(judge=judge, policy=POLICY | {"offload": True}) == []
    assert problems(judge={**judge, "offload": False}) == []
    with pytest.raises(RecipeError, match=r"models\.judge\.offload"):  # beside a reward in a file of its own, too
        parse_models(
            {"models": {"judge": judge}}, Choice("reward", "rewardsmith.rewards:REWARDS").choose(RUBRIC), source="r"
        )
