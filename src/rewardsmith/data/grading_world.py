"""What built-in worlds share as data for a rubric judge: prompts byte for byte as the `rubric` reward has them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.text.judge_prompts import (
    PromptIdentity,
    Quoting,
    grading_identity,
    grading_prompt,
    load_grading_template,
    question_of,
)
from rewardsmith.types import Demonstration, Graded, Prompt

GradingTemplate = Annotated[str, Field(min_length=1, description="the judge's prompt, as in the rubric reward")]
QuotingSetting = Annotated[Quoting, Field(description="foreign text stands in a fence, or bare")]


class GradingWorld:
    """Solutions to be graded by a rubric; a world says which, what is true of them, and what a teacher writes."""

    source: ClassVar[str]
    total: ClassVar[int]  # points of a rubric

    def __init__(self, template: str, quoting: Quoting) -> None:
        self._template, self._quoting = load_grading_template(template), quoting
        if "reference" in self._template.places:
            raise UserError(f"{self._template.where} shows {{{{reference}}}}: this world grades by the criteria alone")

    def solved(self, seed: int) -> Iterator[tuple[Prompt, str, str]]:
        """Yield problems without end, each with the kind of a solution and the solution."""
        raise NotImplementedError

    def judge(self, prompt: Prompt, text: str) -> Graded:
        """Return a solution with its true grade."""
        raise NotImplementedError

    def teach(self, prompt: Prompt, text: str, rng: random.Random) -> str:
        """Return what a lenient teacher writes about a solution."""
        raise NotImplementedError

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts for the judge without end; the answer is the true grade, as a share of the points."""
        for prompt, kind, text in self.solved(seed):
            yield self._prompt(prompt, kind, text)

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield prompts for the judge with the lenient teacher's replies, without end."""
        rng = random.Random(f"teacher {seed}")
        for prompt, kind, text in self.solved(seed):
            yield Demonstration(self._prompt(prompt, kind, text), self.teach(prompt, text, rng))

    def graded(self, seed: int) -> Iterator[Graded]:
        """Yield solutions with their true grades without end."""
        for prompt, _, text in self.solved(seed):
            yield self.judge(prompt, text)

    def facts(self) -> PromptIdentity:
        """Return what the prompts depend on in addition to the settings, for the record of a run."""
        return self.judge_prompt()

    def judge_prompt(self) -> PromptIdentity:
        """Return with which prompt a judge is called that learned here."""
        return grading_identity(self._template, self._quoting)

    def _prompt(self, prompt: Prompt, kind: str, text: str) -> Prompt:
        criteria = prompt.info["criteria"]
        shown = {"question": question_of(prompt), "criteria": criteria, "total": self.total, "response": text}
        return Prompt(
            f"{self.source}-{prompt.info.get('problem', prompt.id)}-{text}",
            grading_prompt(self._template, **shown, quoting=self._quoting),
            source=self.source,
            answer=self.judge(prompt, text).grade,
            info={**prompt.info, "response": text, "kind": kind},
        )
