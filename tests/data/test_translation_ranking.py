"""The translation world for a judge: what it is asked is what the reward asks, and what it is shown is careless."""

import asyncio
import itertools
import json
from collections.abc import Iterator

import pytest

from rewardsmith import RolloutGroup
from rewardsmith.data import TranslationRanking
from rewardsmith.data.translation import errors, prompt_of, score_of
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.text.rankings import letters_of, parse_ranking, write_ranking
from rewardsmith.types import Rollout
from tests.rewards.judges.ranked import shown
from tests.rewards.models import Scripted


def first(n: int, items: Iterator) -> list:
    return list(itertools.islice(items, n))


def test_prompts_are_short_and_hold_the_truth() -> None:
    for prompt in first(200, TranslationRanking().prompts(0)):
        sentence, candidates = prompt.info["src_text"], prompt.info["candidates"]
        assert len(prompt.messages[0].content) < 200
        truth = json.loads(prompt.answer)
        assert "".join(truth) == letters_of(len(candidates))
        assert list(truth.values()) == [score_of(errors(sentence, text)) for text in candidates]


@pytest.mark.parametrize(
    "settings", [{}, {"words": 5, "flourishes": 0.5, "gaps": 0.5}, {"min_candidates": 4}, {"misses": 0.0, "flips": 1.0}]
)
def test_demonstrations_can_be_read_in_the_strictest_way(settings: dict) -> None:
    for one in first(200, TranslationRanking(**settings).demonstrations(0)):
        letters = letters_of(len(one.prompt.info["candidates"]))
        ranked = parse_ranking(one.response, letters, strictness="exact")
        assert ranked.analysis == one.response.partition("\n\n###")[0]
        sums = {line[0]: int(line.rpartition("=")[2]) for line in ranked.analysis.split("\n")}
        assert sums == ranked.scores


def test_the_annotator_is_careless_and_the_truth_is_not() -> None:
    def wrong(**settings: float) -> float:
        found = first(500, TranslationRanking(**settings).demonstrations(0))
        right = [
            parse_ranking(d.response, letters_of(len(d.prompt.info["candidates"]))).scores
            == json.loads(d.prompt.answer)
            for d in found
        ]
        return 1 - sum(right) / len(right)

    assert wrong(misses=0.0, flips=0.0) == 0
    assert wrong() > 0.5


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_reward_asks_byte_for_byte_what_the_judge_was_trained_on(count: int) -> None:
    """A judge that knows the truth stands in the place of the model, and finds the very messages of the world."""
    texts = ["PTQ", "PTV", "WTQ", "MMM"][:count]

    def answer(question: ChatRequest) -> str:
        trained_on = TranslationRanking().prompt("kab", shown(question))
        assert tuple(question.prompt) == trained_on.messages
        return write_ranking(json.loads(trained_on.answer), "A:kP.aT.bV!=8")

    judge = Scripted(answer)
    reward = RankingJudge(model="judge", template="ranking_short", max_candidates=4, reading="strict")
    reward.connect({"judge": judge}.__getitem__)
    scores = asyncio.run(reward.score(RolloutGroup(prompt_of("kab"), [Rollout(text) for text in texts])))
    assert [score.value for score in scores] == [score_of(errors("kab", text)) / 10 for text in texts]
    assert sorted(shown(judge.asked[0])) == sorted(texts)
    assert len(judge.asked) == 1
