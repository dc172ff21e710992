"""Reward models: the loss is the formula's, its gradient does not depend on passes, and every item is counted."""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import parse_recipe
from rewardsmith.trainers.reward_model import RewardModelTrainer
from rewardsmith.types import Message, Preference, Prompt, Ranking
from tests.trainers.compared import THREE, Fixed, Letters, pairs, question, reward_model_stage, rewards_by_hand, world
from tests.trainers.world import World, distance, new_engine, steps, wait, weights


# ---- the loss and its gradient ---------------------------------------------------------------------------------------
def test_the_loss_is_that_of_other_trainers_with_margin_and_centre(tmp_path: Path) -> None:
    """The mean of -log σ(r_c - r_r - m) + c·(r_c + r_r)², and its gradient, from a plain model."""
    stage = reward_model_stage(batch_size=3, loss={"margin": True}, centre=0.1)
    (metrics,) = steps(RewardModelTrainer(stage, world(tmp_path, *THREE)), 1)
    plain = new_engine("critic")
    chosen, rejected = (rewards_by_hand(plain, [getattr(p, side) for p in THREE]) for side in ("chosen", "rejected"))
    margins = torch.tensor([p.margin for p in THREE])
    loss = (-torch.nn.functional.logsigmoid(chosen - rejected - margins) + 0.1 * (chosen + rejected).square()).mean()
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in plain.model.parameters() if p.grad is not None])
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    lead = (chosen - rejected).detach().numpy()
    assert metrics["margin"] == pytest.approx(lead.mean(), abs=1e-5)
    assert metrics["accuracy"] == pytest.approx((lead > 0).mean())
    both = torch.cat([chosen, rejected]).detach().numpy()
    assert (metrics["reward/mean"], metrics["reward/spread"]) == pytest.approx((both.mean(), both.std()), abs=1e-5)


def test_a_ranking_has_the_mean_loss_of_its_pairs_or_that_of_the_list(tmp_path: Path) -> None:
    candidates, scores = ["2", "3", "two", "1+1=2"], [5.0, 1.0, 5.0, 2.0]
    rewards = rewards_by_hand(new_engine("critic"), candidates).tolist()
    for loss in ("bradley-terry", "plackett-luce"):
        stage = reward_model_stage(learn_from="rankings", batch_size=1, loss=loss)
        trainer = RewardModelTrainer(stage, world(tmp_path, Ranking(question(0), candidates, scores)))
        (metrics,) = steps(trainer, 1)
        if loss == "plackett-luce":
            expected = sum(
                math.log(sum(math.exp(r) for r, other in zip(rewards, scores, strict=True) if other <= score)) - reward
                for reward, score in zip(rewards, scores, strict=True)
            )
        else:
            log_odds = [rewards[i] - rewards[j] for i in range(4) for j in range(4) if scores[i] > scores[j]]
            tie = (math.log1p(math.exp(rewards[2] - rewards[0])) + math.log1p(math.exp(rewards[0] - rewards[2]))) / 2
            expected = (sum(math.log1p(math.exp(-d)) for d in log_odds) + tie) / 6
        assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
        assert metrics["tied"] == 1
        assert metrics["tied_gap"] == pytest.approx(abs(rewards[0] - rewards[2]), abs=1e-5)


def gradient(trainer: RewardModelTrainer, items: list[Any]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the gradient that a step on these items hands to the optimizer, and its metrics."""
    engine = trainer._engine
    learner = engine._learner
    assert learner is not None
    found: dict[str, Tensor] = {}
    step = learner.step

    def read(lr: float) -> Any:
        found.update({n: p.grad.clone() for n, p in engine.model.named_parameters() if p.grad is not None})
        return step(0.0)

    learner.step = read  # type: ignore[method-assign]
    batch, dropped = trainer._batch(items)
    assert not dropped
    metrics = trainer._update(batch, 0.0)
    learner.step = step  # type: ignore[method-assign]
    return found, metrics


ITEMS: dict[str, list[Any]] = {
    "preferences": [*THREE, Preference(question(9), "2", "two", tied=True), *pairs(("22", "2"), ("4", "2" * 40))],
    "rankings": [
        Ranking(question(0, "1+2+3+4+5?"), ["15", "14", "1+2=3;#15", "9"], [3, 1, 3, 0]),
        Ranking(question(1), ["2", "3"], [1, 0]),
        Ranking(question(2, "7?"), ["7" * 30, "7", "seven"], [0, 2, 1]),
    ],
}


LOSSES: list[dict[str, Any]] = [
    {"loss": {"margin": True, "tie_width": 0.3, "smoothing": 0.1}, "centre": 0.05},
    {"learn_from": "rankings", "loss": {"margin": 0.5}},
    {"learn_from": "rankings", "loss": "plackett-luce", "centre": 0.02},
]


@pytest.mark.parametrize("changes", LOSSES, ids=lambda c: str(c["loss"]))
def test_the_gradient_does_not_depend_on_the_split_into_passes(changes: dict[str, Any], tmp_path: Path) -> None:
    """Also where every answer has a pass of its own, so that no two that are compared ever meet."""
    stage = reward_model_stage(**changes)
    items = ITEMS[stage.learn_from]
    trainer = RewardModelTrainer(stage, world(tmp_path, *items))
    engine = trainer._engine
    expected, whole = gradient(trainer, items)
    assert len(engine.micro_batches(trainer._batch(items)[0].rows)) == 1
    passes = set()

    @settings(max_examples=12)
    @given(st.integers(1, 150), st.permutations(range(len(items))))
    def same(budget: int, order: list[int]) -> None:
        engine._token_budget = budget
        shuffled = [items[i] for i in order]
        passes.add(len(engine.micro_batches(trainer._batch(shuffled)[0].rows)))
        found, metrics = gradient(trainer, shuffled)
        assert metrics["loss"] == pytest.approx(whole["loss"], rel=1e-5)
        assert metrics["accuracy"] == whole["accuracy"]
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert float((found[name] - value).abs().max()) < 1e-4 * float(value.abs().max()) + 1e-9, (budget, name)

    same()
    assert {1, len(trainer._batch(items)[0].rows)} & passes
    assert len(passes) > 2


def test_only_what_is_torn_apart_is_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Preference(question(i, f"{i}+{i}?"), "x" * 10, "y" * 9) for i in range(6)]
    trainer = RewardModelTrainer(reward_model_stage(), world(tmp_path, *items))
    engine = trainer._engine
    rows = trainer._batch(items)[0].rows
    twice: list[int] = []
    values = engine.values
    monkeypatch.setattr(engine, "values", lambda rows: twice.append(len(rows)) or values(rows))
    length = len(rows[0].prompt) + len(rows[0].response) - 1 + len(rows[1].response) - 1
    # One pair and the first answer of the next, with its prompt: then two of six pairs are in two passes.
    first = len(rows[0].prompt) + len(rows[0].response) - 1
    for budget, count in ((10_000, []), (2 * length, []), (length + first, [4]), (1, [12])):
        twice.clear()
        engine._token_budget = budget
        trainer._update(trainer._batch(items)[0], 0.0)
        assert twice == count, budget


@pytest.mark.parametrize("budget", [10_000, 1], ids=["in one pass", "torn apart"])
def test_numbers_that_are_not_finite_skip_the_update(tmp_path: Path, budget: int) -> None:
    made = world(tmp_path, *THREE)
    made.engine("critic")._token_budget = budget
    with torch.no_grad():
        made.engine("critic").model.score.weight.fill_(torch.inf)
    before = weights(made.engine("critic"))
    validation = {"data": "held_out"}
    trainer = RewardModelTrainer(reward_model_stage(), made)
    (metrics,) = steps(trainer, 1)
    assert metrics["skipped_updates"] == 1
    assert "loss" not in metrics
    assert all(torch.equal(before[name], p) for name, p in weights(made.engine("critic")).items())
    with pytest.raises(UserError, match=r"models\.critic gives numbers that are not finite: lower optimizer\.lr"):
        wait(RewardModelTrainer(reward_model_stage(validation=validation), made).begin())


@pytest.mark.parametrize(
    "item", [Preference(question(7, "?"), "a", "b", margin=1e39), Ranking(question(7, "?"), ["a", "b"], [3e38, -3e38])]
)
def test_a_margin_that_no_model_can_learn_is_named(tmp_path: Path, item: Preference | Ranking) -> None:
    trainer = RewardModelTrainer(reward_model_stage(), world(tmp_path, *THREE))
    with pytest.raises(UserError, match=rf"prompt '{item.prompt.id}' has a margin of .*divide all margins"):
        trainer._batch([item])


# ---- validation ------------------------------------------------------------------------------------------------------
def test_validation_measures_other_pairs_with_ties_apart_and_by_source(tmp_path: Path) -> None:
    held_out = [
        Preference(question(0, source="x"), "2", "3"),
        Preference(question(1, source="y"), "two", "four"),
        Preference(question(2, source="y"), "5", "6"),
        Preference(question(3, source="y"), "same", "same"),
        Preference(question(4, source="x"), "1", "7", tied=True),
        Preference(question(5), "not", "asked for"),
    ]
    made = world(tmp_path, *THREE, held_out=Fixed(*held_out))
    validation = {"data": "held_out", "every": 2, "items": 5}
    trainer = RewardModelTrainer(reward_model_stage(steps=3, validation=validation), made)
    metrics = dict(wait(trainer.begin()).metrics)
    plain = new_engine("critic")
    chosen, rejected = (
        rewards_by_hand(plain, [getattr(p, side) for p in held_out[:5]]).detach().double().numpy()
        for side in ("chosen", "rejected")
    )
    lead = chosen - rejected
    losses = [*np.log1p(np.exp(-lead[:4])), (math.log1p(math.exp(lead[4])) + math.log1p(math.exp(-lead[4]))) / 2]
    expected = {
        "loss": np.mean(losses),
        "accuracy": np.mean(lead[:4] > 1e-6),
        "sources/x/accuracy": float(lead[0] > 0),
        "sources/y/accuracy": np.mean(lead[1:4] > 1e-6),
        "sources/x/pairs": 1.0,
        "sources/y/pairs": 3.0,
        "margin": np.mean(lead[:4]),
        "undecided": 0.25,
        "tied": 1,
        "tied_gap": abs(lead[4]),
        "reward/mean": np.mean([chosen, rejected]),
        "reward/spread": np.std([chosen, rejected]),
    }
    assert metrics == pytest.approx({f"validation/{name}": value for name, value in expected.items()}, abs=1e-5)
    later = steps(trainer, 3, begin=False)
    assert ["validation/loss" in m for m in later] == [False, True, True]
    assert all({name for name in m if name.startswith("validation/")} == set(metrics) for m in later[1:])
    assert [(m["undecided"], m["tied"]) for m in later] == [(0, 0)] * 3  # none is a number too: curves go on
    assert trainer.best_by == "validation/accuracy"


def test_a_validation_counts_what_is_too_long_and_needs_something_that_is_not(tmp_path: Path) -> None:
    made = world(tmp_path, *THREE, held_out=Fixed(*pairs(("2", "3"), ("2", "3" * 50))))
    stage = reward_model_stage(max_tokens=20, validation={"data": "held_out"})
    assert wait(RewardModelTrainer(stage, made).begin()).metrics["validation/dropped"] == 1
    stage = reward_model_stage(max_tokens=4, validation={"data": "held_out"})
    with pytest.raises(UserError, match=r"data\.held_out has no preferences that fit into 4 tokens"):
        wait(RewardModelTrainer(stage, made).begin())


# ---- the course of a stage -------------------------------------------------------------------------------------------
def test_a_restored_stage_goes_on_with_the_next_comparisons(tmp_path: Path) -> None:
    made, again = (World(tmp_path, sources={"train": Letters(10)}) for _ in range(2))
    trainer = RewardModelTrainer(reward_model_stage(), made)
    steps(trainer, 2)
    state = json.loads(json.dumps(trainer.state()))
    made.engine("critic").save(tmp_path / "saved")
    again.engine("critic").load(tmp_path / "saved")
    resumed = RewardModelTrainer(reward_model_stage(), again)
    again.engine("critic").load_learner(tmp_path / "saved")
    resumed.restore(state)
    for number in (3, 4):
        one, other = wait(trainer.step(number)).metrics, wait(resumed.step(number)).metrics
        assert {**one, "time/learn": 0} == {**other, "time/learn": 0}
    assert distance(weights(made.engine("critic")), weights(again.engine("critic"))) == 0


@pytest.mark.parametrize("changes", [{}, {"learn_from": "rankings", "loss": "plackett-luce"}], ids=str)
def test_a_fresh_head_learns_to_order_words(changes: dict[str, Any], tmp_path: Path) -> None:
    made = World(tmp_path, sources={"train": Letters(), "held_out": Letters(128, salt=1)})
    with torch.no_grad():
        made.engine("critic").model.score.weight.zero_()
    stage = reward_model_stage(
        steps=30,
        batch_size=24,
        optimizer={"lr": 3e-3},
        validation={"data": "held_out", "every": 30, "items": 128},
        **changes,
    )
    trainer = RewardModelTrainer(stage, made)
    before = wait(trainer.begin()).metrics
    assert (before["validation/accuracy"], before["validation/undecided"]) == (0, 1)
    after = steps(trainer, 30, begin=False)[-1]
    assert after["validation/accuracy"] > 0.95
    assert after["validation/margin"] > 1
    assert after["validation/tied_gap"] < after["validation/margin"]


# ---- settings --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 1}, "exactly one of steps and epochs"),
        ({"steps": None}, "exactly one of steps and epochs"),
        ({"loss": "plackett-luce"}, 'set learn_from = "rankings"'),
        ({"loss": "plackett-lucy"}, 'Did you mean "plackett-luce"?'),
        ({"learn_from": "demonstrations"}, "learn_from"),
        ({"model": "policy"}, 'head = "scalar"'),
        ({"model": "critc"}, 'Did you mean "critic"?'),
        ({"data": "trane"}, 'Did you mean "train"?'),
        ({"loss": {"margin": -1.0}}, "margin"),
        ({"loss": {"smoothing": 0.5}}, "less than 0.5"),
        ({"loss": {"type": "plackett-luce", "margin": True}, "learn_from": "rankings"}, "unknown setting"),
        ({"centre": -1.0}, "greater than or equal to 0"),
        ({"batch_size": 0}, "greater than or equal to 1"),
        ({"validation": {"data": "held_out", "item": 3}}, 'Did you mean "items"?'),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_remedy(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        reward_model_stage(**changes)
    assert words in str(caught.value)


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
    items = [Preference(question(i), "2" * (i + 1), "2" * (i + 1)) for i in range(7)]
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


def test_the_recipe_in_the_documents_is_valid() -> None:
    page = Path(__file__).parents[2] / "docs" / "reward_models.md"
    (recipe,) = re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    stage, policy = parse_recipe(tomllib.loads(recipe)).stages
    assert (stage.settings.name, policy.settings.name) == ("reward_model", "policy")
