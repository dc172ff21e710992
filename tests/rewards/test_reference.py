"""What other systems do in code, written as recipes: the fragments of docs/rewards.md, number by number."""

import itertools
import re
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.rewards import make_reward
from tests.rewards.stubs import CALLS, Given, values

DOCS = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()


@pytest.fixture(autouse=True)
def my_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's module of the documentation: each class reads its value from the rollout."""
    module = types.ModuleType("my_rewards")

    def reading(key: str) -> type:
        def __init__(self: Any) -> None:  # noqa: N807
            Given.__init__(self, key=key)

        return type(key, (Given,), {"__init__": __init__})

    for key in ("Rule", "Similarity", "FirstJudge", "SecondJudge", "Judge"):
        setattr(module, key, reading(key))
    monkeypatch.setitem(sys.modules, "my_rewards", module)


def fragment(title: str) -> dict:
    """Return the reward of the TOML block below a heading of the page."""
    match = re.search(rf"^#+ {re.escape(title)}\n.*?```toml\n(.*?)```", DOCS, re.S | re.M)
    assert match, title
    return tomllib.loads(match[1])["reward"]


def merged(row: dict[str, float], bge_weight: float, models: list[tuple[str, str, float]]) -> float:
    """The merge of the original: everything but the rule counts only where the rule is exactly 1."""
    gate = float(row["Rule"] == 1)
    total = row["Rule"] + bge_weight * row["Similarity"] * gate
    for name, combine, weight in models:
        part = row[name] * gate
        total = total + weight * part if combine == "add" else total * weight * part
    return total


ROWS = [
    {"Rule": rule, "Similarity": 0.73, "FirstJudge": first, "SecondJudge": second}
    for rule, first, second in itertools.product([0.0, 0.1, 1.0], [-1.0, 0.0, 0.5, 1.0], [0.0, 0.25, 1.0])
]


@pytest.mark.parametrize(
    ("title", "combines"),
    [("Add, then add", ("add", "add")), ("Add, then multiply", ("add", "mul")), ("Multiply, then add", ("mul", "add"))],
)
def test_the_merge_of_rule_similarity_and_two_models(title: str, combines: tuple[str, str]) -> None:
    models = [("FirstJudge", combines[0], 0.5), ("SecondJudge", combines[1], 0.3)]
    assert values(fragment(title), *ROWS) == pytest.approx([merged(row, 0.2, models) for row in ROWS])
    right = sum(row["Rule"] == 1 for row in ROWS)
    assert CALLS["FirstJudge"] == right  # the original generates for every rule but 0, and throws it away
    assert CALLS["SecondJudge"] <= right


@pytest.mark.parametrize(
    ("title", "joined"),
    [
        ("The verifier alone", lambda p, v, w: v),
        ("The verifier where the rule says no", lambda p, v, w: 1 if p else v * w),
        ("Rule and verifier mixed", lambda p, v, w: v * w + p * (1 - w)),
    ],
)
def test_the_three_setups_of_a_model_verifier(title: str, joined: Any) -> None:
    table = fragment(title)
    for w in (0.25, 1.0):
        made = table | {name: w for name in ("factor", "share") if name in table}
        for p, v in itertools.product([0.0, 1.0], [0.0, 0.3, 1.0]):
            assert values(make_reward(made), {"Rule": p, "Judge": v}) == pytest.approx([joined(p, v, w)])
