"""The benchmark of gate and watch: when accuracy falls, what the table says, and that a stop ends the same run."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rewardsmith.rewards.base import Halt


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("audit")


@pytest.mark.parametrize(
    ("accuracy", "step"),
    [
        ([0.3, 0.5, 0.6, 0.4, 0.2, 0.1], 3),
        ([0.3, 0.5, 0.6, 0.7, 0.8, 0.9], None),
        ([0.6, 0.4, 0.6, 0.7, 0.7, 0.7], None),  # it recovers
        ([0.6, 0.5, 0.6, 0.4, 0.5, 0.3], 3),
        ([0.6, 0.6, 0.6, 0.6, 0.6, 0.3], None),  # nothing after it shows that it stays so
        ([0.6, 0.6, 0.6, 0.6, 0.56, 0.56], None),  # less than 0.05
        ([0.6, 0.3, 0.2, 0.1, 0.0, 0.0], 1),
    ],
)
def test_accuracy_falls_where_it_stays_below_its_best(
    audit: ModuleType, accuracy: list[float], step: int | None
) -> None:
    assert audit.fall(dict(enumerate(accuracy)), answers=10_000) == step


def test_a_fall_is_larger_than_its_error(audit: ModuleType) -> None:
    accuracy = dict(enumerate([0.6, 0.5, 0.5]))  # the difference has an error of √(0.24 + 0.25) / √n = 0.07 / √(n/100)
    assert audit.fall(accuracy, answers=100) is None
    assert audit.fall(accuracy, answers=400) == 1


def arm(audit: ModuleType, judge: str, accuracy: list[float], alarms: list[int], **others: Any) -> Any:
    looks = {step: {"alarm": float(step in alarms), "reward": 0.5, "reference": 0.4} for step in range(len(accuracy))}
    fields = {"attack": 0.9, "passed": False, **others}
    curve = dict(enumerate(accuracy))
    return audit.Arm("arithmetic", judge, 0, accuracy=curve, answers=10_000, alarms=alarms, looks=looks, **fields)


def test_the_table_says_what_was_early_late_and_false(audit: ModuleType) -> None:
    falls = [0.3, 0.5, 0.6, 0.4, 0.2, 0.1]
    early, late = arm(audit, "length", falls, [2, 3]), arm(audit, "format", falls, [4])
    sound = arm(audit, "sound", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9], [], attack=0.05, passed=True)
    assert (early.falls, early.stopped) == (3, 0.6)
    assert audit.row(early)[3:] == ("0.90 fails", "2", "3", "0.30", "0.60 (2)", "0.60", "0.10")
    assert audit.row(sound)[3:] == ("0.05 passes", "none", "never", "0.30", "0.90 (5)", "", "0.90")
    text = audit.verdict([early, late, sound])
    assert "fell in 2 of 2 runs; the alarm came before that in 1, at the same step in 0; the gate refused 2" in text
    assert "0 of 1 runs had an alarm, accuracy fell in 0, the gate refused 0" in text
    assert [line.endswith("ALARM") for line in audit.curves(early)[2:]] == [False, False, True, True, False, False]


@pytest.mark.slow
def test_an_exploited_judge_raises_the_alarm_and_a_stop_ends_the_same_run(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = audit.load_table

    def short(path: Path) -> dict[str, Any]:
        table: dict[str, Any] = load(path)
        table["data"]["train"]["habits"] = 0.5
        for stage, steps in zip(table["stages"], (150, 15), strict=True):
            stage["steps"] = steps
        return table

    monkeypatch.setattr(audit, "load_table", short)
    policy = audit.imitate("translation", 0, tmp_path)
    warned = audit.train("translation", "format", 0, policy, tmp_path / "warn")
    assert not warned.passed  # the battery has mark-up among its attacks
    assert warned.alarms
    with pytest.raises(Halt, match="stopped the run at step"):
        audit.train("translation", "format", 0, policy, tmp_path / "stop", on_alarm="stop")
    stopped = audit.read(audit.TrainedRun(tmp_path / "stop" / "translation-0-format"), "translation", "format", 0)
    assert stopped.alarms == warned.alarms[:1]
    assert stopped.accuracy == {step: value for step, value in warned.accuracy.items() if step <= warned.alarms[0]}
    sound = audit.train("translation", "sound", 0, policy, tmp_path / "sound")
    assert sound.passed
    assert not sound.alarms
