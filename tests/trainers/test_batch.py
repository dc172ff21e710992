"""Groups as tensors: who takes part, where a reward sits, and what belongs to whom."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import dr_grpo, estimate_advantages
from rewardsmith.rewards.base import Part
from rewardsmith.trainers.batch import Batch, collate
from rewardsmith.types import Failure, Prompt, Score, ScoredGroup
from tests.trainers.world import FAILED, scored

CPU = torch.device("cpu")
PARTS = {"a": Part(weight=2.0, discount=0.5), "b": Part(weight=-1.0)}


def encode(prompt: Prompt) -> np.ndarray:
    return np.array([90 + int(prompt.id[1:])], np.int32)


def made(groups: list[ScoredGroup], parts: dict[str, Part] | None = None, combine: Any = "before") -> Batch:
    return collate(groups, encode, parts or {}, combine, CPU)


def both(a: Score | float, b: Score | float, total: float | None = None) -> Score:
    """Return the score of a sum with the parts a and b; no total is a failure."""
    parts = {name: x if isinstance(x, Score) else Score(x) for name, x in (("a", a), ("b", b))}
    return Score(failure=Failure("timeout"), parts=parts) if total is None else Score(total, parts=parts)


def dense(*values: float, support: list[bool] | None = None) -> Score:
    return Score(sum(values), token_values=list(values), token_support=support)


def test_rows_follow_the_groups() -> None:
    batch = made(
        [
            scored([1.0, 2.0], number=3, version=5, lengths=[1, 3], stop_reasons=["stop", "length"]),
            scored([4.0], number=1, version=2, lengths=[2]),
        ]
    )
    assert [row.prompt.tolist() for row in batch.rows] == [[93], [93], [91]]
    assert [row.response.tolist() for row in batch.rows] == [[1], [1, 2, 3], [1, 2]]
    assert batch.groups_B.tolist() == [0, 0, 1]
    assert batch.versions_B.tolist() == [5, 5, 2]
    assert batch.truncated_B.tolist() == [False, True, False]
    assert batch.mask_BT.tolist() == [[True, False, False], [True, True, True], [True, True, False]]
    torch.testing.assert_close(batch.sampler_BT, torch.tensor([[-1, 0, 0], [-1, -1 / 2, -1 / 3], [-1, -1 / 2, 0]]))
    (stream,) = batch.streams
    assert stream.rewards_BT.tolist() == [[1, 0, 0], [0, 0, 2], [0, 4, 0]]
    assert (stream.support_BT, stream.weight, stream.discount) == (None, 1.0, None)


def test_a_failed_rollout_keeps_its_row_and_has_no_token_in_the_mask() -> None:
    batch = made([scored([1.0, FAILED, 0.0])])
    assert batch.mask_BT.tolist() == [[True, True], [False, False], [True, True]]
    assert len(batch.rows) == 3
    advantages_BT = estimate_advantages(batch.streams, batch.mask_BT, batch.groups_B, estimator=dr_grpo)
    assert advantages_BT.tolist() == [[0.5, 0.5], [0.0, 0.0], [-0.5, -0.5]]


def test_before_the_sum_is_one_stream_with_its_weights_in_it_already() -> None:
    parts = {"a": Part(weight=2.0, discount=0.5), "b": Part(weight=-1.0, discount=0.5)}
    batch = made([scored([both(3.0, 1.0, total=5.0), both(0.0, 1.0, total=-1.0), both(1.0, FAILED)])], parts)
    (stream,) = batch.streams
    assert stream.rewards_BT.tolist() == [[0, 5], [0, -1], [0, 0]]
    assert (stream.weight, stream.discount) == (1.0, 0.5)
    assert batch.mask_BT.any(-1).tolist() == [True, True, False]


def test_before_parts_with_different_discounts_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r'parts of the reward have different discounts: set advantage\.combine = "aft'
    ):
        made([scored([both(1.0, 2.0, total=0.0)])], PARTS)


def test_after_each_part_is_a_stream_with_a_weight_a_discount_and_a_mask() -> None:
    group = scored([both(3.0, 1.0, total=5.0), both(1.0, FAILED), both(FAILED, 4.0), both(FAILED, FAILED)])
    batch = made([group], PARTS, "after")
    a, b = batch.streams
    assert (a.name, a.weight, a.discount, b.name, b.weight, b.discount) == ("a", 2.0, 0.5, "b", -1.0, None)
    assert a.rewards_BT.tolist() == [[0, 3], [0, 1], [0, 0], [0, 0]]
    assert b.rewards_BT.tolist() == [[0, 1], [0, 0], [0, 4], [0, 0]]
    assert _any(a.mask_BT) == [True, True, False, False]
    assert _any(b.mask_BT) == [True, False, True, False]
    assert _any(batch.mask_BT) == [True, True, True, False]
    advantages_BT = estimate_advantages(
        batch.streams, batch.mask_BT, batch.groups_B, estimator=dr_grpo, combine="after"
    )
    # weight · (own - mean of those that voted), the first token discounted by 0.5 for part a
    expected = [[2 * 0.5 * 1 - 1 * -1.5, 2 * 1 + 1.5], [2 * 0.5 * -1, 2 * -1], [-1.5, -1.5], [0.0, 0.0]]
    assert advantages_BT.tolist() == expected


def _any(mask_BT: Tensor | None) -> list[bool]:
    assert mask_BT is not None
    result: list[bool] = mask_BT.any(-1).tolist()
    return result


# ---- rewards per token -----------------------------------------------------------------------------------------------


def test_rewards_per_token_sit_on_their_tokens_and_support_says_which_carry_one() -> None:
    group = scored([dense(0.5, 0.25, 0.125), dense(1.0, 2.0, support=[False, True]), FAILED], lengths=[3, 2, 1])
    batch = made([group])
    (stream,) = batch.streams
    assert stream.rewards_BT.tolist() == [[0.5, 0.25, 0.125], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    assert stream.support_BT is not None
    assert stream.support_BT.tolist() == [[True, True, True], [False, True, False], [False, False, False]]
    assert _any(batch.mask_BT) == [True, True, False]


def test_rewards_per_token_for_some_rollouts_only_are_refused() -> None:
    with pytest.raises(ValueError, match="'reward' gave token values for some rollouts and none for others"):
        made([scored([dense(0.5, 0.5), 1.0])])


def test_before_a_dense_part_keeps_its_tokens_and_a_lost_sum_loses_the_row() -> None:
    parts = {"a": Part(weight=2.0), "b": Part(weight=3.0)}
    group = scored([both(dense(0.5, 0.25), 1.0, total=4.5), both(dense(1.0, 0.0), FAILED), both(dense(0, 1), 0, 2.0)])
    batch = made([group], parts)
    a, b = batch.streams
    assert (a.weight, b.weight) == (2.0, 3.0)
    assert a.rewards_BT[[0, 2]].tolist() == [[0.5, 0.25], [0.0, 1.0]]
    assert b.rewards_BT[[0, 2]].tolist() == [[0.0, 1.0], [0.0, 0.0]]
    assert [_any(s.mask_BT) for s in (a, b)] == [[True, False, True]] * 2
    assert _any(batch.mask_BT) == [True, False, True]


# ---- order -----------------------------------------------------------------------------------------------------------
