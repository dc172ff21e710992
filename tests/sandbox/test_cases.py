"""What crosses the border between a program and its judge, and how outputs are compared."""

import json
from collections import deque
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rewardsmith.sandbox import BrokenTestsError
from rewardsmith.sandbox.cases import OutputComparison, names_used, read_tests
from rewardsmith.sandbox.values import DEPTH, MalformedValue, decode, encode, same

numbers = st.integers() | st.floats(allow_nan=False) | st.booleans()
keys = st.none() | numbers | st.text() | st.binary()
built_in = st.recursive(
    keys | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.sets(keys)
        | st.frozensets(keys)
        | st.dictionaries(keys, inner)
    ),
    max_leaves=20,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def kinds(value: Any) -> Any:
    """Return a value with the types of all that it holds, which `==` does not compare."""
    if isinstance(value, dict):
        return dict, sorted(((repr(k), kinds(v)) for k, v in value.items()), key=str)
    if isinstance(value, list | tuple | deque):
        return type(value), [kinds(v) for v in value]
    return type(value), sorted(map(repr, value)) if isinstance(value, set | frozenset) else repr(value)


def never(value: object) -> Any:
    raise AssertionError(value)


def across(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, never))), never)


@given(built_in)
def test_built_in_values_arrive_as_they_are(value: Any) -> None:
    assert kinds(across(value)) == kinds(value)


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_subclasses_arrive_as_the_built_in_type() -> None:
    assert "Liar" not in repr(kinds(across([Liar(3), {"a": Liar(3)}])))
    assert across(Liar(3)) != 4


def test_what_is_no_data_stays() -> None:
    kept: list[Any] = []

    def keep(value: Any) -> list[Any]:
        kept.append(value)
        return ["o", len(kept) - 1]

    assert encode([len, 1], keep) == ["l", [["o", 0], 1]]
    assert decode(["l", [["o", 0], 1]], kept.__getitem__) == [len, 1]
    endless: list[Any] = []
    endless.append(endless)
    deep = encode(endless, keep)
    assert json.dumps(deep).count("[") == 2 * DEPTH + 1
    assert decode(deep, kept.__getitem__)
    with pytest.raises(MalformedValue):
        decode(["l", [deep]], kept.__getitem__)


@given(
    json_values | st.lists(st.sampled_from([*"iltsfqdrcbBno", "decimal.Decimal", "datetime.timedelta"]) | json_values)
)
@example(["c", []])
def test_malformed_values_are_called_so(data: Any) -> None:
    with suppress(MalformedValue):
        decode(data, lambda number: number)


@pytest.mark.parametrize(
    ("got", "expected", "tokens", "lines"),
    [
        ("1\n", "1", True, True), ("1 \n2\n\n", "1\n2", True, True), ("1\r\n2\r\n", "1\n2\n", True, True),
        ("1\n2", "1 2", True, False), ("1  2", "1 2", True, False), (" 1", "1", True, False),
        ("1\n\n2", "1\n2", True, False), ("", "", True, True), ("", "1", False, False), ("1", "", False, False),
        ("12", "1 2", False, False), ("1.0", "1", False, False), ("YES", "Yes", False, False),
        ("1 2 3", "1 2", False, False),
    ],
)  # fmt: skip
def test_printed_outputs(got: str, expected: str, tokens: bool, lines: bool) -> None:
    assert OutputComparison("tokens").same_output(got.encode(), expected) is tokens
    assert OutputComparison("lines").same_output(got.encode(), expected) is lines


@pytest.mark.parametrize("whitespace", ["tokens", "lines"])
def test_a_tolerance_for_numbers(whitespace: Any) -> None:
    near = OutputComparison(whitespace, tolerance=1e-6)
    close = [("0.3333333", "0.3333334"), ("1000000.5", "1000000"), ("-1e-7", "0"), ("a 1.0", "a 1"), ("nan", "nan")]
    for got, expected in close:
        assert near.same_output(got.encode(), expected)
    far = [("0.333", "0.334"), ("b 1.0", "a 1"), ("inf", "1"), ("1_0", "10"), ("1 1", "1"), ("1e9999", "1")]
    for got, expected in [*far, ("9" * 5000, "1")]:
        assert not near.same_output(got.encode(), expected)


@given(st.lists(st.text(st.characters(exclude_categories=("Z", "C")), min_size=1), min_size=1), st.data())
def test_white_space_between_words_does_not_matter(words: list[str], data: st.DataObject) -> None:
    spaces = [data.draw(st.text(" \t\n\r", min_size=1)) for _ in words]
    written = "".join(word + space for word, space in zip(words, spaces, strict=True))
    assert OutputComparison().same_output(written.encode(), " ".join(words))
    assert not OutputComparison().same_output(written.encode(), " ".join([*words, "x"]))


def returned(value: Any) -> Any:
    """Return a value of a program as the tester has it: what is no data stays in the program's process."""
    return decode(json.loads(json.dumps(encode(value, lambda _: ["o", 0]))), lambda _: object())


@pytest.mark.parametrize(
    ("got", "expected", "equal"),
    [
        (3, 3, True), (3.0, 3, True), (True, 1, True), ("3", 3, False), (3, "3", False), (None, None, True),
        (None, 0, False), (0, None, False), (2**80, 2**80, True), (2**80, 2**80 + 1, False),
        ((1, [2, (3,)]), [1, [2, [3]]], True), ([1, 2], [2, 1], False), ([1], [1, 1], False), ({1, 2}, [1, 2], False),
        ({"a": [1]}, {"a": [1]}, True), ({1: 2}, {"1": 2}, True), ({1: 2, "1": 2}, {"1": 2}, False), ({}, {}, True),
        ({}, [], False), ([], {}, False), (float("inf"), 1e308, False), (float("nan"), 0, False),
        (0.1 + 0.2, 0.3, False), (object(), 3, False), ([object()], [3], False), ({(1,): 2}, {"": 2}, False),
    ],
)  # fmt: skip
def test_returned_values(got: Any, expected: Any, equal: bool) -> None:
    assert same(returned(got), expected, 0.0) is equal


def test_returned_values_within_a_tolerance() -> None:
    assert same([0.1 + 0.2, {"a": 1}], [0.3, {"a": 1.0000001}], 1e-6)
    assert not same([0.31], [0.3], 1e-6)
    assert not same(float("nan"), 0, 1e-6)


@given(json_values)
def test_a_json_value_equals_itself_alone(value: Any) -> None:
    assert same(returned(value), value, 0.0)
    assert not same([value], value, 0.0)
    assert not same({"other": value}, value, 0.0)


@pytest.mark.parametrize(
    ("sources", "setup", "names"),
    [
        (["assert f(1) == 2"], "", {"f"}), (["assert abs(f(1) - g(2)) < 1e-6"], "", {"f", "g"}),
        (["import math\nassert f(1) == math.pi"], "", {"f"}), (["assert f(1) == math.pi"], "import math", {"f"}),
        (["assert f(root) == 1"], "root = Node(1)", {"f", "Node"}),
        (["x = f(1)\nassert all(y for y in x)"], "", {"f"}),
        (["try: f(1)\nexcept ValueError as e: print(e)"], "", {"f"}),
        (["assert sum(1, 2) == 3", "assert sum(2, 2) == abs(4)"], "", {"sum"}),
        (["assert set(f(1)) == set([1])"], "", {"f"}), (["assert f(1) == math.pi"], "", {"f"}),
        (["assert sum(1, 2) == math.floor(3.5)"], "", {"sum"}), (["assert statistics([1]) == 1"], "", {"statistics"}),
    ],
)  # fmt: skip
def test_the_names_that_tests_take_from_a_program(sources: list[str], setup: str, names: set[str]) -> None:
    assert names_used(sources, setup)[0] == names


def test_of_a_program_with_an_entry_point_nothing_else_is_taken() -> None:
    test = "def check(c):\n    assert abs(c(1) - math.pi) < helper(2)"
    assert names_used([test], "", "def helper(x): return x", "f") == ({"f"}, {"math"})


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        (["assert 1"], "nothing that a program could define"),
        (["assert sum([1]) == abs(1)"], "abs and sum"),
        (["assert all(x > 0 for x in [1])"], "pass the program a generator"),
        (["assert sum([1], key=lambda x: x) == 1"], "pass the program a function"),
        ({"test": "def check(c):\n    assert c(lambda: 1)", "entry_point": "f"}, "pass the program a function"),
        ({"test": "def check(c):\n    assert g(c(1))", "entry_point": "f"}, "'g'"),
    ],
)
def test_tests_from_which_nobody_can_tell_what_the_program_must_define_are_broken(tests: Any, words: str) -> None:
    with pytest.raises(BrokenTestsError, match=words):
        read_tests(tests)
