"""ScoredGroup -> what an implicit process reward model reads: token ids, and an outcome for each that has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.protocol import Row
from rewardsmith.errors import UserError
from rewardsmith.types import Prompt, Score, ScoredGroup


@dataclass(frozen=True)
class Labelled:
    """Rollouts and their outcomes; B rollouts, T tokens of the longest answer.

    Attributes:
        rows: the token ids of each rollout.
        groups_B: int64 [B], which rollouts answer the same prompt.
        mask_BT: bool [B, T], the answer tokens.
        outcomes_B: float32 [B] in [0, 1]; 0 where there is none.
        votes_B: bool [B], whether there is an outcome: one that failed is no label.
        fresh: how many of the rollouts, the first ones, were written in this step; the others are replayed.
        sampler_BT: float32 [B, T], the log-probabilities with which the tokens were sampled.
    """

    rows: Sequence[Row]
    groups_B: Tensor
    mask_BT: Tensor
    outcomes_B: Tensor
    votes_B: Tensor
    fresh: int
    sampler_BT: Tensor


def labelled(
    fresh: Sequence[ScoredGroup],
    replayed: Sequence[ScoredGroup],
    encode: Callable[[Prompt], NDArray[np.int32]],
    outcome: str,
    device: torch.device,
) -> Labelled:
    """Turn scored groups into what the model learns from.

    Args:
        fresh: the groups of this step.
        replayed: groups of earlier steps.
        encode: from a prompt to the tokens that the policy read.
        outcome: the dotted name of the part of the reward that is the outcome.
        device: of the tensors.
    """
    groups = [*fresh, *replayed]
    rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
    labels = [outcome_of(score, outcome) for scored in groups for score in scored.scores]
    prompts = [tokens for scored in groups for tokens in [encode(scored.group.prompt)] * len(scored.scores)]
    counts_B = torch.tensor([len(rollout.tokens) for rollout in rollouts])
    mask_BT = torch.arange(int(counts_B.max()))[None] < counts_B[:, None]
    sampler_BT = torch.zeros(mask_BT.shape)
    sampler_BT[mask_BT] = torch.from_numpy(np.concatenate([rollout.logprobs for rollout in rollouts]))
    return Labelled(
        rows=[Row(p, r.tokens) for p, r in zip(prompts, rollouts, strict=True)],
        groups_B=torch.tensor([i for i, scored in enumerate(groups) for _ in scored.scores], device=device),
        mask_BT=mask_BT.to(device),
        outcomes_B=torch.tensor([label or 0.0 for label in labels], device=device),
        votes_B=torch.tensor([label is not None for label in labels], device=device) & mask_BT.any(-1).to(device),
        fresh=sum(len(scored.scores) for scored in fresh),
        sampler_BT=sampler_BT.to(device),
    )


def outcome_of(score: Score, outcome: str) -> float | None:
    """Return the outcome of a rollout; None where it has none, because it failed or was not asked for."""
    part = dict(score.named_parts()).get(outcome)
    if part is None or part.value is None:
        return None
    if not 0 <= part.value <= 1:
        raise UserError(
            f'an implicit process reward model learns from outcomes between 0 and 1, but the part "{outcome}" gave'
            f' {part.value:g}: bring it there with type = "clip" or "scale", or name another part as the outcome'
        )
    return part.value
