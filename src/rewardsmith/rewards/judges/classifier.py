"""A scalar reward model: one number for a conversation, optionally after a critique that another model writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.checks import unicode
from rewardsmith.config import Refers, Settings
from rewardsmith.llm import ModelCallError, Models, Parsed, Rater, UnconnectedModel, settle
from rewardsmith.rewards.judges.judge import (
    DEFAULT_REQUEST,
    MAX_CHARS,
    BatchDeadline,
    ChatModelName,
    Judge,
    MaxChars,
    OwnTemplate,
    Question,
    Request,
    call_batch,
    failed_score,
)
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.judge_prompts import Keep, question_of, rated_answer, rated_conversation
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.quoting import harmless, quote
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message, Prompt, RolloutGroup, Score

RaterName = Annotated[
    str,
    Refers("models", offer="rate", offer_if=("critique", "rate_turns")),
    Field(description="the recipe's model that returns the number"),
]


class CritiqueSettings(Settings):
    """A critique that the scalar model reads after the answer."""

    model: ChatModelName = Field(min_length=1, description="the model that writes it")
    template: OwnTemplate = "critique"
    show_template: str = Field(
        default="critique_shown",
        min_length=1,
        description="turns that show the critique to the scalar model after the answer: built-in, or a path",
    )
    max_chars: MaxChars = MAX_CHARS
    request: Request = DEFAULT_REQUEST


class Classifier:
    """Score each rollout by a scalar reward model: a Bradley-Terry model, or any classifier with one label.

    The model reads the prompt's messages and the rollout as the assistant's answer, in its own chat template.

    Attributes:
        deadline: seconds for the numbers of a group; None leaves it to the model.
        scaleless: whether the numbers only order answers, and none means "right".
    """

    def __init__(
        self,
        *,
        model: RaterName,
        critique: Annotated[
            CritiqueSettings | None, Field(description="a critique by another model that is read after the answer")
        ] = None,
        system: Annotated[Keep, Field(description="whether the model reads the prompt's system messages")] = "keep",
        think: Annotated[Keep, Field(description="whether it reads the policy's reasoning, up to </think>")] = "drop",
        activation: Annotated[
            Literal["none", "sigmoid"], Field(description="the number as it is, or 1 / (1 + exp(-number))")
        ] = "none",
        deadline: BatchDeadline = None,
    ) -> None:
        self._model: Rater = UnconnectedModel(model)
        self._critic = None if critique is None else Critic(critique)
        self._system, self._think, self._activation = system, think, activation
        self.deadline = deadline
        self.scaleless = activation == "none"

    def connect(self, models: Models) -> None:
        """Take the model, and the one that writes critiques."""
        self._model = models(self._model.name)
        if self._critic is not None:
            self._critic.connect(models)

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on apart from model and settings, for the record of a run."""
        return {} if self._critic is None else self._critic.facts()

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no answer that the critic's template shows."""
        if self._critic is not None:
            self._critic.known(prompt)

    async def check(self) -> None:
        """Raise if a model cannot work."""
        await self._model.check()
        if self._critic is not None:
            await self._critic.check()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, with the critique as feedback; equal answers are rated once."""
        answers = [rated_answer(rollout.text, think=self._think) for rollout in group.rollouts]
        distinct = list(dict.fromkeys(answers))
        critiques = {} if self._critic is None else await self._critic.critiques(group.prompt, distinct)
        scores = {answer: failed_score(error) for answer, error in critiques.items() if isinstance(error, Exception)}
        rated = [answer for answer in distinct if answer not in scores]
        conversations = [self._conversation(group.prompt, answer, critiques.get(answer)) for answer in rated]
        numbers = await call_batch(self._model.rate, conversations, self.deadline)
        for answer, number in zip(rated, numbers, strict=True):
            critique = critiques.get(answer)
            scores[answer] = self._score(number, critique.feedback if isinstance(critique, Parsed) else "")
        return tuple(scores[answer] for answer in answers)

    def _conversation(self, prompt: Prompt, answer: str, critique: object) -> tuple[Message, ...]:
        conversation = rated_conversation(prompt, answer, system=self._system)
        if self._critic is None or not isinstance(critique, Parsed):
            return conversation
        return (*conversation, *self._critic.show.render({"critique": harmless(unicode(critique.value))}))

    def _score(self, number: float | Exception, feedback: str) -> Score:
        if not isinstance(number, Exception) and not math.isfinite(number):
            number = ModelCallError("invalid", f"the model's number for the conversation is {number}")
        if isinstance(number, Exception):
            return Score(failure=failed_score(number).failure, feedback=feedback)
        return Score(sigmoid(number) if self._activation == "sigmoid" else float(number), feedback=feedback)


class Critic(Judge):
    """Writes critiques of answers; `show` has the turns that show one to the scalar model."""

    _template: Template

    def __init__(self, settings: CritiqueSettings) -> None:
        super().__init__(settings.model, settings.request)
        known, needed = ("question", "response", "reference"), ("response",)
        self._template = load_template(settings.template, known=known, needed=needed, setting="critique.template")
        turns = {"known": ("critique",), "needed": ("critique",)}
        self.show = load_template(settings.show_template, **turns, setting="critique.show_template")
        self._max_chars = settings.max_chars

    def facts(self) -> dict[str, Any]:
        """Return which templates these are."""
        show = self.show.facts()
        own = {"show_template": show["template"], "show_template_sha256": show["template_sha256"]}
        return super().facts() | own

    def known(self, prompt: Prompt) -> dict[str, str]:
        """Return what the critic sees of a prompt, quoted; `CannotScore` if the prompt lacks it."""
        known = {"question": quote(question_of(prompt))}
        if "reference" in self._template.places:
            known["reference"] = quote("\n".join(truths(prompt)))
        return known

    async def critiques(self, prompt: Prompt, answers: Sequence[str]) -> Mapping[str, Parsed[str] | Exception]:
        """Return the critique of each answer, all written at once, or why there is none."""
        known = self.known(prompt)
        prompts = [self._template.render({**known, "response": quote(a, self._max_chars)}) for a in answers]
        written = await settle(self.request(Question(messages)) for messages in prompts)
        return dict(zip(answers, written, strict=True))

    def parse(self, reply: str, about: None) -> str:
        """Return a critique that is not empty."""
        if not reply.strip():
            raise Unparsable("no critique")
        return reply.strip()


def sigmoid(x: float) -> float:
    """Return 1 / (1 + e⁻ˣ), for any finite x."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
