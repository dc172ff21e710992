"""One row of a data file as a `Preference`.

    {"prompt": "Why?", "chosen": "Because …", "rejected": "No idea."}
    {"prompt": [{"role": "user", "content": "Why?"}], "chosen": [{"role": "assistant", "content": "Because …"}], …}
    {"chosen": [user, assistant], "rejected": [user, assistant], …}            the prompt is what both begin with
    {"prompt": "Why?", "chosen": [user, assistant], "rejected": [user, assistant], …}          the prompt is repeated
    {"prompt": "Why?", "chosen": "Because …", "rejected": "No idea.", "subset": "hard", "id": 3}

These are the forms of TRL's preference data sets, of UltraFeedback and of RewardBench.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rewardsmith.data.columns import Columns
from rewardsmith.data.fields import ABSENT, Row, RowError, blaming, find, flag_of, messages_of, number_of, told
from rewardsmith.data.rows import Layout
from rewardsmith.types import Message, Preference

_SIDES = ("chosen", "rejected")
_SCORES = ("chosen_score", "rejected_score")
_WHAT = {"chosen": "the better answer", "rejected": "the other answer"}


@dataclass(frozen=True)
class PreferenceRows:
    """Reads pairs.

    Attributes:
        layout: where a row has its prompt, id, source and answer.
        columns: where it has the rest.
    """

    layout: Layout
    columns: Columns

    def require(self, columns: Collection[str]) -> None:
        """Raise a `RowError` when a table with these columns cannot hold pairs."""
        for side in _SIDES:
            if not self.columns.has(columns, side):
                raise self.columns.missing(columns, side, _WHAT[side])

    def read(self, row: Row, file: str, number: int) -> Preference:
        """Return the pair of a row; `file` and `number` name a row that has no id of its own."""
        (chosen_at, lead, chosen), (rejected_at, other, rejected) = (self._answer(row, side) for side in _SIDES)
        if lead != other:
            raise RowError(
                f"{chosen_at} and {rejected_at} differ before their last message: a pair is two answers to one prompt"
            )
        used = [chosen_at, rejected_at, *([self.layout.prompt] if find(row, self.layout.prompt) is not ABSENT else [])]
        margin, tied, also = self._margin(row)
        _, subset = self.columns.find(row, "subset")
        prompt = self.layout.prompt_with(
            row,
            self._asked(row, lead, chosen_at),
            used + also,
            file,
            number,
            subset=subset if isinstance(subset, str) else "",
        )
        with blaming("the pair"):
            return Preference(prompt, chosen, rejected, margin, tied)

    def _answer(self, row: Row, side: str) -> tuple[str, list[Message], str]:
        """Return the column of an answer, the messages before it, and the answer."""
        name, value = self.columns.find(row, side)
        if value is ABSENT:
            raise self.columns.missing(row, side, _WHAT[side])
        if isinstance(value, str):
            return name, [], value
        *lead, last = messages_of(name, value)
        if last.role != "assistant":
            raise RowError(f"the role of the last of {name} is {told(last.role)}: an answer is the assistant's")
        return name, lead, last.content

    def _asked(self, row: Row, lead: list[Message], chosen_at: str) -> list[Message]:
        """Return the prompt: that of its column, or what the answers begin with, or the fuller of the two."""
        name = self.layout.prompt
        value = find(row, name)
        if value is ABSENT:
            if not lead:
                raise self.layout.no_prompt(row, also=f" and no messages in {chosen_at} before the answer")
            return lead
        asked = messages_of(name, value)
        if not lead or _ends_with(asked, lead):
            return asked
        # The column may have less than was said: no system message, or of many turns only one.
        said = [value.strip()] if isinstance(value, str) else []
        if _ends_with(lead, asked) or any(m.role == "user" and m.content.strip() in said for m in lead):
            return lead
        raise RowError(f"{chosen_at} begins with other messages than {name}: leave one of the two out")

    def _margin(self, row: Row) -> tuple[float, bool, list[str]]:
        """Return the margin, whether it is a tie, and the columns that say so."""
        tied_at, value = self.columns.find(row, "tied")
        tied = value is not ABSENT and flag_of(tied_at, value)
        if "chosen_score" in self.columns.named:
            return *self._difference(row, tied), [tied_at]
        name, value = self.columns.find(row, "margin")
        margin = 0.0 if value is ABSENT else number_of(name, value)
        if margin < 0:
            raise RowError(f"{name} is {margin:g}: by how much the chosen is better, at least 0; swap the answers")
        return margin, tied, [tied_at, name]

    def _difference(self, row: Row, tied: bool) -> tuple[float, bool]:
        found = [self.columns.find(row, key) for key in _SCORES]
        for key, (_, value) in zip(_SCORES, found, strict=True):
            if value is ABSENT:
                raise self.columns.missing(row, key, "a score of its answer")
        (chosen_at, chosen), (rejected_at, rejected) = ((name, number_of(name, value)) for name, value in found)
        if chosen < rejected:
            raise RowError(f"{chosen_at} is {chosen:g} and {rejected_at} {rejected:g}: swap the answers")
        return (0.0, True) if tied or chosen == rejected else (round(chosen - rejected, 9), False)


def _ends_with(messages: Sequence[Message], last: Sequence[Message]) -> bool:
    return len(messages) >= len(last) and list(messages[len(messages) - len(last) :]) == list(last)
