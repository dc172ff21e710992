"""What the page about rules shows is what there is."""

import re
import tomllib
from pathlib import Path

import pytest

from rewardsmith.rewards import make_reward
from rewardsmith.rewards.rules import RULES
from rewardsmith.text.answers import WAYS

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*RULES, *WAYS])
def test_every_rule_and_every_way_has_a_row(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S))
def test_the_recipes_of_the_page_are_valid(block: str) -> None:
    make_reward(tomllib.loads(block)["reward"])
