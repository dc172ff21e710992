"""One implicit reward of a stage: from the groups of a step to groups with a reward for every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.algorithms.calibration import calibration_error
from rewardsmith.algorithms.groups import Groups
from rewardsmith.algorithms.implicit import gather_steps, normalise_by_return, smooth
from rewardsmith.algorithms.trust import running_accuracy, trust
from rewardsmith.engines.protocol import Engine
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.text.steps import split_steps, steps_of_tokens
from rewardsmith.trainers.process.labelled import Labelled
from rewardsmith.trainers.process.model import Appraisal, ProcessModel, fresh_wins
from rewardsmith.trainers.process.replay import Replay
from rewardsmith.trainers.process.step_metrics import step_metrics
from rewardsmith.trainers.protocol import learning_rate
from rewardsmith.trainers.reference import Reference
from rewardsmith.types import Score, ScoredGroup


@dataclass(frozen=True)
class Appraised:
    """What became of a step.

    Attributes:
        scores: the part's score of each rollout, group by group.
        metrics: by name, such as `loss`.
    """

    scores: Sequence[Sequence[Score]]
    metrics: dict[str, float]


class ProcessPart:
    """An implicit reward with its model, its memory and the trust that it has earned.

    Args:
        settings: of the reward.
        engine: π_φ.
        reference: π_ref; None where it is the policy.
        steps: of the stage, over which the learning rate runs.

    Attributes:
        device: where the model is.
    """

    def __init__(self, settings: Implicit, engine: Engine, reference: Reference | None, *, steps: int) -> None:
        self.settings = settings
        self.replay = Replay(settings.learning.replay)
        self.reference = reference
        self.device = engine.device
        self._model = ProcessModel(settings, engine, reference)
        self._steps = steps
        # On fresh rollouts, over the last steps; chance says nothing yet.
        self._accuracy = settings.trust.start if settings.trust.start > 0.5 else None

    @property
    def learns(self) -> bool:
        """Whether the model changes."""
        return self.settings.update != "none"

    @property
    def trust(self) -> float:
        """The factor of the part's weight."""
        how = self.settings.trust
        return trust(self._accuracy, by=how.by, floor=how.lowest)

    def appraise(
        self, groups: Sequence[ScoredGroup], batch: Labelled, policy_BT: Tensor | None, number: int
    ) -> Appraised:
        """Score the groups of step `number`, which are the fresh ones of the batch, and learn from all of it."""
        learning = self.settings.learning
        lr = learning_rate(learning.optimizer, number - 1, self._steps)
        every = learning.measure_every
        measure = bool(every) and (number % every == 0 or number in (1, self._steps))
        found = self._model.appraise(batch, policy_BT, lr=lr, measure=measure and self.learns)
        won, count = fresh_wins(found.fresh_B, batch)
        self._accuracy = running_accuracy(self._accuracy, won, count, memory=self.settings.trust.memory)
        metrics = {"trust": self.trust} | ({} if self._accuracy is None else {"accuracy_running": self._accuracy})
        if self.learns:
            metrics |= {"lr": lr, "skipped_updates": float(found.skipped)}
        metrics |= {} if found.loss is None else {"loss": found.loss}
        if found.grad_norms:
            metrics["grad_norm"] = sum(found.grad_norms) / len(found.grad_norms)
        seen = self._seen(groups, found, batch)
        return replace(seen, metrics=seen.metrics | metrics)

    def look(self, groups: Sequence[ScoredGroup], batch: Labelled, policy_BT: Tensor | None) -> Appraised:
        """Score groups that are not learned from; nothing changes."""
        return self._seen(groups, self._model.look(batch, policy_BT), batch)

    def _seen(self, groups: Sequence[ScoredGroup], found: Appraisal, batch: Labelled) -> Appraised:
        """Return the scores, and how well they agree with the outcomes and with the truth about steps."""
        metrics = agreement(found.fresh_B, batch)
        if found.after_B is not None:
            won, count = fresh_wins(found.after_B, batch)
            metrics |= {"accuracy_after": won / count} if count else {}
        scores, values = self._scores(groups, found, batch)
        if self.settings.truth is not None:
            judge = self.settings.truth
            metrics |= {f"steps/{k}": v for k, v in step_metrics([g.group for g in groups], values, judge).items()}
        return Appraised(scores, metrics)

    def _scores(
        self, groups: Sequence[ScoredGroup], found: Appraisal, batch: Labelled
    ) -> tuple[list[list[Score]], list[list[NDArray[np.float32]]]]:
        """Return the scores of the part, and the plain reward of each token, rollout by rollout."""
        settings, mask_BT = self.settings, batch.mask_BT[: batch.fresh]
        rewards_BT, support_BT = smooth(found.rewards_BT, mask_BT, lam=settings.smooth), mask_BT
        if settings.granularity != "token":
            steps_BT = self._steps_of(groups, mask_BT) if settings.granularity == "step" else None
            rewards_BT, support_BT = gather_steps(rewards_BT, mask_BT, steps_BT)
        if settings.normalise == "batch":
            # A log-ratio of a thousandth for a whole answer is rounding, which is not to be blown up to a reward.
            rewards_BT = normalise_by_return(rewards_BT, mask_BT, eps=1e-3 * settings.beta)
        sums = found.rewards_BT.sum(-1).tolist()
        plain, placed, support = (x.cpu().numpy() for x in (found.rewards_BT, rewards_BT, support_BT))
        scores: list[list[Score]] = []
        values: list[list[NDArray[np.float32]]] = []
        row = 0
        for scored in groups:
            scores.append([])
            values.append([])
            for rollout in scored.group.rollouts:
                n = len(rollout.tokens)
                dense = None if settings.granularity == "token" else support[row, :n]
                scores[-1].append(Score(sums[row], token_values=placed[row, :n], token_support=dense))
                values[-1].append(plain[row, :n])
                row += 1
        return scores, values

    def _steps_of(self, groups: Sequence[ScoredGroup], mask_BT: Tensor) -> Tensor:
        """Return the number of the step that each token belongs to, int64 [B, T]."""
        numbers = np.zeros(mask_BT.shape, dtype=np.int64)
        rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
        for row, rollout in enumerate(rollouts):
            assert rollout.ends is not None  # the reward asked for them
            steps = steps_of_tokens(rollout.ends, split_steps(rollout.text, self.settings.separator))
            # Counted by the tokens: a text may have several steps in one token, and so more steps than tokens.
            numbers[row, : len(steps)] = np.cumsum(np.diff(steps, prepend=steps[:1]) > 0)
        return torch.from_numpy(numbers).to(mask_BT.device)

    def state(self) -> dict[str, Any]:
        """Return what going on needs beside the weights, as JSON values."""
        return {"accuracy": self._accuracy, "replay": self.replay.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._accuracy = None if state["accuracy"] is None else float(state["accuracy"])
        self.replay.restore(state["replay"])


def with_part(scored: ScoredGroup, name: str, scores: Sequence[Score]) -> ScoredGroup:
    """Return a group whose scores have another score in the place of a part."""
    whole = [
        replace(score, parts={**score.parts, name: part}) for score, part in zip(scored.scores, scores, strict=True)
    ]
    return replace(scored, scores=whole)


def agreement(sums_B: Tensor, batch: Labelled) -> dict[str, float]:
    """Return how well the logits of fresh rollouts agree with their outcomes.

    `accuracy_fresh` is that of pairs within a group, `best_of_n` the mean outcome of the rollout with the highest logit
    of each group, beside `outcome`, the mean of all; `calibration_error` that of σ(logit).
    """
    votes_B, outcomes_B = batch.votes_B[: batch.fresh], batch.outcomes_B[: batch.fresh]
    won, count = fresh_wins(sums_B, batch)
    metrics = {"accuracy_fresh": won / count} if count else {}
    if not bool(votes_B.any()):
        return metrics
    groups = Groups.of(batch.groups_B[: batch.fresh], votes_B)
    best_B = votes_B & (sums_B.double() == groups.range(sums_B)[1])
    tops = Groups.of(batch.groups_B[: batch.fresh], best_B)
    each_B = torch.where(best_B, outcomes_B / tops.voters_B.clamp(min=1), 0)  # equal logits share the place
    metrics["best_of_n"] = float(each_B.sum() / torch.where(best_B, 1 / tops.voters_B.clamp(min=1), 0).sum())
    metrics["outcome"] = float(outcomes_B[votes_B].mean())
    logits_V, right_V = sums_B[votes_B], outcomes_B[votes_B] >= 0.5
    metrics["calibration_error"] = calibration_error(logits_V.sigmoid().tolist(), outcomes_B[votes_B].tolist())
    metrics |= {"logit_right": float(logits_V[right_V].mean())} if bool(right_V.any()) else {}
    metrics |= {"logit_wrong": float(logits_V[~right_V].mean())} if not bool(right_V.all()) else {}
    return metrics
