"""What would stop a run later, found before the first model is loaded: by the data, and by the files of the models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.data import Reads, Source
from rewardsmith.engines.embedded.loading import check_model
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import ModelOutline
from rewardsmith.errors import UserError
from rewardsmith.recipe import Recipe, marked
from rewardsmith.trainers.process.implicit_parts import process_parts, require_other_reference, require_same_tokens
from rewardsmith.trainers.trainer import HELD_OUT_SEED, count_items, held_out


def used(recipe: Recipe) -> Iterator[tuple[str, Reads, Any]]:
    """Yield each data source that a stage uses, what is asked of it, and the table that names it."""
    for stage in recipe.stages:
        settings: Any = stage.settings
        of: Reads = getattr(settings, "reads", "prompts")
        for place in (settings, getattr(settings, "validation", None)):
            data: str | None = getattr(place, "data", None)
            if data is not None:
                yield data, of, place


def check_items(recipe: Recipe, source: Callable[[str], Source]) -> None:
    """Raise a `UserError` for data without a single item, and for all of data that has no end."""
    for name, of, place in used(recipe):
        read = getattr(source(name), of)
        count = next((getattr(place, s) for s in ("prompts", "items", "demonstrations") if hasattr(place, s)), None)
        if count == "all":
            held_out(read, count, name)
        elif getattr(place, "steps", 0) is None:  # a stage that goes by epochs
            count_items(read(HELD_OUT_SEED), of, name, lambda text: None)
        elif next(iter(read(HELD_OUT_SEED)), None) is None:
            raise UserError(f"data.{name} is empty: it has no {of}")


def check_models(recipe: Recipe, say: Callable[[str], None]) -> None:
    """Look at the files of every model that a stage uses, and whether answers of its length fit into it.

    Raises:
        UserError: a model is not there or cannot be used, or reads less than the answers that are wanted.
    """
    for i, stage in enumerate(recipe.stages):
        _check_references(f"stages.{i}.reward", stage)
    outlines: dict[str, ModelOutline] = {}
    for name, chat in _wanted(recipe).items():
        settings = recipe.models[name].settings
        if isinstance(settings, ModelSettings) and settings.copy_of is None:
            say(f"checking models.{name}: {settings.init}")
            outlines[name] = check_model(settings, name, chat=chat)
    for name in _wanted(recipe):
        if (origin := _origin(recipe, name)) in outlines:
            outlines[name] = replace(outlines[origin], name=name)
    for i, stage in enumerate(recipe.stages):
        _check_reading(f"stages.{i}", stage, outlines)


def _wanted(recipe: Recipe) -> dict[str, bool]:
    """Return the models that stages use, and those that they are copies of: whether each must render a chat."""
    chats: dict[str, bool] = {}
    for path, mark, name in marked(recipe):
        if mark.table != "models" or not path.startswith("stages."):
            continue
        # Critics, references and process reward models read the tokens of the policy.
        chat = mark.offer in ("chat", "rate") or path.count(".") == 2
        model: str | None = name
        while model is not None:
            chats[model] = chats.get(model, False) or chat
            settings: Any = recipe.models[model].settings
            chat = chat and getattr(settings, "chat", None) is None
            model = getattr(settings, "copy_of", None)
    return chats


def _check_references(path: str, stage: Chosen) -> None:
    """Raise a `UserError` if an implicit reward is to be trained against the policy under the name of a model."""
    if getattr(stage.settings, "trains_rewards", False):
        settings: Any = stage.settings
        try:
            require_other_reference(settings.reward, settings.model)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error


def _check_reading(path: str, stage: Chosen, outlines: Mapping[str, ModelOutline]) -> None:
    """Raise a `UserError` if a model cannot read all that the policy of a stage writes, or as other tokens."""
    settings: Any = stage.settings
    policy = getattr(settings, "model", "")
    readers = {policy: ""}
    for name, part in process_parts(stage).items():
        of: Any = part.settings
        readers |= {model: name for model in (of.model, of.reference_model) if model is not None}
    for model, reader in readers.items():
        if reader and policy in outlines and model in outlines:
            require_same_tokens(outlines[policy], outlines[model], f"the implicit reward {reader!r}")
    for where, place, names in (
        (path, settings, readers),
        (f"{path}.validation", getattr(settings, "validation", None), [policy]),
    ):
        sampling: Any = getattr(place, "sampling", None)
        for name in names if sampling is not None else ():
            if name in outlines and sampling.max_tokens >= outlines[name].max_length:
                raise UserError(
                    f"{where}.sampling.max_tokens = {sampling.max_tokens} leaves no room for a prompt: models.{name}"
                    f" reads {outlines[name].max_length} tokens. Lower it"
                )


def _origin(recipe: Recipe, name: str) -> str:
    """Return the model whose files a model comes from."""
    while (copied := getattr(recipe.models[name].settings, "copy_of", None)) is not None:
        name = copied
    return name
