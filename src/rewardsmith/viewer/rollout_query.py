"""Pages of rollouts out of an index: filtered, sorted, searched; each answer is bounded in size and in time."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any, Literal, get_args

from rewardsmith.errors import UserError
from rewardsmith.records import from_json
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.viewer.growing_file import read_line
from rewardsmith.viewer.rollout_index import MAX_PLACES, RolloutIndex
from rewardsmith.viewer.rollout_view import UNREADABLE, number, parse_line

MAX_PAGE = 200  # rows
MAX_HITS = 20_000  # rollouts that one search keeps
SEARCH_SECONDS = 0.25  # that one request searches; the next one continues
MAX_VALIDATIONS = 5_000  # prompts of one validation in the comparison of runs
_SEARCHES = 8  # that are kept

Sort = Literal["step", "reward", "advantage", "length"]


@dataclass(frozen=True)
class RolloutFilter:
    """Which rollouts a page lists; a group is listed if one of its rollouts is."""

    stage: str = ""
    by: Literal["groups", "rollouts"] = "groups"
    kind: str = ""
    source: str = ""
    prompt: str = ""
    dropped: Literal["", "yes", "no"] = ""
    failure: str = ""  # a kind, or "any"
    step_min: int | None = None
    step_max: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    text: str = ""
    sort: Sort = "step"
    order: Literal["up", "down"] = "up"
    offset: int = 0
    limit: int = 50
    find: int | None = None  # a line: the page on which it is, where there is one

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> RolloutFilter:
        """Return the filter of a request; a `UserError` names a value that is none."""
        values: dict[str, Any] = {}
        for one in fields(cls):
            text = query.get(one.name, "")
            if not text:
                continue
            try:
                values[one.name] = _VALUES.get(one.name, str)(text[:500])
            except ValueError:
                raise UserError(
                    f"{one.name} = {text[:60]!r} is no number of this range: leave it out, or write one"
                ) from None
        for name, known in _CHOICES.items():
            if values.get(name, known[0]) not in known:
                raise UserError(f"{name} = {values[name]!r}: one of {', '.join(filter(None, known))}")
        made = cls(**values)
        return replace(made, offset=max(0, made.offset), limit=max(1, min(MAX_PAGE, made.limit)))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _integer(text: str) -> int:
    value = int(text)
    if abs(value) >= 2**63:  # SQLite has no larger ones
        raise ValueError
    return value


_NUMBERS: dict[str, Any] = {"reward_min": _finite, "reward_max": _finite}
_VALUES: dict[str, Any] = dict.fromkeys(("step_min", "step_max", "offset", "limit", "find"), _integer) | _NUMBERS
_CHOICES: dict[str, tuple[str, ...]] = {
    "by": ("groups", "rollouts"),
    "dropped": ("", "yes", "no"),
    "sort": get_args(Sort),
    "order": ("up", "down"),
}


@dataclass
class _Search:
    """A search through the bodies of a stage, in the order of the file; `hits` are `group * MAX_PLACES + place`."""

    text: str
    restarts: int  # of the file: a run that was resumed has other groups
    last: int = 0  # the last group that was searched
    hits: list[int] = field(default_factory=list)
    searched: int = 0
    total: int = 0

    @property
    def full(self) -> bool:
        return len(self.hits) >= MAX_HITS

    def advance(self, index: RolloutIndex, db: sqlite3.Connection, stage: str) -> None:
        """Search on for `SEARCH_SECONDS`."""
        until = time.monotonic() + SEARCH_SECONDS
        wanted = self.text.lower()
        # In the file, the text is written as JSON; most groups are passed over without being parsed.
        written = json.dumps(wanted, ensure_ascii=False)[1:-1].encode("utf-8", "replace")
        (self.total,) = db.execute("SELECT COUNT(*) FROM groups WHERE stage = ?", (stage,)).fetchone()
        rows = db.execute(
            "SELECT id, offset, size FROM groups WHERE stage = ? AND id > ? ORDER BY id", (stage, self.last)
        )
        with index.file(stage).open("rb") as file:
            for group, offset, size in rows:
                if self.full or time.monotonic() > until:
                    break
                file.seek(offset)
                line = file.read(size)
                lower = line.lower() if wanted.isascii() else line.decode("utf-8", "replace").lower().encode()
                if written in lower:
                    with suppress(*UNREADABLE):  # damaged, or the file has changed since it was indexed
                        self.hits += [group * MAX_PLACES + place for place in _places_with(parse_line(line), wanted)]
                self.last, self.searched = group, self.searched + 1


def _places_with(record: Mapping[str, Any], wanted: str) -> list[int]:
    """Return the rollouts with a text in their answer, feedback or failures; all where it is in the prompt."""
    group, scores = record["scored"]["group"], record["scored"]["scores"]
    prompt = group["prompt"]
    shared = [prompt["id"], *(message["content"] for message in prompt["messages"]), json.dumps(prompt.get("answer"))]
    if any(wanted in text.lower() for text in shared):
        return list(range(min(MAX_PLACES, len(group["rollouts"]))))
    pairs = zip(group["rollouts"][:MAX_PLACES], scores, strict=False)
    return [
        place
        for place, (rollout, score) in enumerate(pairs)
        if wanted in rollout["text"].lower() or any(wanted in text.lower() for text in _texts(score))
    ]


def _texts(score: Mapping[str, Any]) -> list[str]:
    own = [score.get("feedback") or "", (score.get("failure") or {}).get("detail") or ""]
    return own + [text for part in (score.get("parts") or {}).values() for text in _texts(part)]


class RolloutPages:
    """Answers about the rollouts of one run."""

    def __init__(self, index: RolloutIndex) -> None:
        self.index = index
        self._searches: dict[tuple[str, str], _Search] = {}
        self._lock = threading.Lock()
        self._stages: tuple[list[Any], list[dict[str, Any]]] = ([], [])  # what they were made of, and they

    def stages(self) -> list[dict[str, Any]]:
        """Return of each stage what one can filter by: steps, sources, failures, the range of rewards."""
        with self.index.connection() as db:
            read = db.execute("SELECT stage, offset, restarts FROM files ORDER BY rowid").fetchall()
            if self._stages[0] != read:
                self._stages = read, [_stage(db, name) for name, _, _ in read]
            return self._stages[1]

    def page(self, chosen: RolloutFilter) -> dict[str, Any]:
        """Return one page of rows, how many there are, and how far a search is."""
        with self.index.connection() as db:
            hits, searched, full = None, 1.0, False
            # The name of a stage is that of a file: only those that were found in the folder are opened.
            if chosen.text and db.execute("SELECT 1 FROM files WHERE stage = ?", (chosen.stage,)).fetchone():
                with self._lock:
                    search = self._search(db, chosen.stage, chosen.text)
                    search.advance(self.index, db, chosen.stage)
                    hits, full = json.dumps(search.hits), search.full
                    searched = 1.0 if full else search.searched / max(1, search.total)
            total, offset, rows = _select(db, chosen, hits)
        return {
            "total": total,
            "rows": rows,
            "offset": offset,
            "searched": searched,
            "full": full,  # there may be more than the search has kept
            "indexed": self.index.share,
        }

    def _search(self, db: sqlite3.Connection, stage: str, text: str) -> _Search:
        (restarts,) = db.execute("SELECT restarts FROM files WHERE stage = ?", (stage,)).fetchone() or (0,)
        found = self._searches.pop((stage, text), None)
        if found is None or found.restarts != restarts:
            found = _Search(text, restarts)
        self._searches[stage, text] = found
        while len(self._searches) > _SEARCHES:
            self._searches.pop(next(iter(self._searches)))
        return found

    def line(self, stage: str, line: int) -> bytes:
        """Return a line of a rollouts file; a `UserError` if there is none."""
        with self.index.connection() as db:
            place = "SELECT offset, size FROM groups WHERE stage = ? AND line = ?"
            row = db.execute(place, (stage, line)).fetchone()
        if row is None:
            raise UserError("this group is not there, or not indexed yet: reload the list")
        return read_line(self.index.file(stage), *row)

    def record(self, stage: str, line: int) -> GroupRecord:
        """Return a group; a `UserError` if there is none, or if the file has changed since it was indexed."""
        record = parse_line(self.line(stage, line))
        if not record:
            raise UserError("the file has changed, and is indexed again: reload the list")
        return from_json(GroupRecord, record)

    def all_rows(self, stage: str) -> Iterator[dict[str, Any]]:
        """Yield the row of each group in the order of the file, with those of its `rollouts`."""
        query = (
            f"SELECT {_OF_GROUP}, r.place, {_OF_ROLLOUT} FROM groups g JOIN rollouts r ON r.group_id = g.id"
            " JOIN endings e ON e.group_id = r.group_id AND e.place = r.place WHERE g.stage = ? ORDER BY g.id, r.place"
        )
        with self.index.connection() as db:
            for _, rows in groupby((_row(row) for row in db.execute(query, (stage,))), lambda row: row["line"]):
                members = list(rows)
                group = {key: members[0][key] for key in _KEYS[: _KEYS.index("place")]}
                yield group | {"rollouts": [{key: row[key] for key in row if key not in group} for row in members]}

    def validations(self) -> list[dict[str, Any]]:
        """Return the first and the last validation of each stage that has some, with the mean reward of each prompt."""
        ends = (
            "SELECT stage, MIN(step), MAX(step) FROM groups WHERE kind = 'validation' GROUP BY stage ORDER BY MIN(id)"
        )
        with self.index.connection() as db:
            return [
                {"stage": stage, "ends": [_validation(db, stage, step) for step in dict.fromkeys((first, last))]}
                for stage, first, last in db.execute(ends).fetchall()
            ]


def _validation(db: sqlite3.Connection, stage: str, step: int) -> dict[str, Any]:
    rows = db.execute(
        "SELECT prompt, source, head, reward, failed, count, line FROM groups"
        " WHERE stage = ? AND kind = 'validation' AND step = ? ORDER BY id LIMIT ?",
        (stage, step, MAX_VALIDATIONS),
    )
    keys = ("prompt", "source", "head", "reward", "failed", "count", "line")
    return {"step": step, "cases": [dict(zip(keys, row, strict=True)) | {"reward": number(row[3])} for row in rows]}


def _stage(db: sqlite3.Connection, name: str) -> dict[str, Any]:
    lines, unread = db.execute("SELECT lines, unread FROM files WHERE stage = ?", (name,)).fetchone()
    steps = db.execute(
        "SELECT step, kind, COUNT(*), AVG(reward), SUM(failed) FROM groups WHERE stage = ? GROUP BY step, kind"
        " ORDER BY step, kind",
        (name,),
    ).fetchall()
    rewards = "SELECT MIN(reward), MAX(reward), COUNT(*) FROM rollouts WHERE stage = ?"
    low, high, rollouts = db.execute(rewards, (name,)).fetchone()
    (cut,) = db.execute("SELECT COUNT(*) FROM endings WHERE stage = ? AND stop = 'length'", (name,)).fetchone()

    def counts(column: str) -> list[list[Any]]:
        query = f"SELECT {column}, COUNT(*) FROM groups WHERE stage = ? GROUP BY {column} ORDER BY 2 DESC LIMIT 200"
        return [list(row) for row in db.execute(query, (name,))]

    failures = "SELECT part, kind, count FROM failures WHERE stage = ? ORDER BY count DESC LIMIT 60"
    return {
        "name": name,
        "steps": [[step, kind, groups, number(mean), failed] for step, kind, groups, mean, failed in steps],
        "low": number(low),
        "high": number(high),
        "groups": sum(row[2] for row in steps),
        "rollouts": rollouts,
        "truncated": cut,
        "lines": lines,
        "unread": unread,
        "sources": counts("source"),
        "drops": [row for row in counts("dropped") if row[0]],
        "failures": [list(row) for row in db.execute(failures, (name,))],
    }


def _where(chosen: RolloutFilter, hits: str | None) -> tuple[str, list[Any]]:
    """Return the condition on rows of `rollouts`, named r, and its values."""
    # An index helps to find steps, and to sort all rollouts. Other filters read every row, and do so in order: a plus
    # sign keeps SQLite from the index.
    scans = any((chosen.kind, chosen.source, chosen.dropped, chosen.failure, hits)) or chosen.reward_min is not None
    scans = (scans or chosen.reward_max is not None) and chosen.step_min is None and chosen.step_max is None
    parts: list[tuple[str, Any]] = [(f"{'+' * scans}r.stage = ?", chosen.stage)]
    for column in ("kind", "source"):
        parts += [(f"r.{column} = ?", getattr(chosen, column))] if getattr(chosen, column) else []
    for column in ("step", "reward"):
        for sign, end in ((">=", "min"), ("<=", "max")):
            value = getattr(chosen, f"{column}_{end}")
            parts += [(f"{'+' * (column == 'reward')}r.{column} {sign} ?", value)] if value is not None else []
    if chosen.prompt:
        parts.append(("r.group_id IN (SELECT id FROM groups WHERE stage = r.stage AND prompt = ?)", chosen.prompt))
    if chosen.dropped:
        parts.append(("(r.dropped != '') = ?", chosen.dropped == "yes"))
    if chosen.failure == "any":
        parts.append(("r.failures != ?", ""))
    elif chosen.failure:
        parts.append(("instr(r.failures, ?) > 0", f"|{chosen.failure}|"))
    if hits is not None:
        parts.append((f"r.group_id * {MAX_PLACES} + r.place IN (SELECT value FROM json_each(?))", hits))
    return " AND ".join(condition for condition, _ in parts), [value for _, value in parts]


def _select(db: sqlite3.Connection, chosen: RolloutFilter, hits: str | None) -> tuple[int, int, list[dict[str, Any]]]:
    """Return how many rows a filter leaves, and a page of them with its offset; rows without a value are last.

    The page is chosen among the narrow rows; what is shown of it is joined afterwards.
    """
    where, values = _where(chosen, hits)
    down = "DESC" if chosen.order == "down" else "ASC"
    if chosen.by == "rollouts":
        name, table, keys, ties = "r", "rollouts r", "r.group_id, r.place", f"r.group_id {down}, r.place"
        shown = (
            f"SELECT {_OF_GROUP}, r.place, {_OF_ROLLOUT} FROM ({{page}}) k"
            " JOIN rollouts r ON r.group_id = k.group_id AND r.place = k.place"
            " JOIN endings e ON e.group_id = k.group_id AND e.place = k.place JOIN groups g ON g.id = k.group_id"
        )
    else:
        name, table, keys, ties = "g", "groups g", "g.id", f"g.line {down}"
        own = "NULL, g.reward, g.advantage, g.length, g.failed, '', '', ''"
        shown = f"SELECT {_OF_GROUP}, {own} FROM ({{page}}) k JOIN groups g ON g.id = k.id"
        # Without a filter the groups themselves are counted and sorted.
        where = (
            "g.stage = ?" if values == [chosen.stage] else f"g.id IN (SELECT r.group_id FROM rollouts r WHERE {where})"
        )
    sort = f"{name}.{chosen.sort}"
    nulls = f"{sort} IS NULL, " if down == "ASC" and chosen.sort != "step" else ""  # SQLite has them first
    order = f"{nulls}{sort} {down}, {ties}"
    (total,) = db.execute(f"SELECT COUNT(*) FROM {table} WHERE {where}", values).fetchone()
    offset = chosen.offset
    if chosen.find is not None:
        join = " JOIN groups g ON g.id = r.group_id" if name == "r" else ""
        lines = db.execute(f"SELECT g.line FROM {table}{join} WHERE {where} ORDER BY {order}", values)
        offset = next((i for i, (line,) in enumerate(lines) if line == chosen.find), 0) // chosen.limit * chosen.limit
    page = f"SELECT {keys} FROM {table} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
    query = f"{shown.format(page=page)} ORDER BY {order}"
    return total, offset, [_row(row) for row in db.execute(query, [*values, chosen.limit, offset])]


_OF_GROUP = "g.line, g.step, g.kind, g.dropped, g.source, g.prompt, g.head, g.count, g.rewards"
_OF_ROLLOUT = "r.reward, r.advantage, r.length, r.failure, r.failures, e.stop, e.ending"
_KEYS = ("line", "step", "kind", "dropped", "source", "prompt", "head", "count", "rewards",
         "place", "reward", "advantage", "length", "failure", "failures", "stop", "ending")  # fmt: skip


def _row(row: tuple[Any, ...]) -> dict[str, Any]:
    made = dict(zip(_KEYS, row, strict=True))
    made |= {name: number(made[name]) for name in ("reward", "advantage", "length")}
    return made | {"rewards": json.loads(made["rewards"]), "failures": [k for k in made["failures"].split("|") if k]}
