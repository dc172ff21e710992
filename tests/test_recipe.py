"""Recipes: what is accepted, what is refused and with which words, overrides, and the explanation."""

import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from rewardsmith.algorithms.advantages import ADVANTAGES
from rewardsmith.algorithms.policy_losses import POLICY_LOSSES, REDUCTIONS
from rewardsmith.cli import main
from rewardsmith.config import Choice, Settings, build, settings_of
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import explain, load_recipe, override, parse_recipe, toml
from rewardsmith.runs.preflight import warnings

RECIPES = sorted(Path(__file__).parents[1].glob("recipes/**/*.toml"))

REWARD = {"type": "rule", "rule": "exact"}


def table(**policy: Any) -> dict[str, Any]:
    """Return a small valid recipe; keyword arguments change its policy stage."""
    stage = {"type": "policy", "model": "policy", "data": "train", "steps": 2, "reward": REWARD} | policy
    return {
        "models": {"policy": {"init": "tiny-llama"}},
        "data": {"train": {"type": "arithmetic"}},
        "stages": [stage],
    }


def problems(recipe: dict[str, Any]) -> dict[str, str]:
    """Return the problems of a recipe: path -> message with the value in front."""
    with pytest.raises(RecipeError) as caught:
        parse_recipe(recipe)
    return {p.path: f"{p.value} {p.message}".strip() for p in caught.value.problems}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_shipped_recipe_is_valid_and_its_explanation_is_the_same_recipe(path: Path) -> None:
    recipe = load_recipe(path)
    text = explain(recipe)
    again = parse_recipe(tomllib.loads(text))
    assert again == recipe
    assert explain(again) == text


def test_every_setting_of_every_shipped_recipe_is_described() -> None:
    for path in RECIPES:
        for line in explain(load_recipe(path)).splitlines():
            assert not line or line.startswith("[") or "  # " in line or line.startswith("# "), line


def test_defaults_are_filled_in_by_the_component_itself() -> None:
    stage = parse_recipe(table(loss="gspo")).stages[0].settings
    assert stage.loss.arguments() == {"low": 3e-4, "high": 4e-4}
    assert stage.advantage.name == "grpo"
    assert stage.advantage.slot.combine == "before"


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"stepz": 1}, "stages.0.stepz", ["1", "unknown setting", '"policy"', 'Did you mean "steps"?']),
        ({"steps": "2"}, "stages.0.steps", ['"2"', "integer"]),
        ({"steps": 0}, "stages.0.steps", ["0", "greater than or equal to 1"]),
        ({"model": "polcy"}, "stages.0.model", ['"polcy"', "[models.polcy]", 'Did you mean "policy"?']),
        ({"type": "polcy"}, "stages.0.type", ["unknown stage", 'Did you mean "policy"?', "evaluate, evaluate_reward"]),
        ({"reward": {}}, "stages.0.reward", ["has no type", "route, rubric, rule, scale"]),
        ({"advantage": {"type": "rlo"}}, "stages.0.advantage.type", ['"rlo"', 'Did you mean "rloo"?', "module:Name"]),
        ({"advantage": {"type": "gae", "lam": 1.5}}, "stages.0.advantage.lam", ["1.5", "less than or equal to 1"]),
        ({"advantage": {"type": "gae", "combin": "after"}}, "stages.0.advantage.combin", ['mean "combine"']),
        ({"loss": {"type": "clip", "low": float("nan")}}, "stages.0.loss.low", ["nan", "finite"]),
        ({"reduction": "constant-length"}, "stages.0.reduction.length", ["is missing", "tokens to divide by"]),
        ({"kl": {"place": "los"}}, "stages.0.kl.place", ['"los"', "one of reward, loss", 'mean "loss"']),
        ({"optimizer": {"lr": 0}}, "stages.0.optimizer.lr", ["0", "greater than 0"]),
        ({"optimizer": 3}, "stages.0.optimizer", ["3", "must be a table"]),
        ({"name": ""}, "stages.0.name", ["at least 1 character"]),
        ({"kl": {"estimator": "k1"}}, "stages.0.kl", ["k1 in the loss has no gradient"]),
        ({"reward": {"type": "builtins:int"}}, "stages.0.reward.type", ["class with score()"]),
        ({"reward": {"type": "a:b:c"}}, "stages.0.reward.type", ["write module:Name"]),
        ({"loss": {"type": "math:sqrt"}}, "stages.0.loss.type", ["4 positional arguments"]),
        ({"reward": {"type": "sum", "parts": {}}}, "stages.0.reward.parts", ["at least 1"]),
        ({"reward": {"type": "no_such_module:Reward"}}, "stages.0.reward.type", ["cannot import", "no_such_module"]),
        ({"reward": {"type": "math:sqroot"}}, "stages.0.reward.type", ["has no 'sqroot'", "sqrt"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_path_its_value_and_a_remedy(change: dict, path: str, words: list[str]) -> None:
    found = problems(table(**change))
    assert list(found) == [path]
    for word in words:
        assert word in found[path]


def test_a_mistake_deep_inside_a_composed_reward_has_the_whole_path() -> None:
    part = {"type": "rule", "rule": {"type": "exat"}, "weigth": 2.0}
    found = problems(table(reward={"type": "sum", "parts": {"answer": part}}))
    assert 'Did you mean "exact"?' in found["stages.0.reward.parts.answer.rule.type"]
    assert 'Did you mean "weight"?' in found["stages.0.reward.parts.answer.weigth"]


def test_all_mistakes_are_reported_at_once() -> None:
    recipe = table(steps=-1, loss="clp") | {"sed": 3}
    recipe["models"]["policy"] = {}
    assert set(problems(recipe)) == {"models.policy", "stages.0.steps", "stages.0.loss.type", "sed"}


def test_a_users_own_classes_and_functions_are_found_next_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "my_own_rewards_f3a.py").write_text(
        "from rewardsmith import Score\n"
        "class Length:\n"
        "    '''Longer is better.'''\n"
        "    def __init__(self, *, per_character: float = 0.5): self.per_character = per_character\n"
        "    async def score(self, group):\n"
        "        return tuple(Score(self.per_character * len(r.text)) for r in group.rollouts)\n"
        "def raw(inputs, *, discount: float = 1.0):\n"
        "    '''The reward itself.'''\n"
        "    return inputs.rewards_BT\n"
    )
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[models.policy]\ninit = "tiny-llama"\n[data.train]\ntype = "arithmetic"\n[[stages]]\ntype = "policy"\n'
        'model = "policy"\ndata = "train"\nsteps = 1\nadvantage = "my_own_rewards_f3a:raw"\n'
        'reward = { type = "my_own_rewards_f3a:Length", per_character = 2.0 }\n'
    )
    loaded = load_recipe(recipe)
    assert loaded.stages[0].settings.reward.build().per_character == 2.0
    assert "Longer is better" in explain(loaded)
    with pytest.raises(RecipeError, match=r'per_char = 1[\s\S]*Did you mean "per_character"\?'):
        load_recipe(recipe, ["stages.0.reward.per_char=1"])


def test_a_users_module_that_raises_is_reported_and_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module_9c1.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    found = problems(table(reward="broken_module_9c1:Reward"))
    assert "ZeroDivisionError: division by zero" in found["stages.0.reward.type"]


# ---- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"title = ", "not valid TOML"),
        (b"a = 1\nb = = 2\n", "line 2"),
        (b"\xff\xfe", "utf-8"),
        (b"x = " + b"[" * 5000, "not valid TOML"),
    ],
)
def test_a_file_that_is_not_a_recipe(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words):
        load_recipe(path)


def test_a_file_that_is_not_there_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").touch()
    with pytest.raises(UserError, match=r'Did you mean "quickstart.toml"\?'):
        load_recipe(tmp_path / "quikstart.toml")
    with pytest.raises(UserError, match="there is no recipe"):
        load_recipe(tmp_path / "nowhere" / "x.toml")
    with pytest.raises(UserError, match="cannot read"):
        load_recipe(tmp_path)


# ---- overrides ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("a.b=1", {"a": {"b": 1}}),
        ("a.b=[1, 2]", {"a": {"b": [1, 2]}}),
        ('a.b={ type = "x" }', {"a": {"b": {"type": "x"}}}),
        ('a.b="1"', {"a": {"b": "1"}}),
        ("a.b=plain text", {"a": {"b": "plain text"}}),
        ("a.b=", {"a": {"b": ""}}),
        ("a.b=1\nc=2", {"a": {"b": "1\nc=2"}}),
        ('a."b.c"=1', {"a": {"b": "old", "b.c": 1}}),
        ("n.new.deep=1", {"a": {"b": "old"}, "n": {"new": {"deep": 1}}}),
    ],
)
def test_overrides_are_toml_or_text(change: str, expected: dict[str, Any]) -> None:
    recipe: dict[str, Any] = {"a": {"b": "old"}}
    override(recipe, change)
    assert recipe == expected


@pytest.mark.parametrize("key", ["0", "sft", "cold"])
def test_an_entry_of_a_list_is_named_by_number_type_or_name(key: str) -> None:
    recipe: dict[str, Any] = {"stages": [{"type": "sft", "name": "cold"}, {"type": "policy"}]}
    override(recipe, f"stages.{key}.steps=5")
    assert recipe["stages"][0]["steps"] == 5


def test_an_override_of_steps_takes_the_place_of_epochs_and_the_other_way_round() -> None:
    recipe = {"stages": [{"type": "policy", "epochs": 2, "reward": {"learn": {"epochs": 3}}}]}
    override(recipe, "stages.policy.steps=10")
    override(recipe, "stages.0.reward.learn.steps=1")
    assert recipe["stages"] == [{"type": "policy", "steps": 10, "reward": {"learn": {"epochs": 3, "steps": 1}}}]
    override(recipe, "stages.0.epochs=1")
    assert "steps" not in recipe["stages"][0]


def test_an_override_goes_into_a_choice_that_was_given_by_name() -> None:
    recipe = {"loss": "clip"}
    override(recipe, "loss.high=0.3")
    assert recipe == {"loss": {"type": "clip", "high": 0.3}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("steps", "key.path=value"),
        ("a..b=3", "cannot read the key"),
        ("stages.7.x=1", "2 entries"),
        ("stages.polcy.x=1", 'Did you mean "policy"'),
        ("stages.policy.x=1", "several entries match"),
        ("seed.x=1", "not a table"),
    ],
)
def test_an_override_that_cannot_be_applied(change: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        override({"seed": 1, "stages": [{"type": "policy"}, {"type": "policy"}]}, change)


# ---- components ---------------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(PLAIN)
def test_plain_values_survive_toml(value: Any) -> None:
    assert tomllib.loads(f"value = {toml(value)}") == {"value": value}


def test_settings_are_the_keyword_only_parameters() -> None:
    def component(data: object, *, needed: int, given: str = "x") -> None: ...

    fields = settings_of(component).model_fields
    assert {name: field.is_required() for name, field in fields.items()} == {"needed": True, "given": False}


def test_build_reports_like_a_recipe() -> None:
    choice = Choice("reward", "rewardsmith.rewards:REWARDS")
    with pytest.raises(RecipeError, match=r'Did you mean "exact"\?'):
        build(choice, {"type": "rule", "rule": "exat"})
    with pytest.raises(RecipeError, match="has no type"):
        build(choice, {})


@pytest.mark.parametrize("room", ["advantage", "loss", "reduction"])
def test_the_explanation_of_every_named_algorithm_is_a_recipe(room: str) -> None:
    names = {"advantage": ADVANTAGES, "loss": POLICY_LOSSES, "reduction": REDUCTIONS}[room]
    for name in names:
        chosen = {"type": name} | ({"length": 7} if name == "constant-length" else {})
        wanted = table(**{room: chosen}, **({"critic": {"model": "critic"}} if name == "gae" else {}))
        wanted["models"]["critic"] = {"copy_of": "policy", "head": "scalar"}
        if name == "process_value":
            wanted["models"]["prm"] = {"copy_of": "policy"}
            process = {"type": "implicit", "model": "prm", "normalise": "none"}
            wanted["stages"][0]["reward"] = {"type": "sum", "parts": {"answer": REWARD, "process": process}}
        recipe = parse_recipe(wanted)
        assert parse_recipe(tomllib.loads(explain(recipe))) == recipe


def test_one_setting_of_a_default_leaves_the_rest_of_it() -> None:
    stage = parse_recipe(table(optimizer={"warmup": 3}, advantage={"scale": "none"})).stages[0].settings
    assert (stage.optimizer.lr, stage.optimizer.warmup) == (1e-6, 3)
    assert (stage.advantage.name, stage.advantage.settings.scale) == ("grpo", "none")


def test_two_stages_cannot_have_one_name() -> None:
    recipe = table()
    recipe["stages"] *= 2
    assert problems(recipe) == {"stages.1.name": '"policy" another stage has this name: give each its own'}


def test_a_setting_of_a_few_words_shows_them_once() -> None:
    class Few(Settings):
        do: Literal["drop", "stop"] = Field(default="drop", description="what happens")
        then: Literal["drop", "stop"] = Field(default="drop", description="drop it, or stop")
        perhaps: Literal["a1", "b1"] | None = Field(default=None, description="which")
        number: int = Field(default=1, description="how many")

    assert explain(Few()).splitlines() == [
        'do = "drop"    # what happens (drop | stop)',
        'then = "drop"  # drop it, or stop',
        "# perhaps =    # which (a1 | b1) (not set)",
        "number = 1     # how many",
    ]


# ---- what is seldom meant -----------------------------------------------------------------------------------------


def test_a_loss_of_whole_answers_with_a_mean_over_tokens_is_warned_of() -> None:
    for change in ({"loss": "gspo"}, {"loss": "gmpo", "reduction": "sequence-mean-token-sum"}):
        (warning,) = warnings(parse_recipe(table(**change)))
        assert warning.startswith("stages.0.reduction = ")
        assert 'Set reduction = "sequence-mean-token-mean"' in warning
    assert not list(warnings(parse_recipe(table(loss="gspo", reduction="sequence-mean-token-mean"))))


def test_explain_shows_a_warning_apart_from_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(explain(parse_recipe(table(loss="gspo"))))
    monkeypatch.setattr("sys.argv", ["rewardsmith", "explain", str(file)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert not caught.value.code
    shown = capsys.readouterr()
    assert shown.err.startswith("warning: stages.0.reduction")
    assert tomllib.loads(shown.out)["stages"][0]["loss"]["type"] == "gspo"


def test_explain_hides_rare_settings_that_have_their_default() -> None:
    recipe = load_recipe(Path(__file__).parents[1] / "recipes/quickstart.toml", ["stages.policy.sampling.top_k=5"])
    short, full = explain(recipe, everything=False), explain(recipe)
    assert "top_k = 5" in short
    assert "min_tokens" not in short
    assert "min_tokens" in full
    assert "--all" in short
    assert "--all" not in full
    assert parse_recipe(tomllib.loads(short)) == parse_recipe(tomllib.loads(full)) == recipe
