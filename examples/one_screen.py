"""The policy step on one screen: rewardsmith's nouns, reward and mathematics around a policy in plain torch.

    python examples/one_screen.py [--advantage rloo] [--loss gspo]

A small recurrent network imitates sloppy sums (`7+5=2;#2` is one of its bad habits) and then learns from a rule which
of its habits are right. RL here selects a skill that the demonstrations contain; it does not teach arithmetic.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import statistics
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from rewardsmith import Prompt, Rollout, RolloutGroup, ScoredGroup
from rewardsmith.algorithms.advantages import ADVANTAGES, Stream, estimate_advantages
from rewardsmith.algorithms.policy_losses import POLICY_LOSSES, reduce, token_mean
from rewardsmith.algorithms.tensors import last_token
from rewardsmith.data import Arithmetic
from rewardsmith.rewards import Reward, make_reward

SYMBOLS = "_$0123456789+-=;#?"  # padding, the end of an answer, and the characters of the world
PAD, END = 0, 1
LONGEST = 12


def policy_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    reward: Reward,
    prompts: list[Prompt],
    n: int,
    advantage: Callable[..., Tensor],
    loss: Callable[..., tuple[Tensor, dict[str, Tensor]]],
) -> float:
    """Take one step of reinforcement learning; return the mean of the rewards that could be computed."""
    groups = policy.generate(prompts, n)  # Prompt -> RolloutGroup
    scored = asyncio.run(score(reward, groups))  # RolloutGroup -> ScoredGroup
    worth_B, mask_BT, logprobs_BT = collate(policy, scored)  # ScoredGroup -> tensors
    rewards_BT = torch.where(last_token(mask_BT), worth_B[:, None], 0)
    groups_B = torch.arange(len(groups)).repeat_interleave(n)
    advantages_BT = estimate_advantages([Stream("answer", rewards_BT)], mask_BT, groups_B, estimator=advantage)
    losses_BT, _ = loss(logprobs_BT, logprobs_BT.detach(), advantages_BT, mask_BT)
    update(optimizer, reduce(losses_BT, token_mean(mask_BT)))
    return float(worth_B[mask_BT.any(-1)].mean())


class Policy(nn.Module):
    """Reads characters and says which comes next. Problems of one length need no padding on the left."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(SYMBOLS), width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(SYMBOLS))

    def forward(self, tokens_BT: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [B, T, V] of each next character, and the state to go on from."""
        hidden, state = self.read(self.embed(tokens_BT), state)
        return torch.log_softmax(self.head(hidden), -1), state

    @torch.no_grad()
    def generate(self, prompts: list[Prompt], n: int) -> list[RolloutGroup]:
        """Sample n answers to each prompt."""
        logps, state = self(torch.tensor([question(p) for p in prompts]).repeat_interleave(n, 0))
        written, chances = [], []
        for _ in range(LONGEST):
            token_B1 = torch.multinomial(logps[:, -1].exp(), 1)
            written.append(token_B1)
            chances.append(logps[:, -1].gather(-1, token_B1))
            logps, state = self(token_B1, state)
        rows = zip(torch.cat(written, -1), torch.cat(chances, -1), strict=True)
        rollouts = [finished(tokens_T, logprobs_T) for tokens_T, logprobs_T in rows]
        return [RolloutGroup(p, rollouts[i * n : (i + 1) * n]) for i, p in enumerate(prompts)]

    def logprobs(self, questions: list[list[int]], answers: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each answer token [B, T], and the mask [B, T]."""
        rows = [torch.tensor(q + a) for q, a in zip(questions, answers, strict=True)]
        tokens_BT = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        logps, _ = self(tokens_BT[:, :-1])
        start = len(questions[0])
        return logps.gather(-1, tokens_BT[:, 1:, None]).squeeze(-1)[:, start - 1 :], tokens_BT[:, start:] != PAD


def question(prompt: Prompt) -> list[int]:
    """Return the prompt as token ids."""
    return [SYMBOLS.index(c) for c in prompt.messages[-1].content]


def finished(tokens_T: Tensor, logprobs_T: Tensor) -> Rollout:
    """Cut a sampled row after its end."""
    tokens = tokens_T.tolist()
    length = tokens.index(END) + 1 if END in tokens else len(tokens)
    text = "".join(SYMBOLS[t] for t in tokens[:length]).rstrip("$")
    return Rollout(text, tokens_T[:length].numpy(), logprobs_T[:length].numpy(), "stop" if END in tokens else "length")


async def score(reward: Reward, groups: list[RolloutGroup]) -> list[ScoredGroup]:
    """Score every group."""
    return [ScoredGroup(group, await reward.score(group)) for group in groups]


def collate(policy: Policy, scored: list[ScoredGroup]) -> tuple[Tensor, Tensor, Tensor]:
    """Return rewards [B], mask [B, T] and log-probabilities [B, T]. A failure is not a score: its row is masked."""
    questions = [question(s.group.prompt) for s in scored for _ in s.scores]
    logprobs_BT, mask_BT = policy.logprobs(questions, [r.tokens.tolist() for s in scored for r in s.group.rollouts])
    values = [score.value for s in scored for score in s.scores]
    worth_B = torch.tensor([math.nan if value is None else value for value in values])
    return worth_B, mask_BT & ~worth_B.isnan()[:, None], logprobs_BT


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Step down the gradient."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def cold_start(policy: Policy, world: Arithmetic, *, steps: int, batch: int = 64) -> None:
    """Imitate the sloppy demonstrations."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3)
    demonstrations = world.demonstrations(seed=1)
    for _ in range(steps):
        examples = list(itertools.islice(demonstrations, batch))
        answers = [[SYMBOLS.index(c) for c in f"{d.response}$"] for d in examples]
        logprobs_BT, mask_BT = policy.logprobs([question(d.prompt) for d in examples], answers)
        update(optimizer, -reduce(logprobs_BT, token_mean(mask_BT)))


def accuracy(policy: Policy, reward: Reward, prompts: list[Prompt]) -> float:
    """Return the share of right answers among the sampled ones that could be scored."""
    scored = asyncio.run(score(reward, policy.generate(prompts, 4)))
    return statistics.fmean(s.value for group in scored for s in group.scores if s.value is not None)


def reinforce(
    policy: Policy, world: Arithmetic, reward: Reward, *, advantage: str, loss: str, steps: int
) -> Iterator[float]:
    """Yield the mean reward of each step of reinforcement learning."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0)
    prompts = world.prompts(seed=2)
    for _ in range(steps):
        drawn = list(itertools.islice(prompts, 32))
        yield policy_step(policy, optimizer, reward, drawn, 8, ADVANTAGES[advantage], POLICY_LOSSES[loss])


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--advantage", default="grpo", choices=sorted(set(ADVANTAGES) - {"gae", "remax"}))
    parser.add_argument("--loss", default="clip", choices=sorted(POLICY_LOSSES))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    world = Arithmetic(operations=1, held_out=0.0, forgets_carry=0.7, slips=0.4)
    reward = make_reward({"type": "rule", "rule": "arithmetic"})
    policy = Policy()
    print("imitating 400 batches of sloppy sums …")
    cold_start(policy, world, steps=400)
    test = list(itertools.islice(world.prompts(seed=99), 256))
    before = accuracy(policy, reward, test)
    print(f"right answers after imitation: {before:.0%}")
    means = reinforce(policy, world, reward, advantage=given.advantage, loss=given.loss, steps=100)
    for step, mean in enumerate(means, 1):
        if step % 10 == 0:
            print(f"step {step:3d}   reward {mean:.2f}   {'#' * round(40 * mean)}")
    after = accuracy(policy, reward, test)
    print(
        f"right answers after 100 steps of {given.advantage} with the {given.loss} loss: {after:.0%}, from {before:.0%}"
    )


if __name__ == "__main__":
    main()
