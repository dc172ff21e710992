"""The loop of the policy stage: rates and passes, a critic, a reference, old log-probabilities, failures, the end."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardsmith.engines.protocol import Row
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.types import Score
from tests.trainers.world import World, distance, new_engine, policy_stage, steps, wait, weights

CRASHING = "tests.trainers.world:Crashing"


def trained(folder: Path, count: int = 1, **stage: Any) -> tuple[World, list[dict[str, float]]]:
    world = World(folder)
    return world, steps(PolicyTrainer(policy_stage(**stage), world), count)


class Updates:
    """Looks at what an engine is asked to learn, and lets it."""

    def __init__(self, world: World, name: str = "policy") -> None:
        self.rates: list[float] = []
        self.prompts: list[list[bytes]] = []
        engine = world.engine(name)
        update = engine.update

        def recorded(rows: Any, loss: Any, *, lr: float, **more: Any) -> Any:
            self.rates.append(lr)
            self.prompts.append([row.prompt.tobytes() for row in rows])
            return update(rows, loss, lr=lr, **more)

        engine.update = recorded  # type: ignore[method-assign]


# ---- passes and rates ------------------------------------------------------------------------------------------------


def test_the_rate_follows_its_schedule_over_mini_batches_and_epochs(tmp_path: Path) -> None:
    world = World(tmp_path)
    seen, total, warmup = Updates(world), 3 * 2 * 2, 4
    optimizer = {"lr": 1e-3, "schedule": "linear", "warmup": warmup, "floor": 0.5}
    stage = policy_stage(steps=3, mini_batches=2, ppo_epochs=2, optimizer=optimizer, entropy=0.01)
    metrics = steps(PolicyTrainer(stage, world), 3)
    rising = [1e-3 * (i + 1) / warmup for i in range(warmup)]
    falling = [1e-3 * (1 - 0.5 * (i - warmup) / (total - warmup)) for i in range(warmup, total)]
    assert seen.rates == pytest.approx(rising + falling)
    assert [m["policy/lr"] for m in metrics] == pytest.approx([seen.rates[i] for i in (3, 7, 11)])


def test_each_epoch_passes_once_over_whole_groups_in_a_new_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    seen = Updates(world)
    # an entropy bonus, so that no row is left out for its advantage
    steps(PolicyTrainer(policy_stage(prompts_per_step=7, mini_batches=3, ppo_epochs=4, entropy=0.01), world), 1)
    assert [len(prompts) for prompts in seen.prompts] == [3 * 4, 2 * 4, 2 * 4] * 4
    epochs = [seen.prompts[i : i + 3] for i in range(0, 12, 3)]
    everything = sorted(p for mini in epochs[0] for p in mini)
    assert len(set(everything)) == 7
    for epoch in epochs:
        assert sorted(p for mini in epoch for p in mini) == everything
        assert all(mini.count(p) == 4 for mini in epoch for p in mini)
    assert len({tuple(map(frozenset, epoch)) for epoch in epochs}) > 1


def test_the_same_seed_gives_the_same_run_and_another_one_does_not(tmp_path: Path) -> None:
    def run(seed: int) -> list[dict[str, float]]:
        world = World(tmp_path, seed=seed)
        found = steps(PolicyTrainer(policy_stage(mini_batches=2, ppo_epochs=2), world), 2)
        return [
            {k: v for k, v in m.items() if not k.startswith(("time/", "memory/")) and k != "tokens/s"} for m in found
        ]

    assert run(1) == run(1)
    assert run(1) != run(2)


# ---- critic and reference --------------------------------------------------------------------------------------------


class FirstSign:
    """Depends on the prompt alone: whether the first sign is a minus."""

    async def score(self, group: Any) -> list[Score]:
        return [Score(float(group.prompt.messages[0].content[1] == "-"))] * len(group.rollouts)


def test_a_critic_learns_what_a_state_is_worth(tmp_path: Path) -> None:
    world, metrics = trained(
        tmp_path,
        14,
        steps=14,
        prompts_per_step=16,
        rollouts_per_prompt=2,
        mini_batches=2,
        ppo_epochs=2,
        reward="tests.trainers.test_policy:FirstSign",
        advantage="gae",
        critic={"model": "critic", "warmup": 14, "clip": None, "optimizer": {"lr": 2e-3}},
    )
    explained = [m["critic/explained_variance"] for m in metrics]
    assert explained[0] < 0.1
    assert min(explained[-3:]) > 0.5
    assert metrics[-1]["critic/squared_error"] < metrics[0]["critic/squared_error"] / 2
    # while it warms up, the policy stays as it is
    assert distance(weights(world.engine("policy")), weights(new_engine())) == 0
    assert all("policy/grad_norm" not in m for m in metrics)


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_kl_penalty_keeps_the_policy_near(place: str, tmp_path: Path) -> None:
    def last_kl(coefficient: float) -> float:
        kl = {"coefficient": coefficient, "place": place}
        stage = {"steps": 8, "prompts_per_step": 8, "advantage": "rloo", "optimizer": {"lr": 3e-3}, "kl": kl}
        _, metrics = trained(tmp_path / str(coefficient), 8, **stage)
        assert metrics[0]["policy/kl"] == pytest.approx(0, abs=1e-5)  # the reference is the policy as it was
        return metrics[-1]["policy/kl"]

    free, bound = last_kl(1e-6), last_kl(1.0)
    assert free > 0.02
    assert bound < free / 2


def test_a_restored_run_has_the_reference_that_it_began_with(tmp_path: Path) -> None:
    stage = policy_stage(kl={"coefficient": 0.1})
    world = World(tmp_path)
    trainer = PolicyTrainer(stage, world)
    steps(trainer, 2)
    rows = [(g.scored.group.prompt, r) for g in world.records for r in g.scored.group.rollouts]
    batch = [Row(world.engine("policy").encode(p), r.tokens) for p, r in rows]
    again = World(tmp_path)
    world.engine("policy").save(tmp_path / "saved")
    again.engine("policy").load(tmp_path / "saved")
    resumed = PolicyTrainer(stage, again)
    resumed.restore(trainer.state())
    expected = new_engine().logprobs(batch)
    assert torch.equal(resumed._reference.logprobs(batch), expected)  # type: ignore[arg-type]
    assert torch.equal(trainer._reference.logprobs(batch), expected)  # type: ignore[arg-type]


# ---- old log-probabilities -------------------------------------------------------------------------------------------

STILL = {"optimizer": {"lr": 1e-12}, "mini_batches": 2, "ppo_epochs": 2, "entropy": 0.01}


@pytest.mark.parametrize("old", ["auto", "sampler", "learner"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_ratio_begins_at_one_wherever_the_old_logprobs_come_from(
    old: str, temperature: float, tmp_path: Path
) -> None:
    sampling = {"max_tokens": 8, "temperature": temperature}
    _, (metrics,) = trained(tmp_path, old_logprobs=old, sampling=sampling, loss={"low": 1e-4, "high": 1e-4}, **STILL)
    assert metrics["policy/kl_from_old"] == pytest.approx(0, abs=1e-5)
    assert metrics["policy/clipped_low"] == metrics["policy/clipped_high"] == 0
    assert metrics.get("policy/sampler_gap", 0) < 1e-5
    assert ("policy/sampler_gap" in metrics) == (old == "learner")


@pytest.mark.parametrize("old", ["auto", "sampler", "learner"])
def test_the_ratio_of_a_group_from_an_earlier_step_starts_where_it_was_sampled(old: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    select = {"oversample": 2.0, "staleness": 1}
    stage = policy_stage(select=select, entropy=0.01, optimizer={"lr": 5e-3}, old_logprobs=old)
    trainer = PolicyTrainer(stage, world)
    wait(trainer.begin())
    wait(trainer.step(1))
    reused = [r.scored.group for r in world.records if r.dropped == "surplus"]
    engine = world.engine("policy")
    rows = [Row(engine.encode(g.prompt), r.tokens) for g in reused for r in g.rollouts]
    now = [x for row, n in zip(engine.logprobs(rows).tolist(), rows, strict=True) for x in row[: len(n.response)]]
    then = [float(x) for g in reused for r in g.rollouts for x in r.logprobs]
    metrics = wait(trainer.step(2)).metrics
    assert metrics["groups/reused"] == 4
    expected = math.fsum(a - b for a, b in zip(then, now, strict=True)) / len(now)
    assert abs(expected) > 1e-3
    assert metrics["policy/kl_from_old"] == pytest.approx(expected, rel=1e-3)


# ---- failures and the end --------------------------------------------------------------------------------------------


def test_failures_are_counted_by_cause(tmp_path: Path) -> None:
    world, (metrics,) = trained(tmp_path, reward="tests.trainers.world:Patchy", rollouts_per_prompt=6)
    assert metrics["failures/reward/unparsable"] == metrics["failures/reward/timeout"] == pytest.approx(1 / 6)
    assert metrics["reward/failed"] == pytest.approx(2 / 6)
    values = [s.value for r in world.records for s in r.scored.scores if s.value is not None]
    assert metrics["reward/mean"] == pytest.approx(sum(values) / len(values))
    advantages = [a for r in world.records for a in r.advantages]
    assert [a is None for a in advantages] == [True, False, False] * 8
    learned = [r.tokens for g in world.records for r, a in zip(g.scored.group.rollouts, g.advantages, strict=True) if a]
    assert metrics["tokens/learned"] == sum(map(len, learned))


def test_a_reward_that_raises_is_a_failure_and_the_run_goes_on_within_the_budget(tmp_path: Path) -> None:
    reward = {"type": CRASHING, "failure": {"share": 1.0}}
    world, metrics = trained(tmp_path, 2, reward=reward, kl={"coefficient": 0.1})
    assert all(m["failures/reward/crashed"] == 1 and m["reward/failed"] == 1 for m in metrics)
    assert all(m["groups/failed"] == 4 and m["groups/kept"] == 0 for m in metrics)
    assert all(math.isfinite(v) for m in metrics for v in m.values())
    assert distance(weights(world.engine("policy")), weights(new_engine())) == 0
    assert {r.dropped for r in world.records} == {"failed"}
    failure = world.records[0].scored.scores[0].failure
    assert failure is not None
    assert failure.detail.startswith("RuntimeError: no idea about arithmetic-")


def test_with_fewer_groups_than_the_least_a_step_does_not_update(tmp_path: Path) -> None:
    world, _ = trained(tmp_path, select={"lowest": 0.1, "min_groups": 4})
    assert distance(weights(world.engine("policy")), weights(new_engine())) == 0
    world, _ = trained(tmp_path, select={"lowest": 0.1, "min_groups": 1})
    assert distance(weights(world.engine("policy")), weights(new_engine())) > 0


class SometimesGreedy:
    """Cannot score a single answer to every second prompt, as a baseline is; a group of several it can."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    async def score(self, group: Any) -> list[Score]:
        number = self._seen.setdefault(group.prompt.id, len(self._seen))
        if len(group.rollouts) == 1 and number % 2:
            raise RuntimeError
        return [Score(float(len(r.tokens))) for r in group.rollouts]


def test_a_group_without_a_baseline_is_not_learned_from(tmp_path: Path) -> None:
    world, (metrics,) = trained(tmp_path, reward="tests.trainers.test_policy:SometimesGreedy", advantage="remax")
    assert sorted(r.dropped for r in world.records) == ["", "", "no_baseline", "no_baseline"]
    learned = [r for g in world.records for r, a in zip(g.scored.group.rollouts, g.advantages, strict=True) if a]
    assert metrics["tokens/learned"] == sum(len(r.tokens) for r in learned) > 0


def test_a_stop_never_comes_after_the_weights_have_changed(tmp_path: Path) -> None:
    world = World(tmp_path)
    validation = {"data": "held_out", "every": 1, "prompts": 2}
    trainer = PolicyTrainer(policy_stage(validation=validation), world)
    wait(trainer.begin())
    before = weights(world.engine("policy"))
    world.wants_to_stop = lambda: distance(weights(world.engine("policy")), before) > 0
    try:
        wait(trainer.step(1))
    except InterruptedError:
        assert distance(weights(world.engine("policy")), before) == 0


# ---- a step that has nothing to learn --------------------------------------------------------------------------------

SAME = "tests.trainers.world:Same"


def warnings(world: World) -> list[str]:
    return [text for text in world.messages if text.startswith("warning: ") and "nothing to learn" in text]


@pytest.mark.parametrize(
    ("reward", "remedies"),
    [
        ({"type": SAME}, ["0", "easier prompts", "sft", "rollouts_per_prompt"]),
        ({"type": SAME, "value": 1.0}, ["1", "harder prompts"]),
        ({"type": "tests.trainers.test_policy:FirstSign"}, ["rollouts_per_prompt", "temperature"]),
    ],
)
def test_a_step_with_nothing_to_learn_is_warned_of_with_cause_and_remedy(
    reward: dict[str, Any], remedies: list[str], tmp_path: Path
) -> None:
    world, _ = trained(tmp_path, reward=reward, prompts_per_step=16, rollouts_per_prompt=2)
    (warning,) = warnings(world)
    assert "step 1" in warning
    for remedy in remedies:
        assert remedy in warning, remedy


def test_a_resumed_stage_knows_how_many_steps_had_nothing_to_learn(tmp_path: Path) -> None:
    stage = policy_stage(steps=3, reward=SAME)
    trainer = PolicyTrainer(stage, World(tmp_path))
    steps(trainer, 2)
    world = World(tmp_path)
    resumed = PolicyTrainer(stage, world)
    resumed.restore(trainer.state())
    wait(resumed.step(3))
    assert len(warnings(world)) == 1
    assert "3 of 3 steps" in warnings(world)[0]


def test_the_policys_schedule_waits_for_the_critics_warm_up(tmp_path: Path) -> None:
    optimizer = {"lr": 1e-3, "schedule": "linear", "warmup": 2}
    critic = {"model": "critic", "warmup": 2}
    _, metrics = trained(tmp_path, 4, advantage="gae", critic=critic, optimizer=optimizer)
    assert "policy/lr" not in metrics[0]
    assert [m["policy/lr"] for m in metrics[2:]] == pytest.approx([5e-4, 1e-3])


def test_importance_weights_are_one_where_sampler_and_learner_agree(tmp_path: Path) -> None:
    plain, _ = trained(tmp_path)
    world, (metrics,) = trained(tmp_path, importance={"level": "sequence"})
    assert metrics["policy/sampler_gap"] < 1e-5
    moved = distance(weights(plain.engine("policy")), weights(new_engine()))
    assert distance(weights(world.engine("policy")), weights(plain.engine("policy"))) < 0.01 * moved
