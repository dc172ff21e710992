"""One column of a row, checked. Rows are untrusted: whatever is wrong is a `RowError` that names the field."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from rewardsmith.checks import finite, freeze
from rewardsmith.errors import listing, nearest
from rewardsmith.masking import shown
from rewardsmith.types import Message

Row = Mapping[str, Any]

ABSENT: Final = object()
"""What a row has where it has nothing. Null counts as absent: a table has one where JSON leaves the key out."""

_MOST_NAMES = 20


class RowError(Exception):
    """What is wrong with a row: the field, its value and the remedy. Whoever reads the file adds where it is."""

    def __str__(self) -> str:
        """Return one printable line: a message may quote a hostile row."""
        return printable(super().__str__())


def printable(text: str, most: int = 600) -> str:
    """Return the text as one line of at most `most` characters, with everything that a terminal may act on escaped."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def find(row: Row, path: str) -> Any:
    """Return what lies at a dotted path, or `ABSENT`."""
    if path in row:
        value = row[path]
        return ABSENT if value is None else value
    value = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return ABSENT
        value = value[part]
    return ABSENT if value is None else value


def has(columns: Collection[str], path: str) -> bool:
    """Whether a table with these columns may have something at a dotted path."""
    return path in columns or path.partition(".")[0] in columns


def without(row: Row, paths: Iterable[str]) -> dict[str, Any]:
    """Return the row without what became a field of its own; a table that has nothing else is left out too."""
    kept = dict(row)
    for path in paths:
        if path in kept:
            del kept[path]
            continue
        head, _, rest = path.partition(".")
        if rest and isinstance(kept.get(head), Mapping):
            inner = without(kept[head], [rest])
            if inner:
                kept[head] = inner
            else:
                del kept[head]
    return kept


def no_column(name: str, columns: Collection[str], what: str, *, also: str = "") -> RowError:
    """Return the error for a row or a file without a column.

    Args:
        name: of the column.
        columns: those that there are.
        what: the setting that names the column, and what it is for.
        also: what could have taken its place, as ` and no messages`.
    """
    if name in columns:
        return RowError(f"{name} is null: {what}")
    names = [printable(column, 40) for column in islice(columns, 1_000)]
    known = listing(names[:_MOST_NAMES]) + (f" and {len(columns) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
    return RowError(f"there is no {name}{also}: {what}.{nearest(name, names)} There is: {known}")


def name_of(value: object) -> str | None:
    """Return text or a whole number as text, None for anything else."""
    if isinstance(value, str):
        return value or None
    short = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 256
    return str(value) if short else None


def text_of(name: str, value: object) -> str:
    """Return a value that must be text; it may be empty."""
    if not isinstance(value, str):
        raise RowError(f"{name} is {told(value)}: it must be text")
    return value


def number_of(name: str, value: object) -> float:
    """Return a value that must be a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(f"{name} is {told(value)}: it must be a number")
    try:
        return finite(name, value)
    except ValueError:
        raise RowError(f"{name} is {told(value)}: it must be a finite number") from None


def flag_of(name: str, value: object) -> bool:
    """Return a value that must be true or false, or 1 or 0."""
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise RowError(f"{name} is {told(value)}: it must be true or false")
    return bool(value)


def list_of(name: str, value: object) -> list[Any]:
    """Return a value that must be a list."""
    if not isinstance(value, list):
        raise RowError(f"{name} is {told(value)}: it must be a list")
    return value


def messages_of(name: str, value: object) -> list[Message]:
    """Return a chat, or text as the one message of the user."""
    if isinstance(value, str):
        if not value:
            raise RowError(f"{name} is empty: it must be text, or a list of messages")
        with blaming(name):
            return [Message("user", value)]
    if not isinstance(value, list):
        raise RowError(f"{name} is {told(value)}: it must be text, or a list of messages with role and content")
    if not value:
        raise RowError(f"{name} is an empty list: it needs at least one message")
    return [_message(f"{name}[{i}]", message) for i, message in enumerate(value)]


def _message(name: str, value: object) -> Message:
    if not isinstance(value, Mapping):
        raise RowError(f"{name} is {told(value)}: a message is a table with role and content")
    fields = {key: item for key, item in value.items() if item is not None}
    for key in ("role", "content"):
        if key not in fields:
            raise RowError(f"{name} has no {key}.{nearest(key, fields)} It has: {listing(list(fields)[:_MOST_NAMES])}")
        if not isinstance(fields[key], str):
            raise RowError(f"{name}.{key} is {told(fields[key])}: it must be text")
    # A call of a tool, or an image, is part of what was said: a chat without it would be another chat.
    other = next((key for key in fields if key not in ("role", "content")), None)
    if other is not None:
        raise RowError(f"{name} has a field {told(other)}: a message has role and content only; leave it out")
    with blaming(name):
        return Message(fields["role"], fields["content"])


def json_of(name: str, value: object) -> Any:
    """Return a value as the nouns keep it: frozen JSON."""
    with blaming(name):
        return freeze(name, value)


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """Turn what a noun finds wrong with itself into what is wrong with a field of the row."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message = str(error)
        raise RowError(message if message.startswith(name) else f"{name}: {message}") from None


def told(value: object) -> str:
    """Return a value for a message; of what may be large only its kind."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    return shown(value[:100] if isinstance(value, str | bytes) else value)
