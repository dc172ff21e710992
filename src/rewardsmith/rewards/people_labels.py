"""People's labels of answers, from a file: the second opinion that a judge is compared with."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.data.readers import find_files, read_rows, where
from rewardsmith.data.rows import Row, RowError, describe, messages_of, number_of, text_of
from rewardsmith.errors import UserError
from rewardsmith.types import Failure, Prompt, RolloutGroup, Score

UNLABELLED = Failure("invalid", "nobody has labelled this answer")


class PeopleLabels:
    """The label that people gave to an answer, by the prompt and the text; an answer without one is a failure.

    A row has the `id` of a prompt or the `prompt` itself, a `response`, and a `label`: a number, true or false. The
    file is read again when it has changed, so that people can label the answers of a run while it goes on.
    """

    def __init__(
        self,
        *,
        path: Annotated[str, Field(min_length=1, description="JSONL or Parquet: id or prompt, response, label")],
        label_column: Annotated[str, Field(min_length=1, description="the label")] = "label",
        response_column: Annotated[str, Field(min_length=1, description="the answer")] = "response",
    ) -> None:
        self._path, self._label, self._response = path, label_column, response_column
        self._labels: dict[bytes, float] = {}
        self._read_at: Any = None

    async def check(self) -> None:
        """Raise a `UserError` if the file cannot be read."""
        self._read()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the label of each answer."""
        self._read()
        return tuple(self._score(group.prompt, rollout.text) for rollout in group.rollouts)

    def _score(self, prompt: Prompt, text: str) -> Score:
        for name in (prompt.id, _chat(prompt)):
            if (label := self._labels.get(_key(name, text))) is not None:
                return Score(label)
        return Score(failure=UNLABELLED)

    def _read(self) -> None:
        files = find_files(self._path)
        changed = [(file, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
        if changed == self._read_at:
            return
        labels: dict[bytes, float] = {}
        for place, row in read_rows(files):
            try:
                if isinstance(row, RowError):
                    if row.unfinished:  # somebody is writing it
                        continue
                    raise row
                labels[self._row_key(row)] = _label(self._label, row.get(self._label))
            except RowError as error:
                raise UserError(f"{where(files, place)}: {error}") from None
        self._labels, self._read_at = labels, changed

    def _row_key(self, row: Row) -> bytes:
        response = text_of(self._response, row.get(self._response))
        if row.get("id") is not None:
            return _key(text_of("id", row.get("id")), response)
        if row.get("prompt") is None:
            raise RowError("it has neither id nor prompt: one of them names what was answered")
        messages = messages_of("prompt", row.get("prompt"))
        return _key(_chat(Prompt("-", messages)), response)


def _label(name: str, value: object) -> float:
    if isinstance(value, bool):
        return float(value)
    if value is None:
        raise RowError(f"{name} is {describe(value)}: it should be a number, true or false")
    return number_of(name, value)


def _chat(prompt: Prompt) -> str:
    return "\x00".join(f"{one.role}\x00{one.content}" for one in prompt.messages)


def _key(prompt: str, response: str) -> bytes:
    return hashlib.blake2b(f"{prompt}\x01{response.strip()}".encode("utf-8", "replace"), digest_size=16).digest()
