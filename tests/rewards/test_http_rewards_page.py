"""The example of docs/how_to/http_rewards.md runs, and the page names all kinds of failure."""

import re
from pathlib import Path
from typing import get_args

import pytest

from rewardsmith.types import FailureKind

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "http_rewards.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.S | re.M)
    exec(compile(block, "http_rewards.md", "exec"), {})
    assert capsys.readouterr().out == "[0.5, 0.1111111111111111]\n"


def test_every_kind_of_failure_is_in_the_table() -> None:
    table = PAGE.partition("## What a fault becomes")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {kind for row in rows for kind in re.findall(r"`(\w+)`", row)} == set(get_args(FailureKind))
