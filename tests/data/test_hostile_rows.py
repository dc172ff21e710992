"""Whatever a row holds, it is a noun or a `RowError` of one printable line, and never another exception."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.data.row_items import GradedRows, PreferenceRows, RankingRows
from rewardsmith.data.rows import DEFAULT_COLUMNS, Columns, Layout, RowError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["A > B", "A = B", "user", "assistant", "\x1b[2J", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=3)
        | st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": inner}), max_size=3
        )
    ),
    max_leaves=6,
)
NAMES = sorted(
    {"prompt", "messages", "response", "id", "data_source", *(n for names in DEFAULT_COLUMNS.values() for n in names)}
)
ROWS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8)
READERS = [PreferenceRows(Layout(), Columns()), RankingRows(Layout(), Columns()), GradedRows(Layout(), Columns(), 10.0)]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: type(reader).__name__)
@given(row=ROWS)
def test_any_row_is_read_or_refused(reader: Any, row: dict[str, Any]) -> None:
    message = ""
    try:
        reader.read(row, "file", 1)
    except RowError as error:
        message = str(error)
    assert message.isprintable()
