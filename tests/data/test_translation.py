"""The translation world: its truth, its split, its careless translator and its careless annotator."""

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from rewardsmith.data import Translation
from rewardsmith.data.translation import (
    DICTIONARY,
    FALSE_FRIENDS,
    HARD,
    Annotator,
    CandidateGroups,
    errors,
    score_of,
    translate,
)


def first(n: int, items: Iterator) -> list:
    return list(itertools.islice(items, n))


@pytest.mark.parametrize("what", ["prompts", "demonstrations", "rankings", "preferences"])
def test_the_same_seed_gives_the_same(what: str) -> None:
    def drawn(seed: int) -> list:
        return first(40, getattr(Translation(misses=0.5, flips=0.1, flourishes=0.3), what)(seed))

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("what", ["prompts", "demonstrations", "rankings", "preferences"])
def test_held_out_sentences_are_never_in_training(what: str) -> None:
    def sentences(split: str) -> set[str]:
        found = first(2_500, getattr(Translation(split=split), what)(0))
        return {getattr(one, "prompt", one).info["src_text"] for one in found}

    held_out = sentences("held-out")
    assert not sentences("train") & held_out
    assert 0.06 < len(held_out) / 12**3 < 0.14


def test_the_sloppy_translator_takes_false_friends_as_often_as_it_should() -> None:
    taken: dict[bool, list[bool]] = {True: [], False: []}
    for shown in first(3_000, Translation(false_friends=0.6, slips=0.2).demonstrations(0)):
        for source, target in zip(shown.prompt.info["src_text"], shown.response, strict=True):
            assert target in (DICTIONARY[source], FALSE_FRIENDS[source])
            taken[source in HARD].append(target == FALSE_FRIENDS[source])
    assert np.mean(taken[True]) == pytest.approx(0.6, abs=0.03)
    assert np.mean(taken[False]) == pytest.approx(0.2, abs=0.03)


def test_candidates_are_distinct_and_have_any_number_of_errors() -> None:
    rng = random.Random(0)
    counts = np.zeros(4)
    for _ in range(500):
        drawn = CandidateGroups(2, 2).draw("cak", rng)
        assert len(set(drawn)) == 2
        counts[errors("cak", drawn[0])] += 1
    assert counts / 500 == pytest.approx([0.25] * 4, abs=0.06)


def test_rankings_hold_the_truth_unless_the_annotator_is_careless() -> None:
    sizes = set()
    for ranking in first(300, Translation().rankings(0)):
        sentence = ranking.prompt.info["src_text"]
        sizes.add(len(ranking.candidates))
        assert list(ranking.scores) == [score_of(errors(sentence, text)) for text in ranking.candidates]
        assert len(ranking.analysis.split("\n")) == len(ranking.candidates)
    assert sizes == {2, 3, 4}
    assert {len(r.candidates) for r in first(50, Translation(min_candidates=3, max_candidates=3).rankings(0))} == {3}
    assert len({r.prompt.id for r in first(200, Translation().rankings(0))}) == 200


@pytest.mark.parametrize(("word", "rate"), [*((w, 0.6) for w in HARD), ("a", 0.1), ("e", 0.1)])
def test_the_annotator_overlooks_errors_on_hard_words(word: str, rate: float) -> None:
    rng, annotator = random.Random(0), Annotator(misses=0.6, flips=0.1)
    sentence = word * 2
    seen = [annotator.judge(sentence, [FALSE_FRIENDS[word] * 2, translate(sentence)], rng)[1] for _ in range(2_000)]
    marked, false_alarms = np.mean([(10 - np.array(scores)) / 4 for scores in seen], axis=0)
    assert marked == pytest.approx(1 - rate, abs=0.03)
    assert false_alarms == pytest.approx(0.1, abs=0.03)


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
