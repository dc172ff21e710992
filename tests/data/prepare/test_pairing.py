"""Pairs of a group: their counts in closed form, and that they follow from the scores alone."""

from collections import Counter
from itertools import pairwise
from math import comb

from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Ranking
from rewardsmith.data.prepare.pairing import Group, group_of, pairs_in, pairs_of

SCORES = st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=9)
WHICH = st.sampled_from(["all", "adjacent", "best-worst"])
TIES = st.booleans()


def distinct(scores: list[float]) -> Group:
    """Return a group of as many different texts."""
    return group_of([f"text {i}" for i in range(len(scores))], scores)


def ranking(texts: list[str], scores: list[float]) -> Ranking:
    return Ranking(Prompt("p", [Message("user", "q")]), texts, scores)  # type: ignore[arg-type]


def sizes(scores: list[float]) -> list[int]:
    """Return how many have each score, best first."""
    return [count for _, count in sorted(Counter(scores).items(), reverse=True)]


@given(scores=SCORES, which=WHICH, ties=TIES)
def test_counts_in_closed_form(scores: list[float], which: str, ties: bool) -> None:
    levels = sizes(scores)
    tied = sum(comb(level, 2) for level in levels)
    expected = {
        "all": comb(len(scores), 2) - tied + (tied if ties else 0),
        "adjacent": sum(a * b for a, b in pairwise(levels)) + (tied if ties else 0),
        "best-worst": levels[0] * levels[-1] if len(levels) > 1 else (tied if ties else 0),
    }[which]
    found = pairs_in(distinct(scores), which, keep_ties=ties)  # type: ignore[arg-type]
    assert len(found) == expected
    assert len({frozenset(pair[:2]) for pair in found}) == expected  # no two candidates are paired twice


@given(scores=SCORES, which=WHICH, ties=TIES, smallest=st.floats(0, 5))
def test_no_pair_is_against_its_scores(scores: list[float], which: str, ties: bool, smallest: float) -> None:
    for chosen, rejected, margin in pairs_in(distinct(scores), which, min_margin=smallest, keep_ties=ties):  # type: ignore[arg-type]
        assert scores[chosen] - scores[rejected] == margin
        assert margin >= smallest or (margin == 0 and ties)


@given(
    group=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(-3, 3)), min_size=2, max_size=10),
    which=WHICH,
    ties=TIES,
    sample=st.none() | st.integers(1, 6),
    data=st.data(),
)
def test_the_order_of_the_candidates_does_not_matter(
    group: list[tuple[str, int]], which: str, ties: bool, sample: int | None, data: st.DataObject
) -> None:
    found = [
        {
            (p.chosen, p.rejected, p.margin, p.tied)
            for p in pairs_of(ranking([t for t, _ in g], [s for _, s in g]), which, sample=sample, keep_ties=ties)  # type: ignore[arg-type]
        }
        for g in (group, data.draw(st.permutations(group)))
    ]
    assert found[0] == found[1]


def test_copies_of_a_text_are_one_answer_with_the_mean_of_their_scores() -> None:
    assert group_of(["a", "b", "a", "a"], [1.0, 5.0, 2.0, 6.0]) == Group(("a", "b"), (3.0, 5.0), ((0, 2, 3), (1,)))
    assert pairs_of(ranking(["a", "a"], [1.0, 9.0]), keep_ties=True) == ()


def test_what_differs_by_rounding_alone_is_a_tie() -> None:
    noisy = [0.1 + 0.2, 0.3]
    assert pairs_in(distinct(noisy)) == []
    assert [pair.margin for pair in pairs_in(distinct(noisy), keep_ties=True)] == [0.0]
    # 0.3 - 0.1 is a little below 0.2 in floating point.
    assert [pair.margin for pair in pairs_in(distinct([0.3, 0.1]), min_margin=0.2)] == [0.2]
