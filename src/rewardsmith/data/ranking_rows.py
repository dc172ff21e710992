"""One row of a data file as a `Ranking`.

{"prompt": "Why?", "candidates": ["Because …", "No idea."], "scores": [8, 2]}
{"prompt": "Why?", "candidates": ["a", "b", "c"], "ranking": "B > A = C"}
{"src_text": "你好", "src_lang": "zh", "trg_lang": "en", "mt_texts": ["Hello", "Bye"], "scores": [9, 1], …}
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rewardsmith.data.columns import Columns
from rewardsmith.data.fields import ABSENT, Row, RowError, blaming, find, has, list_of, messages_of, number_of, told
from rewardsmith.data.rows import MESSAGES, Layout
from rewardsmith.text.rankings import letters_of, parse_ranking
from rewardsmith.types import Message, Ranking

SOURCE_TEXT = "src_text"
"""Where the info of a prompt has what was translated, whatever the column is called."""

_FORMS = (
    'it must be text such as "A > B = C", a list of letters such as ["A", ["B", "C"]], or a list of ranks, 1 the best'
)


@dataclass(frozen=True)
class RankingRows:
    """Reads groups.

    Attributes:
        layout: where a row has its prompt, id, source and answer.
        columns: where it has the rest.
        by: take `scores`, or a `ranking`; None takes scores, and a ranking in rows without them.
    """

    layout: Layout
    columns: Columns
    by: str | None = None

    def require(self, columns: Collection[str]) -> None:
        """Raise a `RowError` when a table with these columns cannot hold groups."""
        if not self.columns.has(columns, "candidates"):
            raise self.columns.missing(columns, "candidates", "the answers")
        if not any(self.columns.has(columns, key) for key in self._keys):
            raise self._unranked(columns)
        chat = self.layout.chat_asks and (MESSAGES in columns or self.columns.has(columns, "source_text"))
        if not has(columns, self.layout.prompt) and not chat:
            raise self._no_prompt(columns)

    def read(self, row: Row, file: str, number: int) -> Ranking:
        """Return the group of a row; `file` and `number` name a row that has no id of its own."""
        name, value = self.columns.find(row, "candidates")
        if value is ABSENT:
            raise self.columns.missing(row, "candidates", "the answers")
        candidates = list_of(name, value)
        for i, text in enumerate(candidates):
            if not isinstance(text, str):
                raise RowError(f"{name}[{i}] is {told(text)}: it must be text")
        if len(candidates) < 2:
            raise RowError(f"{name} has {len(candidates)}: a group needs at least 2 answers")
        scores, scores_at = self._scores(row, len(candidates))
        analysis_at, analysis = self.columns.find(row, "analysis")
        if analysis is not ABSENT and not isinstance(analysis, str):
            raise RowError(f"{analysis_at} is {told(analysis)}: it must be text")
        messages, asked_at = self._asked(row)
        used = [name, scores_at, analysis_at, asked_at]
        source_at, source = self.columns.find(row, "source_text")
        if isinstance(source, str) and source_at != SOURCE_TEXT:
            row, used = {**row, SOURCE_TEXT: source}, [*used, source_at]  # where judges look for it
        prompt = self.layout.prompt_with(row, messages, used, file, number)
        with blaming(name):
            return Ranking(prompt, candidates, scores, "" if analysis is ABSENT else analysis)  # type: ignore[arg-type]

    @property
    def _keys(self) -> tuple[str, ...]:
        return ("scores", "ranking") if self.by is None else (self.by,)

    def _asked(self, row: Row) -> tuple[list[Message], str]:
        """Return the prompt and its column; a source text stays in the info too."""
        name, text = self.columns.find(row, "source_text")
        alone = find(row, self.layout.prompt) is ABSENT and find(row, MESSAGES) is ABSENT
        if alone and self.layout.chat_asks:
            if text is ABSENT:
                raise self._no_prompt(row)
            if not isinstance(text, str) or not text.strip():
                raise RowError(f"{name} is {told(text)}: it must be text, and not blank")
            return messages_of(name, text), ""
        return self.layout.asked(row)

    def _no_prompt(self, columns: Collection[str]) -> RowError:
        return self.layout.no_prompt(columns, also=f" and no {MESSAGES} and no {self.columns.names('source_text')[0]}")

    def _unranked(self, columns: Collection[str]) -> RowError:
        key, *others = self._keys
        what = "a score of each answer" if key == "scores" else "the ranking of the answers"
        return self.columns.missing(columns, key, what, *others)

    def _scores(self, row: Row, count: int) -> tuple[list[float], str]:
        """Return a score for each of the candidates, and the column that says so."""
        for key in self._keys:
            name, value = self.columns.find(row, key)
            if value is not ABSENT:
                read = _by_score if key == "scores" else _by_rank
                return read(name, value, count), name
        raise self._unranked(row)


def _by_score(name: str, value: object, count: int) -> list[float]:
    scores = list_of(name, value)
    if len(scores) != count:
        raise RowError(f"{name} has {len(scores)} for {count} answers: one for each, in the same order")
    return [number_of(f"{name}[{i}]", score) for i, score in enumerate(scores)]


def _by_rank(name: str, value: object, count: int) -> list[float]:
    """Return how many levels lie below each of the candidates."""
    if isinstance(value, list) and value and all(isinstance(rank, int | float) for rank in value):
        ranks = _by_score(name, value, count)
        if min(ranks) < 1:
            raise RowError(
                f"{name} has the rank {min(ranks):g}: ranks begin with 1, the best, and there is one for each answer in"
                " the order of the answers; if these are the answers in the order of their quality, write letters"
            )
        below = sorted(set(ranks), reverse=True)
        return [float(below.index(rank)) for rank in ranks]
    try:
        letters = letters_of(count)
        levels = parse_ranking(_ranking(name, value), letters, "ranking").levels
    except ValueError as error:  # too many candidates, or unreadable
        raise RowError(f"{name} is {_quoted(value)}: {error}; {_FORMS}") from None
    place = {letter: float(below) for below, level in enumerate(reversed(levels)) for letter in level}
    return [place[letter] for letter in letters]


def _ranking(name: str, value: object) -> str:
    if isinstance(value, str):
        if len(value.strip().splitlines()) > 1:
            raise RowError(f"{name} is {told(value)}: it has several lines; leave all but the one with the ranking out")
        return value
    levels = [[level] if isinstance(level, str) else level for level in value] if isinstance(value, list) else []
    named = [
        letter if isinstance(letter, str) else None
        for level in levels
        for letter in (level if isinstance(level, list) else [None])
    ]
    if not named or not all(letter and len(letter) == 1 for letter in named):
        raise RowError(f"{name} is {told(value)}: {_FORMS}")
    return " > ".join(" = ".join(level) for level in levels)


def _quoted(value: Any) -> str:
    return told(value) if isinstance(value, str) else "a list"
