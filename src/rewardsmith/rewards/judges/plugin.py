"""Plug-in files of other systems, unchanged, as a reward.

    rm_preprocess(text_prompts, text_responses, tgt_tokenizer) -> list[str]
    rm_postprocess(results) -> list[float]

Both get whole lists, in killable workers and with a deadline. If one raises, hangs or ends its process, it is called
again with one entry at a time, so that one bad text fails alone. The first half of this module runs in the trainer, the
second half in a worker, which returns JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.llm import settle
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.hooks import MEMORY, call_in_worker, finite_number, unless_halted
from rewardsmith.rewards.judges.judge import DEFAULT_REQUEST, ChatModelName, Judge, Question, Request, failed_score
from rewardsmith.rewards.pool import Call, shared
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.text.judge_prompts import question_of
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.quoting import harmless
from rewardsmith.types import Prompt, RolloutGroup, Score

RM_PROMPT = "rm_prompt"
"""Field of info in which the data of other systems has the judge's prompt."""

LOAD_TIMEOUT = 120.0
"""Seconds to import a plug-in and its tokenizer, whose libraries are large."""

PREPROCESS, POSTPROCESS = "rm_preprocess", "rm_postprocess"
_PACKAGE = "verl.workers.reward_function"


class Plugin(Judge):
    """Send the prompts that a plug-in file writes to a model, and take the values that it finds in the replies.

    The model continues the prompts as they are: the file applies the chat template itself.
    """

    def __init__(
        self,
        *,
        model: ChatModelName,
        file: Annotated[str, Field(min_length=1, description="path of the plug-in")],
        tokenizer: Annotated[str | None, Field(description="folder or Hugging Face id; not set: None")] = None,
        prompt_field: Annotated[
            str | None, Field(description="its text_prompts, in info; not set: rm_prompt, or the question")
        ] = None,
        deadline: Annotated[float, Field(gt=0, description="seconds for one call of a function of the file")] = 10.0,
        memory: Annotated[int, Field(ge=16, description="MiB that a worker may use for a call")] = MEMORY,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        super().__init__(model, request)
        path = Path(file).resolve()
        if not path.is_file():
            raise UserError(f"there is no plug-in {file!r}: give the path of a Python file")
        self._field, self._file_deadline, self._memory = prompt_field, deadline, memory
        arguments = {"tokenizer": tokenizer and os.path.expanduser(tokenizer)}
        self._call = Call(str(path), arguments, version=file_version(path), loader=f"{__name__}:load_plugin")

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks the field that is named; the file is not called."""
        self._text_prompt(prompt)

    async def check(self) -> None:
        """Raise if the judge cannot work, or the file or its tokenizer cannot be loaded."""
        await shared().load(self._call, limit=LOAD_TIMEOUT)
        await super().check()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout: the plug-in writes all prompts at once, and gets all replies at once."""
        # The plug-in writes the turns of the chat itself, so the role tokens in a response are broken before.
        responses = [harmless(rollout.text) for rollout in group.rollouts]
        prompts = await self._each(PREPROCESS, self._text_prompt(group.prompt), responses)
        distinct = list(dict.fromkeys(prompt for prompt in prompts if isinstance(prompt, str)))
        replies = dict(zip(distinct, await settle(self.request(Question(p)) for p in distinct), strict=True))
        parsed = {prompt: reply for prompt, reply in replies.items() if not isinstance(reply, Exception)}
        values = await self._each(POSTPROCESS, "", [reply.value for reply in parsed.values()])
        scores = {prompt: failed_score(error) for prompt, error in replies.items() if isinstance(error, Exception)}
        for (prompt, reply), value in zip(parsed.items(), values, strict=True):
            score = failed_score(value) if isinstance(value, Exception) else Score(value)
            scores[prompt] = replace(score, feedback=reply.feedback)
        return tuple(scores[one] if isinstance(one, str) else failed_score(one) for one in prompts)

    def parse(self, reply: str, about: None) -> str:
        """Return the reply: the plug-in parses all of a group together."""
        return reply

    async def _each(self, name: str, question: str, texts: list[str]) -> list[Any]:
        """Return what a function of the file makes of each text, or a `CannotScore`."""
        if not texts:
            return []
        try:
            task = (name, question, texts)
            found = await call_in_worker(shared(), self._call, task, name, self._file_deadline, self._memory)
            return [one[0] if len(one) == 1 else CannotScore(*one) for one in found]
        except CannotScore as error:
            if len(texts) == 1:
                return [error]
        alone = await asyncio.gather(*(self._each(name, question, [text]) for text in texts))
        return [one for (one,) in alone]

    def _text_prompt(self, prompt: Prompt) -> str:
        found = extra(prompt, self._field or RM_PROMPT)
        if self._field is not None and not isinstance(found, str):
            raise CannotScore("invalid", f"the prompt {prompt.id!r} has no text {self._field!r}")
        return found if isinstance(found, str) else question_of(prompt)


def file_version(file: Path) -> str:
    """Return what changes when a Python file of the folder does."""
    stats = [(path.name, path.stat()) for path in sorted(file.parent.glob("*.py"))]
    return hashlib.sha256(repr([(name, s.st_mtime_ns, s.st_size) for name, s in stats]).encode()).hexdigest()


# ---- in the worker -------------------------------------------------------------------------------------------------


def load_plugin(path: str, *, tokenizer: str | None = None) -> Callable[[tuple[str, str, list[str]], str], list[Any]]:
    """Return a function that calls one of the two functions of a plug-in file.

    It takes `(name of the function, question, texts)`, and returns for each text `[value]` or `[kind, detail]`.
    """
    file = PythonFile(path)
    module = file.module
    for needed in (PREPROCESS, POSTPROCESS):
        if not callable(getattr(module, needed, None)):
            raise UserError(f"it has no function {needed}")
    loaded = None
    if tokenizer is not None:
        from transformers import AutoTokenizer  # noqa: PLC0415 only plug-ins need it

        try:
            loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
        except Exception as error:  # noqa: BLE001 it raises many kinds
            raise UserError(f"tokenizer = {tokenizer!r}: {type(error).__name__}: {str(error)[:300]}") from None

    def call(task: tuple[str, str, list[str]], _: str) -> list[Any]:
        with file.importable():
            return unless_halted(_called, module, loaded, *task)

    return call


def _called(module: ModuleType, tokenizer: Any, name: str, question: str, texts: list[str]) -> list[Any]:
    function = getattr(module, name)
    values = function([question] * len(texts), texts, tokenizer) if name == PREPROCESS else function(texts)
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} returned a {type(values).__name__}: it must return a list")
    found = list(islice(values, len(texts) + 1))
    if len(found) != len(texts):
        raise TypeError(f"{name} returned {len(found)} values for {len(texts)} texts")
    return [_checked(name, one) for one in found]


def _checked(name: str, one: object) -> list[Any]:
    try:
        if name == PREPROCESS and not isinstance(one, str):
            raise TypeError(f"{name} returned a {type(one).__name__} as a prompt: it must be text")
        return [one if name == PREPROCESS else finite_number(one, name)]
    except Unparsable as error:
        return ["invalid", str(error)]
    except TypeError as error:
        return ["crashed", f"TypeError: {error}"]


class PythonFile:
    """A file of a user as a module, and a finder for the Python files of its folder.

    They can be imported by name, as relative imports, and from `verl.workers.reward_function`, where plug-ins come
    from. Between calls they are removed: files of other folders may have the same names.
    """

    def __init__(self, path: str) -> None:
        folder = Path(path).parent
        self._folder = str(folder)
        packages = [path.parent.name for path in folder.glob("*/__init__.py")]
        self._names = {*packages, *(path.stem for path in folder.glob("*.py"))} - sys.stdlib_module_names
        package = ModuleType(_PACKAGE)
        package.__path__ = [self._folder]
        self._modules = {_PACKAGE: package}
        name = f"{_PACKAGE}.{Path(path).stem}"  # its name where it comes from: relative imports then work
        with self.importable():
            spec = importlib.util.spec_from_file_location(name, path)
            if spec is None or spec.loader is None:
                raise UserError("it is not a Python file")
            self.module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.module)

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Let them be imported inside the block."""
        hidden = self._take_out()
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self)  # it has what is needed of a finder
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            self._modules = self._take_out()
            sys.modules.update(hidden)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of the folder; None for others."""
        return PathFinder.find_spec(name, [self._folder]) if name in self._names else None

    def _take_out(self) -> dict[str, ModuleType]:
        """Remove the modules of this folder, or of another with the same names, from `sys.modules`."""
        names = [name for name in sys.modules if name.partition(".")[0] in self._names or name.startswith(_PACKAGE)]
        return {name: sys.modules.pop(name) for name in names}
