"""A scalar reward model: one number for a conversation. It may read a critique first, which another model writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.checks import unicode
from rewardsmith.config import Refers, Settings
from rewardsmith.llm import ModelCallError, Models, Rater, UnconnectedModel
from rewardsmith.rewards.judges.asking import Asker, AskingSettings, JudgeName, Verdict, failed_score
from rewardsmith.rewards.judges.shown import LONGEST, Longest
from rewardsmith.rewards.judges.together import settled, together
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.judge_prompts import Keep, question_of, rated_answer, rated_conversation
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.quoting import harmless, quote
from rewardsmith.text.templates import load_template
from rewardsmith.types import Message, Prompt, RolloutGroup, Score

RaterName = Annotated[
    str,
    Refers("models", offer="rate", offer_if=("critique", "rate_turns")),
    Field(description="which of the recipe's models gives the number"),
]
"""A setting that names a model which gives conversations numbers."""


class CritiqueSettings(Settings):
    """A critique that the scalar model reads after the answer."""

    model: JudgeName = Field(min_length=1, description="the model that writes it")
    template: str = Field(default="critique", min_length=1, description="what it is asked: built-in, or a path")
    told: str = Field(
        default="critique_told",
        min_length=1,
        description="how the scalar model is told: built-in, or the path of text with {{critique}}; it follows the"
        " answer as further turns",
    )
    longest: Longest = LONGEST
    asking: AskingSettings = Field(default=AskingSettings(), description="how it is asked")


class Classifier:
    """Score each rollout by a scalar reward model: a Bradley-Terry model, or any classifier with one label.

    The model reads the prompt's messages and the rollout as the assistant's answer, in its own chat template. With a
    critique, a model that writes looks at each answer first, and the scalar model reads what it wrote.

    Attributes:
        deadline: seconds for the numbers of a group; None leaves it to the model.
        scaleless: whether the numbers say only which of two answers is better, and none means "right".
    """

    def __init__(
        self,
        *,
        model: RaterName,
        critique: Annotated[
            CritiqueSettings | None, Field(description="a critique by another model that is read after the answer")
        ] = None,
        system: Annotated[Keep, Field(description="whether the model reads the prompt's system messages")] = "keep",
        think: Annotated[Keep, Field(description="whether it reads what the policy thinks, up to </think>")] = "drop",
        activation: Annotated[
            Literal["none", "sigmoid"], Field(description="the number as it is, or 1 / (1 + exp(-number))")
        ] = "none",
        deadline: Annotated[
            float | None,
            Field(gt=0, description="seconds for the numbers of a group, waiting included; not set: the model's own"),
        ] = None,
    ) -> None:
        self._name = model
        self._model: Rater = UnconnectedModel(model)
        self._critic = None if critique is None else Critic(critique)
        self._system, self._think, self._activation = system, think, activation
        self.deadline = deadline
        self.scaleless = activation == "none"

    def connect(self, models: Models) -> None:
        """Take the model, and that which writes critiques."""
        self._model = models(self._name)
        if self._critic is not None:
            self._critic.asker.connect(models)

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on beside model and settings, for the record of a run."""
        return {} if self._critic is None else self._critic.facts()

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no answer, and the critic is to be shown one."""
        if self._critic is not None:
            self._critic.known(prompt)

    async def check(self) -> None:
        """Raise if a model cannot work."""
        await self._model.check()
        if self._critic is not None:
            await self._critic.asker.check()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, with the critique as feedback; equal answers are asked about once."""
        answers = [rated_answer(rollout.text, think=self._think) for rollout in group.rollouts]
        distinct = list(dict.fromkeys(answers))
        critiques = {} if self._critic is None else await self._critic.critiques(group.prompt, distinct)
        scores = {answer: failed_score(why) for answer, why in critiques.items() if isinstance(why, Exception)}
        written = {answer: found for answer, found in critiques.items() if isinstance(found, Verdict)}
        asked = [answer for answer in distinct if answer not in scores]
        conversations = [self._conversation(group.prompt, answer, written.get(answer)) for answer in asked]
        found = await together(self._model.rate, conversations, deadline=self.deadline)
        for answer, number in zip(asked, found, strict=True):
            feedback = written[answer].feedback if answer in written else ""
            scores[answer] = self._score(number, feedback)
        return tuple(scores[answer] for answer in answers)

    def _conversation(self, prompt: Prompt, answer: str, critique: Verdict[str] | None) -> tuple[Message, ...]:
        """Return what the model reads."""
        said = rated_conversation(prompt, answer, system=self._system)
        if self._critic is None or critique is None:
            return said
        return (*said, *self._critic.told.render({"critique": harmless(unicode(critique.value))}))

    def _score(self, number: float | Exception, feedback: str) -> Score:
        if not isinstance(number, Exception) and not math.isfinite(number):
            number = ModelCallError("invalid", f"the model's number for the conversation is {number}")
        if isinstance(number, Exception):
            return Score(failure=failed_score(number).failure, feedback=feedback)
        return Score(sigmoid(number) if self._activation == "sigmoid" else float(number), feedback=feedback)


class Critic:
    """Writes critiques of answers.

    Args:
        settings: of the critique.

    Attributes:
        asker: of the model that writes.
        told: the turns in which the scalar model is told.
    """

    def __init__(self, settings: CritiqueSettings) -> None:
        self._template = load_template(
            settings.template,
            known=("question", "response", "reference"),
            needed=("response",),
            setting="critique.template",
        )
        self._longest = settings.longest
        self.told = load_template(settings.told, known=("critique",), needed=("critique",), setting="critique.told")
        self.asker = Asker(settings.model, settings.asking)

    def facts(self) -> dict[str, str]:
        """Return which templates these are."""
        told = self.told.facts()
        return self._template.facts() | {"told": told["template"], "told_sha256": told["template_sha256"]}

    def known(self, prompt: Prompt) -> dict[str, str]:
        """Return what the critic is shown of a prompt, quoted; `CannotScore` if it lacks that."""
        known = {"question": quote(question_of(prompt))}
        if "reference" in self._template.places:
            known["reference"] = quote("\n".join(truths(prompt)))
        return known

    async def critiques(self, prompt: Prompt, answers: Sequence[str]) -> Mapping[str, Verdict[str] | Exception]:
        """Return the critique of each answer, all written at once, or why there is none."""
        known = self.known(prompt)
        questions = [self._template.render({**known, "response": quote(a, self._longest)}) for a in answers]
        written = await settled(lambda question: self.asker.verdict(question, _not_empty), questions)
        return dict(zip(answers, written, strict=True))


def _not_empty(text: str) -> str:
    if not text.strip():
        raise Unparsable("no critique")
    return text.strip()


def sigmoid(x: float) -> float:
    """Return 1 / (1 + e⁻ˣ), for any finite x."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


__all__ = ["Classifier", "Critic", "CritiqueSettings", "RaterName", "sigmoid"]
