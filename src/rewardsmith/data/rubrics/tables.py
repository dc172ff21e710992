"""The types of the columns of a Parquet file, from all its rows: the first ones may lack what later ones have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError

BATCH = 256
"""Rows that are looked at together."""


def schema_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return the `pyarrow.Schema` that holds all rows; what is null in some of them has the type of the others.

    Args:
        rows: at least one; they are not kept in memory.

    Raises:
        UserError: one column has values of different types.
    """
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 JSON lines do without it

    try:
        schema = pa.schema([])
        for batch in _batches(rows):
            found = pa.Table.from_pylist(batch).schema
            schema = pa.unify_schemas([schema, found], promote_options="permissive")
    except (pa.ArrowException, OverflowError, TypeError, UnicodeError) as error:
        what = printable(str(error), 300)
        raise UserError(
            f"the rows do not fit one table: {what}. JSON lines can hold them: let OUT end in .jsonl"
        ) from None
    return schema


def _batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    left = iter(rows)
    while batch := list(islice(left, BATCH)):
        yield batch


__all__ = ["schema_of"]
