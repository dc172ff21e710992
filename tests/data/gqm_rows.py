"""Rows of a ranking data set, files of them, and what becomes of them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rewardsmith.data.gqm import GqmSettings, Prepared, prepare_gqm

ANALYSIS = (
    "Translation A keeps the tone. B reads well, but omits a word; A > B. A good rendering is needed for the idiom."
)


def row(number: int = 0, count: int = 2, **changes: Any) -> dict[str, Any]:
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


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write rows, or the bytes of lines, in the format that the ending says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    else:
        lines = [one if isinstance(one, bytes) else json.dumps(one, ensure_ascii=False).encode() for one in rows]
        path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def prepare(
    folder: Path, rows: list[Any], *, kind: str = "jsonl", **settings: Any
) -> tuple[list[dict[str, Any]], Prepared]:
    """Return the rows that are made of some, in the order of the output, and the counts."""
    how = {name: settings.pop(name) for name in ("held_out_out", "skip_bad", "workers") if name in settings}
    source, out = write_rows(folder / f"in.{kind}", rows), folder / f"out.{kind}"
    prepared = prepare_gqm(str(source), out, GqmSettings(**{"form": "rl", **settings}), overwrite=True, **how)
    return read_rows(out), prepared
