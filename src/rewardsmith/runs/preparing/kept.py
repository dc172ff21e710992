"""What models have answered so far, kept beside the output as it comes, so that the same command goes on.

For `rubrics.parquet` that is `rubrics.kept.jsonl`. Its first line says what makes the answers; then there is one line
for each, with what it is known by. A process that is killed leaves at most one line that is not complete; it is cut
off by the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError
from rewardsmith.runs.resume import changes
from rewardsmith.storage import writing

IDENTITY = "identity"
"""Where the maker has what the model is known by."""

ANEW = "add --fresh to start anew, or name another output"


class KeptAnswers:
    """Answers on disk, found by a key. Use it inside `open`.

    Args:
        out: the output; the answers lie beside it.
        maker: what makes them, as JSON: a file never mixes two.
        outputs: the files that come of them.
        fresh: forget what is there.
    """

    def __init__(self, out: Path, maker: Mapping[str, Any], outputs: list[Path], *, fresh: bool = False) -> None:
        self.file = out.with_name(f"{out.stem}.kept.jsonl")  # another format goes on with the same answers
        self._maker = json.loads(json.dumps(maker))
        self._began = False
        self._fresh = fresh
        self._outputs = outputs
        self._places: dict[str, int] = {}
        self._handle: IO[bytes] | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the file; a `UserError` if it is of something else, or another process has it."""
        for output in self._outputs:
            if output.exists() and not self.file.exists() and not self._fresh:
                raise UserError(f'"{printable(str(output), 200)}" is there already: {ANEW}')
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            handle = self.file.open("ab+")
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(
                    f'another process is writing to "{self.file}": stop it, or name another output'
                ) from None
            self._handle = handle
            self._take_over(handle)
            yield
            with writing(self.file):
                os.fsync(handle.fileno())
        finally:
            self._handle = None
            with suppress(OSError):  # what could not be written has been reported by then
                handle.close()

    def _take_over(self, handle: IO[bytes]) -> None:
        """Find the answers that are there, and begin the file if there are none."""
        with writing(self.file):
            if self._fresh:
                handle.truncate(0)
            handle.seek(0)
        end, self._began = 0, False
        self._places.clear()
        for line in handle:
            if not line.endswith(b"\n"):
                break
            entry = self._parsed(line, end)
            if not self._began:
                self._began = True
                self._require_same(entry)
            else:
                self._places[str(entry.get("key"))] = end
            end += len(line)
        with writing(self.file):
            handle.truncate(end)

    @property
    def maker(self) -> dict[str, Any]:
        """What makes the answers, with the identity of the model if there are any."""
        return dict(self._maker)

    def identify(self, identity: str) -> None:
        """Say who answers from now on, before the first answer is added.

        Args:
            identity: what the model is known by; its settings need not tell, where a server decides what it serves.

        Raises:
            UserError: the answers that are there are another model's.
        """
        assert self._handle is not None
        told = {**self._maker, IDENTITY: identity}
        if self._began and told == self._maker:
            return
        if self._places:
            raise self._different(changes(self._maker, told))
        with writing(self.file):
            self._handle.truncate(0)
            self._write({"maker": told})
        self._maker, self._began = told, True

    def _parsed(self, line: bytes, at: int) -> dict[str, Any]:
        try:
            entry = json.loads(line)
            if isinstance(entry, dict) and ("maker" if at == 0 else "key") in entry:
                return entry
        except (ValueError, RecursionError):
            pass
        raise UserError(f'cannot read "{self.file}", byte {at}: this command did not write that; {ANEW}')

    def _require_same(self, entry: Mapping[str, Any]) -> None:
        before = entry["maker"] if isinstance(entry["maker"], dict) else {}
        settings = {name: value for name, value in before.items() if name != IDENTITY}
        different = changes(settings, self._maker)
        if different:
            raise self._different(different)
        self._maker = before

    def _different(self, different: Mapping[str, str]) -> UserError:
        lines = "\n".join(f"  {path}: {printable(change, 300)}" for path, change in different.items())
        return UserError(f'the answers in "{self.file}" were made in another way:\n{lines}\nTo go on, {ANEW}')

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> Any:
        """Return an answer."""
        assert self._handle is not None
        self._handle.seek(self._places[key])
        return json.loads(self._handle.readline())["value"]

    def add(self, key: str, value: Any) -> None:
        """Keep one more answer of the model that `identify` has named."""
        assert self._handle is not None
        assert self._began
        with writing(self.file):
            place = self._handle.seek(0, os.SEEK_END)
            self._write({"key": key, "value": value})
        self._places[key] = place

    def _write(self, entry: Mapping[str, Any]) -> None:
        assert self._handle is not None
        line = json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._handle.write(line.encode("utf-8", "backslashreplace") + b"\n")
        self._handle.flush()


__all__ = ["ANEW", "KeptAnswers"]
