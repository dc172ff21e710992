"""Composition: values by formula, nothing computed in vain, names that stay, failures that are never numbers."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from rewardsmith import UserError
from rewardsmith.rewards import make_reward
from tests.rewards.stubs import CALLS, given, score_rows, values

NUMBERS = st.floats(-10, 10, allow_nan=False)


def pair(kind: str, **settings: object) -> dict:
    return {"type": kind, "rule": given("p"), "judge": given("v"), **settings}


def parts(kind: str, **tables: dict) -> dict:
    return {"type": kind, "parts": tables}


# ---- values --------------------------------------------------------------------------------------------------------


@for_all(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5), NUMBERS, NUMBERS)
def test_sum_and_product(rows: list[tuple[float, float]], a: float, b: float) -> None:
    made = [{"x": x, "y": y} for x, y in rows]
    if a or b:
        total = parts("sum", x=given("x", weight=a), y=given("y", weight=b))
        assert values(total, *made) == pytest.approx([a * x + b * y for x, y in rows], abs=1e-9)
    if a and b:
        product = parts("product", x=given("x", weight=a), y=given("y", weight=b))
        assert values(product, *made) == pytest.approx([a * x * b * y for x, y in rows], abs=1e-9)


@for_all(st.sampled_from([0.0, 0.1, 1.0]), st.floats(0, 1), st.floats(0.01, 1))
def test_the_three_ways_to_join_a_rule_and_a_judge(p: float, v: float, w: float) -> None:
    row = {"p": p, "v": v}
    assert values(pair("gate"), row) == pytest.approx([p * v])
    assert values(pair("gate", threshold=1.0), row) == pytest.approx([p * v if p >= 1 else 0])
    assert values(pair("fallback", factor=w), row) == pytest.approx([1 if p == 1 else w * v])
    assert values(pair("addon", factor=w), row) == values(pair("fallback", factor=w), row)
    assert values(pair("mixed", share=w), row) == pytest.approx([w * v + (1 - w) * p])


def test_a_cascade_takes_the_value_of_the_part_that_decides() -> None:
    table = parts("cascade", cheap=given("a", below=0.2, above=0.8), middle=given("b", above=0.5), last=given("c"))
    rows = [{"a": a, "b": b, "c": 0.3} for a, b in [(0.2, 9), (0.8, 9), (0.5, 0.5), (0.5, 0.4), (0.21, 0.49)]]
    assert values(table, *rows) == [0.2, 0.8, 0.5, 0.3, 0.3]
    assert CALLS == {"a": 5, "b": 3, "c": 2}


def test_transforms() -> None:
    rows = [{"x": x} for x in (-3.0, 0.25, 0.5, 2.0)]
    wrap = lambda kind, **settings: {"type": kind, "reward": given("x"), **settings}  # noqa: E731
    assert values(wrap("clip", low=0.0, high=1.0), *rows) == [0.0, 0.25, 0.5, 1.0]
    assert values(wrap("clip", high=0.3), *rows) == [-3.0, 0.25, 0.3, 0.3]
    assert values(wrap("scale", factor=2.0, offset=1.0), *rows) == [-5.0, 1.5, 2.0, 5.0]
    assert values(wrap("shape", points=[[0, 0], [0.5, 1], [1, 0]]), *rows) == [0.0, 0.5, 1.0, 0.0]
    assert values(wrap("shape", points=[[0.5, 0], [0.5, 1]]), *rows) == [0, 0, 1, 1]  # a jump: at least 0.5
    logistic = wrap("shape", logistic={"centre": 0.5, "width": 0.25, "low": -1.0, "high": 1.0})
    assert values(logistic, *rows) == pytest.approx([-1 + 2 / (1 + math.exp(-(r["x"] - 0.5) / 0.25)) for r in rows])
    assert values(wrap("shape", logistic={"width": 1e-300}), {"x": -1e29}, {"x": 1e29}) == [0.0, 1.0]


def test_standardising_a_group() -> None:
    table = {"type": "standardise", "reward": given("x")}
    assert values(table, {"x": 1}, {"x": 3}) == [-1.0, 1.0]
    assert values(table, {"x": 1}, {"x": "timeout"}, {"x": 3}) == [-1.0, "timeout", 1.0]
    assert values(table, {"x": 0.1}, {"x": 0.1}, {"x": 0.1}) == [0.0, 0.0, 0.0]
    assert values(table | {"centre": False}, {"x": 1}, {"x": 3}) == [1.0, 3.0]


# ---- nothing is computed in vain ----------------------------------------------------------------------------------


def test_a_judge_is_called_only_where_it_can_change_the_result() -> None:
    rows = [{"p": 0.0, "v": 0.5}, {"p": 1.0, "v": 0.5}, {"p": 0.0, "v": 0.5}]
    for table, calls in [
        (pair("gate"), (3, 1)), (pair("fallback"), (3, 2)), (pair("mixed"), (3, 3)),
        (pair("mixed", share=0.0), (3, 0)), (pair("mixed", share=1.0), (0, 3)),
    ]:  # fmt: skip
        scores = score_rows(table, *rows)
        assert (CALLS["p"], CALLS["v"]) == calls
        assert all(set(score.parts) == {"rule", "judge"} for score in scores)


def test_a_product_stops_at_zero_and_a_sum_leaves_out_weight_zero() -> None:
    product = parts("product", a=given("a"), b=given("b"), c=given("c"))
    assert values(product, {"a": 0, "b": 2, "c": 3}, {"a": 1, "b": 0, "c": 3}, {"a": 1, "b": 2, "c": 3}) == [0, 0, 6]
    assert CALLS == {"a": 3, "b": 2, "c": 1}
    total = parts("sum", a=given("a"), b=given("b", weight=0.0), c=given("c", weight=0.0, watch=True))
    scores = score_rows(total, {"a": 1, "b": 2, "c": "timeout"}, {"a": 2, "b": 2, "c": 5})
    assert [s.value for s in scores] == [1, 2]  # what is only watched cannot fail a rollout
    assert CALLS == {"a": 2, "c": 2}
    assert [s.parts["b"].failure.kind for s in scores] == ["skipped"] * 2
    assert scores[0].parts["c"].failure.kind == "timeout"
    assert scores[1].parts["c"].value == 5


def test_everything_skips_all_the_way_down() -> None:
    inner = {"type": "clip", "low": 0.0, "reward": parts("sum", x=given("x"), y=given("y"))}
    (score,) = score_rows({"type": "gate", "rule": given("p"), "judge": inner}, {"p": 0, "x": 1, "y": 1})
    assert score.value == 0
    assert CALLS == {"p": 1}
    names = ["rule", "judge", "judge.raw", "judge.raw.x", "judge.raw.y"]
    assert [name for name, _ in score.named_parts()] == names


DROP = {"do": "drop-component"}

# ---- conditions ----------------------------------------------------------------------------------------------------


BASE = parts("sum", rule=given("r"), other=given("o"))
GATED = {"type": "gate", "rule": given("p"), "judge": given("v")}


@pytest.mark.parametrize(
    ("table", "rows", "expected", "calls"),
    [
        (
            parts("sum", rule=given("r"), judge=given("j", when="rule", at_least=0.5, weight=2.0)),
            [{"r": 1, "j": 3}, {"r": 0.5, "j": 3}, {"r": 0.4, "j": 3}, {"r": "timeout", "j": 3}],
            [7, 6.5, 0.4, "timeout"],
            2,
        ),
        (  # a condition inside a part
            parts("product", base=BASE, judge=given("j", when="base.rule", weight=0.5)),
            [{"r": 1, "o": 1, "j": 3}, {"r": 0.5, "o": 1, "j": 3}],
            [3.0, 0.0],
            1,
        ),
        (  # one that failed is neither yes nor no
            parts("sum", a=given("a"), c=given("c", weight=0.0, watch=True), j=given("j", when="c")),
            [{"a": 1, "c": 1, "j": 5}, {"a": 1, "c": "timeout", "j": 5}, {"a": 1, "c": 0, "j": 5}],
            [6, "timeout", 1],
            1,
        ),
        (  # one that was skipped does not hold
            parts("sum", base=GATED, j=given("j", when="base.judge", at_least=0.5)),
            [{"p": 0, "v": 1, "j": 5}, {"p": 1, "v": 1, "j": 5}],
            [0, 6],
            1,
        ),
        (  # one that is dropped takes its dependents along
            parts("sum", base=given("b"), rule=given("r", failure=DROP), judge=given("j", when="rule")),
            [{"b": 1, "r": 1, "j": 5}, {"b": 2, "r": "timeout", "j": 5}],
            [1, 2],
            0,
        ),
        (  # and so does one that is dropped inside
            parts("product", base=parts("sum", r=given("r", failure=DROP), o=given("o")), j=given("j", when="base.r")),
            [{"r": 1, "o": 2, "j": 7}, {"r": "timeout", "o": 3, "j": 7}],
            [2, 3],
            0,
        ),
    ],
)
def test_a_part_may_wait_for_an_earlier_one(table: dict, rows: list[dict], expected: list[object], calls: int) -> None:
    assert values(table, *rows) == expected
    assert CALLS["j"] == calls


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (parts("sum", a=given("a", when="b"), b=given("b")), 'when = "b", which is no part before it'),
        (parts("sum", answer=given("a"), b=given("b", when="anser")), 'Did you mean "answer"?'),
        (parts("sum", a=given("a"), b=given("b", when="a.inner")), "no part before it"),
        (parts("sum", a=given("a", weight=0.0)), "every part of the sum has weight 0"),
        (parts("product", a=given("a", weight=0.0)), "weight 0: every reward would be 0"),
        (parts("cascade", a=given("a"), b=given("b")), '"a" has neither below nor above'),
        (parts("sum", mean=given("a")), "rename it"),
        (parts("sum", **{"a.b": given("a")}), "without dots"),
        ({"type": "clip", "reward": given("x"), "low": 2.0, "high": 1.0}, "above high"),
        ({"type": "shape", "reward": given("x")}, "one of the two"),
        ({"type": "shape", "reward": given("x"), "points": [[1, 0], [0, 1]]}, "must grow"),
        ({"type": "gate", "rule": given("x", failure={"do": "use"}), "judge": given("y")}, "go together"),
    ],
)
def test_mistakes_are_named(table: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        make_reward(table)
    assert words in str(caught.value)


# ---- routes --------------------------------------------------------------------------------------------------------

ROUTES = {
    "type": "route",
    "routes": {
        "gsm8k": given("a"),
        "math": given("b", sources=["math/*", "amc?"]),
        "rest": given("c", sources=["other", "math/special"]),
    },
}


def test_the_first_route_that_matches_the_source_is_taken() -> None:
    row = {"a": 1, "b": 2, "c": 3}
    for source, value in {"gsm8k": 1, "math/algebra": 2, "amc8": 2, "math/special": 2, "other": 3}.items():
        (score,) = score_rows(ROUTES, row, source=source)
        assert score.value == value
        assert set(score.parts) == {"gsm8k", "math", "rest"}
        assert sum(part.ok for part in score.parts.values()) == sum(CALLS.values()) == 1
    for source in ("", "gsm8", "amc", "GSM8K"):
        with pytest.raises(UserError, match=r"no route has the source .*Known: gsm8k, math/\*, amc\?, other"):
            score_rows(ROUTES, row, source=source)


# ---- failures ------------------------------------------------------------------------------------------------------

KINDS = ["sum", "product", "cascade", "gate", "fallback", "mixed", "clip", "scale", "shape", "standardise", "route"]


def composed(kind: str, **failure: object) -> dict:
    x = given("x", failure=failure) if failure else given("x")
    if kind in ("gate", "fallback", "mixed"):
        return {"type": kind, "rule": given("p"), "judge": x}
    if kind in ("sum", "product"):
        return parts(kind, p=given("p"), x=x)
    if kind == "cascade":
        return parts(kind, p=given("p", above=2.0), x=x)
    if kind == "route":
        return {"type": "route", "routes": {"all": x | {"sources": ["*"]}}}
    settings: dict = {"clip": {"low": 0.0}, "shape": {"points": [[0, 0], [1, 1]]}}.get(kind, {})
    return {"type": kind, "reward": x, **settings}


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_in_any_composition_is_a_failure_of_that_rollout_alone(kind: str) -> None:
    p = 0.5
    rows = [{"p": p, "x": 0.25}, {"p": p, "x": "unparsable"}, {"p": p, "x": 0.75}]
    scores = score_rows(composed(kind), *rows)
    assert [score.ok for score in scores] == [True, False, True]
    failure = scores[1].failure
    assert failure is not None
    assert failure.kind == "unparsable"
    assert "x says unparsable" in failure.detail
    assert len({tuple(name for name, _ in score.named_parts()) for score in scores}) == 1
    crashed = score_rows(composed(kind), *[{"p": p, "x": {}}] * 2)[0]  # the part raises, and its names stay
    assert crashed.failure is not None
    assert crashed.failure.kind == "crashed"
    assert [name for name, _ in crashed.named_parts()] == [name for name, _ in scores[0].named_parts()]


@pytest.mark.parametrize("kind", ["sum", "product", "cascade", "gate", "fallback", "mixed"])
def test_a_dropped_component_leaves_the_group_on_one_scale(kind: str) -> None:
    rows = [{"p": 0.5, "x": 0.25}, {"p": 0.25, "x": "timeout"}, {"p": 0.0, "x": 0.75}]
    scores = score_rows(composed(kind, do="drop-component"), *rows)
    assert [score.value for score in scores] == [0.5, 0.25, 0.0]  # p alone, for all of them
    name = "judge" if "judge" in scores[0].parts else "x"
    kinds = [score.parts[name].failure.kind for score in scores]
    assert kinds[1] == "timeout"
    assert set(kinds) <= {"timeout", "dropped", "skipped"}
    assert not any(score.parts[name].ok for score in scores)


@pytest.mark.parametrize("kind", ["clip", "scale", "shape", "standardise", "route"])
def test_dropping_the_only_component_leaves_nothing(kind: str) -> None:
    rows = [{"x": 0.25}, {"x": "timeout"}, {"x": 0.75}]
    assert values(composed(kind, do="drop-component"), *rows) == ["timeout"] * 3


def test_when_every_part_is_dropped_all_rollouts_fail_alike() -> None:
    table = parts("sum", a=given("a", failure=DROP), b=given("b", failure=DROP))
    rows = [{"f": 1, "a": 1, "b": "refused"}, {"f": 1, "a": "timeout", "b": 2}]
    assert values(table, *rows) == ["timeout"] * 2
    assert values(parts("cascade", first=given("f", above=9.0), second=table), *rows) == ["timeout"] * 2


def test_another_reward_steps_in() -> None:
    table = given("x", failure={"do": "use", "instead": given("y")})
    rows = [{"x": 1, "y": 7}, {"x": "timeout", "y": 7}, {"x": "timeout", "y": "refused"}]
    scores = score_rows(table, *rows)
    assert [s.value if s.ok else s.failure.kind for s in scores] == [1, 7, "refused"]
    assert CALLS == {"x": 3, "y": 2}
    assert scores[1].parts["first"].failure.kind == "timeout"  # the cause is still there to be counted
    assert all(set(score.parts) == {"first", "instead"} for score in scores)


def test_a_result_that_is_no_number_is_a_failure() -> None:
    assert values(parts("product", a=given("x"), b=given("x", weight=1e300)), {"x": 1e30}) == ["invalid"]
    assert values({"type": "scale", "factor": 1e300, "reward": given("x")}, {"x": 1e30}) == ["invalid"]
    assert values({"type": "standardise", "reward": given("x")}, {"x": 5e-324}, {"x": 0.0}) is not None


# ---- invariances ---------------------------------------------------------------------------------------------------

ENTRY = st.one_of(st.sampled_from([0.0, 1.0, "timeout", "unparsable"]), st.floats(-2, 2).map(lambda x: round(x, 3)))
ROWS = st.lists(st.fixed_dictionaries({"p": ENTRY, "x": ENTRY}), min_size=1, max_size=5)


@for_all(
    st.sampled_from(KINDS),
    st.sampled_from(["drop-rollout", "drop-component"]),
    ROWS,
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_rollouts_does_not_matter(kind: str, do: str, rows: list[dict], random: Any) -> None:
    table = composed(kind, do=do)
    order = list(range(len(rows)))
    random.shuffle(order)
    before, after = score_rows(table, *rows), score_rows(table, *(rows[i] for i in order))
    for new, old in zip(after, (before[i] for i in order), strict=True):
        assert new.ok == old.ok
        assert new.value == pytest.approx(old.value) if old.ok else True


def test_the_schema_is_one_for_all_groups() -> None:
    table = parts("sum", a={"type": "tests.rewards.stubs:WithParts", "declared": True}, b=given("b"))
    fine, broken = score_rows(table, {"b": 1}), score_rows(table, {"b": 1, "raise": 1})
    assert [n for n, _ in fine[0].named_parts()] == [n for n, _ in broken[0].named_parts()]


# ---- what is left when a component is dropped for the group ----------------------------------------------------------


def dropping(kind: str, role: str, **settings: object) -> dict:
    table = pair(kind, **settings)
    table[role] = {**table[role], "failure": DROP}
    return table


THREE_ROWS = [{"p": 0.5, "v": 0.25}, {"p": 0.5, "v": "timeout"}, {"p": 1.0, "v": 0.75}]
LOST_RULE = [{"p": 1.0, "v": 0.25}, {"p": "timeout", "v": 0.5}, {"p": 0.0, "v": 0.75}]


@pytest.mark.parametrize(
    ("table", "rows", "expected"),
    [
        (dropping("gate", "judge"), THREE_ROWS, [0.5, 0.5, 1.0]),
        (dropping("gate", "judge", threshold=1.0), [*THREE_ROWS, {"p": 1.0, "v": "timeout"}], [0.0, 0.0, 1.0, 1.0]),
        (dropping("fallback", "judge", factor=0.5), THREE_ROWS, [0.5, 0.5, 1.0]),
        (dropping("mixed", "judge", share=0.9), THREE_ROWS, [0.5, 0.5, 1.0]),
        (dropping("gate", "rule"), LOST_RULE, [0.25, 0.5, 0.75]),
        (dropping("fallback", "rule", factor=0.5), LOST_RULE, [0.125, 0.25, 0.375]),
        (dropping("mixed", "rule", share=0.1), LOST_RULE, [0.25, 0.5, 0.75]),
        (parts("product", a=given("p", failure=DROP), b=given("v")), LOST_RULE, [0.25, 0.5, 0.75]),
        (parts("cascade", a=given("p", above=0.5, failure=DROP), b=given("v")), LOST_RULE, [0.25, 0.5, 0.75]),
        # what does not count cannot be what is left
        (dropping("mixed", "judge", share=1.0), THREE_ROWS, ["timeout"] * 3),
        (dropping("mixed", "rule", share=0.0), LOST_RULE, ["timeout"] * 3),
    ],
)
def test_what_is_left_without_a_dropped_component(table: dict, rows: list[dict], expected: list[object]) -> None:
    assert values(table, *rows) == expected


# ---- everything nests ----------------------------------------------------------------------------------------------


def test_every_kind_nests_in_every_other() -> None:
    rows = [{"p": 0.5, "x": 0.25}, {"p": 0.5, "x": "timeout"}, {"p": 0.5, "x": 0.75}]
    for outer, inner in itertools.product(KINDS, KINDS):
        table = composed(outer)
        holder = table.get("parts") or table.get("routes") or table
        name = next(key for key in ("x", "judge", "all", "reward") if key in holder)
        slot = {key: value for key, value in holder[name].items() if key not in ("type", "key")}
        holder[name] = {**composed(inner), **slot}
        scores = score_rows(table, *rows)
        assert [score.ok for score in scores] == [True, False, True], (outer, inner)
        assert scores[1].failure is not None
        assert scores[1].failure.kind == "timeout"
        assert "x says timeout" in scores[1].failure.detail
        assert len({tuple(n for n, _ in score.named_parts()) for score in scores}) == 1


@for_all(st.sampled_from([kind for kind in KINDS if kind != "standardise"]), ROWS)
def test_a_rollout_is_scored_alike_alone_and_among_others(kind: str, rows: list[dict]) -> None:
    together = values(composed(kind), *rows)
    assert together == [value for row in rows for value in values(composed(kind), row)]
