"""Conversations as rows of a model with a scalar head, for training it and for rating with it.

The rating of a conversation is the head's number at its last token that is not padding, which is where
`AutoModelForSequenceClassification` reads it. Conversations that begin alike, as the answers to one prompt do, share
that beginning as the prompt of their rows, so that it goes through the model once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.protocol import Row
from rewardsmith.llm import Conversation

# Ends every response: a value stands before a token, so the last one that is needed has one after it.
_UNREAD = np.zeros(1, dtype=np.int32)


def conversation_rows(conversations: Sequence[Conversation], tokens: Sequence[NDArray[np.int32]]) -> list[Row]:
    """Split the tokens of each conversation into the prefix that it shares with others and the rest.

    Conversations with the same messages before the first answer are compared token by token: a tokenizer may join the
    end of a prompt with the beginning of an answer.
    """
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for i, conversation in enumerate(conversations):
        first = next((at for at, m in enumerate(conversation) if m.role == "assistant"), len(conversation))
        groups.setdefault(tuple((m.role, m.content) for m in conversation[:first]), []).append(i)
    shared = {i: max(1, _common_prefix([tokens[j] for j in group])) for group in groups.values() for i in group}
    return [Row(each[: shared[i]], np.append(each[shared[i] :], _UNREAD)) for i, each in enumerate(tokens)]


def ratings(values_bT: Tensor, rows: Sequence[Row]) -> Tensor:
    """Return the rating of each row of `conversation_rows`, [b], from its values; gradients flow through."""
    last_b = torch.tensor([len(row.response) - 1 for row in rows], device=values_bT.device)
    return values_bT.gather(1, last_b[:, None])[:, 0]


def tokens_read(rows: Sequence[Row]) -> int:
    """Count the tokens of a forward pass over these rows: a prompt that some of them share is there once."""
    prompts = {row.prompt.tobytes(): len(row.prompt) for row in rows}
    return sum(prompts.values()) + sum(len(row.response) - 1 for row in rows)


def _common_prefix(tokens: Sequence[NDArray[np.int32]]) -> int:
    length = min(map(len, tokens))
    differs = np.zeros(length, dtype=bool)
    for other in tokens[1:]:
        differs |= other[:length] != tokens[0][:length]
    return int(differs.argmax()) if differs.any() else length
