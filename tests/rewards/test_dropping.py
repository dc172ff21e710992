"""What is left of a composition when a component is dropped for the group, and conditions that nobody knows."""

import itertools

import pytest

from rewardsmith import UserError
from rewardsmith.rewards import make_reward
from tests.rewards.stubs import ASKED, given, said, values
from tests.rewards.test_compose import KINDS, composed, pair, parts

DROP = {"do": "drop-component"}


def dropping(kind: str, role: str, **settings: object) -> dict:
    table = pair(kind, **settings)
    table[role] = {**table[role], "failure": DROP}
    return table


ROWS = [{"p": 0.5, "v": 0.25}, {"p": 0.5, "v": "timeout"}, {"p": 1.0, "v": 0.75}]
LOST_RULE = [{"p": 1.0, "v": 0.25}, {"p": "timeout", "v": 0.5}, {"p": 0.0, "v": 0.75}]


@pytest.mark.parametrize(
    ("table", "rows", "expected"),
    [
        (dropping("gate", "judge"), ROWS, [0.5, 0.5, 1.0]),
        (dropping("gate", "judge", threshold=1.0), [*ROWS, {"p": 1.0, "v": "timeout"}], [0.0, 0.0, 1.0, 1.0]),
        (dropping("fallback", "judge", factor=0.5), ROWS, [0.5, 0.5, 1.0]),
        (dropping("mixed", "judge", share=0.9), ROWS, [0.5, 0.5, 1.0]),
        (dropping("gate", "rule"), LOST_RULE, [0.25, 0.5, 0.75]),
        (dropping("fallback", "rule", factor=0.5), LOST_RULE, [0.125, 0.25, 0.375]),
        (dropping("mixed", "rule", share=0.1), LOST_RULE, [0.25, 0.5, 0.75]),
        # what does not count cannot be what is left
        (dropping("mixed", "judge", share=1.0), ROWS, ["timeout"] * 3),
        (dropping("mixed", "rule", share=0.0), LOST_RULE, ["timeout"] * 3),
    ],
)
def test_what_is_left_of_a_pair(table: dict, rows: list[dict], expected: list[object]) -> None:
    assert values(table, *rows) == expected


def test_a_judge_that_does_not_count_is_not_asked_when_the_rule_is_dropped() -> None:
    said(dropping("mixed", "rule", share=0.0), *LOST_RULE)
    assert ASKED == {"p": 3}


def test_a_product_goes_on_without_a_dropped_factor() -> None:
    table = parts("product", a=given("a", failure=DROP), b=given("b"))
    assert values(table, {"a": 0, "b": 3}, {"a": "timeout", "b": 4}) == [3, 4]
    assert ASKED["b"] == 2  # the 0 of a dropped factor closes nothing


def test_a_cascade_goes_on_after_a_dropped_step() -> None:
    table = parts("cascade", a=given("a", above=0.5, failure=DROP), b=given("b"))
    assert values(table, {"a": 1, "b": 3}, {"a": "timeout", "b": 4}) == [3, 4]


# ---- conditions that nobody knows ----------------------------------------------------------------------------------


def test_a_condition_that_failed_is_neither_yes_nor_no() -> None:
    table = parts("sum", a=given("a"), c=given("c", weight=0.0, watch=True), d=given("d", when="c"))
    rows = [{"a": 1, "c": 1, "d": 5}, {"a": 1, "c": "timeout", "d": 5}, {"a": 1, "c": 0, "d": 5}]
    assert values(table, *rows) == [6, "timeout", 1]
    assert ASKED["d"] == 1


def test_a_condition_of_weight_zero_is_asked_because_others_wait_for_it() -> None:
    table = parts("sum", a=given("a"), c=given("c", weight=0.0), d=given("d", when="c"))
    assert values(table, {"a": 1, "c": 1, "d": 5}, {"a": 1, "c": 0, "d": 5}) == [6, 1]


def test_a_condition_that_was_dropped_inside_takes_its_dependents_along() -> None:
    base = parts("sum", rule=given("r", failure=DROP), other=given("o"))
    table = parts("product", base=base, judge=given("j", when="base.rule"))
    rows = [{"r": 1, "o": 2, "j": 7}, {"r": "timeout", "o": 3, "j": 7}]
    assert values(table, *rows) == [2, 3]
    assert ASKED["j"] == 0
    (top, _) = said(parts("product", rule=given("r", failure=DROP), x=given("x", when="rule"), y=given("y")),
                    {"r": 1, "x": 5, "y": 2}, {"r": "timeout", "x": 5, "y": 3})  # fmt: skip
    assert top.value == 2
    assert top.parts["x"].failure.kind == "dropped"


def test_a_condition_that_was_skipped_does_not_hold() -> None:
    base = {"type": "gate", "rule": given("p"), "judge": given("v")}
    table = parts("sum", base=base, d=given("d", when="base.judge", at_least=0.5))
    assert values(table, {"p": 0, "v": 1, "d": 5}, {"p": 1, "v": 1, "d": 5}) == [0, 6]


# ---- everything nests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outer", "inner"), [*itertools.product(KINDS, KINDS)])
def test_every_kind_nests_in_every_other(outer: str, inner: str) -> None:
    table = composed(outer)
    holder = table.get("parts") or table.get("routes") or table
    name = next(key for key in ("x", "judge", "all", "reward") if key in holder)
    beside = {key: value for key, value in holder[name].items() if key not in ("type", "key")}
    holder[name] = {**composed(inner), **beside}
    rows = [{"p": 0.5, "x": 0.25}, {"p": 0.5, "x": "timeout"}, {"p": 0.5, "x": 0.75}]
    scores = said(table, *rows)
    assert [score.ok for score in scores] == [True, False, True]
    assert scores[1].failure.kind == "timeout"
    assert "x says timeout" in scores[1].failure.detail
    assert len({tuple(n for n, _ in score.named_parts()) for score in scores}) == 1


def test_a_failure_says_in_which_part_it_was() -> None:
    table = parts("sum", judge={"type": "clip", "low": 0.0, "reward": given("x")})
    (score,) = said(table, {"x": "timeout"})
    assert score.failure.detail == 'part "judge": part "raw": x says timeout'


def test_a_part_called_like_the_whole_is_refused() -> None:
    with pytest.raises(UserError, match="rename it"):
        make_reward(parts("sum", reward=given("x")))
