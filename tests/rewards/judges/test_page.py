"""What docs/judges.md shows can be used: its recipes and its hooks."""

import asyncio
import doctest
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.components import settings_of
from rewardsmith.rewards.judges.hooks import prompts_by, value_by
from rewardsmith.rewards.judges.judge import Judge
from rewardsmith.rewards.judges.plugin import Plugin
from rewardsmith.rewards.judges.rubric import Rubric
from rewardsmith.rewards.judges.verifier import Verifier
from rewardsmith.text import grades, verdicts
from rewardsmith.text.reading import Unreadable
from tests.rewards.judges.asked import group

PAGE = (Path(__file__).parents[3] / "docs" / "judges.md").read_text(encoding="utf-8")
KINDS = {"rubric": Rubric, "verifier": Verifier, "judge": Judge, "plugin": Plugin}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.S | re.M)


@pytest.mark.parametrize("block", blocks("toml"))
def test_recipes(block: str) -> None:
    table = tomllib.loads(block)["reward"]
    kind = KINDS[table.pop("type")]
    checked = settings_of(kind).model_validate(table)
    if not any("my_hooks" in str(value) or "plugins/" in str(value) for value in table.values()):
        kind(**{name: getattr(checked, name) for name in type(checked).model_fields})


def test_hooks() -> None:
    (block,) = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(block, "judges.md", "exec"), names)
    (prompt,) = asyncio.run(prompts_by(names["ask"], group("Please.")))
    assert not isinstance(prompt, Exception)
    assert prompt[0].content == "Is this polite?\n\n```\nPlease.\n```"
    assert asyncio.run(value_by(names["read"], "Yes\n")) == (1.0, "Yes\n")
    with pytest.raises(Unreadable, match="neither yes nor no"):
        asyncio.run(value_by(names["read"], "perhaps"))


def test_every_setting_is_named() -> None:
    for kind in KINDS.values():
        for name in settings_of(kind).model_fields:
            assert f"`{name}" in PAGE or f"\n{name} = " in PAGE, (kind.__name__, name)


def test_examples_in_docstrings() -> None:
    for module in (grades, verdicts):
        assert doctest.testmod(module) == (0, 1)
