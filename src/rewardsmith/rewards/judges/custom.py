"""A judge with a prompt of your own."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.hooks import MEMORY, Hook
from rewardsmith.rewards.judges.judge import (
    DEFAULT_REQUEST,
    DEFAULT_WAYS,
    MAX_CHARS,
    ChatModelName,
    Judge,
    MaxChars,
    Question,
    QuotingStyle,
    Rendered,
    Request,
    Votes,
    Ways,
    require_unset,
    visible_text,
)
from rewardsmith.rewards.rules.truth import extra, truths
from rewardsmith.text import grades, verdicts
from rewardsmith.text.judge_prompts import format_number, question_of, quote_as
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Prompt, RolloutGroup, Score

OF_ROLLOUT = ("response", "final", "answer")
"""Placeholders for what the policy wrote."""

PLACES = ("question", *OF_ROLLOUT, "reference", "source", "lowest", "highest")
"""All placeholders, apart from the names in a prompt's info."""

_USUAL = ("question", "response", "final", "reference")
"""Those that in single braces are a mistake; {answer} may be the form in which a judge shall answer."""

_RESPONSE = re.compile(r"\{\{\s*response\s*\}\}|\{response\}")

_PARSERS = {
    "score": grades.PARSER,
    "number": grades.NUMBER_PARSER,
    "json": grades.NUMBER_PARSER,
    "boolean": verdicts.PARSER,
}

MAX_SCORE = 999_999
"""The largest number that is parsed after a marker."""

Name = Annotated[str | None, Field(min_length=1)]


class CustomJudge(Judge):
    """Judge each rollout with a prompt of your own, and parse the reply as `read` or `postprocess` defines."""

    def __init__(
        self,
        *,
        model: ChatModelName,
        template: Annotated[
            Name, Field(description="a built-in prompt, or the path of your own; not set: judge")
        ] = None,
        prompt: Annotated[Name, Field(description="the prompt itself, instead of a template")] = None,
        prompt_field: Annotated[Name, Field(description="field of info with the prompt, with {response} in it")] = None,
        preprocess: Annotated[Name, Field(description="module:function from a group to one prompt per rollout")] = None,
        postprocess: Annotated[Name, Field(description="module:function from the reply to a number")] = None,
        quoting: QuotingStyle = "fence",
        extract: Ways = DEFAULT_WAYS,
        max_chars: MaxChars = MAX_CHARS,
        read: Annotated[
            Literal["score", "number", "boolean", "json"],
            Field(description="Score: X, a number as last line, yes or no, or a field of JSON"),
        ] = "score",
        marker: Annotated[str, Field(pattern=r"\S", description='text before the number of "score"')] = "Score",
        key: Annotated[str, Field(min_length=1, description='of the number of "json"; dots reach deeper')] = "score",
        lowest: Annotated[float, Field(description="the worst number; a lower one is refused")] = 0.0,
        highest: Annotated[float, Field(description="the best number; a higher one is refused")] = 10.0,
        scale: Annotated[bool, Field(description="map lowest to 0 and highest to 1, or keep the number")] = True,
        votes: Votes = 1,
        deadline: Annotated[float | None, Field(gt=0, description="s per hook call; not set: request.deadline")] = None,
        memory: Annotated[int, Field(ge=16, description="MiB that a worker may use for a call of a hook")] = MEMORY,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        super().__init__(model, request, votes)
        given = {"template": template, "prompt": prompt, "prompt_field": prompt_field, "preprocess": preprocess}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise UserError(f"{' and '.join(named)} are given: a judge has one prompt")
        limits: dict[str, Any] = {"deadline": deadline or request.deadline, "memory": memory}
        self._preprocess = Hook(preprocess, "preprocess", **limits) if preprocess else None
        self._postprocess = Hook(postprocess, "postprocess", **limits) if postprocess else None
        if not preprocess and not prompt_field:
            self._template = _load_template(template, prompt)
            if "answer" not in self._template.places and extract != DEFAULT_WAYS:
                require_unset("a prompt without {{answer}}", extract=extract)
        self._field, self._ways, self._max_chars, self._quoting = prompt_field, extract, max_chars, quoting
        self._read, self._marker, self._key, self._scale = read, marker, key, scale
        self._lowest, self._highest = lowest, highest
        self._bounds = {"lowest": format_number(lowest), "highest": format_number(highest)}
        self.parser = "postprocess" if postprocess else _PARSERS[read]
        if not postprocess:
            self._require_parsable()

    def _require_parsable(self) -> None:
        """Raise a `UserError` if the parser cannot find what the prompt demands."""
        standard = self._read == "score" and self._marker.strip().lower() == "score"
        if self._template and self._template.name == "judge" and not standard:
            odd = f'read = "{self._read}"' if self._read != "score" else f'marker = "{self._marker}"'
            raise UserError(f"the built-in template demands a line `Score: X`: {odd} needs a template of your own")
        lowest, highest = self._bounds["lowest"], self._bounds["highest"]
        if not self._highest > self._lowest:
            raise UserError(f"highest = {highest} must be above lowest = {lowest}")
        if self._read == "score" and (self._lowest < 0 or self._highest > MAX_SCORE):
            raise UserError(
                f'lowest = {lowest} and highest = {highest}: read = "score" parses numbers from 0 to {MAX_SCORE:,};'
                ' use "number" or "json"'
            )

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks what the judge's prompt is made of; a hook is not called."""
        if self._preprocess is None:
            self._prompt_of(prompt)

    async def check(self) -> None:
        """Raise if the model cannot work, or a hook cannot be loaded in a worker."""
        for hook in (self._preprocess, self._postprocess):
            if hook is not None:
                await hook.ready()
        await super().check()

    # ---- parse -----------------------------------------------------------------------------------------------------

    def parse(self, reply: str, about: None) -> float | Awaitable[Score]:
        """Return the value of a reply; yes is 1 and no is 0."""
        if self._postprocess is not None:
            return self._postprocess.value(reply)
        if self._read == "boolean":
            return float(verdicts.parse_boolean(reply))
        number = self._number(reply)
        if not self._lowest <= number <= self._highest:
            bounds = f"from {self._lowest:g} to {self._highest:g}"
            raise Unparsable("outside the bounds", f"{number:g} is not {bounds}", invalid=True)
        return (number - self._lowest) / (self._highest - self._lowest) if self._scale else number

    def _number(self, reply: str) -> float:
        if self._read == "number":
            return grades.parse_rating(reply)
        if self._read == "json":
            return grades.parse_field(reply, self._key)
        grade = grades.parse_grade(reply, self._highest, marker=self._marker)
        if grade.out_of == self._highest:
            return grade.points
        if self._lowest != 0:  # 4/5 on a scale from 1 to 10 could be many things
            raise Unparsable("another scale", f"out of {grade.out_of:g}, not {self._highest:g}", invalid=True)
        return grade.share * self._highest

    # ---- render ----------------------------------------------------------------------------------------------------

    def render(self, group: RolloutGroup) -> Rendered | Awaitable[Rendered]:
        """Return the judge's prompt for each rollout."""
        if self._preprocess is not None:
            return self._preprocess.questions(group)
        template, known = self._prompt_of(group.prompt)
        values = [{**known, **self._own(rollout.text, template)} for rollout in group.rollouts]
        return [Question(template.render(own, partial=self._template is None)) for own in values]

    def _prompt_of(self, prompt: Prompt) -> tuple[Template, dict[str, str]]:
        """Return the template for a prompt, and the values that are the same for all rollouts."""
        if self._template is None:
            return _field_template(prompt, self._field or ""), {}  # what else looks like a placeholder in it is text
        template = self._template
        names = template.places - {*OF_ROLLOUT, *self._bounds}
        known = {name: quote_as(_known(prompt, name, template), self._quoting) for name in names}
        return template, {**known, **self._bounds}

    def _own(self, response: str, template: Template) -> dict[str, str]:
        return {
            name: quote_as(visible_text(response, name, self._ways), self._quoting, self._max_chars)
            for name in template.places & {*OF_ROLLOUT}
        }


def _field_template(prompt: Prompt, field: str) -> Template:
    """Return the prompt that a row has for its judge; only {response} is a placeholder in it."""
    found = extra(prompt, field)
    turns = [{"role": "user", "content": found}] if isinstance(found, str) else found
    if not isinstance(turns, list | tuple) or not turns or not all(map(_is_message, turns)):
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has no {field!r} that is text or messages")
    if not any(_RESPONSE.search(turn["content"]) for turn in turns):
        lacks = f"{field!r} of the prompt {prompt.id!r} has no {{response}}: the judge would not see it"
        raise CannotScore("invalid", lacks)
    return Template(field, tuple((turn["role"], _RESPONSE.sub("{{response}}", turn["content"])) for turn in turns))


def _known(prompt: Prompt, name: str, template: Template) -> str:
    """Return the value of a placeholder that is the same for all rollouts."""
    if name == "question":
        return question_of(prompt)
    if name == "reference":
        return "\nor: ".join(truths(prompt))
    if name == "source":
        return prompt.source
    found = extra(prompt, name)
    if isinstance(found, str | int | float) and not isinstance(found, bool):
        return str(found)
    nested = prompt.info.get("extra_info")
    own = [key[:60] for key in (*(nested if isinstance(nested, Mapping) else ()), *prompt.info)][:40]
    raise CannotScore(
        "invalid",
        f"the prompt {prompt.id!r} has no text or number {name!r} in its info, which {template.where} names."
        f"{nearest(name, [*PLACES, *own])} Known: {listing(PLACES)}; in this prompt's info: {listing(own)}",
    )


def _is_message(turn: Any) -> bool:
    return isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)


def _load_template(path: str | None, prompt: str | None) -> Template:
    if prompt is None:
        template = load_template(path or "judge", known=None, usual=_USUAL)
    else:
        template = Template.parse(prompt, "", known=None, usual=_USUAL, setting="prompt")
    if not template.places & {*OF_ROLLOUT}:
        names = "{{response}}, {{final}}, {{answer}}"
        raise UserError(f"{template.where} has none of {names}: the judge would not see the response")
    return template
