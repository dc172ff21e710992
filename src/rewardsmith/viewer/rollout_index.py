"""An index of the rollouts of one run: a row for each group and each rollout in SQLite, bodies read by their offset.

    index = RolloutIndex(folder, cache / "index.sqlite")
    while index.update() < 1.0: ...          # continues where it ended; a file that was cut is indexed again
    index.page(RolloutFilter(stage="policy", sort="reward"))

The run folder is only read. Several processes may use one index file: each step of an update is a transaction.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from rewardsmith.checks import require_count
from rewardsmith.rewards.cache import cache_folder
from rewardsmith.types import NOT_COMPUTED
from rewardsmith.viewer.growing_file import Position, is_continued, new_lines
from rewardsmith.viewer.rollout_view import UNREADABLE, number, parse_line

VERSION = 3  # of the schema; another one is built again
STEP_BYTES = 24_000_000  # that one transaction indexes
SNIPPET = 160  # characters of a prompt and of the end of an answer in a row
MAX_PLACES = 4_096  # rollouts of one group that are indexed
_UNUSED_DAYS = 30

_SCHEMA = """
CREATE TABLE files (
    stage TEXT PRIMARY KEY, offset INTEGER, tail TEXT, lines INTEGER, unread INTEGER, restarts INTEGER
);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, stage TEXT, line INTEGER, offset INTEGER, size INTEGER, step INTEGER, kind TEXT,
    dropped TEXT, source TEXT, prompt TEXT, head TEXT, reward REAL, advantage REAL, length REAL, failed INTEGER,
    count INTEGER, rewards TEXT
);
CREATE UNIQUE INDEX group_line ON groups (stage, line);
CREATE INDEX group_step ON groups (stage, step, line);
CREATE INDEX group_prompt ON groups (stage, prompt);
CREATE TABLE rollouts (
    group_id INTEGER, place INTEGER, stage TEXT, step INTEGER, kind TEXT, dropped TEXT, source TEXT, reward REAL,
    advantage REAL, length INTEGER, failure TEXT, failures TEXT, PRIMARY KEY (group_id, place)
) WITHOUT ROWID;
CREATE TABLE endings (
    group_id INTEGER, place INTEGER, stage TEXT, stop TEXT, ending TEXT, PRIMARY KEY (group_id, place)
) WITHOUT ROWID;
CREATE INDEX rollout_step ON rollouts (stage, step);
CREATE INDEX rollout_reward ON rollouts (stage, reward);
CREATE INDEX rollout_advantage ON rollouts (stage, advantage);
CREATE INDEX rollout_length ON rollouts (stage, length);
CREATE TABLE failures (stage TEXT, part TEXT, kind TEXT, count INTEGER, PRIMARY KEY (stage, part, kind));
"""


def index_file(run: Path) -> Path:
    """Return where the index of a run is kept: in the user's cache folder, never in the run."""
    return cache_folder() / "viewer" / f"{hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:32]}.sqlite"


def remove_unused(folder: Path) -> None:
    """Remove the indexes that were not used for a month."""
    for path in folder.glob("*.sqlite"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNUSED_DAYS * 86_400:
                path.unlink()


class RolloutIndex:
    """The index of the run in `folder`; `path` is its SQLite file."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder = folder
        self._path = path
        self.share = 0.0  # of the bytes that are indexed
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._create()
        except sqlite3.DatabaseError:  # not an index, or a damaged one: it can always be made again
            path.unlink(missing_ok=True)
            self._create()

    def _create(self) -> None:
        with self.connection() as db:
            if db.execute("PRAGMA user_version").fetchone()[0] == VERSION:
                return
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                db.execute(f'DROP TABLE "{name}"')
            for statement in filter(str.strip, _SCHEMA.split(";")):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Open the index; transactions are explicit."""
        db = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous = OFF")  # what a crash damages is made again
            yield db
        finally:
            db.close()

    def file(self, stage: str) -> Path:
        """Return the file with the rollouts of a stage."""
        return self.folder / "rollouts" / f"{stage}.jsonl"

    def update(self) -> float:
        """Index the next `STEP_BYTES` of each file; return the share of all bytes that are indexed, 1 when done."""
        sizes = {path.stem: path.stat().st_size for path in sorted((self.folder / "rollouts").glob("*.jsonl"))}
        with self.connection() as db:
            before = self._positions(db)
            for stage in dict.fromkeys([*before, *sizes]):
                if sizes.get(stage) != before.get(stage, (-1, 0))[0]:
                    self._update_file(db, stage, exists=stage in sizes)
            after = self._positions(db)
        # A last line that is still being written is not waited for: a file that did not get further is done.
        moved = [stage for stage in sizes if after.get(stage) != before.get(stage)]
        left = sum(max(0, sizes[stage] - after.get(stage, (0, 0))[0]) for stage in moved)
        self.share = 1.0 if not left else 1 - left / max(1, sum(sizes.values()))
        return self.share

    def _positions(self, db: sqlite3.Connection) -> dict[str, tuple[int, int]]:
        """Return the offset up to which each file is indexed, and how often that began again."""
        rows = db.execute("SELECT stage, offset, restarts FROM files ORDER BY rowid")
        return {stage: (offset, restarts) for stage, offset, restarts in rows}

    def _update_file(self, db: sqlite3.Connection, stage: str, *, exists: bool) -> None:
        db.execute("BEGIN IMMEDIATE")  # another process may have continued meanwhile: positions are read inside
        try:
            known = "SELECT offset, tail, lines, unread, restarts FROM files WHERE stage = ?"
            offset, tail, lines, unread, restarts = db.execute(known, (stage,)).fetchone() or (0, "", 0, 0, 0)
            position = Position(offset, tail)
            if not is_continued(self.file(stage), position):
                for table in ("rollouts", "endings", "groups", "failures"):
                    db.execute(f"DELETE FROM {table} WHERE stage = ?", (stage,))
                position, lines, unread, restarts = Position(), 0, 0, restarts + 1
            if exists:
                writer = _Writer(db, stage)
                for start, line in new_lines(self.file(stage), position, max_bytes=STEP_BYTES):
                    unread += not writer.add(lines, start, line)
                    lines += 1
                writer.flush()
                values = (stage, position.offset, position.tail, lines, unread, restarts)
                update = "offset = ?2, tail = ?3, lines = ?4, unread = ?5, restarts = ?6"
                db.execute(
                    f"INSERT INTO files VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (stage) DO UPDATE SET {update}",
                    values,
                )
            else:
                db.execute("DELETE FROM files WHERE stage = ?", (stage,))
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise


_Row = Sequence[Any]


class _Writer:
    """Adds the groups of one stage to the tables."""

    def __init__(self, db: sqlite3.Connection, stage: str) -> None:
        self._db, self._stage = db, stage
        self._next = 1 + db.execute("SELECT COALESCE(MAX(id), 0) FROM groups").fetchone()[0]
        self._groups: list[_Row] = []
        self._rollouts: list[_Row] = []
        self._endings: list[_Row] = []
        self._failures: Counter[tuple[str, str]] = Counter()

    def add(self, place: int, offset: int, line: bytes) -> bool:
        """Add a line; return whether it holds a group. Nothing is added of one that cannot be read."""
        try:
            group, rollouts, endings, failures = self._rows(parse_line(line))
        except UNREADABLE:
            return not line.strip()
        self._groups.append((self._next, self._stage, place, offset, len(line), *group))
        self._rollouts += rollouts
        self._endings += endings
        self._failures.update(failures)
        self._next += 1
        return True

    def _rows(self, record: Mapping[str, Any]) -> tuple[_Row, list[_Row], list[_Row], list[tuple[str, str]]]:
        """Return the row of a group without its place in the file, those of its rollouts, and all failures."""
        group, scores = record["scored"]["group"], record["scored"]["scores"]
        prompt = group["prompt"]
        require_count("step", record["step"], minimum=0)
        names = (record["kind"], record.get("dropped", ""), prompt.get("source", ""), prompt["id"])
        shared = (record["step"], *map(_text, names))
        head = _text(" ".join(prompt["messages"][-1]["content"][: 4 * SNIPPET].split())[:SNIPPET])
        rollouts: list[_Row] = []
        endings: list[_Row] = []
        failures: list[tuple[str, str]] = []
        advantages = chain(record.get("advantages") or (), repeat(None))
        members = zip(group["rollouts"][:MAX_PLACES], scores, advantages, strict=False)
        for i, (rollout, score, advantage) in enumerate(members):
            found = [(_text(part), _text(kind)) for part, kind in _failures(score)]
            kinds = dict.fromkeys(kind for _, kind in found)
            text = rollout["text"]
            rollouts.append((
                self._next, i, self._stage, *shared[:4], number(score.get("value")), number(advantage),
                _token_count(rollout.get("tokens")) or len(text), _text((score.get("failure") or {}).get("kind", "")),
                f"|{'|'.join(kinds)}|" if kinds else "",
            ))  # fmt: skip
            ending = _text(" ".join(text[-4 * SNIPPET :].split())[-SNIPPET:])
            endings.append((self._next, i, self._stage, _text(rollout.get("stop_reason", "stop")), ending))
            failures += found
        rewards = [row[7] for row in rollouts]
        known = [value for value in rewards if value is not None]
        spread = [abs(row[8]) for row in rollouts if row[8] is not None]
        row = (
            *shared, head, number(sum(known) / len(known)) if known else None, max(spread, default=None),
            sum(row[9] for row in rollouts) / max(1, len(rollouts)), sum(bool(row[10]) for row in rollouts),
            len(rollouts), json.dumps(rewards[:64]),
        )  # fmt: skip
        return row, rollouts, endings, failures

    def flush(self) -> None:
        """Write what was added."""
        self._db.executemany(f"INSERT INTO groups VALUES ({', '.join('?' * 17)})", self._groups)
        self._db.executemany(f"INSERT INTO rollouts VALUES ({', '.join('?' * 12)})", self._rollouts)
        self._db.executemany("INSERT INTO endings VALUES (?, ?, ?, ?, ?)", self._endings)
        self._db.executemany(
            "INSERT INTO failures VALUES (?, ?, ?, ?)"
            " ON CONFLICT (stage, part, kind) DO UPDATE SET count = count + excluded.count",
            [(self._stage, part, kind, count) for (part, kind), count in self._failures.items()],
        )


def _text(value: str) -> str:
    """Return text that can be written as UTF-8."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _failures(score: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    """Yield part and kind of each failure in a score; what was not computed is none."""
    failure = score.get("failure")
    if failure and failure["kind"] not in NOT_COMPUTED:
        yield name, failure["kind"]
    for part, inner in (score.get("parts") or {}).items():
        yield from _failures(inner, f"{name}.{part}".lstrip("."))


def _token_count(tokens: Any) -> int:
    """Return how many tokens a record has, without decoding them: they are base64 of 4 bytes each, or a list."""
    if isinstance(tokens, dict):
        text = next(iter(tokens.values()), "")
        return int((len(text) * 3 // 4 - text[-2:].count("=")) // 4)
    return len(tokens) if isinstance(tokens, list) else 0
