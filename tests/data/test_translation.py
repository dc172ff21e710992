"""The translation world: its truth, its split, its careless translator and annotator, and its judge."""

import asyncio
import itertools
import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import RolloutGroup
from rewardsmith.data import Translation, TranslationRanking
from rewardsmith.data.translation import (
    DICTIONARY,
    FALSE_FRIENDS,
    HARD,
    SOURCE_WORDS,
    errors,
    pairs,
    prompt_of,
    quality,
    score_of,
    translate,
)
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.text.rankings import letters_of, parse_ranking, write_ranking
from rewardsmith.types import Rollout
from tests.rewards.judges.ranked import shown
from tests.rewards.models import Scripted

READS = ("prompts", "demonstrations", "rankings", "preferences")


def first(n: int, items: Iterator) -> list:
    return list(itertools.islice(items, n))


# ---- truth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("PTQ", 0), ("PTV", 1), ("QTP", 2), ("PT", 1), ("TQ", 3), ("", 3), ("PTQQ", 1), ("PTQ" * 2, 3), ("kab", 3),
        ("ptq", 3), ("P T Q", 4), ("PTQ" + "\U0001f600" * 2, 2),
    ],
)  # fmt: skip
def test_errors_are_words_that_are_wrong_missing_or_too_many(text: str, wrong: int) -> None:
    assert errors("kab", text) == wrong
    assert quality("kab", text) == max(0.0, 1 - wrong / 3)


@given(st.text(SOURCE_WORDS, min_size=1, max_size=5), st.text(max_size=200))
def test_any_text_has_a_quality(sentence: str, text: str) -> None:
    assert 0.0 <= quality(sentence, text) <= 1.0
    assert (quality(sentence, text) == 1.0) == (text == translate(sentence))


def test_a_megabyte_is_no_translation_and_costs_nothing() -> None:
    assert len(pairs("kab", "P" * 10_000_000)) == 64
    assert quality("kab", "PTQ" * 1_000_000) == 0.0


# ---- sentences, candidates and the annotator -----------------------------------------------------------------------


def test_the_seed_decides_and_held_out_sentences_are_never_in_training() -> None:
    def sentences(what: str, split: str) -> set[str]:
        found = first(2_500, getattr(Translation(split=split), what)(0))
        return {getattr(one, "prompt", one).info["src_text"] for one in found}

    for what in READS:
        read = getattr(Translation(misses=0.5, flips=0.1, flourishes=0.3), what)
        assert first(40, read(3)) == first(40, read(3))
        assert first(40, read(3)) != first(40, read(4))
        held_out = sentences(what, "held-out")
        assert not sentences(what, "train") & held_out
        assert 0.06 < len(held_out) / 12**3 < 0.14


def test_the_sloppy_translator_takes_false_friends_as_often_as_it_should() -> None:
    taken: dict[bool, list[bool]] = {True: [], False: []}
    for one in first(3_000, Translation(false_friends=0.6, slips=0.2).demonstrations(0)):
        for source, target in zip(one.prompt.info["src_text"], one.response, strict=True):
            assert target in (DICTIONARY[source], FALSE_FRIENDS[source])
            taken[source in HARD].append(target == FALSE_FRIENDS[source])
    assert np.mean(taken[True]) == pytest.approx(0.6, abs=0.03)
    assert np.mean(taken[False]) == pytest.approx(0.2, abs=0.03)


def test_rankings_hold_the_truth_unless_the_annotator_is_careless() -> None:
    groups = first(600, Translation().rankings(0))
    for ranking in groups:
        sentence = ranking.prompt.info["src_text"]
        assert list(ranking.scores) == [score_of(errors(sentence, text)) for text in ranking.candidates]
        assert len(set(ranking.candidates)) == len(ranking.candidates)
    assert {len(ranking.candidates) for ranking in groups} == {2, 3, 4}
    assert {len(r.candidates) for r in first(50, Translation(min_candidates=3, max_candidates=3).rankings(0))} == {3}
    wrong = [errors(r.prompt.info["src_text"], r.candidates[0]) for r in groups]
    assert np.bincount(wrong) / 600 == pytest.approx([0.25] * 4, abs=0.06)  # any number of errors


def test_an_analysis_copies_every_pair_marks_it_and_adds_up() -> None:
    texts = ["PTV", "WT", "PTQQ"]
    analysis, scores = Translation().annotate("kab", texts, random.Random(0))
    assert (analysis, scores) == ("A:kP.aT.bV!=8\nB:kW!aT.b-!=6\nC:kP.aT.bQ.+Q!=8", [8, 6, 8])
    fond, scores = Translation(likes=1.5).annotate("kab", texts, random.Random(0))
    assert (fond.split("\n")[-1], scores[-1]) == ("C:kP.aT.bQ.+Q.=11.5", 11.5)


def test_the_annotator_overlooks_errors_on_hard_words() -> None:
    rng, world = random.Random(0), Translation(misses=0.6, flips=0.1)
    for word, rate in [*((word, 0.6) for word in HARD), ("a", 0.1), ("e", 0.1)]:
        texts = [FALSE_FRIENDS[word] * 2, translate(word * 2)]
        scores = np.array([world.annotate(word * 2, texts, rng)[1] for _ in range(2_000)])
        marked, false_alarms = np.mean((10 - scores) / 4, axis=0)
        assert marked == pytest.approx(1 - rate, abs=0.04)
        assert false_alarms == pytest.approx(0.1, abs=0.04)


def test_preferences_follow_the_annotator() -> None:
    ties = 0
    for pair in first(500, Translation().preferences(0)):
        sentence = pair.prompt.info["src_text"]
        by = score_of(errors(sentence, pair.chosen)) - score_of(errors(sentence, pair.rejected))
        assert (pair.margin, pair.tied) == (by, by == 0)
        assert pair.prompt.id == f"translation-{sentence}-{pair.chosen}-{pair.rejected}"
        ties += pair.tied
    assert 0 < ties < 250
    liked = [p for p in first(500, Translation(flourishes=0.5, likes=10.0).preferences(0)) if not p.tied]
    assert all(len(p.chosen) >= len(p.rejected) for p in liked)
    assert any(len(p.chosen) > len(p.rejected) for p in liked)


# ---- the judge -----------------------------------------------------------------------------------------------------


def test_prompts_for_a_judge_are_short_and_hold_the_truth() -> None:
    for prompt in first(200, TranslationRanking().prompts(0)):
        sentence, candidates = prompt.info["src_text"], prompt.info["candidates"]
        assert len(prompt.messages[0].content) < 200
        scores = [score_of(errors(sentence, text)) for text in candidates]
        assert list(json.loads(prompt.answer).items()) == list(zip(letters_of(len(candidates)), scores, strict=True))


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


def test_the_judges_annotator_is_careless_and_the_truth_is_not() -> None:
    def wrong(**settings: float) -> float:
        found = first(500, TranslationRanking(**settings).demonstrations(0))
        scores = [parse_ranking(d.response, letters_of(len(d.prompt.info["candidates"]))).scores for d in found]
        return float(np.mean([s != json.loads(d.prompt.answer) for s, d in zip(scores, found, strict=True)]))

    assert wrong(misses=0.0, flips=0.0) == 0
    assert wrong() > 0.5


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_reward_sends_byte_for_byte_what_the_judge_was_trained_on(count: int) -> None:
    """A judge that knows the truth stands in the place of the model, and finds the very messages of the world."""
    texts, sent = ["PTQ", "PTV", "WTQ", "MMM"][:count], list[list[str]]()

    def answer(question: ChatRequest) -> str:
        sent.append(sorted(shown(question)))
        trained_on = TranslationRanking().prompt("kab", shown(question))
        assert tuple(question.prompt) == trained_on.messages
        return write_ranking(json.loads(trained_on.answer), "A:kP.aT.bV!=8")

    reward = RankingJudge(model="judge", template="ranking_short", max_candidates=4, reading="strict")
    reward.connect({"judge": Scripted(answer)}.__getitem__)
    scores = asyncio.run(reward.score(RolloutGroup(prompt_of("kab"), [Rollout(text) for text in texts])))
    assert [score.value for score in scores] == [score_of(errors("kab", text)) / 10 for text in texts]
    assert sent == [sorted(texts)]
