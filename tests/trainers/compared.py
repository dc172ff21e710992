"""Worlds of comparisons for the tests of reward models, and a small stage that learns from them."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.trainers.stages import RewardModelStage
from rewardsmith.types import Message, Preference, Prompt, Ranking
from tests.trainers.world import World, new_engine, stage_of


class Fixed:
    """The same few comparisons in each pass."""

    def __init__(self, *items: Preference | Ranking) -> None:
        self.items = items
        if all(isinstance(item, Preference) for item in items):
            self.preferences = self.all
        if all(isinstance(item, Ranking) for item in items):
            self.rankings = self.all

    def prompts(self, seed: int) -> Iterator[Prompt]:
        yield from (item.prompt for item in self.items)

    def all(self, seed: int) -> Iterator[Any]:
        yield from self.items


class Letters:
    """Of two words the one with more a's is better; of several, their number is the score.

    Args:
        items: how many; None without end.
        salt: another one, another world.
    """

    def __init__(self, items: int | None = None, salt: int = 0) -> None:
        self.items = items
        self.salt = salt

    def prompts(self, seed: int) -> Iterator[Prompt]:
        yield from (item.prompt for item in self.rankings(seed))

    def rankings(self, seed: int) -> Iterator[Ranking]:
        rng = random.Random(f"{seed} {self.salt}")
        number = 0
        while self.items is None or number < self.items:
            words = ["".join(rng.choice("ab ") for _ in range(rng.randint(4, 10))) for _ in range(4)]
            prompt = question(number, rng.choice(["Say a!", "More?", "Go on."]))
            yield Ranking(prompt, words, [word.count("a") for word in words])
            number += 1

    def preferences(self, seed: int) -> Iterator[Preference]:
        for ranking in self.rankings(seed):
            (one, other, *_), (first, second, *_) = ranking.candidates, ranking.scores
            if first == second:
                yield Preference(ranking.prompt, one, other, tied=True)
            elif first > second:
                yield Preference(ranking.prompt, one, other, margin=first - second)
            else:
                yield Preference(ranking.prompt, other, one, margin=second - first)


def question(number: int, text: str = "1+1?", *, source: str = "") -> Prompt:
    return Prompt(f"p{number}", [Message("user", text)], source=source)


def pairs(*texts: tuple[str, str], margins: Sequence[float] = ()) -> list[Preference]:
    """Return preferences of the first over the second text, all to one question."""
    given = [*margins, *[0.0] * len(texts)]
    return [
        Preference(question(i), one, other, margin=m)
        for i, ((one, other), m) in enumerate(zip(texts, given, strict=False))
    ]


def reward_model_stage(**changes: Any) -> RewardModelStage:
    """Return a small reward_model stage on the world's `critic`; keyword arguments change it, None takes one away."""
    return stage_of("reward_model", "critic", {"steps": 4, "batch_size": 4} | changes)


THREE = pairs(("2", "3"), ("1+1=2;#2", "two"), ("", "I do not know."), margins=[1.0, 0.25, 2.0])


def world(folder: Path, *items: Preference | Ranking, held_out: Any = None, **engine: Any) -> World:
    made = World(folder, sources={"train": Fixed(*items), "held_out": held_out or Fixed(*items)})
    if engine:
        made._engines["critic"] = new_engine("critic", **engine)
    return made


def rewards_by_hand(engine: EmbeddedEngine, answers: list[str], text: str = "1+1?") -> Tensor:
    """Return the output of transformers' own forward pass at the last token of each conversation, one by one."""
    engine.model.set_attn_implementation("eager")
    found = []
    for answer in answers:
        conversation = f"<|user|>{text}<|assistant|>{answer}<|eos|>"
        found.append(engine.model(input_ids=torch.tensor([engine.tokenizer.encode(conversation)])).logits[0, 0])
    return torch.stack(found)
