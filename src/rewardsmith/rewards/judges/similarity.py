"""How near an answer is to a reference, by the angle between their sentence embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rewardsmith.checks import unicode
from rewardsmith.config import Refers, Settings
from rewardsmith.llm import Embedder, ModelCallError, Models, UnconnectedModel
from rewardsmith.rewards.judges.judge import (
    DEFAULT_WAYS,
    MAX_CHARS,
    BatchDeadline,
    Show,
    Ways,
    are_stored,
    call_batch,
    failed_score,
    require_extracting,
    visible_text,
)
from rewardsmith.rewards.rules.truth import Reference, references_of
from rewardsmith.text.judge_replies import last_object
from rewardsmith.text.quoting import harmless
from rewardsmith.types import Prompt, RolloutGroup, Score

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
        field: Annotated[
            str | None,
            Field(min_length=1, description="the answer is this field of the last JSON object in what is shown"),
        ] = None,
        reference: Reference = "answer",
        reduce: Annotated[
            Literal["max", "mean"], Field(description="with several references: the nearest, or all on average")
        ] = "max",
        absent: Annotated[
            float, Field(description="the value of a rollout without an answer; the curve does not change it")
        ] = 0.0,
        curve: Annotated[
            CurveSettings | None, Field(description="a curve through the cosine; not set: the cosine as it is")
        ] = None,
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
