"""`rewardsmith list` and `show`: every component is described, and every example can be used."""

import json
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from rewardsmith.config import Choice, settings_of
from rewardsmith.errors import UserError
from rewardsmith.recipe import toml
from rewardsmith.rewards import make_reward
from rewardsmith.runs.catalogue import (
    EXAMPLES,
    FAMILIES,
    RECIPES,
    FamilyName,
    components,
    describe,
    described,
    example,
    example_table,
    families,
    family_table,
    find,
    recipe_table,
    settings_tables,
)
from tests.command_line import call

ALL = [(family, name) for family, names in families().items() for name in names]


def settings(family: str, name: str) -> dict[str, tuple[str, ...]]:
    """Return the rows of a component by the name of the setting."""
    return {row[0]: row[1:] for row in settings_tables(family, name)[0].rows}  # type: ignore[misc]


def test_the_command_line_lists_every_family() -> None:
    assert get_args(FamilyName) == (*FAMILIES, RECIPES)
    assert set(EXAMPLES) <= set(FAMILIES)
    for family, examples in EXAMPLES.items():
        assert set(examples) <= set(components(family)), family


@pytest.mark.parametrize("family", FAMILIES)
def test_every_component_has_a_line(family: str) -> None:
    rows = family_table(family).rows
    assert [row[0] for row in rows] == list(components(family))
    assert [row[0] for row in rows if not row[1]] == []


@pytest.mark.parametrize(("family", "name"), ALL)
def test_an_example_parses_and_is_what_it_shows(family: str, name: str) -> None:
    place = FAMILIES[family]
    chosen = place.choice.choose(example_table(family, name))
    assert (chosen.name, chosen.target) == (name, components(family)[name])
    table = tomllib.loads(example(family, name))
    for part in place.heading.strip("[]").split("."):
        table = table[part]
        table = table[0] if isinstance(table, list) else table
    if place.within:
        table = table[place.within]
    assert place.choice.choose(table) == chosen


@pytest.mark.parametrize("name", [name for name in components("rewards") if name != "verifiers" or find_spec(name)])
def test_the_reward_of_an_example_can_be_built(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_reward.py").write_text("def compute_score(data_source, solution_str, ground_truth): return 1.0\n")
    (tmp_path / "my_plugin.py").write_text(
        "def preprocess(row, response): return ''\ndef postprocess(reply): return 1\n"
    )
    models = dict.fromkeys(("judge", "preference", "prm", "sentences"))
    make_reward(example_table("rewards", name), models)


@pytest.mark.parametrize(("family", "name"), ALL)
def test_every_setting_is_in_the_table_with_its_default(family: str, name: str) -> None:
    fields = settings_of(components(family)[name]).model_fields
    rows = settings(family, name) if fields else {}
    for setting, info in fields.items():
        inner = [row for row in rows if row == setting or row.startswith(f"{setting}.")]
        assert inner, setting
        if setting not in rows:
            continue
        default = info.get_default(call_default_factory=True)
        choices = [mark for mark in info.metadata if isinstance(mark, Choice)]
        if info.is_required():
            assert rows[setting][2] == "required"
        elif default is None:
            assert rows[setting][2] == "not set"
        elif not choices:
            assert rows[setting][2] == toml(default)
        assert rows[setting][0], setting


def test_bounds_types_and_alternatives() -> None:
    length = settings("rules", "length")
    assert length["max_length"][:3] == ("int", ">= 0", "not set")
    assert length["unit"][:3] == ("text", "", '"words"')
    assert "words | characters" in length["unit"][3]
    assert settings("losses", "clip")["dual"][:3] == ("float", "> 1", "not set")
    policy = settings("stages", "policy")
    assert policy["advantage"][:3] == ("advantage", "", '"grpo"')
    assert policy["model"][:3] == ("name in [models]", "", "required")
    assert policy["sampling.top_p"][:3] == ("float", "> 0, <= 1", "1.0")
    assert policy["critic"][:3] == ("table", "", "not set")
    assert settings("rewards", "sum")["parts.NAME.weight"][:3] == ("float", "", "1.0")


def test_rare_settings_are_shown_on_demand() -> None:
    (few,), many = (settings_tables("stages", "policy", everything=everything) for everything in (False, True))
    assert len(few.rows) < len(many[0].rows)
    assert "--all" in few.note
    assert [table.title for table in settings_tables("rewards", "rule")] == [
        "settings of rule",
        "settings of all rewards",
    ]


def test_a_name_of_several_families_shows_them_all() -> None:
    assert find("clip") == ["rewards", "losses"]
    assert find("arithmetic") == ["rules", "data"]
    assert find("judge") == ["rewards", RECIPES]
    assert [one.family for one in described(["clip"])] == ["rewards", "losses"]
    assert [one.family for one in described(["losses", "clip"])] == ["losses"]
    with pytest.raises(UserError, match='"length"'):
        described(["lenght"])
    with pytest.raises(UserError, match='"rules"'):
        described(["rule", "length"])
    with pytest.raises(UserError, match="show FAMILY NAME"):
        described(["rules", "length", "clip"])


def test_recipes_that_run_on_a_cpu_come_first() -> None:
    alone = [row[1] in ("CPU only", "init") for row in recipe_table().rows]
    assert alone == sorted(alone, reverse=True)
    needs = {row[0]: row[1] for row in recipe_table().rows}
    assert (needs["own_reward"], needs["gsm8k"]) == ("init", "model, data")
    assert recipe_table().rows[0][0] == "quickstart"
    assert "quickstart.toml" in describe(RECIPES, "quickstart").about


@pytest.mark.parametrize("arguments", [(), *((name,) for name in get_args(FamilyName))])
def test_list_prints_tables_and_json(arguments: tuple[str, ...]) -> None:
    listed = call("list", *arguments)
    assert (listed.status, listed.err) == (0, "")
    table = json.loads(call("list", *arguments, "--json").out)
    assert all(str(row[0]) in listed.out for row in table["rows"])


def test_show_prints_settings_and_an_example() -> None:
    shown = call("show", "rules", "length")
    assert shown.status == 0
    assert "max_length" in shown.out
    assert example("rules", "length") in shown.out
    (one,) = json.loads(call("show", "rules", "length", "--json").out)
    assert (one["family"], one["name"], one["example"]) == ("rules", "length", example("rules", "length"))
    assert call("show", "lenght").status == 2
    assert 'Did you mean "rules"?' in call("list", "rulez").err
