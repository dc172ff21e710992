"""What a reward model learns from: every item is taken, and what does not fit is counted, or told."""

from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.trainers.reward_model import RewardModelTrainer
from rewardsmith.types import Message, Preference, Prompt
from tests.trainers.compared import asked, pairs, reward_model_stage, rewards_by_hand, world
from tests.trainers.world import new_engine, steps


def test_long_comparisons_are_left_out_and_counted(tmp_path: Path) -> None:
    items = pairs(("2", "3"), ("2", "3" * 50), ("2" * 50, "3"), ("4", "5"))
    limit = len("1+1?") + 2 + 1 + 1
    trainer = RewardModelTrainer(reward_model_stage(max_tokens=limit), world(tmp_path, *items))
    (metrics,) = steps(trainer, 1)
    assert metrics["dropped"] == 2
    rewards = rewards_by_hand(new_engine("critic"), ["2", "4", "3", "5"]).detach().view(2, 2)
    assert metrics["loss"] == pytest.approx(float((rewards[1] - rewards[0]).exp().log1p().mean()), rel=1e-5)
    # The question and the marker of the answer once, then one token and the end of each of four answers.
    assert metrics["tokens/learned"] == len("1+1?") + 2 + 4 * 2


def test_nothing_that_fits_at_all_is_an_error(tmp_path: Path) -> None:
    made = world(tmp_path, *pairs(("2", "3" * 50)))
    message = r"none of the first 8 preferences of data\.train fits into 20 tokens: raise max_tokens"
    with pytest.raises(UserError, match=message):
        steps(RewardModelTrainer(reward_model_stage(steps=2, max_tokens=20), made), 2)
    with pytest.raises(UserError, match="none of the first 1000 preferences"):
        steps(RewardModelTrainer(reward_model_stage(steps=9, batch_size=500, max_tokens=20), made), 9)


def test_epochs_take_every_item_that_often_and_no_more(tmp_path: Path) -> None:
    """Seven items, twice, in steps of four: 4, 4, 4 and 2."""
    items = [Preference(asked(i), "2" * (i + 1), "2" * (i + 1)) for i in range(7)]
    trainer = RewardModelTrainer(reward_model_stage(steps=None, epochs=2), world(tmp_path, *items))
    seen: list[list[str]] = []
    batch = trainer._batch
    trainer._batch = lambda taken: seen.append([p.prompt.id for p in taken]) or batch(taken)  # type: ignore
    assert trainer.steps == 4
    steps(trainer, 4)
    assert [len(ids) for ids in seen] == [4, 4, 4, 2]
    assert [i for ids in seen for i in ids] == [f"p{i}" for i in range(7)] * 2


def test_a_conversation_that_cannot_be_rendered_is_named(tmp_path: Path) -> None:
    prompt = Prompt("odd", [Message("critic", "no")])
    with pytest.raises(UserError, match=r"prompt 'odd': .*unknown role critic"):
        steps(RewardModelTrainer(reward_model_stage(), world(tmp_path, Preference(prompt, "2", "3"))), 1)
