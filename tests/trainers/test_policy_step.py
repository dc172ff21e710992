"""One step of the trainer against a step written by hand: a plain model, one answer at a time, equations, AdamW."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, pvariance, stdev
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.protocol import Row
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.stages import PolicyStage
from rewardsmith.types import ScoredGroup
from tests.trainers.world import World, distance, new_engine, policy_stage, share_of_digits, steps, weights


@dataclass
class Answer:
    """One rollout, and what the hand-written step finds out about it."""

    prompt: list[int]
    tokens: list[int]
    old: Tensor  # [T], as sampled
    reward: float
    group: int
    advantages: Tensor | None = None  # [T]


def plain_model(name: str = "policy") -> Any:
    return make_tiny("tiny-llama", seed={"policy": 0, "other": 1}[name])[0]


def answers_of(groups: list[ScoredGroup]) -> list[Answer]:
    """Return the rollouts that could be scored: the others must not matter."""
    encode = new_engine().encode
    return [
        Answer(encode(g.group.prompt).tolist(), r.tokens.tolist(), torch.tensor(r.logprobs), s.value, i)  # type: ignore[arg-type]
        for i, g in enumerate(groups)
        for r, s in zip(g.group.rollouts, g.scores, strict=True)
        if s.ok
    ]


def logits(model: Any, answer: Answer, temperature: float) -> Tensor:
    found: Tensor = model(torch.tensor([answer.prompt + answer.tokens])).logits[0, len(answer.prompt) - 1 : -1]
    return found / temperature


def logprobs(model: Any, answer: Answer, temperature: float) -> Tensor:
    return logits(model, answer, temperature).log_softmax(-1)[range(len(answer.tokens)), answer.tokens]


# ---- advantages ------------------------------------------------------------------------------------------------------


def give(answers: list[Answer], advantage: Callable[[Answer, list[Answer]], float]) -> None:
    for answer in answers:
        siblings = [other for other in answers if other.group == answer.group]
        answer.advantages = torch.full((len(answer.tokens),), advantage(answer, siblings))


def grpo(answers: list[Answer]) -> None:
    def standardised(answer: Answer, group: list[Answer]) -> float:
        rewards = [a.reward for a in group]
        return (answer.reward - mean(rewards)) / (stdev(rewards) + 1e-6)

    give(answers, standardised)


def shaped(answers: list[Answer], limit: int = 8) -> None:
    for answer in answers:
        answer.reward -= 0.5 * min(1.0, max(0.0, (len(answer.tokens) - (limit - 4)) / 4))
    give(answers, lambda answer, group: answer.reward)


def two_parts(answers: list[Answer]) -> None:
    """Each part is standardised on its own, and then weighted; the sum is 2 · digits - brevity."""
    total = [torch.zeros(len(answer.tokens)) for answer in answers]
    for weight, part in ((2.0, lambda a: (a.reward + brevity(a)) / 2), (-1.0, brevity)):
        alone = [replace(answer, reward=part(answer)) for answer in answers]
        grpo(alone)
        total = [sum_ + weight * answer.advantages for sum_, answer in zip(total, alone, strict=True)]
    for answer, advantages in zip(answers, total, strict=True):
        answer.advantages = advantages


def brevity(answer: Answer) -> float:
    return 1 - len(answer.tokens) / 8


def dr_grpo(answers: list[Answer]) -> None:
    give(answers, lambda answer, group: answer.reward - mean(a.reward for a in group))


def rloo_with_kl(answers: list[Answer]) -> None:
    reference = plain_model("other")
    with torch.no_grad():
        for answer in answers:
            answer.reward -= 0.1 * float((answer.old - logprobs(reference, answer, 1.0)).sum())
    give(answers, lambda answer, group: answer.reward - mean(a.reward for a in group if a is not answer))


def remax(answers: list[Answer]) -> None:
    model, tokenizer = make_tiny("tiny-llama", seed=0)
    greedy: dict[int, float] = {}
    for answer in answers:
        tokens: list[int] = []
        while len(tokens) < 8 and tokenizer.eos_token_id not in tokens:
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([answer.prompt + tokens])).logits[0, -1].argmax()))
        greedy[answer.group] = share_of_digits(str(tokenizer.decode(tokens, skip_special_tokens=True)))
    give(answers, lambda answer, group: answer.reward - greedy[answer.group])


def gae(answers: list[Answer], *, whiten: bool = True) -> None:
    critic = new_engine("critic")
    for answer in answers:
        row = Row(np.array(answer.prompt, np.int32), np.array(answer.tokens, np.int32))
        values = [*critic.values([row])[0].tolist(), 0.0]
        answer.advantages, after = torch.zeros(len(answer.tokens)), 0.0
        for t in reversed(range(len(answer.tokens))):
            reward = answer.reward if t == len(answer.tokens) - 1 else 0.0
            after = reward + 0.9 * values[t + 1] - values[t] + 0.9 * 0.8 * after
            answer.advantages[t] = after
    everything = torch.cat([a.advantages for a in answers if a.advantages is not None])
    if whiten:
        for answer in answers:
            assert answer.advantages is not None
            answer.advantages = (answer.advantages - everything.mean()) / everything.std()


# ---- losses ----------------------------------------------------------------------------------------------------------


def clip(model: Any, answers: list[Answer], temperature: float) -> Tensor:
    """DAPO's bounds, and the mean over all tokens."""
    losses = []
    for answer in answers:
        ratio = (logprobs(model, answer, temperature) - answer.old).exp()
        assert answer.advantages is not None
        losses.append(torch.maximum(-answer.advantages * ratio, -answer.advantages * ratio.clamp(0.8, 1.28)))
    return torch.cat(losses).mean()


def reinforce(model: Any, answers: list[Answer], temperature: float) -> Tensor:
    """The sum over the tokens of an answer, and the mean over answers."""
    return torch.stack([-(a.advantages * logprobs(model, a, temperature)).sum() for a in answers]).mean()


def reinforce_with_kl(model: Any, answers: list[Answer], temperature: float) -> Tensor:
    """The same, with the estimator k3 in the loss."""
    reference, total = plain_model("other"), reinforce(model, answers, temperature)
    for answer in answers:
        with torch.no_grad():
            d = logprobs(reference, answer, temperature)
        d = logprobs(model, answer, temperature) - d
        total = total + 0.3 * ((-d).exp() - 1 + d).sum() / len(answers)
    return total


def regularised(model: Any, answers: list[Answer], temperature: float) -> Tensor:
    """Dr. GRPO's constant length, with an entropy bonus and the estimator k3."""
    reference, total = plain_model("other"), torch.zeros(())
    for answer in answers:
        now = logprobs(model, answer, temperature)
        with torch.no_grad():
            d = logprobs(reference, answer, temperature)
        d = now - d
        distribution = logits(model, answer, temperature).softmax(-1)
        entropy = -(distribution * distribution.log()).sum(-1)
        losses = -answer.advantages * (now - now.detach()).exp() + 0.2 * ((-d).exp() - 1 + d) - 0.01 * entropy
        total = total + losses.sum() / 8
    return total / len(answers)


@dataclass
class ByHand:
    """A recipe, and the same in equations."""

    stage: dict[str, Any]
    advantages: Callable[[list[Answer]], None]
    loss: Callable[[Any, list[Answer], float], Tensor]


CASES = {
    "grpo": ByHand(
        {"advantage": "grpo", "ppo_epochs": 2, "loss": {"type": "clip", "high": 0.28}, "temperature": 0.7}, grpo, clip
    ),
    "failures": ByHand(
        {
            "reward": "tests.trainers.world:Patchy",
            "rollouts_per_prompt": 6,
            "ppo_epochs": 2,
            "loss": {"type": "clip", "high": 0.28},
        },
        grpo,
        clip,
    ),
    "overlong": ByHand(
        {
            "advantage": "reinforce",  # no baseline, which would hide what all answers have in common
            "overlong": {"buffer": 4, "factor": 0.5},
            "ppo_epochs": 2,
            "loss": {"type": "clip", "high": 0.28},
        },
        shaped,
        clip,
    ),
    "overlong before max_tokens": ByHand(
        {
            "advantage": "reinforce",
            "overlong": {"buffer": 4, "factor": 0.5, "limit": 6},
            "ppo_epochs": 2,
            "loss": {"type": "clip", "high": 0.28},
        },
        partial(shaped, limit=6),
        clip,
    ),
    "parts": ByHand(
        {
            "reward": {
                "type": "sum",
                "parts": {
                    "digits": {"type": "tests.trainers.world:Digits", "weight": 2.0},
                    "brevity": {"type": "tests.trainers.world:Brevity", "weight": -1.0},
                },
            },
            "advantage": {"type": "grpo", "combine": "after"},
            "ppo_epochs": 2,
            "loss": {"type": "clip", "high": 0.28},
        },
        two_parts,
        clip,
    ),
    "rloo": ByHand(
        {
            "advantage": "rloo",
            "loss": "reinforce",
            "reduction": "sequence-mean-token-sum",
            "kl": {"coefficient": 0.1, "place": "reward", "reference": "other"},
        },
        rloo_with_kl,
        reinforce,
    ),
    "kl in reward and loss": ByHand(
        {
            "advantage": "rloo",
            "loss": "reinforce",
            "reduction": "sequence-mean-token-sum",
            "kl": {
                "place": "both",
                "coefficient": 0.3,
                "estimator": "k3",
                "reward_coefficient": 0.1,
                "reference": "other",
            },
        },
        rloo_with_kl,
        reinforce_with_kl,
    ),
    "dr_grpo": ByHand(
        {
            "advantage": "dr_grpo",
            "reduction": {"type": "constant-length", "length": 8},
            "kl": {"coefficient": 0.2, "estimator": "k3", "reference": "other"},
            "entropy": 0.01,
            "temperature": 1.3,
        },
        dr_grpo,
        regularised,
    ),
    "remax": ByHand(
        {"advantage": "remax", "loss": "reinforce", "reduction": "sequence-mean-token-sum"}, remax, reinforce
    ),
    "ppo": ByHand(
        {
            "advantage": {"type": "gae", "discount": 0.9, "lam": 0.8, "whiten": True},
            "critic": {"model": "critic"},
            "ppo_epochs": 2,
            "loss": {"type": "clip", "high": 0.28},
        },
        gae,
        clip,
    ),
}


def step_by_hand(stage: PolicyStage, case: ByHand, groups: list[ScoredGroup]) -> tuple[dict[str, Tensor], float]:
    """Return the weights after the step, and the mean length of its gradients."""
    answers = answers_of(groups)
    case.advantages(answers)
    model = plain_model()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    decays = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(decays, lr=1e-3, betas=(0.9, 0.98))
    norms = []
    for _ in range(stage.ppo_epochs):
        adam.zero_grad()
        case.loss(model, answers, stage.sampling.temperature).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        adam.step()
    return {name: p.detach() for name, p in model.named_parameters()}, mean(norms)


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_what_the_equations_say(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    table = dict(case.stage)
    sampling = {"max_tokens": 8, "temperature": table.pop("temperature", 1.0)}
    optimizer = {"lr": 1e-3, "weight_decay": 0.1, "clip_norm": 0.5}
    stage = policy_stage(sampling=sampling, optimizer=optimizer, **{"rollouts_per_prompt": 3} | table)
    world = World(tmp_path)
    before = weights(world.engine("policy"))
    (metrics,) = steps(PolicyTrainer(stage, world), 1)
    groups = [record.scored for record in world.records]
    assert len(groups) == 4
    assert len({tuple(r.tokens) for g in groups for r in g.group.rollouts}) > 4
    after, norm = step_by_hand(stage, case, groups)
    assert metrics["policy/grad_norm"] == pytest.approx(norm, rel=1e-3)
    found = weights(world.engine("policy"))
    moved = distance(after, before)
    assert moved > 0.01
    assert distance(found, after) < 0.01 * moved


def test_one_pass_of_the_reference_serves_reward_and_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    reference, calls = world.engine("other"), []
    measure = reference.logprobs
    monkeypatch.setattr(reference, "logprobs", lambda rows, **more: calls.append(len(rows)) or measure(rows, **more))
    steps(PolicyTrainer(policy_stage(**CASES["kl in reward and loss"].stage), world), 1)
    assert calls == [16]


def test_the_share_and_the_size_of_overlong_penalties_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    overlong = {"buffer": 4, "factor": 0.5, "limit": 6}
    stage = policy_stage(reward="tests.trainers.world:Patchy", rollouts_per_prompt=6, overlong=overlong)
    (metrics,) = steps(PolicyTrainer(stage, world), 1)
    scored = [
        len(rollout.tokens)
        for record in world.records
        for rollout, score in zip(record.scored.group.rollouts, record.scored.scores, strict=True)
        if score.ok
    ]
    penalties = [-0.5 * min(1.0, max(0.0, (length - 2) / 4)) for length in scored]
    assert metrics["overlong/penalty"] == pytest.approx(mean(penalties), rel=1e-5)
    assert metrics["overlong/penalised"] == pytest.approx(mean(length > 2 for length in scored), rel=1e-5)


def test_truncated_answers_vote_but_are_not_learned_from(tmp_path: Path) -> None:
    world = World(tmp_path)
    stage = policy_stage(
        select={"truncated": "mask"},
        sampling={"max_tokens": 20},
        prompts_per_step=16,
        loss={"type": "clip", "high": 0.28},
        optimizer={"lr": 1e-3, "weight_decay": 0.1, "clip_norm": 0.5},
    )
    (metrics,) = steps(PolicyTrainer(stage, world), 1)
    groups = [record.scored for record in world.records]
    cut = [r.stop_reason == "length" for g in groups for r in g.group.rollouts]
    assert any(cut)
    assert not all(cut)

    def finished(model: Any, answers: list[Answer], temperature: float) -> Tensor:
        return clip(model, [a for a, is_cut in zip(answers, cut, strict=True) if not is_cut], temperature)

    _, norm = step_by_hand(stage, ByHand({}, grpo, finished), groups)
    assert metrics["policy/grad_norm"] == pytest.approx(norm, rel=1e-3)


def test_the_targets_of_a_critic_are_advantages_that_are_not_whitened_plus_its_values(tmp_path: Path) -> None:
    world = World(tmp_path)
    (metrics,) = steps(PolicyTrainer(policy_stage(**CASES["ppo"].stage | {"ppo_epochs": 1}), world), 1)
    answers = answers_of([record.scored for record in world.records])
    gae(answers, whiten=False)
    # so the error before the first update is the advantage itself
    errors = torch.cat([a.advantages for a in answers if a.advantages is not None]).tolist()
    assert metrics["critic/squared_error"] == pytest.approx(mean(e * e for e in errors), rel=1e-4)
    critic, row_values = new_engine("critic"), []
    for a in answers:
        row_values += critic.values([Row(np.array(a.prompt, np.int32), np.array(a.tokens, np.int32))])[0].tolist()
    returns = [v + e for v, e in zip(row_values, errors, strict=True)]
    expected = 1 - pvariance(errors) / pvariance(returns)
    assert metrics["critic/explained_variance"] == pytest.approx(expected, rel=1e-3)
    assert math.isfinite(metrics["critic/grad_norm"])
