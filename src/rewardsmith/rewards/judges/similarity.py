"""How near an answer is to a reference, by the angle between their sentence embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rewardsmith.checks import unicode
from rewardsmith.config import Refers
from rewardsmith.errors import UserError
from rewardsmith.llm import Embedder, ModelCallError, Models, UnconnectedModel
from rewardsmith.rewards.judges.asking import failed_score
from rewardsmith.rewards.judges.shown import WAYS, Show, Ways, are_stored, require_extracting, shown
from rewardsmith.rewards.judges.together import together
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.rewards.rules.translation import Reference, references_of
from rewardsmith.text.judge_replies import last_object
from rewardsmith.text.quoting import harmless
from rewardsmith.types import Prompt, RolloutGroup, Score

EmbedderName = Annotated[
    str, Refers("models", offer="embed"), Field(description="which of the recipe's models gives the vectors")
]
"""A setting that names a model which turns texts into vectors."""

LONGEST = 100_000
"""Characters of a text that are embedded; models read far less."""

CURVE = {"low": 0.65, "high": 0.85, "floor": 0.1, "top": 1.0, "base": 10_000.0}
"""Of `exponential`, unless a recipe says otherwise."""

Vector = NDArray[np.float32]


class Similarity:
    """Score each rollout by the cosine similarity of its answer and the prompt's reference.

    An answer that is not there is worth `absent`, and a prompt without a reference cannot be scored. Of a group, each
    text is embedded once, all in one call.

    Attributes:
        deadline: seconds for the vectors of a group; None leaves it to the model.
    """

    def __init__(
        self,
        *,
        model: EmbedderName,
        show: Show = "final",
        extract: Ways = WAYS,
        field: Annotated[
            str | None,
            Field(min_length=1, description="the answer is this field of the last JSON object in what is shown"),
        ] = None,
        reference: Reference = "answer",
        several: Annotated[
            Literal["max", "mean"], Field(description="with several references: the nearest, or all on average")
        ] = "max",
        absent: Annotated[float, Field(description="the value of a rollout without an answer; it is not shaped")] = 0.0,
        shape: Annotated[
            Literal["none", "exponential"], Field(description="the cosine as it is, or a curve between low and high")
        ] = "none",
        low: Annotated[
            float | None, Field(ge=-1, le=1, description="up to this cosine the curve is flat; not set: 0.65")
        ] = None,
        high: Annotated[
            float | None, Field(ge=-1, le=1, description="from this cosine on it is flat again; not set: 0.85")
        ] = None,
        floor: Annotated[float | None, Field(description="its value up to low; not set: 0.1")] = None,
        top: Annotated[float | None, Field(description="its value from high on; not set: 1")] = None,
        base: Annotated[
            float | None, Field(gt=1, le=1e100, description="the larger, the later it rises; not set: 10,000")
        ] = None,
        deadline: Annotated[
            float | None,
            Field(gt=0, description="seconds for the vectors of a group, waiting included; not set: the model's own"),
        ] = None,
    ) -> None:
        given = {"low": low, "high": high, "floor": floor, "top": top, "base": base}
        if shape == "none":
            require_unset('shape = "none"', **given)
        require_extracting(show, extract)
        curve = CURVE | {name: value for name, value in given.items() if value is not None}
        if curve["low"] >= curve["high"]:
            raise UserError(f"similarity has low = {curve['low']}, not below high = {curve['high']}")
        self._name = model
        self._model: Embedder = UnconnectedModel(model)
        self._show, self._ways, self._field = show, extract, field
        self._reference, self._several, self._absent = reference, several, absent
        self._shape = shape
        self._curve = curve
        self.deadline = deadline

    def connect(self, models: Models) -> None:
        """Take the model."""
        self._model = models(self._name)

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
            return tuple(Score(self._absent) for _ in answers)
        vectors = dict(zip(texts, await together(self._embed, texts, deadline=self.deadline), strict=True))
        near = [vectors[text] for text in references]
        return tuple(self._score(vectors[answer], near) if answer else Score(self._absent) for answer in answers)

    async def _embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        return list(await self._model.embed(texts))

    def _score(self, answer: Vector | Exception, references: Sequence[Vector | Exception]) -> Score:
        if isinstance(answer, Exception):
            return failed_score(answer)
        cosines = []
        for reference in references:
            if isinstance(reference, Exception):
                return failed_score(reference)
            try:
                cosines.append(cosine(answer, reference))
            except ModelCallError as error:
                return failed_score(error)
        value = max(cosines) if self._several == "max" else math.fsum(cosines) / len(cosines)
        return Score(exponential(value, **self._curve) if self._shape == "exponential" else value)

    def _answer(self, text: str) -> str:
        """Return what is compared of a rollout; "" where there is no answer."""
        found = shown(text, self._show, self._ways)
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


def exponential(cosine: float, *, low: float, high: float, floor: float, top: float, base: float) -> float:
    """Return the cosine on a curve that is flat up to `low`, rises faster and faster, and is flat from `high` on.

        f(s) = floor + (top − floor) · (base^(s − low) − 1) / (base^(high − low) − 1)     for low ≤ s ≤ high

    It is continuous: f(low) = floor, f(high) = top.
    """
    if cosine <= low:
        return floor
    if cosine >= high:
        return top
    rate = math.log(base)
    return floor + (top - floor) * math.expm1(rate * (cosine - low)) / math.expm1(rate * (high - low))


def _ready(text: str) -> str:
    """Return a text as it is embedded: bounded, the tokens by which models mark their input broken."""
    return harmless(unicode(text[:LONGEST].strip()))


def _field(text: str, name: str) -> str | None:
    """Return a field of the last JSON object in a text; None where there is none, or it is no text."""
    found = (last_object(text) or {}).get(name)
    return found if isinstance(found, str) else None


__all__ = ["EmbedderName", "Similarity", "cosine", "exponential"]
