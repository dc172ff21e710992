"""Which reward `RECIPE[:path]` means."""

import re
from pathlib import Path

import pytest

from rewardsmith import UserError
from rewardsmith.config import Chosen
from rewardsmith.runs.lookup import find_reward
from tests.test_cli import run

MODELS = """
[models.policy]
init = "tiny-llama"

[data.train]
type = "arithmetic"
"""

POLICY = """
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 1
reward = { type = "sum", parts.answer = { type = "rule", rule = "arithmetic" }, parts.same = { type = "rule", rule = "exact" } }
validation = { data = "train", reward = { type = "rule", rule = "exact" } }
"""  # noqa: E501 one table

GREEDY = """
[[stages]]
name = "greedy"
type = "evaluate"
model = "policy"
data = "train"
reward = { type = "rule", rule = "arithmetic" }
"""

TABLE = """
type = "sum"
parts.answer = { type = "rule", rule = "arithmetic" }
parts.same = { type = "rule", rule = "exact", weight = 0.5 }
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "two.toml": MODELS + POLICY + GREEDY,
        "one.toml": MODELS + GREEDY,
        "same.toml": MODELS + GREEDY + GREEDY.replace('"greedy"', '"again"'),
        "reward.toml": TABLE,
        "a:b.toml": MODELS + GREEDY,
        "bad.toml": 'type = "sum"\nparts.answer = { type = "rule", rule = "aritmetic", wieght = 1 }',
        "none.toml": MODELS + '[[stages]]\ntype = "sft"\nmodel = "policy"\ndata = "train"\nsteps = 1',
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def kind(chosen: Chosen) -> str:
    """Return the type of a reward, and the name of its rule if it has one."""
    rule = getattr(chosen.settings, "rule", None)
    return chosen.name if rule is None else f"{chosen.name} {rule.name}"


FOUND = {
    "two.toml:policy": "sum",
    "two.toml:stages.0": "sum",
    "two.toml:stages.0.reward.parts.same": "rule exact",
    "two.toml:policy.reward.parts.same": "rule exact",
    "two.toml:policy.validation.reward": "rule exact",
    "two.toml:greedy": "rule arithmetic",
    "one.toml": "rule arithmetic",
    "same.toml": "rule arithmetic",  # two stages, one reward
    "reward.toml": "sum",
    "reward.toml:parts.same": "rule exact",
    "a:b.toml": "rule arithmetic",
}
REFUSED = {
    "two.toml": "two.toml has several rewards: name one, as in two.toml:policy. Known: greedy, policy, policy.",
    "two.toml:polcy": "two.toml has no reward 'polcy'. Did you mean \"policy\"? Known: greedy, policy, ",
    "two.toml:policy.reward.parts.sme": 'Did you mean "policy.reward.parts.same"?',
    "two.toml:stages.7": "two.toml has no reward 'stages.7'.",
    "none.toml": "none.toml has no reward: none of its stages scores anything",
    "reward.toml:parts.sane": "reward.toml has no reward 'parts.sane'. Did you mean \"parts.same\"?",
    "one.tolm": "there is no recipe or run 'one.tolm'. Did you mean \"one.toml\"?",
    "one.toml:": "cannot read --reward",
}


def test_a_reward_is_found_or_refused_with_what_there_is(place: Path) -> None:
    assert {where: kind(find_reward(where).reward) for where in FOUND} == FOUND
    for where, message in REFUSED.items():
        with pytest.raises(UserError, match=re.escape(message)):
            find_reward(where)


def test_all_problems_of_a_reward_table_are_named(place: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_reward("bad.toml")
    message = str(caught.value)
    assert message.startswith("bad.toml: 2 problems")
    assert 'parts.answer.rule.type = "aritmetic"\n' in message
    assert 'Did you mean "arithmetic"?' in message
    assert "parts.answer.wieght = 1\n" in message
    assert 'Did you mean "weight"?' in message


def test_overrides_apply_to_the_file(place: Path) -> None:
    assert kind(find_reward("two.toml:greedy", ["stages.greedy.reward.rule=exact"]).reward) == "rule exact"
    assert kind(find_reward("reward.toml:parts.same", ["parts.same.rule=arithmetic"]).reward) == "rule arithmetic"
    with pytest.raises(UserError, match="unknown setting"):
        find_reward("two.toml:greedy", ["stages.policy.stesp=3"])


# ---- the models of a run ---------------------------------------------------------------------------------------------

LEARNED = """
[models.base]
init = "tiny-llama"
head = "scalar"
[models.judge]
copy_of = "base"
head = "scalar"
[models.old]
copy_of = "judge"
head = "scalar"
[models.far]
type = "server"
serves = "classify"
urls = ["http://127.0.0.1:9/v1"]
[data.pairs]
type = "jsonl"
path = "pairs.jsonl"
[[stages]]
type = "reward_model"
name = "learn"
model = "judge"
data = "pairs"
steps = 1
[[stages]]
type = "evaluate_reward"
name = "judged"
kind = "pairs"
data = "pairs"
reward = { type = "classifier", model = "judge" }
"""


def run_folder(place: Path, *published: str) -> None:
    (place / "runs" / "one").mkdir(parents=True)
    (place / "runs" / "one" / "recipe.toml").write_text(LEARNED)
    for name in published:
        (place / "runs" / "one" / "models" / name).mkdir(parents=True)


def test_a_run_folder_gives_the_models_that_it_published(place: Path) -> None:
    run_folder(place, "judge", "far")
    trained = ("runs/one/models/judge", None)
    expected = {"base": ("tiny-llama", None), "judge": trained, "old": (None, "judge"), "far": (0, 0)}
    for where in ("runs/one", "runs/one/", "runs/one:judged.reward"):
        found = find_reward(where)
        assert found.reward.name == "classifier"
        models = {n: m.settings for n, m in found.models.items()}
        assert {n: (getattr(m, "init", 0), getattr(m, "copy_of", 0)) for n, m in models.items()} == expected
        assert list(found.warnings) == ["old"]  # of which state it was a copy is unknown


@pytest.mark.parametrize(("published", "remedy"), [((), "RUN:judged"), (("judge",), "runs/one:judged")])
def test_a_recipe_whose_stages_train_the_model_names_the_run_as_remedy(
    place: Path, published: tuple[str, ...], remedy: str
) -> None:
    run_folder(place, *published)
    found = find_reward("runs/one/recipe.toml:judged")
    assert getattr(found.models["judge"].settings, "copy_of", "") == "base"
    assert list(found.warnings) == ["judge"]
    assert found.warnings["judge"].endswith(f"--reward {remedy}")


# ---- explained -------------------------------------------------------------------------------------------------------

JUDGED = (
    TABLE
    + """parts.judge = { type = "judge", model = "judge" }
cache = "verdicts"

[models.judge]
type = "server"
urls = ["http://127.0.0.1:9/v1"]
"""
)


@pytest.mark.parametrize("text", [TABLE, JUDGED], ids=["rules", "judge"])
def test_a_reward_table_is_explained_with_its_models_and_can_be_used_as_it_is(
    text: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "table.toml").write_text(text)
    assert run(monkeypatch, "explain", "table.toml", "parts.same.weight=0.25") == 0
    printed = capsys.readouterr().out
    assert "weight = 0.25" in printed
    (place / "again.toml").write_text(printed)
    again, found = find_reward("again.toml"), find_reward("table.toml", ["parts.same.weight=0.25"])
    assert again == found
    assert ("concurrency = 64" in printed) == ("models" in text)
    assert again.cache == ("verdicts" if "cache" in text else None)
