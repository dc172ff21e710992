"""Is a judge called with the prompt with which it was trained?

Data for judges has the identity of its prompt: template, noun of the candidates, criteria, form of the verdict
(`text.judge_prompts.ranking_identity`, `grading_identity`). A run writes that of the data on which a model learned last
into `judge_prompt.json` of the published folder. Nothing is known of a model without that file, or behind a URL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.engines.model_settings import ServerSettings
from rewardsmith.errors import Problem, RecipeError
from rewardsmith.masking import shown
from rewardsmith.recipe import Recipe, places, references
from rewardsmith.rewards.judges.judge import Judge
from rewardsmith.runs.preflight import copies_of
from rewardsmith.text.judge_prompts import PromptIdentity, different_settings, is_identity

JUDGE_PROMPT = "judge_prompt.json"
MAX_BYTES = 1 << 16
"""Of the file: a model folder may come from anywhere."""

SourceOf = Callable[[str], Any]
"""From the name of a data source to the source."""


def check_trained_prompts(recipe: Recipe, source: SourceOf, log: Callable[[str], None]) -> None:
    """Raise a `RecipeError` for each judge that would be called with another prompt than it was trained with.

    Judges of kinds for which we prepare no training data have no setting that allows it, and get a warning.
    """
    by_stage = list(prompts_by_stage(recipe, source))
    problems: list[Problem] = []
    for path, table in places(recipe):
        if isinstance(table, Chosen) and isinstance(table.target, type) and issubclass(table.target, Judge):
            judge: Judge = table.build()
            trained = by_stage[int(path.split(".")[1])].get(judge.model_name, {})  # stages.0.reward.parts.judge
            problems += _problems(judge, trained, path, log)
    if problems:
        raise RecipeError("recipe", problems)


def _problems(judge: Judge, trained: PromptIdentity, path: str, log: Callable[[str], None]) -> Iterator[Problem]:
    for setting, then, now in different_settings(trained, judge.judge_prompt()):
        was = f"models.{judge.model_name} was trained with {setting} = {shown(then)}"
        if then == now:
            was = f"models.{judge.model_name} was trained with another text of this template"
        if judge.allows_other_prompt is None:
            log(f"warning: {path}.{setting} = {shown(now)}, but {was}: its verdicts may be worth little")
        elif not judge.allows_other_prompt:
            remedy = "use the same, or set allow_other_prompt = true to call it with a prompt that it does not know"
            yield Problem(f"{path}.{setting}", f"{was}: {remedy}", shown(now))


def prompts_by_stage(recipe: Recipe, source: SourceOf) -> Iterator[Mapping[str, PromptIdentity]]:
    """Yield for each stage, and for the end, the prompt with which each model has been trained by then, if known."""
    known: dict[str, PromptIdentity] = {}
    for name, chosen in recipe.models.items():
        if getattr(chosen.settings, "copy_of", None) is None:
            known[name] = _of_folder(chosen)

    def prompt_of(model: str) -> PromptIdentity:
        return next((known[name] for name in copies_of(recipe.models, model) if name in known), {})

    for stage in recipe.stages:
        for model in {value for _, table, value in references(stage) if table == "models"}:
            known[model] = prompt_of(model)  # a copy is made when a stage first uses it
        yield {name: prompt for name, prompt in known.items() if prompt}
        if hasattr(stage.settings, "optimizer"):
            learned = judge_prompt_of(source(stage.settings.data))  # type: ignore[attr-defined]
            known[stage.settings.model] = learned or known[stage.settings.model]  # type: ignore[attr-defined]
    yield {name: prompt for name in recipe.models if (prompt := prompt_of(name))}


def judge_prompt_of(source: Any) -> PromptIdentity:
    """Return the identity of the judge's prompt in a data source; {} where it has none."""
    return source.judge_prompt() if hasattr(source, "judge_prompt") else {}


def _of_folder(model: Chosen) -> PromptIdentity:
    """Return what the folder of a model says, which is not trusted: {} if it is no identity."""
    settings = model.settings
    folder = (
        None if isinstance(settings, ServerSettings) else getattr(settings, "init", getattr(settings, "model", None))
    )
    file = Path(folder or "").expanduser() / JUDGE_PROMPT
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if is_identity(found) else {}


def write_judge_prompt(folder: Path, prompt: PromptIdentity) -> None:
    """Write the identity into the folder of a published model, if there is one."""
    if prompt:
        (folder / JUDGE_PROMPT).write_text(json.dumps(prompt, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
