"""A teacher grades solutions, with the very prompt that the judge who learns from it will be asked with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rewardsmith.data.rows import RowError
from rewardsmith.data.rubrics.asking import Asking, Said, first_readable
from rewardsmith.data.rubrics.problems import Solution, digest_of, truths_of
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatModel, ModelCallError
from rewardsmith.text.grades import parse_grade
from rewardsmith.text.judge_prompts import Quoting, grading_prompt
from rewardsmith.text.templates import Template
from rewardsmith.types import Message


@dataclass(frozen=True)
class Grades:
    """What a teacher gave one solution.

    Attributes:
        shares: of the points, from 0 to 1, of each vote that could be read; at least one.
        texts: what the teacher wrote for each.
        tries: how many answers it took in all.
        prompt_tokens: read by the teacher, in the votes that could be read.
        tokens: written by it.
    """

    shares: tuple[float, ...]
    texts: tuple[str, ...]
    tries: int = 1
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def share(self) -> float:
        """The mean of the votes."""
        return sum(self.shares) / len(self.shares)

    @property
    def nearest(self) -> int:
        """Which vote is closest to the mean; the first of several."""
        return min(range(len(self.shares)), key=lambda i: abs(self.shares[i] - self.share))


class Teacher:
    """Grades solutions by their rubrics.

    Args:
        model: is asked.
        template: of `rewardsmith.text.judge_prompts.load_grading_template`.
        asking: how it is asked.
        votes: grades for each solution, of which more than half must be readable.
        quoting: how foreign text stands in the prompt.
        longest: characters of a solution that are shown.
    """

    def __init__(
        self,
        model: ChatModel,
        template: Template,
        asking: Asking,
        *,
        votes: int = 1,
        quoting: Quoting = "fence",
        longest: int = 100_000,
    ) -> None:
        if votes > 1 and asking.temperature == 0:
            raise UserError(
                f"--votes {votes} needs a --temperature above 0, such as 0.7: at 0 the teacher says the same every time"
            )
        self._model = model
        self._template = template
        self._asking = asking
        self._votes = votes
        self._quoting: Quoting = quoting
        self._longest = longest

    def prompt(self, solution: Solution) -> tuple[Message, ...]:
        """Return what the teacher is asked; the `rubric` reward asks its judge the same.

        Raises:
            RowError: the template shows the right answer, and the row has none.
        """
        if "reference" in self._template.places and not truths_of(solution.prompt):
            raise RowError(f"there is no right answer, and {self._template.where} shows one")
        return grading_prompt(
            self._template,
            question=solution.question,
            criteria=solution.shown,
            total=solution.total,
            response=solution.response,
            reference="\nor: ".join(truths_of(solution.prompt)),
            quoting=self._quoting,
            max_chars=self._longest,
        )

    def key(self, solution: Solution) -> str:
        """Return what the grades of a solution are known by: all that they depend on, except the model."""
        return digest_of(self.prompt(solution), solution.total)

    async def grade(self, solution: Solution) -> Grades:
        """Return the teacher's grades of a solution.

        Raises:
            ModelCallError: half of the votes or more could not be read; the cause is that of the first of these, or
                that the model is out of reach.
        """
        prompt = self.prompt(solution)

        async def one(vote: int) -> Said[float] | ModelCallError:
            try:
                return await first_readable(
                    self._model, prompt, lambda text: parse_grade(text, solution.total).share, self._asking, vote=vote
                )
            except ModelCallError as error:
                return error

        found = await asyncio.gather(*map(one, range(self._votes)))
        said = [vote for vote in found if not isinstance(vote, ModelCallError)]
        if 2 * len(said) <= self._votes:
            causes = [vote for vote in found if isinstance(vote, ModelCallError)]
            raise next((cause for cause in causes if cause.kind == "unreachable"), causes[0])
        return Grades(
            tuple(vote.value for vote in said),
            tuple(vote.text for vote in said),
            sum(vote.tries for vote in said),
            sum(vote.prompt_tokens for vote in said),
            sum(vote.tokens for vote in said),
        )


__all__ = ["Grades", "Teacher"]
