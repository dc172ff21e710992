"""The benchmark of answer verifiers works, and what it shows of our rules holds."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from rewardsmith import Message, Prompt

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

# A number that agrees to six places counts as rounded, whatever the truth is.
PAID_BY_CONVENTION = {"\\boxed{7.0000001}", "\\boxed{6.9999999}"}


@pytest.fixture
def verifiers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("verifiers")


def test_no_wrong_answer_of_the_labelled_pairs_is_paid_and_few_right_ones_are_refused(verifiers: ModuleType) -> None:
    paid, refused, right = set(), 0, 0
    for pair in verifiers.labelled_pairs():
        prompt = Prompt("pair", [Message("user", "?")], answer=pair.truth, info={"rule": pair.rule})
        value = verifiers.ours(prompt, pair.text)
        right += pair.right
        refused += pair.right and value < 1
        if value >= 1 and not pair.right:
            paid.add(pair.text)
    assert paid <= PAID_BY_CONVENTION
    assert refused / right < 0.02


def test_errors_are_counted_by_their_kind(verifiers: ModuleType) -> None:
    errors = verifiers.Errors()
    pair = verifiers.labelled_pairs()[0]
    assert pair.right
    for verdict in (1.0, 0.0, None):
        errors.add(pair, verdict)
    assert (errors.right, errors.false_negatives, errors.failed, errors.false_positives) == (3, 1, 1, 0)
