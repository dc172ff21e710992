"""Scoring for an evaluation: failures stop nothing, answers are shown as they are, a judge must have been called."""

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith.errors import UserError
from rewardsmith.jobs import Result
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.cache import CachedModel, VerdictCache
from rewardsmith.rewards.component import Component
from rewardsmith.trainers.evaluate.evaluate_reward import EvaluateReward
from rewardsmith.trainers.evaluate.scorer import SEED_STEP, Scorer, group_of
from rewardsmith.types import Graded, Message, Preference, Prompt, Ranking
from tests.rewards.judges.ranked import by_number, shown
from tests.rewards.models import Scripted, text_of
from tests.trainers.evaluate.rewards import prompt, scorer, wait

RANKING = {"type": "ranking", "model": "judge"}
JUDGE = REWARD.choose({"type": "judge", "model": "judge"})
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


def measure(kind: Any, table: dict[str, Any], *judges: Any, log: Any = pytest.fail) -> Result:
    models = dict(zip(("judge", "other"), judges, strict=False))
    job = EvaluateReward(kind=kind, data="data", reward=REWARD.choose(table))
    return wait(job.evaluate(ITEMS[kind], Scorer(job.reward, models.__getitem__, log=log)))


def test_values_come_in_order_and_a_failure_is_nan() -> None:
    ticks: list[int] = []
    measured = scorer(concurrency=2)
    groups = [group_of(prompt(i), [str(i), "?"]) for i in range(5)]
    values = wait(measured.score(groups, tick=lambda: ticks.append(1)))
    assert [v[0] for v in values] == [0, 1, 2, 3, 4]
    assert all(np.isnan(v[1]) for v in values)
    assert len(ticks) == 5
    assert measured.failures.metrics() == {"failures/reward/unparsable": 0.5}


def test_a_stop_request_ends_it_and_a_reward_that_cannot_work_is_refused() -> None:
    async def hang(question: ChatRequest) -> str:
        await asyncio.sleep(60)
        raise AssertionError

    def pause() -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        wait(Scorer(JUDGE, lambda _: Scripted(hang), pause=pause).score([group_of(prompt(), ["a"])]))
    judge = Scripted([], ill=UserError("there is no such model"))
    with pytest.raises(UserError, match="no such model"):
        wait(Scorer(JUDGE, lambda _: judge).check())


def test_repeats_go_past_the_cache_with_seeds_of_their_own(tmp_path: Path) -> None:
    judge = Scripted(lambda question: f"Score: {1 + question.seed // SEED_STEP}")
    cache = VerdictCache(tmp_path, pytest.fail)
    measured = Scorer(JUDGE, lambda _: CachedModel(judge, cache))
    group = [group_of(prompt(), ["a"])]

    async def all_repeats() -> list[float]:
        return [(await measured.score(group, repeat=n))[0][0] for n in (0, 0, 1, 1, 2)]

    assert wait(all_repeats()) == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3])
    cache.close()
    assert [question.attempt for question in judge.asked] == [0, SEED_STEP, SEED_STEP, 2 * SEED_STEP]


# ---- what judges are shown ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [["is 3", "is 8"], ["1", "4", "2", "3"]])
def test_a_ranking_judge_shows_the_candidates_as_given(texts: list[str]) -> None:
    judge = Scripted(by_number)
    measured = Scorer(REWARD.choose(RANKING), lambda _: judge)
    for order in (texts, texts[::-1]):
        (values,) = wait(measured.score([group_of(prompt(), order)], in_given_order=True))
        assert shown(judge.asked[-1]) == order
        assert values.tolist() == [int(re.search(r"\d", text)[0]) / 10 for text in order]  # type: ignore[index]
    wait(measured.score([group_of(prompt(), texts)]))
    wait(measured.score([group_of(prompt(), texts[::-1])]))
    assert shown(judge.asked[-1]) == shown(judge.asked[-2])  # otherwise the order is drawn from the texts


@pytest.mark.parametrize("way", ["codeblock", "stated"])
@pytest.mark.parametrize("kind", ["rankings", "pairs"])
def test_a_ranking_judge_shows_stored_candidates_whatever_it_extracts_from_rollouts(kind: str, way: str) -> None:
    judge = Scripted(by_number)
    found = measure(kind, {**RANKING, "extract": way}, judge)
    assert (found.metrics["accuracy"], found.metrics["failed"]) == (1.0, 0.0)
    assert sorted(shown(judge.asked[0])) == (["is 3", "is 5", "is 8"] if kind == "rankings" else ["is 3", "is 8"])


@pytest.mark.parametrize(
    "table",
    [
        {"type": "rubric", "criteria": "right: 10", "show": "answer", "extract": ["tagged", "hash"]},
        {"type": "judge", "prompt": "How good is it?\n{{answer}}\n{{lowest}} to {{highest}}", "extract": ["boxed"]},
        {"type": "verifier", "show": "answer", "extract": ["boxed"]},
    ],
)
def test_a_judge_of_single_answers_shows_an_answer_from_which_nothing_is_extracted(table: dict[str, Any]) -> None:
    judge = Scripted(graded)
    assert measure("grades", {"model": "judge", **table}, judge).metrics["failed"] == 0.0
    for question, text in zip(judge.asked, ("is 8", "is 3"), strict=True):
        assert f"```\n{text}\n```" in text_of(question)


def test_stored_rollouts_and_rollouts_of_a_policy_are_extracted() -> None:
    judge = Scripted(graded)
    table = {"type": "rubric", "model": "judge", "criteria": "right: 10", "show": "final"}
    wait(Scorer(REWARD.choose(table), lambda _: judge).score([group_of(PROMPT, ["<think>is 1</think>is 7"])]))
    assert "is 1" not in text_of(judge.asked[0])
    judge = Scripted(by_number)
    reward = Component.root(REWARD.choose({**RANKING, "extract": "codeblock"}), models=lambda _: judge)
    without, boxed = wait(reward.score(group_of(PROMPT, ["is 3", "x\n```\nis 8\n```"])))
    assert (without.value, boxed.value) == (-0.5, 0.5)  # no code block; and the only answer
    assert not judge.asked


# ---- never called ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rankings", "grades", "pairs"])
def test_an_evaluation_in_which_the_judge_was_never_called_is_an_error(kind: str) -> None:
    inner = {"type": "rubric", "model": "judge", "criteria": "right: 10"}
    gate = {"type": "gate", "rule": {"type": "rule", "rule": "exact"}, "judge": inner}
    judge = Scripted(graded)
    with pytest.raises(UserError, match=r"models.judge: not called[\s\S]*recipe.toml:policy.reward.judge"):
        measure(kind, gate, judge)  # no answer is right, so that the rule decides
    assert not judge.asked


def test_verdicts_from_the_cache_count_as_calls(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path, pytest.fail)
    for calls in (1, 0):
        judge = Scripted(by_number)
        assert measure("rankings", RANKING, CachedModel(judge, cache)).metrics["accuracy"] == 1.0
        assert len(judge.asked) == calls
    cache.close()


def test_one_of_several_judges_that_was_not_called_is_named() -> None:
    messages: list[str] = []
    inner = {"type": "rubric", "criteria": "right: 10"}
    parts = {
        "rule": {"type": "rule", "rule": "exact"},
        "judge": {**inner, "model": "judge"},
        "other": {**inner, "model": "other", "when": "rule"},
    }
    judge = Scripted(graded)
    measure("grades", {"type": "sum", "parts": parts}, judge, Scripted(graded), log=messages.append)
    assert len(judge.asked) == 2
    (message,) = messages
    assert "models.other: not called" in message
