"""Rewards of your own: functions of one answer, of a whole group, and what happens where one fails.

python examples/02_own_reward.py
"""

from __future__ import annotations

import rewardsmith as rs


def right(response: str, answer: str) -> float:
    """Whether the last word is the truth. A function gets what its parameters name."""
    return float(response.rsplit(maxsplit=1)[-1] == answer)  # raises IndexError for an empty answer


def shortest(responses: list[str]) -> list[float]:
    """Prefer the shortest answer. A function of `responses` sees all answers to a prompt."""
    order = sorted(responses, key=len)
    return [1 - order.index(response) / len(order) for response in responses]


def main() -> None:
    """Compose both, and score four answers of which one cannot be scored."""
    # Functions stand where a recipe has a name. Parts keep their names; `weight` belongs to the place.
    reward = rs.reward({"type": "sum", "parts": {"right": right, "short": {"type": shortest, "weight": 0.1}}})
    responses = ["It is 12", "7 and 5 make 12", "It is 13", ""]
    scores = rs.score(reward, "7+5?", responses, answers="12")
    for row, gain in zip(scores.rows(), rs.advantages(scores, estimator="grpo")[0], strict=True):
        value = "none" if row["reward"] is None else f"{row['reward']:.3f}"
        print(f"reward {value:>5}  advantage {'none' if gain is None else f'{gain:+.2f}':>5}  {row['response']!r}")

    # The empty answer is a failure and not a 0: it has no advantage, and no vote in the baseline of the others.
    failure = scores.failures[0][3]
    print(f"failure of the last: {failure.kind}: {failure.detail}")


if __name__ == "__main__":
    main()
