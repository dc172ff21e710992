"""Judges of one response with built-in prompts: grades by criteria, and equivalence with the reference answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.config import Settings
from rewardsmith.errors import UserError
from rewardsmith.llm import joined_replies
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.judge import (
    DEFAULT_REQUEST,
    DEFAULT_WAYS,
    MAX_CHARS,
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
    require_unset,
    visible_text,
)
from rewardsmith.rewards.rules.truth import extra, truths
from rewardsmith.text import grades, verdicts
from rewardsmith.text.grades import parse_grade
from rewardsmith.text.judge_prompts import format_number, question_of, quote_as
from rewardsmith.text.rubrics import (
    DECIMALS,
    MAX_POINTS,
    Criterion,
    InvalidCriteria,
    criteria_problem,
    list_criteria,
    parse_criteria,
    rounded,
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


class Rubric(Judge):
    """Grade each rollout by criteria with points; the value is the share of the points, in [0, 1].

    A response that is empty, or has no answer where `show` demands one, is worth 0 without a call.

    Attributes:
        parts: the names of the criteria, where the recipe lists them and each has a call of its own.
    """

    _template: Template

    def __init__(
        self,
        *,
        model: ChatModelName,
        criteria: Annotated[
            str | list[CriterionSettings] | None,
            Field(description="for all prompts: text, or a list of tables; not set: each prompt has its own"),
        ] = None,
        field: Annotated[str | None, Field(min_length=1, description="of info, extra_info; not set: criteria")] = None,
        calls: Annotated[Literal["whole", "each"], Field(description="calls per rubric, or per criterion")] = "whole",
        mark: Annotated[
            Literal["points", "met"], Field(description="of each criterion: points, or yes or no")
        ] = "points",
        total: Annotated[
            float | None, Field(ge=0.01, le=MAX_POINTS, description="points of criteria that are text; not set: 10")
        ] = None,
        above: Annotated[
            Literal["refuse", "clamp"] | None,
            Field(description="what becomes of a grade above the total; not set: refuse"),
        ] = None,
        show: Show = "response",
        extract: Ways = DEFAULT_WAYS,
        max_chars: MaxChars = MAX_CHARS,
        quoting: QuotingStyle = "fence",
        template: Annotated[str | None, Field(min_length=1, description="path of your own; not set: built-in")] = None,
        votes: Votes = 1,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        super().__init__(model, request, votes)
        if mark == "met" and calls == "whole":
            raise UserError('mark = "met" needs calls = "each": a whole rubric has points')
        if criteria is not None:
            require_unset("criteria", field=field)
        if isinstance(criteria, list) or calls == "each":
            require_unset("a list of criteria" if calls == "whole" else 'calls = "each"', total=total)
        if mark == "met":
            require_unset('mark = "met"', above=above)
        require_extracting(show, extract)
        self._field, self._each, self._met = field or "criteria", calls == "each", mark == "met"
        self._clamp = above == "clamp"
        self._total = 10.0 if total is None else round(total, DECIMALS)
        self._show, self._ways, self._max_chars, self._quoting = show, extract, max_chars, quoting
        self._given = None if criteria is None else self._checked(criteria)
        name = "criterion_met" if self._met else "criterion" if self._each else "rubric"
        own = ("criterion", "points") if self._each else ("criteria", "total")
        known = ("question", "response", "reference", *own)
        self._template = load_template(template or name, known=known, needed=(own[0], "response"))
        self.parser = verdicts.PARSER if self._met else grades.PARSER
        named = self._given if self._each and isinstance(self._given, tuple) else ()
        self.parts = tuple(criterion.name for criterion in named)

    def render(self, group: RolloutGroup) -> Rendered:
        """Return one question per response about the whole rubric, or one about each criterion."""
        known = self._known(group.prompt)
        items = self._items(self._rubric_of(group.prompt))
        nothing = Score(0.0, parts={name: Score(0.0) for name in self.parts}, feedback="There is nothing to grade.")
        rendered: list[Score | list[Question]] = []
        for rollout in group.rollouts:
            text = visible_text(rollout.text, self._show, self._ways)
            shown = {**known, "response": quote_as(text, self._quoting, self._max_chars)}
            questions = [Question(self._template.render({**shown, **own}), about) for about, own in items]
            rendered.append(questions if text else nothing)
        return rendered

    def _items(self, rubric: str | tuple[Criterion, ...]) -> list[tuple[float | Criterion, dict[str, str]]]:
        """Return for each question what `parse` must know, and what its prompt shows of the rubric."""
        if self._each and not isinstance(rubric, str):
            return [
                (one, {"criterion": quote_as(one.text, self._quoting), "points": format_number(one.points)})
                for one in rubric
            ]
        text, total = (
            (rubric, self._total) if isinstance(rubric, str) else (list_criteria(rubric), total_points(rubric))
        )
        return [(total, {"criteria": quote_as(text, self._quoting), "total": format_number(total)})]

    def parse(self, reply: str, about: float | Criterion) -> float:
        """Return the share of the points of the whole rubric, or of one criterion."""
        if self._met:
            return float(parse_boolean(reply, **_MET))
        total = about.points if isinstance(about, Criterion) else about
        return parse_grade(reply, total, clamp=self._clamp).share

    def combine(self, questions: Sequence[Question], scores: Sequence[Score]) -> Score:
        """Return the share of all points; the first criterion that failed, or an outage, is why there is none."""
        if not self._each:
            return scores[0]
        criteria = [question.about for question in questions]
        feedback = joined_replies([f"[{c.name}] {score.feedback}" for c, score in zip(criteria, scores, strict=True)])
        parts = dict(zip(self.parts, scores, strict=True)) if self.parts else {}
        failures = sorted((s.failure for s in scores if s.failure), key=lambda failure: failure.kind != "unreachable")
        if failures:
            return Score(failure=failures[0], parts=parts, feedback=feedback)
        earned = sum(c.points * (score.value or 0.0) for c, score in zip(criteria, scores, strict=True))
        return Score(min(1.0, max(0.0, earned / total_points(criteria))), parts=parts, feedback=feedback)

    # ---- criteria --------------------------------------------------------------------------------------------------

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks criteria that can be graded, or what else the template shows."""
        self._rubric_of(prompt)
        self._known(prompt)

    def _known(self, prompt: Prompt) -> dict[str, str]:
        known = {"question": quote_as(question_of(prompt), self._quoting)}
        if "reference" in self._template.places:
            known["reference"] = quote_as("\nor: ".join(truths(prompt)), self._quoting)
        return known

    def _checked(self, criteria: str | list[CriterionSettings]) -> str | tuple[Criterion, ...]:
        """Return the criteria of the recipe."""
        if isinstance(criteria, str):
            given: str | tuple[Criterion, ...] = criteria.strip()
            problem = self._problem(given)
        else:
            given = tuple(rounded(one.text, one.points, one.name or f"c{i}") for i, one in enumerate(criteria, 1))
            names = [criterion.name for criterion in given]
            twice = [f"has two called {name!r}" for name in names if names.count(name) > 1]
            problem = twice[0] if twice else criteria_problem(given) or self._problem(given)
        if not given:
            raise UserError("criteria is empty: leave it out to take those of each prompt")
        if problem:
            raise UserError(f"criteria {problem}")
        return given

    def _rubric_of(self, prompt: Prompt) -> str | tuple[Criterion, ...]:
        if self._given is not None:
            return self._given
        try:
            rubric = parse_criteria(extra(prompt, self._field), self._field, f"the prompt {prompt.id!r}")
        except InvalidCriteria as error:
            raise CannotScore("invalid", str(error)) from None
        if problem := self._problem(rubric):
            raise CannotScore("invalid", f"{self._field!r} of the prompt {prompt.id!r} {problem}")
        return rubric

    def _problem(self, rubric: str | Sequence[Criterion]) -> str:
        """Return why criteria cannot be graded with these settings; "" if they can."""
        if isinstance(rubric, str):
            return 'is text: calls = "each" needs a list of criteria' if self._each else ""
        faults = any(criterion.points < 0 for criterion in rubric)
        return 'has negative points: these need calls = "each" and mark = "met"' if faults and not self._met else ""


class Verifier(Judge):
    """Score 1 if a model finds the answer equivalent to the reference answer, else 0; with votes, the share of yes.

    A response without an answer is worth 0 without a call.
    """

    parser = verdicts.PARSER
    _template: Template

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
        require_extracting(show, extract)
        super().__init__(model, request, votes)
        self._show, self._ways, self._max_chars, self._quoting = show, extract, max_chars, quoting
        known = ("question", "reference", "response")
        self._template = load_template(template, known=known, needed=("reference", "response"))

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no reference answer."""
        truths(prompt)

    def render(self, group: RolloutGroup) -> Rendered:
        """Return question, reference and answer; any one of several references is right."""
        prompt = group.prompt
        known = {"reference": "\nor: ".join(truths(prompt)), "question": question_of(prompt)}
        quoted = {name: quote_as(text, self._quoting) for name, text in known.items()}
        rendered: list[Score | Question] = []
        for rollout in group.rollouts:
            text = visible_text(rollout.text, self._show, self._ways)
            messages = self._template.render({**quoted, "response": quote_as(text, self._quoting, self._max_chars)})
            rendered.append(Question(messages) if text else Score(0.0, feedback="There is no answer."))
        return rendered

    def parse(self, reply: str, about: None) -> float:
        """Return 1 for equivalent, else 0."""
        return float(parse_boolean(reply, **_EQUIVALENT))
