"""Imitation: the loss is on the answer alone, long demonstrations are dropped, and a run can go on."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.trainers.sft import SftTrainer
from rewardsmith.types import Demonstration, Prompt
from tests.trainers.world import World, distance, prompt, sft_stage, steps, wait, weights


class Fixed:
    """The same few demonstrations in each pass."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers

    def prompts(self, seed: int) -> Iterator[Prompt]:
        yield from (d.prompt for d in self.demonstrations(seed))

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        yield from (Demonstration(prompt(i, "2+2?"), answer) for i, answer in enumerate(self.answers))


def losses_by_hand(answers: list[str]) -> list[float]:
    """Return -log π of every answer token, the end included, under the untrained model."""
    model, tokenizer = make_tiny("tiny-llama", seed=0)
    found = []
    for answer in answers:
        question = tokenizer.encode("<|user|>2+2?<|assistant|>")
        response = [*tokenizer.encode(answer), tokenizer.eos_token_id]
        logits = model(torch.tensor([question + response])).logits[0, len(question) - 1 : -1]
        found += (-logits.log_softmax(-1)[range(len(response)), response]).tolist()
    return found


def test_the_loss_is_the_mean_over_all_answer_tokens_of_the_batch(tmp_path: Path) -> None:
    answers = ["4", "2+2=4;#4", "four"]
    world = World(tmp_path, sources={"train": Fixed(*answers)})
    (metrics,) = steps(SftTrainer(sft_stage(batch_size=3), world), 1)
    expected = losses_by_hand(answers)
    assert len(expected) == sum(len(a) + 1 for a in answers)
    assert metrics["loss"] == pytest.approx(math.fsum(expected) / len(expected), rel=1e-5)
    assert metrics["tokens/learned"] == len(expected)


def test_the_prompt_does_not_teach(tmp_path: Path) -> None:
    """The gradient is that of the answer's loss, from a plain model; a loss on the prompt would change its length."""
    world = World(tmp_path, sources={"train": Fixed("2+2=4;#4")})
    (metrics,) = steps(SftTrainer(sft_stage(batch_size=1), world), 1)
    model, tokenizer = make_tiny("tiny-llama", seed=0)
    question = tokenizer.encode("<|user|>2+2?<|assistant|>")
    response = [*tokenizer.encode("2+2=4;#4"), tokenizer.eos_token_id]
    tokens = torch.tensor([question + response])
    labels = torch.tensor([[-100] * len(question) + response])
    model(tokens, labels=labels).loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_the_validation_loss_is_the_same_mean_over_other_demonstrations(tmp_path: Path) -> None:
    held_out = ["7", "2+2=5;#5", "22"]
    world = World(tmp_path, sources={"held_out": Fixed(*held_out)})
    validation = {"data": "held_out", "every": 2, "demonstrations": 2}
    trainer = SftTrainer(sft_stage(steps=3, validation=validation), world)
    before = wait(trainer.begin()).metrics
    expected = losses_by_hand(held_out[:2])
    assert before["validation/loss"] == pytest.approx(math.fsum(expected) / len(expected), rel=1e-5)
    assert before["validation/perplexity"] == pytest.approx(math.exp(before["validation/loss"]))
    metrics = steps(trainer, 3, begin=False)
    assert ["validation/loss" in m for m in metrics] == [False, True, True]
    assert trainer.best_by == "-validation/loss"


def test_long_demonstrations_are_dropped_and_counted(tmp_path: Path) -> None:
    world = World(tmp_path, sources={"train": Fixed("4", "2+2=4;#4", "5")})
    limit = len("2+2?") + 2 + len("4") + 1
    (metrics,) = steps(SftTrainer(sft_stage(batch_size=4, max_tokens=limit), world), 1)
    # 4, (long), 5, 4, (long), 5
    assert metrics["dropped"] == 2
    assert metrics["tokens/learned"] == 4 * 2
    both = [*losses_by_hand(["4"]), *losses_by_hand(["5"])]
    assert metrics["loss"] == pytest.approx(math.fsum(both) / 4, rel=1e-5)


def test_a_validation_without_a_short_demonstration_is_an_error(tmp_path: Path) -> None:
    world = World(tmp_path, sources={"held_out": Fixed("4444")})
    trainer = SftTrainer(sft_stage(max_tokens=8, validation={"data": "held_out"}), world)
    with pytest.raises(UserError, match=r"data\.held_out has no demonstration of at most 8 tokens"):
        wait(trainer.begin())


def test_epochs_are_passes_over_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    five = World(tmp_path, sources={"train": Fixed(*"12345")})
    assert SftTrainer(sft_stage(steps=None, epochs=3), five).steps == 4  # of 4 each, for 15
    with pytest.raises(UserError, match=r"data\.train is empty"):
        SftTrainer(sft_stage(steps=None, epochs=1), World(tmp_path, sources={"train": Fixed()}))
    monkeypatch.setattr("rewardsmith.trainers.trainer.MAX_COUNTED", 50)
    with pytest.raises(UserError, match=r"has no end, or more than 50 demonstrations: set steps instead of epochs"):
        SftTrainer(sft_stage(steps=None, epochs=1), World(tmp_path))
    for both in ({"epochs": 1}, {"steps": None}):
        with pytest.raises(RecipeError, match="exactly one of steps and epochs"):
            sft_stage(**both)


def test_a_restored_stage_goes_on_with_the_next_demonstrations(tmp_path: Path) -> None:
    world, again = World(tmp_path), World(tmp_path)
    trainer = SftTrainer(sft_stage(), world)
    steps(trainer, 2)
    state = json.loads(json.dumps(trainer.state()))
    world.engine("policy").save(tmp_path / "saved")
    again.engine("policy").load(tmp_path / "saved")
    resumed = SftTrainer(sft_stage(), again)
    again.engine("policy").load_learner(tmp_path / "saved")
    resumed.restore(state)
    for number in (3, 4):
        one, other = wait(trainer.step(number)).metrics, wait(resumed.step(number)).metrics
        assert one["loss"] == other["loss"]
        assert one["tokens/learned"] == other["tokens/learned"]
    assert distance(weights(world.engine("policy")), weights(again.engine("policy"))) == 0
