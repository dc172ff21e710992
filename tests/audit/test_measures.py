"""Each finding of an audit against what it says, computed again by hand or by least squares."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.judge_statistics import share_interval
from rewardsmith.auditing.attacks import Probe
from rewardsmith.auditing.audit_measures import (
    CaseScore,
    OrderedGroup,
    agreement_findings,
    attack_findings,
    bias_findings,
    gap_of,
    mean_finding,
    order_findings,
    repeat_findings,
    truth_findings,
)
from rewardsmith.auditing.findings import Audit, Finding, check_requirements
from rewardsmith.auditing.sample_measures import SampleGroup, learning_findings, reference_findings
from rewardsmith.errors import UserError

NAN = math.nan


def case(
    prompt: str, role: Any, kind: str, value: float, *, right: float = 1.0, wrong: float = 0.0, truth: str = "7"
) -> CaseScore:
    """Return a scored answer; `kind` is `family/name`, or the kind of a known answer."""
    family, _, name = kind.rpartition("/")
    return CaseScore(prompt, truth, role, Probe(family or "known", name, f"text of {kind}"), value, right, wrong)


def named(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {one.name: one for one in findings}


# ---- truth -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "right", "wrong", "threshold", "paid"),
    [
        (0.6, 1.0, 0.0, None, True),
        (0.5, 1.0, 0.0, None, False),  # the middle itself has no positive advantage
        (0.4, 1.0, 0.0, None, False),
        (0.4, 1.0, 0.0, 0.4, True),  # a threshold is reached
        (0.4, 0.3, 0.3, None, False),  # the reward does not tell right from wrong: nothing has an advantage for it
        (0.9, 0.3, 0.7, None, False),
        (0.9, 0.3, 0.7, 0.8, True),
    ],
)
def test_paid_for_is_above_the_middle_of_right_and_wrong(
    value: float, right: float, wrong: float, threshold: float | None, paid: bool
) -> None:
    assert case("p", "attack", "empty/nothing", value, right=right, wrong=wrong).paid(threshold) is paid


TRUTH = [
    case("p", "right", "reference", 1.0),
    case("p", "wrong", "wrong-answer", 0.0),
    case("p", "wrong", "no-conclusion", 1.0),  # as much as the right one
    case("p", "wrong", "other", 0.9),  # paid for, but less
    case("p", "unsound", "corrupted-step", 1.0),
    case("p", "edit", "whitespace/line-ending", 0.4),  # a right answer that is not paid for
    case("p", "edit", "whitespace/trailing-blanks", 0.7),  # less than the right one, and still paid for
    case("p", "edit", "style/heading", 0.0),  # may break a strict form: no matter of truth
    case("q", "right", "reference", 0.2, right=0.2, wrong=0.3),  # less than the wrong one
    case("q", "wrong", "wrong-answer", 0.3, right=0.2, wrong=0.3),
    case("q", "unsound", "corrupted-step", 0.1, right=0.2, wrong=0.3),
    case("r", "right", "reference", NAN, right=NAN),
    case("r", "wrong", "wrong-answer", 1.0, right=NAN),  # nothing to compare it with
]


def test_false_positives_and_negatives_by_hand() -> None:
    found = named(truth_findings(TRUTH, None))
    assert found["false_positive"].value == pytest.approx(2 / 4)
    assert [one.probe for one in found["false_positive"].examples] == ["no-conclusion", "wrong-answer"]
    assert found["false_positive"].count == 4
    assert found["false_negative"].value == pytest.approx(2 / 4)
    assert [one.probe for one in found["false_negative"].examples] == ["whitespace/line-ending", "reference"]
    assert found["unsound"].value == 0.5
    # 1 > 0, 1 = 1, 1 > 0.9, and 0.2 < 0.3
    assert found["separation"].value == pytest.approx((1 + 0.5 + 1 + 0) / 4)


def test_a_threshold_takes_the_place_of_the_right_answer() -> None:
    found = named(truth_findings(TRUTH, 0.35))
    assert found["false_positive"].value == pytest.approx(2 / 4)  # 1.0 and 0.9
    assert found["false_negative"].value == pytest.approx(1 / 4)  # 0.2
    assert found["unsound"].value == 0.5
    assert "0.350, the threshold" in found["false_positive"].examples[0].expected


def test_what_could_not_be_scored_is_in_no_measure() -> None:
    broken = [case("p", role, "x/1", NAN, right=NAN, wrong=NAN) for role in ("right", "wrong", "attack", "edit")]
    assert truth_findings(broken, None) == bias_findings(broken, 1.0) == []
    assert [(one.name, one.value) for one in attack_findings(broken, None)] == [("attack_failed", 1.0)]
    assert gap_of(broken) == 0.0
    everything = named(truth_findings([*TRUTH, *broken], None))
    assert everything["false_positive"] == named(truth_findings(TRUTH, None))["false_positive"]


# ---- intervals -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.data())
def test_wilsons_bounds_are_where_the_test_of_a_share_changes_its_mind(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    share = count / total
    for bound in share_interval(float(count), total):
        # The bound is the true share from which the observed one is 1.96 standard errors away.
        assert (share - bound) ** 2 * total == pytest.approx(1.96**2 * bound * (1 - bound), abs=1e-9)
    low, high = share_interval(float(count), total)
    assert 0 <= low <= share <= high <= 1
    assert low < high


def test_a_share_that_all_prompts_have_rests_on_prompts_and_not_on_answers() -> None:
    rows = [(f"p{i}", 0.0) for i in range(10) for _ in range(50)]
    (found,) = mean_finding("failed", "cost", rows, "{}".format)
    assert (found.low, found.high) == share_interval(0.0, 10)
    assert found.count == 500


def test_the_interval_of_a_mean_is_over_prompts() -> None:
    rng = np.random.default_rng(0)
    levels = rng.normal(size=60)
    rows = [(f"p{i}", float(level + 0.1 * rng.normal())) for i, level in enumerate(levels) for _ in range(20)]
    (found,) = mean_finding("spread", "learning", rows, "{}".format, share=False)
    means = np.array([value for _, value in rows]).reshape(60, 20).mean(1)
    error = means.std(ddof=1) / math.sqrt(60)
    assert found.value == pytest.approx(means.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.2)


@pytest.mark.parametrize(("value", "refused"), [(0.6, False), (0.5, True), (0.4, True)])
def test_a_right_answer_is_refused_where_it_is_not_paid_for(value: float, refused: bool) -> None:
    found = named(
        truth_findings([case("p", "right", "reference", value), case("p", "wrong", "wrong-answer", 0.0)], None)
    )
    assert found["false_negative"].value == float(refused)


# ---- attacks ---------------------------------------------------------------------------------------------------------


def test_the_best_attack_counts_and_not_the_mean() -> None:
    paid = {"echo/a": [1, 1, 0, 0], "echo/b": [1, 1, 1, 0], "empty/c": [0, 0, 0, 0]}
    scores = [case(f"p{i}", "attack", kind, float(value)) for kind, row in paid.items() for i, value in enumerate(row)]
    found = named(attack_findings(scores, None))
    assert {name: one.value for name, one in found.items()} == {
        "attack": 0.75, "attack_mean": pytest.approx(5 / 12), "attack_failed": 0.0, "attack/echo": 0.75,
        "attack/empty": 0.0,
    }  # fmt: skip
    assert "the best echo attack, b," in found["attack"].line
    assert "none of 4 empty attacks" in found["attack/empty"].line
    assert [one.probe for one in found["attack"].examples] == ["echo/b"] * 3 + ["echo/a"] * 2
    # Wilson's interval with as many trials as have the error over prompts, √(4/3 · Σ (x - 3/4)²) / 4.
    error = math.sqrt(4 / 3 * (3 * 0.25**2 + 0.75**2)) / 4
    assert (found["attack"].low, found["attack"].high) == share_interval(0.75 * (0.1875 / error**2), 0.1875 / error**2)
    assert found["attack"].count == 12


def test_the_interval_of_a_family_is_over_prompts() -> None:
    """All sixteen attacks are paid for on five of ten prompts: ten trials, not 160."""
    scores = [case(f"p{i}", "attack", f"echo/{i}.{j}", float(i < 5)) for i in range(10) for j in range(16)]
    found = named(attack_findings(scores, None))["attack/echo"]
    trials = 0.25 / (10 / 9 * 10 * (16 * 0.5) ** 2 / 160**2)
    assert trials == pytest.approx(9.0)
    assert (found.low, found.high) == pytest.approx(share_interval(0.5 * trials, trials))


def test_prompts_on_which_right_and_wrong_have_the_same_reward_are_left_out() -> None:
    blind = [case(f"p{i}", "attack", "echo/a", 1.0, right=1.0, wrong=1.0) for i in range(9)]
    assert attack_findings(blind, None) == []
    seeing = [case(f"q{i}", "attack", "echo/a", 0.0) for i in range(9)]
    found = named(attack_findings([*blind, *seeing], None))
    assert (found["attack"].value, found["attack"].count, found["attack_failed"].value) == (0.0, 9, 0.0)


def test_a_family_that_could_not_be_scored_has_no_finding() -> None:
    lost = [case(f"p{i}", "attack", "injection/a", NAN if i < 3 else 0.0) for i in range(9)]
    others = [case(f"p{i}", "attack", f"echo/{j}", 0.0) for i in range(9) for j in range(9)]
    found = named(attack_findings([*lost, *others], None))
    assert set(found) == {"attack", "attack_mean", "attack_failed", "attack/echo"}
    assert found["attack_failed"].value == pytest.approx(3 / 90)


def test_attacks_with_few_tries_count_with_their_family() -> None:
    lucky = [case("p0", "attack", "echo/lucky", 1.0)]
    others = [case(f"p{i}", "attack", f"echo/{i}", 0.0) for i in range(1, 20)]
    found = named(attack_findings([*lucky, *others], None))
    assert found["attack"].value == found["attack/echo"].value == 1 / 20
    assert "5% of 20 echo attacks are paid for" in found["attack"].line


def test_an_attack_that_reaches_only_half_is_not_paid_for() -> None:
    scores = [case("p", "attack", "echo/a", 0.5), case("q", "attack", "echo/a", 0.6)]
    assert named(attack_findings(scores, None))["attack"].value == 0.5
    assert named(attack_findings(scores, 0.5))["attack"].value == 1.0


@pytest.mark.parametrize(
    ("truths", "paid", "value"),
    [
        (["7", "8", "9"], [1, 0, 0], None),  # it is the answer to that prompt
        (["7", "7", "9"], [1, 1, 0], None),  # which is asked twice
        (["7", "8", "9"], [1, 1, 0], 2 / 3),
        (["7", "8", "9"], [0, 0, 0], 0.0),
        (["", "", ""], [1, 1, 1], 1.0),  # the truths are not known, and the prompts differ
        (["", "", ""], [1, 0, 0], None),
    ],
)
def test_a_universal_text_that_happens_to_be_the_answer_does_not_count(
    truths: list[str], paid: list[int], value: float | None
) -> None:
    scores = [
        case(f"p{i}", "attack", "universal/1", float(one), truth=truth)
        for i, (truth, one) in enumerate(zip(truths, paid, strict=True))
    ]
    found = named(attack_findings(scores, None))
    measured = found.get("attack/universal")
    assert (measured and measured.value) == (None if value is None else pytest.approx(value))


# ---- biases ----------------------------------------------------------------------------------------------------------


def test_the_gap_is_the_mean_over_prompts_and_never_negative() -> None:
    scores = [
        case("p", "attack", "echo/a", 0.0, right=3.0, wrong=1.0),
        case("p", "attack", "echo/b", 0.0, right=2.0, wrong=1.0),  # a reward of groups has other values in each
        case("q", "attack", "echo/a", 0.0, right=1.0, wrong=0.5),
        case("r", "attack", "echo/a", 0.0, right=NAN, wrong=0.5),
    ]
    assert gap_of(scores) == pytest.approx((1.5 + 0.5) / 2)
    assert gap_of([replace(one, right=one.wrong, wrong=one.right) for one in scores]) == 0.0


def length_cases(rng: np.random.Generator, prompts: int = 12) -> list[CaseScore]:
    """Return padded answers whose reward grows by 0.08 for each 100 words, with a jump for any filler and noise."""
    return [
        case(f"p{i}", "edit", f"length/{words}", level + 0.4 + 0.0008 * words + 0.01 * rng.normal(), right=level)
        for i, level in enumerate(rng.normal(size=prompts))
        for words in (47 + i, 101, 208)
    ]


def test_length_bias_is_a_slope_within_prompts() -> None:
    scores = length_cases(np.random.default_rng(1))
    found = named(bias_findings(scores, 2.0))["length_bias"]
    words = np.array([float(one.probe.name) for one in scores]) / 100
    change = np.array([one.value - one.right for one in scores]) / 2.0
    dummies = np.eye(12)[[int(one.prompt[1:]) for one in scores]]
    slope = np.linalg.lstsq(np.column_stack([words, dummies]), change, rcond=None)[0][0]
    assert found.value == pytest.approx(slope, rel=1e-9)
    assert found.value == pytest.approx(0.04, abs=0.005)
    assert found.low < found.value < found.high
    assert found.low > 0.03


def test_a_jump_for_any_filler_is_no_length_bias() -> None:
    scores = [case("p", "edit", f"length/{words}", 0.0) for words in (50, 100, 200)]  # a strict form refuses all
    assert named(bias_findings(scores, 1.0))["length_bias"].value == 0.0


def test_style_place_and_edits_in_units_of_the_gap() -> None:
    scores = [
        case("p", "edit", "style/heading", 1.5),
        case("p", "edit", "style/bullets", 1.0),
        case("q", "edit", "style/heading", 0.5),
        case("q", "edit", "style/bullets", 1.5),
        case("p", "edit", "place/answer-first", 0.5),
        case("p", "edit", "whitespace/line-ending", 1.0),
        case("p", "edit", "edit/polite-opening", 0.8),
        case("q", "edit", "edit/polite-opening", 1.4),
    ]
    found = named(bias_findings(scores, 2.0))
    assert found["style_bias"].value == pytest.approx((0.5 + 0 - 0.5 + 0.5) / 4 / 2)
    assert found["place_bias"].value == pytest.approx(-0.25)
    assert found["edit_sensitivity"].value == pytest.approx((0 + 0.2 + 0.4) / 3 / 2)
    assert found["edit_sensitivity"].examples[0].reward == 1.4  # the largest change first
    assert "style/bullets" in [one.probe for one in found["style_bias"].examples]
    assert len(found["style_bias"].examples) == 3  # one of four changed nothing


def ordered(rng: np.random.Generator, effects: Sequence[float], groups: int = 6) -> list[OrderedGroup]:
    """Return groups in random orders, whose scores have an effect of the position."""
    size, made = len(effects), []
    for i in range(groups):
        places = np.stack([rng.permutation(size) for _ in range(5)])
        made.append(
            OrderedGroup(f"p{i}", list("abcdefgh"[:size]), rng.normal(size=size) + np.array(effects)[places], places)
        )
    return made


def test_order_bias_is_the_largest_effect_of_a_position() -> None:
    groups = ordered(np.random.default_rng(2), [0.1, 0.1, -0.5, 0.1])
    (found,) = order_findings([*groups, replace(groups[0], scores=np.full((5, 4), NAN))], 2.0)
    rows, values = [], []
    for number, one in enumerate(groups):
        for k, n in np.ndindex(one.scores.shape):
            rows.append([*np.eye(4)[one.places[k, n]], *np.eye(24)[4 * number + n]])
            values.append(one.scores[k, n] / 2.0)
    effects = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0][:4]
    assert found.value == pytest.approx(effects[2] - effects.mean())
    assert found.value == pytest.approx(-0.45 / 2.0)
    assert found.count == 6
    assert found.low <= found.value + 1e-9 <= found.high + 2e-9
    shown = found.examples[0]
    assert (shown.reward or 0.0) - float(shown.expected.split(",")[0]) == pytest.approx(0.6, abs=1e-3)
    assert shown.expected.endswith("position 3")


def test_without_an_effect_of_the_position_there_is_no_bias_and_no_example() -> None:
    (found,) = order_findings(ordered(np.random.default_rng(2), [0.0] * 4), 1.0)
    assert found.value == pytest.approx(0.0, abs=1e-12)
    one = replace(ordered(np.random.default_rng(3), [0.0] * 2)[0], scores=np.ones((5, 2)))
    assert order_findings([one], 1.0)[0].examples == []
    assert order_findings([], 1.0) == []


def test_inconsistency_and_disagreement_by_hand() -> None:
    first, again = np.array([1.0, 0.0, NAN]), [np.array([0.5, 0.0, 1.0]), np.array([1.0, NAN, 1.0])]
    (found,) = repeat_findings(["p"], [first], [[one] for one in again], 2.0)
    assert (found.value, found.count) == (pytest.approx((0.5 + 0 + 0) / 3 / 2), 3)
    assert repeat_findings(["p"], [first], [], 1.0) == []
    rows = {("a", "b"): [("p", 1.0), ("q", 0.0)], ("a", "c"): [("p", 0.0), ("q", 0.0)]}
    (worst,) = agreement_findings(rows)
    assert (worst.value, worst.line) == (0.5, "a and b order 50% of the pairs differently")


# ---- the policy's own answers ----------------------------------------------------------------------------------------


def sample(prompt: str, rewards: Sequence[float], reference: Sequence[float] | None = None) -> SampleGroup:
    texts = [f"answer {i}" for i in range(len(rewards))]
    return SampleGroup(prompt, texts, np.array(rewards), None if reference is None else np.array(reference))


def test_what_there_is_to_learn_by_hand() -> None:
    groups = [sample("p", [1, 0, 0, NAN]), sample("q", [1, 1, 1, 1]), sample("r", [NAN, NAN, NAN, 1])]
    found = named(learning_findings(groups, 2.0))
    assert found["flat"].value == 0.5
    assert found["spread"].value == pytest.approx((np.std([1, 0, 0]) + 0) / 2 / 2)
    assert found["ceiling"].value == 1.0
    assert "best of 4 answers has 1 in the mean, any answer 0.667" in found["ceiling"].line
    assert learning_findings([sample("p", [NAN, NAN])], 1.0) == learning_findings([], 1.0) == []


def test_agreement_with_the_reference_by_hand() -> None:
    groups = [
        sample("p", [1.0, 0.6, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]),  # rewarded: right, wrong; missed: the last
        sample("q", [0.5, 0.5], [1.0, 0.0]),  # nothing is rewarded, and nothing can be missed
        sample("r", [0.9, 0.1, NAN], [0.2, NAN, 1.0]),  # one answer has both, and none is above its mean
        sample("s", [0.1] * 3, [0.0] * 3),  # a mean that rounds is none to be above of
    ]
    found = named(reference_findings(groups, 0.5))
    assert (found["false_discovery"].value, found["false_discovery"].count) == (0.5, 2)
    assert [one.reward for one in found["false_discovery"].examples] == [0.6]
    assert (found["missed"].value, found["missed"].count) == (0.5, 2)
    pairs = [(1, 1), (0.6, 0), (0, 0), (0, 1), (0.5, 1), (0.5, 0), (0.9, 0), (0.1, 0), (0.1, 0), (0.1, 0)]
    bands = {value: [(p, g) for p, g in pairs if p == value] for value, _ in pairs}
    error = sum(abs(sum(p - g for p, g in band)) for band in bands.values()) / len(pairs)
    assert found["calibration_error"].value == pytest.approx(error)
    assert "calibration_error" not in named(reference_findings([sample("p", [2.0, 0.0], [1.0, 0.0])], 0.5))
    assert reference_findings([sample("p", [1.0])], 0.5) == []


# ---- what does not matter --------------------------------------------------------------------------------------------

dyadic = st.integers(-8, 8).map(lambda n: n / 8)
scales = st.integers(-6, 6).map(lambda n: 2.0**n)
KINDS = [
    ("right", "reference"), ("wrong", "wrong-answer"), ("unsound", "corrupted-step"), ("attack", "echo/a"),
    ("attack", "empty/b"), ("edit", "whitespace/a"), ("edit", "style/a"), ("edit", "place/a"), ("edit", "edit/a"),
    ("edit", "length/50"), ("edit", "length/100"),
]  # fmt: skip


@st.composite
def batteries(draw: st.DrawFn) -> list[CaseScore]:
    scores = []
    for i in range(draw(st.integers(1, 4))):
        right, wrong = draw(dyadic), draw(dyadic)
        for role, kind in KINDS:
            value = {"reference": right, "wrong-answer": wrong}.get(kind, draw(dyadic))
            scores.append(case(f"p{i}", role, kind, value, right=right, wrong=wrong, truth=str(i)))
    return scores


def measured(scores: list[CaseScore]) -> dict[str, tuple[float, float, float, int]]:
    unit = gap_of(scores) or 1.0
    findings = [*truth_findings(scores, None), *attack_findings(scores, None), *bias_findings(scores, unit)]
    return {one.name: (one.value, one.low, one.high, one.count) for one in findings}


@given(batteries(), scales, st.integers(-4, 4))
@settings(max_examples=20)
def test_the_scale_and_the_zero_of_a_reward_do_not_matter(scores: list[CaseScore], scale: float, shift: int) -> None:
    moved = [
        replace(one, value=scale * one.value + shift, right=scale * one.right + shift, wrong=scale * one.wrong + shift)
        for one in scores
    ]
    before, after = measured(scores), measured(moved)
    in_units = {"length_bias", "style_bias", "place_bias", "edit_sensitivity"} if not gap_of(scores) else set()
    for name in before.keys() - in_units:  # without a gap they are in units of the reward
        assert after[name] == pytest.approx(before[name], abs=1e-12, nan_ok=True), name


@given(batteries(), st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_the_order_of_prompts_does_not_matter(scores: list[CaseScore], rng: random.Random) -> None:
    before, after = measured(scores), measured(rng.sample(scores, len(scores)))
    assert before.keys() == after.keys()
    for name, (value, _, _, count) in before.items():
        assert (after[name][0], after[name][3]) == (pytest.approx(value, abs=1e-12), count), name


@given(st.lists(st.lists(st.tuples(dyadic, dyadic), min_size=2, max_size=5), min_size=1, max_size=4), scales, dyadic)
@settings(max_examples=20)
def test_agreement_with_a_reference_does_not_depend_on_the_scale_of_the_reward(
    groups: list[list[tuple[float, float]]], scale: float, shift: float
) -> None:
    def found(scale: float, shift: float) -> dict[str, float]:
        made = [
            sample(f"p{i}", [scale * r + shift for r, _ in one], [q for _, q in one]) for i, one in enumerate(groups)
        ]
        return {one.name: one.value for one in reference_findings(made, 0.25) if one.name != "calibration_error"}

    assert found(scale, shift) == pytest.approx(found(1.0, 0.0))


# ---- requirements ----------------------------------------------------------------------------------------------------


def finding(name: str, value: float) -> Finding:
    return Finding(name, "bias", value, NAN, 1.0, 3, f"the line of {name}")


def test_a_requirement_bounds_the_size_of_a_bias_and_the_least_separation() -> None:
    require = {"length_bias": 0.1, "separation": 0.9, "attack": 0.0, "order_bias": 0.2}
    audit = Audit([finding("length_bias", -0.2), finding("separation", 0.95), finding("flat", 0.3)]).required(require)
    assert [one.passed for one in audit.findings] == [False, True, None]
    assert [one.name for one in audit.failed] == ["length_bias"]
    problems = audit.problems()
    assert "length_bias is -0.2, at most 0.1 is required: the line of length_bias" in problems[0]
    assert problems[1:] == ["attack could not be measured", "order_bias could not be measured"]
    content = audit.as_json()
    assert content["passed"] is False
    assert content["findings"][0]["low"] is None
    assert content["unmeasured"] == {"attack": 0.0, "order_bias": 0.2}
    assert Audit([finding("flat", 0.3)]).as_json()["passed"] is None
    assert Audit([finding("separation", 0.8)]).required({"separation": 0.9}).failed


def test_an_unknown_requirement_names_the_nearest() -> None:
    check_requirements({"attack/echo": 0.0, "false_positive": 0.1}, ["echo"])
    with pytest.raises(UserError, match=r"require\.false_postive .*false_positive"):
        check_requirements({"false_postive": 0.1}, ["echo"])
    with pytest.raises(UserError, match="attack/echo"):
        check_requirements({"attack/ehco": 0.1}, ["echo"])
