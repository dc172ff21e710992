r"""How far a reward model is trusted, by how well it ordered rollouts that it had not learned from. No torch.

A process reward that is scaled to the size of the outcome, as PRIME does, costs progress when it is noise. Its pairwise
accuracy on fresh rollouts is known before it counts; chance, 0.5, gives a weight of 0.
"""

from __future__ import annotations

from typing import Literal, get_args

By = Literal["nothing", "scale", "gate"]


def running_accuracy(before: float | None, won: float, groups: float, *, memory: float) -> float | None:
    r"""Return the accuracy over the last steps, $\bar a \leftarrow m\,\bar a + (1 - m)\,a$; it begins at chance.

    Args:
        before: what this returned at the step before; None before the first.
        won: sum of the accuracies of the groups of this step that can be ordered.
        groups: how many these are. Without any, nothing was learned about the model, and nothing changes.
        memory: m in [0, 1).
    """
    if not groups:
        return before
    return memory * (0.5 if before is None else before) + (1 - memory) * (won / groups)


def trust(accuracy: float | None, *, by: By, floor: float) -> float:
    r"""Return the factor of the process reward's weight, in [0, 1].

    "scale" grows from 0 at `floor` to 1 for a perfect order, $\max(0, (a - f) / (1 - f))$; "gate" is 1 above `floor`,
    and 0 up to it, so that chance does not open a gate at 0.5; "nothing" is always 1. An accuracy that is not known is
    no ground for trust.
    """
    if by not in get_args(By):
        raise ValueError(f"by is {by!r}: it must be one of {', '.join(get_args(By))}")
    if by == "nothing":
        return 1.0
    if accuracy is None or accuracy <= floor:
        return 0.0
    return 1.0 if by == "gate" else (accuracy - floor) / (1 - floor)
