"""Plug-in files of other systems, unchanged, as a reward.

    rm_preprocess(text_prompts, text_responses, tgt_tokenizer) -> list[str]
    rm_postprocess(results) -> list[float]

Both get whole lists, in killable workers and with a deadline. If one raises, hangs or ends its process, it is called
again with one entry at a time, so that one bad text fails alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.llm import settle
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.hooks import MEMORY, call_in_worker
from rewardsmith.rewards.judges.judge import DEFAULT_REQUEST, ChatModelName, Judge, Question, Request, failed_score
from rewardsmith.rewards.judges.plugin_worker import POSTPROCESS, PREPROCESS, load_tokenizer
from rewardsmith.rewards.pool import Call, shared
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.text.judge_prompts import question_of
from rewardsmith.text.quoting import harmless
from rewardsmith.types import Prompt, RolloutGroup, Score

RM_PROMPT = "rm_prompt"
"""Field of info in which the data of other systems has the judge's prompt."""

LOAD, LOAD_TOKENIZER = 60.0, 300.0
"""Seconds to import a plug-in; the same with a tokenizer, whose libraries are large."""

_LOADER = "rewardsmith.rewards.judges.plugin_worker:load_plugin"


class Plugin(Judge):
    """Send the prompts that a plug-in file writes to a model, and take the values that it finds in the replies.

    The model continues the prompts as they are: the file applies the chat template itself.
    """

    def __init__(
        self,
        *,
        model: ChatModelName,
        file: Annotated[str, Field(min_length=1, description="path of the plug-in")],
        tokenizer: Annotated[
            str | None, Field(min_length=1, description="folder or Hugging Face id; not set: the file gets None")
        ] = None,
        prompt_field: Annotated[
            str | None,
            Field(min_length=1, description="its text_prompts, in info; not set: rm_prompt, or the question"),
        ] = None,
        deadline: Annotated[float, Field(gt=0, description="seconds for one call of a function of the file")] = 10.0,
        memory: Annotated[int, Field(ge=16, description="MiB that a worker may use for a call")] = MEMORY,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        super().__init__(model, request)
        path = Path(file).resolve()
        if not path.is_file():
            raise UserError(f"there is no plug-in {file!r}: give the path of a Python file")
        self._file, self._path, self._tokenizer, self._field = file, path, tokenizer, prompt_field
        self._limits: dict[str, Any] = {"deadline": deadline, "memory": memory}
        self._version = _version(path)
        self._ready = tokenizer is None
        self._load(None)

    def _load(self, tokenizer: str | None) -> None:
        self._call = Call(str(self._path), {"tokenizer": tokenizer}, version=self._version, loader=_LOADER)
        try:
            shared().load_now(self._call, limit=LOAD if tokenizer is None else LOAD_TOKENIZER)
        except UserError as error:
            why = str(error).removeprefix(f"{self._path} cannot be loaded: ")
            raise UserError(f"the plug-in {self._file!r} cannot be loaded ({why})") from None

    async def _load_tokenizer(self) -> None:
        if self._ready or self._tokenizer is None:
            return
        if not os.path.isdir(os.path.expanduser(self._tokenizer)):  # a download may take longer than a worker may
            await asyncio.to_thread(load_tokenizer, self._tokenizer)
        await asyncio.to_thread(self._load, self._tokenizer)
        self._ready = True

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks the field that is named; the file is not called."""
        self._text_prompt(prompt)

    async def check(self) -> None:
        """Raise if the judge cannot work, or the tokenizer cannot be loaded."""
        await self._load_tokenizer()
        await super().check()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout: the plug-in writes all prompts at once, and gets all replies at once."""
        await self._load_tokenizer()
        prompts = await self._prompts(self._text_prompt(group.prompt), [rollout.text for rollout in group.rollouts])
        distinct = list(dict.fromkeys(prompt for prompt in prompts if isinstance(prompt, str)))
        replies = dict(zip(distinct, await settle(self.ask(Question(p)) for p in distinct), strict=True))
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

    async def _prompts(self, question: str, responses: Sequence[str]) -> list[str | Exception]:
        """Return the text that the judge continues for each response, or what was raised instead.

        The plug-in writes the turns of the chat itself, so the role tokens in a response are broken before.
        """
        made = await self._each(PREPROCESS, question, [harmless(response) for response in responses])
        return [self._explained(one) if isinstance(one, CannotScore) else one for one in made]

    def _explained(self, error: CannotScore) -> CannotScore:
        """Name the remedy where the plug-in needs the tokenizer that it was not given."""
        missing = str(error).startswith(("AttributeError: ", "TypeError: ")) and "'NoneType'" in str(error)
        if self._tokenizer is not None or not missing:
            return error
        return CannotScore(error.kind, f'{error}. The plug-in has no tokenizer: set tokenizer = "…" to the judge\'s')

    async def _each(self, name: str, question: str, texts: list[str]) -> list[Any]:
        """Return what a function of the file makes of each text, or a `CannotScore`."""
        if not texts:
            return []
        try:
            return await self._called(name, question, texts)
        except CannotScore as error:
            if len(texts) == 1:
                return [error]
        alone = await settle(self._called(name, question, [text]) for text in texts)
        return [one if isinstance(one, Exception) else one[0] for one in alone]

    async def _called(self, name: str, question: str, texts: list[str]) -> list[Any]:
        task: Any = (name, question, texts)
        found = await call_in_worker(shared(), self._call, (task, ""), name, **self._limits)
        return [one[0] if len(one) == 1 else CannotScore(*one) for one in found]

    def _text_prompt(self, prompt: Prompt) -> str:
        found = extra(prompt, self._field or RM_PROMPT)
        if self._field is not None and not isinstance(found, str):
            raise CannotScore("invalid", f"the prompt {prompt.id!r} has no text {self._field!r}")
        return found if isinstance(found, str) else question_of(prompt)


def _version(file: Path) -> str:
    """Return what changes when a Python file of the folder does."""
    stats = [(path.name, path.stat()) for path in sorted(file.parent.glob("*.py")) if path.exists()]
    found = "".join(f"{name}:{stat.st_mtime_ns}:{stat.st_size}\n" for name, stat in stats)
    return hashlib.sha256(found.encode()).hexdigest()
