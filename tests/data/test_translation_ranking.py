"""The translation world for a judge: what it is asked is what the reward asks, and what it is shown is careless."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardsmith import RolloutGroup, UserError
from rewardsmith.data import SOURCES, TranslationRanking
from rewardsmith.data.translation import errors, prompt_of, score_of
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.text.rankings import letters_of, parse_ranking, write_ranking
from rewardsmith.types import Rollout
from tests.rewards.judges.ranked import shown
from tests.rewards.models import Scripted


def first(n: int, items: Iterator) -> list:
    return list(itertools.islice(items, n))


def test_it_is_known_by_name() -> None:
    assert SOURCES["translation-ranking"] is TranslationRanking


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


def test_another_template_will_do_if_the_world_can_fill_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("{{question}} {{source_text}} {{reference}} {{criteria}} {{task}} {{candidates}} {{format}}")
    prompt = TranslationRanking(template=str(file)).prompt("kab", ["PTQ", "PTV"])
    assert prompt.messages[0].content.count("kab") == 2
    file.write_text("{{source_language}} {{candidates}}")
    with pytest.raises(UserError, match=r"\{\{source_language\}\}: the languages of this world have no names"):
        TranslationRanking(template=str(file))
    file.write_text("{{source_text}}")
    with pytest.raises(UserError, match=r"has no \{\{candidates\}\}"):
        TranslationRanking(template=str(file))


def test_held_out_sentences_are_never_in_training() -> None:
    train, held_out = (
        {p.info["src_text"] for p in first(2_000, TranslationRanking(split=split).prompts(0))}
        for split in ("train", "held-out")
    )
    assert not train & held_out


def test_the_same_seed_gives_the_same() -> None:
    world = TranslationRanking()
    assert first(30, world.demonstrations(1)) == first(30, world.demonstrations(1))
    assert first(30, world.demonstrations(1)) != first(30, world.demonstrations(2))
    # What is imitated and what is learned by reward are the same prompts in the same order, for the same seed.
    assert [d.prompt for d in first(30, world.demonstrations(1))] == first(30, world.prompts(1))
