"""Check a recipe before the first model is loaded: its rewards, its data, and the files of its models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rewardsmith.config import Chosen, Settings
from rewardsmith.data import Source
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import ModelOutline
from rewardsmith.errors import Problem, RecipeError, UserError, listing, nearest
from rewardsmith.learning import OptimizerSettings
from rewardsmith.masking import shown
from rewardsmith.recipe import Recipe, marked, places
from rewardsmith.rewards.base import parts_of
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.tree import check, check_source, connect, has_part, routes, unfit, walk
from rewardsmith.runs.model_registry import ModelRegistry
from rewardsmith.scale.cluster_checks import model_problems
from rewardsmith.scale.placement import placement_problems
from rewardsmith.scale.scale_settings import ScaleSettings
from rewardsmith.trainers.evaluate.evaluate_policy import require_free
from rewardsmith.trainers.generate_answers import GenerateStage
from rewardsmith.trainers.process.implicit_parts import (
    claim_implicit_parts,
    process_parts,
    require_same_tokens,
)
from rewardsmith.trainers.trainer import HELD_OUT_SEED, count_items, held_out
from rewardsmith.types import Prompt

PROMPTS_CHECKED = 256  # against which a reward is checked before the run begins
SOURCES_CHECKED = 10_000  # prompts whose source is looked up in the routes of a reward


@dataclass(frozen=True)
class StageTable:
    """A stage, its validation or its audit: a table that may name data, rewards and sampling settings."""

    path: str
    stage: Any
    table: Settings

    def get(self, name: str) -> Any:
        """Return a setting; None where the table has none of that name."""
        return getattr(self.table, name, None)

    @property
    def rewards(self) -> dict[str, Chosen]:
        """The rewards that score its data; a validation without a reward of its own has that of the stage."""
        own = self.get("reward") or getattr(self.stage, "reward", None)
        found = {"reward": own} | {name: self.get(name) for name in ("reasoning_check", "reference")}
        return {setting: reward for setting, reward in found.items() if reward is not None}


def stage_tables(recipe: Recipe) -> Iterator[StageTable]:
    """Yield each stage and then its validation and its audit, where it has them."""
    for i, chosen in enumerate(recipe.stages):
        yield StageTable(f"stages.{i}", chosen.settings, chosen.settings)
        for name in ("validation", "audit"):
            inner: Settings | None = getattr(chosen.settings, name, None)
            if inner is not None:
                yield StageTable(f"stages.{i}.{name}", chosen.settings, inner)


class RewardTrees:
    """The rewards of a recipe, each built once; a `RecipeError` has a problem for each that cannot be built."""

    def __init__(self, recipe: Recipe, source: str = "recipe") -> None:
        self._trees: dict[int, Component] = {}
        problems = [problem for table in stage_tables(recipe) for problem in self._build(table)]
        if problems:
            raise RecipeError(source, problems)

    def __call__(self, chosen: Chosen) -> Component:
        """Return the tree of a reward table of the recipe."""
        return self._trees[id(chosen)]

    def _build(self, place: StageTable) -> Iterator[Problem]:
        for setting, chosen in place.rewards.items():
            if id(chosen) not in self._trees and chosen is place.get(setting):
                try:
                    self._trees[id(chosen)] = Component.root(chosen)
                except UserError as error:
                    yield Problem(f"{place.path}.{setting}", str(error))
        if place.get("ahead"):
            critic = getattr(place.get("critic"), "model", None)
            for path, mark, name in marked(place.rewards["reward"]):
                if mark.offer != "learn" and name in (place.get("model"), critic):
                    why = "learns in this stage, and later answers would be scored while it does: set ahead = 0, or a"
                    yield Problem(f"{place.path}.reward.{path}", f"{why} copy_of it", shown(name))
        whole = self._trees.get(id(place.rewards.get("reward")))
        if whole is None:
            return
        if "reasoning_check" in place.rewards:
            try:
                require_free(whole)
            except UserError as error:
                yield Problem(f"{place.path}.reasoning_check", str(error))
        lower = place.get("lower")
        if lower and lower not in parts_of(whole):
            message = f"is no part of a sum with a weight.{nearest(lower, parts_of(whole))}"
            yield Problem(f"{place.path}.lower", f"{message} Known: {listing(parts_of(whole))}", shown(lower))
        part = getattr(place.get("select"), "part", "")
        if part and not has_part(whole, part):
            known = [name for name, _ in walk(whole) if name]
            message = f"is no part of the reward.{nearest(part, known)} Known: {listing(known)}"
            yield Problem(f"{place.path}.select.part", message, shown(part))


def warnings(recipe: Recipe) -> Iterator[str]:
    """Yield a warning for settings that can be used, but seldom go together."""
    learned: set[str] = set()  # models that were process reward models in an earlier stage
    for i, stage in enumerate(recipe.stages):
        loss, reduction = (getattr(stage.settings, name, None) for name in ("loss", "reduction"))
        if loss and loss.name in ("gspo", "gmpo") and reduction and reduction.name != "sequence-mean-token-mean":
            yield (
                f'stages.{i}.reduction = "{reduction.name}" weighs long answers more than short ones, but the loss'
                f' "{loss.name}" is one of whole answers: its paper averages over them. Set reduction ='
                ' "sequence-mean-token-mean"'
            )
        parts: dict[str, Any] = {name: part.settings for name, part in process_parts(stage).items()}
        for name, of in parts.items():
            if (
                of.reference == "start"
                and of.reference_model is None
                and learned & {*copies_of(recipe.models, of.model)}
            ):
                yield (
                    f"stages.{i}: models.{of.model} has been a process reward model before. With"
                    f' parts.{name}.reference = "start" all its rewards are 0 when this stage begins: set'
                    f" parts.{name}.reference_model to the model that it was trained from"
                )
        learned |= {of.model for of in parts.values() if of.update != "none"}


def copies_of(models: Mapping[str, Chosen], name: str) -> list[str]:
    """Return the name of a model, of the one it is a copy of, and so on to the one that has files of its own."""
    names = [name]
    while (copied := getattr(models[names[-1]].settings, "copy_of", None)) is not None:
        names.append(copied)
    return names


def check_for_cluster(recipe: Recipe, source: str) -> None:
    """Refuse what cannot run on a cluster: settings of models, and models that rewards would call in the driver."""
    remedy = 'set type = "managed" or "server" for it'
    problems = [
        Problem(
            path,
            f"is a model in this process, which cannot be called on a cluster: {remedy}",
            shown(name),
        )
        for path, mark, name in marked(recipe)
        if mark.offer in ("chat", "rate", "rate_turns") and isinstance(recipe.models[name].settings, ModelSettings)
    ]
    problems += _optimizer_problems(recipe)
    problems += model_problems(recipe.models, recipe.scale or ScaleSettings())
    problems += placement_problems(recipe.models, recipe.scale or ScaleSettings())
    trained = tuple(f"{t.path}.reward" for t in stage_tables(recipe) if getattr(t.table, "trains_rewards", False))
    outside = "an implicit reward runs on a cluster only in the reward of a stage that trains: use `rewardsmith score`"
    problems += [
        Problem(path, outside)
        for path, table in places(recipe)
        if isinstance(table, Chosen) and table.target is Implicit and not path.startswith(trained)
    ]
    if recipe.scale is not None and recipe.scale.rollout.gpus:
        why = "rollout servers with GPUs of their own get whole weights: leave out scale.rollout.gpus, or the adapter"
        adapted = [name for name, model in recipe.models.items() if getattr(model.settings, "lora", None) is not None]
        problems += [Problem(f"models.{name}.lora", why) for name in adapted]
    if problems:
        raise RecipeError(source, problems)


def _optimizer_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for each optimizer with states that verl's workers do not have."""
    offloads = recipe.scale is not None and recipe.scale.offload
    remedy = "on a cluster, scale.offload = true keeps the states in host memory while they are not needed"
    for path, table in places(recipe):
        if not isinstance(table, OptimizerSettings):
            continue
        if table.states != "float32":
            message = f"the workers of a cluster have float32 states: leave it out; {remedy}"
            yield Problem(f"{path}.states", message, shown(table.states))
        if table.offload and not offloads:
            yield Problem(f"{path}.offload", f"{remedy}: set it too", "true")


async def check_recipe(
    recipe: Recipe,
    rewards: RewardTrees,
    source: Callable[[str], Source],
    models: ModelRegistry,
    log: Callable[[str], None],
) -> None:
    """Check the data, the model files and the rewards of a recipe; a `UserError` names the setting."""
    for text in warnings(recipe):
        log(f"warning: {text}")
    for table in stage_tables(recipe):
        if table.get("data") is not None:
            _check_data(table, recipe, source(table.get("data")), log)
    check_models(recipe, log)
    for i, stage in enumerate(recipe.stages):
        if isinstance(stage.settings, GenerateStage):
            try:
                stage.settings.require_fit(recipe.models[stage.settings.model])
            except UserError as error:
                raise UserError(f"stages.{i}.{error}") from None
    for table in stage_tables(recipe):
        for setting, chosen in table.rewards.items():
            place = f"{table.path}.{setting}"
            log(f"checking {place}: {chosen.name}")
            online = table.stage.trains_rewards and chosen is table.stage.reward
            try:
                tree = rewards(chosen)
                connect(tree, log, models.before)
                if online:
                    claim_implicit_parts(tree)
                _check_prompts(tree, table.get("data"), lambda t=table: _prompts(t, recipe, source))  # type: ignore[misc]
                await check(tree)
                models.log_unreachable()
                if routes(tree):
                    for name in {p.source for p in islice(_prompts(table, recipe, source), SOURCES_CHECKED)}:
                        check_source(tree, name)
            except UserError as error:
                raise UserError(f"{place}: {error}") from error


def _check_data(table: StageTable, recipe: Recipe, source: Any, log: Callable[[str], None]) -> None:
    """Refuse data of another kind, data without a single item, and all of data that has no end."""
    name, reads = table.get("data"), table.stage.reads
    read = getattr(source, reads, None)
    if read is None:
        raise UserError(f'data.{name} has no {reads}: a source of type "{recipe.data[name].name}" has none')
    if hasattr(source, "check"):
        log(f"checking data.{name}")
        source.check(of=reads)
    if "all" in (table.get("prompts"), table.get("items"), table.get("demonstrations")):
        held_out(read, "all", name)
    elif table.get("epochs") is not None and table.get("steps") is None:
        count_items(read(HELD_OUT_SEED), reads, name, lambda text: None)
    elif next(iter(read(HELD_OUT_SEED)), None) is None:
        raise UserError(f"data.{name} is empty: it has no {reads}")


def _prompts(table: StageTable, recipe: Recipe, source: Callable[[str], Any]) -> Iterator[Prompt]:
    for item in getattr(source(table.get("data")), table.stage.reads)(recipe.seed):
        yield item if isinstance(item, Prompt) else item.prompt


def _check_prompts(reward: Component, data: str, prompts: Callable[[], Iterator[Prompt]]) -> None:
    """Refuse a reward that cannot score a quarter of the first prompts; fewer are failures that the run counts."""
    if not any(hasattr(component.reward, "require") for _, component in walk(reward)):
        return
    first = list(islice(prompts(), PROMPTS_CHECKED))
    found = [problem for prompt in first for problem in unfit(reward, prompt)]
    for path, count in Counter(path for path, _ in found).items():
        if count > len(first) / 4:
            why = next(why for other, why in found if other == path)
            raise UserError(
                f"{path}{': ' * bool(path)}{count} of the first {len(first)} prompts of data.{data} cannot be scored;"
                f" the first: {why}"
            )


def check_models(recipe: Recipe, log: Callable[[str], None]) -> None:
    """Check the files of every model that a stage uses, and whether answers of its length fit into it."""
    from rewardsmith.engines.embedded.loading import check_model  # noqa: PLC0415 it imports torch

    outlines: dict[str, ModelOutline] = {}
    used = _used_models(recipe)
    for name, chat in used.items():
        model = recipe.models[name].settings
        if isinstance(model, ModelSettings) and model.copy_of is None:
            log(f"checking models.{name}: {model.init}")
            outlines[name] = check_model(model, name, chat=chat)
    for name in used:
        if (origin := copies_of(recipe.models, name)[-1]) in outlines:
            outlines[name] = replace(outlines[origin], name=name)
    for i, stage in enumerate(recipe.stages):
        _check_lengths(f"stages.{i}", stage, outlines)


def _used_models(recipe: Recipe) -> dict[str, bool]:
    """Return the models that stages use, and those that they are copies of: whether each must render a chat."""
    chats: dict[str, bool] = {}
    for path, mark, name in marked(recipe):
        if mark.table != "models" or not path.startswith("stages."):
            continue
        # Critics, references and process reward models read the tokens of the policy.
        chat = mark.offer in ("chat", "rate") or path.count(".") == 2
        for model in copies_of(recipe.models, name):
            chats[model] = chats.get(model, False) or chat
            chat = chat and getattr(recipe.models[model].settings, "chat", None) is None
    return chats


def _check_lengths(path: str, stage: Chosen, outlines: Mapping[str, ModelOutline]) -> None:
    """Refuse a model that cannot read all that the policy of a stage writes, or reads it as other tokens."""
    settings: Any = stage.settings
    policy = getattr(settings, "model", "")
    readers = [policy]
    for reader, part in process_parts(stage).items():
        of: Any = part.settings
        for model in (of.model, of.reference_model):
            readers.append(model)
            if policy in outlines and model in outlines:
                require_same_tokens(outlines[policy], outlines[model], f"the implicit reward {reader!r}")
    validation = getattr(settings, "validation", None)
    for where, table, names in ((path, settings, readers), (f"{path}.validation", validation, [policy])):
        sampling: Any = getattr(table, "sampling", None)
        for name in names if sampling is not None else ():
            if name in outlines and sampling.max_tokens >= outlines[name].max_length:
                raise UserError(
                    f"{where}.sampling.max_tokens = {sampling.max_tokens} leaves no room for a prompt: models.{name}"
                    f" reads {outlines[name].max_length} tokens. Lower it"
                )
