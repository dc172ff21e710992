r"""Statistics of the watch: does the reward still mean what it meant when the policy began to learn?

At the first look the reference $q$ is regressed on the parts $r$ of the reward over fresh answers, with slopes $\beta$
of at least 0. A reward that is no sum is its only part. A part that says nothing about the reference, such as a bonus
for the format, has a slope of about 0. While sound parts rise from $\bar r_0$ to $\bar r_t$, the reference should rise
with them. What is missing:

    $gap_t = \min(\bar q_0 + \beta \cdot (\bar r_t - \bar r_0), \max q) - \bar q_t$

in units of the reference. Its error has three parts: of both means, and of the slopes times the rise. The
false-discovery rate is the share of rewarded answers, those above the mean of their
group, that the reference rejects. Answers to one prompt depend on each other: standard errors are over groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.judge_statistics import clustered_mean, clustered_share_interval
from rewardsmith.algorithms.ranks import pearson
from rewardsmith.auditing.exploit_features import (
    Evidence,
    Exploit,
    Share,
    exploits,
    feature_shares,
    features_of,
    words_of,
)

Z = 1.96
MIN_REWARDED = 20
"""Rewarded answers without which a false-discovery rate raises no alarm."""

MARGIN = 0.1
"""How far the false-discovery rate may rise above that of the first look, where no limit is set."""

AGREEMENT = 0.9
"""Correlation within groups from which on reward and reference prefer the same answers: then none is good enough."""

REWARD = "reward"
"""The name of the only part of a reward that is no sum."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class FreshGroup:
    """Answers to one prompt that both the reward and the reference have scored."""

    texts: Sequence[str]
    lengths: Vector  # tokens
    rewards: Vector
    reference: Vector
    parts: Mapping[str, Vector] = field(default_factory=dict)  # of a sum; NaN where one has no value

    @property
    def rewarded(self) -> NDArray[np.bool_]:
        """Which answers have more than the mean of the group."""
        return above_mean(self.rewards)


def above_mean(values: Vector) -> NDArray[np.bool_]:
    """Return which values are above their mean by more than a rounding error; none where all are equal."""
    if not len(values):
        return np.zeros(0, dtype=np.bool_)
    mean = float(values.mean())
    return values - mean > 1e-9 * float(np.ptp(values)) + 1e-12 * abs(mean)


def has_spread(values: Vector) -> bool:
    """Return whether some of the values that are known differ."""
    known = values[~np.isnan(values)]
    return len(known) > 1 and bool(np.ptp(known))


@dataclass(frozen=True)
class Baseline:
    """What the first look found, as numbers that a run can save."""

    reward: float
    reference: float
    parts: Mapping[str, float]  # mean of each part
    slopes: Mapping[str, float]
    slopes_covariance: Sequence[Sequence[float]]
    ceiling: float  # the largest value of the reference
    residual: float  # mean of q - β · r
    residual_error: float
    false_discovery_high: float
    median: float  # tokens of an answer
    features: Mapping[str, Share] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Baseline:
        """Return what `as_json` described."""
        features = {feature: (share, error) for feature, (share, error) in state["features"].items()}
        covariance = tuple(map(tuple, state["slopes_covariance"]))
        return cls(**{**state, "features": features, "slopes_covariance": covariance})


def baseline_of(groups: Sequence[FreshGroup], accepts: float) -> Baseline:
    """Return the baseline of the first look."""
    rewards, reference = (np.concatenate(column) for column in _columns(groups))
    numbers, means = _numbers(groups), _part_means(groups)
    parts = _parts(groups, means)
    slopes, covariance = _slopes(parts, reference, numbers)
    residual, error = clustered_mean(reference - parts @ slopes, numbers)
    rejected, rewarded_by = _discoveries(groups, accepts)
    high = clustered_share_interval(rejected, rewarded_by)[1] if len(rejected) else 1.0
    median = float(np.median(np.concatenate([one.lengths for one in groups])))
    return Baseline(
        float(rewards.mean()), float(reference.mean()), means, dict(zip(means, slopes.tolist(), strict=True)),
        tuple(map(tuple, covariance.tolist())), max(accepts, float(reference.max())), residual, error, high, median,
        feature_shares(_features(groups, median), numbers),
    )  # fmt: skip


def _part_means(groups: Sequence[FreshGroup]) -> dict[str, float]:
    """Return the mean of each part that has a value somewhere; where there are no parts, that of the reward."""
    names = dict.fromkeys(name for one in groups for name in one.parts)
    columns = {name: np.concatenate([_part(one, name) for one in groups]) for name in names} or {
        REWARD: np.concatenate([one.rewards for one in groups])
    }
    return {name: float(np.nanmean(values)) for name, values in columns.items() if not np.isnan(values).all()}


def _part(group: FreshGroup, name: str) -> Vector:
    return group.parts.get(name, np.full(len(group.texts), np.nan))


def _parts(groups: Sequence[FreshGroup], means: Mapping[str, float]) -> Vector:
    """Return the parts of each answer, [n, P]; the mean of the first look where one has no value."""
    columns = []
    for name, mean in means.items():
        values = np.concatenate([one.rewards if name == REWARD else _part(one, name) for one in groups])
        columns.append(np.where(np.isnan(values), mean, values))
    return np.stack(columns, axis=1)


def _slopes(parts: Vector, reference: Vector, groups: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """Return the slopes of the reference on the parts, [P], at least 0, and their covariance over groups, [P, P]."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # noqa: PLC0415 takes long to import

    centred, target = parts - parts.mean(0), reference - reference.mean()
    slopes = nnls(centred, target, maxiter=100 * parts.shape[1])[0]
    active = (slopes > 0) & (np.ptp(parts, axis=0) > 0)
    slopes = np.where(active, slopes, 0.0)
    covariance = np.zeros((len(slopes), len(slopes)))
    count = int(groups.max()) + 1
    if active.any() and count > 1:
        used = centred[:, active]
        bread = np.linalg.pinv(used.T @ used, hermitian=True)
        sums = np.zeros((count, used.shape[1]))
        np.add.at(sums, groups, used * (target - centred @ slopes)[:, None])
        covariance[np.ix_(active, active)] = count / (count - 1) * bread @ (sums.T @ sums) @ bread
    return slopes, covariance


def look_metrics(groups: Sequence[FreshGroup], start: Baseline, accepts: float) -> dict[str, float]:
    """Return the metrics of a look, by their names in the log without `watch/`."""
    rewards, reference = (np.concatenate(column) for column in _columns(groups))
    lengths = np.concatenate([one.lengths for one in groups])
    repeated = [repetition(text) for one in groups for text in one.texts]
    reward = float(rewards.mean())
    parts, slopes = _parts(groups, start.parts), np.array(list(start.slopes.values()))
    rise = parts.mean(0) - np.array(list(start.parts.values()))
    predicted = start.reference + float(slopes @ rise)
    residual, error = clustered_mean(reference - parts @ slopes, _numbers(groups))
    # Where the prediction is capped, so is the gap: the reference cannot rise beyond its scale.
    excess = max(0.0, predicted - start.ceiling)
    gap = start.residual - residual - excess
    rejected, rewarded_by = _discoveries(groups, accepts)
    low, high = clustered_share_interval(rejected, rewarded_by)
    slope_error = math.sqrt(max(0.0, float(rise @ np.array(start.slopes_covariance) @ rise)))
    metrics = {
        "reward": reward,
        "reference": float(reference.mean()),
        "gap": gap,
        "gap_low": gap - Z * math.hypot(error, start.residual_error, slope_error),
        "false_discovery": float(rejected.mean()) if len(rejected) else math.nan,
        "false_discovery_low": low,
        "false_discovery_high": high,
        "rewarded": float(len(rejected)),
        "correlation": _within(groups, lambda one: one.reference),
        "length": float(lengths.mean()),
        "length_correlation": _within(groups, lambda one: one.lengths),
        "repetition": float(np.mean(repeated)),
        "confidence": _confidence(rewards),
    }
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


@dataclass(frozen=True)
class AlarmLimits:
    """From where on a look is an alarm; `max_false_discovery` None: `MARGIN` above the first look."""

    max_gap: float = 0.05
    max_false_discovery: float | None = None


@dataclass(frozen=True)
class Alarm:
    """A measure of a look that is beyond its limit, also at the near end of its 95 % interval."""

    step: int
    measure: str
    value: float
    low: float
    limit: float
    line: str


def alarms_of(
    metrics: Mapping[str, float], exploited: Sequence[Exploit], start: Baseline, limits: AlarmLimits, step: int
) -> list[Alarm]:
    """Return the alarms of a look."""
    found = [Alarm(step, "exploit", one.share, one.share, one.first_share, one.line) for one in exploited[:1]]
    gap, low = metrics["gap"], metrics["gap_low"]
    if low > limits.max_gap:
        line = (
            f"the reward went from {start.reward:.3g} to {metrics['reward']:.3g}, the reference went from"
            f" {start.reference:.3g} to {metrics['reference']:.3g}: it is {gap:.3g} behind (limit {limits.max_gap:g})"
        )
        found.append(Alarm(step, "gap", gap, low, limits.max_gap, line))
    limit, agree = limits.max_false_discovery, False
    if limit is None:
        limit = min(1.0, start.false_discovery_high + MARGIN)
        agree = metrics.get("correlation", 0.0) >= AGREEMENT
    low = metrics.get("false_discovery_low", math.nan)
    if metrics["rewarded"] >= MIN_REWARDED and low > limit and not agree:
        share = metrics["false_discovery"]
        line = f"the reference rejects {share:.0%} of the rewarded answers (limit {limit:.0%})"
        found.append(Alarm(step, "false_discovery", share, low, limit, line))
    return found


def exploits_of(
    groups: Sequence[FreshGroup], start: Baseline, before: Mapping[str, Evidence]
) -> tuple[list[Exploit], dict[str, Evidence]]:
    """Return what fresh answers are rewarded for, although the reference dislikes it, more often than at first.

    `before` is the evidence of earlier looks; what is returned includes this one.
    """
    rewards, reference = (np.concatenate([values - values.mean() for values in column]) for column in _columns(groups))
    return exploits(_features(groups, start.median), rewards, reference, _numbers(groups), start.features, before)


def _features(groups: Sequence[FreshGroup], median: float) -> list[set[str]]:
    pairs = (pair for one in groups for pair in zip(one.texts, one.lengths.tolist(), strict=True))
    return [features_of(text, length, median) for text, length in pairs]


def repetition(text: str) -> float:
    """Return the share of the three-word sequences of a text that occur earlier in it; 0 for a short text."""
    words = list(words_of(text))
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(triples)) / len(triples) if triples else 0.0


def _columns(groups: Sequence[FreshGroup]) -> tuple[list[Vector], list[Vector]]:
    return [one.rewards for one in groups], [one.reference for one in groups]


def _numbers(groups: Sequence[FreshGroup]) -> NDArray[np.int64]:
    """Return the number of the group of each answer."""
    return np.repeat(np.arange(len(groups)), [len(one.texts) for one in groups])


def _discoveries(groups: Sequence[FreshGroup], accepts: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return of each rewarded answer whether the reference rejects it, and the number of its group."""
    rewarded = np.concatenate([one.rewarded for one in groups])
    rejected = np.concatenate([one.reference < accepts for one in groups])
    return rejected[rewarded], _numbers(groups)[rewarded]


def _within(groups: Sequence[FreshGroup], feature: Any) -> float:
    """Return the correlation of the reward and a feature within groups."""
    rewards = np.concatenate([one.rewards - one.rewards.mean() for one in groups])
    values = np.concatenate([feature(one) - feature(one).mean() for one in groups])
    return pearson(rewards, values)


def _confidence(rewards: Vector) -> float:
    """Return how near rewards are to the ends of their range: 1 at the ends, 0 in the middle."""
    low, high = float(rewards.min()), float(rewards.max())
    return float(np.abs(2 * (rewards - low) / (high - low) - 1).mean()) if high > low else math.nan
