"""A process reward model that is its reference gives no reward at all, to the last bit; and what its reference is."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Row
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.text.steps import split_steps, steps_of_tokens
from rewardsmith.trainers.process.process_rewards import ProcessPart
from rewardsmith.types import Score
from tests.trainers.process.process_cases import ProcessWorld, alone, batch_of, group, implicit, policy
from tests.trainers.world import new_engine, steps

LORA = {"init": "tiny-llama", "lora": {"rank": 4}}


def process_scores(world: ProcessWorld, step: int = 1) -> list[Score]:
    records = [r for r in world.records if r.step == step and r.kind == "train" and not r.dropped]
    return [score.parts["process"] for record in records for score in record.scored.scores]


def rewards(world: ProcessWorld, step: int = 1) -> list[float]:
    found = []
    for score in process_scores(world, step):
        assert score.token_values is not None
        found += [float(x) for x in score.token_values] + [score.value]
    assert len(found) > 12
    return found


def stirred(engine: EmbeddedEngine) -> EmbeddedEngine:
    """Return the model after its adapter has learned something."""
    with torch.no_grad():
        for name, parameter in engine.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(1))
    return engine


@pytest.mark.parametrize(("update", "normalise"), [("after", "none"), ("reverse", "batch")])
def test_every_reward_of_the_first_step_is_exactly_zero(update: str, normalise: str, tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    metrics = steps(policy(world, implicit(update=update, normalise=normalise)), 2)
    assert set(rewards(world)) == {0.0}
    assert metrics[0]["learned/process/accuracy_fresh"] == 0.5
    # and once it has learned, not any more
    assert max(map(abs, rewards(world, 2))) > 1e-4
    assert metrics[0]["streams/process/return_high"] == 0


@pytest.mark.parametrize(
    ("table", "reference"),
    [
        ({"copy_of": "policy", "dtype": "bfloat16"}, "start"),
        ({"copy_of": "policy", "recompute": True, "tokens_per_pass": 40}, "start"),
        (LORA, "start"),
        (LORA, "adapter-off"),
        (LORA | {"dtype": "bfloat16"}, "adapter-off"),
    ],
    ids=["bfloat16", "recomputed", "adapter", "adapter off", "bfloat16 adapter"],
)
def test_zero_at_the_start_in_every_kind_of_model(table: dict[str, Any], reference: str, tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path, {"prm": table})
    steps(alone(world, implicit(reference=reference, learn={"micro_batch": 5})), 2)
    assert set(rewards(world)) == {0.0}
    assert max(map(abs, rewards(world, 2))) > 1e-4


# ---- the reference ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "dtype"),
    [
        ({}, "float32"),
        ({"temperature": 0.6}, "float32"),
        ({"top_p": 0.8}, "float32"),
        ({"min_tokens": 3}, "float32"),
        ({"temperature": 0.6}, "bfloat16"),
        ({}, "bfloat16 again"),
    ],
)
def test_a_copy_of_the_policy_measured_against_the_policy(sampling: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    """Whatever the answers were sampled with, the reference is the policy's own distribution, at temperature 1."""
    dtype, _, again = dtype.partition(" ")
    world = ProcessWorld(tmp_path, {"policy": {"init": "tiny-llama", "dtype": dtype}})
    process = implicit(reference="policy", exact_reference=bool(again), normalise="none", beta=1.0)
    steps(policy(world, process, sampling={"max_tokens": 6} | sampling), 1)
    assert max(map(abs, rewards(world))) < 2e-5


@pytest.mark.parametrize("update", ["none", "before", "after", "reverse"])
def test_the_samplers_numbers_are_the_reference_in_bfloat16(
    update: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pass of the policy is made, and a reward differs from that of such a pass by β times the sampler's error."""
    models, beta = {"policy": {"init": "tiny-llama", "dtype": "bfloat16"}, "prm": {"init": "tiny-llama"}}, 0.5
    found, passes = {}, []
    for exact in (False, True):
        world = ProcessWorld(tmp_path, models)
        engine = world.engine("policy")
        logprobs = Mock(wraps=engine.logprobs)
        monkeypatch.setattr(engine, "logprobs", logprobs)
        process = implicit(reference="policy", exact_reference=exact, update=update, normalise="none", beta=beta)
        trainer = policy(world, process | {"learn": process["learn"] | {"measure_every": 0}})
        start = engine.copy(name="start")
        steps(trainer, 1)
        found[exact] = process_scores(world)
        passes.append(logprobs.call_count)
    assert passes == [0, 1]
    groups = [r.scored.group for r in world.records if not r.dropped]
    written = [(group, rollout) for group in groups for rollout in group.rollouts]
    errors = []
    for (group_, rollout), sampler, again in zip(written, found[False], found[True], strict=True):
        learner = start.logprobs([Row(start.encode(group_.prompt), rollout.tokens)])[0].numpy()
        errors.append(learner - rollout.logprobs)
        moved = 2e-3 if update == "before" else 1e-5  # before: scored by models that have learned from either
        assert np.allclose(sampler.token_values - again.token_values, beta * errors[-1], atol=moved)
        assert np.abs(sampler.token_values - again.token_values).max() < 0.15 * beta
    assert 2e-3 < max(np.abs(error).max() for error in errors) < 0.15


def test_an_adapter_that_has_learned_is_measured_against_the_model_without_it(tmp_path: Path) -> None:
    for reference, expected in (("adapter-off", True), ("start", False)):
        world = ProcessWorld(tmp_path / reference, {"prm": LORA})
        stirred(world.engine("prm"))
        trainer = alone(world, implicit(reference=reference, update="after", normalise="none", beta=1.0))
        before = {name: p.clone() for name, p in world.engine("prm").model.named_parameters()}
        steps(trainer, 1)
        with torch.no_grad():
            for name, p in world.engine("prm").model.named_parameters():
                p.copy_(before[name])
        gaps = []
        for record in world.records:
            for rollout, score in zip(record.scored.group.rollouts, record.scored.scores, strict=True):
                row = [Row(world.engine("prm").encode(record.scored.group.prompt), rollout.tokens)]
                gap = world.engine("prm").logprobs(row) - new_engine().logprobs(row)
                gaps.append(float(gap.abs().max()))
                found = score.parts["process"].token_values
                assert np.allclose(found, gap[0] if expected else 0, atol=1e-5)
        assert max(gaps) > 0.05


def test_a_named_reference(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    steps(alone(world, implicit(reference_model="other", normalise="none", beta=0.25)), 1)
    prm, other = new_engine(), new_engine("other")
    for record in world.records:
        for rollout, score in zip(record.scored.group.rollouts, record.scored.scores, strict=True):
            row = [Row(prm.encode(record.scored.group.prompt), rollout.tokens)]
            expected = 0.25 * (prm.logprobs(row) - other.logprobs(row))[0]
            part = score.parts["process"]
            assert np.allclose(part.token_values, expected, atol=1e-5)
            assert part.value == pytest.approx(float(expected.sum()), abs=1e-4)
    assert not (tmp_path / "references").exists()


def test_the_rewards_are_those_of_the_whole_batch_normalised(tmp_path: Path) -> None:
    """All returns lie within -1 and 1, and one of them reaches an end; the value is the sum."""
    world, baseline = ProcessWorld(tmp_path), ProcessWorld(tmp_path)
    for each, normalise in ((world, "batch"), (baseline, "none")):
        steps(policy(each, implicit(reference_model="other", update="none", normalise=normalise)), 1)
    returns, scale = [], []
    for a, b in zip(process_scores(world), process_scores(baseline), strict=True):
        assert a.token_values is not None
        assert b.token_values is not None
        assert a.value == pytest.approx(b.value)
        returns += list(np.cumsum(a.token_values[::-1]))
        scale += list(b.token_values / a.token_values)
    assert max(map(abs, returns)) == pytest.approx(1, abs=1e-2)
    assert scale == pytest.approx([scale[0]] * len(scale), rel=1e-3)


@pytest.mark.parametrize("granularity", ["token", "step", "whole"])
def test_where_the_rewards_lie(granularity: str, tmp_path: Path) -> None:
    """The sum is the same; only the tokens that carry it differ. Every 1 ends a step here."""
    world = ProcessWorld(tmp_path)
    process = implicit(reference_model="other", update="none", normalise="none", granularity=granularity, separator="1")
    steps(policy(world, process, sampling={"max_tokens": 40}), 1)
    several = 0
    for record in world.records:
        for rollout, whole in zip(record.scored.group.rollouts, record.scored.scores, strict=True):
            score = whole.parts["process"]
            assert score.token_values is not None
            assert float(score.token_values.sum()) == pytest.approx(score.value, abs=1e-4)
            if granularity == "token":
                assert score.token_support is None
                continue
            assert rollout.ends is not None
            numbers = steps_of_tokens(rollout.ends, split_steps(rollout.text, "1"))
            if granularity == "whole":
                numbers = np.zeros_like(numbers)
            last = np.append(np.diff(numbers) != 0, True)
            assert score.token_support is not None
            assert score.token_support.tolist() == last.tolist()
            assert not score.token_values[~score.token_support].any()
            several += int(last.sum()) > 1
    assert bool(several) == (granularity == "step")


@pytest.mark.parametrize(("beta", "dtype"), [(0.05, "float32"), (0.5, "float32"), (0.05, "bfloat16")])
def test_rounding_is_not_blown_up_to_a_reward(beta: float, dtype: str, tmp_path: Path) -> None:
    """A model that is the policy which wrote the answers differs from it by rounding alone."""
    world = ProcessWorld(tmp_path, {"policy": {"init": "tiny-llama", "dtype": dtype}})
    steps(policy(world, implicit(reference="policy", update="none", normalise="batch", beta=beta)), 1)
    for score in process_scores(world):
        assert score.token_values is not None
        assert np.abs(np.cumsum(score.token_values[::-1])).max() < 0.02


def test_an_answer_may_have_more_steps_than_tokens() -> None:
    """Its text is hostile: one token may hold several separators."""
    scored = group(0, [1.0, 0.0])
    odd = replace(scored.group.rollouts[0], text="a;b;c;d;e", tokens=[20, 21], logprobs=[-1.0, -1.0], ends=[4, 9])
    scored = replace(scored, group=replace(scored.group, rollouts=[odd, scored.group.rollouts[1]]))
    part = ProcessPart(Implicit(model="prm", granularity="step", separator=";"), new_engine(), None)
    mask_BT = batch_of([scored]).mask_BT.numpy()
    values_BT, support_BT = part.settings.place(mask_BT * 1.0, mask_BT, part._steps_of([scored], mask_BT))
    assert (values_BT[0, :2].tolist(), support_BT[0, :2].tolist()) == ([1.0, 1.0], [True, True])


@pytest.mark.parametrize("make", [alone, policy])
def test_the_schedule_of_the_model_runs_over_the_steps_of_the_epochs(make: Any, tmp_path: Path) -> None:
    few = [group(i, [1.0]).group.prompt for i in range(10)]
    world = ProcessWorld(tmp_path, sources={"train": SimpleNamespace(prompts=lambda seed: iter(few))})  # type: ignore[dict-item]
    learn = {"optimizer": {"lr": 0.001, "warmup": 0.4, "schedule": "linear"}}
    trainer = make(world, implicit(learn=learn), epochs=2, prompts_per_step=4, steps=None)
    found = [metrics["learned/process/lr"] for metrics in steps(trainer, trainer.steps)]
    assert found == pytest.approx([0.0005, 0.001, 0.001, 0.001 * 2 / 3, 0.001 / 3])
