"""Stories about chains of operations: names, things, events, facts that do not matter, and numbers in words."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rewardsmith.data.word_problems.chains import parse_chain

_NAMES = {
    "She": ["Mia", "Anna", "Lucy", "Olga", "Nora", "Emma", "Zoe", "Ruth", "Clara", "Ivy", "Rosa", "Helen"],
    "He": ["Ben", "Tom", "Jack", "Omar", "Paul", "Leo", "Max", "Sam", "Hugo", "Ivan", "Karl", "Dan"],
}
_THINGS = [
    "apples",
    "pears",
    "shells",
    "marbles",
    "stamps",
    "books",
    "coins",
    "cards",
    "pencils",
    "stickers",
    "buttons",
    "eggs",
    "stones",
    "cookies",
    "plums",
    "nuts",
    "beads",
    "flowers",
    "photos",
    "tickets",
    "candles",
    "lemons",
    "toys",
    "ropes",
]
_OPENINGS = (
    "{name} has {n} {things}.",
    "{name} starts the day with {n} {things}.",
    "There are {n} {things} in {name}'s bag.",
    "{name} keeps {n} {things} in a box.",
    "On Monday {name} owns {n} {things}.",
)
_QUESTIONS = (
    "How many {things} has {name} now?",
    "How many {things} does {name} have in the end?",
    "How many {things} are left with {name}?",
    "What is the number of {things} that {name} has at last?",
)
_FACTS = (
    "{friend} is {n} years old.",
    "The walk home takes {n} minutes.",
    "{friend} lives in house number {n}.",
    "It is a sunny day.",
    "{friend} likes {things} too.",
    "A bag costs {n} dollars.",
    "The next bus comes in {n} minutes.",
    "The river in town is {n} meters wide.",
    "{friend} has a class with {n} children.",
)
"""At least as many as a chain has operations: none occurs twice in a story, so that none contradicts another."""

_EVENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "+": (
        ("{They} buys {n} more {things}.", "{They} buys {d}"),
        ("{They} finds {n} more {things} at home.", "{They} finds {d}"),
        ("{friend} gives {name} {n} {things}.", "{friend} gives {d}"),
        ("Then {they} gets {n} {things} from {friend}.", "{They} gets {d}"),
        ("In the evening {n} {things} come by mail.", "{d} come by mail"),
        ("{They} wins {n} {things} in a game.", "{They} wins {d}"),
    ),
    "-": (
        ("{They} gives {n} {things} to {friend}.", "{They} gives away {d}"),
        ("{They} loses {n} {things} on the way.", "{They} loses {d}"),
        ("Then {they} sells {n} of the {things}.", "{They} sells {d}"),
        ("{friend} takes {n} of the {things}.", "{friend} takes {d}"),
        ("A dog runs off with {n} of the {things}.", "The dog takes {d}"),
        ("The school gets {n} of the {things}.", "The school gets {d}"),
    ),
    "*": (
        ("After a good week {they} has {n} times as many {things} as before.", "{d} times as many"),
        ("A machine turns each of the {things} into {n}.", "Each becomes {d}"),
        ("Then {they} swaps each of the {things} for {n} new ones.", "Each is swapped for {d}"),
        ("{friend} makes the heap of {things} {n} times as large.", "{d} times as large"),
    ),
    "/": (
        ("{They} puts the {things} into {n} equal boxes and keeps one box.", "One of {d} boxes"),
        ("{They} shares the {things} equally among {n} people and keeps one share.", "One of {d} shares"),
        ("Only one in {n} of the {things} is good, and {they} keeps these.", "One in {d} is good"),
        ("{They} makes {n} equal heaps of the {things} and keeps one heap.", "One of {d} heaps"),
    ),
}
"""For each sign what happens in a story, and what a solution calls it."""

_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


@dataclass(frozen=True)
class Story:
    """A chain in words: the text, and what a solution calls each of the operations."""

    text: str
    events: tuple[str, ...]


def tell(chain: str, rng: random.Random, *, facts: float, number_words: float) -> Story:
    """Return a story about a chain; the chances are of a fact before an event, and of a word for a small number."""
    start, operations = parse_chain(chain)
    who, other = rng.sample(list(_NAMES), 2)  # one of each, so that "she" is clear
    name, friend = rng.choice(_NAMES[who]), rng.choice(_NAMES[other])
    words = {"name": name, "friend": friend, "They": who, "they": who.lower(), "things": rng.choice(_THINGS)}

    def number(value: int) -> str:
        return _WORDS[value] if value < len(_WORDS) and rng.random() < number_words else str(value)

    sentences, events = [rng.choice(_OPENINGS).format(**words, n=number(start))], []
    facts_left = rng.sample(_FACTS, len(_FACTS))
    for operation in operations:
        if rng.random() < facts:
            sentences.append(facts_left.pop().format(**words, n=number(rng.randint(2, 60))))
        happens, called = rng.choice(_EVENTS[operation.sign])
        sentences.append(happens.format(**words, n=number(operation.number)))
        events.append(called.format(**words, d=operation.number))
    return Story(" ".join([*sentences, rng.choice(_QUESTIONS).format(**words)]), tuple(events))
