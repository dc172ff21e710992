"""A folder in which `rewardsmith evaluate` has something to measure with."""

from pathlib import Path

import pytest

from tests.runs.evaluate.commands import REWARDS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rewards of our own, and a reward table for each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own_rewards_7e.py").write_text(REWARDS)
    for name in ("Numbers", "Steps"):
        (tmp_path / f"{name.lower()}.toml").write_text(f'type = "own_rewards_7e:{name}"\n')
    return tmp_path
