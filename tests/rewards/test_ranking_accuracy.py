"""The reward that trains a ranking judge: golden values of the first program, labels, invariances, bad truths."""

import asyncio
import itertools
import json
import math
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.errors import RecipeError
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.accuracy import MAX_CHARS
from rewardsmith.text.rankings import levels_of, write_levels, write_ranking

TRUTH = {"A": 8, "B": 3, "C": 3}


def score(answer: object, text: str | Rollout, **settings: Any) -> Score:
    prompt = Prompt("p", [Message("user", "Rank these.")], answer=answer)
    reward = make_reward({"type": "ranking_accuracy", **settings})
    rollout = Rollout(text) if isinstance(text, str) else text
    return asyncio.run(reward.score(RolloutGroup(prompt, [rollout])))[0]


def ok(ranking: str, marks: str, headers: tuple[str, str] = ("### Final Ranking:", "### Scores:")) -> str:
    return f"A is fluent.\n\n{headers[0]}\n\n{ranking}\n\n{headers[1]}\n\n{marks}\n"


def values(found: Score) -> tuple[float | None, ...]:
    return found.value, found.parts["order"].value, found.parts["margin"].value


# What the first program gave for the truth above: score, share of the order, credit for the margins; and the label with
# which we refuse it, for a reward of 0.
GOLDEN: dict[str, tuple[str, tuple[float, float, float], str]] = {
    "perfect": (ok("A > B = C", "A: 8, B: 3, C: 3"), (2.0, 1.0, 1.0), ""),
    "one tie missed": (ok("A > B > C", "A: 8, B: 4, C: 3"), (1.4, 2 / 3, 2.2 / 3), ""),
    "scores in the order of the ranking": (ok("A > C > B", "A: 8, C: 4, B: 2"), (17 / 15, 2 / 3, 1.4 / 3), ""),
    "all tied": (ok("A = B = C", "A: 5, B: 5, C: 5"), (2 / 3, 1 / 3, 1 / 3), ""),
    "a tie in the other order": (ok("A > C = B", "A: 8, B: 3, C: 3"), (2.0, 1.0, 1.0), ""),
    "any two words as headers": (ok("A > B = C", "A: 8, B: 3, C: 3", ("so", "thus")), (2.0, 1.0, 1.0), ""),
    # A judge that prints scores outside of its scale cannot be used on it.
    "above the range": (ok("A > B = C", "A: 800, B: 3, C: 3"), (4 / 3, 1.0, 1 / 3), "score-out-of-range"),
    "below the range": (ok("A > B = C", "A: -1, B: -6, C: -6"), (2.0, 1.0, 1.0), "score-out-of-range"),
    # Nobody can know which of the two is meant.
    "a letter twice": (ok("A > B = C", "A: 9, A: 8, B: 3, C: 3"), (2.0, 1.0, 1.0), "duplicate-letter"),
    # The first program refused these too, without saying why.
    "contradiction": (ok("B > A = C", "A: 8, B: 3, C: 3"), (0, 0, 0), "ranking-contradicts-scores"),
    "text after it": (ok("A > B = C", "A: 8, B: 3, C: 3") + "I hope this helps.", (0, 0, 0), "no-scores-line"),
    "bold ranking": (ok("**A > B = C**", "A: 8, B: 3, C: 3"), (0, 0, 0), "no-ranking-line"),
    "8.0": (ok("A > B = C", "A: 8.0, B: 3, C: 3"), (0, 0, 0), "score-not-an-integer"),
    "8/10": (ok("A > B = C", "A: 8/10, B: 3/10, C: 3/10"), (0, 0, 0), "score-not-a-number"),
    "full-width colon": (ok("A > B = C", "A： 8, B： 3, C： 3"), (0, 0, 0), "no-scores-line"),
    "missing candidate": (ok("A > B", "A: 8, B: 3"), (0, 0, 0), "missing-candidate"),
    "no analysis": (ok("A > B = C", "A: 8, B: 3, C: 3").partition("\n")[2], (0, 0, 0), "too-few-lines"),
    "one candidate": (ok("A", "A: 8"), (0, 0, 0), "missing-candidate"),
}


@pytest.mark.parametrize("row", GOLDEN)
def test_the_golden_table(row: str) -> None:
    text, original, label = GOLDEN[row]
    for answer in (TRUTH, json.dumps(TRUTH), {**TRUTH, "D": None}):
        found = score(answer, text)
        assert values(found) == pytest.approx((0, 0, 0) if label else original)
        assert (found.label, found.parts["readable"].value) == (label, float(not label))
        assert found.feedback.startswith("not parsed: " if label else "parsed ")


def test_how_strictly_a_reply_is_parsed() -> None:
    for row in ("above the range", "below the range"):
        assert values(score(TRUTH, GOLDEN[row][0], outside="accept")) == pytest.approx(GOLDEN[row][1])
    for row in ("text after it", "bold ranking", "8.0", "8/10", "full-width colon", "no analysis"):
        assert values(score(TRUTH, GOLDEN[row][0], reading="lenient")) == pytest.approx((2.0, 1.0, 1.0))
    assert score(TRUTH, GOLDEN["any two words as headers"][0], reading="exact").label == "wrong-header"
    assert score(TRUTH, GOLDEN["perfect"][0], reading="exact").value == 2.0
    thought = "<think>" + ok("C > B > A", "A: 1, B: 2, C: 3") + "</think>\n"
    assert score(TRUTH, thought + GOLDEN["perfect"][0]).value == 2.0


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"order": 0.5}, 0.5 * 2 / 3 + 2.2 / 3),
        ({"margin": 0}, 2 / 3),
        ({"order": 0, "margin": 3}, 2.2),
        ({"scale": 0.1}, 0.14),
        ({"margins": [1.0]}, 2 / 3 + 1 / 3),  # B and A, B and C are off by one
        ({"margins": [1.0, 0.9, 0.8, 0.7]}, 2 / 3 + 2.8 / 3),
        ({"ties": "half"}, 2.5 / 3 + 2.2 / 3),
        ({"ties": "ignore"}, 1.0 + 0.8),
        ({"format_reward": 0.25}, 1.65),
        ({"format_reward": 0.25, "scale": 0.1}, 0.39),  # not scaled
    ],
)
def test_weights_and_policies(settings: dict[str, Any], value: float) -> None:
    assert score(TRUTH, GOLDEN["one tie missed"][0], **settings).value == pytest.approx(value)


def test_ties_of_the_truth_can_be_left_out_of_both_terms() -> None:
    """All tied earns nothing then: there is no credit for saying nothing."""
    assert values(score(TRUTH, GOLDEN["all tied"][0], ties="ignore")) == (0.0, 0.0, 0.0)
    assert values(score(TRUTH, GOLDEN["perfect"][0], ties="ignore")) == (2.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (GOLDEN["no analysis"][0], 2 / 3), (GOLDEN["contradiction"][0], 2 / 3), (GOLDEN["above the range"][0], 1 / 3),
        (GOLDEN["missing candidate"][0], 0.0), ("I like A > B = C\nA > B = C", 1 / 3), ("", 0.0),
        (Rollout(GOLDEN["perfect"][0], stop_reason="length"), 0.0),
    ],
)  # fmt: skip
def test_a_malformed_verdict_may_earn_a_share_of_the_form(text: str | Rollout, share: float) -> None:
    found = score(TRUTH, text, format_reward=0.3, invalid_reward=-1)
    assert found.value == pytest.approx(-1 + 0.3 * share)
    assert found.label


@pytest.mark.parametrize(("chars", "label"), [(0, ""), (3, ""), (4, "short-analysis")])
def test_an_analysis_has_a_minimal_length(chars: int, label: str) -> None:
    """10 characters that are not blank, for three candidates."""
    assert score(TRUTH, GOLDEN["perfect"][0], min_analysis_chars=chars).label == label
    assert score(TRUTH, " \n" * 99 + GOLDEN["perfect"][0], min_analysis_chars=chars).label == label


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        ("ranking", "So.\n\n### Final Ranking:\n\nA > B = C\n", 1.0),
        ("ranking", "So.\n\n### Final Ranking:\n\nA > B > C\n", 2 / 3),
        ("ranking", "So.\n\n### Final Ranking:\n\nA: 8, B: 3, C: 3\n", 0.0),
        ("scores", "So.\n\nA: 8, B: 4, C: 3\n", 1.4),
    ],
)
def test_what_a_judge_writes(output: str, text: str, value: float) -> None:
    found = score(TRUTH, text, output=output)
    assert found.value == pytest.approx(value)
    assert set(found.parts) == {"readable", "order"} | ({"margin"} if output == "scores" else set())


@pytest.mark.parametrize("answer", ["A > B = C", "A>C=B", " A > B = C "])
def test_the_truth_may_be_a_ranking(answer: str) -> None:
    text = "So.\n\n### Final Ranking:\n\nA > B > C\n"
    assert score(answer, text, output="ranking").value == pytest.approx(2 / 3)
    found = score(answer, GOLDEN["one tie missed"][0], margin=0)
    assert found.value == pytest.approx(2 / 3)
    assert found.parts["margin"].failure is not None
    assert score(answer, GOLDEN["perfect"][0]).failure is not None  # there are no distances


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "no true scores"), ("", "ranking"), ("A", "ranking"), ("A > B > A", "duplicate letter"),
        ("A < B", "ranking with <"), ("the first is better", "ranking"), ("so:\nA > B", "ranking"),
        ("{'A': 8, 'B': 3}", "no JSON"), ('{"A": 8, "A": 3, "B": 3}', "twice"),
        ('{"A": 8, "B": NaN}', "must be a number"), ('{"A": 8, "B": "3"}', "must be a number"),
        ('{"A": 8, "B": true}', "must be a number"), ('{"A": 8, "B": 1e99}', "must be a number"),
        ("{" * 100_000, "no JSON"), ("[" * 100_000, "ranking"), ({"A": 8, "b": 3}, "A to Z"),
        ({"A": 8, "AB": 3}, "A to Z"), ({"A": 8}, "1 candidates"), ({"A": 8, "B": None}, "1 candidates"),
        ([8, 3], "table of scores"), (8, "table of scores"), ({"A": 11, "B": 3}, "outside of 0 to 10"),
        ({"A": -1, "B": 3}, "outside of 0 to 10"), ({"A": 7.5, "B": 3}, "decimals = true"),
    ],
)  # fmt: skip
def test_a_prompt_without_scores_is_a_failure_and_refused_before_the_run(answer: object, message: str) -> None:
    found = score(answer, GOLDEN["perfect"][0])
    assert found.failure is not None
    assert found.failure.kind == "invalid"
    assert message in found.failure.detail
    assert "'p'" in found.failure.detail
    assert set(found.parts) == {"readable", "order", "margin"}
    reward = make_reward("ranking_accuracy").reward
    with pytest.raises(Exception, match="'p'"):
        reward.require(Prompt("p", [Message("user", "?")], answer=answer))  # type: ignore[attr-defined]


def test_a_truth_without_order_cannot_be_judged_where_ties_do_not_count() -> None:
    tied = {"A": 5, "B": 5}
    found = score(tied, ok("A = B", "A: 5, B: 5"), ties="ignore")
    assert found.failure is not None
    assert "all equal" in found.failure.detail
    assert score(tied, ok("A = B", "A: 5, B: 5")).value == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": 0, "margin": 0}, "both 0"), ({"output": "ranking", "order": 0}, "both 0"),
        ({"lowest": 10}, "the range is empty"), ({"margins": [0.2, 0.6]}, "none above the one before"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((RecipeError, ValueError), match=message):
        make_reward({"type": "ranking_accuracy", **settings})


# ---- against an independent implementation --------------------------------------------------------------------------


def by_loops(truth: Mapping[str, float], guess: Mapping[str, float], ties: str) -> tuple[float, float]:
    """Order and margin, pair after pair, as the description has them."""
    order = margin = pairs = 0.0
    for x, y in itertools.combinations(sorted(truth), 2):
        true, found = truth[x] - truth[y], guess[x] - guess[y]
        if ties == "ignore" and true == 0:
            continue
        pairs += 1
        if (true > 0) == (found > 0) and (true < 0) == (found < 0):
            order += 1
        elif ties == "half" and (true == 0 or found == 0):
            order += 0.5
        off = abs(true - found)
        margin += 1.0 if off == 0 else 0.6 if off == 1 else 0.2 if off == 2 else 0.0
    return (order / pairs, margin / pairs) if pairs else (math.nan, math.nan)


MARKS = st.integers(0, 10)
PAIRS = st.lists(st.tuples(MARKS, MARKS), min_size=2, max_size=7)
TIES = st.sampled_from(["strict", "half", "ignore"])


def tables(pairs: list[tuple[int, int]], letters: str = "ABCDEFG") -> tuple[dict[str, int], dict[str, int]]:
    named = list(zip(letters, pairs, strict=False))
    return {letter: pair[0] for letter, pair in named}, {letter: pair[1] for letter, pair in named}


@given(PAIRS, TIES, st.floats(0, 2), st.floats(0.1, 2), st.floats(0.1, 3))
def test_all_values_are_those_of_the_loops(
    pairs: list[tuple[int, int]], ties: str, order: float, margin: float, scale: float
) -> None:
    truth, guess = tables(pairs)
    found = score(truth, write_ranking(guess, "So."), ties=ties, order=order, margin=margin, scale=scale)
    expected = by_loops(truth, guess, ties)
    if math.isnan(expected[0]):
        assert found.failure is not None
        return
    value = scale * (order * expected[0] + margin * expected[1])
    assert values(found) == pytest.approx((value, *expected))
    assert 0 <= (found.value or 0) <= scale * (order + margin) * (1 + 1e-9)
    best = score(truth, write_ranking(truth, "So."), ties=ties, order=order, margin=margin, scale=scale)
    assert best.value == pytest.approx(scale * (order + margin))


@given(PAIRS, TIES, st.permutations("ABCDEFG"), st.integers(-5, 5))
def test_neither_the_names_of_the_candidates_nor_a_constant_matter(
    pairs: list[tuple[int, int]], ties: str, names: list[str], by: int
) -> None:
    def value(letters: str, by: int) -> float | None:
        truth, guess = tables(pairs, letters)
        moved = {letter: mark + by for letter, mark in guess.items()}
        return score(truth, write_ranking(moved, "So."), ties=ties, outside="accept").value

    one, other = value("ABCDEFG", 0), value("".join(names), by)
    assert one is other is None or one == pytest.approx(other)


@given(PAIRS)
def test_only_the_order_counts_in_a_ranking(pairs: list[tuple[int, int]]) -> None:
    truth, guess = tables(pairs)
    both = score(truth, write_ranking(guess, "So."), margin=0)
    alone = score(truth, write_ranking(guess, "So.", "ranking"), output="ranking")
    named = score(write_levels(levels_of(truth)), write_ranking(guess, "So.", "ranking"), output="ranking")
    assert both.value == pytest.approx(alone.value)
    assert named.value == pytest.approx(alone.value)


# ---- hostile text ---------------------------------------------------------------------------------------------------


@given(
    st.text(alphabet="ABC>=<: 0123456789.-*#|\nScores", max_size=200), st.sampled_from(["strict", "exact", "lenient"])
)
def test_any_text_has_a_value_within_bounds(text: str, reading: str) -> None:
    found = score(TRUTH, text, reading=reading, format_reward=0.5)
    assert found.value is not None
    assert 0 <= found.value <= 2.5
    assert (found.label == "") == (found.parts["readable"].value == 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "A > B = C\n" * 200_000, "A > " * 700_000, "A: 8, " * 500_000,
        "So.\n\n#\n\nA > B = C\n\n#\n\n" + "A: 8, " * 500_000, "\n" * 3_000_000, "A: " + "9" * 3_000_000,
    ],
)  # fmt: skip
def test_huge_texts_end_soon(text: str) -> None:
    begun = time.monotonic()
    for reading in ("strict", "lenient"):
        assert score(TRUTH, text, reading=reading, format_reward=0.1).label == "too-long"
        assert score(TRUTH, text[:MAX_CHARS], reading=reading, format_reward=0.1).label not in ("", "too-long")
    assert time.monotonic() - begun < 30
