"""Rules as rewards: values, and failures that are never numbers."""

import asyncio
import sys
from pathlib import Path

import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.rules import RULES


def group(*texts: str, answer: object = "9") -> RolloutGroup:
    return RolloutGroup(Prompt("p", [Message("user", "7+5-3?")], answer=answer), [Rollout(text) for text in texts])


def score(table: object, *texts: str, answer: object = "9") -> tuple[Score, ...]:
    return asyncio.run(make_reward(table).score(group(*texts, answer=answer)))


@pytest.mark.parametrize(
    ("rule", "text", "value"),
    [
        ("arithmetic", "7+5=12;12-3=9;#9", 1.0), ("arithmetic", "#9", 1.0), ("arithmetic", "# 9 ", 1.0),
        ("arithmetic", "9", 0.0), ("arithmetic", "#8", 0.0), ("arithmetic", "#9#9", 0.0), ("arithmetic", "#8;#9", 0.0),
        ("arithmetic", "#09", 0.0), ("arithmetic", "", 0.0), ("exact", "9", 1.0), ("exact", " 9\n", 1.0),
        ("exact", "9.", 0.0), ("exact", "", 0.0),
    ],
)  # fmt: skip
def test_rules(rule: str, text: str, value: float) -> None:
    assert RULES[rule](group(text).prompt, text) == value
    assert [s.value for s in score({"type": "rule", "rule": rule}, text)] == [value]


FAULTS = """
def crash(prompt, text):
    if "crash" in text:
        raise RuntimeError("the verifier broke")
    return 1.0

def not_a_number(prompt, text):
    return float("nan") if "nan" in text else 1.0

def nothing(prompt, text):
    return None

def true(prompt, text):
    return text == "fine"

def hostile(prompt, text):
    raise ValueError("\\ud800") if "bad" in text else SystemExit(3)

class SilentError(Exception):
    def __str__(self):
        raise RuntimeError

def silent(prompt, text):
    raise SilentError

async def later(prompt, text):
    return 1.0
"""


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's module whose rules misbehave."""
    (tmp_path / "faulty_rules_71b.py").write_text(FAULTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_rules_71b", raising=False)
    return "faulty_rules_71b"


@pytest.mark.parametrize(
    ("rule", "text", "kind", "detail"),
    [
        ("crash", "please crash", "crashed", "RuntimeError: the verifier broke"),
        ("not_a_number", "nan", "invalid", "returned nan"),
        ("nothing", "any", "crashed", "NoneType"),
        ("hostile", "bad", "crashed", "ValueError: ?"),
        ("hostile", "exit", "crashed", "SystemExit: 3"),
        ("silent", "any", "crashed", "SilentError"),
    ],
)
def test_a_rule_that_misbehaves_is_a_failure_of_its_rollout_alone(
    faults: str, rule: str, text: str, kind: str, detail: str
) -> None:
    table = {"type": "rule", "rule": f"{faults}:{rule}"}
    bad, good = score(table, text, "fine")
    assert bad.value is None
    assert bad.failure.kind == kind
    assert detail in bad.failure.detail
    if rule in ("crash", "not_a_number"):
        assert good.value == 1.0
