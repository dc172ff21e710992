"""ScoredGroup -> Batch: the tensors that the mathematics works on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream
from rewardsmith.algorithms.implicit_rewards import values_before
from rewardsmith.algorithms.policy_losses import overlong_penalty
from rewardsmith.algorithms.tensors import last_token, token_counts
from rewardsmith.engines.protocol import Row
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import Part
from rewardsmith.types import Prompt, Score, ScoredGroup

if TYPE_CHECKING:
    from rewardsmith.trainers.stages import OverlongSettings


@dataclass(frozen=True)
class Batch:
    """Rollouts as tensors; B rollouts, T tokens of the longest answer."""

    rows: Sequence[Row]  # the token ids of each rollout
    groups_B: Tensor  # int64, which rollouts answer the same prompt
    mask_BT: Tensor  # bool, answer tokens of the rollouts that take part: those that some reward could score
    truncated_B: Tensor  # bool, cut off by the token limit
    sampler_BT: Tensor  # float32, the log-probabilities with which the tokens were sampled
    versions_B: Tensor  # int64, the policy version that wrote each
    streams: Sequence[Stream]


@dataclass(frozen=True)
class Estimate:
    """The advantages of a batch, and what they were computed from besides the rewards."""

    advantages_BT: Tensor
    values_BT: Tensor | None = None  # of a critic
    kl_BT: Tensor | None = None  # the penalty in the reward, before its coefficient

    def columns(self, mask_BT: Tensor) -> dict[str, Sequence[float | NDArray[np.float32] | None]]:
        """Return the fields of `GroupRecord`, with a value for each rollout that takes part, and None for others."""
        found: dict[str, Sequence[float | NDArray[np.float32] | None]] = {
            "advantages": row_means(self.advantages_BT, mask_BT),
            "token_advantages": [
                None if row is None or (row == row[0]).all() else row for row in rows_of(self.advantages_BT, mask_BT)
            ],
        }
        inputs = {"token_values": self.values_BT, "token_kl": self.kl_BT}
        return found | {name: rows_of(one_BT, mask_BT) for name, one_BT in inputs.items() if one_BT is not None}


def row_means(values_BT: Tensor, mask_BT: Tensor) -> list[float | None]:
    """Return the mean of each row under the mask; None for a row that has nothing there."""
    counts_B = mask_BT.sum(-1)
    means_B = (values_BT * mask_BT).sum(-1) / counts_B.clamp(min=1)
    return [value if count else None for value, count in zip(means_B.tolist(), counts_B.tolist(), strict=True)]


def rows_of(values_BT: Tensor, mask_BT: Tensor) -> list[NDArray[np.float32] | None]:
    """Return the values of each row under the mask; None for a row that has nothing there."""
    rows = zip(values_BT.float().cpu().numpy(), mask_BT.cpu().numpy(), strict=True)
    return [row[counts].copy() if counts.any() else None for row, counts in rows]


def collate(
    scored: Sequence[ScoredGroup],
    encode: Callable[[Prompt], NDArray[np.int32]],
    parts: Mapping[str, Part],
    combine: Literal["before", "after"],
    device: torch.device,
) -> Batch:
    """Turn scored groups into a batch.

    A rollout that failed keeps its row, but has no token in the mask: it has no vote and no loss. Under "before" that
    is a rollout whose whole score failed; under "after" each part is a stream with its own mask, and a rollout takes
    part if one of them could score it. `parts` is empty for a reward that is not composed.
    """
    rollouts = [rollout for group in scored for rollout in group.group.rollouts]
    scores = [score for group in scored for score in group.scores]
    prompts = [tokens for group in scored for tokens in [encode(group.group.prompt)] * len(group.scores)]
    counts = torch.tensor([len(r.tokens) for r in rollouts])
    tokens_BT = torch.arange(int(counts.max()))[None] < counts[:, None]
    streams = reward_streams(scores, tokens_BT, parts, combine)
    voting_B = torch.stack([stream.scored(tokens_BT).any(-1) for stream in streams]).any(0)
    sampler_BT = torch.zeros(tokens_BT.shape)
    for row, rollout in zip(sampler_BT, rollouts, strict=True):
        row[: len(rollout.logprobs)] = torch.from_numpy(rollout.logprobs.copy())
    return Batch(
        rows=[Row(p, r.tokens) for p, r in zip(prompts, rollouts, strict=True)],
        groups_B=torch.tensor([i for i, group in enumerate(scored) for _ in group.scores], device=device),
        mask_BT=(tokens_BT & voting_B[:, None]).to(device),
        truncated_B=torch.tensor([r.stop_reason == "length" for r in rollouts], device=device),
        sampler_BT=sampler_BT.to(device),
        versions_B=torch.tensor([g.group.policy_version for g in scored for _ in g.scores], device=device),
        streams=[_to_device(stream, device) for stream in streams],
    )


def reward_streams(
    scores: Sequence[Score], tokens_BT: Tensor, parts: Mapping[str, Part], combine: Literal["before", "after"]
) -> list[Stream]:
    """Return the rewards as streams: one of the whole, or one for each part; see `collate`."""
    if not parts:
        return [_stream("reward", scores, tokens_BT, Part())]
    dense = any(score.parts[name].token_values is not None for score in scores for name in parts if name in score.parts)
    if combine == "before" and not dense:
        discounts = {part.discount for part in parts.values()}
        if len(discounts) > 1:
            raise UserError('the parts of the reward have different discounts: set advantage.combine = "after"')
        return [_stream("reward", scores, tokens_BT, Part(discount=discounts.pop()))]
    columns = {name: [score.parts.get(name) for score in scores] for name in parts}
    streams = [_stream(name, columns[name], tokens_BT, part) for name, part in parts.items()]
    if combine == "after":
        return streams
    # Under "before" a rollout with one failed part has no sum, and takes no part at all.
    ok_B1 = torch.tensor([score.ok for score in scores])[:, None]
    return [replace(stream, mask_BT=tokens_BT & ok_B1) for stream in streams]


def _stream(name: str, scores: Sequence[Score | None], tokens_BT: Tensor, part: Part) -> Stream:
    """Return one reward as tensors: an outcome on the last token of each row, or a reward per token."""
    ok_B = torch.tensor([score is not None and score.ok for score in scores])
    outcome_B = torch.tensor([score.value if score is not None and score.ok else 0.0 for score in scores])
    mask_BT = tokens_BT & ok_B[:, None]
    if not any(score is not None and score.token_values is not None for score in scores):
        rewards_BT = torch.where(last_token(mask_BT), outcome_B[:, None], 0.0)
        return Stream(name, rewards_BT, None, mask_BT, part.weight, part.discount)
    rewards_BT = torch.zeros(tokens_BT.shape)
    support_BT = torch.zeros(tokens_BT.shape, dtype=torch.bool)
    for i, score in enumerate(scores):
        if score is None or not score.ok:
            continue
        if score.token_values is None:
            raise UserError(f"the reward {name!r} gave token values for some rollouts and none for others")
        length = len(score.token_values)
        rewards_BT[i, :length] = torch.from_numpy(score.token_values.copy())
        support_BT[i, :length] = True if score.token_support is None else torch.from_numpy(score.token_support.copy())
    return Stream(name, rewards_BT, support_BT & mask_BT, mask_BT, part.weight, part.discount)


# ---- what else enters the advantage ---------------------------------------------------------------------------------


def overlong_penalties(mask_BT: Tensor, overlong: OverlongSettings | None, max_tokens: int) -> Tensor | None:
    """Return what overlong answers lose, [B]; None where the recipe has no such penalty."""
    if overlong is None:
        return None
    limit = overlong.limit or max_tokens
    return overlong_penalty(token_counts(mask_BT), limit=limit, buffer=overlong.buffer, factor=overlong.factor)


def overlong_stream(penalty_B: Tensor, mask_BT: Tensor, discount: float | None) -> Stream:
    """Return the penalty as a reward on the last token of each answer."""
    return Stream("overlong", torch.where(last_token(mask_BT), penalty_B[:, None], 0), discount=discount)


def kl_stream(penalty_BT: Tensor, coefficient: float, discount: float | None) -> Stream:
    """Return the distance from the reference as a reward of each token."""
    return Stream("kl", penalty_BT, weight=coefficient, discount=discount)


def weigh_by_trust(streams: Sequence[Stream], trusts: Mapping[str, float]) -> list[Stream]:
    """Return the streams, those of implicit rewards weighted by their trust; none of weight 0."""
    weighted = [replace(s, weight=s.weight * trusts.get(s.name, 1.0)) for s in streams]
    counting = [stream for stream in weighted if stream.weight or stream.name not in trusts]
    return counting or weighted  # where there is no other reward, nothing is to be gained from this step


def process_values(streams: Sequence[Stream], names: Collection[str], mask_BT: Tensor) -> tuple[list[Stream], Tensor]:
    """Return the other streams, and the sum of the implicit rewards before each token as their baseline [B, T]."""
    values_BT = torch.zeros(mask_BT.shape, device=mask_BT.device)
    for stream in streams:
        if stream.name in names:
            values_BT += stream.weight * values_before(stream.rewards_BT, mask_BT)
    return [stream for stream in streams if stream.name not in names], values_BT


def _to_device(stream: Stream, device: torch.device) -> Stream:
    support_BT, mask_BT = (None if x is None else x.to(device) for x in (stream.support_BT, stream.mask_BT))
    return replace(stream, rewards_BT=stream.rewards_BT.to(device), support_BT=support_BT, mask_BT=mask_BT)
