"""Rows of a ranking data set, and what the jobs make of them."""

from pathlib import Path
from typing import Any

from rewardsmith.data.prepare.gqm import GqmRl, GqmSft
from rewardsmith.jobs import Result
from tests.data.prepare.jobs import read_rows, run_job, write_rows

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


def prepare(
    folder: Path, rows: list[Any], *, form: str = "rl", kind: str = "jsonl", **settings: Any
) -> tuple[list[dict[str, Any]], Result]:
    """Return the rows of the output, in its order, and the result."""
    source, out = write_rows(folder / f"in.{kind}", rows), folder / f"out.{kind}"
    result = run_job((GqmSft if form == "sft" else GqmRl)(input=str(source), out=out, **settings))
    return read_rows(out), result
