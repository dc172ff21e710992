"""A user's own rewards, estimators and losses, named as module:Name."""

import importlib
import itertools
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from rewardsmith.recipe import explain, parse_recipe
from tests.test_recipe import problems, table


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that writes a user's module and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    names = (f"own_module_{i}" for i in itertools.count())

    def write(code: str) -> str:
        name = next(names)
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(code)
        importlib.invalidate_caches()
        return name

    return write


SCORE = "\n    async def score(self, group): ...\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "class R:\n    def __init__(self, limit): ..." + SCORE,
            "must be keyword-only: write `def __init__(self, *, limit",
        ),
        ("from dataclasses import dataclass\n@dataclass\nclass R:\n    limit: int = 3" + SCORE, "kw_only=True"),
        ("class R:\n    def __init__(self, *, x: 'no.such.thing'): ..." + SCORE, "cannot read the settings"),
        ("class R:\n    def __init__(self, *, x: '1+'): ..." + SCORE, "cannot read the settings"),
        ("class T: ...\nclass R:\n    def __init__(self, *, x: T): ..." + SCORE, "cannot be read from a recipe"),
        ("class R:\n    def __init__(self, *, model_config: int = 1): ..." + SCORE, "cannot be read from a recipe"),
        ("class R:\n    def __init__(self, *, type: int = 1): ..." + SCORE, "'type', which means something else"),
        ("class R: ...", "a class with score()"),
        ("import sys; sys.exit(3)", "SystemExit"),
    ],
)
def test_a_component_that_cannot_be_used_is_refused_before_anything_is_loaded(
    own: Callable[[str], str], code: str, words: str
) -> None:
    assert words in problems(table(reward={"type": f"{own(code)}:R"}))["stages.0.reward.type"]


def test_a_setting_may_not_take_the_name_of_one_that_belongs_to_its_place(own: Callable[[str], str]) -> None:
    name = own("class R:\n    def __init__(self, *, weight: float = 1.0): ..." + SCORE)
    found = problems(table(reward={"type": "sum", "parts": {"a": {"type": f"{name}:R"}}}))
    assert "'weight', which means something else here" in found["stages.0.reward.parts.a.type"]


def test_paths_tuples_and_enums_can_be_given_in_toml(own: Callable[[str], str]) -> None:
    name = own(
        "from enum import Enum\nfrom pathlib import Path\nclass Mode(Enum):\n    FAST = 'fast'\nclass R:\n"
        "    def __init__(self, *, folder: Path = Path('x'), sizes: tuple[int, ...] = (1,), mode: Mode = Mode.FAST,"
        " other: Path | None = None): self.given = (folder, sizes, mode.value, other)" + SCORE
    )
    reward = {"type": f"{name}:R", "folder": "a/b", "sizes": [2, 3], "mode": "fast", "other": "c"}
    recipe = parse_recipe(table(reward=reward))
    assert recipe.stages[0].settings.reward.build().given == (Path("a/b"), (2, 3), "fast", Path("c"))
    assert parse_recipe(tomllib.loads(explain(recipe))) == recipe
    assert "sizes.0" in str(problems(table(reward=reward | {"sizes": ["2"]})))


@pytest.mark.parametrize("code", ["def R(rewards, mask): ...", "class R: ...", "R = 3"])
def test_an_estimator_is_a_function_of_one_argument(own: Callable[[str], str], code: str) -> None:
    message = problems(table(advantage=f"{own(code)}:R"))["stages.0.advantage.type"]
    assert "cannot be an advantage: it must be a function of 1 positional argument" in message


def test_a_reward_named_as_a_rule_is_reported_to_be_a_reward(own: Callable[[str], str]) -> None:
    name = own("class R:" + SCORE)
    message = problems(table(reward={"type": "rule", "rule": f"{name}:R"}))["stages.0.reward.rule.type"]
    assert f'reward = "{name}:R"' in message


@pytest.mark.parametrize("missing", ["start", "close"])
def test_a_tracker_without_all_its_methods_is_refused_before_anything_is_loaded(
    own: Callable[[str], str], missing: str
) -> None:
    methods = "".join(f"    def {name}(self, *given): ...\n" for name in ("start", "log", "close") if name != missing)
    found = problems(table() | {"trackers": [{"type": f"{own(f'class R:{chr(10)}{methods}')}:R"}]})
    assert f"{missing}()" in found["trackers.0.type"]
