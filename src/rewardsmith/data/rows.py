"""One row of a data file, in verl's schema, as a `Prompt` or a `Demonstration`.

    {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "…"}], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"split": "train", "index": 0}}

Rows are untrusted: whatever is wrong with one is a `RowError` that names the field. `docs/data.md` has the schema.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rewardsmith.data.fields import (
    ABSENT,
    Row,
    RowError,
    blaming,
    find,
    has,
    json_of,
    messages_of,
    name_of,
    no_column,
    printable,
    told,
    without,
)
from rewardsmith.types import Demonstration, Message, Prompt

PROMPT = "prompt"
ANSWER = "reward_model.ground_truth"
SOURCE = "data_source"
RESPONSE = "response"
ID = "id"
MESSAGES = "messages"


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
        if demonstrations and not has(columns, self.response) and not (self._chat_answers and MESSAGES in columns):
            raise self._no_response(columns)
        if not has(columns, self.prompt) and not (self.chat_asks and MESSAGES in columns):
            raise self.no_prompt(columns)

    def prompt_of(self, row: Row, file: str, number: int) -> Prompt:
        """Return the prompt of a row; `file` and `number` name a row that has no id of its own."""
        messages, used = self.asked(row)
        return self.prompt_with(row, messages, [used], file, number)

    def demonstration_of(self, row: Row, file: str, number: int) -> Demonstration:
        """Return the prompt of a row with the answer to imitate."""
        response = find(row, self.response)
        if response is not ABSENT:
            if not isinstance(response, str) or not response:
                raise RowError(f"{self.response} is {told(response)}: it must be text, and not empty")
            messages, used = self.asked(row)
            prompt = self.prompt_with(row, messages, [used, self.response], file, number)
            with blaming(self.response):
                return Demonstration(prompt, response)
        chat = find(row, MESSAGES)
        if not self._chat_answers or chat is ABSENT:
            raise self._no_response(row)
        *asked, last = messages_of(MESSAGES, chat)
        if last.role != "assistant":
            raise RowError(
                f"the role of the last of {MESSAGES} is {told(last.role)}: a demonstration ends with the assistant's"
            )
        if not last.content:
            raise RowError(f"the content of the last of {MESSAGES} is empty: there is nothing to imitate")
        return Demonstration(self.prompt_with(row, _some(asked), [MESSAGES], file, number), last.content)

    @property
    def chat_asks(self) -> bool:
        """Whether another column may hold the prompt: who names a column means that column."""
        return self.prompt == PROMPT

    @property
    def _chat_answers(self) -> bool:
        return self.chat_asks and self.response == RESPONSE

    def no_prompt(self, columns: Collection[str], *, also: str = f" and no {MESSAGES}") -> RowError:
        """Return the error for a row, or a table with these columns, without a prompt."""
        what = "prompt_column says where a row has its prompt"
        return no_column(self.prompt, columns, what, also=also if self.chat_asks else "")

    def _no_response(self, columns: Collection[str]) -> RowError:
        what = "response_column says where a row has the answer to imitate"
        return no_column(self.response, columns, what, also=f" and no {MESSAGES}" if self._chat_answers else "")

    def asked(self, row: Row) -> tuple[list[Message], str]:
        """Return the messages of the prompt and the column that they come from."""
        value = find(row, self.prompt)
        if value is not ABSENT:
            return messages_of(self.prompt, value), self.prompt
        chat = find(row, MESSAGES)
        if not self.chat_asks or chat is ABSENT:
            raise self.no_prompt(row)
        messages = messages_of(MESSAGES, chat)
        return _some(messages[:-1] if messages[-1].role == "assistant" else messages), MESSAGES

    def prompt_with(
        self, row: Row, messages: list[Message], used: list[str], file: str, number: int, *, subset: str = ""
    ) -> Prompt:
        """Return a prompt with these messages.

        Args:
            row: has its id, source, answer and info.
            messages: at least one.
            used: columns that became fields of their own, and are left out of the info.
            file: names a row that has no id of its own, together with `number`.
            number: of the row in the file, from 1.
            subset: part of the data set within which ids are unique; it is the source of rows that have none.
        """
        if self.system is not None:
            messages = [self.system, *(messages[1:] if messages[0].role == "system" else messages)]
        source = self._source(row) or subset if self.named is None else self.named
        name = (self._id(row, subset) or _verl_id(row, source or file) if self.id else None) or f"{file}-{number}"
        answer = find(row, self.answer)
        used = [*used, self.answer, *([self.id] if self.id else []), *([self.source] if self.named is None else [])]
        # Frozen one by one, so that messages name the column as the file does.
        info = {column: json_of(column, value) for column, value in without(row, used).items()}
        answer = None if answer is ABSENT else json_of(self.answer, answer)
        with blaming("id or source"):
            return Prompt(name, messages, source=source, answer=answer, info=info)

    def _source(self, row: Row) -> str:
        value = find(row, self.source)
        if value is ABSENT:
            return ""
        if not isinstance(value, str):
            raise RowError(f"{self.source} is {told(value)}: it must be text")
        return value

    def _id(self, row: Row, subset: str) -> str | None:
        value = find(row, self.id)
        if value is ABSENT:
            return None
        name = name_of(value)
        if name is None:
            raise RowError(
                f"{self.id} is {told(value)}: it must be text or a whole number, and not empty;"
                ' id_column = "" numbers the rows instead'
            )
        return f"{subset}-{name}" if subset else name


def _verl_id(row: Row, source: str) -> str | None:
    """Return what verl's rows are known by: source, split and index."""
    index, split = (name_of(find(row, f"extra_info.{key}")) for key in ("index", "split"))
    return "-".join(part for part in (source, split, index) if part) if index else None


def _some(messages: list[Message]) -> list[Message]:
    if not messages:
        raise RowError(f"{MESSAGES} has nothing but the answer: a prompt needs at least one message before it")
    return messages


__all__ = ["ANSWER", "ID", "MESSAGES", "PROMPT", "RESPONSE", "SOURCE", "Layout", "Row", "RowError", "printable"]
