"""Rows as verl prepares them, files of them, and what `check` reports about a file."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardsmith import UserError
from rewardsmith.data import Jsonl, Parquet

BOTH = pytest.mark.parametrize("kind", [Jsonl, Parquet])


def gsm8k(index: int, **changes: Any) -> dict[str, Any]:
    """Return a row as verl prepares it for GSM8K."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"What is {index} + 1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(index + 1)},
        "extra_info": {"split": "train", "index": index},
    } | changes


def write(kind: type, folder: Path, rows: list[dict[str, Any]], name: str = "train") -> Path:
    if kind is Parquet:
        path = folder / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    else:
        path = folder / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def write_lines(folder: Path, *lines: Any, **settings: Any) -> Jsonl:
    """Return a source of these lines: rows, or the bytes of a line."""
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    (folder / "train.jsonl").write_bytes(b"\n".join(raw))
    return Jsonl(path=str(folder / "train.jsonl"), **settings)


def wrong(source: Jsonl | Parquet, **how: Any) -> str:
    """Return what `check` reports; it must be printable whatever the file holds."""
    with pytest.raises(UserError) as caught:
        source.check(**how)
    assert all(line.isprintable() for line in str(caught.value).splitlines())
    return str(caught.value)
