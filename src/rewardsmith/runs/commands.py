"""Run a job as a command: find its reward, data and models, show progress, stop on Ctrl-C, print the result."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
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
from rewardsmith.recipe import load_table, parse_models
from rewardsmith.rewards.component import Component
from rewardsmith.runs.lookup import find_reward, find_source
from rewardsmith.runs.model_registry import ModelRegistry, usage_line
from rewardsmith.runs.progress import Progress
from rewardsmith.trainers.trainer import Update

if TYPE_CHECKING:
    from rewardsmith.engines.protocol import Engine

Input = Literal["reward", "data", "model", "value"]


class CommandOptions(Settings):
    """Flags that every job has as a command."""

    fail_above: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="end with status 1 if more than this share has no result",
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

    models: Path = Field(description="TOML file with [models.NAME] tables, such as a recipe")


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


def run_command(kind: type[Job], values: Mapping[str, Any], overrides: Sequence[str] = ()) -> int:
    """Run a job with flags by the name of the setting; return the exit status.

    `overrides` are `KEY.PATH=VALUE` changes of the file that the reward or the models come from.
    """
    own = {name: value for name, value in values.items() if name in kind.model_fields}
    flags: dict[str, Any] = {name: value for name, value in values.items() if name not in own}
    options = _validated(CommandOptions, {n: v for n, v in flags.items() if n in CommandOptions.model_fields})
    inputs = CommandInputs()
    for name, info in kind.model_fields.items():
        if name in own and (found := input_kind(info)) != "value" and own[name] is not None:
            own[name] = inputs.find(found, own[name], flags, overrides)
    job = _validated(kind, own)
    if "models" in flags:
        inputs.load_models(flags["models"], job, overrides)
    inputs.require_used(overrides)
    return CommandRun(job, inputs, options).run()


def _validated(kind: type[Any], values: Mapping[str, Any]) -> Any:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [_as_flag(kind, problem) for problem in problems_of(error, kind, owner="this command")]
        raise UserError("\n".join(map(str, problems))) from None


def _as_flag(kind: type[Any], problem: Problem) -> Problem:
    """Name a setting as one writes it on the command line."""
    if not problem.path or problem.path in getattr(kind, "arguments", ()):
        return Problem(problem.path.upper(), problem.message, problem.value)
    return Problem(f"--{problem.path.replace('_', '-')}", problem.message, problem.value)


class CommandInputs:
    """The reward, data and models that a command names, as the tables of a recipe."""

    def __init__(self) -> None:
        self.models: Mapping[str, Chosen] = {}
        self.data: dict[str, Chosen] = {}
        self.cache: str | None = None
        self.seed = 0
        self.warnings: Mapping[str, str] = {}
        self._overridden = False

    def find(self, kind: Input, value: str, flags: Mapping[str, Any], overrides: Sequence[str]) -> Any:
        """Return what a flag stands for."""
        if kind == "reward":
            found = find_reward(value, overrides)
            self._add_models(found.models)
            self.cache, self.seed = found.cache, found.seed
            self.warnings, self._overridden = {**self.warnings, **found.warnings}, True
            return found.reward
        if kind == "data":
            self.data[value] = find_source(value, flags.get("source") or ())
            return value
        return value

    def _add_models(self, models: Mapping[str, Chosen]) -> None:
        """Add the models of another reward; one name cannot stand for two models."""
        twice = next((name for name, model in models.items() if self.models.get(name, model) != model), None)
        if twice is not None:
            raise UserError(f"two rewards have different tables [models.{twice}]: rename one of the models")
        self.models = {**self.models, **models}

    def load_models(self, file: Path, job: Job, overrides: Sequence[str]) -> None:
        """Take the models of a TOML file, of which the job names one or more."""
        table = load_table(file, overrides)
        found = parse_models({n: table[n] for n in ("models", "cache") if n in table}, job, source=str(file))
        self.models, self.cache, self.seed, self._overridden = found.models, found.cache, table.get("seed", 0), True

    def require_used(self, overrides: Sequence[str]) -> None:
        """Refuse overrides that change nothing."""
        if overrides and not self._overridden:
            raise UserError(f"{overrides[0]!r}: this command reads no recipe that could be changed; leave it out")


class CommandRun:
    """One job as a command; its `JobContext`."""

    def __init__(self, job: Job, inputs: CommandInputs, options: CommandOptions) -> None:
        self._job, self._inputs, self._options = job, inputs, options
        self._progress = Progress(Console(stderr=True))
        self._folder: Path | None = None
        self.seed: int = getattr(job, "seed", inputs.seed)
        self.fresh = options.fresh
        self.log = self._progress.log
        self._display = ExitStack()
        self._phase, self._done = "", 0
        self._print_prompts = PromptPrinter(options.show_prompts, self.log) if options.show_prompts else None
        self._models = ModelRegistry(
            inputs.models,
            seed=inputs.seed,
            folder=lambda: self.folder,
            log=self.log,
            cache=inputs.cache,
            on_open=self._warn,
        )

    @property
    def model_tables(self) -> Mapping[str, Chosen]:
        """The models that the command names."""
        return self._inputs.models

    @property
    def folder(self) -> Path:
        """A folder for logs of servers."""
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="rewardsmith-"))
        return self._folder

    def model(self, name: str) -> Any:
        """Return a model as rewards use it."""
        model = self._models(name)
        return PrintedModel(model, self._print_prompts) if self._print_prompts else model

    def reward(self, chosen: Chosen) -> Component:
        """Return a reward, with its models."""
        return Component.root(chosen, self.log, self.model)

    def source(self, name: str) -> Any:
        """Return the data source of a flag."""
        return open_source(name, self._inputs.data[name])

    def progress(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        """Show a progress bar for each phase; a phase that starts again gets a new one."""
        if phase != self._phase or done < self._done:
            self._display.close()
            self._display.enter_context(self._progress.stage(phase, total, done - 1, unit=unit))
        self._phase, self._done = phase, done
        self._progress.step(Update(done))

    def pause(self) -> None:
        """Ctrl-C raises where it comes: nothing is to be saved here."""

    def _warn(self, engine: Engine) -> None:
        if engine.name in self._inputs.warnings:
            self.log(f"warning: {self._inputs.warnings[engine.name]}")

    def run(self) -> int:
        """Run the job, print its result, and return the exit status."""
        try:
            with stoppable(), self._display:
                result = asyncio.run(self._run())
        except KeyboardInterrupt:
            sys.stderr.write("stopped. The same command continues with the results and replies that it saved\n")
            return 130
        if self._folder is not None:
            rmtree(self._folder, ignore_errors=True)
        if self._options.as_json:
            print_json(result.as_json())
        else:
            print_tables([*result.tables, *result.notes])
        return int(result.failed >= 1 or result.failed > self._options.fail_above)

    async def _run(self) -> Result:
        try:
            result = await self._job.run(self)
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


# ---- --show-prompts --------------------------------------------------------------------------------------------------


@dataclass
class PromptPrinter:
    """Prints the next `left` calls of all models together, each prompt with its reply."""

    left: int
    write: Callable[[str], None]
    number: int = 0

    def next(self) -> int | None:
        """Return the number of a call, from 1; None when enough were printed."""
        if self.left <= 0:
            return None
        self.left -= 1
        self.number += 1
        return self.number

    def show(self, number: int, model: str, details: str, prompt: Conversation | str, reply: str) -> None:
        """Print a prompt and its reply together, so that concurrent calls do not mix."""
        messages = [("", prompt)] if isinstance(prompt, str) else [(one.role, one.content) for one in prompt]
        text = "\n".join(f"[{role}]\n{content}" if role else content for role, content in messages)
        self.write(f"--- prompt {number} to {model}{details}:\n{text}\n--- reply {number} of {model}:\n{reply}\n---")


class PrintedModel(WrappedModel):
    """A model whose first calls are printed."""

    def __init__(self, model: Any, printer: PromptPrinter) -> None:
        super().__init__(model)
        self._printer = printer

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply, and print both."""
        number = self._printer.next()
        if number is None:
            return await super().chat(question)
        text = "(nothing)"
        try:
            reply = await super().chat(question)
            text = _reply_text(reply)
        except BaseException as error:
            text = f"(no reply: {error or type(error).__name__})"
            raise
        finally:
            retry = f" (attempt {question.attempt + 1})" if question.attempt else ""
            details = f"{retry}, temperature {question.temperature:g}, max_tokens {question.max_tokens}"
            self._printer.show(number, self.name, details, question.prompt, text)
        return reply

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the model's numbers, and print them with the conversations."""
        values = await super().rate(conversations)
        for conversation, value in zip(conversations, values, strict=False):
            number = self._printer.next()
            if number is None:
                break
            self._printer.show(number, self.name, " (rate)", conversation, f"{value:g}")
        return values


def _reply_text(reply: ChatReply) -> str:
    thought = f"(thought)\n{reply.thought}\n(answer)\n" if reply.thought else ""
    notes = [note for note, holds in (("truncated", reply.truncated), ("from the cache", reply.cached)) if holds]
    return f"{thought}{reply.text}" + (f"\n({', '.join(notes)})" if notes else "")
