"""Score answers with a rule, and see what a policy would learn from them.

python examples/01_score_answers.py
"""

from __future__ import annotations

import rewardsmith as rs

PROMPTS = ["How much is 6 · 7?", "Simplify 12/18."]
RESPONSES = [
    [r"6 · 7 is \boxed{42}.", "It is 42, I think.", r"\boxed{41}"],
    [r"\boxed{\frac{2}{3}}", r"\boxed{0.666666667}", "I do not know."],
]
ANSWERS = ["42", r"\frac{2}{3}"]


def main() -> None:
    """Score six answers to two prompts."""
    # A reward is a table, as in a recipe. `rewardsmith list rules` shows the other rules.
    reward = rs.reward({"type": "rule", "rule": "math"})
    scores = rs.score(reward, PROMPTS, RESPONSES, answers=ANSWERS)

    # The advantage is what a policy learns from: how much better an answer is than the others of its group.
    advantages = rs.advantages(scores, estimator="rloo")
    for prompt, responses, values, gains in zip(PROMPTS, RESPONSES, scores.values, advantages, strict=True):
        print(prompt)
        for response, value, gain in zip(responses, values, gains, strict=True):
            print(f"  reward {value:.1f}  advantage {gain:+.2f}  {response}")


if __name__ == "__main__":
    main()
