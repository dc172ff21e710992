"""What an engine can do: the seam between the trainers and whatever runs a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rewardsmith.learning import OptimizerSettings
from rewardsmith.types import Prompt, RolloutGroup

if TYPE_CHECKING:
    from torch import Tensor


Tick = Callable[[int, int], None]
"""Called often while answers are written, with the answers that are finished and the tokens written so far."""


def no_tick(answers: int, tokens: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled.

    Attributes:
        temperature: 0 is greedy.
        top_p: keep the likeliest tokens of this total probability.
        top_k: keep this many of the likeliest tokens; 0 keeps all.
        max_tokens: longest answer.
        min_tokens: no answer ends before this many tokens.
        stop: texts that end an answer; they are not part of it.
        stop_tokens: token ids that end an answer, beside the model's own.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()

    @property
    def cuts(self) -> bool:
        """Whether some tokens are never sampled, so that log-probabilities are not those of the plain softmax."""
        return self.top_p < 1 or self.top_k > 0 or self.min_tokens > 0


@dataclass(frozen=True)
class Row:
    """A prompt and an answer, as token ids.

    Attributes:
        prompt: int32 [P], at least one token: the first answer token is predicted from it.
        response: int32 [T]; may be empty.
    """

    prompt: NDArray[np.int32]
    response: NDArray[np.int32]


@dataclass(frozen=True)
class Outputs:
    """What a model says about the answer tokens of some rows of a batch; zero where a row has no token.

    Attributes:
        rows: int64 [b], which rows of the batch.
        mask_bT: bool [b, T], the answer tokens.
        logprobs_bT: [b, T], of a language model.
        entropy_bT: [b, T], of a language model.
        values_bT: [b, T], of a model with a scalar head: the value before each answer token.
    """

    rows: Tensor
    mask_bT: Tensor
    logprobs_bT: Tensor
    entropy_bT: Tensor
    values_bT: Tensor


@dataclass(frozen=True)
class Step:
    """What an optimizer step did.

    Attributes:
        grad_norm: length of the gradient before clipping; NaN or infinite when the step was skipped.
        skipped: whether the gradient was not finite, so that the weights stayed as they were.
    """

    grad_norm: float
    skipped: bool


Loss = Callable[[Outputs], "Tensor"]
"""The loss of some rows; the losses of the parts of a batch add up to that of the batch."""


class Engine(Protocol):
    """Runs one model."""

    @property
    def max_length(self) -> int:
        """The longest sequence that the model can read."""
        ...

    def encode(self, prompt: Prompt) -> NDArray[np.int32]:
        """Return the prompt as the model reads it, its chat template applied, up to where the answer begins."""
        ...

    def encode_response(self, text: str) -> NDArray[np.int32]:
        """Return an answer as the model would write it, the token that ends it included."""
        ...

    def ends(self, tokens: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        """Return how many characters of `text`, which the tokens say, there are up to the end of each token, [T]."""
        ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        n: int,
        seeds: Sequence[int],
        version: int = 0,
        ends: bool = False,
        tick: Tick = no_tick,
    ) -> AsyncIterator[tuple[int, RolloutGroup]]:
        """Yield (number of the prompt, its n rollouts) as groups are complete; the order is not that of the prompts.

        With `ends`, the rollouts say where their tokens lie in their texts (`Rollout.ends`). `tick` is called often;
        what it raises ends the work.
        """
        ...

    def logprobs(self, rows: Sequence[Row], *, temperature: float = 1.0) -> Tensor:
        """Return log-probabilities of the answer tokens, float32 [B, T], zero where a row has none."""
        ...

    def values(self, rows: Sequence[Row]) -> Tensor:
        """Return a value before each answer token, float32 [B, T]; for a model with a scalar head."""
        ...

    def parts(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return which rows go through the model together in `update`: those of each pass, by their numbers."""
        ...

    def learn_with(self, optimizer: OptimizerSettings) -> None:
        """Begin to learn: make a fresh optimizer."""
        ...

    def stop_learning(self) -> None:
        """Let go of the optimizer."""
        ...

    def update(self, rows: Sequence[Row], loss: Loss, *, lr: float, temperature: float = 1.0) -> Step:
        """Take one optimizer step down the gradient of the loss over all rows."""
        ...

    def sleep(self) -> None:
        """Move everything off the device."""
        ...

    def wake(self) -> None:
        """Move everything back, exactly as it was."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder, and beside it what going on learning needs."""
        ...

    def load(self, folder: Path) -> None:
        """Take over the weights that `save` wrote."""
        ...

    def load_learner(self, folder: Path) -> None:
        """Take over the optimizer's state that `save` wrote."""
        ...
