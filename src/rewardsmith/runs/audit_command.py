"""`rewardsmith audit`: what is not set comes from the stage of the recipe, or of the run, that has the reward."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from rewardsmith.auditing.audit_settings import FileName
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.jobs import JobContext, Result
from rewardsmith.runs.commands import CommandInputs
from rewardsmith.runs.folder import RunFolder
from rewardsmith.runs.lookup import RECIPE, recipe_of
from rewardsmith.storage import write_atomically, writing
from rewardsmith.trainers.evaluate.audit_reward import AuditReward
from rewardsmith.viewer.report import write_report

SHARED = ("data", "rollouts_per_prompt", "prompts_per_step")
"""Settings that an audit takes from a stage as they are."""


class AuditCommand(AuditReward):  # noqa: D101 it has that of the job
    __doc__ = AuditReward.__doc__

    arguments: ClassVar[tuple[str, ...]] = ("reward",)

    require: dict[str, float] = Field(
        default={}, description="--require.NAME LIMIT: a limit of a finding, such as --require.attack 0; repeatable"
    )
    out: FileName | None = Field(default=None, description="write the findings to this JSON file too")
    run_folder: FileName | None = Field(default=None, description="a run folder, to whose report the audit is added")

    @classmethod
    def fill(cls, given: Mapping[str, Any], inputs: CommandInputs, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the settings with those of the stage that has the reward."""
        values = dict(given)
        place = values["reward"]
        found = None
        if isinstance(place, str):
            values["reward"] = inputs.add_reward(place, overrides)
            found = recipe_of(place, overrides)
        if found is None:  # a reward table: there is no stage
            _require_data(values)
            return values
        recipe, stage, run = found
        settings: Any = stage.settings
        audit = getattr(settings, "audit", None)
        for name in SHARED:
            if not values.get(name) and hasattr(settings, name):
                values[name] = getattr(settings, name)
        if hasattr(settings, "sampling"):
            values["sampling"] = settings.sampling.model_dump() | (values.get("sampling") or {})
        for name in audit.model_fields_set if audit is not None else ():
            if name in cls.model_fields and name not in values:
                values[name] = getattr(audit, name)
        _require_data(values)
        if values["data"] in recipe.data:
            inputs.data[values["data"]] = recipe.data[values["data"]]
        inputs.notes += _choose_writer(values, settings, recipe.models, trained=run is not None)
        inputs.notes += _choose_reference(values, settings)
        return values

    async def run(self, context: JobContext) -> Result:
        """Audit the reward, and write the findings where they are wanted."""
        if self.run_folder is not None and not (self.run_folder / RECIPE).is_file():
            place = str(self.run_folder)
            raise UserError(f"run_folder {place!r} is no run folder: it has no {RECIPE}; name one such as runs/NAME")
        if self.out is not None and not self.out.absolute().parent.is_dir():
            raise UserError(f"out {str(self.out)!r}: there is no folder {str(self.out.parent)!r}: make it first")
        result = await super().run(context)
        if self.out is not None:
            with writing(self.out):
                write_atomically(self.out, json.dumps(result.facts["audit"], indent=1, ensure_ascii=False) + "\n")
        if self.run_folder is not None:
            folder = RunFolder(self.run_folder)
            with folder.locked():
                folder.keep_audit("audits", self.name, result.facts["audit"])
                write_report(self.run_folder)
        return result


def _require_data(values: Mapping[str, Any]) -> None:
    if not values.get("data"):
        raise UserError("data is not set, and the reward is not that of a stage: give --data FILE, or data in Python")


def _choose_writer(values: dict[str, Any], settings: Any, models: Mapping[str, Any], *, trained: bool) -> Iterator[str]:
    """Let the model of a stage write answers, unless its weights are random: yield a sentence about that."""
    name = str(getattr(settings, "model", ""))
    model = getattr(models.get(name), "settings", None)
    if values.get("model") is not None or not isinstance(model, ModelSettings) or not hasattr(settings, "sampling"):
        return
    if trained or not (model.init or "tiny").startswith("tiny"):
        values["model"] = name
        return
    yield (
        f"the weights of {name} are random, so it writes no answers: what there is to learn from the reward, and what a"
        " step costs, was not measured. Audit a run of the recipe, or set model"
    )


def _choose_reference(values: dict[str, Any], settings: Any) -> Iterator[str]:
    """Take the reward of the validation as the reference, where a model writes answers: yield a sentence about it."""
    reward = getattr(getattr(settings, "validation", None), "reward", None)
    writes = values.get("model") is not None and values.get("samples") != 0
    if reward is not None and values.get("reference") is None and writes:
        values["reference"] = reward
        yield f"the reference is validation.reward of the stage {settings.name}: set reference for another one"
