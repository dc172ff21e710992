"""A reward as one of the `reward_funcs` of TRL's GRPOTrainer and RLOOTrainer.

    GRPOTrainer(model, reward_funcs=trl_reward({"type": "rule", "rule": "math"}), train_dataset=dataset, args=args)

TRL hands over flat lists; here they become groups again, and each group is scored as a whole. A rollout without a score
is None: TRL leaves it out of the mean of its group, and its advantage is 0. A composed reward is ONE function for TRL:
of several functions, TRL counts the one that returned None as 0 where another one returned a number.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, get_args

import numpy as np

from rewardsmith.errors import UserError
from rewardsmith.integrations.peer_rows import (
    ANSWER_COLUMNS,
    SOURCE_COLUMNS,
    PeerColumns,
    completion_text,
    load,
    part_values,
)
from rewardsmith.rewards.trl_function import TrlCallable
from rewardsmith.runs.loaded_reward import LoadedReward
from rewardsmith.types import NOT_COMPUTED, FailureKind, Rollout, RolloutGroup, Score

FAILURE_KINDS: tuple[FailureKind, ...] = tuple(kind for kind in get_args(FailureKind) if kind not in NOT_COMPUTED)

_OF_TRL = ("trainer_state", "log_extra", "log_metric", "environments")


class TrlReward:
    """A reward that TRL calls like a function; see `trl_reward`."""

    def __init__(
        self, reward: LoadedReward, columns: PeerColumns, *, name: str, num_generations: int | None, log: bool
    ) -> None:
        self.reward = reward
        self.__name__ = name  # TRL names its metrics by it
        self._columns, self._num_generations, self._log = columns, num_generations, log

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return one value per completion; None where it could not be scored.

        Raises:
            UserError: a group is not complete in this process and the reward needs it whole, or the reward's own
                failure policy stops the run (`Halt`).
        """
        rows = {name: values for name, values in columns.items() if name not in _OF_TRL}
        size = self._num_generations or _generations_of(log_metric)
        groups = [
            self._group(indices, prompts, completions, completion_ids, rows)
            for indices in self._split(prompts, rows, size)
        ]
        scored = await asyncio.gather(*(self.reward.score_group(group) for group in groups))
        scores = [score for one in scored for score in one.scores]
        if self._log and log_extra is not None and log_metric is not None:
            self._record(scores, log_extra, log_metric)
        return [score.value for score in scores]

    def _split(self, prompts: Sequence[Any], columns: Mapping[str, Sequence[Any]], size: int | None) -> list[list[int]]:
        """Return the rows of each group. TRL has the answers to a prompt next to each other."""
        count = len(prompts)
        # Two rows of a dataset may have the same prompt and different ground truths.
        keys = [repr([prompts[i], *(values[i] for values in columns.values())]) for i in range(count)]
        if size is not None and count % size == 0:
            blocks = [list(range(start, start + size)) for start in range(0, count, size)]
            if all(keys[i] == keys[block[0]] for block in blocks for i in block):
                return blocks
        if self.reward.needs_whole_groups:
            known = "unknown (set num_generations of trl_reward)" if size is None else str(size)
            raise UserError(
                f"{self.__name__} compares the answers to a prompt with each other, but this process has {count}"
                f" answers that are no whole groups: num_generations is {known}.\nMake per_device_train_batch_size *"
                " steps_per_generation a multiple of num_generations (per_device_eval_batch_size for the evaluation),"
                " so that no group is split over processes"
            )
        return [list(rows) for _, rows in groupby(range(count), key=keys.__getitem__)]

    def _group(
        self,
        indices: Sequence[int],
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None,
        columns: Mapping[str, Sequence[Any]],
    ) -> RolloutGroup:
        first = indices[0]
        prompt = self._columns.prompt(prompts[first], {name: values[first] for name, values in columns.items()})
        tokens = [np.asarray(completion_ids[i] if completion_ids else [], np.int32) for i in indices]
        texts = [completion_text(completions[i]) for i in indices]
        return RolloutGroup(prompt, [Rollout(text, ids) for text, ids in zip(texts, tokens, strict=True)])

    def _record(
        self,
        scores: Sequence[Score],
        log_extra: Callable[[str, list[Any]], None],
        log_metric: Callable[[str, float], None],
    ) -> None:
        """Log each part per row and its mean, and the shares of failures.

        Shares are logged where they are 0 too: TRL averages over the steps and processes that logged a name.
        """
        name, rows = self.__name__, [part_values(score) for score in scores]
        for part in dict.fromkeys(part for row in rows for part in row):
            values = [row.get(part) for row in rows]
            log_extra(f"{name}/{part}", values)
            known = [value for value in values if value is not None]
            if known:
                log_metric(f"{name}/{part}/mean", sum(known) / len(known))
        kinds = Counter(score.failure.kind for score in scores if score.failure is not None)
        log_extra(f"{name}/failure", ["" if score.failure is None else score.failure.kind for score in scores])
        log_metric(f"{name}/failed", sum(kinds.values()) / len(scores))
        for kind in FAILURE_KINDS:
            log_metric(f"{name}/failed/{kind}", kinds[kind] / len(scores))


def trl_reward(
    reward: Any,
    *,
    models: Mapping[str, Any] | None = None,
    name: str = "rewardsmith",
    answer: str | Sequence[str] = ANSWER_COLUMNS,
    source: str | Sequence[str] = SOURCE_COLUMNS,
    num_generations: int | None = None,
    log: bool = True,
) -> TrlReward:
    """Return a reward for `reward_funcs` of TRL's GRPOTrainer and RLOOTrainer.

    Args:
        reward: whatever `rewardsmith.reward` takes: a table, a name, `RECIPE.toml[:STAGE]`, a function, an object.
        models: the models that its judges name.
        name: the name in TRL's metrics.
        answer: the column with the right answer; of several names, the first that a row has.
        source: the column with the name of the data set, by which `route` chooses.
        num_generations: answers per prompt; not set: the trainer's own.
        log: whether parts and failures are logged to TRL.
    """
    return TrlReward(
        load(reward, models), PeerColumns(answer, source), name=name, num_generations=num_generations, log=log
    )


def from_trl(function: Callable[..., Any], *, conversational: bool = True, whole: bool = False) -> TrlCallable:
    """Return a reward function of TRL as a reward, for `rewardsmith.reward`. None is a failure, not 0.

    Args:
        function: of `prompts`, `completions` and columns of the data; sync or async.
        conversational: whether it expects lists of messages; else text.
        whole: whether the values of a group depend on each other.
    """
    return TrlCallable(function, conversational=conversational, whole=whole)


def _generations_of(log_metric: Callable[[str, float], None] | None) -> int | None:
    """Return how many answers the trainer that called samples per prompt; `log_metric` is a method of it."""
    trainer = getattr(log_metric, "__self__", None)
    training = getattr(getattr(trainer, "model", None), "training", True)
    size = getattr(trainer, "num_generations" if training else "num_generations_eval", None)
    return size if isinstance(size, int) and size > 0 else None
