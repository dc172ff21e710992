"""A model of this process that gives conversations numbers, many of them together.

Which number that is, and which tokens the model reads, is said in `conversations`, for training and asking alike.
Conversations are laid end to end without padding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.embedded.batches import Batches, Piece, Turn
from rewardsmith.engines.embedded.conversations import Reader, ratings, tokens_of
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.loading import require_chat_template
from rewardsmith.engines.embedded.tiny import TINY
from rewardsmith.engines.protocol import Row
from rewardsmith.errors import UserError
from rewardsmith.llm import Conversation, ModelCallError, Usage
from rewardsmith.types import Message


class RatingModel:
    """Rates conversations with an embedded engine; see `rewardsmith.llm.Rater`.

    Calls that come while others are being rated wait. The conversations of a call share passes with each other, and
    with those of no other call: what goes through a model together changes the last bits of its numbers, and which
    calls wait at a time is chance.

    Args:
        engine: a model with a scalar head.
        turn: entered while the engine works; it is awake then.

    Attributes:
        name: what the recipe calls it.
        usage: what was asked of it; `prompt_tokens` counts those that went through the model, shared ones once.
        rates_together: a number belongs to the whole call that it was asked for in.
    """

    rates_together = True

    def __init__(self, engine: EmbeddedEngine, turn: Turn = nullcontext) -> None:
        self.name = engine.name
        self.usage = Usage()
        self._engine = engine
        self._reader = Reader(engine)
        self._batches: Batches[list[Row], list[float]] = Batches(self._rate, turn)

    async def identity(self) -> str:
        """Return what a cache knows the model by: a hash of its weights and of its chat template."""
        return f"embedded:{self._engine.digest()}"

    async def check(self) -> None:
        """Raise a `UserError` if the model cannot rate: no scalar head, or an untrained one, or no chat template."""
        engine, where = self._engine, f"models.{self.name}"
        if engine.settings.head != "scalar":
            raise UserError(f'{where} writes text: a model that rates has head = "scalar"')
        init = engine.settings.init or self.name
        labels = engine.model.score.weight.shape[0]
        if labels != 1:
            raise UserError(f"{where}: the head gives {labels} numbers for a text. A reward model gives one")
        if init not in TINY and not bool(engine.model.score.weight.any()):
            raise UserError(
                f"{where}: the head is all zeros, so every text would be worth the same. {init} has no trained head:"
                " name a reward model (a Hugging Face folder of a sequence classifier with one label)"
            )
        require_chat_template(engine.tokenizer, init)
        question = Message("user", "1+1?")
        try:
            first, second = (self._tokens([question, Message("assistant", text)]) for text in ("2", "3"))
        except ModelCallError as error:
            raise UserError(f"{where}: {error}") from None
        if first.tolist() == second.tolist():
            raise UserError(f"{where}: its chat template leaves out what the assistant says")

    async def close(self) -> None:
        """Stop rating."""
        await self._batches.close()

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the number of each conversation.

        Raises:
            ModelCallError: one of them is longer than what the model reads, or cannot be rendered, or the model has no
                finite number for it, or the engine failed.
        """
        try:
            tokens = [self._tokens(conversation) for conversation in conversations]
            rows = self._reader.rows(conversations, tokens)
            # In an order of their own: that of the call must not matter.
            by_tokens = sorted(
                zip(tokens, rows, strict=True), key=lambda pair: (pair[0].tobytes(), len(pair[1].prompt))
            )
            distinct = {each.tobytes(): row for each, row in by_tokens}
            found = await self._batches.add(list(distinct.values())) if distinct else []
            ratings = dict(zip(distinct, map(_finite, found), strict=True))
        except ModelCallError:
            self.usage.failed += len(conversations)
            raise
        self.usage.calls += len(conversations)
        return [ratings[each.tobytes()] for each in tokens]

    def _tokens(self, conversation: Conversation) -> NDArray[np.int32]:
        """Return a conversation as the model reads it, if it can."""
        tokens = self._reader.tokens(conversation)
        if not 0 < len(tokens) <= self._engine.max_length:
            length = f"{len(tokens)} tokens, and {self.name} reads 1 to {self._engine.max_length}"
            raise ModelCallError("refused", f"the conversation has {length}")
        return tokens

    async def _rate(self, pieces: Sequence[Piece[list[Row], list[float]]]) -> None:
        """Rate pass by pass, those of each call apart from the others; others run in between."""
        for piece in pieces:
            found = [0.0] * len(piece.job)
            for chosen in self._engine.parts(piece.job):
                if piece.result.done():  # who asked has gone
                    break
                rows = [piece.job[i] for i in chosen]
                for i, rating in zip(chosen, ratings(self._engine.values(rows), rows).tolist(), strict=True):
                    found[i] = rating
                self.usage.prompt_tokens += tokens_of(rows)
                await asyncio.sleep(0)
            piece.finish(found)


def _finite(found: float) -> float:
    if not isfinite(found):
        raise ModelCallError("invalid", f"the model's number for the conversation is {found}")
    return found


__all__ = ["RatingModel"]
