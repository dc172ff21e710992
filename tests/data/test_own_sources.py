"""A user's own data source that goes wrong is named, with what it did and what is expected of it."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from rewardsmith.config import Choice
from rewardsmith.data import open_source
from rewardsmith.errors import UserError
from rewardsmith.trainers.trainer import Draws
from rewardsmith.types import Message, Prompt

HERE = "tests.data.test_own_sources"
SOURCE = Choice("data source", "rewardsmith.data:SOURCES", methods=("prompts",))


def prompt(number: int) -> Prompt:
    return Prompt(f"p{number}", [Message("user", "1+1?")])


class Texts:
    def prompts(self, seed: int) -> Iterator[Any]:
        yield prompt(0)
        yield "1+1?"


class Nothing:
    def prompts(self, seed: int) -> None:
        return None


class Raising:
    def prompts(self, seed: int) -> Iterator[Prompt]:
        yield prompt(0)
        raise KeyError("no such row")


class Seedless:
    def prompts(self) -> Iterator[Prompt]:
        return iter(())


class Demonstrated:
    def prompts(self, seed: int) -> Iterator[Prompt]:
        yield prompt(0)

    def demonstrations(self, seed: int) -> Iterator[Any]:
        yield prompt(0), "2"


class Listed:
    def prompts(self, seed: int) -> list[Prompt]:
        return [prompt(i) for i in range(5)]


def opened(name: str) -> Any:
    return open_source("train", SOURCE.choose(f"{HERE}:{name}"))


@pytest.mark.parametrize(
    ("name", "of", "words"),
    [
        ("Texts", "prompts", ["a str", "rewardsmith.Prompt"]),
        ("Nothing", "prompts", ["NoneType", "not iterable"]),
        ("Raising", "prompts", ["KeyError: 'no such row' (test_own_sources.py:"]),
        ("Seedless", "prompts", ["TypeError", "positional argument"]),
        ("Demonstrated", "demonstrations", ["a tuple", "rewardsmith.Demonstration"]),
    ],
)
def test_a_source_that_goes_wrong_is_named(name: str, of: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        list(islice(getattr(opened(name), of)(0), 10))
    for word in ["data.train", f"{HERE}:{name}", f"{of}(seed)", *words]:
        assert word in str(caught.value)


def test_a_list_is_passed_over_from_its_start_to_its_end() -> None:
    draws = Draws(opened("Listed").prompts, 0, "train")
    assert [prompt.id for prompt in draws.take(3) + draws.take(3)] == ["p0", "p1", "p2", "p3", "p4", "p0"]


def test_a_source_has_what_its_class_has_and_no_more() -> None:
    assert hasattr(opened("Demonstrated"), "demonstrations")
    assert not hasattr(opened("Listed"), "demonstrations")
    assert not hasattr(opened("Listed"), "check")
