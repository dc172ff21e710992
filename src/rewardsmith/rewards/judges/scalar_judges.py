"""Models that return numbers or vectors: a scalar reward model, and the similarity of sentence embeddings."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rewardsmith.checks import unicode
from rewardsmith.config import Refers, Settings
from rewardsmith.llm import Embedder, ModelCallError, Models, Parsed, Rater, UnconnectedModel, settle
from rewardsmith.rewards.judges.judge import (
    DEFAULT_REQUEST,
    DEFAULT_WAYS,
    MAX_CHARS,
    ChatModelName,
    Judge,
    MaxChars,
    OwnTemplate,
    Question,
    Request,
    Show,
    Ways,
    are_stored,
    failed_score,
    require_extracting,
    visible_text,
)
from rewardsmith.rewards.rules.truth import Reference, references_of, truths
from rewardsmith.text.judge_prompts import Keep, question_of, rated_answer, rated_conversation
from rewardsmith.text.judge_replies import Unparsable, last_object
from rewardsmith.text.quoting import harmless, quote
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message, Prompt, RolloutGroup, Score

T = TypeVar("T")
V = TypeVar("V")

BatchDeadline = Annotated[
    float | None, Field(gt=0, description="seconds for the model's call on a group; not set: the model's own")
]


async def call_batch(
    call: Callable[[Sequence[T]], Awaitable[Iterable[V]]], items: Sequence[T], deadline: float | None = None
) -> list[V | Exception]:
    """Return the result of `rate` or `embed` for each item, or why there is none, within `deadline` seconds.

    All items go in one call; if the model refuses it, each has a call of its own.
    """

    async def results(batch: Sequence[T]) -> list[V]:
        found = list(await call(batch))
        if len(found) != len(batch):
            raise ModelCallError("invalid", f"the model returned {len(found)} results for {len(batch)}")
        return found

    if not items:
        return []
    try:
        async with asyncio.timeout(deadline):
            (whole,) = await settle([results(items)])
            if not isinstance(whole, Exception):
                return [*whole]
            gone = getattr(whole, "kind", "") in ("unreachable", "timeout", "cancelled")
            if gone or not isinstance(whole, ModelCallError) or len(items) == 1:
                return [whole for _ in items]
            alone = await settle(results([item]) for item in items)
            return [one if isinstance(one, Exception) else one[0] for one in alone]
    except TimeoutError:
        return [ModelCallError("timeout", f"no result within {deadline:g} s (deadline)") for _ in items]


# ---- scalar reward models ------------------------------------------------------------------------------------------

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
        default="critique_shown", min_length=1, description="turns that show the critique to the scalar model"
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
        critique: Annotated[CritiqueSettings | None, Field(description="by another model, read after it")] = None,
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


# ---- similarity of embeddings --------------------------------------------------------------------------------------

EmbedderName = Annotated[str, Refers("models", offer="embed"), Field(description="the model that returns vectors")]

Vector = NDArray[np.float32]


class CurveSettings(Settings):
    """A curve that is flat up to `low`, rises faster and faster, and is flat from `high` on.

        f(s) = floor + (top − floor) · (base^(s − low) − 1) / (base^(high − low) − 1)     for low ≤ s ≤ high

    It is continuous: f(low) = floor, f(high) = top.
    """

    low: float = Field(default=0.65, ge=-1, le=1, description="up to this cosine the curve is flat")
    high: float = Field(default=0.85, ge=-1, le=1, description="from this cosine on it is flat again")
    floor: float = Field(default=0.1, description="its value up to low")
    top: float = Field(default=1.0, description="its value from high on")
    base: float = Field(default=10_000.0, gt=1, le=1e100, description="the larger, the later it rises")

    @model_validator(mode="after")
    def _rises(self) -> CurveSettings:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be below high = {self.high}")
        return self

    def value(self, cosine: float) -> float:
        """Return f(cosine)."""
        if cosine <= self.low:
            return self.floor
        if cosine >= self.high:
            return self.top
        rate = math.log(self.base)
        rise = math.expm1(rate * (cosine - self.low)) / math.expm1(rate * (self.high - self.low))
        return self.floor + (self.top - self.floor) * rise


class Similarity:
    """Score each rollout by the cosine similarity of its answer and the prompt's reference.

    A missing answer is worth `absent`. Each text of a group is embedded once, all in one call.

    Attributes:
        deadline: seconds for the vectors of a group; None leaves it to the model.
    """

    def __init__(
        self,
        *,
        model: EmbedderName,
        show: Show = "final",
        extract: Ways = DEFAULT_WAYS,
        field: Annotated[str | None, Field(description="the answer is this field of the last JSON object")] = None,
        reference: Reference = "answer",
        reduce: Annotated[Literal["max", "mean"], Field(description="of several references")] = "max",
        absent: Annotated[float, Field(description="the value of a rollout without an answer")] = 0.0,
        curve: Annotated[CurveSettings | None, Field(description="not set: the cosine as it is")] = None,
        deadline: BatchDeadline = None,
    ) -> None:
        require_extracting(show, extract)
        self._model: Embedder = UnconnectedModel(model)
        self._show, self._ways, self._field = show, extract, field
        self._reference, self._reduce, self._absent = reference, reduce, absent
        self._curve = curve
        self.deadline = deadline

    def connect(self, models: Models) -> None:
        """Take the model."""
        self._model = models(self._model.name)

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no reference."""
        self._references(prompt)

    async def check(self) -> None:
        """Raise if the model cannot work."""
        await self._model.check()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout."""
        references = [_ready(text) for text in self._references(group.prompt)]
        answers = [self._answer(rollout.text) for rollout in group.rollouts]
        texts = list(dict.fromkeys([*references, *(answer for answer in answers if answer)]))
        if not any(answers):
            return (Score(self._absent),) * len(answers)
        vectors = dict(zip(texts, await call_batch(self._model.embed, texts, self.deadline), strict=True))
        near = [vectors[text] for text in references]
        return tuple(self._score(vectors[answer], near) if answer else Score(self._absent) for answer in answers)

    def _score(self, answer: Vector | Exception, references: Sequence[Vector | Exception]) -> Score:
        for vector in (answer, *references):
            if isinstance(vector, Exception):
                return failed_score(vector)
        try:
            cosines = [cosine(answer, reference) for reference in references]  # type: ignore[arg-type]
        except ModelCallError as error:
            return failed_score(error)
        value = max(cosines) if self._reduce == "max" else math.fsum(cosines) / len(cosines)
        return Score(value if self._curve is None else self._curve.value(value))

    def _answer(self, text: str) -> str:
        """Return what is compared of a rollout; "" where there is no answer."""
        found = visible_text(text, self._show, self._ways)
        if self._field is not None:
            found = _field(found, self._field) or (found if are_stored() else "")
        return _ready(found) if found.strip() else ""

    def _references(self, prompt: Prompt) -> list[str]:
        """Return the references of a prompt, at least one; of one that has the field of answers, that field."""
        texts = references_of(prompt, self._reference)
        return [text if self._field is None else _field(text, self._field) or text for text in texts]


def cosine(a: Vector, b: Vector) -> float:
    """Return the cosine of the angle between two vectors; `ModelCallError` if one is zero or they do not fit."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ModelCallError("invalid", f"the vectors have shapes {x.shape} and {y.shape}")
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not math.isfinite(length) or length == 0:
        raise ModelCallError("invalid", "a vector has no direction")
    return min(1.0, max(-1.0, float(x @ y) / length))


def _ready(text: str) -> str:
    """Return a text as it is embedded: bounded, the tokens by which models mark their input broken."""
    return harmless(unicode(text[:MAX_CHARS].strip()))


def _field(text: str, name: str) -> str | None:
    """Return a field of the last JSON object in a text; None where there is none, or it is no text."""
    found = (last_object(text) or {}).get(name)
    return found if isinstance(found, str) else None
