"""A judge with a prompt of your own."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.llm import Conversation
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.asking import AS_USUAL, Asker, Asking, AsksOne, JudgeName, Verdict, judged
from rewardsmith.rewards.judges.hooks import MEMORY, Hook, prompts_by, value_by
from rewardsmith.rewards.judges.scale import Read, Reading
from rewardsmith.rewards.judges.shown import LONGEST, WAYS, Longest, Quoting, Ways, quote_as, shown
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.rewards.judges.votes import Votes, require_warm, voted
from rewardsmith.rewards.rules.truth import extra, truths
from rewardsmith.text.judge_prompts import format_number, question_of
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message, Prompt, RolloutGroup, Score

ANSWERED = ("response", "final", "answer")
"""The placeholders that show what the policy wrote."""

PLACES = ("question", *ANSWERED, "reference", "source", "lowest", "highest")
"""All that there are beside the names of a prompt's info."""

_USUAL = ("question", "response", "final", "reference")
"""Those that in single braces are surely meant; {answer} may well be how a judge is told to answer."""

_HOLE = re.compile(r"\{\{\s*response\s*\}\}|\{response\}")


class Judge(AsksOne):
    """Ask a model about each rollout with a prompt of your own, and read its answer as you say.

    Attributes:
        deadline: seconds for one verdict.
    """

    def __init__(
        self,
        *,
        model: JudgeName,
        template: Annotated[
            str | None, Field(min_length=1, description="a built-in prompt, or the path of your own; not set: judge")
        ] = None,
        prompt: Annotated[
            str | None, Field(min_length=1, description="the prompt itself, instead of a template")
        ] = None,
        prompt_field: Annotated[
            str | None,
            Field(min_length=1, description="where a prompt's info has the judge's prompt, with {response} in it"),
        ] = None,
        preprocess: Annotated[
            str | None, Field(min_length=1, description="module:function from a group to one prompt per rollout")
        ] = None,
        postprocess: Annotated[
            str | None, Field(min_length=1, description="module:function from the judge's text to a number")
        ] = None,
        quoting: Annotated[
            Quoting | None,
            Field(description="foreign text in a fence, or verbatim, its role tokens broken; not set: fence"),
        ] = None,
        extract: Ways = WAYS,
        longest: Annotated[
            Longest | None,
            Field(description="characters of a response that are shown, without the middle; not set: 100,000"),
        ] = None,
        read: Annotated[
            Read | None,
            Field(description="Score: X, a number as last line, yes or no, or a field of JSON; not set: score"),
        ] = None,
        marker: Annotated[
            str | None, Field(pattern=r"\S", description='what stands before the number of "score"; not set: Score')
        ] = None,
        key: Annotated[
            str | None, Field(min_length=1, description='of the number of "json"; dots reach deeper; not set: score')
        ] = None,
        lowest: Annotated[float | None, Field(description="the worst number; below is refused; not set: 0")] = None,
        highest: Annotated[float | None, Field(description="the best number; above is refused; not set: 10")] = None,
        scale: Annotated[
            bool | None, Field(description="map lowest to 0 and highest to 1, or keep the number; not set: true")
        ] = None,
        votes: Votes = 1,
        deadline: Annotated[
            float | None, Field(gt=0, description="seconds for one call of a hook; not set: asking.deadline")
        ] = None,
        memory: Annotated[
            int | None, Field(ge=16, description="MiB that a worker may use for a call of a hook; not set: 1024")
        ] = None,
        asking: Asking = AS_USUAL,
    ) -> None:
        given = {"template": template, "prompt": prompt, "prompt_field": prompt_field, "preprocess": preprocess}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise UserError(f"{' and '.join(named)} are given: a judge has one prompt")
        if preprocess is not None:
            require_unset("preprocess", quoting=quoting, longest=longest)
        require_warm(votes, asking)
        self._field, self._ways, self._votes = prompt_field, extract, votes
        self._longest, self._quoting = longest or LONGEST, quoting or "fence"
        if preprocess is None and postprocess is None:
            require_unset("a judge that has neither preprocess nor postprocess", deadline=deadline, memory=memory)
        limits: dict[str, Any] = {"deadline": deadline or asking.deadline, "memory": memory or MEMORY}
        self._preprocess = Hook(preprocess, "preprocess", **limits) if preprocess else None
        self._postprocess = Hook(postprocess, "postprocess", **limits) if postprocess else None
        self._template = None if preprocess or prompt_field else _template(template, prompt)
        places = frozenset() if self._template is None else self._template.places
        if "answer" not in places:
            idle = None if tuple(extract) == WAYS else extract
            require_unset("a prompt that does not have {{answer}}", extract=idle)
        reading = Reading(read, marker, key, lowest, highest, scale)
        reading.require_used(
            postprocess=postprocess is not None,
            bounds_shown=bool(places & {"lowest", "highest"}),
            built_in=self._template is not None and self._template.name == "judge",
        )
        self._scale = None if postprocess else reading.scale()
        self._bounds = {"lowest": format_number(reading.least), "highest": format_number(reading.most)}
        self._asker = Asker(model, asking)
        self.deadline = asking.deadline

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on beside model and settings, for the record of a run."""
        return {
            **({} if self._template is None else self._template.facts()),
            "parser": "postprocess" if self._scale is None else self._scale.parser,
        }

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks what the judge's prompt is made of; a hook is not called."""
        if self._preprocess is None:
            self._rendered(prompt)

    async def check(self) -> None:
        """Raise if the model cannot work, or a hook cannot be loaded in a worker."""
        for hook in (self._preprocess, self._postprocess):
            if hook is not None:
                await hook.ready()
        await super().check()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, each with the judge's text as feedback."""
        prompts = await self._prompts(group)
        keys = [_key(prompt) for prompt in prompts]  # equal prompts have one verdict, whatever they were made of
        by_key = dict(zip(keys, prompts, strict=True))

        async def one(key: Hashable) -> Score:
            prompt = by_key[key]
            if isinstance(prompt, CannotScore):
                raise prompt
            return await voted(lambda vote: self._verdict(prompt, vote), self._votes)

        return await judged(keys, one)

    async def _verdict(self, prompt: Conversation, vote: int) -> Verdict[float]:
        verdict: Verdict[tuple[float, str]] = await self._asker.verdict(prompt, self._read, sample=vote)
        value, feedback = verdict.value
        return Verdict(value, feedback or verdict.feedback, verdict.attempts)

    async def _read(self, text: str) -> tuple[float, str]:
        if self._scale is not None:
            return self._scale.value(text), ""
        assert self._postprocess is not None
        return await value_by(self._postprocess, text)

    # ---- the prompt ------------------------------------------------------------------------------------------------

    async def _prompts(self, group: RolloutGroup) -> list[Conversation | CannotScore]:
        """Return the judge's prompt for each rollout, or why there is none."""
        if self._preprocess is not None:
            return await prompts_by(self._preprocess, group)
        render, texts = self._rendered(group.prompt), [rollout.text for rollout in group.rollouts]
        rendered = {text: render(text) for text in dict.fromkeys(texts)}
        return [rendered[text] for text in texts]

    def _rendered(self, prompt: Prompt) -> Callable[[str], Conversation]:
        """Return what makes the judge's prompt from a response."""
        if self._template is None:
            return self._from_field(prompt, self._field or "")
        template = self._template
        known = {
            name: quote_as(_known(prompt, name, template), self._quoting)
            for name in template.places - {*ANSWERED, *self._bounds}
        }

        def render(response: str) -> Conversation:
            own = {name: self._said(response, name) for name in template.places & {*ANSWERED}}
            return template.render({**known, **own, **self._bounds})

        return render

    def _from_field(self, prompt: Prompt, field: str) -> Callable[[str], Conversation]:
        found = extra(prompt, field)
        if isinstance(found, str):
            found = [{"role": "user", "content": found}]
        if not isinstance(found, list | tuple) or not found or not all(_is_message(one) for one in found):
            raise CannotScore("invalid", f"the prompt {prompt.id!r} has no {field!r} that is text or messages")
        if not any(_HOLE.search(one["content"]) for one in found):
            raise CannotScore(
                "invalid", f"{field!r} of the prompt {prompt.id!r} has no {{response}}: the judge would not see it"
            )

        def render(response: str) -> Conversation:
            put = self._said(response, "response")
            return tuple(Message(one["role"], _HOLE.sub(lambda hole: put, one["content"])) for one in found)

        return render

    def _said(self, response: str, name: str) -> str:
        return quote_as(shown(response, name, self._ways), self._quoting, self._longest)


def _known(prompt: Prompt, name: str, template: Template) -> str:
    """Return what a placeholder stands for that is the same for all rollouts."""
    if name == "question":
        return question_of(prompt)
    if name == "reference":
        return "\nor: ".join(truths(prompt))
    if name == "source":
        return prompt.source
    found = extra(prompt, name)
    if _can_be_shown(found):
        return str(found)
    nested = extra(prompt, "extra_info")
    info = {**(nested if isinstance(nested, Mapping) else {}), **prompt.info}
    own = [key[:60] for key, value in info.items() if _can_be_shown(value)][:40]
    raise CannotScore(
        "invalid",
        f"the prompt {prompt.id!r} has no text or number {name!r} in its info, which {template.where} names."
        f"{nearest(name, [*PLACES, *own])} Known: {listing(PLACES)}; in this prompt's info: {listing(own)}",
    )


def _can_be_shown(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _key(prompt: Conversation | CannotScore) -> Hashable:
    """Return what tells a prompt from others; each that there is none for stands alone."""
    return prompt if isinstance(prompt, CannotScore) else tuple((one.role, one.content) for one in prompt)


def _is_message(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)


def _template(template: str | None, prompt: str | None) -> Template:
    if prompt is None:
        made = load_template(template or "judge", known=None, usual=_USUAL)
    else:
        made = Template.parse(prompt, "", known=None, usual=_USUAL, setting="prompt")
    if not made.places & {*ANSWERED}:
        has = sorted(made.places - {*PLACES})
        hint = next((f" {{{{{name}}}}}:{close}" for name in has if (close := nearest(name, ANSWERED))), "")
        raise UserError(
            f"{made.where} has none of {{{{response}}}}, {{{{final}}}}, {{{{answer}}}}: the judge would not see what it"
            f" judges.{hint}"
        )
    return made


__all__ = ["Judge"]
