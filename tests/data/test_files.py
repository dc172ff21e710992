"""Data files: the schema, the order of the rows, which files a path means, and what is wrong with hostile ones."""

import datetime
import functools
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Demonstration, Message, Prompt, UserError
from rewardsmith.config import settings_of
from rewardsmith.data import Jsonl, Parquet, readers
from rewardsmith.data.row_items import GradedRows, PreferenceRows, RankingRows
from rewardsmith.data.rows import DEFAULT_COLUMNS, Columns, Layout, RowError
from rewardsmith.recipe import parse_recipe
from tests.data.rows import BOTH, gsm8k, write, write_lines, wrong


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Jsonl]:
    return functools.partial(write_lines, tmp_path)


# ---- the schema ---------------------------------------------------------------------------------------------------


@BOTH
def test_a_row_of_verl_becomes_a_prompt(kind: type, tmp_path: Path) -> None:
    source = kind(path=str(write(kind, tmp_path, [gsm8k(0)])))
    source.check()
    assert list(source.prompts(seed=0)) == [
        Prompt(
            "openai/gsm8k-train-0",
            [Message("user", "What is 0 + 1?")],
            source="openai/gsm8k",
            answer="1",
            info={"ability": "math", "reward_model": {"style": "rule"}, "extra_info": {"split": "train", "index": 0}},
        )
    ]


def test_the_system_message(jsonl: Callable[..., Jsonl]) -> None:
    for text in ("Uq", "Sold Uq", "Oany-role Slate"):
        names = {"S": "system", "U": "user", "O": "oracle"}
        chat = [{"role": names[word[0]], "content": word[1:]} for word in text.split()]
        (kept,), (replaced,) = jsonl({"prompt": chat}).prompts(0), jsonl({"prompt": chat}, system="new").prompts(0)
        rest = kept.messages[1:] if text[0] == "S" else kept.messages
        assert [{"role": m.role, "content": m.content} for m in kept.messages] == chat
        assert replaced.messages == (Message("system", "new"), *rest)


def test_ids(jsonl: Callable[..., Jsonl]) -> None:
    for row, changes, expected in [
        ({"id": "a"}, {}, "a"),
        ({"id": 3, "extra_info": {"index": 1}}, {}, "3"),
        ({"id": None, "extra_info": {"index": 1, "split": "test"}}, {}, "train-test-1"),
        ({"data_source": "s", "extra_info": {"index": "u-1"}}, {}, "s-u-1"),
        ({"data_source": "s", "extra_info": {"index": 4}}, {"source": "t"}, "t-4"),
        ({"data_source": "s", "extra_info": {"index": True}}, {}, "train-1"),
        ({"id": "a", "extra_info": {"index": 1}}, {"id_column": ""}, "train-1"),
    ]:
        (prompt,) = jsonl({"prompt": "?", **row}, **changes).prompts(0)
        assert prompt.id == expected


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_do_no_harm(jsonl: Callable[..., Jsonl]) -> None:
    source = jsonl(b'\xef\xbb\xbf{"prompt": "a"}\r', b"", b"  \r", '{"prompt": "ö"}'.encode() + b"\r")
    source.check()
    expected = {"train-1": "a", "train-4": "ö"}  # named by the line, as messages do
    assert {p.id: p.messages[0].content for p in source.prompts(5)} == expected


# ---- demonstrations -----------------------------------------------------------------------------------------------


@BOTH
def test_demonstrations_from_messages(kind: type, tmp_path: Path) -> None:
    def source(row: dict[str, Any]) -> Any:
        return kind(path=str(write(kind, tmp_path, [row])), system="S")

    chat = [{"role": role, "content": text} for role, text in [("user", "a"), ("assistant", "b"), ("user", "c")]]
    messages = [Message("system", "S"), Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    row = {"messages": [*chat, {"role": "assistant", "content": "d"}]}
    source(row).check(of="demonstrations")
    assert list(source(row).demonstrations(0)) == [Demonstration(Prompt("train-1", messages), "d")]
    assert list(source(row).prompts(0)) == [Prompt("train-1", messages)]
    (demonstration,) = source({**row, "prompt": "a"}).demonstrations(0)  # a part of the conversation, as in UltraChat
    assert list(demonstration.prompt.messages) == messages
    assert "messages has no answer to imitate" in wrong(source({"messages": chat}), of="demonstrations")
    assert "there is no response" in wrong(source(gsm8k(0)), of="demonstrations")


# ---- order --------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=20)
messages = st.fixed_dictionaries({"role": texts.filter(bool), "content": texts})
truths = st.fixed_dictionaries({"style": texts, "ground_truth": st.none() | st.integers(-(2**53), 2**53)})
extras = st.fixed_dictionaries({"split": texts, "score": st.floats(-(2.0**99), 2.0**99, width=32)})
prompts = st.lists(messages, min_size=1, max_size=3)
tags = st.lists(texts, max_size=3)
columns = {"data_source": texts, "prompt": prompts, "reward_model": truths, "extra_info": extras, "tags": tags}


@settings(max_examples=40)
@given(st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=12))
def test_json_lines_and_parquet_give_the_same_prompts(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines, table = (
            list(kind(path=str(write(kind, Path(folder), rows)), shuffle=False).prompts(0)) for kind in (Jsonl, Parquet)
        )
    assert lines == table
    for row, prompt in zip(rows, lines, strict=True):
        assert [{"role": m.role, "content": m.content} for m in prompt.messages] == row["prompt"]
        assert (prompt.source, prompt.answer) == (row["data_source"], row["reward_model"]["ground_truth"])
        assert prompt.info["extra_info"] == row["extra_info"]


@BOTH
@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_pass_has_every_row_once_in_an_order_of_the_seed(kind: type, count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            str(write(kind, Path(folder), [gsm8k(i) for i in range(count)])),
            str(write(kind, Path(folder), [gsm8k(i) for i in range(count, 2 * count)], "more")),
        ]
        in_order = [p.id for p in kind(path=paths, shuffle=False).prompts(seed)]
        shuffled = [p.id for p in kind(path=paths).prompts(seed)]
        again = [p.id for p in kind(path=paths).prompts(seed)]
        limited = [[p.id for p in kind(path=paths, limit=5, shuffle=shuffle).prompts(1)] for shuffle in (True, False)]
    assert in_order == [f"openai/gsm8k-train-{i}" for i in range(2 * count)]
    assert sorted(shuffled) == sorted(in_order)
    assert shuffled == again
    assert [sorted(ids) for ids in limited] == [sorted(in_order[:5])] * 2


# ---- which files --------------------------------------------------------------------------------------------------


@BOTH
def test_a_file_a_folder_a_pattern_and_a_list(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    suffix = write(kind, tmp_path / "in", [{"prompt": "?"}], "b").suffix
    write(kind, tmp_path / "in", [{"prompt": "?"}], "a")
    (tmp_path / "in" / "notes.txt").write_text("not a row")
    (tmp_path / "in" / f".hidden{suffix}").write_text("not a row")

    def ids(path: str | list[str]) -> list[str]:
        return [p.id for p in kind(path=path, shuffle=False).prompts(0)]

    assert ids(f"in/a{suffix}") == ["a-1"]
    assert ids("in") == ids(f"in/*{suffix}") == ids(f"**/*{suffix}") == ["a-1", "b-1"]
    assert ids([f"in/b{suffix}", f"in/a{suffix}"]) == ["b-1", "a-1"]


# ---- in a recipe --------------------------------------------------------------------------------------------------


def test_pyarrow_is_loaded_only_for_parquet() -> None:
    code = "import sys, rewardsmith.data; sys.exit('pyarrow' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_document_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    recipe, *_ = re.findall(r"^```toml\n(.*?)^```", page, flags=re.S | re.M)
    parse_recipe(tomllib.loads(recipe))
    for setting in settings_of(Jsonl).model_fields:
        assert f"| `{setting}` |" in page
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    lines = [{"prompt": "?"}] * 20
    lines[3] = {"promt": "?"}
    lines[16] = {"prompt": [{"role": "user", "content": 5}]}
    source = write_lines(Path("data"), *lines)
    assert f"error: {wrong(source)}\n" in page


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
    for path in ("no.jsonl", "*.ndjson", str(tmp_path / "no.jsonl")):
        assert wrong(Jsonl(path=path, made_by="make data")).endswith(". How to make it: make data")


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
        refused = wrong(source)
        assert refused.startswith(f"1 of 2 rows cannot be used:\n  {source.path}, line 3\n    ")
        assert message in refused
        assert len(refused) < 1_000
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
    refused = wrong(jsonl({"prompt": "?", "answer": 1}, answer_column="anser"))
    assert refused == 'answer_column is "anser", but no row has a value there. Did you mean "answer"?'


@BOTH
def test_two_rows_of_one_id_are_both_named(kind: type, tmp_path: Path) -> None:
    path = write(kind, tmp_path, [gsm8k(0), gsm8k(1), gsm8k(0)])
    unit = "row" if kind is Parquet else "line"
    refused = wrong(kind(path=str(path)))
    assert f'{unit} 3\n    the id "openai/gsm8k-train-0" is also that of {path}, {unit} 1: make' in refused
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
    refused = wrong(jsonl(*rows))
    assert refused.startswith("6 of 6 rows")
    assert len(refused) < 6_000
    refused.encode("utf-8")


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
    refused = wrong(Parquet(path=str(path)))
    assert refused.startswith(f"1 of 1 rows cannot be used:\n  {path}, row 1\n    ")
    assert message in refused


# ---- hostile rows ---------------------------------------------------------------------------------------------------

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


@given(row=ROWS)
def test_any_row_is_read_or_refused_in_one_printable_line(row: dict[str, Any]) -> None:
    for reader in READERS:
        message = ""
        try:
            reader.read(row, "file", 1)
        except RowError as error:
            message = str(error)
        assert message.isprintable()
