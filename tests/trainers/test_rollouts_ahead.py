"""Answers that are written ahead: which weights write them, what is learned from them, stopping and resuming."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Outputs, Row
from rewardsmith.errors import RecipeError
from rewardsmith.learning import OptimizerSettings
from rewardsmith.recipe import parse_recipe
from rewardsmith.rewards.base import Halt
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.trainer import Draws, derive
from rewardsmith.types import RolloutGroup, Score
from tests.trainers.world import MODELS, Digits, World, new_engine, policy_stage, share_of_digits, wait, weights

MACHINE = ("time/", "memory/", "idle/", "tokens/s")


class Late(Digits):
    """The share of digits, after a while that differs from group to group; `before` may do more."""

    seconds = 0.0
    before: Callable[[RolloutGroup], Any] = staticmethod(lambda group: None)

    async def score(self, group: RolloutGroup) -> list[Score]:
        waiting = Late.before(group)
        if waiting is not None:
            await waiting
        await asyncio.sleep(Late.seconds * (sum(map(ord, group.prompt.messages[0].content)) % 7))
        return await super().score(group)


@pytest.fixture(autouse=True)
def prompt_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Late, "seconds", 0.0)
    monkeypatch.setattr(Late, "before", staticmethod(lambda group: None))


def stage(**changes: Any) -> Any:
    return policy_stage(**{"reward": "tests.trainers.test_rollouts_ahead:Late", "ahead": 1} | changes)


async def take_steps(trainer: PolicyTrainer, numbers: range) -> list[dict[str, float]]:
    updates = [await trainer.step(number) for number in numbers]
    assert not any(update.halt for update in updates), updates
    return [
        {name: value for name, value in update.metrics.items() if not name.startswith(MACHINE)} for update in updates
    ]


async def bounded(work: Awaitable[None]) -> None:
    """Do not wait for ever, and leave nothing behind."""
    async with asyncio.timeout(60):
        await work
    assert len(asyncio.all_tasks()) == 1


def whole_run(settings: Any, folder: Path) -> tuple[list[dict[str, float]], World]:
    """Return the metrics of all steps, and what was written."""
    world = World(folder)

    async def run() -> list[dict[str, float]]:
        trainer = PolicyTrainer(settings, world)
        await trainer.begin()
        try:
            return await take_steps(trainer, range(1, settings.steps + 1))
        finally:
            await trainer.close()

    return wait(run()), world


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("old", ["auto", "sampler"])
def test_a_step_learns_from_the_answers_of_earlier_weights(ahead: int, old: str, tmp_path: Path) -> None:
    """A loop by hand: batch k by the weights after update k - 1 - ahead, and the decoupled objective of one update."""
    settings = stage(ahead=ahead, steps=5, old_logprobs=old, optimizer={"lr": 3e-3})
    _, world = whole_run(settings, tmp_path)
    engine, history = new_engine(), list[dict[str, Tensor]]()
    engine.learn_with(OptimizerSettings(lr=3e-3))
    seed = derive(0, "policy")
    draws = Draws(World(tmp_path).source("train").prompts, derive(seed, "prompts"), "train")
    for step in range(1, 6):
        history.append(weights(engine))
        writer = new_engine()
        writer.model.load_state_dict(history[max(0, step - 1 - ahead)], strict=False)
        prompts = draws.take(4)
        seeds = [derive(derive(seed, "rollouts"), step, 0, i) for i in range(4)]
        groups = wait(collect(writer, prompts, settings.sampling, seeds))
        ours = [record.scored.group for record in world.records if record.step == step]
        assert [[r.text for r in g.rollouts] for g in ours] == [[r.text for r in g.rollouts] for g in groups]
        assert {g.policy_version for g in ours} == {max(0, step - 1 - ahead)}
        update_by_hand(engine, groups, settings, old)
    ours, expected = weights(world.engine("policy")), weights(engine)
    # AdamW divides by the gradient: where that is rounding alone, a weight may go either way.
    off = torch.cat([(ours[name] - expected[name]).abs().flatten() for name in ours])
    moved = torch.cat([(history[0][name] - expected[name]).abs().flatten() for name in ours])
    assert off.mean() < 1e-5 * moved.mean()


async def collect(engine: EmbeddedEngine, prompts: Any, sampling: Any, seeds: list[int]) -> list[RolloutGroup]:
    found = {i: group async for i, group in engine.generate(prompts, sampling, n=4, seeds=seeds)}
    return [found[i] for i in range(len(prompts))]


def update_by_hand(engine: EmbeddedEngine, groups: list[RolloutGroup], settings: Any, old: str) -> None:
    """GRPO, the mean over tokens of -A min(π_prox / π_b, 2) π / π_prox, or of the clipped -A π / π_b."""
    rows = [Row(engine.encode(g.prompt), r.tokens) for g in groups for r in g.rollouts]
    rewards_GN = torch.tensor([[share_of_digits(r.text) for r in g.rollouts] for g in groups])
    centred_GN = rewards_GN - rewards_GN.mean(1, keepdim=True)
    advantages_B = (centred_GN / (rewards_GN.std(1, keepdim=True) + 1e-6)).flatten()
    sampler = [torch.tensor(r.logprobs) for g in groups for r in g.rollouts]
    count = sum(map(len, sampler))
    now_BT = engine.logprobs(rows)

    def loss(outputs: Outputs) -> Tensor:
        total = torch.zeros(())
        for b, i in enumerate(outputs.rows.tolist()):
            written, a = sampler[i], advantages_B[i]
            current = outputs.logprobs_bT[b, : len(written)]
            if old == "sampler":
                ratio = (current - written).exp()
                total = total - torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).sum() / count
            else:
                before = now_BT[i, : len(written)]
                weight = (before - written).exp().clamp(max=2.0)
                total = total - (weight * (current - before).exp() * a).sum() / count
        return total

    engine.update(rows, loss, lr=3e-3)


@pytest.mark.parametrize(
    "select",
    [{}, {"oversample": 1.5, "rounds": 3, "constant": "drop", "highest": 0.4}, {"oversample": 2.0, "staleness": 2}],
)
def test_nothing_depends_on_how_long_rewards_take(
    select: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = stage(ahead=2, steps=5, select=select, mini_batches=2)
    fast, world = whole_run(settings, tmp_path)
    monkeypatch.setattr(Late, "seconds", 0.01)
    slow, late = whole_run(settings, tmp_path)
    assert slow == fast
    assert [r.scored for r in late.records] == [r.scored for r in world.records]
    reused = select.get("staleness", 0)
    assert max(one["policy/staleness"] for one in fast) <= 2 + reused
    assert fast[-1]["policy/staleness"] >= 2


@pytest.mark.parametrize("select", [{}, {"oversample": 2.0, "staleness": 1}, {"rounds": 2, "highest": 0.2}])
@pytest.mark.parametrize("done", [1, 3])
def test_a_resumed_run_learns_from_the_answers_that_were_under_way(
    select: dict[str, Any], done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = stage(ahead=2, steps=5, select=select)
    uninterrupted, world = whole_run(settings, tmp_path)
    monkeypatch.setattr(Late, "seconds", 0.01)  # so that some are not scored yet
    first = World(tmp_path)

    async def begin() -> str:
        trainer = PolicyTrainer(settings, first)
        await trainer.begin()
        await take_steps(trainer, range(1, done + 1))
        first.engine("policy").save(tmp_path / "policy")
        state = json.dumps(trainer.state())
        await trainer.close()
        return state

    async def resume(state: str) -> tuple[list[dict[str, float]], World]:
        again = World(tmp_path)
        again.engine("policy").load(tmp_path / "policy")
        trainer = PolicyTrainer(settings, again)
        again.engine("policy").load_learner(tmp_path / "policy")
        trainer.restore(json.loads(state))
        assert trainer.state()["ahead"] == json.loads(state)["ahead"]
        return await take_steps(trainer, range(done + 1, 6)), again

    state = wait(begin())
    assert len(json.loads(state)["ahead"]) == 2
    metrics, again = wait(resume(state))
    assert metrics == uninterrupted[done:]
    expected = weights(world.engine("policy"))
    assert all(torch.equal(expected[name], weight) for name, weight in weights(again.engine("policy")).items())


def test_later_answers_are_scored_while_a_step_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of step 2 wait until step 1 learns: without overlap this would never end."""
    learning, world = threading.Event(), World(tmp_path)
    engine = world.engine("policy")
    update = engine.update

    def learn(*arguments: Any, **options: Any) -> Any:
        learning.set()
        assert scored.wait(20), "nothing was scored while the policy learned"
        return update(*arguments, **options)

    scored, seen = threading.Event(), list[str]()

    async def after_learning() -> None:
        await asyncio.to_thread(learning.wait, 20)
        scored.set()

    def before(group: RolloutGroup) -> Any:
        seen.append(group.prompt.id)
        return after_learning() if len(seen) > 4 else None

    monkeypatch.setattr(engine, "update", learn)
    monkeypatch.setattr(Late, "before", staticmethod(before))

    async def run() -> None:
        trainer = PolicyTrainer(stage(steps=2), world)
        await trainer.begin()
        metrics = (await trainer.step(1)).metrics
        assert 0 <= metrics["idle/learner"] <= 1
        assert 0 <= metrics["idle/writer"] <= 1
        await trainer.step(2)
        await trainer.close()

    wait(bounded(run()))


def test_a_failure_in_the_background_ends_the_step_and_its_answers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0

    def before(group: RolloutGroup) -> Any:
        nonlocal count
        count += 1
        if count > 4:  # of step 2
            return failing()
        return None

    async def failing() -> None:
        await asyncio.sleep(0.05)
        raise Halt("the judge is gone")

    monkeypatch.setattr(Late, "before", staticmethod(before))

    async def run() -> None:
        trainer = PolicyTrainer(stage(), World(tmp_path))
        await trainer.begin()
        halt, number = None, 0
        while halt is None:
            number += 1
            try:
                halt = (await trainer.step(number)).halt
            except Halt as error:
                halt = error
            assert len(trainer.state()["ahead"][0]["rounds"][0]) == 4
        assert "the judge is gone" in str(halt)
        assert number <= 2
        await trainer.close()

    wait(bounded(run()))


def test_a_user_can_stop_while_rewards_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Late, "before", staticmethod(lambda group: asyncio.sleep(60)))
    world = World(tmp_path)

    async def run() -> None:
        trainer = PolicyTrainer(stage(), world)
        await trainer.begin()
        before = trainer.state()
        world.wants_to_stop = lambda: bool(trainer._rollouts and trainer._rollouts._is_written())
        with pytest.raises(InterruptedError):
            await trainer.step(1)
        assert before["ahead"] == []
        await trainer.close()

    wait(bounded(run()))


def test_a_judge_that_learns_is_refused() -> None:
    recipe = {
        "models": {name: settings.model_dump(exclude_none=True) for name, settings in MODELS.items()},
        "data": {"train": {"type": "arithmetic"}},
        "stages": [
            {"type": "policy", "model": "policy", "data": "train", "steps": 1, "ahead": 1}
            | {"reward": {"type": "rubric", "model": "policy", "criteria": "is it right?"}}
        ],
    }
    with pytest.raises(RecipeError, match=r"(?s)stages\.0\.reward\.model.*learns in this stage.*ahead = 0"):
        RewardTrees(parse_recipe(recipe))
    recipe["stages"][0]["ahead"] = 0  # type: ignore[index]
    RewardTrees(parse_recipe(recipe))
