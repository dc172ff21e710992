"""Findings on the policy's own answers: what the reward has to teach, and whether the reference agrees with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.judge_statistics import calibration_error
from rewardsmith.auditing.audit_measures import MAX_TEXT, mean_finding, percent
from rewardsmith.auditing.findings import Example, Finding
from rewardsmith.auditing.watch_statistics import above_mean


@dataclass(frozen=True)
class SampleGroup:
    """The policy's own answers to a prompt: texts, rewards and verdicts of the reference; NaN where one failed."""

    prompt: str
    texts: Sequence[str]
    rewards: NDArray[np.float64]
    reference: NDArray[np.float64] | None = None


def learning_findings(groups: Sequence[SampleGroup], unit: float) -> list[Finding]:
    """Return what the reward has to teach: groups without contrast, spread within groups, the best of n."""
    scored = [(one.prompt, one.rewards[~np.isnan(one.rewards)]) for one in groups]
    several = [(prompt, values) for prompt, values in scored if len(values) > 1]
    mean = float(np.mean([values.mean() for _, values in several])) if several else 0.0
    size = max((len(one.rewards) for one in groups), default=0)
    return [
        *mean_finding(
            "flat", "learning", ((prompt, float(np.ptp(values) == 0)) for prompt, values in several),
            lambda rate: f"{percent(rate)} of the groups have equal rewards, and teach nothing",
        ),
        *mean_finding(
            "spread", "learning", ((prompt, float(values.std()) / unit) for prompt, values in several),
            lambda value: f"rewards within a group spread by {value:.3g} of the gap between right and wrong",
            share=False,
        ),
        *mean_finding(
            "ceiling", "learning", ((prompt, float(values.max())) for prompt, values in several),
            lambda value: f"the best of {size} answers has {value:.3g} in the mean, any answer {mean:.3g}", share=False,
        ),
    ]  # fmt: skip


def reference_findings(groups: Sequence[SampleGroup], accepts: float) -> list[Finding]:
    """Return how the reward agrees with the reference on the policy's own answers.

    Rewarded is what has more than the mean of its group, and in a group of equal rewards nothing.
    """
    rewarded, right, pairs = [], [], []
    for one in groups:
        reference = np.full(len(one.rewards), np.nan) if one.reference is None else one.reference
        both = ~np.isnan(one.rewards) & ~np.isnan(reference)
        above = np.zeros_like(both)
        above[both] = above_mean(one.rewards[both])
        for i in np.flatnonzero(both).tolist():
            is_right = bool(reference[i] >= accepts)
            shown = Example(one.prompt, "sample", one.texts[i][:MAX_TEXT], float(one.rewards[i]), "")
            if above[i]:
                rewarded.append((one.prompt, float(not is_right), shown))
            if is_right and np.ptp(one.rewards[both]) > 0:
                right.append((one.prompt, float(not above[i]), shown))
            pairs.append((float(one.rewards[i]), float(is_right)))
    found = [
        *mean_finding(
            "false_discovery", "truth", [(prompt, value) for prompt, value, _ in rewarded],
            lambda rate: f"the reference rejects {percent(rate)} of the policy's answers that are rewarded",
            [shown for _, value, shown in rewarded if value],
        ),
        *mean_finding(
            "missed", "truth", [(prompt, value) for prompt, value, _ in right],
            lambda rate: f"{percent(rate)} of the policy's answers that the reference accepts are not rewarded",
            [shown for _, value, shown in right if value],
        ),
    ]  # fmt: skip
    rewards, truth = np.array(pairs).reshape(-1, 2).T
    if len(rewards) and rewards.min() >= 0 and rewards.max() <= 1:
        error = calibration_error(rewards, truth)
        line = f"a reward is {error:.3g} away from the share of right answers that have it"
        found.append(Finding("calibration_error", "truth", error, math.nan, math.nan, len(rewards), line))
    return found
