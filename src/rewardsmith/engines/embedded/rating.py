"""A model of this process that gives conversations numbers, many of them together.

The number of a conversation is what the scalar head says at its last token that is not padding, which is where
`AutoModelForSequenceClassification` reads it. Conversations are laid end to end without padding, and those that begin
alike, as the answers to one prompt do, go through the model with that beginning once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig

from rewardsmith.asking import CannotAnswer, Conversation, Usage
from rewardsmith.engines.embedded.batches import Batches, Piece, Turn
from rewardsmith.engines.embedded.engine import TOKENS_PER_PASS, EmbeddedEngine
from rewardsmith.engines.embedded.loading import quiet, require_chat_template
from rewardsmith.engines.embedded.packing import micro_batches
from rewardsmith.engines.embedded.plain import Plain
from rewardsmith.engines.embedded.tiny import TINY
from rewardsmith.engines.protocol import Row
from rewardsmith.errors import UserError
from rewardsmith.types import Message

_UNREAD = np.zeros(1, dtype=np.int32)
"""Ends the answer of every row: a value stands before a token, so the last one that is wanted needs one after it."""


class RatingModel:
    """Rates conversations with an embedded engine; see `rewardsmith.asking.Rater`.

    What is asked while others are being rated waits, and is then rated together with all else that waits.

    Args:
        engine: a model with a scalar head.
        turn: entered while the engine works; it is awake then.

    Attributes:
        name: what the recipe calls it.
        usage: what was asked of it; `prompt_tokens` counts those that went through the model, shared ones once.
    """

    def __init__(self, engine: EmbeddedEngine, turn: Turn = nullcontext) -> None:
        self.name = engine.name
        self.usage = Usage()
        self._engine = engine
        self._padding = _padding_of(engine)
        self._plain = Plain(engine.tokenizer)
        self._batches = Batches(self._rate, turn)

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
        except CannotAnswer as error:
            raise UserError(f"{where}: {error}") from None
        if first.tolist() == second.tolist():
            raise UserError(f"{where}: its chat template leaves out what the assistant says")

    async def close(self) -> None:
        """Stop rating."""
        await self._batches.close()

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the number of each conversation.

        Raises:
            CannotAnswer: one of them is longer than what the model reads, or cannot be rendered, or the model has no
                finite number for it, or the engine failed.
        """
        try:
            tokens = [self._tokens(conversation) for conversation in conversations]
            distinct = {each.tobytes(): row for each, row in zip(tokens, _rows(conversations, tokens), strict=True)}
            results = [self._batches.add(row) for row in distinct.values()]
            # All are waited for, also when one has failed: an exception that nobody takes is reported by asyncio.
            found = await asyncio.gather(*results, return_exceptions=True)
            ratings = dict(zip(distinct, map(_finite, found), strict=True))
        except CannotAnswer:
            self.usage.failed += len(conversations)
            raise
        self.usage.calls += len(conversations)
        return [ratings[each.tobytes()] for each in tokens]

    def _tokens(self, conversation: Conversation) -> NDArray[np.int32]:
        """Return a conversation as the model reads it, up to the token at which its number stands."""
        messages = [{"role": m.role, "content": m.content} for m in self._plain(conversation)]
        arguments: dict[str, Any] = dict(self._engine.settings.template)
        try:
            text = self._engine.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=False, **arguments
            )
        except Exception as error:  # noqa: BLE001 a template is a program: it may refuse in any way
            raise CannotAnswer("refused", f"the chat template of {self.name} cannot render it: {error}") from None
        # Not verbose: a text that is too long is refused below, and need not be warned of.
        ids = self._engine.tokenizer(str(text), add_special_tokens=False, verbose=False)["input_ids"]
        tokens = np.array(ids, dtype=np.int32)
        if not 0 < len(tokens) <= self._engine.max_length:
            length = f"{len(tokens)} tokens, and {self.name} reads 1 to {self._engine.max_length}"
            raise CannotAnswer("refused", f"the conversation has {length}")
        return tokens[: last_word(tokens, self._padding) + 1]

    async def _rate(self, pieces: Sequence[Piece[Row, float]]) -> None:
        """Rate pass by pass; others run in between."""
        engine = self._engine
        budget = engine.settings.tokens_per_pass or TOKENS_PER_PASS[engine.device.type]
        for chosen in micro_batches([piece.job for piece in pieces], budget):
            batch = [pieces[i] for i in chosen if not pieces[i].result.done()]  # who asked may have gone
            if not batch:
                continue
            rows = [piece.job for piece in batch]
            values_BT = engine.values(rows).tolist()
            self.usage.prompt_tokens += tokens_of(rows)
            for piece, values_T in zip(batch, values_BT, strict=True):
                piece.finish(values_T[len(piece.job.response) - 1])
            await asyncio.sleep(0)


def last_word(tokens: NDArray[np.int32], padding: int | None) -> int:
    """Return where the last token stands that is not padding; 0 where there is no other."""
    words = np.flatnonzero(tokens != (-1 if padding is None else padding))
    return int(words[-1]) if len(words) else 0


def tokens_of(rows: Sequence[Row]) -> int:
    """Count the tokens of a pass over these rows: a prompt that some of them share is there once."""
    prompts = {row.prompt.tobytes(): len(row.prompt) for row in rows}
    return sum(prompts.values()) + sum(len(row.response) - 1 for row in rows)


def _rows(conversations: Sequence[Conversation], tokens: Sequence[NDArray[np.int32]]) -> list[Row]:
    """Split each conversation into what it shares with its like and the rest.

    Alike are those with the same messages before the first answer. How far they agree is seen in the tokens: a
    tokenizer may join the end of a prompt with the beginning of an answer.
    """
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for i, conversation in enumerate(conversations):
        first = next((at for at, m in enumerate(conversation) if m.role == "assistant"), len(conversation))
        groups.setdefault(tuple((m.role, m.content) for m in conversation[:first]), []).append(i)
    shared = {i: max(1, _shared([tokens[j] for j in mine])) for mine in groups.values() for i in mine}
    return [Row(each[: shared[i]], np.append(each[shared[i] :], _UNREAD)) for i, each in enumerate(tokens)]


def _shared(tokens: Sequence[NDArray[np.int32]]) -> int:
    """Return how many tokens all of these begin with."""
    length = min(map(len, tokens))
    differs = np.zeros(length, dtype=bool)
    for other in tokens[1:]:
        differs |= other[:length] != tokens[0][:length]
    return int(differs.argmax()) if differs.any() else length


def _finite(found: float | BaseException) -> float:
    if isinstance(found, BaseException):
        raise found
    if not isfinite(found):
        raise CannotAnswer("invalid", f"the model's number for the conversation is {found}")
    return found


def _padding_of(engine: EmbeddedEngine) -> int | None:
    """Return the padding token that the folder of a model names; None where it names none.

    The configuration in memory always has one, since training in batches needs it. Where that is the end token, it must
    not count as padding: a model that was made without one reads its number at the end token.
    """
    config = engine.model.config
    folder = Path(str(config.name_or_path or ""))
    if config.name_or_path and (folder / "config.json").is_file():
        with quiet():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    padding: int | None = config.get_text_config().pad_token_id
    return padding


__all__ = ["RatingModel", "last_word"]
