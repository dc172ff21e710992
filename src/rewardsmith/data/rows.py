"""One row of a data file: its fields, checked, and its prompt or demonstration, in verl's schema.

    {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "…"}], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"split": "train", "index": 0}}

Rows are untrusted: whatever is wrong with one is a `RowError` that names the field. `docs/data.md` has the schema.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from rewardsmith.checks import finite, freeze
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.masking import shown
from rewardsmith.types import Demonstration, Message, Prompt

Row = Mapping[str, Any]

ABSENT: Final = object()
"""What a row has where it has nothing. Null counts as absent: a table has one where JSON leaves the key out."""

PROMPT = "prompt"
ANSWER = "reward_model.ground_truth"
SOURCE = "data_source"
RESPONSE = "response"
ID = "id"
MESSAGES = "messages"

_MAX_NAMES = 20

MAX_SHOWN, MAX_LISTED = 10, 1_000
"""Bad rows that are printed, and that are listed in the provenance."""


class RowError(Exception):
    """What is wrong with a row: the field, its value and the remedy. Whoever reads the file adds where it is."""

    unfinished = False
    """Whether the line of the row has no end, as the last one of a file that is being written."""

    def __str__(self) -> str:
        """Return one printable line: a message may quote a hostile row."""
        return printable(super().__str__())


class BadRows:
    """Collects what is wrong with rows: one error that lists them, or with `skip` a list of what was left out."""

    def __init__(self, *, skip: bool) -> None:
        self._skip = skip
        self.count = 0
        self._first: list[tuple[str, str]] = []

    def note(self, where: str, error: Exception) -> None:
        """Add a bad row: its file and number, and the field, its value and the remedy."""
        self.count += 1
        if len(self._first) < MAX_LISTED:
            self._first.append((printable(where, 300), printable(str(error))))

    def settle(self, total: int, remedy: str = "\nFix them, or use --skip-bad to leave them out") -> None:
        """Raise a `UserError` if there are bad rows that may not be skipped, or if none of `total` is good."""
        if self.count and not self._skip:
            raise UserError(self._listed(f"{self.count:,} of {total:,} rows cannot be used") + remedy)
        if self.count and self.count >= total:
            raise UserError(self._listed(f"none of the {total:,} rows can be used"))

    def _listed(self, heading: str) -> str:
        more = f"; the first {MAX_SHOWN}" if self.count > MAX_SHOWN else ""
        return "\n".join([f"{heading}{more}:", *(f"  {where}\n    {why}" for where, why in self._first[:MAX_SHOWN])])

    def __str__(self) -> str:
        """Return what was left out, "" for nothing."""
        return self._listed(f"{self.count:,} rows left out") if self.count else ""

    def as_json(self) -> dict[str, Any]:
        """Return the same for the provenance."""
        return {"rows": self.count, "first": [{"where": where, "why": why} for where, why in self._first]}


# ---- fields ------------------------------------------------------------------------------------------------------


def printable(text: str, max_chars: int = 600) -> str:
    """Return the text as one line of limited length, with everything that a terminal may act on escaped."""
    cut = text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def describe(value: object) -> str:
    """Return a value for a message; of what may be large only its kind."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    return shown(value[:100] if isinstance(value, str | bytes) else value)


def find(row: Row, path: str) -> Any:
    """Return what lies at a dotted path, or `ABSENT`."""
    value: Any = row
    for part in [path] if path in row else path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return ABSENT
        value = value[part]
    return ABSENT if value is None else value


def without(row: Row, paths: Iterable[str]) -> dict[str, Any]:
    """Return the row without what became a field of its own; a table that has nothing else is left out too."""
    kept = dict(row)
    for path in paths:
        head, _, rest = path.partition(".")
        if path in kept:
            del kept[path]
        elif rest and isinstance(kept.get(head), Mapping):
            kept[head] = without(kept[head], [rest])
            if not kept[head]:
                del kept[head]
    return kept


def no_column(name: str, columns: Collection[str], what: str, *, also: str = "") -> RowError:
    """Return the error for a row without a column: `what` is its setting, `also` is such as ` and no messages`."""
    if name in columns:
        return RowError(f"{name} is null: {what}")
    names = [printable(column, 40) for column in islice(columns, 1_000)]
    return RowError(f"there is no {name}{also}: {what}.{nearest(name, names)} There is: {listing(names[:_MAX_NAMES])}")


def text_of(name: str, value: object) -> str:
    """Return a value that must be text; it may be empty."""
    if not isinstance(value, str):
        raise RowError(f"{name} is {describe(value)}: it must be text")
    return value


def number_of(name: str, value: object) -> float:
    """Return a value that must be a finite number."""
    try:
        return finite(name, value)
    except (TypeError, ValueError):
        raise RowError(f"{name} is {describe(value)}: it must be a finite number") from None


def flag_of(name: str, value: object) -> bool:
    """Return a value that must be true or false, or 1 or 0."""
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise RowError(f"{name} is {describe(value)}: it must be true or false")
    return bool(value)


def list_of(name: str, value: object) -> list[Any]:
    """Return a value that must be a list."""
    if not isinstance(value, list):
        raise RowError(f"{name} is {describe(value)}: it must be a list")
    return value


def name_of(value: object) -> str | None:
    """Return text or a whole number as text, None for anything else."""
    if isinstance(value, str):
        return value or None
    short = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 256
    return str(value) if short else None


def messages_of(name: str, value: object) -> list[Message]:
    """Return a chat, or text as the one message of the user."""
    if isinstance(value, str) and value:
        with field_errors(name):
            return [Message("user", value)]
    if not isinstance(value, list) or not value:
        kind = "empty" if value in ("", []) else describe(value)
        raise RowError(f"{name} is {kind}: it must be text, or a list of messages with role and content")
    return [_message(f"{name}[{i}]", message) for i, message in enumerate(value)]


def _message(name: str, value: object) -> Message:
    fields = {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else None
    # A tool call or an image is part of the conversation: a chat without it would be another chat.
    if fields is None or fields.keys() != {"role", "content"}:
        has = describe(value) if fields is None else f"a table of {listing(list(fields)[:_MAX_NAMES])}"
        raise RowError(f"{name} is {has}: a message is a table with role and content, and nothing else")
    with field_errors(name):
        return Message(*(text_of(f"{name}.{key}", fields[key]) for key in ("role", "content")))


@contextmanager
def field_errors(name: str) -> Iterator[None]:
    """Turn what a noun finds wrong with itself into what is wrong with a field of the row."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message = str(error)
        raise RowError(message if message.startswith(name) else f"{name}: {message}") from None


# ---- columns -----------------------------------------------------------------------------------------------------

DEFAULT_COLUMNS: Mapping[str, tuple[str, ...]] = {
    **{key: (key,) for key in ("chosen", "rejected", "margin", "tied", "subset")},
    **{"chosen_score": (), "rejected_score": ()},
    **{"candidates": ("candidates", "mt_texts", "responses"), "source_text": ("src_text",)},
    **{key: (key,) for key in ("scores", "ranking", "analysis")},
    "grade": ("points", "grade"),
    **{key: (key,) for key in ("out_of", "right", "sound")},
}
"""The columns in which the parts of pairs, groups and grades are searched, the first of them first."""


class Columns:
    """The columns of pairs, groups and grades: those of `DEFAULT_COLUMNS`, or the names that a user gives them."""

    def __init__(self, named: Mapping[str, str] | None = None) -> None:
        self.named = dict(named or {})
        for key in self.named:
            if key not in DEFAULT_COLUMNS:
                known = f"{nearest(key, DEFAULT_COLUMNS)} Known: {listing(DEFAULT_COLUMNS)}"
                raise UserError(f"columns.{key} is not known: columns says which column holds what.{known}")
        if ("chosen_score" in self.named) != ("rejected_score" in self.named):
            raise UserError("columns has one of chosen_score and rejected_score: a margin is the difference of the two")

    def names(self, key: str) -> tuple[str, ...]:
        """Return the columns in which something is searched; a name that was given is the only one."""
        return (self.named[key],) if key in self.named else DEFAULT_COLUMNS[key]

    def find(self, row: Row, key: str) -> tuple[str, Any]:
        """Return the column that holds something and what lies there; `ABSENT` where the row has no such column."""
        names = self.names(key)
        for name in names:
            value = find(row, name)
            if value is not ABSENT:
                return name, value
        return (names[0] if names else key), ABSENT

    def require(self, row: Row, key: str, what: str) -> tuple[str, Any]:
        """Return the same; a `RowError` where the row has no such column."""
        name, value = self.find(row, key)
        if value is ABSENT:
            raise self.missing(row, key, what)
        return name, value

    def missing(self, row: Row, key: str, what: str, *others: str) -> RowError:
        """Return the error for a row that lacks it, or any of the others instead."""
        first, *rest = (name for each in (key, *others) for name in self.names(each))
        also = "".join(f" and no {name}" for name in rest)
        return no_column(first, row, f"columns.{key} says where a row has {what}", also=also)


# ---- prompts and demonstrations ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which column, or dotted path, becomes which field of a prompt; rows may lack answer, source and id.

    `messages` takes the place of prompt and response, unless another name is set for them. All prompts get the message
    `system` and the source `named`, unless these are None. An id "" numbers the rows.
    """

    prompt: str = PROMPT
    answer: str = ANSWER
    source: str = SOURCE
    response: str = RESPONSE
    id: str = ID
    system: Message | None = None
    named: str | None = None

    @property
    def chat_asks(self) -> bool:
        """Whether `messages` may hold the prompt: who names a column means that column."""
        return self.prompt == PROMPT

    def prompt_of(self, row: Row, file: str, number: int) -> Prompt:
        """Return the prompt of a row; `file` and `number` name a row that has no id of its own."""
        messages, used = self.prompt_messages(row)
        return self.prompt_with(row, messages, [used], file, number)

    def demonstration_of(self, row: Row, file: str, number: int) -> Demonstration:
        """Return the prompt of a row with the answer to imitate."""
        response = find(row, self.response)
        chat = find(row, MESSAGES) if self.chat_asks and self.response == RESPONSE else ABSENT
        if response is ABSENT and chat is not ABSENT:  # the whole conversation, whatever a column `prompt` has of it
            *messages, last = messages_of(MESSAGES, chat)
            if last.role != "assistant" or not last.content or not messages:
                raise RowError(f"{MESSAGES} has no answer to imitate: it ends with the assistant's, after a prompt")
            return Demonstration(self.prompt_with(row, messages, [MESSAGES], file, number), last.content)
        if response is ABSENT:
            raise no_column(self.response, row, "response_column says where a row has the answer to imitate")
        if not isinstance(response, str) or not response:
            raise RowError(f"{self.response} is {describe(response)}: it must be text, and not empty")
        messages, used = self.prompt_messages(row)
        prompt = self.prompt_with(row, messages, [used, self.response], file, number)
        with field_errors(self.response):
            return Demonstration(prompt, response)

    def no_prompt(self, row: Row, *, also: str = f" and no {MESSAGES}") -> RowError:
        """Return the error for a row without a prompt."""
        what = "prompt_column says where a row has its prompt"
        return no_column(self.prompt, row, what, also=also if self.chat_asks else "")

    def prompt_messages(self, row: Row) -> tuple[list[Message], str]:
        """Return the messages of the prompt and the column that they come from."""
        value = find(row, self.prompt)
        if value is not ABSENT:
            return messages_of(self.prompt, value), self.prompt
        chat = find(row, MESSAGES)
        if not self.chat_asks or chat is ABSENT:
            raise self.no_prompt(row)
        messages = messages_of(MESSAGES, chat)
        messages = messages[:-1] if messages[-1].role == "assistant" else messages
        if not messages:
            raise RowError(f"{MESSAGES} has nothing but the answer: a prompt needs at least one message before it")
        return messages, MESSAGES

    def prompt_with(
        self, row: Row, messages: list[Message], used: list[str], file: str, number: int, *, subset: str = ""
    ) -> Prompt:
        """Return a prompt with these messages; its info is the row without the columns that are `used`.

        Ids are unique within a `subset`, which is the source of rows that have none.
        """
        if self.system is not None:
            messages = [self.system, *(messages[1:] if messages[0].role == "system" else messages)]
        source = self.named
        if source is None:
            value = find(row, self.source)
            source = subset if value is ABSENT else text_of(self.source, value) or subset
        name = (self._id(row, subset) or _verl_id(row, source or file) if self.id else None) or f"{file}-{number}"
        answer = find(row, self.answer)
        used = [*used, self.answer, *([self.id] if self.id else []), *([self.source] if self.named is None else [])]
        # Frozen one by one, so that messages name the column as the file does.
        info = {column: _frozen(column, value) for column, value in without(row, used).items()}
        answer = None if answer is ABSENT else _frozen(self.answer, answer)
        with field_errors("id or source"):
            return Prompt(name, messages, source=source, answer=answer, info=info)

    def _id(self, row: Row, subset: str) -> str | None:
        value = find(row, self.id)
        if value is ABSENT:
            return None
        name = name_of(value)
        if name is None:
            raise RowError(
                f"{self.id} is {describe(value)}: it must be text or a whole number, and not empty;"
                ' id_column = "" numbers the rows instead'
            )
        return f"{subset}-{name}" if subset else name


def _frozen(name: str, value: object) -> Any:
    with field_errors(name):
        return freeze(name, value)


def _verl_id(row: Row, source: str) -> str | None:
    """Return source, split and index, which verl's rows are known by."""
    index, split = (name_of(find(row, f"extra_info.{key}")) for key in ("index", "split"))
    return "-".join(part for part in (source, split, index) if part) if index else None
