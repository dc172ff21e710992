"""One row of a ranking data set as a `Ranking`, checked for what a judge is to be trained on.

    {"src_text": "你好", "src_lang": "zh", "trg_lang": "en", "trg_text": "Hello",
     "mt_texts": ["Hello", "Bye"], "analysis": "A is right. B is not.", "scores": [9, 1]}

Rows are untrusted: whatever is wrong with one is a `RowError` that names the field, its value and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rewardsmith.data.rows import (
    ABSENT,
    DEFAULT_COLUMNS,
    Row,
    RowError,
    describe,
    field_errors,
    find,
    list_of,
    messages_of,
    name_of,
    no_column,
    number_of,
    text_of,
)
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.text.judge_prompts import LANGUAGES, RankingFormat, language, question_of
from rewardsmith.text.rankings import MAX_CANDIDATES, without_verdict
from rewardsmith.types import Message, Prompt, Ranking

_LANGUAGE = re.compile(r"[\w ()'-]{3,40}")  # it goes into a prompt unquoted: it must look like a name


@dataclass(frozen=True, kw_only=True)
class GroupColumns:
    """Where a row has what. Columns may be dotted paths into tables.

    Attributes:
        source_text: what was translated.
        reference: a right translation; a row may lack it.
        source_language: its code, such as zh, or its English name.
        target_language: the same.
        candidates: 2 to 26 texts; None: `mt_texts`, or what else is usual.
        analysis: the comparison that leads to the scores.
        scores: one number per candidate, higher is better.
        question: what was asked, text or messages, for groups that are no translations; None where they are.
        id: name of a row; rows may lack it.
    """

    source_text: str = "src_text"
    reference: str = "trg_text"
    source_language: str = "src_lang"
    target_language: str = "trg_lang"
    candidates: str | None = None
    analysis: str = "analysis"
    scores: str = "scores"
    question: str | None = None
    id: str = "id"


@dataclass(frozen=True, kw_only=True)
class GroupReader:
    """Reads and checks rows.

    Attributes:
        columns: where a row has what.
        verdicts: the range of the scores.
        languages: English names or codes of source and target language, for rows that have no columns for them.
        analysed: whether every row needs an analysis.
        referenced: whether every row needs a reference.
    """

    columns: GroupColumns = field(default_factory=GroupColumns)
    verdicts: RankingFormat = field(default_factory=RankingFormat)
    languages: tuple[str | None, str | None] = (None, None)
    analysed: bool = False
    referenced: bool = False

    def __post_init__(self) -> None:
        verdicts = self.verdicts
        if not verdicts.lowest < verdicts.highest:
            raise UserError(f"lowest is {verdicts.lowest:g} and highest {verdicts.highest:g}: the range is empty")
        if max(abs(verdicts.lowest), abs(verdicts.highest)) >= 1e6:
            raise UserError("lowest and highest must lie below a million: a judge has to write the scores")
        if not verdicts.decimals and (verdicts.lowest % 1 or verdicts.highest % 1):
            raise UserError(
                f"lowest and highest are {verdicts.lowest:g} and {verdicts.highest:g}: integers, or --decimals"
            )
        for name, option in zip(self.languages, ("--source-language", "--target-language"), strict=True):
            if name is not None and _language_of(name) is None:
                raise UserError(f"{option} is {name!r}: {_unknown(name)}")

    def require(self, columns: Collection[str]) -> None:
        """Raise a `RowError` when a table with these columns cannot hold what is needed."""
        self._require(columns, lambda name: name in columns or name.partition(".")[0] in columns)

    def _require(self, columns: Collection[str], there: Callable[[str], bool]) -> None:
        for (first, *others), what in self._needed:
            if not any(map(there, (first, *others))):
                raise no_column(first, columns, what, also="".join(f" and no {name}" for name in others))

    @cached_property
    def _candidate_columns(self) -> tuple[str, ...]:
        if self.columns.candidates is not None:
            return (self.columns.candidates,)
        return ("mt_texts", *(name for name in DEFAULT_COLUMNS["candidates"] if name != "mt_texts"))

    @cached_property
    def _needed(self) -> list[tuple[tuple[str, ...], str]]:
        """Columns of which a row needs one, with what names them."""
        columns, where = self.columns, "--column {}=NAME says where {}"
        needed = [
            (self._candidate_columns, where.format("candidates", "the candidates are")),
            ((columns.scores,), where.format("scores", "their scores are")),
        ]
        if columns.question is not None:
            needed.append(((columns.question,), "--question-column says what the candidates answer"))
        else:
            source = where.format("source_text", "what they translate is, --question-column what they answer")
            needed.append(((columns.source_text,), source))
            for name, given, end in self._language_columns():
                if given is None:
                    named = where.format(
                        f"{end}_language", f"the language is, --{end}-language which it is in all rows"
                    )
                    needed.append(((name,), named))
        if self.analysed:
            needed.append(((columns.analysis,), where.format("analysis", "the comparison is, which is to be learned")))
        if self.referenced:
            shown = where.format("reference", "the reference is, which the template shows")
            needed.append(((columns.reference,), shown))
        return needed

    def _language_columns(self) -> tuple[tuple[str, str | None, str], ...]:
        source, target = self.languages
        columns = self.columns
        return (columns.source_language, source, "source"), (columns.target_language, target, "target")

    def read(self, row: Row, name: str) -> Ranking:
        """Return the group of a row.

        Args:
            row: as the file has it.
            name: the id of a row that has none of its own.
        """
        self._require(row, lambda column: find(row, column) is not ABSENT)
        column = next(column for column in self._candidate_columns if find(row, column) is not ABSENT)
        candidates = self._candidates(row, column)
        scores = self._scores(row, column, len(candidates))
        _require_apart(column, candidates, scores)
        prompt = self._prompt(row, name)
        with field_errors("the row"):
            return Ranking(prompt, candidates, scores, self._analysis(row))  # type: ignore[arg-type]

    def _candidates(self, row: Row, name: str) -> list[str]:
        texts = list_of(name, find(row, name))
        if len(texts) < 2:
            raise RowError(f"{name} has {len(texts)}: a group needs at least 2 candidates; leave the row out")
        if len(texts) > MAX_CANDIDATES:
            raise RowError(
                f"{name} has {len(texts)}: at most {MAX_CANDIDATES} candidates have a letter; split the group"
            )
        # Judges are shown answers without white space around them.
        found = [text_of(f"{name}[{i}]", text).strip() for i, text in enumerate(texts)]
        blank = next((i for i, text in enumerate(found) if not text), None)
        if blank is not None:
            raise RowError(
                f"{name}[{blank}] is blank: there is nothing to judge; leave the candidate and its score out"
            )
        return found

    def _scores(self, row: Row, candidates: str, count: int) -> list[float]:
        name, verdicts = self.columns.scores, self.verdicts
        values = list_of(name, find(row, name))
        if len(values) != count:
            raise RowError(f"{name} has {len(values)} and {candidates} {count}: one score for each candidate")
        scores = []
        for i, value in enumerate(values):
            score = number_of(f"{name}[{i}]", value)
            if not verdicts.lowest <= score <= verdicts.highest:
                between = f"{verdicts.lowest:g} to {verdicts.highest:g}"
                raise RowError(
                    f"{name}[{i}] is {describe(value)}: not in {between}; --lowest and --highest set the range"
                )
            if not verdicts.decimals and score % 1:
                raise RowError(f"{name}[{i}] is {describe(value)}: it must be an integer; --decimals allows others")
            written = f"{score:g}"
            if "e" in written or float(written) != score:
                raise RowError(f"{name}[{i}] is {describe(value)}: it has more than 6 digits; round it")
            scores.append(score + 0.0)  # no -0
        return scores

    def _analysis(self, row: Row) -> str:
        name = self.columns.analysis
        value = find(row, name)
        if value is ABSENT:
            return ""
        text = without_verdict(text_of(name, value))
        if self.analysed and not text:
            kind = "nothing but a verdict" if value.strip() else "empty"
            raise RowError(f"{name} is {kind}: there is no comparison to learn from; leave the row out")
        return text

    def _prompt(self, row: Row, name: str) -> Prompt:
        columns, info = self.columns, dict[str, Any]()
        if columns.question is not None:
            messages = messages_of(columns.question, find(row, columns.question))
            with field_errors(columns.question):
                question = question_of(Prompt(name, messages))
            asked, info["question"] = columns.question, question
        else:
            question = text_of(columns.source_text, find(row, columns.source_text))
            asked, info["src_text"] = columns.source_text, question
            for (column, given, _), key in zip(self._language_columns(), ("src_lang", "trg_lang"), strict=True):
                info[key] = _known_language(column, find(row, column)) if given is None else given
        if not question.strip():
            raise RowError(f"{asked} is blank: there is nothing to compare the candidates with; leave the row out")
        reference = find(row, columns.reference)
        if reference is not ABSENT:
            info["trg_text"] = text_of(columns.reference, reference)
            if self.referenced and not info["trg_text"].strip():
                raise RowError(f"{columns.reference} is blank, and the template shows it; leave the row out")
        with field_errors(asked):
            return Prompt(self._id(row) or name, [Message("user", question)], info=info)

    def _id(self, row: Row) -> str | None:
        value = find(row, self.columns.id)
        if value is ABSENT:
            return None
        own = name_of(value)
        if own is None:
            raise RowError(
                f"{self.columns.id} is {describe(value)}: it must be text or a number; --column id=NAME names another"
            )
        return own


def language_name(code: str) -> str:
    """Return the English name of a language that `GroupReader` has let through."""
    return _language_of(code) or code


def _language_of(code: str) -> str | None:
    known = language(code.strip())
    return known if known is not None and _LANGUAGE.fullmatch(known) else None


def _known_language(column: str, value: object) -> str:
    code = text_of(column, value)
    if _language_of(code) is None:
        raise RowError(f"{column} is {describe(code)}: {_unknown(code)}")
    return code.strip()


def _unknown(code: str) -> str:
    return (
        f"not a language that we know.{nearest(code.strip(), LANGUAGES)} Write its English name, or one of"
        f" {listing(LANGUAGES)}"
    )


def _require_apart(name: str, candidates: list[str], scores: list[float]) -> None:
    """Raise a `RowError` if one text has two scores."""
    first: dict[str, int] = {}
    for i, text in enumerate(candidates):
        other = first.setdefault(text, i)
        if scores[other] != scores[i]:
            raise RowError(
                f"{name}[{other}] and {name}[{i}] are the same text with the scores {scores[other]:g} and"
                f" {scores[i]:g}: leave one out"
            )


__all__ = ["GroupColumns", "GroupReader", "language_name"]
