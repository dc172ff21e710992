"""Judges of one response with built-in prompts: grades by criteria, and equivalence with the reference answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.config import Settings
from rewardsmith.errors import UserError
from rewardsmith.llm import RequestSettings, joined_replies
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.judge import (
    DEFAULT_REQUEST,
    DEFAULT_WAYS,
    MAX_CHARS,
    AllowOtherPrompt,
    ChatModelName,
    Judge,
    MaxChars,
    OwnTemplate,
    Question,
    QuotingStyle,
    Rendered,
    Request,
    Show,
    Votes,
    Ways,
    require_extracting,
    visible_text,
)
from rewardsmith.rewards.rules.rule_settings import Way
from rewardsmith.rewards.rules.truth import extra, truths
from rewardsmith.text import grades, verdicts
from rewardsmith.text.grades import parse_grade
from rewardsmith.text.judge_prompts import PromptIdentity, format_number, grading_identity, question_of, quote_as
from rewardsmith.text.rubrics import (
    DECIMALS,
    MAX_POINTS,
    Criterion,
    InvalidCriteria,
    fault_kinds,
    list_criteria,
    parse_criteria,
    parse_fault,
    total_points,
)
from rewardsmith.text.templates import Template, load_template
from rewardsmith.text.verdicts import NO, YES, parse_boolean
from rewardsmith.types import Prompt, RolloutGroup, Score

_MET = {"yes": ("met", "fully met", *YES), "no": ("not met", "unmet", *NO)}

_EQUIVALENT = {"yes": (*YES, "equivalent", "correct"), "no": (*NO, "not equivalent", "incorrect", "wrong")}


class CriterionSettings(Settings):
    """One criterion of a recipe."""

    text: str = Field(min_length=1, description="what an answer must do")
    points: float = Field(default=1.0, description="its weight; below 0 for a fault, which needs mark = met")
    name: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_-]+$", description="of its part in scores and metrics; not set: c1, c2, …"
    )


def fault_label(name: str) -> str:
    """Return the name of a criterion as a label."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")


class ResponseJudge(Judge):
    """A judge that sees a part of each response; where there is none, the value is 0 without a call."""

    parts: tuple[str, ...] = ()
    _template: Template

    def __init__(
        self,
        model: str,
        request: RequestSettings,
        votes: int,
        template: Template,
        *,
        show: str,
        extract: Sequence[Way],
        max_chars: int,
        quoting: str,
    ) -> None:
        super().__init__(model, request, votes)
        require_extracting(show, extract)
        self._template, self._show, self._ways = template, show, extract
        self._max_chars, self._quoting = max_chars, quoting

    def render(self, group: RolloutGroup) -> Rendered:
        """Return the questions about each response."""
        known, items = self._known(group.prompt), self.items(group.prompt)
        nothing = Score(0.0, parts={name: Score(0.0) for name in self.parts}, feedback="There is nothing to judge.")
        rendered: list[Score | list[Question]] = []
        for rollout in group.rollouts:
            text = visible_text(rollout.text, self._show, self._ways)
            shown = {**known, "response": quote_as(text, self._quoting, self._max_chars)}
            questions = [Question(self._template.render({**shown, **own}), about) for about, own in items]
            rendered.append(questions if text else nothing)
        return rendered

    def items(self, prompt: Prompt) -> Sequence[tuple[Any, dict[str, str]]]:
        """Return for each question what `parse` must know, and what it shows besides question and response."""
        return [(None, {})]

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks what the questions are made of."""
        self._known(prompt)
        self.items(prompt)

    def _known(self, prompt: Prompt) -> dict[str, str]:
        known = {"question": quote_as(question_of(prompt), self._quoting)}
        if "reference" in self._template.places:  # any one of several is right
            known["reference"] = quote_as("\nor: ".join(truths(prompt)), self._quoting)
        return known


class Rubric(ResponseJudge):
    """Grade each rollout by criteria with points; the value is the share of the points, in [0, 1].

    Attributes:
        parts: the names of the criteria, where the recipe lists them and each has a call of its own.
    """

    def __init__(
        self,
        *,
        model: ChatModelName,
        criteria: Annotated[
            str | list[CriterionSettings] | None,
            Field(description="for all prompts: text, or a list of tables; not set: each prompt has its own"),
        ] = None,
        field: Annotated[
            str, Field(min_length=1, description="of info or extra_info, with a prompt's own criteria")
        ] = "criteria",
        calls: Annotated[Literal["whole", "each"], Field(description="calls per rubric, or per criterion")] = "whole",
        mark: Annotated[
            Literal["points", "met"], Field(description="of each criterion: points, or yes or no")
        ] = "points",
        total: Annotated[
            float, Field(ge=0.01, le=MAX_POINTS, description="points in all of criteria that are text")
        ] = 10.0,
        above: Annotated[
            Literal["refuse", "clamp"], Field(description="what becomes of a grade above the total")
        ] = "refuse",
        show: Show = "response",
        extract: Ways = DEFAULT_WAYS,
        max_chars: MaxChars = MAX_CHARS,
        quoting: QuotingStyle = "fence",
        template: Annotated[str | None, Field(min_length=1, description="path of your own; not set: built-in")] = None,
        allow_other_prompt: AllowOtherPrompt = False,
        votes: Votes = 1,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        if mark == "met" and calls == "whole":
            raise UserError('mark = "met" needs calls = "each": a whole rubric has points')
        self._field, self._each, self._met = field, calls == "each", mark == "met"
        self._clamp, self._total = above == "clamp", round(total, DECIMALS)
        self._given = None if criteria is None else self._given_criteria(criteria)
        name = "criterion_met" if self._met else "criterion" if self._each else "rubric"
        own = ("criterion", "points") if self._each else ("criteria", "total")
        known = ("question", "response", "reference", *own)
        loaded = load_template(template or name, known=known, needed=(own[0], "response"))
        super().__init__(
            model, request, votes, loaded, show=show, extract=extract, max_chars=max_chars, quoting=quoting
        )
        self.allows_other_prompt = allow_other_prompt
        self.parser = verdicts.PARSER if self._met else grades.PARSER
        named = self._given if self._each and isinstance(self._given, tuple) else ()
        self.parts = tuple(criterion.name for criterion in named)

    def judge_prompt(self) -> PromptIdentity:
        """Return what the prompts depend on apart from criteria and rollouts, to compare with the judge's training."""
        return grading_identity(self._template, self._quoting)

    def items(self, prompt: Prompt) -> Sequence[tuple[float | Criterion, dict[str, str]]]:
        """Return one item for the whole rubric, or one for each criterion."""
        rubric = self._given
        if rubric is None:
            try:
                rubric = self._own_criteria(prompt)
            except InvalidCriteria as error:
                raise CannotScore("invalid", str(error)) from None
        if self._each and not isinstance(rubric, str):
            return [
                (one, {"criterion": quote_as(one.text, self._quoting), "points": format_number(one.points)})
                for one in rubric
            ]
        text, total = (
            (rubric, self._total) if isinstance(rubric, str) else (list_criteria(rubric), total_points(rubric))
        )
        return [(total, {"criteria": quote_as(text, self._quoting), "total": format_number(total)})]

    def _own_criteria(self, prompt: Prompt) -> str | tuple[Criterion, ...]:
        """Return the criteria of a prompt, with the kinds of fault that a written rubric looks for."""
        rubric = self._usable(extra(prompt, self._field), self._field, f"the prompt {prompt.id!r}")
        if isinstance(rubric, str):
            return rubric
        kinds = fault_kinds(extra(prompt, f"{self._field}_made_by"), len(rubric))
        return tuple(replace(one, fault=kind) for one, kind in zip(rubric, kinds, strict=True))

    def parse(self, reply: str, about: float | Criterion) -> Score:
        """Return the share of the points of one criterion, or of the whole rubric with the fault that is named."""
        if self._met:
            return Score(float(parse_boolean(reply, **_MET)))
        if isinstance(about, Criterion):
            return Score(parse_grade(reply, about.points, clamp=self._clamp).share)
        return Score(parse_grade(reply, about, clamp=self._clamp).share, label=parse_fault(reply))

    def combine(self, questions: Sequence[Question], scores: Sequence[Score]) -> Score:
        """Return the share of all points; the first criterion that failed, or an outage, is why there is none.

        The label is the kind of fault that cost the most points.
        """
        if not self._each:
            return scores[0]
        criteria = [question.about for question in questions]
        feedback = joined_replies([f"[{c.name}] {score.feedback}" for c, score in zip(criteria, scores, strict=True)])
        parts = dict(zip(self.parts, scores, strict=True)) if self.parts else {}
        failures = sorted((s.failure for s in scores if s.failure), key=lambda failure: failure.kind != "unreachable")
        if failures:
            return Score(failure=failures[0], parts=parts, feedback=feedback)
        shares = [score.value or 0.0 for score in scores]
        earned = sum(c.points * share for c, share in zip(criteria, shares, strict=True))
        lost = [max(c.points, 0.0) - c.points * share for c, share in zip(criteria, shares, strict=True)]
        label = criteria[lost.index(max(lost))].fault if max(lost) > 0 else ""
        return Score(min(1.0, max(0.0, earned / total_points(criteria))), parts=parts, feedback=feedback, label=label)

    def _given_criteria(self, criteria: str | list[CriterionSettings]) -> str | tuple[Criterion, ...]:
        """Return the criteria of the recipe."""
        names = [] if isinstance(criteria, str) else [one.name or f"c{i}" for i, one in enumerate(criteria, 1)]
        if len(set(names)) < len(names):
            raise UserError(f"criteria has two of the same name: {', '.join(names)}")
        tables = criteria if isinstance(criteria, str) else [one.model_dump() for one in criteria]
        try:
            rubric = self._usable(tables, "criteria", "the reward")
        except InvalidCriteria as error:
            raise UserError(str(error)) from None
        if isinstance(rubric, str):
            return rubric
        faults = ["" if isinstance(one, str) or one.name is None else fault_label(one.name) for one in criteria]
        return tuple(
            replace(one, name=name, fault=fault) for one, name, fault in zip(rubric, names, faults, strict=True)
        )

    def _usable(self, value: object, field: str, owner: str) -> str | tuple[Criterion, ...]:
        """Return criteria that can be graded with these settings."""
        rubric = parse_criteria(value, field, owner)
        if isinstance(rubric, str) and self._each:
            raise InvalidCriteria(f'{field!r} of {owner} is text: calls = "each" needs a list of criteria')
        if not isinstance(rubric, str) and not self._met and any(criterion.points < 0 for criterion in rubric):
            raise InvalidCriteria(f'{field!r} of {owner} has negative points, which need calls = "each", mark = "met"')
        return rubric


class Verifier(ResponseJudge):
    """Score 1 if a model finds the answer equivalent to the reference answer, else 0; with votes, the share of yes."""

    parser = verdicts.PARSER

    def __init__(
        self,
        *,
        model: ChatModelName,
        show: Show = "answer",
        extract: Ways = DEFAULT_WAYS,
        max_chars: MaxChars = MAX_CHARS,
        quoting: QuotingStyle = "fence",
        template: OwnTemplate = "verifier",
        votes: Votes = 1,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        known = ("question", "reference", "response")
        loaded = load_template(template, known=known, needed=("reference", "response"))
        super().__init__(
            model, request, votes, loaded, show=show, extract=extract, max_chars=max_chars, quoting=quoting
        )

    def parse(self, reply: str, about: None) -> float:
        """Return 1 for equivalent, else 0."""
        return float(parse_boolean(reply, **_EQUIVALENT))
