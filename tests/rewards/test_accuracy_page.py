"""What docs/judge_training.md documents of the rewards that train judges: labels, numbers, tables of recipes."""

import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup
from rewardsmith.rewards import make_reward

PAGE = (Path(__file__).parents[2] / "docs" / "judge_training.md").read_text(encoding="utf-8")

HEAD = "So.\n\n### Final Ranking:\n\n"
FULL = HEAD + "A > B\n\n### Scores:\n\nA: 8, B: 3\n"

# A text for each label, and the settings with which it has it.
REFUSED: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "grades": {
        "unfinished-thought": ("<think>Total Score: 8/10", {}), "too-long": ("x" * 300_000, {}),
        "no-marker": ("8/10", {}), "no-number": ("Total Score: high", {}),
        "contradictory": ("Total Score (out of 20): 8/10", {}), "negative-grade": ("Total Score: -1/10", {}),
        "more-than-all-points": ("Total Score: 11/10", {}), "no-points-in-all": ("Total Score: 0/0", {}),
    },
    "rankings": {
        "unfinished-thought": ("<think>" + FULL, {}),
        "too-long": ("x" * 300_000, {}),
        "too-few-lines": ("A > B", {}),
        "short-analysis": (FULL, {"min_analysis_chars": 9}),
        "wrong-header": (FULL.replace("###", "#"), {"reading": "exact"}),
        "no-ranking-line": (FULL.replace("A > B", "A, B"), {}),
        "ranking-with-less-than": (FULL.replace("A > B", "B < A"), {}),
        "no-scores-line": (FULL.replace("A: 8, B: 3", "8 and 3"), {}),
        "score-not-a-number": (FULL.replace("B: 3", "B: three"), {}),
        "score-not-an-integer": (FULL.replace("B: 3", "B: 3.5"), {}),
        "score-out-of-another-number": (FULL.replace("B: 3", "B: 3/20"), {"reading": "lenient"}),
        "score-out-of-range": (FULL.replace("A: 8", "A: 11"), {}),
        "unknown-letter": (FULL.replace("B: 3", "C: 3"), {}),
        "duplicate-letter": (FULL.replace("B: 3", "A: 3"), {}),
        "missing-candidate": (FULL.replace(", B: 3", ""), {}),
        "ranking-contradicts-scores": (FULL.replace("A > B", "B > A"), {}),
    },
}  # fmt: skip
KINDS = {"grades": ("grade_accuracy", 0.5), "rankings": ("ranking_accuracy", {"A": 8, "B": 3})}


def label(kind: str, rollout: Rollout, settings: dict[str, Any]) -> str:
    reward, answer = KINDS[kind]
    group = RolloutGroup(Prompt("p", [Message("user", "?")], answer=answer), [rollout])
    return asyncio.run(make_reward({"type": reward, **settings}).score(group))[0].label


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_lists_all_labels(kind: str) -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (both|grades|rankings) \|", PAGE, flags=re.M)
    assert label(kind, Rollout(FULL, stop_reason="length"), {}) == "truncated"
    assert {name for name, of in rows if of in (kind, "both")} == {*REFUSED[kind], "truncated"}


def test_the_tables_of_recipes_are_valid_and_all_settings_are_named() -> None:
    tables = [tomllib.loads(block)["reward"] for block in re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.S | re.M)]
    assert {table["type"] for table in tables} == {"grade_accuracy", "ranking_accuracy"}
    for table in tables:
        reward = make_reward(table).reward
        section = PAGE.split("## Grades")[1].split("## Rankings")[table["type"] == "ranking_accuracy"]
        settings = set(type(reward).__init__.__kwdefaults__ or {})  # type: ignore[misc]
        assert [name for name in sorted(settings) if f"`{name}`" not in section] == []


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in REFUSED for name in REFUSED[kind]])
def test_each_label_has_a_text(kind: str, name: str) -> None:
    text, settings = REFUSED[kind][name]
    assert label(kind, Rollout(text), settings) == name
