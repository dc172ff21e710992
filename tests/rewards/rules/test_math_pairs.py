"""Labelled pairs of a truth and an answer. Wrong ones that are paid matter more than right ones that are refused."""

import tomllib
from pathlib import Path

import pytest

from tests.rewards.rules.ask import value

GROUPS = tomllib.loads(Path(__file__).with_name("math_pairs.toml").read_text(encoding="utf-8"))["groups"]
CASES = [
    pytest.param(
        group["truth"],
        answer if group.get("text") else f"\\boxed{{{answer}}}",
        verdict,
        id=f"{label}|{group['truth']}|{answer}",
    )
    for group in GROUPS
    for label, verdict in (("right", 1.0), ("wrong", 0.0))
    for answer in group[label]
]


@pytest.mark.parametrize(("truth", "text", "verdict"), CASES)
def test_a_labelled_pair(truth: str, text: str, verdict: float) -> None:
    assert value("math", text, truth) == verdict


def test_there_are_hundreds_of_pairs_of_each_sort() -> None:
    verdicts = [case.values[2] for case in CASES]
    assert verdicts.count(1.0) >= 350
    assert verdicts.count(0.0) >= 600
