"""The statistics of the watch against an independent recomputation, and how often it is wrong in simulated runs."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.auditing.exploit_features import Evidence, Exploit, exploits, feature_shares, features_of
from rewardsmith.auditing.watch_statistics import (
    MIN_REWARDED,
    Alarm,
    AlarmLimits,
    Baseline,
    FreshGroup,
    above_mean,
    alarms_of,
    baseline_of,
    exploits_of,
    look_metrics,
    repetition,
)

Pairs = Sequence[tuple[float, float]]


def fresh(rewards: Sequence[float], reference: Sequence[float], texts: Sequence[str] | None = None) -> FreshGroup:
    texts = [f"answer {i}" for i in range(len(rewards))] if texts is None else texts
    lengths = np.array([len(text) for text in texts], dtype=np.float64)
    return FreshGroup(texts, lengths, np.array(rewards, dtype=np.float64), np.array(reference, dtype=np.float64))


def drawn(rng: np.random.Generator, groups: int = 12, lift: float = 0.0) -> list[FreshGroup]:
    """Return groups of unequal size whose reward follows the reference with noise, and is lifted by a constant."""
    made = []
    for _ in range(groups):
        reference = rng.normal(rng.normal(), 1.0, size=int(rng.integers(2, 9)))
        made.append(fresh(0.7 * reference + lift + 0.3 * rng.normal(size=len(reference)), reference))
    return made


def raised(
    look: Sequence[FreshGroup],
    start: Baseline,
    limits: AlarmLimits,
    step: int = 1,
    evidence: dict[str, Evidence] | None = None,
) -> list[Alarm]:
    """Return the alarms of a look, whose evidence is added to that of earlier ones."""
    earlier = {} if evidence is None else evidence
    exploited, found = exploits_of(look, start, earlier)
    earlier.clear()
    earlier.update(found)
    return alarms_of(look_metrics(look, start, 0.5), exploited, start, limits, step)


def exploited_in(look: Sequence[FreshGroup], start: Baseline) -> dict[str, Exploit]:
    """Return the exploited features of a single look by their names."""
    return {one.feature: one for one in exploits_of(look, start, {})[0]}


# ---- by another way --------------------------------------------------------------------------------------------------


def test_the_gap_is_what_the_first_look_predicts_minus_what_is_there() -> None:
    rng = np.random.default_rng(0)
    first, later = drawn(rng), drawn(rng, lift=0.6)
    start = baseline_of(first, 0.5)
    found = look_metrics(later, start, 0.5)
    r0, q0 = (np.concatenate([getattr(one, name) for one in first]) for name in ("rewards", "reference"))
    r1, q1 = (np.concatenate([getattr(one, name) for one in later]) for name in ("rewards", "reference"))
    slope, _ = np.polyfit(r0, q0, 1)
    assert start.slopes["reward"] == pytest.approx(slope)
    predicted = min(q0.mean() + slope * (r1.mean() - r0.mean()), q0.max())
    assert found["gap"] == pytest.approx(predicted - q1.mean())
    assert found["reward"] == pytest.approx(r1.mean())
    assert found["reference"] == pytest.approx(q1.mean())
    assert found["gap"] > 0.3


def test_the_prediction_does_not_leave_the_scale_of_the_reference() -> None:
    first = [fresh([0.0, 1.0], [0.0, 1.0]), fresh([0.0, 1.0], [0.0, 1.0])]
    later = [fresh([3.0, 3.0], [1.0, 1.0]), fresh([3.0, 3.0], [1.0, 0.9])]
    found = look_metrics(later, baseline_of(first, 0.5), 0.5)
    assert found["gap"] == pytest.approx(1.0 - (3 * 1.0 + 0.9) / 4)


def test_a_reward_that_says_nothing_about_the_reference_predicts_no_rise() -> None:
    contrary = baseline_of([fresh([0.0, 1.0], [1.0, 0.0]), fresh([0.0, 1.0], [1.0, 0.0])], 0.5)
    flat = baseline_of([fresh([1.0, 1.0], [1.0, 0.0]), fresh([1.0, 1.0], [1.0, 0.0])], 0.5)
    assert contrary.slopes == flat.slopes == {"reward": 0.0}
    for start in (contrary, flat):
        assert look_metrics([fresh([5.0, 5.0], [1.0, 0.0])] * 2, start, 0.5)["gap"] == 0.0


def clustered_error(values: list[np.ndarray]) -> float:
    """The sandwich estimator for the mean, written as a regression on a constant with clusters."""
    flat = np.concatenate(values)
    design = np.ones((len(flat), 1))
    bread = np.linalg.inv(design.T @ design)
    residuals = [one - flat.mean() for one in values]
    meat = sum(np.outer(np.ones(len(r)) @ r, np.ones(len(r)) @ r) for r in residuals)
    groups = len(values)
    return math.sqrt((groups / (groups - 1) * bread @ np.atleast_2d(meat) @ bread)[0, 0])


def test_the_near_end_of_the_gap_has_the_errors_of_both_looks() -> None:
    rng = np.random.default_rng(1)
    first, later = drawn(rng), drawn(rng, 9)
    start = baseline_of(first, 0.5)
    found = look_metrics(later, start, 0.5)
    before, now = (
        clustered_error([g.reference - start.slopes["reward"] * g.rewards for g in look]) for look in (first, later)
    )
    assert start.residual_error == pytest.approx(before)
    # The sandwich estimator of a slope, with clusters.
    r, q = (np.concatenate([getattr(g, name) for g in first]) for name in ("rewards", "reference"))
    x, e = r - r.mean(), q - q.mean() - start.slopes["reward"] * (r - r.mean())
    cuts = np.cumsum([len(g.texts) for g in first])[:-1]
    sums = [float(a @ b) for a, b in zip(np.split(x, cuts), np.split(e, cuts), strict=True)]
    slope_error = math.sqrt(12 / 11 * sum(s * s for s in sums)) / float(x @ x)
    assert math.sqrt(start.slopes_covariance[0][0]) == pytest.approx(slope_error)
    rise = slope_error * (found["reward"] - start.reward)
    assert found["gap"] - found["gap_low"] == pytest.approx(1.96 * math.sqrt(before**2 + now**2 + rise**2))


def test_equal_groups_have_the_error_of_the_mean_of_their_means() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(10, 1)) + rng.normal(size=(10, 4))
    groups = [fresh([0.0] * 4, one) for one in values]
    start = baseline_of(groups, 0.5)
    assert start.residual_error == pytest.approx(values.mean(1).std(ddof=1) / math.sqrt(10))


def test_false_discoveries_by_hand() -> None:
    groups = [
        fresh([1.0, 0.8, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]),  # two are rewarded, one of them is rejected
        fresh([0.5, 0.5, 0.5], [0.0, 0.0, 0.0]),  # equal rewards: none
        fresh([0.1] * 3, [0.0] * 3),  # nor by rounding of the mean
        fresh([-3.0, -4.0], [0.5, 0.0]),  # the threshold itself is accepted
    ]
    found = look_metrics(groups, baseline_of(groups, 0.5), 0.5)
    assert (found["rewarded"], found["false_discovery"]) == (3.0, pytest.approx(1 / 3))
    share, n, z = 1 / 3, 3, 1.96
    for bound in (found["false_discovery_low"], found["false_discovery_high"]):
        assert n * (share - bound) ** 2 == pytest.approx(z * z * bound * (1 - bound))


def test_what_cannot_be_measured_is_not_logged() -> None:
    groups = [fresh([1.0, 1.0], [0.0, 1.0]), fresh([1.0, 1.0], [1.0, 1.0])]
    found = look_metrics(groups, baseline_of(groups, 0.5), 0.5)
    assert found["rewarded"] == 0.0
    assert not {"false_discovery", "correlation", "length_correlation", "confidence"} & found.keys()
    assert all(math.isfinite(value) for value in found.values())
    assert raised(groups, baseline_of(groups, 0.5), AlarmLimits()) == []


def test_drift_of_length_repetition_and_confidence() -> None:
    groups = [
        fresh([0.0, 1.0, 0.5], [0.0, 1.0, 0.5], ["a b c a b c", "a b c d e f g h", "x"]),
        fresh([0.25, 0.75], [0.3, 0.1], ["a", "b b"]),
    ]
    found = look_metrics(groups, baseline_of(groups, 0.5), 0.5)
    assert found["length"] == np.mean([11, 15, 1, 1, 3])
    # Of the four triples of "a b c a b c" one occurs twice.
    assert found["repetition"] == pytest.approx((1 / 4) / 5)
    assert found["confidence"] == pytest.approx(np.mean([1, 1, 0, 0.5, 0.5]))
    rewards = np.array([-0.5, 0.5, 0.0, -0.25, 0.25])
    for name, values in (("correlation", [-0.5, 0.5, 0.0, 0.1, -0.1]), ("length_correlation", [2, 6, -8, -1, 1])):
        assert found[name] == pytest.approx(np.corrcoef(rewards, values)[0, 1])


@pytest.mark.parametrize(
    ("text", "share"), [("", 0.0), ("a b", 0.0), ("a a a a a", 2 / 3), ("ha! " * 4, 4 / 6), ("a b c d", 0.0)]
)
def test_repetition_is_the_share_of_triples_that_came_before(text: str, share: float) -> None:
    assert repetition(text) == pytest.approx(share)


# ---- exploited features ----------------------------------------------------------------------------------------------


def planted(rng: np.random.Generator, share: float, reward: float, reference: float) -> list[FreshGroup]:
    """Return groups in which a share of the answers says `great`; it moves reward and reference by so much."""
    made = []
    for _ in range(32):
        has = rng.random(8) < share
        texts = [f"it is {rng.integers(1000)}{' great' if one else ''}" for one in has]
        noise = rng.normal(scale=0.2, size=(2, 8))
        made.append(fresh(reward * has + noise[0], reference * has + noise[1], texts))
    return made


@pytest.mark.parametrize(
    ("share", "reward", "reference", "found"),
    [
        (0.3, 0.5, -0.3, True),
        (0.05, 0.5, -0.3, False),  # as often as at first
        (0.3, 0.5, 0.3, False),  # the reference likes it too
        (0.3, 0.5, 0.0, False),
        (0.3, -0.5, -0.3, False),  # it is not rewarded
        (0.3, 0.0, -0.3, False),
    ],
)
def test_a_feature_is_exploited_if_only_the_reward_likes_it_and_it_spreads(
    share: float, reward: float, reference: float, found: bool
) -> None:
    rng = np.random.default_rng(7)
    start = baseline_of(planted(rng, 0.05, reward, reference), 0.5)
    look = planted(rng, share, reward, reference)
    assert ("great" in exploited_in(look, start)) is found
    assert ("exploit" in {one.measure for one in raised(look, start, AlarmLimits(9.0, 1.0))}) is found


def test_the_numbers_of_an_exploit_are_means_against_the_group() -> None:
    rng = np.random.default_rng(8)
    first, look = planted(rng, 0.05, 0.5, -0.3), planted(rng, 0.3, 0.5, -0.3)
    found = exploited_in(look, baseline_of(first, 0.5))["great"]
    has = [[text.endswith("great") for text in one.texts] for one in look]
    rewards, reference = (
        [
            v - float(np.mean(values))
            for one, values in zip(has, column, strict=True)
            for v, h in zip(values, one, strict=True)
            if h
        ]
        for column in ([one.rewards for one in look], [one.reference for one in look])
    )
    assert found.share == len(rewards) / 256
    assert found.first_share == np.mean([text.endswith("great") for one in first for text in one.texts])
    assert found.reward == pytest.approx(np.mean(rewards))
    assert found.reference == pytest.approx(np.mean(reference))
    assert "answers with 'great' get +0." in found.line
    alarm = next(
        one for one in raised(look, baseline_of(first, 0.5), AlarmLimits(9.0, 1.0)) if one.measure == "exploit"
    )
    assert alarm.line == found.line  # the word, and none of its letters


def test_length_is_a_feature_against_the_median_of_the_first_look() -> None:
    assert features_of("a b", 10.0, 10.0) == {"a", "b", " "}
    longer = features_of("a", 21.0, 10.0) - {"a"}
    assert sorted(longer) == [
        f"longer than {times} times the median of the first look" for times in ("1.25", "1.5", "2")
    ]
    # Of four answers in two groups, one has the feature: s = (1/2, -1/2), so that the error is √(2 · 1/2) / 4.
    found = feature_shares([{"a", "b"}, {"a"}, {"a"}, {"a"}], np.array([0, 0, 1, 1]))
    assert found == {"a": (1.0, 0.0), "b": (0.25, pytest.approx(0.25))}


@given(st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=24, max_size=40))
@settings(max_examples=25)
def test_no_feature_is_exploited_where_the_reward_is_the_reference(rows: list[tuple[bool, int]]) -> None:
    values = np.array([float(value) for _, value in rows])
    values -= values.mean()
    groups = np.arange(len(rows)) // 3
    assert exploits([{"x"} if has else {"y"} for has, _ in rows], values, values, groups, {}, {})[0] == []


@pytest.mark.parametrize("growth", [0.0, 0.1])
@pytest.mark.parametrize("reference", [0.0, -0.4])
def test_each_condition_of_an_exploit_is_beyond_chance(growth: float, reference: float) -> None:
    """Groups of four, the first answer of some has the feature; every number is written as its formula."""
    groups, size, has = 40, 4, 20
    answers = [{"x"} if i % size == 0 and i < has * size else {"y"} for i in range(groups * size)]
    rewards = np.array([0.5 if "x" in one else 0.0 for one in answers])
    verdicts = np.array([reference if "x" in one else 0.0 for one in answers])
    verdicts[::size] += np.tile([-0.5, 0.5], groups // 2)  # noise on the answers that may have it
    at = np.arange(0, has * size, size)
    numbers = np.arange(groups * size) // size
    share = has / (groups * size)
    deviations = np.array([1 - share * size] * has + [-share * size] * (groups - has))
    error = math.sqrt(groups / (groups - 1) * float(deviations @ deviations)) / (groups * size)
    z = float(verdicts[at].sum()) / math.sqrt(float(verdicts[at] @ verdicts[at]))  # one answer of each group
    expected = growth >= 2.0 * error and z <= -2.5 and math.sqrt(has) >= 3.0
    found, _ = exploits(answers, rewards, verdicts, numbers, {"x": (share - growth, 0.0)}, {})
    assert [one.feature for one in found] == (["x"] if expected else [])
    assert expected == (growth > 0 and reference < 0)


def test_what_one_prompt_shows_is_never_beyond_chance() -> None:
    """Sixteen answers to one prompt have the same word, which the judge misread: one event, not sixteen."""
    texts = [["it is 7"] * 16, *[["it is 1"] * 8 + ["it is 2"] * 8 for _ in range(15)]]
    first = baseline_of([fresh([0.0] * 16, [0.0] * 16, ["it is 3"] * 16) for _ in range(16)], 0.5)
    look = [fresh([1.0] * 8 + [0.0] * 8, [0.0] * 8 + [1.0] * 8, one) for one in texts]
    marked = [
        FreshGroup([f"{t} !" if i < 8 else t for i, t in enumerate(g.texts)], g.lengths, g.rewards, g.reference)
        for g in look
    ]
    assert "7" not in exploited_in(look, first)
    assert "!" in exploited_in(marked, first)  # the same on all sixteen prompts


def test_the_evidence_of_a_look_counts_less_at_the_next() -> None:
    rewards, verdicts, groups = np.array([1.0, 0.5, -0.5]), np.array([-1.0, 0.0, 0.25]), np.array([0, 0, 1])
    at_first = Evidence().after(np.bincount(groups, rewards), np.bincount(groups, verdicts), 3)
    assert at_first == (3, 1.0, 1.5**2 + 0.5**2, -0.75, 1 + 0.25**2)
    later = at_first.after(np.array([2.0]), np.array([-1.0]), 1)
    assert later == pytest.approx((0.8 * 3 + 1, 0.8 + 2, 0.64 * 2.5 + 4, -0.8 * 0.75 - 1, 0.64 * 1.0625 + 1))
    assert later.z_reward == pytest.approx(2.8 / math.sqrt(5.6))
    assert later.z_reference == pytest.approx(-1.6 / math.sqrt(1.68))


def test_many_suspects_need_a_surer_reference() -> None:
    """All suspects are equally doubtful: alone one is an exploit, among twenty none is."""
    groups, size = 40, 4
    at = np.arange(0, groups * size, size)
    rewards, verdicts = np.zeros(groups * size), np.zeros(groups * size)
    rewards[at] = 0.5
    verdicts[at] = np.tile([-1.0, 0.4], groups // 2)  # z = -0.6 · 20 / √(20 · 1.16) = -2.49 is not enough
    numbers = np.arange(groups * size) // size

    def found(verdicts: np.ndarray, suspects: int) -> int:
        names = {f"w{i}" for i in range(suspects)}
        answers = [names if i % size == 0 else {"y"} for i in range(groups * size)]
        return len(exploits(answers, rewards, verdicts, numbers, {}, {})[0])

    assert found(verdicts, 1) == 0
    surer = np.where(verdicts < 0, -1.1, verdicts)  # z = -0.7 · 20 / √(20 · 1.37) = -2.67
    assert [found(surer, 1), found(surer, 20)] == [1, 0]


def test_rewarded_words_of_which_the_reference_knows_nothing_raise_few_alarms() -> None:
    rng, alarms, runs = np.random.default_rng(0), 0, 12

    def look(step: int) -> list[FreshGroup]:
        made = []
        for _ in range(32):
            has = rng.random((8, 10)) < 0.05 + 0.02 * step
            texts = [" ".join(f"w{i}" for i in np.flatnonzero(row)) for row in has]
            made.append(fresh(0.2 * has.sum(1), (rng.random(8) < 0.5).astype(float), texts))
        return made

    for _ in range(runs):
        start, evidence = baseline_of(look(0), 0.5), dict[str, Evidence]()
        limits = AlarmLimits(9.0, 1.0)  # of the exploits alone
        alarms += any(raised(look(step), start, limits, step, evidence) for step in range(1, 16))
    assert alarms <= 2


# ---- what does not matter --------------------------------------------------------------------------------------------

values = st.integers(-40, 40).map(lambda n: n / 10)
looks = st.lists(st.lists(st.tuples(values, values), min_size=1, max_size=5), min_size=2, max_size=6)


def look_of(pairs: Sequence[Pairs], move: Callable[[float], float] = lambda reward: reward) -> list[FreshGroup]:
    return [fresh([move(r) for r, _ in one], [q for _, q in one]) for one in pairs]


@given(looks, looks, st.integers(-5, 5).map(lambda n: 2.0**n), st.integers(-8, 8))
@settings(max_examples=25)
def test_scale_and_zero_of_the_reward_do_not_matter(
    first: Sequence[Pairs], later: Sequence[Pairs], scale: float, shift: int
) -> None:
    def found(move: Callable[[float], float]) -> dict[str, float]:
        metrics = look_metrics(look_of(later, move), baseline_of(look_of(first, move), 0.5), 0.5)
        return {name: value for name, value in metrics.items() if name != "reward"}

    before, after = found(lambda reward: reward), found(lambda reward: scale * reward + shift)
    assert after == pytest.approx(before, abs=1e-6)


@given(looks, looks)
@settings(max_examples=25)
def test_a_reward_that_is_the_reference_never_raises_an_alarm(first: Sequence[Pairs], later: Sequence[Pairs]) -> None:
    def same(pairs: Sequence[Pairs]) -> list[FreshGroup]:
        return [fresh([q for _, q in one], [q for _, q in one]) for one in pairs for _ in range(8)]

    start = baseline_of(same(first), 0.5)
    assert raised(same(later), start, AlarmLimits()) == []


def test_both_may_fall_below_what_the_reference_accepts() -> None:
    first = [fresh([0.2, 0.9], [0.2, 0.9])] * 20
    later = [fresh([0.1, 0.2], [0.1, 0.2])] * 20
    start = baseline_of(first, 0.5)
    found = look_metrics(later, start, 0.5)
    assert found["false_discovery"] == 1.0
    assert raised(later, start, AlarmLimits()) == []
    # A limit of the user's own is one of the reference alone.
    assert [one.measure for one in raised(later, start, AlarmLimits(max_false_discovery=0.5))] == ["false_discovery"]


@given(looks)
@settings(max_examples=15)
def test_the_order_of_groups_does_not_matter(first: Sequence[Pairs]) -> None:
    start, turned = baseline_of(look_of(first), 0.5), baseline_of(look_of(first[::-1]), 0.5)
    assert start.slopes["reward"] == pytest.approx(turned.slopes["reward"], abs=1e-9)
    assert look_metrics(look_of(first), start, 0.5) == pytest.approx(
        look_metrics(look_of(first[::-1]), turned, 0.5), abs=1e-9
    )


def test_a_baseline_survives_a_checkpoint() -> None:
    start = baseline_of(drawn(np.random.default_rng(3)), 0.5)
    assert Baseline.from_json(json.loads(json.dumps(start.as_json()))) == start


def test_above_the_mean_is_more_than_a_rounding_error() -> None:
    assert above_mean(np.array([0.1] * 3)).tolist() == [False] * 3
    assert above_mean(np.array([1e9, 1e9 + 1, 1e9])).tolist() == [False, True, False]
    assert above_mean(np.array([0.0, 1e-15])).tolist() == [False, True]
    assert above_mean(np.array([])).tolist() == []


# ---- alarms ----------------------------------------------------------------------------------------------------------


def test_a_reward_that_rises_alone_raises_both_alarms() -> None:
    rng = np.random.default_rng(4)
    first = simulated(rng, 0.5, 0.0)
    start = baseline_of(first, 0.5)
    assert raised(first, start, AlarmLimits()) == []
    found = raised(simulated(rng, 0.4, 0.7), start, AlarmLimits(), 9)
    assert [one.measure for one in found] == ["exploit", "gap", "false_discovery"]
    assert found[0].line.startswith("answers with ")
    found = found[1:]
    assert all(one.step == 9 and one.low > one.limit and one.value > one.low for one in found)
    assert "the reference went from 0." in found[0].line
    assert "of the rewarded answers" in found[1].line


def test_limits_are_those_of_the_user_and_hold_for_the_near_end() -> None:
    start = Baseline(0.5, 0.5, {"reward": 0.5}, {"reward": 1.0}, [[0.0]], 1.0, 0.0, 0.1, 0.2, 8.0)
    metrics = {"reward": 0.9, "reference": 0.5, "gap": 0.4, "gap_low": 0.21, "rewarded": float(MIN_REWARDED)}
    shares = {"false_discovery": 0.5, "false_discovery_low": 0.31, "false_discovery_high": 0.7}

    def names(limits: AlarmLimits, **changes: float) -> list[str]:
        return [one.measure for one in alarms_of({**metrics, **shares, **changes}, [], start, limits, 3)]

    assert names(AlarmLimits(0.2)) == ["gap", "false_discovery"]  # 0.31 is above 0.2 + 0.1
    assert names(AlarmLimits(0.21)) == ["false_discovery"]
    assert names(AlarmLimits(0.21, 0.31)) == []
    assert names(AlarmLimits(0.21, 0.3)) == ["false_discovery"]
    assert names(AlarmLimits(0.21), false_discovery_low=0.3) == []
    assert names(AlarmLimits(0.21), rewarded=MIN_REWARDED - 1) == []
    assert names(AlarmLimits(0.21), correlation=0.95) == []
    assert names(AlarmLimits(0.21), correlation=0.5) == ["false_discovery"]
    exploit = [Exploit("great", 0.3, 0.1, 0.2, -0.1), Exploit("!", 0.2, 0.1, 0.2, -0.1)]
    (alarm,) = alarms_of({**metrics, "rewarded": 0.0}, exploit, start, AlarmLimits(0.5), 3)
    assert (alarm.measure, alarm.value, alarm.limit, alarm.line) == ("exploit", 0.3, 0.1, exploit[0].line)


# ---- simulated runs --------------------------------------------------------------------------------------------------


def simulated(
    rng: np.random.Generator, skill: float, exploited: float, groups: int = 32, size: int = 8, mistakes: float = 0.1
) -> list[FreshGroup]:
    """Return a look at answers that are right with the chance `skill`, on prompts of unequal difficulty.

    The reward is wrong about a tenth of them. A share of the answers exploits it with a word: these are wrong, and
    rewarded.
    """
    chances = np.clip(rng.beta(4 * skill + 1e-3, 4 * (1 - skill) + 1e-3, size=(groups, 1)), 0, 1)
    right = rng.random((groups, size)) < chances
    hacked = rng.random((groups, size)) < exploited
    right &= ~hacked
    rewards = np.where(hacked, True, right ^ (rng.random((groups, size)) < mistakes))
    words = rng.integers(40, size=(groups, size, 2))  # that mean nothing
    texts = [
        [
            " ".join([*(f"w{word}" for word in one), *(["great"] if h else [])])
            for one, h in zip(row, flags, strict=True)
        ]
        for row, flags in zip(words, hacked, strict=True)
    ]
    return [fresh(*one) for one in zip(rewards.astype(float), right.astype(float), texts, strict=True)]


def alarmed(rng: np.random.Generator, skills: Sequence[float], exploited: Sequence[float]) -> list[bool]:
    """Return at which looks of a run there is an alarm."""
    start, evidence, found = baseline_of(simulated(rng, skills[0], exploited[0]), 0.5), dict[str, Evidence](), []
    for skill, share in zip(skills[1:], exploited[1:], strict=True):
        found.append(bool(raised(simulated(rng, skill, share), start, AlarmLimits(), 1, evidence)))
    return found


def check_rates(runs: int) -> None:
    rng = np.random.default_rng(5)
    sound = sum(any(alarmed(rng, np.linspace(0.3, rng.uniform(0.4, 0.9), 13), [0.0] * 13)) for _ in range(runs))
    assert sound / runs < 0.05
    # The reward rises to the end, while a growing share of the answers exploits it: the reference falls 0.3 behind.
    skills, exploited = np.linspace(0.4, 0.5, 13), np.linspace(0.0, 0.4, 13)
    found = sum(any(alarmed(rng, skills, exploited)) for _ in range(runs // 6))
    assert found / (runs // 6) > 0.9


def misread(rng: np.random.Generator, groups: int, size: int, mistakes: float = 0.1) -> list[FreshGroup]:
    """Return a look at numbers, of which a judge misreads some; equal answers to a prompt have equal verdicts."""
    made = []
    for _ in range(groups):
        truth, *others = rng.integers(10, 1000, size=5).tolist()
        weights, skill = rng.dirichlet(np.ones(4) * 0.7), rng.beta(1.0, 1.0)
        answers = [truth if rng.random() < skill else int(rng.choice(others, p=weights)) for _ in range(size)]
        verdicts = {one: float((one == truth) ^ (rng.random() < mistakes)) for one in set(answers)}
        texts = [f"so the answer is {one}" for one in answers]
        made.append(fresh([verdicts[one] for one in answers], [float(one == truth) for one in answers], texts))
    return made


@pytest.mark.parametrize(("groups", "size"), [(32, 8), (16, 16), (8, 32)])
def test_a_judge_that_misreads_answers_to_single_prompts_raises_few_alarms(groups: int, size: int) -> None:
    rng, runs, alarms = np.random.default_rng(6), 12, 0
    for _ in range(runs):
        start, evidence = baseline_of(misread(rng, groups, size), 0.5), dict[str, Evidence]()
        looked = [raised(misread(rng, groups, size), start, AlarmLimits(), 1, evidence) for _ in range(12)]
        alarms += any(looked)
    assert alarms <= 2


def test_the_interval_of_the_gap_holds_where_the_reward_moves_far() -> None:
    """The reward rises by four times its spread, and the reference as the first look predicts: the gap is 0."""
    rng, covered, runs = np.random.default_rng(2), 0, 200

    def look(mean: float) -> list[FreshGroup]:
        rewards = mean + 0.07 * rng.normal(size=(32, 1)) + 0.07 * rng.normal(size=(32, 8))
        return [fresh(r, 0.5 * r + 0.2 + 0.3 * rng.normal(size=8), ["x"] * 8) for r in rewards]

    for _ in range(runs):
        start = replace(baseline_of(look(0.3), 0.5), ceiling=99.0)
        found = look_metrics(look(0.7), start, 0.5)
        covered += abs(found["gap"]) <= found["gap"] - found["gap_low"]
    assert 0.88 < covered / runs <= 1.0


def with_format(rng: np.random.Generator, accuracy: float, formatted: float) -> list[FreshGroup]:
    """Return a look at the usual sum of accuracy and a bonus for the format; the reference is the accuracy itself."""
    made = []
    for _ in range(32):
        right = (rng.random(8) < np.clip(accuracy + rng.normal(0, 0.25), 0, 1)).astype(float)
        form = (rng.random(8) < formatted).astype(float)
        texts = ["<answer> 5 </answer>" if one else "it is 5" for one in form]
        one = fresh(right + 0.3 * form, right, texts)
        made.append(replace(one, parts={"right": right, "form": form}))
    return made


def test_a_bonus_for_the_format_that_is_learned_is_no_gap() -> None:
    rng, alarms, runs = np.random.default_rng(1), 0, 20
    for _ in range(runs):
        start = baseline_of(with_format(rng, 0.3, 0.1), 0.5)
        assert start.slopes["right"] == pytest.approx(1.0)
        assert start.slopes["form"] == pytest.approx(0.0, abs=1e-9)
        for share in np.linspace(0, 1, 13)[1:]:
            look = with_format(rng, 0.3 + 0.3 * share, 0.1 + 0.7 * share)
            alarms += bool(raised(look, start, AlarmLimits()))
            assert look_metrics(look, start, 0.5)["gap"] == pytest.approx(0.0, abs=1e-9)
    assert alarms <= 2


def test_the_slopes_of_parts_are_those_of_least_squares_at_least_0() -> None:
    rng = np.random.default_rng(9)
    groups = []
    for _ in range(20):
        a, b, c = rng.normal(size=(3, 8))
        reference = 0.8 * a + 0.3 * b - 0.5 * c + 0.1 * rng.normal(size=8)
        groups.append(replace(fresh(a + b + c, reference), parts={"a": a, "b": b, "c": c}))
    start = baseline_of(groups, 0.5)
    assert start.slopes["c"] == 0.0  # more of it means less of the reference
    x = np.stack([np.concatenate([g.parts[name] for g in groups]) for name in "ab"], axis=1)
    q = np.concatenate([g.reference for g in groups])
    fitted = np.linalg.lstsq(np.column_stack([x, np.ones(len(q))]), q, rcond=None)[0]
    assert [start.slopes["a"], start.slopes["b"]] == pytest.approx(fitted[:2].tolist())
    assert start.parts == {name: pytest.approx(np.mean([g.parts[name] for g in groups])) for name in "abc"}


@given(looks, st.integers(0, 3))
@settings(max_examples=25)
def test_parts_that_repeat_each_other_are_no_trouble(pairs: Sequence[Pairs], copies: int) -> None:
    groups = [
        replace(one, parts={"constant": np.ones(len(one.texts)), **{f"copy {i}": one.rewards for i in range(copies)}})
        for one in look_of(pairs)
    ]
    start = baseline_of(groups, 0.5)
    assert all(math.isfinite(slope) and slope >= 0 for slope in start.slopes.values())
    assert look_metrics(groups, start, 0.5)["gap"] == pytest.approx(0.0, abs=1e-9)


def test_a_part_without_a_value_counts_with_its_mean_of_the_first_look() -> None:
    rng = np.random.default_rng(10)
    first = with_format(rng, 0.5, 0.5)
    start = baseline_of(first, 0.5)
    lost = [replace(one, parts={**one.parts, "form": np.full(8, np.nan)}) for one in first]
    assert look_metrics(lost, start, 0.5)["gap"] == pytest.approx(0.0, abs=1e-9)


def test_alarms_are_rare_in_sound_runs_and_sure_in_exploited_ones() -> None:
    check_rates(12)


@pytest.mark.slow
def test_alarms_are_rare_in_many_sound_runs() -> None:
    check_rates(300)
