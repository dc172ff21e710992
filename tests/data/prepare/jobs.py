"""Run prepare jobs in a test, read and write rows, and rows of a ranking data set."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rewardsmith.data.prepare.gqm import GqmRl, GqmSft
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


ANALYSIS = (
    "Translation A keeps the tone. B reads well, but omits a word; A > B. A good rendering is needed for the idiom."
)


def group_row(number: int = 0, count: int = 2, **changes: Any) -> dict[str, Any]:
    """Return a group of so many translations of one text."""
    return {
        "src_text": f"原文 {number}",
        "trg_text": f"reference {number}",
        "src_lang": "zh",
        "trg_lang": "en",
        "mt_texts": [f"translation {number} by {'abcdefghijklmnopqrstuvwxyz'[i]}" for i in range(count)],
        "analysis": ANALYSIS,
        "scores": [(3 * i + number) % 11 for i in range(count)],
    } | changes


def prepare_gqm(
    folder: Path, rows: list[Any], *, form: str = "rl", kind: str = "jsonl", **settings: Any
) -> tuple[list[dict[str, Any]], Result]:
    """Return the rows of the output, in its order, and the result."""
    source, out = write_rows(folder / f"in.{kind}", rows), folder / f"out.{kind}"
    result = run_job((GqmSft if form == "sft" else GqmRl)(input=str(source), out=out, **settings))
    return read_rows(out), result
