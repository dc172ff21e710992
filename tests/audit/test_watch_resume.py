"""A run with a watch that is killed and goes on ends as one that was never interrupted."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.processes import Strike, assert_same, outcome, prepared, run, uninterrupted

pytestmark = pytest.mark.slow

# The reference rejects every answer, so that each look lowers the weight of a part once more.
OPINIONS = '''
def short(response):
    """Return more for a shorter answer."""
    return 1 - len(response) / 20

def never(response):
    """Reject every answer."""
    return 0.0
'''

RECIPE = """
[models.policy]
init = "tiny-llama"

[data.train]
type = "arithmetic"

[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 7
prompts_per_step = 6
rollouts_per_prompt = 8
sampling = { max_tokens = 6 }
optimizer = { lr = 2e-3 }
save = { every = 3, keep = 2 }
ahead = AHEAD
select = { SELECT }
[stages.reward]
type = "sum"
parts.digits = { type = "digits:Digits" }
parts.short = { type = "opinions:short", weight = 0.5 }
[stages.audit]
reference = { type = "opinions:never" }
every = 2
max_false_discovery = 0.0
on_alarm = "lower"
lower = "digits"
factor = 0.6
"""
VARIANTS = {"surplus": ("0", "oversample = 1.5, staleness = 2"), "ahead": ("1", "")}

LOOK = "rewardsmith.trainers.reward_watch:RewardWatch.look"
MOMENTS = [
    Strike(LOOK, 1),  # the first look, which is the baseline of all others
    Strike(LOOK, 3),  # weights were lowered twice since the checkpoint, or since the beginning
    Strike("rewardsmith.runs.folder:RunFolder.keep_audit", 2),  # an alarm is raised, and not yet written
    Strike("rewardsmith.trainers.collect:score", 8),
    Strike("rewardsmith.runs.folder:RunFolder.log", 2),
]


def make(folder: Path, variant: str) -> Path:
    ahead, select = VARIANTS[variant]
    place = prepared(folder, RECIPE.replace("AHEAD", ahead).replace("SELECT", select))
    (place / "opinions.py").write_text(OPINIONS, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What comes of each variant without an interruption."""
    return uninterrupted(make, tmp_path_factory)


def alarms(folder: Path) -> Any:
    return json.loads((folder / "audit.json").read_text())["watch"]["policy"]["alarms"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_with_a_watch_that_lowers_a_weight(
    variant: str, tmp_path: Path, expected: Callable[[str], dict[str, Any]]
) -> None:
    whole = expected(variant)
    weights = [line["metrics"]["watch/weight"] for line in whole["metrics"] if "watch/weight" in line["metrics"]]
    assert weights == pytest.approx([0.6, 0.36, 0.216, 0.1296])  # after the steps 1, 2, 4 and 6
    folder = make(tmp_path, variant)
    for moment in MOMENTS:
        status, output = run(folder, strikes=[moment])
        assert status == -signal.SIGKILL, f"{moment} was not reached:\n{output}"
    status, output = run(folder)
    assert status == 0, output
    assert_same(outcome(folder / "runs/small"), whole)
    assert [one["step"] for one in alarms(folder / "runs/small")] == [1, 2, 4, 6]
