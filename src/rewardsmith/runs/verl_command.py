"""`rewardsmith explain --on verl`: the configuration that a run gives to verl's workers, and what our trainer does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rewardsmith.config import Chosen, Settings
from rewardsmith.console import count_of
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.recipe import Recipe, marked
from rewardsmith.runs.preflight import copies_of
from rewardsmith.scale.launch import choose_platform, require_verl
from rewardsmith.scale.scale_settings import GROUPS_PER_GPU, ScaleSettings
from rewardsmith.trainers.process.implicit_parts import process_parts
from rewardsmith.trainers.stages import PolicyStage

if TYPE_CHECKING:
    from rewardsmith.scale.verl_config import VerlConfig

TABLES = ("actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout")


@dataclass(frozen=True)
class WorkerGroup:
    """A model on the cluster, and the settings that name it."""

    name: str
    settings: ModelSettings
    uses: tuple[str, ...]

    @property
    def writes(self) -> bool:
        """Whether it gets rollout servers: it is the model of a stage, and not one that only reads."""
        return self.settings.head == "language" and any(use.count(".") == 2 for use in self.uses)


@dataclass(frozen=True)
class Plan:
    """The worker groups of a recipe; `references` are copies that stages make of models, by the setting that asks."""

    groups: tuple[WorkerGroup, ...]
    references: dict[str, str]

    @property
    def count(self) -> int:
        """How many share each GPU."""
        return len(self.groups) + len(self.references)


def plan_of(recipe: Recipe) -> Plan:
    """Return the models of a recipe that get workers, in the order of their first use."""
    uses: dict[str, list[str]] = {}
    for path, mark, name in marked(recipe):
        if mark.table == "models" and path.startswith("stages."):
            for model in reversed(copies_of(recipe.models, name)):
                if isinstance(recipe.models[model].settings, ModelSettings):
                    uses.setdefault(model, []).extend([path] * (model == name))
    groups = [
        WorkerGroup(name, settings, tuple(paths))
        for name, paths in uses.items()
        if isinstance(settings := recipe.models[name].settings, ModelSettings)
    ]
    return Plan(tuple(groups), dict(_references(recipe)))


def _references(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (setting, model) for each copy of a model as it is when a stage begins."""
    fresh = {name: getattr(chosen.settings, "lora", None) is not None for name, chosen in recipe.models.items()}
    for i, chosen in enumerate(recipe.stages):
        stage: Any = chosen.settings
        if isinstance(stage, PolicyStage) and stage.kl.coefficient and not (stage.kl.reference or fresh[stage.model]):
            yield f"stages.{i}.kl", stage.model
        for name, part in process_parts(chosen).items():
            of: Any = part.settings
            if of.reference == "start" and of.reference_model is None and not fresh[of.model]:
                yield f"stages.{i}.reward.parts.{name}.reference", of.model


def verl_configs(recipe: Recipe) -> dict[str, VerlConfig]:
    """Return the checked configuration of each worker group, and of each policy stage by its path."""
    require_verl()
    if (count := plan_of(recipe).count) > GROUPS_PER_GPU:
        raise UserError(
            f"on a cluster a run has at most {GROUPS_PER_GPU} models, copies and references, and this recipe has"
            f" {count}: split it into several"
        )
    scale = recipe.scale or ScaleSettings()
    choose_platform(scale)
    from rewardsmith.scale.verl_config import model_config  # noqa: PLC0415 only this needs verl
    from rewardsmith.scale.verl_stage import check_config, put_stage  # noqa: PLC0415

    def of_model(name: str) -> VerlConfig:
        settings: Any = recipe.models[name].settings
        start = settings.init or f"(the weights of {settings.copy_of} when it is first needed)"
        return model_config(settings, name, start, scale)

    found = {}
    for group in plan_of(recipe).groups:
        found[group.name] = of_model(group.name)
        check_config(found[group.name], f"models.{group.name}", critic=False, reference=False)
    for i, chosen in enumerate(recipe.stages):
        stage: Any = chosen.settings
        if isinstance(stage, PolicyStage):
            path = f"stages.{i}"
            found[path] = of_model(stage.model)
            put_stage(found[path], stage, path)
            check_config(found[path], path, critic=stage.critic is not None, reference=stage.kl.coefficient > 0)
    return found


def explain_verl(recipe: Recipe, *, everything: bool) -> str:
    """Return verl's configuration of a recipe as YAML documents with comments: each model, then each policy stage."""
    configs = verl_configs(recipe)
    from rewardsmith.scale.verl_config import NOT_READ  # noqa: PLC0415
    from rewardsmith.scale.verl_stage import as_yaml  # noqa: PLC0415

    scale, plan = recipe.scale or ScaleSettings(), plan_of(recipe)
    text = [_heading(scale, plan, everything)]
    for group in plan.groups:
        tables = TABLES if group.writes else TABLES[:2]
        servers = ", with rollout servers" * group.writes
        about = f"models.{group.name}: {', '.join(group.uses) or 'copied by another model'}"
        text.append(
            f"---\n# {about}\n# {scale.processes} verl workers{servers}. Its workers read these tables:"
            f"\n{as_yaml(configs[group.name], tables, everything=everything, leave_out=NOT_READ)}"
        )
    for setting, model in plan.references.items():
        text.append(f"---\n# {setting}: a frozen copy of models.{model}, with the same configuration\n")
    for i, chosen in enumerate(recipe.stages):
        path = f"stages.{i}"
        if path in configs:
            verl = configs[path]
            keys = tuple(key for key, origin in verl.origins.items() if origin.startswith(f"{path}."))
            ours = [f"{path}.{name}" for name in _set_by(chosen) if not _is_mapped(f"{path}.{name}", verl)]
            text.append(
                f"---\n# {path} ({getattr(chosen.settings, 'name', '')}) in verl's words. rewardsmith's trainer does"
                " this part; verl's workers do not read it,\n# and verl's check does.\n"
                f"{as_yaml(verl, keys)}"
                f"# runs in rewardsmith's trainer, without a word of verl's: {', '.join(ours)}\n"
            )
        else:
            text.append(f"---\n# {path} ({chosen.name}) runs in rewardsmith's trainer\n")
    return "".join(text)


def _heading(scale: ScaleSettings, plan: Plan, everything: bool) -> str:
    devices = "worker processes on a CPU" if scale.device == "cpu" else "GPUs"
    hint = "" if everything else "# Only what differs from verl's defaults is here; --all has everything.\n"
    return (
        f"# verl {version('verl')} on {scale.nodes} x {scale.gpus_per_node} {devices}, with"
        f" {count_of(plan.count, 'worker group')} on each. verl's own check has passed.\n{hint}"
    )


def _set_by(chosen: Chosen) -> list[str]:
    """Return the settings of a stage that differ from their defaults, the reward as one."""
    names = ["reward"]
    for name, info in type(chosen.settings).model_fields.items():
        value = getattr(chosen.settings, name)
        if name in ("name", "model", "data", "reward", "save") or value == info.get_default(call_default_factory=True):
            continue
        names += [f"{name}.{inner}" if inner else name for inner in _inner(value)]
    return names


def _inner(value: Any) -> list[str]:
    if isinstance(value, Chosen):
        slot = [name for name in _changed(value.slot) if value.slot is not None]
        return ["type", *slot, *_changed(value.settings)]
    return _changed(value) if isinstance(value, Settings) else [""]


def _changed(settings: Settings | None) -> list[str]:
    if settings is None:
        return []
    fields = type(settings).model_fields
    return [n for n in fields if getattr(settings, n) != fields[n].get_default(call_default_factory=True)]


def _is_mapped(path: str, verl: VerlConfig) -> bool:
    for origin in verl.origins.values():
        first, *others = origin.split(", ")
        names = [first, *(f"{first.rpartition('.')[0]}.{other}" for other in others)]
        if any(f"{name}.".startswith(f"{path}.") for name in names):
            return True
    return False
