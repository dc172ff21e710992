"""The Python API: everything that the command line does, in a few functions, for scripts and notebooks.

    import rewardsmith as rs

    reward = rs.reward({"type": "sum", "parts": {"answer": {"type": "rule", "rule": "math"}, "short": my_function}})
    scores = rs.score(reward, prompts, responses, answers=answers)
    advantages = rs.advantages(scores, estimator="rloo")
    run = rs.train("quickstart", {"seed": 1})
    run.metrics(), run.rollouts()

Where a recipe has a name, a function, a class or an object may stand. All functions can be called where an event loop
is running, as in a notebook, and in threads.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic_core import PydanticCustomError

from rewardsmith.config import Chosen, problems_in
from rewardsmith.data import SOURCE
from rewardsmith.errors import RecipeError, UserError, listing
from rewardsmith.jobs import Job, Result
from rewardsmith.masking import shown
from rewardsmith.recipe import Recipe, load_table, override, parse_recipe, set_value
from rewardsmith.recipe_files import shipped_recipe
from rewardsmith.rewards import REWARDS
from rewardsmith.rewards.answer_groups import Scores, group_answers
from rewardsmith.rewards.function_model import FunctionModel
from rewardsmith.runs.background_loop import call_without_loop
from rewardsmith.runs.commands import CommandInputs, CommandOptions, CommandRun, validated
from rewardsmith.runs.loaded_reward import LoadedReward
from rewardsmith.runs.lookup import find_reward, find_source, parse_reward
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.runs.trained_run import TrainedRun
from rewardsmith.types import Failure, Score, ScoredGroup

Overrides = Mapping[str, Any] | Sequence[str] | str | None
"""Changes of a recipe: `{"stages.policy.steps": 10}`, or as on the command line `["stages.policy.steps=10"]`."""


# ---- rewards -------------------------------------------------------------------------------------------------------


def reward(spec: Any, models: Mapping[str, Any] | None = None) -> LoadedReward:
    """Return a reward that is ready to score.

    Args:
        spec: a table as in a recipe (`{"type": "rule", "rule": "math"}`), which may have `models`; the name of a
            reward; a file or run, such as `"recipe.toml:policy"` or `"runs/rrm:policy"`; a function of `response` or
            of `responses`; or an object with `async score(group)`.
        models: the models that the reward names: tables as in a recipe, URLs of servers, functions from messages to a
            reply, or objects with the methods of `rewardsmith.llm.ChatModel`.

    Examples:
        >>> reward = rs.reward({"type": "rule", "rule": "math"})
        >>> rs.score(reward, "What is 7+5?", ["It is 12.", "13"], answers="12").values
        [[1.0, 0.0]]
    """
    if isinstance(spec, LoadedReward):
        return spec
    tables, objects = _models(models or {})
    if isinstance(spec, Path) or (isinstance(spec, str) and _is_place(spec)):
        if tables:
            raise UserError("models: the tables of a recipe's models are in the recipe; give objects here, or a table")
        return LoadedReward(find_reward(str(spec)), objects)
    table = dict(spec) if isinstance(spec, Mapping) else {"type": spec}
    if tables:
        table["models"] = {**table.get("models", {}), **tables}
    return LoadedReward(parse_reward(table, "reward", given=objects), objects)


def _models(models: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the models that are tables, and those that are Python objects."""
    if not isinstance(models, Mapping):
        raise UserError(f"models is of type {type(models).__name__}: give a table such as {{'judge': MODEL}}")
    tables: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    for name, model in models.items():
        if isinstance(model, dict | Chosen):
            tables[name] = model
        elif isinstance(model, str) and model.startswith(("http://", "https://")):
            tables[name] = {"type": "server", "urls": [model]}
        elif callable(getattr(model, "check", None)) and any(hasattr(model, verb) for verb in _VERBS):
            objects[name] = model
        elif callable(model):
            objects[name] = FunctionModel(name, model)
        else:
            kinds = f"a table, the URL of a server, a function of messages, or an object with check() and {_VERBS[0]}()"
            raise UserError(f"models.{name} is {shown(model)}: give {kinds} (rewardsmith.llm)")
    return tables, objects


_VERBS = ("chat", "rate", "embed", "logprobs")
"""What a model can do; see `rewardsmith.llm`."""


def _is_place(spec: str) -> bool:
    """Whether a text names a file or a run, and not a reward."""
    if spec in REWARDS:
        return False
    file = spec.rpartition(":")[0] or spec
    return ".toml" in spec or Path(spec).exists() or Path(file).is_dir() or shipped_recipe(file) is not None


def _choose(choice: Any, value: Any, what: str) -> Chosen:
    try:
        return choice.choose(value)  # type: ignore[no-any-return]
    except PydanticCustomError as error:
        raise RecipeError(what, problems_in(error, what)) from None


def score(
    reward: Any,
    prompts: Any,
    responses: Any,
    *,
    answers: Any = None,
    sources: Any = None,
    infos: Any = None,
    models: Mapping[str, Any] | None = None,
) -> Scores:
    """Score answers with a reward; what could not be scored is None in `.values`, with its cause in `.failures`.

    A service that is unreachable is waited for, up to `failure.wait` of the reward (300 s); then `Halt` is raised, a
    `UserError`. With `"failure": {"wait": 0}` in its table these answers are failures instead.

    Args:
        reward: what `reward` returned, or anything that it takes.
        prompts: one prompt or a list of them: text, messages, rows in verl's schema, or `Prompt`s.
        responses: a list of answers for each prompt; or one answer for each, where equal prompts form a group.
        answers: the ground truth of each prompt, or one for all.
        sources: the name of the data set of each prompt, by which rewards can be routed.
        infos: further columns of each prompt, such as a rubric or tests.
        models: see `reward`.
    """
    found = group_answers(prompts, responses, answers=answers, sources=sources, infos=infos)
    with _opened(reward, models) as loaded:
        return Scores(loaded.score_groups(found.groups), found, loaded.streams)


async def score_async(
    reward: Any,
    prompts: Any,
    responses: Any,
    *,
    answers: Any = None,
    sources: Any = None,
    infos: Any = None,
    models: Mapping[str, Any] | None = None,
) -> Scores:
    """Like `score`, without blocking the event loop that awaits it."""
    found = group_answers(prompts, responses, answers=answers, sources=sources, infos=infos)
    async with _opened(reward, models) as loaded:
        return Scores(await loaded.score_groups_async(found.groups), found, loaded.streams)


def _opened(spec: Any, models: Mapping[str, Any] | None) -> Any:
    """Return a reward for one call: one that was opened for it is closed afterwards."""
    loaded = _load(spec, models)
    return nullcontext(loaded) if loaded is spec else loaded


_load = reward  # for functions that have a parameter of that name


def advantages(scores: Any, estimator: Any = "grpo", **settings: Any) -> list[Any]:
    """Return the advantage of each answer, in the form of the scores; None for one that could not be scored.

    Args:
        scores: what `score` returned; or a list of groups, each a list of rewards with None for a failure.
        estimator: a name (`rewardsmith list advantages`), a table, or a function of `RewardTensors`.
        settings: of the estimator, and `whiten` or `combine`.

    Examples:
        >>> rs.advantages([[1.0, 0.0, None, 0.0]], estimator="dr_grpo")
        [[0.6667, -0.3333, None, -0.3333]]
    """
    from rewardsmith.algorithms.advantages import values_from  # noqa: PLC0415 it loads torch, as do the others
    from rewardsmith.runs.replay import replay_advantages  # noqa: PLC0415
    from rewardsmith.trainers.stages import ADVANTAGE  # noqa: PLC0415

    if not isinstance(scores, Scores):
        scores = _as_scores(scores)
    if not len(scores):
        return []
    table = {**(estimator if isinstance(estimator, Mapping) else {"type": estimator}), **settings}
    chosen = _choose(ADVANTAGE, table, "advantage")
    if needs := values_from(chosen.target):
        what = {"critic": "the values of a critic", "greedy": "the reward of a greedy answer"}.get(
            needs, f"{needs} values"
        )
        raise UserError(f'the advantage "{chosen.name}" needs {what}, which only a training step has')
    rows = replay_advantages(list(scores), scores.streams, chosen)
    means = [[None if row is None else float(row.mean()) for row in group] for group in rows]
    found: list[Any] = scores.answers.arrange(means)
    return found


def _as_scores(groups: Any) -> Scores:
    """Return plain numbers as scores."""
    groups = groups.tolist() if hasattr(groups, "tolist") else groups
    if not isinstance(groups, list | tuple) or not all(isinstance(group, list | tuple) for group in groups):
        raise UserError(
            "scores must be what rewardsmith.score returned, or a list of groups such as [[1.0, 0.0, None]]"
        )
    for i, group in enumerate(groups):
        for j, value in enumerate(group):
            if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
                raise UserError(
                    f"scores[{i}][{j}] is {shown(value)}: it must be a finite number, or None for a failure"
                )
    found = group_answers([str(i) for i in range(len(groups))], [["-"] * len(group) for group in groups])
    failed = Score(failure=Failure("invalid", "no reward was given"))
    scored = [
        ScoredGroup(group, [failed if value is None else Score(value) for value in values])
        for group, values in zip(found.groups, groups, strict=True)
    ]
    return Scores(scored, found)


# ---- runs ----------------------------------------------------------------------------------------------------------


def train(
    recipe: Any,
    overrides: Overrides = None,
    *,
    folder: str | Path | None = None,
    resume: Literal["auto", "must", "never"] = "auto",
    accept_changes: bool = False,
    on: Literal["embedded", "verl"] = "embedded",
    ignore_memory: bool = False,
    quiet: bool = False,
) -> TrainedRun:
    """Run a recipe, and return the run; a run that was stopped is resumed.

    Args:
        recipe: a TOML file, the name of a shipped recipe, a table, or a `Recipe`. In a table, functions, objects, lists
            of rows, pandas frames and `datasets.Dataset`s may stand where a file has a name.
        overrides: settings to change: `{"seed": 1, "stages.policy.reward": my_function}`.
        folder: the run folder; default: `runs/NAME`.
        resume: `auto` resumes a run that was stopped, `must` fails if there is none, `never` starts a new one.
        accept_changes: resume although the recipe has changed.
        on: what runs the models: this process, or verl's workers on Ray.
        ignore_memory: start although the models do not seem to fit the memory.
        quiet: show no progress.

    Interrupting it saves a checkpoint and raises `KeyboardInterrupt`; the same call resumes.
    """
    for setting, value, known in (("resume", resume, ("auto", "must", "never")), ("on", on, ("embedded", "verl"))):
        if value not in known:
            raise UserError(f"{setting} is {value!r}: it must be one of {listing(known)}")
    checked, name = _checked_recipe(recipe, overrides)
    rewards = RewardTrees(checked)
    from rich.console import Console  # noqa: PLC0415

    from rewardsmith.runs.start import Stopped, start  # noqa: PLC0415 it imports torch

    begin = partial(
        start, checked, name, rewards=rewards, folder=None if folder is None else Path(folder), resume=resume,
        accept_changes=accept_changes, on=on, ignore_memory=ignore_memory,
        console=Console(file=io.StringIO()) if quiet else Console(stderr=True),
    )  # fmt: skip
    try:
        return TrainedRun(call_without_loop(lambda stop: begin(stop=stop)))
    except Stopped as stopped:
        raise KeyboardInterrupt(str(stopped)) from None


def _checked_recipe(recipe: Any, overrides: Overrides) -> tuple[Recipe, str]:
    """Return a validated recipe, and the name of its run folder."""
    if isinstance(recipe, Recipe):
        if overrides:
            raise UserError("overrides change a table or a file: give the recipe as one of these")
        return recipe, "run"
    is_table = isinstance(recipe, Mapping)
    if not is_table and not isinstance(recipe, str | Path):
        raise UserError(f"a recipe is a file, a name or a table; this is a {type(recipe).__name__}")
    changes = [overrides] if isinstance(overrides, str) else overrides or ()
    if not isinstance(changes, Mapping) and not all(isinstance(change, str) for change in changes):
        raise UserError(f"overrides is {shown(overrides)}: give a table, or texts such as 'stages.policy.steps=10'")
    table: dict[str, Any]
    table = _copied(recipe) if is_table else load_table(recipe)
    if isinstance(changes, Mapping):
        for key, value in changes.items():
            set_value(table, key, value)
    else:
        for change in changes:
            override(table, change)
    return parse_recipe(table, source="recipe" if is_table else str(recipe)), "run" if is_table else Path(recipe).stem


def _copied(value: Any) -> Any:
    """Return the tables and lists of a recipe as new ones, in which settings can be changed; objects stay."""
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    is_tables = isinstance(value, list) and all(isinstance(inner, Mapping) for inner in value)
    return [_copied(inner) for inner in value] if is_tables else value


# ---- jobs ----------------------------------------------------------------------------------------------------------


def _take_reward(inputs: CommandInputs, loaded: LoadedReward) -> Chosen:
    """Give a job the reward, and the models that it names; return its table."""
    inputs.take(loaded.found)
    inputs.given = loaded.models
    return loaded.found.reward


def _take_data(inputs: CommandInputs, data: Any) -> None:
    """Give a job the source that it knows as "data"."""
    is_place = isinstance(data, str | Path)
    inputs.data["data"] = find_source(str(data)) if is_place else _choose(SOURCE, data, "data source")


def _result_of(job: Job, inputs: CommandInputs) -> Result:
    return call_without_loop(lambda stop: CommandRun(job, inputs, CommandOptions(), stop).result())


def evaluate(
    reward: Any,
    data: Any,
    *,
    kind: Literal["rankings", "grades", "pairs", "policy"],
    models: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Measure a reward against known truth, or the policy that wrote stored rollouts.

    Args:
        reward: what `reward` takes; for `policy` it may be None: then the stored scores count.
        data: a JSONL or Parquet file, `"recipe.toml:NAME"`, rows, a frame or a source. For `policy` a run, its folder,
            or a file with rollouts.
        kind: what the data has: groups of answers with scores, answers with grades, pairs; or `policy`.
        models: see `reward`.
        settings: those of `rewardsmith evaluate` or `rewardsmith evaluate-policy`, such as `orders=4`.

    Returns:
        `.metrics` by name, and `.tables` for people.
    """
    if kind not in (known := ("rankings", "grades", "pairs", "policy")):
        raise UserError(f"kind is {kind!r}: it must be one of {listing(known)}")
    if reward is None and kind != "policy":
        raise UserError(f"reward is None: name the reward to measure on {kind}")
    inputs, values = CommandInputs(), dict(settings)
    if reward is not None:
        values["reward"] = _take_reward(inputs, _load(reward, models))
    job: type[Job]
    if kind == "policy":
        from rewardsmith.runs.evaluate_rollouts import EvaluateRollouts as job  # noqa: N813, PLC0415

        values["rollouts"] = str(data.folder if isinstance(data, TrainedRun) else data)
    else:
        from rewardsmith.trainers.evaluate.evaluate_reward import EvaluateReward as job  # noqa: N813, PLC0415

        _take_data(inputs, data)
        values |= {"kind": kind, "data": "data"}
    checked = validated(job, values)
    return _result_of(checked, inputs)


def compare(
    run: Any,
    reward: Any = None,
    *,
    overrides: Overrides = None,
    estimator: Any = None,
    part: str | None = None,
    models: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Compare the rewards and advantages of stored rollouts with those under another reward, weight or estimator.

    Args:
        run: a run, its folder, or a file with scored rollouts.
        reward: what `reward` takes; None: the run's own reward with `overrides`, or without them the stored scores.
        overrides: settings of the run's recipe to change: `{"stages.policy.reward.parts.judge.weight": 0.3}`.
        estimator: the advantage estimator of the new side: a name, a table, or a function; None: that of the run.
        part: compare this part with the same part of the stored scores.
        models: see `reward`.
        settings: those of `rewardsmith score`, such as `stage="policy"`, `step="1-10"`, `keep="lighter-judge"`.

    Returns:
        `.facts["compared"]` has the numbers, under `replay` those of the advantages; `.tables` are for people.
    """
    from rewardsmith.runs.replay_stage import as_estimator_text, as_override_texts  # noqa: PLC0415 not needed elsewhere
    from rewardsmith.runs.score import ScoreRollouts  # noqa: PLC0415

    folder = str(run.folder if isinstance(run, TrainedRun) else run)
    inputs, values = CommandInputs(), {**settings, "rollouts": folder, "compare": True, "part": part}
    if reward is not None and overrides:
        raise UserError("overrides change the run's own reward: leave out the reward, or give its table as you want it")
    loaded = None if reward is None else _load(reward, models)
    if overrides:
        place = f"{folder}:{settings['stage']}" if settings.get("stage") else folder
        loaded = LoadedReward(find_reward(place, as_override_texts(overrides)), _models(models or {})[1])
    if loaded is not None:
        values["reward"] = _take_reward(inputs, loaded)
    job = validated(ScoreRollouts, {**values, "estimator": as_estimator_text(estimator)})
    return _result_of(job, inputs)


def audit(
    reward: Any,
    data: Any = None,
    *,
    model: str | Path | None = None,
    models: Mapping[str, Any] | None = None,
    reference: Any = None,
    require: Mapping[str, float] | None = None,
    **settings: Any,
) -> Result:
    """Audit a reward: known right and wrong answers, attacks, biases, what there is to learn, what it costs.

    Args:
        reward: what `reward` takes; of a recipe or run, such as `"runs/rrm:policy"`, what is not given here comes from
            its stage.
        data: a JSONL or Parquet file, `"recipe.toml:NAME"`, rows, a frame or a source, with prompts and true answers.
        model: a model that writes answers, as for `rewardsmith audit --model`; None: none, or the policy of the run.
        models: see `reward`.
        reference: a reward whose verdict on these answers is the truth.
        require: limits, such as `{"false_positive": 0.02, "attack": 0.0}`.
        settings: those of `rewardsmith audit`, such as `prompts=64`.

    Returns:
        `.metrics` by name, `.tables` for people, `.facts["audit"]` with the examples; `.problem` says which requirement
        does not hold, and is empty where all do.
    """
    from rewardsmith.runs.audit_command import AuditCommand  # noqa: PLC0415 the others do not need it

    if require is not None and not isinstance(require, Mapping):
        raise UserError(f"require is {shown(require)}: give limits by name, such as {{'attack': 0.0}}")
    if model is not None and not isinstance(model, str | Path):
        raise UserError(f"model is {shown(model)}: name it, as in 'RECIPE.toml:NAME', 'runs/rrm', 'org/name' or a URL")
    inputs, values = CommandInputs(), {**settings, "model": None if model is None else str(model)}
    if require is not None:
        values["require"] = dict(require)
    if isinstance(reward, str) and _is_place(reward):
        values["reward"] = reward
    else:
        values["reward"] = _take_reward(inputs, _load(reward, models))
    if reference is not None:
        second = _load(reference, models)
        inputs.models |= second.found.models
        inputs.given |= second.models
        values["reference"] = second.found.reward
    if data is not None:
        _take_data(inputs, data)
        values["data"] = "data"
    values = AuditCommand.fill(values, inputs, ())
    if model is not None:
        values["model"] = inputs.add_model(str(model), "model", ())
    checked = validated(AuditCommand, values)
    return _result_of(checked, inputs)


def load_run(folder: str | Path) -> TrainedRun:
    """Return a run of this or another program by its folder, finished or not."""
    return TrainedRun(folder)
