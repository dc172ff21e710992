"""How groups are scored for an evaluation: failures stop nothing, judges are asked anew, orders are as given."""

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.cache import CachedModel, VerdictCache
from rewardsmith.trainers.evaluate.scorer import SEED_STEP, Scorer, group_of
from tests.rewards.judges.ranked import by_number, shown
from tests.rewards.models import Scripted
from tests.trainers.evaluate.rewards import prompt, scorer, wait

RANKING = REWARD.choose({"type": "ranking", "model": "judge"})
JUDGE = REWARD.choose({"type": "judge", "model": "judge"})


def test_values_come_in_order_and_a_failure_is_nan() -> None:
    ticks: list[int] = []
    asked = scorer(concurrency=2, tick=lambda: ticks.append(1))
    values = wait(asked.score([group_of(prompt(i), [str(i), "?"]) for i in range(5)]))
    assert [v[0] for v in values] == [0, 1, 2, 3, 4]
    assert all(np.isnan(v[1]) for v in values)
    assert len(ticks) == 5
    assert asked.failures.metrics() == {"failures/reward/unparsable": 0.5}


def test_few_groups_are_with_the_reward_at_a_time() -> None:
    async def slow(question: ChatRequest) -> str:
        await asyncio.sleep(0.001)
        return "Score: 5"

    judge = Scripted(slow)
    asked = Scorer(JUDGE, lambda name: judge, concurrency=3)
    wait(asked.score([group_of(prompt(i), ["a"]) for i in range(20)]))
    assert judge.most == 3


def test_the_user_may_stop_it() -> None:
    async def hang(question: ChatRequest) -> str:
        await asyncio.sleep(60)
        raise AssertionError

    def pause() -> None:
        raise KeyError("stop")

    judge = Scripted(hang)
    with pytest.raises(KeyError, match="stop"):
        wait(Scorer(JUDGE, lambda name: judge, pause=pause).score([group_of(prompt(), ["a"])]))


def test_a_reward_that_cannot_work_is_told_before_the_first_group() -> None:
    judge = Scripted([], ill=UserError("there is no such model"))
    with pytest.raises(UserError, match="no such model"):
        wait(Scorer(JUDGE, lambda name: judge).check())


# ---- again ---------------------------------------------------------------------------------------------------------


def test_repeats_go_past_the_cache_with_seeds_of_their_own(tmp_path: Path) -> None:
    judge = Scripted(lambda question: f"Score: {1 + question.seed // SEED_STEP}")
    cache = VerdictCache(tmp_path, log=pytest.fail)
    asked = Scorer(JUDGE, lambda name: CachedModel(judge, cache))
    group = [group_of(prompt(), ["a"])]

    async def both() -> list[float]:
        first = [(await asked.score(group))[0][0] for _ in range(2)]
        return [*first, *[(await asked.score(group, repeat=n))[0][0] for n in (1, 1, 2)]]

    values = wait(both())
    cache.close()
    assert values == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3])
    assert [question.attempt for question in judge.asked] == [0, SEED_STEP, SEED_STEP, 2 * SEED_STEP]


# ---- in order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [["is 3", "is 8"], ["is 8", "is 3", "is 5"], ["1", "4", "2", "3"]])
def test_a_ranking_judge_sees_the_candidates_as_given(texts: list[str]) -> None:
    judge = Scripted(by_number)
    asked = Scorer(RANKING, lambda name: judge)
    for order in (texts, texts[::-1]):
        (values,) = wait(asked.score([group_of(prompt(), order)], in_given_order=True))
        assert shown(judge.asked[-1]) == order
        assert values.tolist() == [int(re.search(r"\d", text)[0]) / 10 for text in order]
    wait(asked.score([group_of(prompt(), texts)]))
    wait(asked.score([group_of(prompt(), texts[::-1])]))
    assert shown(judge.asked[-1]) == shown(judge.asked[-2])  # otherwise the order is drawn from the texts
