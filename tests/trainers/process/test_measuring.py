"""What the stage that trains a process reward model alone measures and tells: its validation, and failures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.errors import UserError
from rewardsmith.types import Message, Prompt
from tests.trainers.process.made import ProcessWorld, alone, implicit
from tests.trainers.world import wait

VALIDATION = {"data": "held_out", "every": 1, "prompts": 6, "rollouts_per_prompt": 2}
OTHER = {"reference_model": "other"}


class Mixed:
    """Two prompts of 14 tokens for each one of 4, the markers of who speaks included."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        for i in range(1000):
            yield Prompt(f"m{i}", [Message("user", "1+2+3+4+5+6?" if i % 3 else "1?")], answer="")


def world_of(folder: Path, longest: int) -> ProcessWorld:
    """Return a world with prompts of two lengths, and a reference that reads less than the policy."""
    world = ProcessWorld(folder, sources={"held_out": Mixed()})
    world.engine("other").model.config.max_position_embeddings = longest
    return world


def validated(world: ProcessWorld) -> list[str]:
    return [record.scored.group.prompt.id for record in world.records if record.kind == "validation"]


@pytest.mark.parametrize("how", ["reference", "setting"])
def test_prompts_that_are_too_long_are_left_out_of_the_validation_and_counted(how: str, tmp_path: Path) -> None:
    world = world_of(tmp_path, 15 if how == "reference" else 99)
    short = {"max_prompt_tokens": 5} if how == "setting" else {}
    train = {"sampling": {"max_tokens": 6}, **short}
    trainer = alone(world, implicit(**OTHER), validation=VALIDATION, data="held_out", **train)
    metrics = wait(trainer.begin()).metrics
    assert metrics["validation/overlong_prompts"] == 4
    assert validated(world) == ["m0", "m3"]
    again = wait(trainer.step(1))
    assert again.halt is None
    assert again.metrics["validation/overlong_prompts"] == 4


def test_a_validation_without_a_prompt_that_fits_is_refused(tmp_path: Path) -> None:
    trainer = alone(world_of(tmp_path, 9), implicit(**OTHER), validation=VALIDATION)
    said = (
        r"none of the 6 validation prompts of data.held_out has at most 3 tokens: raise max_prompt_tokens, or lower"
        r" sampling.max_tokens"
    )
    with pytest.raises(UserError, match=said):
        wait(trainer.begin())


def test_the_best_step_is_that_of_the_first_part_that_learns(tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        "answer": "tests.trainers.process.made:AnyDigit",
        "fixed": implicit(outcome="answer", model="third", update="none", **OTHER),
        "process": implicit(outcome="answer"),
    }
    world = ProcessWorld(tmp_path, {"third": {"copy_of": "policy"}})
    trainer = alone(world, reward={"type": "sum", "parts": parts}, validation=VALIDATION)
    assert trainer.best_by == "validation/process/accuracy_fresh"
    assert trainer.best_by in wait(trainer.begin()).metrics
