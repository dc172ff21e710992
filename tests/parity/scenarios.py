"""The inputs of all reference values: small, ragged, and short enough in decimals to be exact in JSON.

Masked positions hold ordinary numbers wherever the peer does not read them, so a comparison also shows that we do not.
Shapes as in `rewardsmith.algorithms.tensors`; K is the number of reward functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Inputs = dict[str, Any]


def _short(values: np.ndarray) -> list[Any]:
    return np.round(values, 4).tolist()


def _token_inputs(rng: np.random.Generator, mask_BT: np.ndarray) -> Inputs:
    """Draw one [B, T] tensor for every argument of a loss; log-ratios are wide enough to clip on both sides."""
    shape = mask_BT.shape
    old_BT = rng.uniform(-3, -0.1, shape)
    logprobs_BT = old_BT + rng.normal(0, 0.8, shape)
    old_values_BT = rng.normal(0, 1, shape)
    return {
        "mask_BT": mask_BT.tolist(),
        "old_BT": _short(old_BT),
        "logprobs_BT": _short(logprobs_BT),
        "sampler_BT": _short(old_BT + rng.normal(0, 0.4, shape)),
        "reference_BT": _short(logprobs_BT + rng.normal(0, 0.7, shape)),
        "advantages_BT": _short(rng.normal(0, 1.5, shape)),
        "values_BT": _short(old_values_BT),
        "new_values_BT": _short(old_values_BT + rng.normal(0, 0.4, shape)),
        "targets_BT": _short(old_values_BT + rng.normal(0, 1, shape)),
        "losses_BT": _short(rng.normal(0, 1, shape)),
    }


def ragged() -> Inputs:
    """Nine responses of one to seven tokens; groups of four, three and two, shuffled."""
    rng = np.random.default_rng(1)
    lengths_B = np.array([7, 3, 5, 1, 6, 2, 4, 7, 5])
    mask_BT = (np.arange(7) < lengths_B[:, None]).astype(int)
    # verl sums the rewards of a row without looking at the mask, so here (only) they are zero outside.
    rewards_BT = np.where(mask_BT == 1, rng.normal(0, 1, mask_BT.shape), 0.0)
    return _token_inputs(rng, mask_BT) | {
        "groups_B": [3, 7, 3, 5, 7, 3, 5, 7, 3],
        "rewards_BT": _short(rewards_BT),
        "baselines_B": _short(rng.normal(0, 1, 9)),
        "advantages_B": _short(rng.normal(0, 1.5, 9)),
        "scores_BK": _short(rng.normal(0, 1, (9, 2)) * [1.0, 5.0]),
        "logits_NV": _short(rng.normal(0, 2, (6, 5))),
    }


def gap() -> Inputs:
    """Five responses with masked tokens inside (tool output); rewards stand in the gaps too and must not count."""
    rng = np.random.default_rng(2)
    rows = ["1101100", "1011111", "1100110", "0111001", "1111111"]
    mask_BT = np.array([[int(c) for c in row] for row in rows])
    return _token_inputs(rng, mask_BT) | {"rewards_BT": _short(rng.normal(0, 1, mask_BT.shape))}


def degenerate() -> Inputs:
    """A group of three, a rollout without sibling, and a pair with equal rewards."""
    return {
        "mask_BT": [[1, 1], [1, 0], [1, 1], [1, 1], [1, 0], [1, 1]],
        "groups_B": [0, 0, 0, 1, 2, 2],
        "rewards_BT": [[0.0, 1.5], [-0.5, 0.0], [0.0, 0.25], [0.0, 2.0], [0.75, 0.0], [0.0, 0.75]],
    }


def empty_row() -> Inputs:
    """The second rollout has no token that counts: it failed."""
    rng = np.random.default_rng(3)
    mask_BT = np.array([[1, 1, 1], [0, 0, 0], [1, 1, 0], [1, 0, 0]])
    return _token_inputs(rng, mask_BT) | {
        "groups_B": [0, 0, 0, 0],
        "rewards_BT": [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.5, 0.0, 0.0]],
        "advantages_B": [1.0, -0.5, -2.0, 0.75],
    }


def extreme() -> Inputs:
    """Log-ratios of +12 to +25 and -25 to -12: where the safety bounds of the systems differ."""
    return {
        "mask_BT": [[1, 1, 1], [1, 1, 1]],
        "old_BT": [[-12.5, -13.0, -25.5], [-0.5, -0.25, -0.5]],
        "logprobs_BT": [[-0.5, -0.75, -0.5], [-12.5, -12.5, -25.5]],
        "reference_BT": [[-0.25, 3.0, -2.5], [-11.5, -13.0, -22.0]],
        "advantages_BT": [[-1.0, -1.0, -1.0], [-0.5, -0.5, -0.5]],
        "advantages_B": [-1.0, -0.5],
        "logits_NV": [[0.5, -1.0, None], [2.0, 0.0, 1.0]],  # None: a forbidden token, -inf
    }


def rewards_with_failures() -> Inputs:
    """Four groups of four rollouts and two reward functions; None where a function could not score."""
    return {
        "groups_B": [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4,
        "rewards_BK": [
            [0.5, 1.0], [1.25, -3.0], [None, None], [-0.75, 2.5],  # one rollout failed
            [2.0, 0.5], [1.0, None], [0.25, -4.0], [None, 1.5],  # two were scored by one function only
            [None, None], [0.75, 6.0], [None, None], [None, None],  # one survivor
            [0.5, 1.0], [0.5, 1.0], [0.5, 1.0], [0.5, 1.0],  # nothing to tell apart
        ],
    }  # fmt: skip


def pairs() -> Inputs:
    """Rewards of chosen and rejected answers, with margins."""
    rng = np.random.default_rng(4)
    return {
        "chosen_N": _short(rng.normal(0.5, 1, 5)),
        "rejected_N": _short(rng.normal(0, 1, 5)),
        "margin_N": _short(rng.uniform(0, 1, 5)),
    }


SCENARIOS = {
    build.__name__: build for build in (ragged, gap, degenerate, empty_row, extreme, rewards_with_failures, pairs)
}
