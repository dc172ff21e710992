"""Run prepare jobs in a test, and read and write rows."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rewardsmith.jobs import Job, Result


@dataclass
class JobTestContext:
    """A `JobContext` without progress; models are given."""

    fresh: bool = False
    seed: int = 0
    folder: Path = Path()
    models: dict[str, Any] = field(default_factory=dict)
    logged: list[str] = field(default_factory=list)

    def model(self, name: str) -> Any:
        return self.models[name]

    def reward(self, chosen: Any) -> Any:
        raise AssertionError(chosen)

    def source(self, name: str) -> Any:
        raise AssertionError(name)

    def log(self, text: str) -> None:
        self.logged.append(text)

    def progress(self, phase: str, done: int, total: int, *, unit: str = "", tokens: int = 0) -> None:
        pass

    def pause(self) -> None:
        pass


def run_job(job: Job, *, fresh: bool = True, **models: Any) -> Result:
    return asyncio.run(job.run(JobTestContext(fresh=fresh, models=models)))


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write rows, or the bytes of lines, in the format of the ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    else:
        lines = [one if isinstance(one, bytes) else json.dumps(one, ensure_ascii=False).encode() for one in rows]
        path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    path = Path(path)
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


def names(folder: Path) -> set[str]:
    """Return what a folder holds, hidden files too."""
    return {file.name for file in folder.iterdir()}
