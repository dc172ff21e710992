"""ScoredGroup -> Batch: the tensors that the mathematics works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream
from rewardsmith.algorithms.tensors import last_token
from rewardsmith.engines.protocol import Row
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import Part
from rewardsmith.types import Prompt, Score, ScoredGroup


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


def _to_device(stream: Stream, device: torch.device) -> Stream:
    support_BT, mask_BT = (None if x is None else x.to(device) for x in (stream.support_BT, stream.mask_BT))
    return replace(stream, rewards_BT=stream.rewards_BT.to(device), support_BT=support_BT, mask_BT=mask_BT)
