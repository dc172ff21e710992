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


SLEEPING = {"policy": POLICY | {"offload": True}}


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8000/v1",
        "http://localhost:8000/v1/",
        "http://localhost:8000",
        "http://127.0.0.1:8000/v1",
        "http://LOCALHOST:8000/v1",
        "http://[::1]:8000/v1",
    ],
)
@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_two_tables_with_one_server_of_which_one_sleeps_are_refused(url: str, first: bool, second: bool) -> None:
    other = server("http://elsewhere:8000/v1", url, offload=second)
    (problem,) = problems(**SLEEPING, judge=server(offload=first), other=other)
    assert problem.path == "models.other.urls.1"
    assert "models.judge" in problem.message
    assert "leave offload out" in problem.message


def test_two_tables_with_one_server_that_never_sleeps_are_fine() -> None:
    assert problems(judge=server(), other=server(model="adapter")) == []


@pytest.mark.parametrize("url", ["http://localhost:8001/v1", "http://h:8000/v1", "http://localhost:8000/b/v1"])
def test_servers_apart_may_sleep_apart(url: str) -> None:
    assert problems(**SLEEPING, judge=server(offload=True), other=server(url)) == []


def test_a_managed_server_on_the_port_of_another_table_is_one_server() -> None:
    managed = {"type": "managed", "command": "vllm", "model": "m", "port": 8000, "offload": True}
    (problem,) = problems(**SLEEPING, judge=server(), other=managed)
    assert problem.path == "models.other.port"
