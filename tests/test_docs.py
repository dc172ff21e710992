"""What the documents list is what there is: names, targets, messages. `tests/docs` runs their code."""

import doctest
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rewardsmith.types
from rewardsmith.algorithms.advantages import ADVANTAGES
from rewardsmith.algorithms.policy_losses import POLICY_LOSSES, REDUCTIONS
from rewardsmith.engines.embedded.tiny import TINY
from rewardsmith.recipe import parse_recipe
from rewardsmith.rewards.rules import RULES
from rewardsmith.runs.lookup import find_reward
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.runs.preflight import warnings as recipe_warnings
from rewardsmith.trainers.metrics import warn_of_rate
from tests.doc_pages import PAGES, ROOT, blocks_of, name_of


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page in one language."""
    return [block.text for block in blocks_of(ROOT / page) if block.language == language]


def test_a_policy_of_random_weights_in_the_readme_can_learn() -> None:
    """It begins with imitation, for otherwise no answer is ever right, and its rate moves a small model."""
    recipes = [parse_recipe(table) for table in map(tomllib.loads, blocks("README.md", "toml")) if "stages" in table]
    seen = 0
    for recipe in recipes:
        for i, stage in enumerate(recipe.stages):
            settings: Any = stage.settings
            if stage.name != "policy" or recipe.models[settings.model].settings.init not in TINY:  # type: ignore[attr-defined]
                continue
            seen += 1
            earlier: list[Any] = [other.settings for other in recipe.stages[:i] if other.name == "sft"]
            assert settings.model in [other.model for other in earlier]
            warnings: list[str] = []
            warn_of_rate(warnings.append, settings, recipe.models[settings.model].settings.init)  # type: ignore[attr-defined]
            assert not warnings
    assert seen


def test_the_readme_counts_the_rules() -> None:
    (count,) = re.findall(r"\*\*([\w-]+) rules\*\*", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert count.lower() == {20: "twenty", 21: "twenty-one", 22: "twenty-two"}[len(RULES)]


def test_recipes_on_the_page_of_process_rewards_are_valid(tmp_path: Path) -> None:
    tables = [tomllib.loads(block) for block in blocks("docs/process_rewards.md", "toml")]
    recipes = [parse_recipe(table) for table in tables if "stages" in table]
    assert len(recipes) == 2
    for recipe in recipes:
        RewardTrees(recipe)
        assert not list(recipe_warnings(recipe))
    (tmp_path / "prm.toml").write_text(blocks("docs/process_rewards.md", "toml")[-1], encoding="utf-8")
    assert find_reward(str(tmp_path / "prm.toml")).reward.name == "implicit"


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(rewardsmith.types).failed == 0


def test_every_named_algorithm_is_documented() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    for name in [*ADVANTAGES, *POLICY_LOSSES, *REDUCTIONS]:
        assert f"| `{name}` |" in page


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_the_documents_lead_somewhere(page: Path) -> None:
    """Pages of the reference are made when the site is built, which checks the links to them, and all anchors."""
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        made = path.parent == ROOT / "docs" / "reference"
        assert target.startswith("http") or made or path.exists(), target


def test_the_targets_that_the_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "bash")), flags=re.M):
            assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_the_error_that_the_readme_shows_is_the_one_that_users_get() -> None:
    command = "explain recipes/quickstart.toml stages.policy.loss.hgih=0.3 stages.policy.advantage.type=rlo"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"$ rewardsmith {command}" in readme
    result = subprocess.run(
        [sys.executable, "-m", "rewardsmith", *command.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 5
    for line in result.stderr.splitlines():
        assert line in readme or "Known: dr_grpo" in line  # the long list is cut in the README
