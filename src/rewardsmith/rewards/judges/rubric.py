"""Grades by criteria: a rubric reward model, or any model that can grade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.asking import (
    AS_USUAL,
    Asker,
    Asking,
    AsksOne,
    JudgeName,
    failed_score,
    feedback_of,
    judged,
)
from rewardsmith.rewards.judges.criteria import (
    DECIMALS,
    MAX_POINTS,
    Criterion,
    CriterionSettings,
    from_recipe,
    list_criteria,
    of_prompt,
    total_points,
)
from rewardsmith.rewards.judges.shown import (
    LONGEST,
    WAYS,
    Longest,
    Quoting,
    Show,
    Ways,
    quote_as,
    require_extracting,
    shown,
)
from rewardsmith.rewards.judges.together import settled
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.rewards.judges.votes import Votes, require_warm, voted
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text import grades, verdicts
from rewardsmith.text.grades import parse_grade
from rewardsmith.text.judge_prompts import format_number, grading_prompt, load_grading_template, question_of
from rewardsmith.text.templates import Template, load_template
from rewardsmith.text.verdicts import NO, YES, parse_boolean
from rewardsmith.types import Prompt, RolloutGroup, Score

_MET = {"yes": ("met", "fully met", *YES), "no": ("not met", "unmet", *NO)}


class Rubric(AsksOne):
    """Grade each rollout by criteria with points; the value is the share of the points, in [0, 1].

    A response that is empty, or has no answer where `show` asks for one, is worth 0, and nobody is asked.

    Attributes:
        deadline: seconds for one verdict.
        parts: the names of the criteria, where the recipe gives a list and each has a call of its own.
    """

    def __init__(
        self,
        *,
        model: JudgeName,
        criteria: Annotated[
            str | list[CriterionSettings] | None,
            Field(description="for all prompts: text, or a list of tables; not set: each prompt has its own"),
        ] = None,
        field: Annotated[
            str | None,
            Field(min_length=1, description="where a prompt's info or extra_info has its own; not set: criteria"),
        ] = None,
        calls: Annotated[
            Literal["whole", "each"], Field(description="one call for the whole rubric, or one for each criterion")
        ] = "whole",
        mark: Annotated[
            Literal["points", "met"], Field(description="with one call each: from 0 to its points, or met or not")
        ] = "points",
        total: Annotated[
            float | None,
            Field(ge=0.01, le=MAX_POINTS, description="points in all, where the criteria are text; not set: 10"),
        ] = None,
        above: Annotated[
            Literal["refuse", "clamp"] | None,
            Field(description="a grade above the total is unreadable, or it is the total; not set: refuse"),
        ] = None,
        show: Show = "response",
        extract: Ways = WAYS,
        longest: Longest = LONGEST,
        quoting: Quoting = "fence",
        template: Annotated[
            str | None, Field(min_length=1, description="path of a prompt of your own; not set: the built-in one")
        ] = None,
        votes: Votes = 1,
        asking: Asking = AS_USUAL,
    ) -> None:
        if mark == "met" and calls == "whole":
            raise UserError('mark = "met" needs calls = "each": a whole rubric has points')
        if criteria is not None:
            require_unset("criteria", field=field)
        if isinstance(criteria, list) or calls == "each":
            require_unset("a list of criteria" if calls == "whole" else 'calls = "each"', total=total)
        if mark == "met":
            require_unset('mark = "met"', above=above)
        require_extracting(show, extract)
        require_warm(votes, asking)
        self._votes = votes
        self._field, self._calls, self._mark, self._clamp = field or "criteria", calls, mark, above == "clamp"
        self._total = 10.0 if total is None else round(total, DECIMALS)
        self._show, self._ways, self._longest, self._quoting = show, extract, longest, quoting
        self._given = self._checked(criteria)
        self._template = _template(template, "whole" if calls == "whole" else mark)
        self._asker = Asker(model, asking)
        self.deadline = asking.deadline
        self.parts: tuple[str, ...] = ()
        if calls == "each" and isinstance(self._given, tuple):
            self.parts = tuple(criterion.name for criterion in self._given)

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on beside model and settings, for the record of a run."""
        return {**self._template.facts(), "parser": verdicts.PARSER if self._mark == "met" else grades.PARSER}

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks criteria that can be graded, or what else the template shows."""
        self._rubric_of(prompt)
        self._known(prompt)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, each with the judge's text as feedback."""
        rubric = self._rubric_of(group.prompt)
        known = self._known(group.prompt)

        async def one(text: str) -> Score:
            if not text:
                nothing = Score(0.0)
                return Score(0.0, parts=dict.fromkeys(self.parts, nothing), feedback="There is nothing to grade.")
            values = {**known, "response": text}
            if self._calls == "whole":
                return await self._graded(rubric, values)
            assert not isinstance(rubric, str)  # _refused says so
            quoted = {name: quote_as(value, self._quoting) for name, value in known.items()}
            return await self._summed(rubric, {**quoted, "response": quote_as(text, self._quoting, self._longest)})

        texts = [shown(rollout.text, self._show, self._ways) for rollout in group.rollouts]
        return await judged(texts, one, self.parts)

    def _checked(self, criteria: str | list[CriterionSettings] | None) -> str | tuple[Criterion, ...] | None:
        """Return the criteria of the recipe; None if it has none."""
        if criteria is None:
            return None
        if not criteria or (isinstance(criteria, str) and not criteria.strip()):
            raise UserError("criteria is empty: leave it out to take those of each prompt")
        given = criteria.strip() if isinstance(criteria, str) else from_recipe(criteria)
        wrong = self._refused(given)
        if wrong:
            raise UserError(f"criteria {wrong}")
        return given

    def _rubric_of(self, prompt: Prompt) -> str | tuple[Criterion, ...]:
        if self._given is not None:
            return self._given
        rubric = of_prompt(prompt, self._field)
        wrong = self._refused(rubric)
        if wrong:
            raise CannotScore("invalid", f"{self._field!r} of the prompt {prompt.id!r} {wrong}")
        return rubric

    def _refused(self, rubric: str | Sequence[Criterion]) -> str:
        """Return why criteria cannot be graded as the settings say; "" if they can."""
        if self._calls == "each" and isinstance(rubric, str):
            return 'is text: calls = "each" needs a list of criteria'
        faults = not isinstance(rubric, str) and any(criterion.points < 0 for criterion in rubric)
        return (
            'has negative points: these need calls = "each" and mark = "met"' if faults and self._mark != "met" else ""
        )

    def _known(self, prompt: Prompt) -> dict[str, str]:
        known = {"question": question_of(prompt)}
        if "reference" in self._template.places:
            known["reference"] = "\nor: ".join(truths(prompt))
        return known

    async def _graded(self, rubric: str | tuple[Criterion, ...], values: Mapping[str, str]) -> Score:
        """Return the score of one call for the whole rubric."""
        total = self._total if isinstance(rubric, str) else total_points(rubric)
        criteria = rubric if isinstance(rubric, str) else list_criteria(rubric)
        prompt = grading_prompt(
            self._template, criteria=criteria, total=total, quoting=self._quoting, max_chars=self._longest, **values
        )

        def read(text: str) -> float:
            return parse_grade(text, total, clamp=self._clamp).share

        return await voted(lambda vote: self._asker.verdict(prompt, read, sample=vote), self._votes)

    async def _summed(self, rubric: tuple[Criterion, ...], values: Mapping[str, str]) -> Score:
        """Return the score of one call for each criterion; the first that fails is why the whole has none."""
        found = await settled(lambda criterion: self._one(criterion, values), rubric)
        shares = [failed_score(one) if isinstance(one, Exception) else one for one in found]
        feedback = feedback_of([f"[{c.name}] {share.feedback}" for c, share in zip(rubric, shares, strict=True)])
        parts = dict(zip(self.parts, shares, strict=True)) if self.parts else {}
        causes = [share.failure for share in shares if share.failure is not None]
        if causes:  # a judge that is gone is waited for, so that is the cause that counts
            causes.sort(key=lambda cause: cause.kind != "unreachable")
            return Score(failure=causes[0], parts=parts, feedback=feedback)
        earned = sum(c.points * (share.value or 0.0) for c, share in zip(rubric, shares, strict=True))
        return Score(min(1.0, max(0.0, earned / total_points(rubric))), parts=parts, feedback=feedback)

    async def _one(self, criterion: Criterion, values: Mapping[str, str]) -> Score:
        """Return the share of one criterion."""
        points = format_number(criterion.points)
        prompt = self._template.render(
            {**values, "criterion": quote_as(criterion.text, self._quoting), "points": points}
        )

        def read(text: str) -> float:
            if self._mark == "met":
                return float(parse_boolean(text, **_MET))
            return parse_grade(text, criterion.points, clamp=self._clamp).share

        return await voted(lambda vote: self._asker.verdict(prompt, read, sample=vote), self._votes)


def _template(name: str | None, one: str) -> Template:
    """Return the prompt of a call for the whole rubric, for the points of one criterion, or for whether it is met."""
    if one == "whole":
        return load_grading_template(name or "rubric")
    return load_template(
        name or {"points": "criterion", "met": "criterion_met"}[one],
        known=("question", "response", "reference", "criterion", "points"),
        needed=("criterion", "response"),
    )


__all__ = ["Rubric"]
