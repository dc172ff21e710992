"""What a recipe can name: the components of each family, their settings, and an example of each.

    families()["rules"]                       {"absent": absent, "arithmetic": arithmetic, …}
    family_table("rules")                     one line about each
    settings_tables("rules", "length")        its settings, with type, bounds, default and description
    example("rules", "length")                a TOML table that parses

The commands `list` and `show` and the reference of the documentation are made of these.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rewardsmith.config import Choice, import_name, settings_of, summary
from rewardsmith.console import Table
from rewardsmith.data import SOURCE
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.recipe import ModelChoice, StageChoice, TrackerChoice, toml
from rewardsmith.recipe_files import find_recipe, recipe_names, shipped_recipes
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.rule import RuleChoice
from rewardsmith.runs.settings_table import narrow, settings_table
from rewardsmith.trainers.stages import AdvantageChoice, LossChoice, PreferenceLoss, ReductionChoice


@dataclass(frozen=True)
class Family:
    """Components that a recipe chooses among, and where in a recipe they stand."""

    about: str
    choice: Choice
    heading: str  # of the TOML table in which one is chosen
    within: str = ""  # the setting of that table that chooses it; "": its own `type`


def _choice(annotated: Any) -> Choice:
    return next(mark for mark in annotated.__metadata__ if isinstance(mark, Choice))


FAMILIES: Mapping[str, Family] = {
    "rewards": Family("what scores answers", REWARD, "[stages.reward]"),
    "rules": Family(
        "programs that score one answer, in rewards of type rule", _choice(RuleChoice), "[stages.reward]", "rule"
    ),
    "advantages": Family("advantage estimators of a policy stage", _choice(AdvantageChoice), "[stages.advantage]"),
    "losses": Family("losses of a policy stage", _choice(LossChoice), "[stages.loss]"),
    "reductions": Family("how the losses of tokens become one number", _choice(ReductionChoice), "[stages.reduction]"),
    "preference-losses": Family("losses of a reward_model stage", _choice(PreferenceLoss), "[stages.loss]"),
    "data": Family("where prompts and demonstrations come from", SOURCE, "[data.train]"),
    "models": Family("what runs a model", _choice(ModelChoice), "[models.policy]"),
    "stages": Family("what a recipe does, in order", _choice(StageChoice), "[[stages]]"),
    "trackers": Family("where metrics are also written", _choice(TrackerChoice), "[[trackers]]"),
}

RECIPES = "recipes"
"""What `list` shows apart from the families."""

FamilyName = Literal[
    "rewards", "rules", "advantages", "losses", "reductions", "preference-losses", "data", "models", "stages",
    "trackers", "recipes",
]  # fmt: skip


def families() -> Mapping[str, Mapping[str, Any]]:
    """Return by family the components by name: functions and classes."""
    return {name: components(name) for name in FAMILIES}


def components(family: str) -> Mapping[str, Any]:
    """Return the functions and classes of one family by name."""
    if family not in FAMILIES:
        raise UserError(f"there is no family {family!r}.{nearest(family, FAMILIES)} Known: {listing(FAMILIES)}")
    found: Mapping[str, Any] = import_name(FAMILIES[family].choice.table)
    return found


def _component(family: str, name: str) -> Any:
    known = components(family)
    if name not in known:
        raise UserError(f"{family} has no {name!r}.{nearest(name, known)} Known: {listing(known)}")
    return known[name]


def find(name: str) -> list[str]:
    """Return the families that have a component, and `recipes` for a shipped one; a `UserError` if there is none."""
    found = [family for family, known in families().items() if name in known]
    found += [RECIPES] if name.replace("-", "_") in shipped_recipes() else []
    if not found:
        known = {each for names in families().values() for each in names} | set(shipped_recipes())
        raise UserError(f"nothing is named {name!r}.{nearest(name, known)} `rewardsmith list` shows what there is")
    return found


@dataclass(frozen=True)
class Described:
    """A component for people and programs: what it is, its settings, and an example."""

    family: str
    name: str
    about: str  # its documentation
    tables: Sequence[Table]
    example: str  # TOML, or for a recipe the commands that use it

    def parts(self) -> list[Table | str]:
        """Return it for the terminal."""
        return [f"{self.name} ({self.family})\n\n{self.about}\n", *map(narrow, self.tables), self.example]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**vars(self), "tables": [table.as_json() for table in self.tables]}


def described(words: Sequence[str], *, everything: bool = False) -> list[Described]:
    """Return what `show NAME` or `show FAMILY NAME` prints: every component of that name."""
    if not 1 <= len(words) <= 2:
        raise UserError("write rewardsmith show NAME, or rewardsmith show FAMILY NAME, such as: show rules math")
    *family, name = words
    return [describe(one, name, everything=everything) for one in family or find(name)]


def describe(family: str, name: str, *, everything: bool = False) -> Described:
    """Return one component, or a shipped recipe."""
    if family == RECIPES:
        file = find_recipe(name)
        needs, title = recipe_facts(file)
        commands = "".join(f"rewardsmith {command} {name}\n" for command in ("explain", "run", "init"))
        return Described(family, name, f"{title}\nneeds: {', '.join(needs) or NOTHING}\nfile: {file}", (), commands)
    about = inspect.getdoc(_component(family, name)) or ""
    return Described(family, name, about, settings_tables(family, name, everything=everything), example(family, name))


# ---- one line about each --------------------------------------------------------------------------------------------


def overview() -> Table:
    """Return the families, with a line about each."""
    rows: list[tuple[str, int, str]] = [
        (name, len(components(name)), family.about) for name, family in FAMILIES.items()
    ]
    rows.append((RECIPES, len(recipe_names()), "recipes that are part of the package"))
    note = "rewardsmith list FAMILY shows its names; rewardsmith show NAME shows the settings of one"
    return Table("", {"family": "text", "names": "count", "what they are": "text"}, rows, note)


def family_table(family: str) -> Table:
    """Return the names of a family, with a line about each."""
    if family == RECIPES:
        return recipe_table()
    rows = [(name, summary(target)) for name, target in components(family).items()]
    note = f"rewardsmith show {family} NAME shows the settings of one, with an example"
    return Table(f"{family}: {FAMILIES[family].about}", {"name": "text", "what it is": "text"}, rows, note)


NOTHING = "CPU only"
"""What a recipe needs that runs on a CPU, with nothing from outside."""


def recipe_table() -> Table:
    """Return the shipped recipes: those first that run on a CPU."""
    facts = [(name, *recipe_facts(file)) for name, file in recipe_names().items()]
    rows = [(name, ", ".join(needs) or NOTHING, title) for name, needs, title in facts]
    rows.sort(key=lambda row: (row[0] != "quickstart", row[1] not in (NOTHING, "init"), row[0]))
    note = "rewardsmith run NAME runs one; rewardsmith init NAME writes a copy, with its data where it has some"
    return Table("recipes", {"name": "text", "needs": "text", "what it shows": "text"}, rows, note)


def recipe_facts(file: Path) -> tuple[list[str], str]:
    """Return (what a recipe needs beyond this package, its title)."""
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    models, data = table.get("models", {}).values(), table.get("data", {}).values()
    needs = [
        *(["cluster"] if "scale" in table else []),
        *(["server"] if any(model.get("type") in ("server", "managed") for model in models) else []),
        *(["model"] if any(not str(model.get("init", "tiny-")).startswith("tiny-") for model in models) else []),
        *(["data"] if any("path" in source and not _by_init(source) for source in data) else []),
        *(["init"] if any(map(_by_init, data)) else []),
    ]
    return needs, str(table.get("title", ""))


def _by_init(source: Mapping[str, Any]) -> bool:
    """Whether the rows of a data table are written by `rewardsmith init`."""
    return str(source.get("made_by", "")).startswith("rewardsmith init")


# ---- settings -------------------------------------------------------------------------------------------------------


def settings_tables(family: str, name: str, *, everything: bool = True) -> list[Table]:
    """Return the settings of a component, then those that all of its family have in their place.

    Without `everything` these, and rare settings, are left out.
    """
    target, slot = _component(family, name), FAMILIES[family].choice.slot
    tables = [settings_table(settings_of(target), f"settings of {name}", everything=everything)]
    if slot is not None and everything:
        tables.append(settings_table(slot, f"settings of all {family}"))
    return [table for table in tables if table.rows]


# ---- examples -------------------------------------------------------------------------------------------------------

_RULE = {"type": "rule", "rule": "math"}
_JUDGE = {"type": "rubric", "model": "judge"}
_PARTS = {"answer": _RULE, "form": {"type": "rule", "rule": "has_boxed", "weight": 0.1}}
_DATA = {"data": "train", "steps": 100}

EXAMPLES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "rewards": {
        "rule": {"rule": "math"},
        "verl_function": {"path": "my_reward.py", "name": "compute_score"},
        "trl_function": {"path": "my_reward.py", "name": "reward_brevity"},
        "verifiers": {"taskset": "my-environment"},
        "labels": {"path": "labels.jsonl"},
        "remote": {"url": "http://127.0.0.1:8080"},
        "steps": {"truth": "arithmetic", "right": 1.0, "wrong": -1.0},
        "rubric": {"model": "judge", "votes": 3, "request": {"temperature": 0.7}},
        "verifier": {"model": "judge"},
        "judge": {"model": "judge", "template": "judge"},
        "plugin": {"model": "judge", "file": "my_plugin.py"},
        "classifier": {"model": "preference", "activation": "sigmoid"},
        "similarity": {"model": "sentences"},
        "ranking": {"model": "judge", "orders": 2},
        "pairwise": {"model": "judge"},
        "implicit": {"model": "prm", "beta": 0.05},
        "sum": {"parts": _PARTS},
        "product": {"parts": {"answer": _RULE, "fluent": {"type": "rule", "rule": "repetition"}}},
        **{key: {"rule": _RULE, "judge": _JUDGE} for key in ("gate", "fallback", "addon")},
        "mixed": {"rule": _RULE, "judge": _JUDGE, "share": 0.5},
        "cascade": {"parts": {"cheap": {**_RULE, "above": 1.0}, "judge": {"type": "verifier", "model": "judge"}}},
        "route": {"routes": {"math": {**_RULE, "sources": ["math-*"]}, "other": {**_JUDGE, "sources": ["*"]}}},
        "clip": {"reward": _JUDGE, "low": 0.0, "high": 1.0},
        "scale": {"reward": _JUDGE, "factor": 2.0, "offset": -1.0},
        "shape": {"reward": _JUDGE, "points": [[0.0, 0.0], [0.5, 0.2], [1.0, 1.0]]},
        "standardise": {"reward": _JUDGE},
    },
    "rules": {
        "absent": {"strings": ["<|im_start|>"]},
        "choice": {"letters": "ABCD"},
        "gsm8k": {"extract": ["hash"]},
        "length": {"max_length": 200, "soft": 50, "unit": "words"},
        "numeric": {"relative": 0.01},
        "regex": {"pattern": "#### [0-9]+$"},
        "tags": {"tags": ["think", "answer"]},
    },
    "advantages": {"gae": {"discount": 1.0, "lam": 0.95}, "rloo": {"leave_one_out": "exact"}},
    "losses": {"clip": {"low": 0.2, "high": 0.28}, "gspo": {"low": 3e-4, "high": 4e-4}},
    "reductions": {"constant-length": {"length": 1024}},
    "data": {
        "arithmetic": {"operations": 3},
        "jsonl": {"path": "data/train.jsonl", "prompt_column": "question", "answer_column": "answer"},
        "parquet": {"path": "data/train.parquet"},
        "reasoning-gym": {"task": "leg_counting"},
    },
    "models": {
        "embedded": {"init": "HuggingFaceTB/SmolLM2-135M-Instruct", "lora": {"rank": 16}},
        "server": {"urls": ["http://localhost:8000/v1"]},
        "managed": {"command": "vllm", "model": "Qwen/Qwen2.5-7B-Instruct", "devices": [1]},
        "sentences": {"init": "BAAI/bge-large-en-v1.5"},
    },
    "stages": {
        "sft": {"model": "policy", **_DATA, "optimizer": {"lr": 1e-5}},
        "reward_model": {"model": "preference", **_DATA},
        "process_model": {
            "model": "policy", **_DATA,
            "reward": {"type": "sum", "parts": {"answer": _RULE, "process": {"type": "implicit", "model": "prm"}}},
        },
        "policy": {"model": "policy", **_DATA, "rollouts_per_prompt": 8, "reward": _RULE, "advantage": "rloo"},
        "evaluate": {"model": "policy", "data": "held_out", "reward": _RULE},
        "evaluate_reward": {"kind": "rankings", "data": "held_out", "reward": {"type": "ranking", "model": "judge"}},
        "audit": {"data": "held_out", "reward": _RULE, "require": {"attack": 0.0}},
        "generate": {"model": "policy", "data": "train"},
    },
}  # fmt: skip
"""Settings of the examples, by family and name; a component without an entry needs none."""


def example_table(family: str, name: str) -> dict[str, Any]:
    """Return an example of a component as the table that chooses it."""
    _component(family, name)
    return {"type": name, **EXAMPLES.get(family, {}).get(name, {})}


def example(family: str, name: str) -> str:
    """Return an example of a component as TOML, below the heading of its place in a recipe."""
    place, table = FAMILIES[family], example_table(family, name)
    if place.within:
        table = {"type": place.within, place.within: table if len(table) > 1 else name}
    return "\n".join([place.heading, *(f"{key} = {toml(value)}" for key, value in table.items())]) + "\n"
