"""Conversations as a model with a scalar head reads them: the one way for training it and for asking it.

The number of a conversation is what the head says at its last token that is not padding, which is where
`AutoModelForSequenceClassification` reads it. Conversations that begin alike, as the answers to one prompt do, share
that beginning as the prompt of their rows, so that it goes through the model once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.plain import Plain
from rewardsmith.engines.embedded.rendering import rendered
from rewardsmith.engines.protocol import Row
from rewardsmith.llm import Conversation, ModelCallError

if TYPE_CHECKING:
    from rewardsmith.engines.embedded.engine import EmbeddedEngine

_UNREAD = np.zeros(1, dtype=np.int32)
"""Ends the answer of every row: a value stands before a token, so the last one that is wanted needs one after it."""


class Reader:
    """Turns conversations into rows of a model with a scalar head.

    Args:
        engine: the model.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine
        self._plain = Plain(engine.tokenizer)

    @property
    def padding(self) -> int | None:
        """The token that is passed over at the end of a conversation; None where none is."""
        found: int | None = self._engine.model.config.get_text_config().pad_token_id
        return found

    def tokens(self, conversation: Conversation) -> NDArray[np.int32]:
        """Return a conversation as the model reads it, int32 [n], up to the token at which its number stands.

        Raises:
            ModelCallError: the chat template cannot render it, or renders nothing.
        """
        messages = [{"role": m.role, "content": m.content} for m in self._plain(conversation)]
        arguments: dict[str, Any] = dict(self._engine.settings.template)
        try:
            text = rendered(self._engine.tokenizer, messages, prompt=False, **arguments)
        except Exception as error:  # noqa: BLE001 a template is a program: it may refuse in any way
            message = f"the chat template of {self._engine.name} cannot render it: {error}"
            raise ModelCallError("refused", message) from None
        # Not verbose: who asks about a text that is too long tells it in other words.
        ids = self._engine.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        tokens = np.array(ids, dtype=np.int32)
        return tokens[: last_word(tokens, self.padding) + 1]

    def rows(self, conversations: Sequence[Conversation], tokens: Sequence[NDArray[np.int32]]) -> list[Row]:
        """Split each conversation into what it shares with its like and the rest; its number stands at the end.

        Alike are those with the same messages before the first answer. How far they agree is seen in the tokens: a
        tokenizer may join the end of a prompt with the beginning of an answer.

        Args:
            conversations: those of a batch.
            tokens: what `tokens` says of each.
        """
        groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for i, conversation in enumerate(conversations):
            first = next((at for at, m in enumerate(conversation) if m.role == "assistant"), len(conversation))
            groups.setdefault(tuple((m.role, m.content) for m in conversation[:first]), []).append(i)
        shared = {i: max(1, _shared([tokens[j] for j in mine])) for mine in groups.values() for i in mine}
        return [Row(each[: shared[i]], np.append(each[shared[i] :], _UNREAD)) for i, each in enumerate(tokens)]


def ratings(values_bT: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return the number of each row, [b], from the values of its tokens; gradients flow through.

    Args:
        values_bT: [b, T] what an engine says of rows that `Reader.rows` made.
        rows: those rows.
    """
    last_b = torch.tensor([len(row.response) - 1 for row in rows], device=values_bT.device)
    return values_bT.gather(1, last_b[:, None])[:, 0]


def last_word(tokens: NDArray[np.int32], padding: int | None) -> int:
    """Return where the last token stands that is not padding; 0 where there is no other."""
    words = np.flatnonzero(tokens != (-1 if padding is None else padding))
    return int(words[-1]) if len(words) else 0


def tokens_of(rows: Sequence[Row]) -> int:
    """Count the tokens of a pass over these rows: a prompt that some of them share is there once."""
    prompts = {row.prompt.tobytes(): len(row.prompt) for row in rows}
    return sum(prompts.values()) + sum(len(row.response) - 1 for row in rows)


def _shared(tokens: Sequence[NDArray[np.int32]]) -> int:
    """Return how many tokens all of these begin with."""
    length = min(map(len, tokens))
    differs = np.zeros(length, dtype=bool)
    for other in tokens[1:]:
        differs |= other[:length] != tokens[0][:length]
    return int(differs.argmax()) if differs.any() else length


__all__ = ["Reader", "last_word", "ratings", "tokens_of"]
