"""Tables of prompts with responses, as other systems write them: a list in each row, or a row for each.

A row is in the schema of `docs/data.md`, plus a column with the responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewardsmith.data.rows import ABSENT, ANSWER, MESSAGES, PROMPT, Layout, RowError, find, no_column, without
from rewardsmith.types import Prompt, Rollout, RolloutGroup

COLUMNS = ("responses", "response")
"""Where responses are looked for, unless a column is named."""


@dataclass(frozen=True)
class Asked:
    """A prompt and the responses found so far.

    Attributes:
        prompt: what was asked.
        place: of its first row, for messages.
        responses: in the order of the rows.
    """

    prompt: Prompt
    place: str
    responses: list[str] = field(default_factory=list)

    def group(self) -> RolloutGroup:
        """Return the group; how the responses ended is not known, and counts as their own end."""
        return RolloutGroup(self.prompt, [Rollout(text) for text in self.responses])


class ResponseRows:
    """Makes groups of rows.

    Rows with a list of responses are groups by themselves. Rows with one response each are gathered by the id of their
    prompt, or by the prompt where there is none; since they may lie anywhere, all of them are held until the end.

    Args:
        names: a short name for each file, for the ids of rows that have none.
        column: with the responses; None finds it out.
        answers: column with the right answer.
        prompts: column with the prompt.

    Columns may be dotted paths into tables.
    """

    def __init__(
        self, names: Sequence[str], column: str | None = None, answers: str = ANSWER, prompts: str = PROMPT
    ) -> None:
        self._names = names
        self._column = column
        self._layout = Layout(answer=answers, prompt=prompts)
        self._lists: bool | None = None
        self._asked: dict[object, Asked] = {}
        self._first: Mapping[str, Any] | None = None
        self._answered = False

    def add(self, row: Mapping[str, Any], file: int, number: int, place: str) -> Asked | None:
        """Take in a row; return its group when that is complete. A `RowError` says what is wrong with the row."""
        column = self._column or next((name for name in COLUMNS if row.get(name) is not None), COLUMNS[0])
        responses = find(row, column)
        if responses is ABSENT:
            also = "" if self._column else f" and no {COLUMNS[1]}"
            raise no_column(column, _columns(row), "--responses NAME says which column has the responses", also=also)
        self._require_prompt(row)
        texts = responses if isinstance(responses, list) else [responses]
        for text in texts:
            if not isinstance(text, str):
                kind = "null" if text is None else type(text).__name__
                raise RowError(f"{column} holds {kind}: it must be text, or a list of texts")
        if not texts:
            raise RowError(f"{column} is an empty list: a group needs at least one response")
        if self._lists not in (None, isinstance(responses, list)):
            raise RowError(f"{column} is a list in some rows and text in others: use one form in all")
        self._lists = isinstance(responses, list)
        prompt = self._layout.prompt_of(without(row, [column]), self._names[file], number)
        self._answered = self._answered or prompt.answer is not None
        self._first = row if self._first is None else self._first
        if self._lists:
            return Asked(prompt, place, texts)
        self._gather(prompt, texts[0], place, numbered=prompt.id == f"{self._names[file]}-{number}")
        return None

    def rest(self) -> Iterator[Asked]:
        """Yield the groups of rows with one response each, in the order of their first rows."""
        yield from self._asked.values()

    def _require_prompt(self, row: Mapping[str, Any]) -> None:
        prompt = self._layout.prompt
        if find(row, prompt) is ABSENT and not (self._layout.chat_asks and find(row, MESSAGES) is not ABSENT):
            also = f" and no {MESSAGES}" if self._layout.chat_asks else ""
            raise no_column(prompt, _columns(row), "--prompts NAME says which column has the prompt", also=also)

    def require_answers(self) -> None:
        """Raise a `RowError` if a column for the right answers was named, and none of the rows so far has it."""
        if self._layout.answer != ANSWER and self._first is not None and not self._answered:
            what = "--answers NAME says which column has the right answer"
            raise no_column(self._layout.answer, _columns(self._first), what)

    def _gather(self, prompt: Prompt, text: str, place: str, *, numbered: bool) -> None:
        said = tuple((message.role, message.content) for message in prompt.messages)
        key: object = (said, prompt.source, repr(prompt.answer)) if numbered else prompt.id
        asked = self._asked.setdefault(key, Asked(prompt, place))
        if asked.prompt.messages != prompt.messages or asked.prompt.answer != prompt.answer:
            raise RowError(f'the id "{prompt.id[:100]}" is also that of {asked.place}, with another prompt or answer')
        asked.responses.append(text)


def _columns(row: Mapping[str, Any]) -> list[str]:
    """Return what can be named in a row: its columns, and what is in those that are tables."""
    tables = {column: table for column, table in row.items() if isinstance(table, Mapping)}
    return [*row, *(f"{column}.{name}" for column, table in tables.items() for name in table)]
