"""What a replay needs to know of the stage that wrote a file of rollouts: its estimator, streams and selection.

It is read from the run's `recipe.toml`, which has every default. The rest of the recipe, such as the modules of its
rewards, need not be there any more.
"""

from __future__ import annotations

import json
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from rewardsmith.config import Chosen, problems_in
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.masking import shown
from rewardsmith.recipe import toml
from rewardsmith.rewards.base import Part
from rewardsmith.runs.folder import METRICS, RECIPE
from rewardsmith.trainers.settings import SelectSettings
from rewardsmith.trainers.stages import ADVANTAGE, KlSettings, OverlongSettings
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import Score

GREEDY = "the rewards of greedy answers"
"""What estimators with a greedy baseline read, and no run stores."""


@dataclass(frozen=True)
class LoweredPart:
    """A part of the reward whose weight the watch of the stage has lowered."""

    name: str
    factors: Sequence[tuple[int, float]] = ()  # after which step, and what the weight of the recipe is multiplied by
    in_validation: bool = True  # whether the validations of the stage have this reward

    def factor_after(self, step: int) -> float:
        """Return the factor in force once a step is done; 1 before the first look."""
        found = bisect_right(self.factors, step, key=lambda one: one[0])
        return self.factors[found - 1][1] if found else 1.0


@dataclass(frozen=True)
class ReplayStage:
    """The settings of a policy stage from which advantages follow."""

    name: str
    advantage: Chosen
    parts: Mapping[str, Part] = field(default_factory=dict)  # the streams of its reward; none where it is no sum
    implicit: frozenset[str] = frozenset()  # parts that the trainer scored, token by token
    overlong: OverlongSettings | None = None
    max_tokens: int = 1
    kl_coefficient: float = 0.0  # of the KL penalty in the reward
    select: SelectSettings = SelectSettings()  # noqa: RUF009 frozen
    trusts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # of the implicit parts, by step
    lowered: LoweredPart | None = None

    def parts_at(self, step: int, parts: Mapping[str, Part]) -> Mapping[str, Part]:
        """Return parts with the weights of a step: a factor that is in force after a look counts from the next one."""
        if self.lowered is None or self.lowered.name not in parts:
            return parts
        own = parts[self.lowered.name]
        return {**parts, self.lowered.name: replace(own, weight=own.weight * self.lowered.factor_after(step - 1))}

    @property
    def needs(self) -> str:
        """Where the values that the estimator reads come from; see `values_from`."""
        from rewardsmith.algorithms.advantages import values_from  # noqa: PLC0415 loads torch; so did the choice

        return values_from(self.advantage.target)

    @property
    def missing(self) -> str:
        """What the estimator reads and the run does not store; empty where all is there."""
        return GREEDY if self.needs == "greedy" else ""

    def has_inputs(self, record: GroupRecord, scores: Sequence[Score]) -> bool:
        """Whether a line has what the advantages of these scores are computed from besides the rewards."""
        columns = [record.token_values] if self.needs == "critic" else []
        columns += [record.token_kl] if self.kl_coefficient else []
        voting = [i for i, score in enumerate(scores) if score.ok]
        return all(column and all(column[i] is not None for i in voting) for column in columns)


def find_stage(file: Path) -> ReplayStage | None:
    """Return the policy stage of the run that wrote a file of rollouts; None where it is of no such stage."""
    folder = file.parent.parent
    recipe = folder / RECIPE
    if file.parent.name != "rollouts" or not recipe.is_file():
        return None
    try:
        stages = tomllib.loads(recipe.read_text(encoding="utf-8")).get("stages", [])
        table = next((one for one in stages if one["name"] == file.stem and one["type"] == "policy"), None)
        return None if table is None else _read_stage(table, folder / METRICS)
    except PydanticCustomError as error:
        raise RecipeError(str(recipe), problems_in(error, "advantage")) from None
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{str(recipe)!r}: the stage {file.stem!r} cannot be read ({error}): restore the file"
        ) from None


def _read_stage(table: Mapping[str, Any], metrics: Path) -> ReplayStage:
    reward = table.get("reward", {})
    terms = reward.get("parts", {}) if reward.get("type") == "sum" else {}
    parts = {name: Part(term.get("weight", 1.0), term.get("discount")) for name, term in terms.items()}
    implicit = frozenset(name for name, term in terms.items() if term.get("type") == "implicit")
    trusts = _read_metrics(metrics, table["name"], {f"learned/{name}/trust": name for name in implicit})
    overlong = table.get("overlong")
    return ReplayStage(
        table["name"],
        ADVANTAGE.choose(table["advantage"]),
        {name: part for name, part in parts.items() if part.weight},
        implicit,
        None if overlong is None else OverlongSettings.model_validate(overlong),
        table["sampling"]["max_tokens"],
        KlSettings.model_validate(table.get("kl", {})).in_reward[0],
        SelectSettings.model_validate(table.get("select", {})),
        trusts,
        _read_lowered(table, metrics),
    )


def _read_lowered(table: Mapping[str, Any], metrics: Path) -> LoweredPart | None:
    """Return the part whose weight the watch lowers, with the factors that it has logged; None where there is none."""
    name = table.get("audit", {}).get("lower", "")
    if not name:
        return None
    logged = _read_metrics(metrics, table["name"], {"watch/weight": name})
    factors = sorted((step, found[name]) for step, found in logged.items() if name in found)
    return LoweredPart(name, factors, "reward" not in table.get("validation", {}))


def _read_metrics(file: Path, stage: str, names: Mapping[str, str]) -> dict[int, dict[str, float]]:
    """Return metrics of a stage by step, each under the name that `names` gives it; none where it is not logged."""
    found: dict[int, dict[str, float]] = {}
    for line in file.read_bytes().splitlines() if names and file.is_file() else ():
        try:
            row = json.loads(line)
            if row["stage"] == stage:
                metrics = {name: row["metrics"].get(metric) for metric, name in names.items()}
                found[row["step"]] = {name: float(value) for name, value in metrics.items() if value is not None}
        except (ValueError, KeyError, TypeError, AttributeError):  # the run is writing this line
            continue
    return found


def choose_estimator(value: Any, stage: ReplayStage | None = None) -> Chosen:
    """Return the estimator that `--estimator` names; `combine` and `whiten` are those of the stage unless it has them.

    Args:
        value: a name, a table, or a function; text that begins with a brace is an inline table in TOML.
        stage: the stage that wrote the rollouts, None for those of no stage.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = tomllib.loads(f"estimator = {value}")["estimator"]
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise UserError(
                f"cannot read estimator {value[:100]!r} ({error}): write a name, or a table such as"
                """ '{ type = "grpo", scale = "none" }'"""
            ) from None
    table = dict(value) if isinstance(value, Mapping) else {"type": value}
    place: Any = None if stage is None else stage.advantage.slot
    settings = {} if place is None else place.model_dump()
    try:
        chosen = ADVANTAGE.choose({**settings, **table})
        if stage is not None and stage.implicit and _compares(chosen):  # outcomes and tokens are not on one scale
            chosen = ADVANTAGE.choose({**settings, "combine": "after", **table})
    except PydanticCustomError as error:
        raise RecipeError("estimator", problems_in(error, "advantage")) from None
    own = ReplayStage("", chosen)
    if own.missing:
        raise UserError(f"estimator {chosen.name}: it reads {own.missing}, which no run stores: use rloo or grpo")
    if own.needs == "critic" and not (stage and stage.needs == "critic"):
        raise UserError(f"estimator {chosen.name}: the run has no critic to take values from: use rloo or grpo")
    if own.needs == "process" and not (stage and stage.implicit):
        raise UserError(f"estimator {chosen.name}: the run has no implicit reward to take values from: use rloo")
    return chosen


def _compares(chosen: Chosen) -> bool:
    from rewardsmith.algorithms.advantages import compares  # noqa: PLC0415 loads torch; so did the choice

    return compares(chosen.target)


def as_estimator_text(value: Any) -> str | None:
    """Return a table or a function that a program gives for an estimator as `--estimator` has it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _toml("estimator", {**value, "type": _name(value.get("type"))})
    return _name(value)


def _name(value: Any) -> str:
    if isinstance(value, str):
        return value
    place = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    if not callable(value) or "<" in place or place.startswith("__main__:"):
        raise UserError(f"estimator is {shown(value)}: give a name, a table with a type, or a function of a module")
    return place


def as_override_texts(overrides: Mapping[str, Any] | Sequence[str] | str) -> list[str]:
    """Return changes of a recipe that a program gives, `{"seed": 1}` or texts, as the command line has them."""
    if isinstance(overrides, str):
        return [overrides]
    if not isinstance(overrides, Mapping):
        return [str(change) for change in overrides]
    return [f"{key}={_toml('overrides', value)}" for key, value in overrides.items()]


def _toml(argument: str, value: Any) -> str:
    """Return a value that a program gives as TOML on one line, which recipes and their overrides are read from."""
    try:
        return toml(_plain(value))
    except (TypeError, RecursionError):
        raise UserError(
            f"{argument} has the value {shown(value)}: give numbers, texts, true or false, or lists and tables of these"
        ) from None


def _plain(value: Any) -> Any:
    """Return a value as the plain Python value that TOML has a form for, also where it is of a subclass of one."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError
