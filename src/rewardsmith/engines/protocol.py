"""The engine protocol: everything that trainers and runs use of whatever runs a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rewardsmith.config import Settings
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.learning import OptimizerSettings
from rewardsmith.llm import Conversation
from rewardsmith.types import Prompt, RolloutGroup

if TYPE_CHECKING:
    import torch
    from torch import Tensor


# Called often while responses are generated, with the finished responses and the tokens so far; it may raise.
Tick = Callable[[int, int], None]


def no_tick(responses: int, tokens: int) -> None:
    """Do nothing."""


class Sampling(Settings):
    """How responses are sampled."""

    rare: ClassVar[frozenset[str]] = frozenset({"top_k", "min_tokens", "stop", "stop_tokens"})

    temperature: float = Field(default=1.0, ge=0, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="keep the likeliest tokens of this total probability")
    top_k: int = Field(default=0, ge=0, description="keep this many of the likeliest tokens; 0 keeps all")
    max_tokens: int = Field(default=256, ge=1, description="longest answer; longer ones are cut off")
    min_tokens: int = Field(default=0, ge=0, description="no answer ends before this many tokens")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), strict=False, description="texts that end an answer, and are not part of it"
    )
    stop_tokens: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), strict=False, description="token ids that end an answer, in addition to the model's own"
    )

    @model_validator(mode="after")
    def _fits(self) -> Sampling:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens = {self.max_tokens}")
        return self

    @property
    def cuts(self) -> bool:
        """Whether some tokens are never sampled, so that log-probabilities are not those of the full softmax."""
        return self.top_p < 1 or self.top_k > 0 or self.min_tokens > 0


@dataclass(frozen=True)
class Row:
    """A prompt and a response as token ids."""

    prompt: NDArray[np.int32]  # [P], at least one token: the first response token is predicted from it
    response: NDArray[np.int32]  # [T]; may be empty


@dataclass(frozen=True)
class Outputs:
    """Model outputs at the response tokens of some rows of a batch; zero where a row has no token."""

    rows: Tensor  # int64 [b], which rows of the batch
    mask_bT: Tensor  # bool, the response tokens
    logprobs_bT: Tensor  # of a language model
    entropy_bT: Tensor  # of a language model
    values_bT: Tensor  # of a model with a scalar head: the value before each response token

    def to(self, device: torch.device) -> Outputs:
        """Return the outputs on another device; gradients flow back to where they came from."""
        return Outputs(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True)
class OptimizerStep:
    """The result of an optimizer step."""

    grad_norm: float  # before clipping; NaN or infinite when the step was skipped
    skipped: bool  # the gradient was not finite, so the weights stayed as they were


class Meter:
    """What a loss measures on the way, part by part, without waiting for the device: means, sums, values of rows."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._kept: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def add(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add the values under a mask."""
        values = values.detach().where(mask, 0)
        self._sums[name] = self._sums.get(name, 0) + values.double().sum()
        self._counts[name] = self._counts.get(name, 0) + mask.sum()

    def sum(self, name: str, value: Tensor) -> None:
        """Add to a sum."""
        self._sums[name] = self._sums.get(name, 0) + value.detach()

    def keep(self, name: str, rows_b: Tensor, values_b: Tensor) -> None:
        """Keep a value of each row, [b] or [b, T]."""
        self._kept.setdefault(name, []).append((rows_b, values_b.detach()))

    def fill(self, name: str, into_B: Tensor) -> Tensor:
        """Write the values of rows into a tensor [B] or [B, T], and return it."""
        for rows_b, values_b in self._kept.get(name, ()):
            if into_B.dim() == 1:
                into_B[rows_b] = values_b.to(into_B)
            else:
                into_B[rows_b, : values_b.shape[1]] = values_b.to(into_B)
        return into_B

    def merge(self, other: Meter) -> None:
        """Add what another one has gathered on other rows."""
        for mine, others in ((self._sums, other._sums), (self._counts, other._counts)):
            for name, value in others.items():
                mine[name] = mine.get(name, 0) + value.cpu()
        for name, some in other._kept.items():
            self._kept.setdefault(name, []).extend((rows_b.cpu(), values_b.cpu()) for rows_b, values_b in some)

    def means(self) -> dict[str, float]:
        """Return what was gathered; without a count there is no mean."""
        counts = {name: float(self._counts.get(name, 1)) for name in self._sums}
        return {name: float(total) / counts[name] for name, total in self._sums.items() if counts[name]}


Loss = Callable[[Outputs], "Tensor"]  # of some rows; the losses of the micro-batches add up to that of the batch


@dataclass(frozen=True)
class ModelOutline:
    """A model without its weights."""

    name: str  # in the recipe
    vocabulary: Mapping[str, int]  # token to id
    max_length: int  # the longest sequence that it reads


class Engine(Protocol):
    """Runs one model: generates, measures, learns, saves. `engines/embedded` is the implementation in this process."""

    name: str  # in the recipe
    settings: ModelSettings  # its `[models.NAME]` table
    device: torch.device  # of its outputs; a loss moves them to where its own tensors are (`Outputs.to`)
    dtype: torch.dtype  # of its weights; in float32 the sampler's log-probabilities are the learner's
    samples_as_it_learns: bool  # one implementation does both: in bfloat16 too they differ by rounding alone

    @property
    def max_length(self) -> int:
        """The longest sequence that the model can read."""

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Token to id."""

    # ---- text to tokens ----

    def require_chat_template(self) -> None:
        """Raise a `UserError` unless the model can render messages."""

    def encode(self, prompt: Prompt) -> NDArray[np.int32]:
        """Return the prompt under the chat template, up to where the response begins; recent prompts are cached."""

    def encode_response(self, text: str) -> NDArray[np.int32]:
        """Return a response as the model would generate it, its end token included."""

    def encode_conversation(self, conversation: Conversation) -> NDArray[np.int32]:
        """Return a conversation up to the token at which a scalar head is read; `ModelCallError` if it cannot be."""

    # ---- forward passes ----

    @property
    def writes_apart(self) -> bool:
        """Whether other copies of the weights write answers, so that the model can learn meanwhile."""

    async def hold_writer(self) -> None:
        """From now on, present weights write answers, also while the model learns; nothing is being written now."""

    def release_writer(self) -> None:
        """From now on, the weights of the time of a call write again."""

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
        """Yield (index of the prompt, its n rollouts) as groups complete, in any order; `ends` fills `Rollout.ends`."""

    def logprobs(self, rows: Sequence[Row], *, temperature: float = 1.0, max_rows: int | None = None) -> Tensor:
        """Return log-probabilities of the response tokens, float32 [B, T]; `max_rows` limits a forward pass."""

    def reference_logprobs(
        self, rows: Sequence[Row], *, temperature: float = 1.0, max_rows: int | None = None
    ) -> Tensor:
        """Return the log-probabilities with the adapter switched off."""

    def values(self, rows: Sequence[Row]) -> Tensor:
        """Return a value before each response token, float32 [B, T]; for a model with a scalar head."""

    # ---- learning ----

    @property
    def is_finite(self) -> bool:
        """Whether every trainable weight is finite."""

    @property
    def adapter_is_fresh(self) -> bool:
        """Whether the adapter changes nothing yet, so that the model without it is the model as it is."""

    def learn_with(self, optimizer: OptimizerSettings) -> None:
        """Create a new optimizer."""

    def stop_learning(self) -> None:
        """Release the optimizer."""

    def micro_batches(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return the indices of the rows of each forward pass in `update`."""

    def update(
        self,
        rows: Sequence[Row],
        loss: Loss,
        *,
        lr: float,
        temperature: float = 1.0,
        max_rows: int | None = None,
        entropy: bool = True,
        meter: Meter | None = None,
        count: Callable[[int], None] = lambda rows: None,
    ) -> OptimizerStep:
        """Take one optimizer step on the loss over all rows; gradients of micro-batches add up exactly.

        The loss may run in other processes, where it fills a copy of `meter`; `count` is called with the rows done.
        """

    # ---- copies, memory, files ----

    def copy(self, settings: ModelSettings | None = None, *, name: str) -> Engine:
        """Return an engine with the same weights and no optimizer; `settings` may give it a scalar head."""

    def sleep(self) -> None:
        """Offload weights and optimizer state to host memory."""

    def wake(self) -> None:
        """Move them back to the device, bit for bit."""

    def digest(self, *, adapter: bool = True) -> str:
        """Return a hash of weights, tokenizer, chat template and precision."""

    def save(self, folder: Path) -> None:
        """Write a checkpoint: the model as a Hugging Face folder, and the optimizer state."""

    def load(self, folder: Path) -> None:
        """Load the weights that `save` wrote."""

    def load_learner(self, folder: Path) -> None:
        """Load the optimizer state that `save` wrote."""

    def publish(self, folder: Path) -> None:
        """Write the model for use elsewhere, its adapter merged into the weights."""
