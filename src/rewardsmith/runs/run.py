"""Run a recipe: its stages in order, with checkpoints, in one folder."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from rewardsmith.config import Chosen, import_name
from rewardsmith.data import Source, open_source
from rewardsmith.engines.managed.server_process import Launch
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Engine
from rewardsmith.errors import UserError
from rewardsmith.jobs import Result
from rewardsmith.llm import Usage
from rewardsmith.recipe import Recipe, explain
from rewardsmith.rewards.base import Halt
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.pool import shared
from rewardsmith.rewards.tree import check, connect, load
from rewardsmith.runs.folder import RECIPE, SUMMARY, RunFolder
from rewardsmith.runs.lineage import Lineage
from rewardsmith.runs.memory import check_memory
from rewardsmith.runs.model_registry import ModelRegistry, add_usage
from rewardsmith.runs.preflight import RewardTrees, check_recipe
from rewardsmith.runs.progress import LOG, Progress, RunLog
from rewardsmith.runs.resume import Checkpoint, RunState, read_checkpoint, stage_names
from rewardsmith.runs.run_facts import run_facts
from rewardsmith.runs.summary import Summary
from rewardsmith.runs.trackers import Guarded
from rewardsmith.runs.trained_prompts import check_trained_prompts, write_judge_prompt
from rewardsmith.storage import new_folder, writing
from rewardsmith.text.judge_prompts import PromptIdentity
from rewardsmith.trainers.process.implicit_parts import process_parts
from rewardsmith.trainers.trainer import GroupRecord, Trainer, Update


class Stopped(Exception):  # noqa: N818 it is a request, not an error
    """The user wants the run to stop."""


class Run:
    """One run of a recipe; the `Context` of its trainers."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        progress: Progress,
        rewards: RewardTrees | None = None,
        start_engine: Callable[[ModelSettings, int, str], Engine] | None = None,
        launch_server: Launch | None = None,
        *,
        ignore_memory: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self.recipe = recipe
        self.seed = recipe.seed
        self.folder = folder.path
        self.stop = stop or threading.Event()  # set when the user wants the run to save and end
        self.fresh = False  # a stage that runs again resumes from its own results
        self.run_log = RunLog(self.folder / LOG)
        on = "embedded" if start_engine is None else "verl"
        self._check_memory = partial(check_memory, recipe, self.log, on=on, ignore=ignore_memory)
        self.positioned = False  # whether it is known from where the run resumes
        self.state = RunState(Summary(recipe.title))
        self.progress = progress.within
        self._files = folder
        self._progress = progress
        self._saved: set[str] = set()  # models that checkpoints hold
        self._sources: dict[str, Source] = {}
        self._stage = ""
        self._begun = time.monotonic()
        self._resumed: Checkpoint | None = None
        self._earlier_usage: dict[str, Usage] = {}
        self._judge_prompts: Mapping[str, PromptIdentity] = {}
        if recipe.workers is not None:
            shared(recipe.workers)
        self._models = ModelRegistry(
            recipe.models, seed=recipe.seed, folder=self.folder, log=self.log, cache=recipe.cache,
            on_open=self._load_weights, start=start_engine, launch=launch_server,
        )  # fmt: skip
        self.engine, self.model, self.on_device = self._models.engine, self._models.__call__, self._models.on_device
        self.model_tables = recipe.models
        self._rewards = rewards or RewardTrees(recipe)
        self._lineage = Lineage(recipe, folder, self._identify, self._rewards)
        self._trackers = [Guarded(tracker.name, tracker.build()) for tracker in recipe.trackers]

    def _load_weights(self, engine: Engine) -> None:
        if self._resumed is not None and engine.name in self._saved:
            engine.load(self._files.model(self._resumed.name, engine.name))
        elif engine.settings.copy_of is not None:
            self._saved.add(engine.name)  # its origin may have changed when the run is resumed

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

    def keep_result(self, result: Result) -> None:
        """Write the result of a job."""
        if "audit" in result.facts:
            self.keep_audit("audits", result.facts["audit"])
        else:
            self._files.keep_evaluation(self._stage, {"name": self._stage, "kind": "job", **result.as_json()})

    def keep_audit(self, kind: Literal["audits", "watch"], content: dict[str, Any]) -> None:
        """Write what the audit or the watch of the stage has found."""
        self._files.keep_audit(kind, self._stage, content)

    def log(self, text: str) -> None:
        """Show a message and write it to the log."""
        self.run_log.write(text)
        self._progress.log(text)

    def pause(self) -> None:
        """Raise `Stopped` if the user wants to stop."""
        if self.stop.is_set():
            raise Stopped

    async def go(self) -> None:
        """Run all stages from the last checkpoint on, or from the start."""
        resumed = self._resumed = read_checkpoint(self._files, self.recipe)
        self.positioned = True
        if resumed is not None:
            self._saved, self.state = set(resumed.models), resumed.run
            self._begun = time.monotonic() - self.state.seconds
            self._earlier_usage = self.state.summary.models
            self.log(f"resuming from {resumed.name}")
        summary = self.state.summary
        summary.facts = run_facts(self.recipe.models, summary.facts)
        try:
            self._check_memory()
            await check_recipe(self.recipe, self._rewards, self.source, self._models, self.log)
            self._judge_prompts = check_trained_prompts(self.recipe, self.source, self.log)
            self._rewind(resumed)
            await self._run_stages(resumed)
        finally:
            await self._models.close()

    def _rewind(self, resumed: Checkpoint | None) -> None:
        """Make the folder what it was at the checkpoint from which the run resumes."""
        if resumed is None:
            self._files.clear()
        else:
            # Checkpoints of later stages, where a stage is extended. They go first: one must not outlast its files.
            self._files.prune({name for name in self._files.checkpoints() if name <= resumed.name})
            self._files.rewind(resumed.lengths)
            self._files.keep_evaluations_of(stage_names(self.recipe)[: resumed.stage + (resumed.step > 0)])
        self._files.write(RECIPE, explain(self.recipe))
        self._files.write(SUMMARY, self.state.summary.dumps())

    async def _run_stages(self, resumed: Checkpoint | None) -> None:
        first = 0 if resumed is None else resumed.stage
        self._lineage.resume(first, begun=resumed is not None)
        try:
            for tracker in self._trackers:
                tracker.start(self.folder, self.folder.name, explain(self.recipe))
            for index in range(first, len(self.recipe.stages)):
                await self._run_stage(index, resumed if index == first else None)
            self._publish()
        finally:
            self.state.summary.seconds = self._seconds
            self._sum_usage()
            for tracker in self._trackers:
                tracker.close()

    async def _run_stage(self, index: int, resumed: Checkpoint | None) -> None:
        """Run one stage, from its start or from a checkpoint of it."""
        chosen = self.recipe.stages[index]
        settings: Any = chosen.settings
        self._stage, done = settings.name, 0 if resumed is None else resumed.step
        trainer: Trainer = import_name(settings.runs_by)(settings, self)
        self.state.summary.begin(self._stage, chosen.name, trainer.steps)
        if done < trainer.steps:
            if resumed is not None:
                self._restore(trainer, resumed)
            resuming = f", resuming after {done}" * (done > 0)
            self.run_log.write(f"stage {self._stage} begins: {trainer.steps} steps{resuming}")
            with self._progress.stage(self._stage, trainer.steps, done):
                if trainer.reward is not None:
                    self.progress("checking the reward", 0, 0)
                    await check(trainer.reward)  # this one, whose connections stay open
                self.progress("hashing weights", 0, 0)
                await self._lineage.begin(index, self.source)
                self._saved |= set(trainer.learners)
                self.state.trained = sorted({*self.state.trained, *trainer.learners})
                if resumed is None:
                    update = self._with_usage(await trainer.begin())
                    self._log(update)
                    self._is_best(trainer, update, index)
                else:
                    await trainer.begin_again()
                try:
                    await self._run_steps(index, trainer, settings, done)
                finally:
                    await trainer.close()
            self.run_log.write(f"stage {self._stage} has ended")
        await self._lineage.end(index, trainer)
        for engine in trainer.learners.values():
            engine.stop_learning()  # the next stage has its own optimizer

    def _restore(self, trainer: Trainer, resumed: Checkpoint) -> None:
        for name, engine in trainer.learners.items():
            engine.load_learner(self._files.model(resumed.name, name))
        try:
            trainer.restore(resumed.trainer)
            if trainer.reward is not None:
                load(trainer.reward, self._files.rewards(resumed.name))
        except (KeyError, TypeError) as error:
            raise UserError(
                f"the checkpoint {resumed.name} does not fit the changed recipe ({error!r}): undo the change, or start"
                " a new run with --resume never"
            ) from None

    async def _run_steps(self, index: int, trainer: Trainer, settings: Any, done: int) -> None:
        saving = getattr(settings, "save", None)
        every = (saving and saving.every) or max(1, math.ceil(trainer.steps / 10))
        for number in range(done + 1, trainer.steps + 1):
            before = trainer.state()
            try:
                self.pause()
                update = self._with_usage(await trainer.step(number))
            except (Stopped, Halt):
                self._sum_usage()  # the calls of this step were made, though the step is done again
                if _checkpoint(index, self._stage, number - 1) not in self._files.checkpoints():
                    self._save(index, number - 1, before, trainer)
                raise
            self._log(update)
            is_best = saving is not None and saving.best and self._is_best(trainer, update, index)
            if number % every == 0 or number == trainer.steps or is_best or update.halt is not None:
                self._save(index, number, trainer.state(), trainer)
            if update.halt is not None:
                raise update.halt

    def _with_usage(self, update: Update) -> Update:
        """Add the usage of the models in this step."""
        self._sum_usage()
        return replace(update, metrics={**update.metrics, **self._models.metrics()})

    def _sum_usage(self) -> None:
        self.state.summary.models = add_usage(self._earlier_usage, self._models.totals())

    async def _identify(self, name: str) -> str:
        """Return the identity of a model; of an embedded one a hash of its weights."""
        if isinstance(self.recipe.models[name].settings, ModelSettings):
            return f"embedded:{self.engine(name).digest()}"
        return str(await self.model(name).identity())

    def _log(self, update: Update) -> None:
        if not update.metrics:
            return
        self.state.steps += update.step > 0
        self._files.log(self._stage, update.step, self._seconds, update.metrics)
        self.state.summary.add(self._stage, update, self._seconds)
        for tracker in self._trackers:
            tracker.log(self.state.steps, {f"{self._stage}/{name}": value for name, value in update.metrics.items()})
        self._progress.step(update)

    def _is_best(self, trainer: Trainer, update: Update, index: int) -> bool:
        """Return whether this step has the best validation of its stage so far, and note it if so."""
        name, best = trainer.best_by.removeprefix("-"), self.state.best
        if not name or name not in update.metrics:
            return False
        value = update.metrics[name] * (-1 if trainer.best_by.startswith("-") else 1)
        if not math.isfinite(value) or (self._stage in best and value <= best[self._stage][0]):
            return False
        # The validation before the first step is the value to beat; it has no checkpoint of its own.
        best[self._stage] = (value, _checkpoint(index, self._stage, update.step) if update.step else "")
        return True

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _save(self, index: int, step: int, trainer_state: dict[str, Any], trainer: Trainer) -> None:
        name = _checkpoint(index, self._stage, step)
        if trainer.learners:
            self.state.learned = name
        self.state.seconds = self._seconds
        self.progress("saving a checkpoint", 0, 0)
        facts = {"stage": self._stage, "step": step, "state": trainer_state, "run": asdict(self.state)}
        self._files.save(name, facts, {model: self.engine(model) for model in self._saved}, trainer.reward)
        saving = [s.settings.save for s in self.recipe.stages if hasattr(s.settings, "save")]
        # A later name is from before the recipe lost a stage: it must not pass for the last checkpoint.
        ours = [other for other in self._files.checkpoints() if other <= name]
        last = ours[-max((s.keep for s in saving), default=1) :]
        needed = {self.state.learned, *(checkpoint for _, checkpoint in self.state.best.values())}
        self._files.prune({*last, *needed.intersection(ours)})

    def _publish(self) -> None:
        """Write every trained model, and every copy that an implicit reward compares with, as an ordinary folder."""
        parts: list[Any] = [part.settings for stage in self.recipe.stages for part in process_parts(stage).values()]
        for name in sorted({*self.state.trained, *(self._saved & {part.reference_model for part in parts})}):
            self.log(f"writing models/{name}")
            with writing(self.folder), new_folder(self.folder / "models" / name) as folder:
                self.engine(name).publish(folder)
                write_judge_prompt(folder, self._judge_prompts.get(name, {}))


def _checkpoint(index: int, stage: str, step: int) -> str:
    return f"{index + 1:02d}-{stage}-{step:06d}"
