"""A process reward model reads the very tokens that the policy writes: both must mean the same by them."""

from __future__ import annotations

from rewardsmith.engines.protocol import Engine, ModelOutline
from rewardsmith.errors import UserError


def require_same_tokens(policy: Engine | ModelOutline, other: Engine | ModelOutline, what: str) -> None:
    """Raise a `UserError` unless every token of the policy has the same id in the other model.

    Args:
        policy: writes the answers.
        other: reads them.
        what: who uses it, for the message.
    """
    ours, theirs = policy.vocabulary, other.vocabulary
    strange = sorted((number, token) for token, number in ours.items() if theirs.get(token) != number)
    if strange:
        number, token = strange[0]
        has = f"{theirs[token]}" if token in theirs else "none"
        raise UserError(
            f"{what} reads tokens as {policy.name} writes them, but models.{other.name} has another tokenizer:"
            f" {len(strange)} of {len(ours)} tokens differ, the first is {token!r} ({number} there, {has} here)."
            " Use a model of the same family"
        )
