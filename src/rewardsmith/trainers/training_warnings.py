"""Warnings of a trainer: the first failure of each kind, and steps with nothing to learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rewardsmith.trainers.stages import PolicyStage
from rewardsmith.types import NOT_COMPUTED, ScoredGroup

MAX_DETAIL_CHARS = 300
REMINDER_STEPS = 10
"""Steps in a row with nothing to learn after which the warning is repeated; then after twice as many, and so on."""

MIN_TINY_LR = 1e-5
"""A lower learning rate does not move a tiny model of random weights within the steps of any recipe."""


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
    """Warns of steps that had nothing to learn: of the first, again while it lasts, and at the end with their share."""

    def __init__(self, log: Callable[[str], None], stage: str, steps: int) -> None:
        self._log, self._stage, self._steps = log, stage, steps
        self._count = self._in_a_row = 0

    def count(self, step: int, cause: str) -> None:
        """Count a step; `cause` is why there was nothing to learn, "" where there was something."""
        self._count += bool(cause)
        self._in_a_row = self._in_a_row + 1 if cause else 0
        reminders, rest = divmod(self._in_a_row, REMINDER_STEPS)
        if cause and self._count == 1:
            self._log(f"warning: {self._stage}: step {step} has nothing to learn from its rewards: {cause}")
        elif not rest and reminders.bit_count() == 1:
            self._log(f"warning: {self._stage}: {self._in_a_row} steps in a row had nothing to learn: {cause}")
        if step == self._steps and self._count:
            self._log(
                f"warning: {self._stage}: {self._count} of {self._steps} steps had nothing to learn"
                " (groups/kept is 0 there)"
            )

    def state(self) -> list[int]:
        """Return the counts."""
        return [self._count, self._in_a_row]

    def restore(self, state: Sequence[int]) -> None:
        """Continue from what `state` returned."""
        self._count, self._in_a_row = state


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
