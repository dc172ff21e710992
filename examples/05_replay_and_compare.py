"""Load a run, look at its numbers and answers, and score the answers again with another reward. Nothing is trained.

python examples/04_train_with_a_function.py && python examples/05_replay_and_compare.py runs/function
"""

from __future__ import annotations

import sys
from statistics import fmean

import rewardsmith as rs


def strict(response: str, answer: str) -> float:
    """1 where the whole answer has the form 7+5=12;#12 with the truth at its end."""
    return float("=" in response and response.endswith(f";#{answer}"))


def main(folder: str = "runs/function") -> None:
    """Print what a run did, and what another reward gives its answers."""
    run = rs.load_run(folder)
    print(run, list(run.models))

    # Metrics and rollouts are lists of flat tables: pandas.DataFrame(run.metrics()) is a frame.
    for row in run.metrics("policy"):
        if "reward/mean" in row:
            print(f"step {row['step']:2d}  reward {row['reward/mean']:.2f}  flat groups {row['reward/flat']:.0%}")

    # Answers of the last step, scored again. Groups are kept together, as a reward needs them.
    last = run.metrics("policy")[-1]["step"]
    groups = [stored.group for stored in run.groups("policy", kind="train", step=last)]
    with rs.reward(strict) as reward:
        again = reward.score_groups(groups)
    before = [row["reward"] for row in run.rollouts("policy", kind="train", step=last)]
    after = [score.value for group in again for score in group.scores]
    changed = sum(old != new for old, new in zip(before, after, strict=True))
    mean = fmean(value for value in after if value is not None)
    print(f"{len(after)} answers of step {last}: {changed} have another reward now, mean {mean:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
