"""Run a recipe: its stages in order, with checkpoints, in one folder."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import islice
from typing import Any

from rewardsmith.config import Chosen, import_name
from rewardsmith.data import Reads, Source, open_source
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Engine
from rewardsmith.errors import UserError
from rewardsmith.jobs import Result
from rewardsmith.llm import Usage
from rewardsmith.recipe import Recipe, explain
from rewardsmith.recipe_checks import RewardTrees, warnings
from rewardsmith.rewards.base import Halt
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.pool import shared
from rewardsmith.rewards.tree import check, check_source, connect, load, routes, unfit, walk
from rewardsmith.runs.checks import check_items, check_models, used
from rewardsmith.runs.folder import RECIPE, SUMMARY, RunFolder
from rewardsmith.runs.lineage import Lineage, forgotten
from rewardsmith.runs.log import LOG, RunLog
from rewardsmith.runs.model_registry import ModelRegistry, add_usage, open_engine
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.resume import Checkpoint, other_length, read_checkpoint
from rewardsmith.runs.summary import Summary
from rewardsmith.runs.trackers import Guarded
from rewardsmith.storage import new_folder, writing
from rewardsmith.trainers.process.implicit_parts import claim_implicit_parts, process_parts
from rewardsmith.trainers.trainer import GroupRecord, Trainer, Update
from rewardsmith.types import Prompt

PROMPTS_CHECKED = 256
"""Prompts of which is asked, before the run begins, whether the reward could score them."""

SOURCES_CHECKED = 10_000
"""Prompts whose source is looked up in the routes of a reward before the run begins; others when they are scored."""


class Stopped(Exception):  # noqa: N818 it is a wish, not an error
    """The user wants the run to stop."""


class Run:
    """One run of a recipe; the `Context` of its trainers.

    Args:
        recipe: what to do.
        folder: where the files go.
        progress: what the user sees.
        rewards: of the recipe, where they are built already.
    """

    def __init__(
        self, recipe: Recipe, folder: RunFolder, progress: Progress, rewards: RewardTrees | None = None
    ) -> None:
        self.recipe = recipe
        self.seed = recipe.seed
        self.folder = folder.path
        self.stopping = False
        self.fresh = False  # a stage that is run again goes on from what it kept
        self.run_log = RunLog(self.folder / LOG)
        self._files = folder
        self._progress = progress
        self.progress = progress.within  # how far a part of the present step is
        self._engines: dict[str, Engine] = {}
        self._saved: set[str] = set()  # models that checkpoints hold
        self._trained: set[str] = set()
        self._sources: dict[str, Source] = {}
        self._stage = ""
        self._best: dict[str, tuple[float, str]] = {}
        self._steps = 0  # of all stages together, for trackers
        self._begun = time.monotonic()
        self.placed = False  # whether it is known from where the run goes on
        self._resumed: Checkpoint | None = None
        self._learned = ""  # the last checkpoint of a stage that trained: a longer stage goes on from there
        self.summary = Summary(recipe.title)
        self._asked_before: dict[str, Usage] = {}  # of models, until the run was resumed
        if recipe.workers is not None:
            shared(recipe.workers)
        self._models = ModelRegistry(recipe.models, self.engine, folder=self.folder, log=self.log, cache=recipe.cache)
        self._rewards = rewards or RewardTrees(recipe)
        self._lineage = Lineage(recipe, folder, self._identify, self._rewards)
        self._trackers = [Guarded(tracker.name, tracker.build()) for tracker in recipe.trackers]

    # ---- what trainers ask for -------------------------------------------------------------------------------------

    def engine(self, name: str) -> Engine:
        """Return a model of the recipe, loaded when it is first asked for, with the weights of the last checkpoint."""
        if name not in self._engines:
            engine = open_engine(self.recipe.models, name, self.engine, seed=self.seed, log=self.log)
            if self._resumed is not None and name in self._saved:
                engine.load(self._files.model(self._resumed.name, name))
            elif engine.settings.copy_of is not None:
                self._saved.add(name)  # of what it is a copy may have changed when the run is resumed
            self._models.share(engine)
            self._engines[name] = engine
        return self._engines[name]

    def model(self, name: str) -> Any:
        """Return a model of the recipe as rewards use it."""
        return self._models(name)

    def on_device(self, *names: str) -> AbstractAsyncContextManager[None]:
        """Keep these models awake; those that share the device with them sleep meanwhile."""
        return self._models.on_device(*names)

    def reward(self, chosen: Chosen) -> Component:
        """Return a reward of the recipe, with its models."""
        reward = self._rewards(chosen)
        connect(reward, self.log, self.model)
        return reward

    def source(self, name: str) -> Source:
        """Return a data source of the recipe."""
        if name not in self._sources:
            self._sources[name] = open_source(name, self.recipe.data[name])
        return self._sources[name]

    def keep(self, records: Sequence[GroupRecord]) -> None:
        """Write groups to the rollouts file of the stage."""
        self._files.keep(self._stage, records)

    @property
    def model_tables(self) -> Mapping[str, Chosen]:
        """The models of the recipe."""
        return self.recipe.models

    def keep_result(self, result: Result) -> None:
        """Write what a job returned."""
        self._files.keep_evaluation(self._stage, {"name": self._stage, "kind": "job", **result.as_json()})

    def log(self, text: str) -> None:
        """Tell the user something."""
        self.run_log.write(text)
        self._progress.log(text)

    def pause(self) -> None:
        """Raise `Stopped` if the user wants to stop."""
        if self.stopping:
            raise Stopped

    # ---- the stages ------------------------------------------------------------------------------------------------

    async def go(self) -> None:
        """Run all stages from the last checkpoint on, or from the start."""
        position = self._position()
        try:
            await self._check()
            self._rewind(position)
            await self._run_stages(position)
        finally:
            await self._models.close()

    async def _run_stages(self, position: tuple[int, int]) -> None:
        self._lineage.resume(position[0], begun=position[1] >= 0)
        try:
            for tracker in self._trackers:
                tracker.start(self.folder, self.folder.name, explain(self.recipe))
            for index, stage in enumerate(self.recipe.stages):
                if index >= position[0]:
                    await self._run_stage(
                        index, stage.name, stage.settings, position[1] if index == position[0] else -1
                    )
            self._publish()
        finally:
            self.summary.seconds = self._seconds
            self._sum_up_models()
            for tracker in self._trackers:
                tracker.close()

    async def _run_stage(self, index: int, kind: str, stage: Any, done: int) -> None:
        """Run one stage; `done` steps are there already, -1 when it has not begun."""
        self._stage = stage.name
        trainer: Trainer = import_name(stage.runs_by)(stage, self)
        planned = self.summary.begin(stage.name, kind, trainer.steps)
        if done > 0 and (text := other_length(self.recipe.stages[index], planned, done, trainer.steps)):
            self.log(f"stages.{index}: {text}")
        if done >= trainer.steps:
            await self._lineage.end(index, trainer)
            self._finish(trainer)
            return
        if done >= 0:
            assert self._resumed is not None
            for name, engine in trainer.learners.items():
                engine.load_learner(self._files.model(self._resumed.name, name))
            try:
                trainer.restore(self._resumed.state)
                if trainer.reward is not None:
                    load(trainer.reward, self._files.rewards(self._resumed.name))
            except (KeyError, TypeError) as error:
                raise UserError(
                    f"the checkpoint {self._resumed.name} does not go with the changed recipe ({error!r}): undo the"
                    " change, or start a new run with --resume never"
                ) from None
        after = f", resuming after {done}" * (done > 0)
        self.run_log.write(f"stage {stage.name} begins: {trainer.steps} steps{after}")
        with self._progress.stage(stage.name, trainer.steps, max(0, done)):
            if trainer.reward is not None:
                self.progress("checking the reward", 0, 0)
                await check(trainer.reward)  # this one: what it opened to be checked is open now
            self.progress("hashing weights", 0, 0)
            await self._lineage.begin(index, self.source)
            self._saved |= set(trainer.learners)
            self._trained |= set(trainer.learners)
            if done < 0:
                update = self._counted(await trainer.begin())
                self._log(update)
                self._is_best(trainer, update, index)
            await self._steps_of(index, trainer, stage, max(0, done))
        self.run_log.write(f"stage {stage.name} has ended")
        await self._lineage.end(index, trainer)
        self._finish(trainer)

    async def _steps_of(self, index: int, trainer: Trainer, stage: Any, done: int) -> None:
        saving = getattr(stage, "save", None)
        every = (saving and saving.every) or max(1, math.ceil(trainer.steps / 10))
        for number in range(done + 1, trainer.steps + 1):
            before = trainer.state()
            try:
                self.pause()
                update = self._counted(await trainer.step(number))
            except (Stopped, Halt):
                self._sum_up_models()  # what was asked in this step is paid for, though the step is done again
                if _checkpoint(index, self._stage, number - 1) not in self._files.checkpoints():
                    self._save(index, number - 1, before, trainer, stage)
                raise
            self._log(update)
            is_best = saving is not None and saving.best and self._is_best(trainer, update, index)
            if number % every == 0 or number == trainer.steps or is_best or update.halt is not None:
                self._save(index, number, trainer.state(), trainer, stage)
            if update.halt is not None:
                raise update.halt

    def _counted(self, update: Update) -> Update:
        """Add what was asked of the models in this step."""
        self._sum_up_models()
        return replace(update, metrics={**update.metrics, **self._models.metrics()})

    def _sum_up_models(self) -> None:
        self.summary.models = add_usage(self._asked_before, self._models.totals())

    async def _identify(self, name: str) -> str:
        """Return what a model is now: of one in this process a hash of its weights."""
        if isinstance(self.recipe.models[name].settings, ModelSettings):
            return f"embedded:{self.engine(name).digest()}"
        return str(await self.model(name).identity())

    def _finish(self, trainer: Trainer) -> None:
        """Let go of the optimizers: the next stage has its own."""
        for engine in trainer.learners.values():
            engine.stop_learning()

    def _log(self, update: Update) -> None:
        if not update.metrics:
            return
        self._steps += update.step > 0
        self._files.log(self._stage, update.step, self._seconds, update.metrics)
        self.summary.note(self._stage, update, self._seconds)
        for tracker in self._trackers:
            tracker.log(self._steps, {f"{self._stage}/{name}": value for name, value in update.metrics.items()})
        self._progress.step(update)

    def _is_best(self, trainer: Trainer, update: Update, index: int) -> bool:
        """Whether this step has the best validation of its stage so far; note it if so."""
        name = trainer.best_by.removeprefix("-")
        if not name or name not in update.metrics:
            return False
        value = update.metrics[name] * (-1 if trainer.best_by.startswith("-") else 1)
        if not math.isfinite(value) or (self._stage in self._best and value <= self._best[self._stage][0]):
            return False
        # What the stage began with is the value to beat; it has no checkpoint of its own.
        self._best[self._stage] = (value, _checkpoint(index, self._stage, update.step) if update.step else "")
        return True

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _save(self, index: int, step: int, state: dict[str, Any], trainer: Trainer, stage: Any) -> None:
        name = _checkpoint(index, self._stage, step)
        self._learned = name if trainer.learners else self._learned
        self.progress("saving a checkpoint", 0, 0)
        facts = {
            "stage": self._stage,
            "step": step,
            "state": state,
            "trained": sorted(self._trained),
            "best": self._best,
            "learned": self._learned,
            "steps": self._steps,
            "seconds": self._seconds,
            "summary": self.summary.as_json(),
        }
        self._files.save(name, facts, {model: self.engine(model) for model in self._saved}, trainer.reward)
        saving = [s.settings.save for s in self.recipe.stages if hasattr(s.settings, "save")]
        # A name beyond this one is from before the recipe lost a stage: it must not pass for the last checkpoint.
        ours = [other for other in self._files.checkpoints() if other <= name]
        last = ours[-max((s.keep for s in saving), default=1) :]
        needed = {self._learned, *(checkpoint for _, checkpoint in self._best.values())}
        self._files.prune({*last, *needed.intersection(ours)})

    def _position(self) -> tuple[int, int]:
        """Return (stage, steps done) of the checkpoint to go on from, and take over what it holds; else (0, -1)."""
        found = read_checkpoint(self._files, self.recipe)
        self.placed = True
        if found is None:
            return 0, -1
        self._resumed, self._steps = found, found.steps
        self._saved, self._trained = set(found.models), set(found.trained)
        self._best, self._learned = dict(found.best), found.learned
        self._begun = time.monotonic() - found.seconds
        self.summary, self._asked_before = found.summary, found.summary.models
        self.log(f"resuming from {found.name}")
        return found.stage, found.step

    def _rewind(self, position: tuple[int, int]) -> None:
        """Make the folder what it was at the checkpoint from which the run goes on, and note that it is running."""
        if self._resumed is None:
            self._files.clear()
        else:
            # Checkpoints of later stages, where a stage is longer now. They go first: one must not outlast its files.
            self._files.prune({name for name in self._files.checkpoints() if name <= self._resumed.name})
            self._files.rewind(self._resumed.lengths)
            stages = [getattr(chosen.settings, "name", "") for chosen in self.recipe.stages]
            self._files.keep_evaluations_of(stages[: position[0] + (position[1] > 0)])
        self._files.write(RECIPE, explain(self.recipe))
        self._files.write(SUMMARY, self.summary.dumps())

    def _publish(self) -> None:
        """Write every model that was trained, and every copy that one was measured against, as a plain folder."""
        parts: list[Any] = [part.settings for stage in self.recipe.stages for part in process_parts(stage).values()]
        for name in sorted(self._trained | (self._saved & {part.reference_model for part in parts})):
            self.log(f"writing models/{name}")
            with writing(self.folder), new_folder(self.folder / "models" / name) as folder:
                self.engine(name).publish(folder)

    async def _check(self) -> None:
        """Check every reward, and the data where a source can check itself, before any model is loaded."""
        for text in warnings(self.recipe):
            self.log(f"warning: {text}")
        for name, of, _ in used(self.recipe):
            if not hasattr(self.source(name), of):
                raise UserError(f'data.{name} has no {of}: a source of type "{self.recipe.data[name].name}" has none')
            check_data = getattr(self.source(name), "check", None)
            if check_data is not None:
                self.log(f"checking data.{name}")
                check_data(of=of)
        check_items(self.recipe, self.source)
        check_models(self.recipe, self.log)
        for i, stage in enumerate(self.recipe.stages):
            for text in forgotten(self.recipe, i):
                self.log(f"warning: stages.{i}: {text}")
            settings: Any = stage.settings
            reads: Reads = getattr(settings, "reads", "prompts")
            for name, place in (("", settings), (".validation", getattr(settings, "validation", None))):
                chosen = getattr(place, "reward", None) or getattr(settings, "reward", None)
                reasoning_check = getattr(place, "reasoning_check", None)
                for setting, reward in (("reward", chosen), ("reasoning_check", reasoning_check)):
                    if place is None or reward is None:
                        continue
                    self.log(f"checking stages.{i}{name}.{setting}: {reward.name}")
                    try:
                        online = getattr(settings, "trains_rewards", False) and reward is settings.reward
                        await self._check_reward(reward, place.data, reads, online=online)
                    except UserError as error:
                        raise UserError(f"stages.{i}{name}.{setting}: {error}") from error

    async def _check_reward(self, chosen: Chosen, data: str, of: Reads, *, online: bool) -> None:
        """Check whether a reward can work, and whether it has a route for the prompts."""
        reward = self._rewards(chosen)
        connect(reward, self.log, self._models.before)
        if online:
            claim_implicit_parts(reward)
        self._check_prompts(reward, data, of)
        await check(reward)
        self._models.log_unreachable()
        if routes(reward):
            for source in {p.source for p in islice(self._prompts(data, of), SOURCES_CHECKED)}:
                check_source(reward, source)

    def _prompts(self, data: str, of: Reads) -> Iterator[Prompt]:
        """Yield the prompts of what is read of a source."""
        items = getattr(self.source(data), of)(self.seed)
        return (item if isinstance(item, Prompt) else item.prompt for item in items)

    def _check_prompts(self, reward: Component, data: str, of: Reads) -> None:
        """Look whether the first prompts have what the reward needs; a few that have not are for the run to count."""
        if not any(hasattr(component.reward, "require") for _, component in walk(reward)):
            return
        prompts = list(islice(self._prompts(data, of), PROMPTS_CHECKED))
        found = [problem for prompt in prompts for problem in unfit(reward, prompt)]
        for path, count in Counter(path for path, _ in found).items():
            if count > len(prompts) / 4:
                why = next(why for other, why in found if other == path)
                raise UserError(
                    f"{path}{': ' * bool(path)}{count} of the first {len(prompts)} prompts of data.{data} cannot be"
                    f" scored; the first: {why}"
                )


def _checkpoint(index: int, stage: str, step: int) -> str:
    return f"{index + 1:02d}-{stage}-{step:06d}"
