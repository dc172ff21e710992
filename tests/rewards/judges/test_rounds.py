"""Groups that are too large for one call: subgroups that share candidates, and tournaments."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.llm import ChatRequest, ModelCallError
from rewardsmith.rewards.judges.candidates import heats
from rewardsmith.rewards.judges.ranking import Ballot as Seen
from rewardsmith.rewards.judges.ranking import Design
from rewardsmith.rewards.judges.ranking import JoinedShares as Outcome
from tests.rewards.judges.ranked import by_number, group, shown, values
from tests.rewards.models import Scripted


def relative(question: ChatRequest) -> str:
    """A judge who knows no absolute scale: its worst candidate gets a 1, and differences are right."""
    worst = min(int(text) for text in shown(question))
    return by_number(question, lambda place, text: int(text) - worst + 1)


def test_subgroups_are_joined_by_the_candidates_that_they_share() -> None:
    numbers = [11, 13, 12, 15, 14, 16, 11, 17]
    for overlap in (1, 2):
        judge = Scripted(relative)
        found = values(judge, group(*map(str, numbers)), max_candidates=4, overlap=overlap, normalise="none")
        assert all(len(shown(question)) == 4 for question in judge.asked)
        assert len(judge.asked) == -(-7 // (4 - overlap)) == judge.most
        # every call has a level of its own, and yet all differences are right
        assert [v - found[0] for v in found] == pytest.approx([n - 11 for n in numbers])


def test_ranked_subgroups_become_one_order() -> None:
    judge = Scripted(lambda question: by_number(question, output="ranking"))
    numbers = [1, 3, 2, 5, 4, 6]
    found = values(judge, group(*map(str, numbers)), max_candidates=4, output="ranking", overlap=3)
    assert len(judge.asked) == 6
    assert found == [0.0, 0.4, 0.2, 0.8, 0.6, 1.0]


def test_a_subgroup_that_failed_takes_only_those_with_it_whom_nobody_else_has_seen() -> None:
    texts = [str(i) for i in range(10)]
    asked = Scripted(by_number)
    values(asked, group(*texts), max_candidates=4, overlap=1)
    windows = [set(shown(question)) for question in asked.asked]
    assert len(windows) == 4
    lost = windows[1] - windows[0] - windows[2]
    assert lost

    def some(question: ChatRequest) -> str:
        return "hm" if set(shown(question)) == windows[1] else by_number(question)

    found = values(Scripted(some), group(*texts), max_candidates=4, overlap=1)
    assert {text for text, value in zip(texts, found, strict=True) if value == "unparsable"} == lost
    assert [v for v in found if v != "unparsable"] == pytest.approx([int(t) / 10 for t in texts if t not in lost])


def test_of_parts_that_nothing_connects_the_largest_is_kept() -> None:
    texts = [str(i) for i in range(10)]
    asked = Scripted(by_number)
    values(asked, group(*texts), max_candidates=4, overlap=1)
    windows = [set(shown(question)) for question in asked.asked]

    def some(question: ChatRequest) -> str:
        return by_number(question) if set(shown(question)) == windows[0] else "hm"

    found = values(Scripted(some), group(*texts), max_candidates=4, overlap=1)
    assert {text for text, value in zip(texts, found, strict=True) if value != "unparsable"} == windows[0]
    assert values(Scripted(lambda question: "hm"), group(*texts), max_candidates=4) == ["unparsable"] * 10


def test_a_tournament_ends_with_the_best_on_top() -> None:
    numbers = [7, 1, 9, 3, 5, 0, 8, 2, 6, 4]
    judge = Scripted(by_number)
    found = dict(
        zip(numbers, values(judge, group(*map(str, numbers)), max_candidates=4, large_groups="tournament"), strict=True)
    )
    assert max(map(len, map(shown, judge.asked))) <= 4
    best = sorted(found, key=found.get)
    assert best[-1] == 9
    assert all(0 <= v <= 1 for v in found.values())
    # (rounds survived + share in the last heat) / rounds: of two who met, the better has more
    for question in judge.asked:
        met = [int(text) for text in shown(question)]
        assert sorted(met) == sorted(met, key=found.get)
    rounds = 3  # 10 -> 3 heats -> 6 -> 2 heats -> 4 -> the last
    assert len(judge.asked) == 3 + 2 + 1
    assert found[9] == pytest.approx((rounds - 1 + 0.9) / rounds)
    assert found[0] == pytest.approx(0)


@pytest.mark.parametrize("n", range(3, 14))
def test_a_tournament_of_pairs_ends_whatever_the_number(n: int) -> None:
    judge = Scripted(lambda question: by_number(question, lambda place, text: 5))  # all are equal
    found = values(judge, group(*map(str, range(n))), max_candidates=2, large_groups="tournament")
    assert all(0 <= v <= 1 for v in found)
    assert len(judge.asked) == n - 1


def test_a_heat_that_failed_takes_its_members_with_it() -> None:
    texts = [str(i) for i in range(8)]
    first = Scripted(by_number)
    values(first, group(*texts), max_candidates=4, large_groups="tournament")
    broken = set(shown(first.asked[0]))
    judge = Scripted(lambda question: "hm" if set(shown(question)) == broken else by_number(question))
    found = values(judge, group(*texts), max_candidates=4, large_groups="tournament")
    assert {text for text, v in zip(texts, found, strict=True) if v == "unparsable"} == broken
    rest = [v for v in found if v != "unparsable"]
    assert rest == sorted(rest)
    assert (
        values(Scripted(lambda q: "hm"), group(*texts), max_candidates=4, large_groups="tournament")
        == ["unparsable"] * 8
    )


# --- the calls themselves


@pytest.mark.parametrize(("width", "shown_width"), [(0.5, 0.5), (1.0, 1.0), (1.6, 1.0)])
def test_joined_shares_are_moved_back_into_range_and_keep_their_order(width: float, shown_width: float) -> None:
    true = [width * i / 5 for i in range(6)]

    async def ask(order: tuple[int, ...]) -> Seen:
        return Seen(order, {i: true[i] - min(true[j] for j in order) for i in order})

    outcome = asyncio.run(Design(max_candidates=4, overlap=2).judge(ask, range(6)))
    found = [outcome.shares[i] for i in range(6)]
    assert [share - found[0] for share in found] == pytest.approx([shown_width * i / 5 for i in range(6)])
    assert min(found) >= 0
    assert max(found) <= 1


def tournament(graded: Mapping[int, float], fails: Callable[[tuple[int, ...]], bool], most: int = 2) -> Outcome:
    async def ask(order: tuple[int, ...]) -> Seen:
        if fails(order):
            raise ModelCallError("timeout", "late")
        return Seen(order, {i: graded[i] for i in order})

    return asyncio.run(Design(max_candidates=most, overlap=1, tournament=True).judge(ask, list(graded)))


def test_a_bye_keeps_the_rounds_that_it_survived() -> None:
    # 0 beats 3 and 1 beats 4; then 2 and 1 meet, which fails, and nobody is left to meet 0
    outcome = tournament({0: 0.6, 1: 0.9, 2: 0.5, 3: 0.1, 4: 0.8}, lambda order: set(order) == {1, 2})
    assert outcome.shares == {0: 0.5, 3: 0.05, 4: 0.4}
    assert set(outcome.failures) == {1, 2}


def test_a_bye_that_nobody_has_seen_has_failed() -> None:
    outcome = tournament({0: 0.6, 1: 0.9, 2: 0.5}, lambda order: True)
    assert outcome.shares == {}
    assert set(outcome.failures) == {0, 1, 2}
    # one that has won its only heat was seen
    outcome = tournament({0: 0.6, 1: 0.9, 2: 0.5, 3: 0.1, 4: 0.8}, lambda order: len(order) == 3, most=4)
    assert sorted(outcome.shares) == [1, 3]
    assert outcome.shares[1] == 0.9


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(4, 9), st.integers(2, 3))
def test_who_wins_a_heat_is_worth_no_less_than_who_loses_one(data: st.DataObject, count: int, most: int) -> None:
    graded = dict(enumerate(data.draw(st.permutations([i / 10 for i in range(count)]))))
    failing = data.draw(st.frozensets(st.integers(0, count)))
    asked: list[tuple[int, ...]] = []

    def fails(order: tuple[int, ...]) -> bool:
        asked.append(order)
        return len(asked) - 1 in failing

    shares = tournament(graded, fails, most).shares
    answered = [order for place, order in enumerate(asked) if place not in failing]
    first = heats(range(count), most)
    for heat, others in [(heat, heat) for heat in answered] + [(a, b) for a in answered for b in answered]:
        if heat is not others and not (heat in first and others in first):
            continue
        won = sorted(heat, key=graded.get)[len(heat) // 2 :]
        lost = sorted(others, key=graded.get)[: len(others) // 2]
        assert all(shares[i] >= shares[j] for i in won for j in lost if i in shares and j in shares)
