"""What the tests of the commands share: problems, solutions, and the command line in this process."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.cli import main
from tests.runs.preparing.serving import Serving, rubric

CRITERIA = [{key: item[key] for key in ("name", "points", "text")} for item in rubric()["criteria"]]


def problems(count: int) -> list[dict[str, Any]]:
    """Return rows with problems."""
    return [
        {"id": f"p{i}", "prompt": f"How much is {i} + {i}?", "reward_model": {"ground_truth": str(2 * i)}}
        for i in range(count)
    ]


def solved(count: int, each: int = 4) -> list[dict[str, Any]]:
    """Return rows with problems, criteria and solutions."""
    return [
        {**row, "extra_info": {"criteria": CRITERIA}, "responses": [f"{i} + {i} is {2 * i + j}" for j in range(each)]}
        for i, row in enumerate(problems(count))
    ]


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def read(file: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def models_file(folder: Path, serving: Serving, cache: str = "", **settings: Any) -> Path:
    """Write a file with the models of a server."""
    table = {"type": "server", "urls": [serving.server.url], "retries": 6, "backoff": 0.01} | settings
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    file = folder / "models.toml"
    file.write_text("\n".join([f'cache = "{cache}"', "[models.writer]", *lines]), encoding="utf-8")
    return file


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run `rewardsmith prepare` in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["rewardsmith", "prepare", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)
