"""Which systems, segments and averages of MQM tables belong together, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from rewardsmith import UserError
from rewardsmith.data.preferences import Building, Prepared, Translations, annotated, prepare
from rewardsmith.data.preparing import BadRows
from tests.data.mqm_tables import lines, write_annotations, write_averages


def made(folder: Path, given: list[str] | None = None, **how: Any) -> Prepared:
    source = annotated(str(write_annotations(folder, given)), Translations(), **how)
    return prepare(source, folder / "pairs.jsonl", Building(), BadRows(skip=False), overwrite=True)


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"nosuch": "x"}, "--rename nosuch=x: there is no such system in INPUT. There is: a, b, c"),
        ({"a": "x", "b": "x"}, "--rename: a and b would be one system of "),
        ({"a": "b"}, "--rename: a and b would be one system of "),
    ],
)
def test_names_that_would_lose_a_system(rename: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        made(tmp_path, averages=str(write_averages(tmp_path)), rename=rename)
    assert message in str(caught.value)


def test_a_system_that_the_averages_do_not_know(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        made(tmp_path, averages=str(write_averages(tmp_path, {"c": "C-1"})))
    told = "has no scores of c: --rename c=NAME says what it is called there. There is: C-1, a, b"
    assert told in str(caught.value)


def test_systems_may_change_names(tmp_path: Path) -> None:
    names = {"a": "b", "b": "a"}
    prepared = made(tmp_path, averages=str(write_averages(tmp_path, names)), rename=names)
    assert (prepared.facts["averages_agree"], prepared.facts["averages_compared"]) == (6, 6)


def test_averages_do_not_mix_documents(tmp_path: Path) -> None:
    given = [*lines("one"), *lines("two")[1:]]
    with pytest.raises(UserError, match=r"segment 1 of INPUT is in several documents, and .* does not say in which"):
        made(tmp_path, given, averages=str(write_averages(tmp_path)))
    assert made(tmp_path, given).counts["groups"] == 2  # the second document repeats the first


def test_one_system_gives_no_group(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing came of it: there is no group of two answers or more"):
        made(tmp_path, [line for line in lines() if not line.startswith(("b\t", "c\t"))])
