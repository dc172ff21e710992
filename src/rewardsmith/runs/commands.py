"""Run a job as a command: find its reward, data and models, show progress, stop on Ctrl-C, print the result."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo
from rich.console import Console

from rewardsmith.config import Choice, Chosen, Refers, Settings, problems_of
from rewardsmith.console import print_json, print_tables
from rewardsmith.data import open_source
from rewardsmith.errors import Problem, UserError
from rewardsmith.jobs import Job, Result
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, WrappedModel
from rewardsmith.recipe import load_table, parse_models, require_models
from rewardsmith.rewards.component import Component
from rewardsmith.runs.lookup import NamedModel, NamedReward, find_model, find_reward, find_source
from rewardsmith.runs.model_registry import ModelRegistry, usage_line
from rewardsmith.runs.progress import QUIET_SECONDS, Progress
from rewardsmith.trainers.trainer import Update
from rewardsmith.types import RolloutGroup

if TYPE_CHECKING:
    from rewardsmith.engines.protocol import Engine

Input = Literal["reward", "data", "model", "value"]


class CommandOptions(Settings):
    """Flags that every job has as a command."""

    fail_above: float = Field(
        default=1.0, ge=0, le=1, description="end with status 1 if more than this share has no result"
    )
    fresh: bool = Field(default=False, description="discard the results of an earlier start of this command")
    show_prompts: int = Field(default=0, ge=0, description="print the first N requests to models, with their replies")
    as_json: bool = Field(default=False, description="print JSON instead of tables")


class SourceOptions(Settings):
    """Flags of a job that reads data."""

    source: list[str] = Field(
        default=[], description="KEY=VALUE: a setting of the data source, such as columns.candidates=mt_texts"
    )


class ModelOptions(Settings):
    """Flags of a job that calls a model without a reward."""

    models: Path | None = Field(default=None, description="TOML file with [models.NAME] tables, such as a recipe")


def input_kind(info: FieldInfo) -> Input:
    """Return how a setting of a job is given on the command line."""
    inner = (mark for kind in get_args(info.annotation) for mark in getattr(kind, "__metadata__", ()))
    for mark in (*info.metadata, *inner):
        if isinstance(mark, Choice):
            return "reward"
        if isinstance(mark, Refers):
            return "data" if mark.table == "data" else "model"
    return "value"


def option_classes(job: type[Job]) -> list[type[Settings]]:
    """Return the classes whose fields are flags of the command, apart from the job's own."""
    kinds = {input_kind(info) for info in job.model_fields.values()}
    return [
        *([SourceOptions] if "data" in kinds else []),
        *([ModelOptions] if "model" in kinds and "reward" not in kinds else []),
        CommandOptions,
    ]


def inner_tables(job: type[Settings]) -> dict[str, type[Settings]]:
    """Return the settings of a job that are tables; on the command line the settings in them are flags."""
    kinds = {name: info.annotation for name, info in job.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Settings)}


def flags_of(settings: type[Settings]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the settings that are flags or arguments of a command, those of inner tables among them."""
    tables = inner_tables(settings)
    for name, info in settings.model_fields.items():
        yield from tables[name].model_fields.items() if name in tables else [(name, info)]


def run_command(kind: type[Job], values: Mapping[str, Any], overrides: Sequence[str] = ()) -> int:
    """Run a job with flags by the name of the setting; return the exit status.

    `overrides` are `KEY.PATH=VALUE` changes of the file that the reward or the models come from.
    """
    own = {name: value for name, value in values.items() if name in kind.model_fields}
    tables = inner_tables(kind).items()
    own |= {name: {key: values[key] for key in table.model_fields if key in values} for name, table in tables}
    flags: dict[str, Any] = {name: value for name, value in values.items() if name not in own}
    options = validated(CommandOptions, {n: v for n, v in flags.items() if n in CommandOptions.model_fields})
    inputs = CommandInputs()
    own = kind.fill(own, inputs, overrides)
    for name, info in kind.model_fields.items():
        value, given_as = own.get(name), input_kind(info)
        if not isinstance(value, str):  # not set, or found already
            continue
        if given_as == "reward":
            own[name] = inputs.add_reward(value, overrides)
        elif given_as == "data" and value not in inputs.data:
            inputs.data[value] = find_source(value, flags.get("source") or (), keep_ids=kind.keeps_ids)
        elif given_as == "model" and flags.get("models") is None and value not in inputs.models:
            own[name] = inputs.add_model(value, f"--{name}", overrides)
    if "overrides" in kind.model_fields:  # the job reads the recipe itself
        own["overrides"], overrides = list(overrides), ()
    job = validated(kind, own)
    if flags.get("models") is not None:
        inputs.add_models(flags["models"], job, overrides)
    elif "models" in flags:
        require_models(job, inputs.models, source="this command")
    elif overrides and not any(input_kind(info) == "reward" for info in kind.model_fields.values()):
        raise UserError(f"{overrides[0]!r}: this command reads no recipe that could be changed; leave it out")
    return CommandRun(job, inputs, options).run()


def validated(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Return a job or its options; a `UserError` names settings as one writes them on the command line."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [_as_flag(kind, problem) for problem in problems_of(error, kind, owner="this command")]
        raise UserError("\n".join(map(str, problems))) from None


def _as_flag(kind: type[Any], problem: Problem) -> Problem:
    """Name a setting as one writes it on the command line."""
    table, _, inner = problem.path.partition(".")
    if table in inner_tables(kind):
        problem = Problem(inner, problem.message, problem.value)
    if not problem.path or problem.path in getattr(kind, "arguments", ()):
        return Problem(problem.path.upper(), problem.message, problem.value)
    return Problem(f"--{problem.path.replace('_', '-')}", problem.message, problem.value)


@dataclass
class CommandInputs:
    """The rewards, data and models that a command names, as the tables of a recipe."""

    models: dict[str, Chosen] = field(default_factory=dict)
    data: dict[str, Chosen] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    cache: str | None = None
    seed: int = 0
    given: dict[str, Any] = field(default_factory=dict)  # Python objects that are used as models
    notes: list[str] = field(default_factory=list)  # what was chosen for the user, for the result

    def add_reward(self, place: str, overrides: Sequence[str]) -> Chosen:
        """Return the reward at a place, and take its models; one name cannot stand for two models."""
        found = find_reward(place, overrides)
        twice = next((name for name, model in found.models.items() if self.models.get(name, model) != model), None)
        if twice is not None:
            raise UserError(f"two rewards have different tables [models.{twice}]: rename one of the models")
        self.take(found)
        return found.reward

    def add_model(self, place: str, flag: str, overrides: Sequence[str]) -> str:
        """Take the model at a place, and the others of its file; return its name."""
        found = find_model(place, flag, overrides)
        self.take(found)
        return found.name

    def take(self, found: NamedReward | NamedModel) -> None:
        """Take the models of a file, with its cache and seed."""
        self.models |= found.models
        self.warnings |= found.warnings
        self.cache, self.seed = found.cache, found.seed

    def add_models(self, file: Path, job: Job, overrides: Sequence[str]) -> None:
        """Take the models of a TOML file, of which the job names one or more."""
        table = load_table(file, overrides)
        found = parse_models({n: table[n] for n in ("models", "cache") if n in table}, job, source=str(file))
        self.models, self.cache, self.seed = found.models, found.cache, table.get("seed", 0)


class CommandRun:
    """One job as a command; its `JobContext`."""

    def __init__(
        self, job: Job, inputs: CommandInputs, options: CommandOptions, stop: threading.Event | None = None
    ) -> None:
        self._job, self._inputs, self._options, self._stop = job, inputs, options, stop
        self._progress = Progress(Console(stderr=True))
        self._folder: Path | None = None
        self.model_tables: Mapping[str, Chosen] = inputs.models
        self.seed: int = getattr(job, "seed", inputs.seed)
        self.fresh = options.fresh
        self.log = self._progress.log
        self._display = ExitStack()
        self._phase, self._done, self._begun, self._shown = "", 0, 0.0, 0.0
        self._prompt_numbers = iter(range(1, options.show_prompts + 1))
        self._models = ModelRegistry(
            inputs.models, seed=inputs.seed, folder=lambda: self.folder, log=self.log, cache=inputs.cache,
            on_open=self._warn, given=inputs.given,
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """A folder for logs of servers."""
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="rewardsmith-"))
        return self._folder

    def model(self, name: str) -> Any:
        """Return a model as rewards use it."""
        model = self._models(name)
        return PrintedModel(model, self._prompt_numbers, self.log) if self._options.show_prompts else model

    def reward(self, chosen: Chosen) -> Component:
        """Return a reward, with its models."""
        return Component.root(chosen, self.log, self.model)

    def engine(self, name: str) -> Any:
        """Return an embedded model, loaded on first use."""
        engine = self._models.engine(name)
        return PrintedEngine(engine, self._prompt_numbers, self.log) if self._options.show_prompts else engine

    def on_device(self, *names: str) -> AbstractAsyncContextManager[None]:
        """Keep these models on the device."""
        return self._models.on_device(*names)

    def source(self, name: str) -> Any:
        """Return the data source of a flag."""
        return open_source(name, self._inputs.data[name])

    def progress(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        """Show a progress bar for each phase; a phase that starts again gets a new one."""
        now = time.monotonic()
        if phase != self._phase or done < self._done:
            self._display.close()
            self._display.enter_context(self._progress.stage(phase, total, done - bool(done), unit=unit))
            self._begun = now
        elif done == self._done and now - self._shown < QUIET_SECONDS:
            return
        self._phase, self._done, self._shown = phase, done, now
        seconds = now - self._begun
        self._progress.step(Update(done, {"tokens/s": tokens / seconds} if tokens and seconds >= 1 else {}))

    def pause(self) -> None:
        """Raise if the caller of another thread stops; Ctrl-C raises where it comes: nothing is to be saved here."""
        if self._stop is not None and self._stop.is_set():
            raise KeyboardInterrupt

    def _warn(self, engine: Engine) -> None:
        if engine.name in self._inputs.warnings:
            self.log(f"warning: {self._inputs.warnings[engine.name]}")

    def result(self) -> Result:
        """Run the job and return its result."""
        with stoppable(), self._display:
            result = asyncio.run(self._run())
        if self._folder is not None:
            rmtree(self._folder, ignore_errors=True)
        return result

    def run(self) -> int:
        """Run the job, print its result, and return the exit status."""
        try:
            result = self.result()
        except KeyboardInterrupt:
            sys.stderr.write("stopped. The same command continues with the results and replies that it saved\n")
            return 130
        if self._options.as_json:
            print_json(result.as_json())
        else:
            print_tables([*result.tables, *result.notes])
        return int(bool(result.problem) or result.failed >= 1 or result.failed > self._options.fail_above)

    async def _run(self) -> Result:
        try:
            result = await self._job.run(self)
            result = replace(result, notes=[*result.notes, *self._inputs.notes])
            usage = self._models.totals()
            for name, used in usage.items():
                self.log(f"{name}: {usage_line(used)}")
            return replace(result, facts={**result.facts, "models": {name: asdict(one) for name, one in usage.items()}})
        finally:
            await self._models.close()


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class PrintedModel(WrappedModel):
    """A model whose calls are printed, each prompt with its reply, as long as all models together have `numbers`."""

    def __init__(self, model: Any, numbers: Iterator[int], write: Callable[[str], None]) -> None:
        super().__init__(model)
        self._numbers, self._write = numbers, write

    @property
    def uncached(self) -> Any:
        """The same model without a cache; its calls are printed too."""
        return PrintedModel(getattr(self.model, "uncached", self.model), self._numbers, self._write)

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply, and print both."""
        number = next(self._numbers, None)
        if number is None:
            return await super().chat(question)
        text = ""
        try:
            reply = await super().chat(question)
            thought = f"(thought)\n{reply.thought}\n(answer)\n" if reply.thought else ""
            text = f"{thought}{reply.text}{' (truncated)' * reply.truncated}{' (from the cache)' * reply.cached}"
        except BaseException as error:
            text = f"(no reply: {error or type(error).__name__})"
            raise
        finally:
            details = f"attempt {question.attempt + 1}, temperature {question.temperature:g}"
            details = f"{details}, max_tokens {question.max_tokens}"
            self._write(_printed(number, self.name, details, question.prompt, text))
        return reply

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the model's numbers, and print them with the conversations."""
        values = await super().rate(conversations)
        for conversation, value, number in zip(conversations, values, self._numbers, strict=False):
            self._write(_printed(number, self.name, "rate", conversation, f"{value:g}"))
        return values


class PrintedEngine:
    """An engine whose generated groups are printed, each prompt with its first answer."""

    def __init__(self, engine: Engine, numbers: Iterator[int], write: Callable[[str], None]) -> None:
        self._engine, self._numbers, self._write = engine, numbers, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, *arguments: Any, **settings: Any) -> AsyncIterator[tuple[int, RolloutGroup]]:
        """Yield what the engine yields."""
        async for index, group in self._engine.generate(*arguments, **settings):
            if (number := next(self._numbers, None)) is not None:
                details, text = f"answer 1 of {len(group.rollouts)}", group.rollouts[0].text
                self._write(_printed(number, self._engine.name, details, group.prompt.messages, text))
            yield index, group


def _printed(number: int, model: str, details: str, prompt: Conversation | str, reply: str) -> str:
    """Return a prompt and its reply as one text, so that concurrent calls do not mix."""
    text = prompt if isinstance(prompt, str) else "\n".join(f"[{one.role}]\n{one.content}" for one in prompt)
    head = f"--- prompt {number} to {model} ({details}):"
    return f"{head}\n{text}\n--- reply {number} of {model}:\n{reply}\n---"
