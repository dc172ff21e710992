"""What one is told about data files and rows that are wrong. Files are hostile: no message may break."""

import datetime
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import UserError
from rewardsmith.data import Jsonl, Parquet, readers
from tests.data.rows import BOTH, gsm8k, write, write_lines, wrong


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Jsonl]:
    return functools.partial(write_lines, tmp_path)


# ---- paths ---------------------------------------------------------------------------------------------------------

PATHS: list[tuple[str | list[str], str]] = [
    ("trian.jsonl", 'there is no file "trian.jsonl". Did you mean "train.jsonl"? Relative paths start at the cur'),
    ("no/train.jsonl", 'there is no file "no/train.jsonl". Relative paths start'),
    ("*.ndjson", 'no file matches the pattern "*.ndjson". Relative paths start at'),
    ("", "path is empty"),
    ([], "path is an empty list"),
    ("bare", 'the folder "bare" has no .jsonl or .ndjson file. It has: notes.txt'),
    ("rows.jsonl.gz", '"rows.jsonl.gz" is compressed: unpack it first'),
    ("rows.parquet", 'use type = "parquet"'),
    ("empty.jsonl", '"empty.jsonl" has no rows'),
    ("blank.jsonl", '"blank.jsonl" has no rows'),
    ("a\0b\n", r'there is no file "a\x00b\n"'),
    ("~no-such-user-here/x", "cannot look for"),
]


def test_paths_that_mean_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Jsonl, tmp_path, [{"prompt": "?"}])
    (tmp_path / "bare").mkdir()
    files = {"bare/notes.txt": "", "rows.jsonl.gz": "x", "rows.parquet": "x", "empty.jsonl": "", "blank.jsonl": "\n \n"}
    for name, data in files.items():
        (tmp_path / name).write_text(data)
    for path, message in PATHS:
        assert message in wrong(Jsonl(path=path))
        with pytest.raises(UserError):
            next(Jsonl(path=path).prompts(0))


# ---- bad rows -----------------------------------------------------------------------------------------------------


def user(**message: Any) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": "?"}, message]}


BAD_ROWS: list[tuple[Any, str]] = [
    (b'{"prompt": "?"', "not JSON: Expecting ',' delimiter at character 15"),
    (b'{"prompt": "\xff"}', "not UTF-8 text: byte 12 of the line is 0xff"),
    (b"[", "not JSON: Expecting value at character 2; a file has one object in each line"),
    (b"[1, 2]", "the line holds an array: a row is an object, one in each line"),
    (b'{"prompt": "?", "x": NaN}', "NaN is no JSON: use null for a missing number"),
    (b'{"prompt": "?", "x": ' + b"9" * 5_000 + b"}", "an integer of thousands of digits"),
    (b'{"prompt": "?", "x": ' + b"[" * 100_000, "not usable JSON"),
    (b'{"prompt": "?", "x": ' + b"[" * 80 + b"]" * 80 + b"}", "is nested deeper than 64 levels"),
    (b'{"prompt": "?", "prompt": "!"}', "the key prompt is there twice in one object"),
    (b'{"prompt": "\\ud800"}', "prompt: Message.content has a lone surrogate"),
    (
        {"promt": "?"},
        'there is no prompt and no messages: prompt_column says where a row has its prompt. Did you mean "p',
    ),
    ({"prompt": None}, "prompt is null: prompt_column"),
    ({"prompt": ""}, "prompt is empty: it must be text, or a list of messages"),
    ({"prompt": 5}, "prompt is 5: it must be text, or a list of messages with role and content"),
    ({"prompt": ["?"]}, 'prompt[0] is "?": a message is a table with role and content'),
    (user(role="user"), "prompt[1] is a table of role: a message is a table with role and content"),
    (user(role="", content="?"), "prompt[1]: Message.role is empty"),
    (user(role="user", content=["?"]), "prompt[1].content is a list of 1: it must be text"),
    (user(role="user", content="?", tool_calls=[1]), "prompt[1] is a table of content, role, tool_calls: a message"),
    ({"prompt": "?", "id": ""}, 'id is "": it must be text or a whole number, and not empty; id_column = ""'),
    ({"messages": [{"role": "assistant", "content": "!"}]}, "messages has nothing but the answer"),
    ({"messages": "?", "prompt": None, "data_source": {}}, "data_source is a table: it must be text"),
]


def test_a_bad_row_is_named_with_its_line(jsonl: Callable[..., Jsonl]) -> None:
    for line, message in BAD_ROWS:
        source = jsonl({"prompt": "?"}, b"", line, shuffle=False)
        said = wrong(source)
        assert said.startswith(f"1 of 2 rows cannot be used:\n  {source.path}, line 3\n    ")
        assert message in said
        assert len(said) < 1_000
        prompts = source.prompts(0)
        next(prompts)
        with pytest.raises(UserError) as caught:
            next(prompts)
        assert str(caught.value).startswith(f"{source.path}, line 3: ")


def test_who_names_a_column_means_that_column(jsonl: Callable[..., Jsonl]) -> None:
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    jsonl(row).check(of="demonstrations")
    assert "there is no quest: prompt_column says" in wrong(jsonl(row, prompt_column="quest"))
    assert "there is no reply: response_column" in wrong(jsonl(row, response_column="reply"), of="demonstrations")
    said = wrong(jsonl({"prompt": "?", "answer": 1}, answer_column="anser"))
    assert said == 'answer_column is "anser", but no row has a value there. Did you mean "answer"?'


@BOTH
def test_two_rows_of_one_id_are_both_named(kind: type, tmp_path: Path) -> None:
    path = write(kind, tmp_path, [gsm8k(0), gsm8k(1), gsm8k(0)])
    unit = "row" if kind is Parquet else "line"
    said = wrong(kind(path=str(path)))
    assert f'{unit} 3\n    the id "openai/gsm8k-train-0" is also that of {path}, {unit} 1: make the ids unique' in said
    with pytest.raises(UserError, match="is also that of"):
        list(kind(path=str(path)).prompts(0))
    source = kind(path=str(path), id_column="")
    source.check()
    assert sorted(p.id for p in source.prompts(0)) == ["train-1", "train-2", "train-3"]


def test_hostile_text_cannot_break_a_message(jsonl: Callable[..., Jsonl]) -> None:
    nasty = "\x1b[2J\r\n\u202e\ud800" + "x" * 10_000
    rows = [
        {"prompt": [{"role": "user", "content": "?", nasty: 1}]},
        {nasty: "?"},
        {"prompt": "?", nasty: {nasty: 1}},
        {"prompt": "?", "id": nasty},
        {"prompt": [nasty]},
        {f"{nasty}{i}": i for i in range(3_000)},
    ]
    said = wrong(jsonl(*rows))
    assert said.startswith("6 of 6 rows")
    assert len(said) < 6_000
    said.encode("utf-8")


def test_a_line_of_absurd_size_is_not_read(jsonl: Callable[..., Jsonl], monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.dumps({"prompt": "?"}).encode()
    monkeypatch.setattr(readers, "MAX_LINE", len(row) + 1)
    source = jsonl(row, row)
    source.check()
    assert len(list(source.prompts(0))) == 2
    assert f"line 2: longer than {len(row) + 1} bytes" in wrong(jsonl(row, row + b" " * 10))


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: b'{"prompt": "' + b + b'"}'))
def test_any_bytes_are_rows_or_a_user_error(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        path.write_bytes(data)
        source = Jsonl(path=str(path))
        try:
            source.check()
        except UserError:
            wrong(source)
        else:
            assert list(source.prompts(0))


# ---- bad Parquet --------------------------------------------------------------------------------------------------


def test_parquet_without_rows_or_with_a_column_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    assert f'"{path}" has no rows' in wrong(Parquet(path=str(path)))
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"]), path)
    assert 'has two columns "prompt": rename one' in wrong(Parquet(path=str(path)))


def test_corrupt_parquet(tmp_path: Path) -> None:
    path = write(Parquet, tmp_path, [gsm8k(i) for i in range(5)])
    whole = path.read_bytes()
    for data in (b"", b"{}", whole[:-10], whole[:50] + bytes(300) + whole[350:]):
        path.write_bytes(data)
        assert f'cannot read "{path}" as Parquet: ' in wrong(Parquet(path=str(path)))
    (tmp_path / "x.jsonl").write_text("{}")
    assert 'use type = "jsonl"' in wrong(Parquet(path=str(tmp_path / "x.jsonl")))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([b"\xff\x00"]), "x holds 2 bytes that are no text: leave the column out"),
        (pa.array([[{"a": b"\xff"}]]), "x[0].a holds 1 bytes that are no text"),
        (pa.array([float("nan")]), "x is nan: JSON has no such number"),
        (pa.array([datetime.timedelta(1)]), "x is of type timedelta: only JSON values are kept"),
        (pa.array([2**60], pa.timestamp("ms")), "x cannot be read: "),
        (pa.array([b"\xff"]).view(pa.string()), "x cannot be read: 'utf-8' codec can't decode"),
    ],
)
def test_parquet_values_that_json_does_not_have(column: pa.Array, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"prompt": ["?"], "x": column}), path)
    said = wrong(Parquet(path=str(path)))
    assert said.startswith(f"1 of 1 rows cannot be used:\n  {path}, row 1\n    ")
    assert message in said
