"""Plug-in files of other systems, unchanged, as a reward."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.asking import AS_USUAL, Asker, Asking, AsksOne, JudgeName, failed_score, judged
from rewardsmith.rewards.judges.hooks import MEMORY
from rewardsmith.rewards.judges.plugin_file import PluginFile
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.text.judge_prompts import question_of
from rewardsmith.types import Prompt, RolloutGroup, Score

RM_PROMPT = "rm_prompt"
"""Where the data of other systems has the judge's prompt."""


class Plugin(AsksOne):
    """Ask a model with the prompts that a plug-in file makes, and take the values that it reads from the answers.

    The file has `rm_preprocess(text_prompts, text_responses, tgt_tokenizer)` and `rm_postprocess(results)`. The prompts
    are continued as they are: the file applies the chat template itself. It runs in worker processes.

    Attributes:
        deadline: seconds for one answer of the judge.
    """

    def __init__(
        self,
        *,
        model: JudgeName,
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
        asking: Asking = AS_USUAL,
    ) -> None:
        self._file = PluginFile(file, tokenizer, deadline=deadline, memory=memory)
        self._field = prompt_field
        self._asker = Asker(model, asking)
        self.deadline = asking.deadline

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks the column that is named; the file is not called."""
        self._text_prompt(prompt)

    async def check(self) -> None:
        """Raise if the judge cannot work, or the tokenizer cannot be loaded."""
        await self._file.ready()
        await super().check()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout: the plug-in makes all prompts at once, and reads all answers at once."""
        await self._file.ready()
        texts = [rollout.text for rollout in group.rollouts]
        prompts = await self._file.prompts(self._text_prompt(group.prompt), texts)
        keys: list[Hashable] = [i if isinstance(prompt, Exception) else prompt for i, prompt in enumerate(prompts)]
        answers: dict[Hashable, str] = {}

        async def one(key: Hashable) -> Score:
            prompt = prompts[keys.index(key)]
            if isinstance(prompt, Exception):
                raise prompt
            verdict = await self._asker.verdict(prompt, str)
            answers[key] = verdict.value
            return Score(0.0, feedback=verdict.feedback)  # its value is known when all have answered

        scores = await judged(keys, one)
        values = dict(zip(answers, await self._file.values(list(answers.values())), strict=True))
        return tuple(
            _valued(values[key], score.feedback) if key in values else score
            for key, score in zip(keys, scores, strict=True)
        )

    def _text_prompt(self, prompt: Prompt) -> str:
        found = extra(prompt, self._field or RM_PROMPT)
        if self._field is not None and not isinstance(found, str):
            raise CannotScore("invalid", f"the prompt {prompt.id!r} has no text {self._field!r}")
        return found if isinstance(found, str) else question_of(prompt)


def _valued(value: float | Exception, feedback: str) -> Score:
    if isinstance(value, Exception):
        return replace(failed_score(value), feedback=feedback)
    return Score(value, feedback=feedback)


__all__ = ["Plugin"]
