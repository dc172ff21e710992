"""Answers of a file are shown to judges as they are, and an evaluation without a single call is an error."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.errors import UserError
from rewardsmith.jobs import Result
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.cache import CachedModel, VerdictCache
from rewardsmith.rewards.component import Component
from rewardsmith.trainers.evaluate.eval_measures import RewardEvalSettings
from rewardsmith.trainers.evaluate.evaluate_jobs import evaluate_reward
from rewardsmith.trainers.evaluate.scorer import Scorer, group_of
from rewardsmith.types import Graded, Message, Preference, Prompt, Ranking
from tests.rewards.judges.ranked import by_number, shown
from tests.rewards.models import Scripted, text_of

PROMPT = Prompt("p", [Message("user", "Which?")], answer="is 9")
ITEMS: dict[str, list[Any]] = {
    "rankings": [Ranking(PROMPT, ["is 3", "is 8", "is 5"], [3.0, 8.0, 5.0])],
    "grades": [Graded(PROMPT, "is 8", 0.8), Graded(PROMPT, "is 3", 0.3)],
    "pairs": [Preference(PROMPT, "is 8", "is 3")],
}


def graded(question: ChatRequest) -> str:
    """Grade the last answer with a number that is shown."""
    *_, number = re.findall(r"```\nis (\d)\n```", text_of(question))
    return f"Total Score: {number}/10\nScore: {number}\nTrue"


def measure(kind: Any, table: dict[str, Any], judge: Any, log: Any = pytest.fail) -> Result:
    scorer = Scorer(REWARD.choose(table), lambda name: judge, log=log)
    return asyncio.run(evaluate_reward(kind, ITEMS[kind], scorer, RewardEvalSettings()))


@pytest.mark.parametrize("way", ["codeblock", "boxed", "tagged", "stated", "oneline"])
@pytest.mark.parametrize("kind", ["rankings", "pairs"])
def test_a_ranking_judge_is_shown_stored_candidates_whatever_it_extracts_from_rollouts(kind: str, way: str) -> None:
    judge = Scripted(by_number)
    found = measure(kind, {"type": "ranking", "model": "judge", "extract": way}, judge)
    assert found.metrics["accuracy"] == 1.0
    assert found.metrics["failed"] == 0.0
    assert sorted(shown(judge.asked[0])) == (["is 3", "is 5", "is 8"] if kind == "rankings" else ["is 3", "is 8"])


@pytest.mark.parametrize(
    "table",
    [
        {"type": "rubric", "criteria": "right: 10", "show": "answer", "extract": ["boxed"]},
        {"type": "rubric", "criteria": "right: 10", "show": "answer", "extract": ["tagged", "hash"]},
        {"type": "judge", "prompt": "How good is it?\n{{answer}}\n{{lowest}} to {{highest}}", "extract": ["boxed"]},
        {"type": "verifier", "show": "answer", "extract": ["boxed"]},
    ],
)
def test_a_judge_of_single_answers_is_shown_an_answer_in_which_nothing_is_found(table: dict[str, Any]) -> None:
    judge = Scripted(graded)
    found = measure("grades", {"model": "judge", **table}, judge)
    assert found.metrics["failed"] == 0.0
    assert len(judge.asked) == 2
    for question, text in zip(judge.asked, ("is 8", "is 3"), strict=True):
        assert f"```\n{text}\n```" in text_of(question)


def test_a_judge_of_single_answers_is_shown_the_part_of_a_stored_rollout_that_its_recipe_says() -> None:
    judge = Scripted(graded)
    table = {"type": "rubric", "model": "judge", "criteria": "right: 10", "show": "final"}
    scorer = Scorer(REWARD.choose(table), lambda name: judge)
    asyncio.run(scorer.score([group_of(PROMPT, ["<think>is 1</think>is 7"])]))
    assert "is 1" not in text_of(judge.asked[0])
    assert "```\nis 7\n```" in text_of(judge.asked[0])


def test_rollouts_of_a_policy_are_extracted_as_before() -> None:
    judge = Scripted(by_number)
    table = {"type": "ranking", "model": "judge", "extract": "codeblock"}
    reward = Component.root(REWARD.choose(table), models=lambda name: judge)
    plain, boxed = asyncio.run(reward.score(group_of(PROMPT, ["is 3", "x\n```\nis 8\n```"])))
    assert (plain.value, boxed.value) == (-0.5, 0.5)  # no code block; and the only answer
    assert not judge.asked


# ---- never called ----------------------------------------------------------------------------------------------------

GATED = {
    "type": "gate",
    "rule": {"type": "rule", "rule": "exact"},
    "judge": {"type": "rubric", "model": "judge", "criteria": "right: 10"},
}


@pytest.mark.parametrize("kind", ["rankings", "grades", "pairs"])
def test_an_evaluation_in_which_the_judge_was_never_called_is_an_error(kind: str) -> None:
    judge = Scripted(graded)
    with pytest.raises(UserError) as error:
        measure(kind, GATED, judge)  # no answer is right, so that the rule is all that speaks
    assert "models.judge: not called" in str(error.value)
    assert "recipe.toml:policy.reward.judge" in str(error.value)
    assert not judge.asked


def test_verdicts_from_the_cache_count_as_calls(tmp_path: Path) -> None:
    table = {"type": "ranking", "model": "judge"}
    cache = VerdictCache(tmp_path, log=pytest.fail)
    for calls in (1, 0):
        judge = Scripted(by_number)
        assert measure("rankings", table, CachedModel(judge, cache)).metrics["accuracy"] == 1.0
        assert len(judge.asked) == calls
    cache.close()


def test_one_of_several_judges_that_was_not_called_is_told() -> None:
    messages: list[str] = []
    judges = {"judge": Scripted(graded), "other": Scripted(graded)}
    whole = {
        "type": "sum",
        "parts": {
            "rule": {"type": "rule", "rule": "exact"},
            "judge": {"type": "rubric", "model": "judge", "criteria": "right: 10"},
            "other": {"type": "rubric", "model": "other", "criteria": "right: 10", "when": "rule"},
        },
    }
    scorer = Scorer(REWARD.choose(whole), judges.__getitem__, log=messages.append)
    asyncio.run(evaluate_reward("grades", ITEMS["grades"], scorer, RewardEvalSettings()))
    assert len(judges["judge"].asked) == 2
    (message,) = messages
    assert "models.other: not called" in message
