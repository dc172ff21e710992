"""Rows of other trainers as rollout groups, and scores as the flat columns that they log."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardsmith.api import reward as load_reward
from rewardsmith.checks import freeze, unicode
from rewardsmith.errors import UserError
from rewardsmith.runs.loaded_reward import LoadedReward
from rewardsmith.types import Message, Prompt, Score

ANSWER_COLUMNS = ("solution", "answer", "ground_truth")
"""PeerColumns in which datasets have the right answer; the first one that a row has counts."""

SOURCE_COLUMNS = ("source", "data_source")
"""PeerColumns in which datasets have the name of the data set or task."""


def load(reward: Any, models: Mapping[str, Any] | None = None) -> LoadedReward:
    """Return a reward for training: too many failures stop the run, as its failure policy says."""
    loaded = load_reward(reward, models)
    loaded.stop_on_failures = True
    return loaded


def missing(peer: str, extra: str) -> UserError:
    """Return the error for a peer that is not installed."""
    return UserError(f'this needs {peer}, which is not installed: pip install "rewardsmith[{extra}]"')


class ScoreFailedError(RuntimeError):
    """A rollout has no score. Raised where the peer has no value that means so."""

    def __init__(self, score: Score) -> None:
        assert score.failure is not None
        super().__init__(f"the reward could not score this answer: {score.failure.kind}: {score.failure.detail}")
        self.kind = score.failure.kind


@dataclass(frozen=True)
class PeerColumns:
    """Which columns of a peer's row are the right answer and the source of the prompt; all others become `info`."""

    answer: str | Sequence[str] = ANSWER_COLUMNS
    source: str | Sequence[str] = SOURCE_COLUMNS

    def prompt(self, prompt: Any, row: Mapping[str, Any]) -> Prompt:
        """Return the prompt of a row. Values that are no JSON, such as pictures, are left out of its `info`."""
        messages = messages_of(prompt)
        answer, source = self._find(row, self.answer), self._find(row, self.source)
        if not _is_json("answer", answer):
            raise UserError(
                f"the answer of a row is a {type(answer).__name__}: it must be text, a number, a list or a table"
            )
        info = json_fields(row)
        text = "\0".join(f"{message.role}\0{message.content}" for message in messages)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return Prompt(digest, messages, source=source if isinstance(source, str) else "", answer=answer, info=info)

    def _find(self, row: Mapping[str, Any], names: str | Sequence[str]) -> Any:
        if isinstance(names, str):
            if names not in row:
                raise UserError(f"there is no column {names!r} in the data: it has {', '.join(sorted(row)) or 'none'}")
            return row[names]
        return next((row[name] for name in names if row.get(name) is not None), None)


def messages_of(prompt: Any) -> list[Message]:
    """Return a prompt as messages: text is one user message, and a conversation keeps its roles."""
    if isinstance(prompt, str):
        return [Message("user", unicode(prompt))]
    turns = list(prompt)
    if not turns:
        raise UserError("a prompt of the data is an empty conversation: it needs at least one message")
    return [Message(str(_entry(turn, "role")), unicode(content_text(_entry(turn, "content")))) for turn in turns]


def completion_text(completion: Any) -> str:
    """Return what the model wrote: text, or all assistant messages of a conversation, tool results left out."""
    if isinstance(completion, str):
        return unicode(completion)
    turns = [content_text(_entry(turn, "content")) for turn in completion if _entry(turn, "role") == "assistant"]
    return unicode("\n\n".join(turn for turn in turns if turn))


def content_text(content: Any) -> str:
    """Return the text of a message's content; its pictures and sounds are left out."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = (_entry(part, "text") for part in content)
    return "\n".join(part for part in parts if isinstance(part, str))


def part_values(score: Score) -> dict[str, float | None]:
    """Return the value of every part by its dotted name; None where it has none."""
    return {name: part.value for name, part in score.named_parts()}


def logged_parts(score: Score) -> dict[str, float]:
    """Return the same as numbers, for peers whose rows must all have the same columns; NaN where there is none."""
    return {name: math.nan if value is None else value for name, value in part_values(score).items()}


def json_fields(table: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the entries of a table that are JSON; pictures and other objects are left out."""
    return {str(name): value for name, value in table.items() if _is_json(str(name), value)}


def _entry(table: Any, name: str) -> Any:
    return table.get(name) if isinstance(table, Mapping) else getattr(table, name, None)


def _is_json(name: str, value: Any) -> bool:
    try:
        freeze(name, value)
    except (TypeError, ValueError):
        return False
    return True
