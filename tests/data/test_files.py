"""Data files: the schema, the order of the rows, and which files a path means."""

import functools
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Demonstration, Message, Prompt
from rewardsmith.config import settings_of
from rewardsmith.data import Jsonl, Parquet
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


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([("user", "?")], [("system", "S"), ("user", "?")]),
        ([("system", "old"), ("user", "?")], [("system", "S"), ("user", "?")]),
        ([("user", "?"), ("system", "late")], [("system", "S"), ("user", "?"), ("system", "late")]),
        ([("oracle", "any role will do")], [("system", "S"), ("oracle", "any role will do")]),
    ],
)
def test_the_system_message(jsonl: Callable[..., Jsonl], messages: list, expected: list) -> None:
    row = {"prompt": [{"role": role, "content": content} for role, content in messages]}
    (prompt,) = jsonl(row, system="S").prompts(0)
    assert [(m.role, m.content) for m in prompt.messages] == expected
    (prompt,) = jsonl(row).prompts(0)
    assert [(m.role, m.content) for m in prompt.messages] == messages


@pytest.mark.parametrize(
    ("row", "settings", "expected"),
    [
        ({"id": "a"}, {}, "a"),
        ({"id": 3, "extra_info": {"index": 1}}, {}, "3"),
        ({"id": None, "extra_info": {"index": 1, "split": "test"}}, {}, "train-test-1"),
        ({"data_source": "s", "extra_info": {"index": "u-1"}}, {}, "s-u-1"),
        ({"data_source": "s", "extra_info": {"index": 4}}, {"source": "t"}, "t-4"),
        ({"data_source": "s", "extra_info": {"index": True}}, {}, "train-1"),
        ({"extra_info": {"split": "test"}}, {}, "train-1"),
        ({"id": "a", "extra_info": {"index": 1}}, {"id_column": ""}, "train-1"),
    ],
)
def test_ids(jsonl: Callable[..., Jsonl], row: dict, settings: dict, expected: str) -> None:
    (prompt,) = jsonl({"prompt": "?", **row}, **settings).prompts(0)
    assert prompt.id == expected


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_do_no_harm(jsonl: Callable[..., Jsonl]) -> None:
    source = jsonl(b'\xef\xbb\xbf{"prompt": "a"}\r', b"", b"  \r", '{"prompt": "ö"}'.encode() + b"\r")
    source.check()
    expected = {"train-1": "a", "train-4": "ö"}  # named by the line, as messages do
    assert {p.id: p.messages[0].content for p in source.prompts(5)} == expected


# ---- demonstrations -----------------------------------------------------------------------------------------------


@BOTH
def test_demonstrations_from_messages(kind: type, tmp_path: Path) -> None:
    chat = [{"role": role, "content": text} for role, text in [("user", "a"), ("assistant", "b"), ("user", "c")]]
    row = {"messages": [*chat, {"role": "assistant", "content": "d"}]}
    source = kind(path=str(write(kind, tmp_path, [row])), system="S")
    source.check(of="demonstrations")
    asked = [Message("system", "S"), Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert list(source.demonstrations(0)) == [Demonstration(Prompt("train-1", asked), "d")]
    assert list(source.prompts(0)) == [Prompt("train-1", asked)]


# ---- order --------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.none() | st.integers(-(2**53), 2**53)
uniform_rows = st.lists(
    st.fixed_dictionaries(
        {
            "data_source": texts,
            "prompt": st.lists(
                st.fixed_dictionaries({"role": texts.filter(bool), "content": texts}), min_size=1, max_size=3
            ),
            "reward_model": st.fixed_dictionaries({"style": texts, "ground_truth": numbers}),
            "extra_info": st.fixed_dictionaries({"split": texts, "score": st.floats(allow_nan=False, width=32)}),
            "tags": st.lists(texts, max_size=3),
        }
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(uniform_rows.filter(lambda rows: all(abs(r["extra_info"]["score"]) < 1e30 for r in rows)))
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
    assert in_order == [f"openai/gsm8k-train-{i}" for i in range(2 * count)]
    assert sorted(shuffled) == sorted(in_order)
    assert shuffled == again


@BOTH
@pytest.mark.parametrize("limit", [1, 3, 4, 11, 100])
def test_a_limit_takes_the_first_rows(kind: type, limit: int, tmp_path: Path) -> None:
    paths = [
        str(write(kind, tmp_path, [gsm8k(i) for i in range(5)])),
        str(write(kind, tmp_path, [gsm8k(i) for i in range(5, 10)], "b")),
    ]
    for shuffle in (True, False):
        ids = {p.info["extra_info"]["index"] for p in kind(path=paths, limit=limit, shuffle=shuffle).prompts(1)}
        assert ids == set(range(min(limit, 10)))


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
