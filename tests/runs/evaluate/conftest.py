"""A folder in which `rewardsmith evaluate` has something to measure with."""

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a reward table for each of two rewards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    for name in ("Numbers", "Steps"):
        (tmp_path / f"{name.lower()}.toml").write_text(f'type = "tests.trainers.evaluate.rewards:{name}"\n')
    return tmp_path
