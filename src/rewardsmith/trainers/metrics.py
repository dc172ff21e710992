"""The numbers of a policy step, and its warnings: first failures, and steps with nothing to learn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream
from rewardsmith.algorithms.tensors import reward_to_go
from rewardsmith.rewards.measure import measure, quantiles
from rewardsmith.trainers.batch import Batch
from rewardsmith.trainers.collect import StepRollouts, has_contrast
from rewardsmith.trainers.stages import PolicyStage
from rewardsmith.types import NOT_COMPUTED, ScoredGroup

STATM = Path("/proc/self/statm")
"""Memory pages of this process on Linux: in all, resident, …"""

MAX_DETAIL_CHARS = 300
MIN_TINY_LR = 1e-5
"""A lower learning rate does not move a tiny model of random weights within the steps of any recipe."""


def group_metrics(
    rollouts: StepRollouts, correct_threshold: float | None, streams: Collection[str] = ()
) -> dict[str, float]:
    """Return rewards and parts, failures by cause, lengths and fates of the sampled groups.

    Means are over the rollouts that could be scored. `accuracy` is the share of them with a reward of at least
    `correct_threshold`, and left out without it. Groups of earlier steps that were used now count in `groups/` alone.
    """
    counts = sorted(rollouts.counts.items())
    metrics = {f"groups/{fate}": float(count) for fate, count in counts if count or fate == "kept"}
    metrics["groups/rounds"] = float(rollouts.rounds)
    metrics |= {} if rollouts.epoch is None else {"epoch": rollouts.epoch}
    sampled = rollouts.sampled
    answers = [answer for scored in sampled for answer in scored.group.rollouts]
    lengths = [len(answer.tokens) for answer in answers]
    metrics["tokens/sampled"] = float(sum(lengths))
    if not sampled:
        return metrics
    metrics |= reward_metrics(sampled, correct_threshold)
    metrics["groups/contrast"] = fmean(
        has_contrast([score for score in scored.scores if score.ok], streams=streams) for scored in sampled
    )
    metrics["response/length"] = fmean(lengths)
    metrics["response/longest"] = float(max(lengths))
    metrics["response/truncated"] = fmean(answer.stop_reason == "length" for answer in answers)
    return metrics


def reward_metrics(sampled: Sequence[ScoredGroup], correct_threshold: float | None) -> dict[str, float]:
    """Return how the reward and each of its parts did: mean, spread, bounds, contrast, failures by cause.

    `reward/judge` is the mean of the part `judge`; `failures/judge/timeout` is the share of the rollouts given to it
    that it could not score in time. Skipped rollouts are no failures. `labels/judge/out-of-range` is the
    share of all rollouts to whose score the part gave that label.
    """
    measured = measure(sampled)
    values = [score.value for scored in sampled for score in scored.scores if score.value is not None]
    metrics = {"reward/failed": 1 - len(values) / sum(len(scored.scores) for scored in sampled)}
    for name, part in measured.items():
        path = f"reward/{name}" if name else "reward"
        numbers = {path if name else "reward/mean": part.mean, f"{path}/spread": part.spread, f"{path}/min": part.low}
        numbers |= {f"{path}/max": part.high, f"{path}/flat": part.flat}
        if name:
            numbers |= {f"{path}/skipped": part.skipped or None, f"{path}/dropped": part.dropped or None}
        metrics |= {key: number for key, number in numbers.items() if number is not None}
        metrics |= {f"failures/{name or 'reward'}/{kind}": share for kind, share in part.failed.items()}
        metrics |= {f"labels/{name or 'reward'}/{label}": share for label, share in part.labels.items()}
    if values and correct_threshold is not None:
        metrics["reward/accuracy"] = fmean(value >= correct_threshold for value in values)
    return metrics


def latency_metrics(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return quantiles of the seconds that the reward and its parts took for a group."""
    return {
        f"time/{name or 'reward'}/{quantile}": value
        for name, taken in seconds.items()
        for quantile, value in quantiles(taken).items()
    }


def batch_metrics(
    batch: Batch, advantages_BT: Tensor, old_BT: Tensor | None, reference_BT: Tensor | None
) -> dict[str, float]:
    """Return the spread of the advantages, and how far sampler, learner and reference are from each other."""
    mask_BT = batch.mask_BT
    if not bool(mask_BT.any()):
        return {}
    metrics = {"advantage/spread": float(advantages_BT[mask_BT].std(correction=0))}
    if old_BT is not None and old_BT is not batch.sampler_BT:
        metrics["policy/sampler_gap"] = float((old_BT - batch.sampler_BT)[mask_BT].abs().mean())
    if reference_BT is not None:
        now_BT = batch.sampler_BT if old_BT is None else old_BT
        metrics["policy/kl"] = float((now_BT - reference_BT)[mask_BT].mean())
    return metrics


def overlong_metrics(penalty_B: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Return the share of the rollouts in the batch that are penalised for their length, and the mean penalty."""
    penalties = penalty_B[mask_BT.any(-1)]
    if not len(penalties):
        return {}
    return {"overlong/penalised": float((penalties < 0).float().mean()), "overlong/penalty": float(penalties.mean())}


def learned_metrics(batch: Batch, advantaged_BT: Tensor, learned_BT: Tensor) -> dict[str, float]:
    """Return how many groups have an advantage (`advantaged_BT`: not 0), and how many tokens have a gradient."""
    total = int(batch.groups_B.max()) + 1
    kept = len(torch.unique(batch.groups_B[advantaged_BT.any(-1)]))
    metrics = {"groups/kept": float(kept), "tokens/learned": float(learned_BT.sum())}
    return metrics | ({"groups/no_advantage": float(total - kept)} if kept < total else {})


def stream_metrics(streams: Sequence[Stream], mask_BT: Tensor) -> dict[str, float]:
    """Return the lowest and the highest reward and return of each stream, before its weight.

    A dense stream has a reward on each token of its support, an outcome one for the whole answer. Returns are sums from
    a token on, with the stream's own discount or 1, over all tokens of the answers that it could score. A stream that
    could score nothing has no numbers.
    """
    metrics: dict[str, float] = {}
    for stream in streams:
        scored_BT = stream.scored(mask_BT)
        if stream.support_BT is None:
            rewards_BT = torch.where(scored_BT, stream.rewards_BT, 0)
            rewards = rewards_BT.sum(-1)[scored_BT.any(-1)]
        else:
            rewards_BT = torch.where(scored_BT & stream.support_BT, stream.rewards_BT, 0)
            rewards = rewards_BT[scored_BT & stream.support_BT]
        if not len(rewards):
            continue
        discount = 1.0 if stream.discount is None else stream.discount
        returns = reward_to_go(rewards_BT, scored_BT, discount=discount)[scored_BT]
        values = torch.stack([rewards.min(), rewards.max(), returns.min(), returns.max()]).tolist()
        names = ("reward_low", "reward_high", "return_low", "return_high")
        metrics |= {f"streams/{stream.name}/{name}": value for name, value in zip(names, values, strict=True)}
    return metrics


class Clock:
    """Time spent on the parts of a step, and the memory that each of them needed."""

    def __init__(self, device: torch.device | None = None) -> None:
        """Start the clock; on a GPU each part begins a new count of the peak memory."""
        self._begun = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}
        self._device, self._memory = device, dict[str, float]()
        if device is not None:
            _gpu_memory()

    def lap(self, name: str) -> None:
        """End a part. One that occurs again adds to its time, and keeps the larger memory."""
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._last
        for place, used in ({} if self._device is None else _memory_used(self._device)).items():
            self._memory[f"{place}{name}"] = max(self._memory.get(f"{place}{name}", 0.0), used)
        self._last = now

    def add(self, name: str, seconds: float) -> None:
        """Add to the time of a part that went on in the background."""
        self._laps[name] = self._laps.get(name, 0.0) + seconds

    def idle(self, wrote: float) -> dict[str, float]:
        """Return the shares of the step's time in which its learner waited, and in which nothing was written.

        `wrote` are the seconds in which answers were written.
        """
        whole = max(1e-9, self._last - self._begun)
        return {"idle/learner": self._laps.get("wait", 0.0) / whole, "idle/writer": max(0.0, 1 - wrote / whole)}

    def metrics(self, sampled: float) -> dict[str, float]:
        """Return seconds and GiB by part, and the rate at which tokens were written, where it is known."""
        metrics = {f"time/{name}": seconds for name, seconds in self._laps.items()}
        metrics |= {f"memory/{name}": used for name, used in self._memory.items()}
        seconds = self._laps.get("write", 0.0)
        if sampled and not seconds:  # answers that a resumed run has found
            return metrics
        return metrics | {"tokens/s": sampled / max(1e-9, seconds)}


def _memory_used(device: torch.device) -> dict[str, float]:
    """Return GiB: the peak of each GPU since the last call, and what is resident now if `device` is the CPU.

    The key of `device` is empty, that of any other is its name with a slash, such as `cuda:1/`.
    """
    used = {"" if place == str(device) else f"{place}/": peak for place, peak in _gpu_memory().items()}
    if device.type == "cpu":
        with suppress(OSError, ValueError, IndexError):  # not Linux
            used[""] = int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
    return used


def _gpu_memory() -> dict[str, float]:
    """Return the peak of each GPU that this process uses, in GiB, and begin a new count."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    peaks = {}
    for number in range(torch.cuda.device_count()):
        if peak := torch.cuda.max_memory_allocated(number):
            peaks[f"cuda:{number}"] = peak / 2**30
            torch.cuda.reset_peak_memory_stats(number)
    return peaks


# ---- warnings --------------------------------------------------------------------------------------------------------


class FirstFailures:
    """Logs the first failure of each part of a reward and kind; the metrics count them all."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._logged: set[tuple[str, str]] = set()

    def add(self, groups: Iterable[ScoredGroup]) -> None:
        """Log the failures of some groups that are new."""
        for score in (score for scored in groups for score in scored.scores):
            for name, part in (*score.named_parts(), ("", score)):
                if part.failure is None or part.parts or part.failure.kind in NOT_COMPUTED:
                    continue
                if (name, part.failure.kind) not in self._logged:
                    self._logged.add((name, part.failure.kind))
                    who = f"{name} could not score a rollout" if name else "a rollout could not be scored"
                    self._log(f"{who} ({part.failure.kind}): {part.failure.detail[:MAX_DETAIL_CHARS]}")


class NothingToLearn:
    """Warns of steps that had nothing to learn: of the first, and at the end of the stage with their number."""

    def __init__(self, log: Callable[[str], None], stage: str, steps: int) -> None:
        self._log, self._stage, self._steps = log, stage, steps
        self.count = 0  # of such steps

    def add(self, step: int, cause: str) -> None:
        """Count a step; `cause` is why there was nothing to learn, "" where there was something."""
        self.count += bool(cause)
        if cause and self.count == 1:
            self._log(f"warning: {self._stage}: step {step} has nothing to learn from its rewards: {cause}")
        if step == self._steps and self.count:
            self._log(f"warning: {self._stage}: {self.count} of {self._steps} steps had nothing to learn")


def why_nothing(kept: Sequence[ScoredGroup], stage: PolicyStage, correct_threshold: float | None) -> str:
    """Return why no answer of these groups has an advantage, and what helps."""
    values = [{score.value for score in scored.scores if score.value is not None} for scored in kept]
    if any(len(group) > 1 for group in values):
        if stage.select.truncated == "mask":
            return (
                "answers whose rewards differ were truncated, and these are left out of the loss. Raise"
                ' sampling.max_tokens, or set select.truncated = "keep"'
            )
        return f"the advantage {stage.advantage.name} is 0 for every answer. Look at the weights of the reward's parts"
    every = set().union(*values)
    if len(every) != 1:  # none at all where only parts have a value
        return (
            "in each group all rewards are equal. Raise rollouts_per_prompt or sampling.temperature, or choose prompts"
            " that are sometimes answered right"
        )
    (value,) = every
    if correct_threshold is not None and value >= correct_threshold:
        return f"every answer has the reward {value:g}. Use harder prompts, or end the stage earlier"
    return (
        f"every answer has the reward {value:g}. Use easier prompts, begin with an sft stage, raise"
        f" rollouts_per_prompt (now {stage.rollouts_per_prompt}), and read the answers in rollouts/{stage.name}.jsonl"
    )


def warn_of_rate(log: Callable[[str], None], stage: PolicyStage, init: str | None) -> None:
    """Warn of a learning rate with which a tiny model of random weights would not learn; `init` is its initialiser."""
    if init and init.startswith("tiny-") and stage.optimizer.lr < MIN_TINY_LR:
        log(
            f"warning: {stage.name}: optimizer.lr = {stage.optimizer.lr:g} is for large pretrained models, and hardly"
            f" moves {init}: set 1e-4 to 1e-3"
        )
