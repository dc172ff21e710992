"""One row of a data file, in verl's schema, as a `Prompt` or a `Demonstration`.

    {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "…"}], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"split": "train", "index": 0}}

Rows are untrusted: whatever is wrong with one is a `RowError` that names the field. `docs/data.md` has the schema.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rewardsmith.checks import freeze
from rewardsmith.errors import listing, nearest
from rewardsmith.problems import shown
from rewardsmith.types import Demonstration, Message, Prompt

Row = Mapping[str, Any]

PROMPT = "prompt"
ANSWER = "reward_model.ground_truth"
SOURCE = "data_source"
RESPONSE = "response"
ID = "id"
MESSAGES = "messages"

_MOST_NAMES = 20
_ABSENT = object()


class RowError(Exception):
    """What is wrong with a row: the field, its value and the remedy. Whoever reads the file adds where it is."""

    def __str__(self) -> str:
        """Return one printable line: a message may quote a hostile row."""
        return printable(super().__str__())


def printable(text: str, most: int = 600) -> str:
    """Return the text as one line of at most `most` characters, with everything that a terminal may act on escaped."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which column becomes which field. Columns may be dotted paths into tables.

    Attributes:
        prompt: messages, or text. `messages` takes its place in rows without it, unless another name is set.
        answer: any value; a row may lack it.
        source: text; a row may lack it.
        response: text, for demonstrations. `messages` takes its place as above.
        id: text or a whole number; "" numbers the rows of each file instead.
        system: the system message that all prompts get; None leaves them as they are.
        named: the source that all prompts get; None takes the column.
    """

    prompt: str = PROMPT
    answer: str = ANSWER
    source: str = SOURCE
    response: str = RESPONSE
    id: str = ID
    system: Message | None = None
    named: str | None = None

    def require(self, columns: Collection[str], *, demonstrations: bool) -> None:
        """Raise a `RowError` when a table with these columns cannot hold what is needed."""

        def has(path: str) -> bool:
            return path in columns or path.partition(".")[0] in columns

        if demonstrations and not has(self.response) and not (self._chat_answers and MESSAGES in columns):
            raise self._no_response(columns)
        if not has(self.prompt) and not (self._chat_asks and MESSAGES in columns):
            raise self._no_prompt(columns)

    def prompt_of(self, row: Row, file: str, number: int) -> Prompt:
        """Return the prompt of a row; `file` and `number` name a row that has no id of its own."""
        messages, used = self._asked(row)
        return self._prompt(row, messages, [used], file, number)

    def demonstration_of(self, row: Row, file: str, number: int) -> Demonstration:
        """Return the prompt of a row with the answer to imitate."""
        response = _find(row, self.response)
        if response is not _ABSENT:
            if not isinstance(response, str) or not response:
                raise RowError(f"{self.response} is {_shown(response)}: it must be text, and not empty")
            messages, used = self._asked(row)
            prompt = self._prompt(row, messages, [used, self.response], file, number)
            with _blaming(self.response):
                return Demonstration(prompt, response)
        chat = _find(row, MESSAGES)
        if not self._chat_answers or chat is _ABSENT:
            raise self._no_response(row)
        *asked, last = _messages(MESSAGES, chat)
        if last.role != "assistant":
            raise RowError(
                f"the role of the last of {MESSAGES} is {_shown(last.role)}: a demonstration ends with the assistant's"
            )
        if not last.content:
            raise RowError(f"the content of the last of {MESSAGES} is empty: there is nothing to imitate")
        return Demonstration(self._prompt(row, _some(asked), [MESSAGES], file, number), last.content)

    @property
    def _chat_asks(self) -> bool:
        return self.prompt == PROMPT  # who names a column means that column

    @property
    def _chat_answers(self) -> bool:
        return self._chat_asks and self.response == RESPONSE

    def _no_prompt(self, columns: Collection[str]) -> RowError:
        what = "prompt_column says where a row has its prompt"
        return _no_column(self.prompt, columns, what, chat=self._chat_asks)

    def _no_response(self, columns: Collection[str]) -> RowError:
        what = "response_column says where a row has the answer to imitate"
        return _no_column(self.response, columns, what, chat=self._chat_answers)

    def _asked(self, row: Row) -> tuple[list[Message], str]:
        """Return the messages of the prompt and the column that they come from."""
        value = _find(row, self.prompt)
        if value is not _ABSENT:
            return _messages(self.prompt, value), self.prompt
        chat = _find(row, MESSAGES)
        if not self._chat_asks or chat is _ABSENT:
            raise self._no_prompt(row)
        messages = _messages(MESSAGES, chat)
        return _some(messages[:-1] if messages[-1].role == "assistant" else messages), MESSAGES

    def _prompt(self, row: Row, messages: list[Message], used: list[str], file: str, number: int) -> Prompt:
        if self.system is not None:
            messages = [self.system, *(messages[1:] if messages[0].role == "system" else messages)]
        source = self._source(row) if self.named is None else self.named
        name = (self._id(row) or _verl_id(row, source or file) if self.id else None) or f"{file}-{number}"
        answer = _find(row, self.answer)
        used = [*used, self.answer, *([self.id] if self.id else []), *([self.source] if self.named is None else [])]
        # Frozen one by one, so that messages name the column as the file does.
        info = {column: _json(column, value) for column, value in _without(row, used).items()}
        answer = None if answer is _ABSENT else _json(self.answer, answer)
        with _blaming("id or source"):
            return Prompt(name, messages, source=source, answer=answer, info=info)

    def _source(self, row: Row) -> str:
        value = _find(row, self.source)
        if value is _ABSENT:
            return ""
        if not isinstance(value, str):
            raise RowError(f"{self.source} is {_shown(value)}: it must be text")
        return value

    def _id(self, row: Row) -> str | None:
        value = _find(row, self.id) if self.id else _ABSENT
        if value is _ABSENT:
            return None
        name = _name(value)
        if name is None:
            raise RowError(
                f"{self.id} is {_shown(value)}: it must be text or a whole number, and not empty;"
                ' id_column = "" numbers the rows instead'
            )
        return name


def _no_column(name: str, columns: Collection[str], what: str, *, chat: bool) -> RowError:
    """Return the error for a row or a file without a column; `columns` are those that there are."""
    if name in columns:
        return RowError(f"{name} is null: {what}")
    names = [printable(column, 40) for column in islice(columns, 1_000)]
    known = listing(names[:_MOST_NAMES]) + (f" and {len(columns) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
    also = f" and no {MESSAGES}" if chat else ""
    return RowError(f"there is no {name}{also}: {what}.{nearest(name, names)} There is: {known}")


def _verl_id(row: Row, source: str) -> str | None:
    """Return what verl's rows are known by: source, split and index."""
    index, split = (_name(_find(row, f"extra_info.{key}")) for key in ("index", "split"))
    return "-".join(part for part in (source, split, index) if part) if index else None


def _name(value: object) -> str | None:
    """Return text or a whole number as text, None for anything else."""
    if isinstance(value, str):
        return value or None
    short = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 256
    return str(value) if short else None


def _find(row: Row, path: str) -> Any:
    """Return what lies at a dotted path, or `_ABSENT`. Null counts as absent: a table has one where JSON leaves out."""
    if path in row:
        value = row[path]
        return _ABSENT if value is None else value
    value = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return _ABSENT if value is None else value


def _without(row: Row, paths: Iterable[str]) -> dict[str, Any]:
    """Return the row without what became a field of its own; a table that has nothing else is left out too."""
    kept = dict(row)
    for path in paths:
        if path in kept:
            del kept[path]
            continue
        head, _, rest = path.partition(".")
        if rest and isinstance(kept.get(head), Mapping):
            inner = _without(kept[head], [rest])
            if inner:
                kept[head] = inner
            else:
                del kept[head]
    return kept


def _messages(name: str, value: object) -> list[Message]:
    """Return a chat, or text as the one message of the user."""
    if isinstance(value, str):
        if not value:
            raise RowError(f"{name} is empty: it must be text, or a list of messages")
        with _blaming(name):
            return [Message("user", value)]
    if not isinstance(value, list):
        raise RowError(f"{name} is {_shown(value)}: it must be text, or a list of messages with role and content")
    if not value:
        raise RowError(f"{name} is an empty list: it needs at least one message")
    return [_message(f"{name}[{i}]", message) for i, message in enumerate(value)]


def _message(name: str, value: object) -> Message:
    if not isinstance(value, Mapping):
        raise RowError(f"{name} is {_shown(value)}: a message is a table with role and content")
    fields = {key: item for key, item in value.items() if item is not None}
    for key in ("role", "content"):
        if key not in fields:
            raise RowError(f"{name} has no {key}.{nearest(key, fields)} It has: {listing(list(fields)[:_MOST_NAMES])}")
        if not isinstance(fields[key], str):
            raise RowError(f"{name}.{key} is {_shown(fields[key])}: it must be text")
    # A call of a tool, or an image, is part of what was said: a chat without it would be another chat.
    other = next((key for key in fields if key not in ("role", "content")), None)
    if other is not None:
        raise RowError(f"{name} has a field {_shown(other)}: a message has role and content only; leave it out")
    with _blaming(name):
        return Message(fields["role"], fields["content"])


def _some(messages: list[Message]) -> list[Message]:
    if not messages:
        raise RowError(f"{MESSAGES} has nothing but the answer: a prompt needs at least one message before it")
    return messages


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Turn what a noun finds wrong with itself into what is wrong with a field of the row."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message = str(error)
        raise RowError(message if message.startswith(name) else f"{name}: {message}") from None


def _json(name: str, value: object) -> Any:
    with _blaming(name):
        return freeze(name, value)


def _shown(value: object) -> str:
    """Return a value for a message; of what may be large only its kind."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    return shown(value[:100] if isinstance(value, str | bytes) else value)
