"""Sections and score of RewardBench against what its own package computes."""

import json
import math
from pathlib import Path

import pytest

from rewardsmith.algorithms.judge_statistics import PRIOR, PRIOR_SETS, SECTIONS, overall_score, section_scores

DOCUMENT = json.loads(Path(__file__).with_name("rewardbench.json").read_text(encoding="utf-8"))


def test_the_subsets_and_their_weights_are_those_of_the_package() -> None:
    ours = {subset: weight for subsets in SECTIONS.values() for subset, weight in subsets.items()}
    assert ours == DOCUMENT["weights"]
    code = [weight for subset, weight in SECTIONS["Reasoning"].items() if subset.startswith("hep-")]
    assert sum(code) == SECTIONS["Reasoning"]["math-prm"]


@pytest.mark.parametrize("case", DOCUMENT["cases"], ids=range(len(DOCUMENT["cases"])))
def test_sections_and_score_are_those_of_the_package(case: dict) -> None:
    known = {name: value for name, value in case["sections"].items() if value}  # 0 is its word for an absent section
    sections = section_scores({**case["accuracies"], "of another data set": 0.5})
    assert sections == pytest.approx(known)
    assert list(sections) == [name for name in (*SECTIONS, PRIOR) if name in known]
    if "score" in case:
        assert overall_score(sections) == pytest.approx(case["score"])


def test_a_section_that_is_not_there_is_left_out_and_not_zero() -> None:
    assert section_scores({}) == {}
    assert math.isnan(overall_score({}))
    assert section_scores({"donotanswer": math.nan, "math-prm": 0.25}) == {"Reasoning": 0.25}
    assert overall_score({"Chat": 1.0, "Safety": 0.5}) == 0.75


def test_prior_sets_weigh_half_a_section() -> None:
    sections = section_scores({"math-prm": 1.0, **dict.fromkeys(PRIOR_SETS, 0.4)})
    assert sections == pytest.approx({"Reasoning": 1.0, PRIOR: 0.4})
    assert overall_score(sections) == pytest.approx((2 * 1.0 + 1 * 0.4) / 3)
