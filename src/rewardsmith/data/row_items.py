"""Prompts, demonstrations, pairs, groups and grades from files: JSON lines and Parquet, in the schema that verl uses.

    source = Jsonl(path="data/train.jsonl", system="Reason step by step.")
    source.check()                       # every row once; a `UserError` names the bad ones
    for prompt in source.prompts(seed=0):
        ...                              # every row once, in an order that the seed decides

Pairs, groups and grades have the forms of TRL's preference data sets, UltraFeedback, RewardBench and others:

    {"prompt": "Why?", "chosen": "Because …", "rejected": "No idea."}
    {"chosen": [user, assistant], "rejected": [user, assistant]}               the prompt is what both begin with
    {"prompt": "Why?", "candidates": ["Because …", "No idea."], "scores": [8, 2]}
    {"prompt": "Why?", "candidates": ["a", "b", "c"], "ranking": "B > A = C"}
    {"prompt": "7+5?", "response": "12", "points": 7, "out_of": 10}

`docs/data.md` has the schema and the settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from rewardsmith.data.readers import Place, find_files, names_of, parse_table, provenance_of, read_rows, where
from rewardsmith.data.rows import (
    ABSENT,
    ANSWER,
    ID,
    MESSAGES,
    PROMPT,
    RESPONSE,
    SOURCE,
    BadRows,
    Columns,
    Layout,
    Row,
    RowError,
    describe,
    field_errors,
    find,
    flag_of,
    list_of,
    messages_of,
    no_column,
    number_of,
    printable,
    text_of,
)
from rewardsmith.data.source import Reads
from rewardsmith.errors import UserError, nearest
from rewardsmith.storage import file_facts
from rewardsmith.text.judge_prompts import PromptIdentity
from rewardsmith.text.rankings import letters_of, parse_ranking
from rewardsmith.types import Demonstration, Graded, Message, Preference, Prompt, Ranking

RowItem = Prompt | Demonstration | Preference | Ranking | Graded

SOURCE_TEXT = "src_text"
"""Where the info of a prompt has the text to translate, whatever the column is called."""

_ONE_ROW_PER_PROMPT = ("prompts", "demonstrations")


# ---- one row -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenRows:
    """One pass over rows: each with its place, the names of the files for ids, and a place for messages."""

    rows: Iterable[tuple[Place, Row | RowError]]
    names: Sequence[str]
    where: Callable[[Place], str]


@dataclass(frozen=True)
class PreferenceRows:
    """Converts rows to pairs."""

    layout: Layout
    columns: Columns

    def read(self, row: Row, file: str, number: int) -> Preference:
        """Return the pair of a row."""
        chosen_at, lead, chosen = self._answer(row, "chosen", "the better answer")
        rejected_at, other, rejected = self._answer(row, "rejected", "the other answer")
        if lead != other:
            raise RowError(
                f"{chosen_at} and {rejected_at} differ before their last message: a pair is two answers to one prompt"
            )
        margin, tied, used = self._margin(row)
        used += [chosen_at, rejected_at, *([self.layout.prompt] if find(row, self.layout.prompt) is not ABSENT else [])]
        _, subset = self.columns.find(row, "subset")
        messages = self._messages(row, lead, chosen_at)
        subset = subset if isinstance(subset, str) else ""
        prompt = self.layout.prompt_with(row, messages, used, file, number, subset=subset)
        with field_errors("the pair"):
            return Preference(prompt, chosen, rejected, margin, tied)

    def _answer(self, row: Row, side: str, what: str) -> tuple[str, list[Message], str]:
        """Return the column of an answer, the messages before it, and the answer."""
        name, value = self.columns.require(row, side, what)
        if isinstance(value, str):
            return name, [], value
        *lead, last = messages_of(name, value)
        if last.role != "assistant":
            raise RowError(f"the role of the last of {name} is {describe(last.role)}: an answer is the assistant's")
        return name, lead, last.content

    def _messages(self, row: Row, lead: list[Message], chosen_at: str) -> list[Message]:
        """Return the prompt: that of its column, or what the answers begin with, or the fuller of the two."""
        name = self.layout.prompt
        value = find(row, name)
        if value is ABSENT:
            if not lead:
                raise self.layout.no_prompt(row, also=f" and no messages in {chosen_at} before the answer")
            return lead
        messages = messages_of(name, value)
        if not lead or messages[-len(lead) :] == lead:
            return messages
        # The column may have less than the conversation: no system message, or only one of its user messages.
        text = value.strip() if isinstance(value, str) else None
        if lead[-len(messages) :] == messages or any(m.role == "user" and m.content.strip() == text for m in lead):
            return lead
        raise RowError(f"{chosen_at} begins with other messages than {name}: leave one of the two out")

    def _margin(self, row: Row) -> tuple[float, bool, list[str]]:
        """Return the margin, whether it is a tie, and the columns that say so."""
        tied_at, value = self.columns.find(row, "tied")
        tied = value is not ABSENT and flag_of(tied_at, value)
        if "chosen_score" in self.columns.named:
            keys = ("chosen_score", "rejected_score")
            chosen, rejected = (number_of(*self.columns.require(row, key, "a score of its answer")) for key in keys)
            name, margin = "the score of chosen less that of rejected", round(chosen - rejected, 9)
            tied = tied or not margin
            margin = 0.0 if tied and margin > 0 else margin
        else:
            name, value = self.columns.find(row, "margin")
            margin = 0.0 if value is ABSENT else number_of(name, value)
        if margin < 0:
            raise RowError(f"{name} is {margin:g}: by how much the chosen is better, at least 0; swap the answers")
        return margin, tied, [tied_at, name]


@dataclass(frozen=True)
class RankingRows:
    """Converts rows to groups by `scores`, or by a `ranking`; None takes scores, and a ranking in rows without them."""

    layout: Layout
    columns: Columns
    by: str | None = None

    def read(self, row: Row, file: str, number: int) -> Ranking:
        """Return the group of a row."""
        name, value = self.columns.require(row, "candidates", "the answers")
        candidates = [text_of(f"{name}[{i}]", text) for i, text in enumerate(list_of(name, value))]
        if len(candidates) < 2:
            raise RowError(f"{name} has {len(candidates)}: a group needs at least 2 answers")
        scores, scores_at = self._scores(row, len(candidates))
        analysis_at, analysis = self.columns.find(row, "analysis")
        analysis = "" if analysis is ABSENT else text_of(analysis_at, analysis)
        messages, messages_at = self._messages(row)
        used = [name, scores_at, analysis_at, messages_at]
        source_at, source = self.columns.find(row, "source_text")
        if isinstance(source, str) and source_at != SOURCE_TEXT:
            row, used = {**row, SOURCE_TEXT: source}, [*used, source_at]  # where judges look for it
        prompt = self.layout.prompt_with(row, messages, used, file, number)
        with field_errors(name):
            return Ranking(prompt, candidates, scores, analysis)  # type: ignore[arg-type]

    def _messages(self, row: Row) -> tuple[list[Message], str]:
        """Return the prompt and its column; a source text stays in the info too."""
        by_itself = find(row, self.layout.prompt) is ABSENT and find(row, MESSAGES) is ABSENT
        if not by_itself or not self.layout.chat_asks:
            return self.layout.prompt_messages(row)
        name, text = self.columns.find(row, "source_text")
        if text is ABSENT:
            raise self.layout.no_prompt(row, also=f" and no {MESSAGES} and no {name}")
        if not isinstance(text, str) or not text.strip():
            raise RowError(f"{name} is {describe(text)}: it must be text, and not blank")
        return messages_of(name, text), ""

    def _scores(self, row: Row, count: int) -> tuple[list[float], str]:
        """Return a score for each of the candidates, and the column that says so."""
        keys = ("scores", "ranking") if self.by is None else (self.by,)
        for key in keys:
            name, value = self.columns.find(row, key)
            if value is not ABSENT:
                return (_by_score if key == "scores" else _by_rank)(name, value, count), name
        what = "a score of each answer" if keys[0] == "scores" else "the ranking of the answers"
        raise self.columns.missing(row, keys[0], what, *keys[1:])


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
            raise RowError(f"{name} has the rank {min(ranks):g}: ranks begin with 1, the best, one for each answer")
        below = sorted(set(ranks), reverse=True)
        return [float(below.index(rank)) for rank in ranks]
    try:
        text = " > ".join(map(" = ".join, value)) if isinstance(value, list) else value
        if not isinstance(text, str) or len(text.strip().splitlines()) > 1:
            raise ValueError("no ranking")
        letters = letters_of(count)
        levels = parse_ranking(text, letters, "ranking").levels
    except (TypeError, ValueError) as error:  # too many candidates, or unparsable
        forms = 'one line such as "A > B = C", a list such as ["A", ["B", "C"]], or a list of ranks, 1 the best'
        raise RowError(f"{name} is {describe(value)}: {error}; it must be {forms}") from None
    place = {letter: float(below) for below, level in enumerate(reversed(levels)) for letter in level}
    return [place[letter] for letter in letters]


@dataclass(frozen=True)
class GradedRows:
    """Converts rows to answers with grades from 0 to `out_of`, in rows that do not say."""

    layout: Layout
    columns: Columns
    out_of: float = 1.0

    def read(self, row: Row, file: str, number: int) -> Graded:
        """Return the graded answer of a row."""
        response_at = self.layout.response
        response = find(row, response_at)
        if response is ABSENT:
            raise no_column(response_at, row, "response_column says where a row has the answer that was graded")
        messages, messages_at = self.layout.prompt_messages(row)
        grade_at, grade = self.columns.require(row, "grade", "a grade")
        total_at, total = self.columns.find(row, "out_of")
        points = float(grade) if isinstance(grade, bool) else number_of(grade_at, grade)
        total = self.out_of if total is ABSENT else number_of(total_at, total)
        if not 0 <= points <= total or total <= 0:
            raise RowError(f"{grade_at} is {points:g} out of {total:g}: set out_of to the points that there are in all")
        used, flags = [messages_at, response_at, grade_at, total_at], dict[str, bool | None]()
        for key in ("right", "sound"):
            name, value = self.columns.find(row, key)
            flags[key] = None if value is ABSENT else flag_of(name, value)
            used.append(name)
        prompt = self.layout.prompt_with(row, messages, used, file, number)
        with field_errors(response_at):
            return Graded(prompt, text_of(response_at, response), points / total, **flags)


# ---- files -------------------------------------------------------------------------------------------------------


def _path(value: object) -> object:
    """Refuse in one sentence: of a union, pydantic reports what is wrong with each of its members."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        return value
    raise ValueError("must be a path, or a list of paths")


@dataclass(kw_only=True, eq=False)
class RowSource:
    """Rows in the schema that verl uses. One pass per call: every row once, then the end."""

    system: Annotated[str | None, Field(description="system message of every prompt, instead of its own")] = None
    limit: Annotated[int | None, Field(ge=1, description="read only the first rows")] = None
    shuffle: Annotated[bool, Field(description="a new order for each pass; false: as in the files")] = True
    source: Annotated[str | None, Field(description="source of every prompt, instead of the column")] = None
    prompt_column: Annotated[str, Field(min_length=1, description="messages, or text")] = PROMPT
    answer_column: Annotated[str, Field(min_length=1, description="ground truth; rows may lack it")] = ANSWER
    source_column: Annotated[str, Field(min_length=1, description="name of the data set or task")] = SOURCE
    response_column: Annotated[str, Field(min_length=1, description="answer to imitate")] = RESPONSE
    id_column: Annotated[str, Field(description='unique name of a row; "" numbers the rows')] = ID
    columns: Annotated[
        dict[str, str] | None,
        Field(description="other names for the columns of pairs, groups and grades, such as { chosen = 'good' }"),
    ] = None
    out_of: Annotated[float, Field(gt=0, description="grades: points in all, in rows that do not say")] = 1.0

    def __post_init__(self) -> None:
        self.layout = layout = Layout(
            prompt=self.prompt_column,
            answer=self.answer_column,
            source=self.source_column,
            response=self.response_column,
            id=self.id_column,
            system=None if self.system is None else Message("system", self.system),
            named=self.source,
        )
        named = Columns(self.columns)
        self._converters: dict[Reads, Callable[[Row, str, int], RowItem]] = {
            "prompts": layout.prompt_of,
            "demonstrations": layout.demonstration_of,
            "preferences": PreferenceRows(layout, named).read,
            "rankings": RankingRows(layout, named).read,
            "graded": GradedRows(layout, named, self.out_of).read,
        }

    def _open(self, rng: random.Random | None) -> OpenRows:
        """Return the rows of one pass, in order or shuffled."""
        raise NotImplementedError

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield the prompt of every row once; the same seed gives the same order."""
        return self._pass(seed, "prompts")

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield every row once, as a prompt with an answer to imitate."""
        return self._pass(seed, "demonstrations")

    def preferences(self, seed: int) -> Iterator[Preference]:
        """Yield every row once, as a pair of answers."""
        return self._pass(seed, "preferences")

    def rankings(self, seed: int) -> Iterator[Ranking]:
        """Yield every row once, as a group of answers with scores."""
        return self._pass(seed, "rankings")

    def graded(self, seed: int) -> Iterator[Graded]:
        """Yield every row once, as an answer with a grade."""
        return self._pass(seed, "graded")

    def check(self, *, of: Reads = "prompts") -> None:
        """Read every row once, and report what is wrong with the first bad ones in one `UserError`."""
        opened = self._open(None)
        rows, bad = 0, BadRows(skip=False)
        answered, last = False, None
        for place, item in self._items(opened, of):
            rows += 1
            if isinstance(item, RowError):
                bad.note(opened.where(place), item)
            else:
                last = _prompt_in(item)
                answered = answered or last.answer is not None
        bad.settle(rows, remedy="")
        if last is not None and not answered and self.layout.answer != ANSWER:
            raise UserError(
                f'answer_column is "{printable(self.layout.answer, 60)}", but no row has a value there.'
                f"{nearest(self.layout.answer, [printable(name, 60) for name in last.info])}"
            )

    def _pass(self, seed: int, of: Reads) -> Iterator[Any]:
        opened = self._open(random.Random(seed) if self.shuffle else None)
        for place, item in self._items(opened, of):
            if isinstance(item, RowError):
                raise UserError(f"{opened.where(place)}: {item}")
            yield item

    def _items(self, opened: OpenRows, of: Reads) -> Iterator[tuple[Place, RowItem | RowError]]:
        """Yield the item of each row, or what is wrong with it; ids must be unique, or name one prompt."""
        convert, unique = self._converters[of], of in _ONE_ROW_PER_PROMPT
        known: dict[str, tuple[Place, int]] = {}
        for place, row in opened.rows:
            try:
                if isinstance(row, RowError):
                    raise row
                item = convert(row, opened.names[place.file], place.number)
                prompt = _prompt_in(item)
                content = 0 if unique else hash(tuple((m.role, m.content) for m in prompt.messages))
                other, same = known.setdefault(prompt.id, (place, content))
                if other is not place and (unique or same != content):
                    raise RowError(
                        f'the id "{prompt.id[:100]}" is also that of {opened.where(other)}: make the ids unique, or'
                        ' set id_column = "" to number the rows'
                    )
            except RowError as error:
                yield place, error
            else:
                yield place, item


def _prompt_in(item: RowItem) -> Prompt:
    return item if isinstance(item, Prompt) else item.prompt


@dataclass(kw_only=True, eq=False)
class FileSettings:
    """Which files have the rows."""

    path: Annotated[
        str | list[str],
        BeforeValidator(_path),
        Field(description="a file, a folder, a pattern such as data/*.jsonl, or a list of those"),
    ]
    made_by: Annotated[str, Field(description="how the files are made; shown where they are missing")] = ""


@dataclass(kw_only=True, eq=False)
class RowFileSource(RowSource, FileSettings):
    """Rows of files."""

    suffixes: ClassVar[Sequence[str]]

    def _open(self, rng: random.Random | None) -> OpenRows:
        files = self.files()
        return OpenRows(read_rows(files, limit=self.limit, rng=rng), names_of(files), partial(where, files))

    def files(self) -> list[Path]:
        """Return the files that `path` means; a `UserError` says that there are none."""
        return find_files(self.path, self.suffixes, made_by=self.made_by)

    def facts(self) -> dict[str, Any]:
        """Return path, size and hash of the files, for the record of a run."""
        return {"files": [file_facts(file) for file in self.files()], **self.judge_prompt()}

    def judge_prompt(self) -> PromptIdentity:
        """Return with which prompt a judge is called that learned from these files; {} if none is known for all.

        `rewardsmith prepare` writes it into the provenance, which counts as long as the file has the size of then.
        """
        found = [provenance_of(file).get("judge_prompt", {}) for file in self.files()]
        return found[0] if all(one == found[0] for one in found) else {}


class Jsonl(RowFileSource):
    """Rows of JSON lines files, in verl's schema."""

    suffixes = (".jsonl", ".ndjson")


class Parquet(RowFileSource):
    """Rows of Parquet files, in verl's schema."""

    suffixes = (".parquet",)


@dataclass(kw_only=True, eq=False)
class Rows(RowSource):
    """Rows that a Python program gives: a list of tables, a pandas frame or a `datasets.Dataset`."""

    given: ClassVar[str] = "rows"

    rows: Any = field(kw_only=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if hasattr(self.rows, "to_dict") and hasattr(self.rows, "columns"):  # a frame, in which a missing value is NaN
            rows = self.rows.to_dict("records")
            self.rows = [{name: value for name, value in row.items() if not _is_nan(value)} for row in rows]
        is_table = isinstance(self.rows, str | bytes | Mapping)
        if is_table or not (hasattr(self.rows, "__getitem__") and hasattr(self.rows, "__len__")):
            kinds = "a list of tables, a pandas frame, a datasets.Dataset, or an object with prompts(seed)"
            raise UserError(f"data is of type {type(self.rows).__name__}: it must be {kinds}")

    def facts(self) -> dict[str, Any]:
        """Return how many rows there are, and their hash, for the record of a run."""
        digest = hashlib.sha256()
        for _, row in self._open(None).rows:
            digest.update(json.dumps(row if isinstance(row, dict) else str(row), sort_keys=True, default=str).encode())
        return {"rows": len(self.rows), "sha256": digest.hexdigest()}

    def _open(self, rng: random.Random | None) -> OpenRows:
        order = list(range(min(len(self.rows), self.limit or len(self.rows))))
        if not order:
            raise UserError("data has no rows: give at least one")
        if rng is not None:
            rng.shuffle(order)
        rows = ((Place(0, i + 1), parse_table(self.rows[i])) for i in order)
        return OpenRows(rows, ["rows"], lambda place: f"row {place.number}")


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
