"""Settings that would do nothing are refused: whoever sets one believes that it does something."""

from __future__ import annotations

from rewardsmith.errors import UserError
from rewardsmith.masking import shown


def require_unset(beside: str, **settings: object) -> None:
    """Raise a `UserError` that names the first of these settings which is set, and the one beside which it is idle.

    Args:
        beside: the other setting, as a recipe shows it: `read = "boolean"`.
        **settings: values by name; None is not set.
    """
    for name, value in settings.items():
        if value is not None:
            raise UserError(f"{name} = {shown(value)} does nothing beside {beside}: leave one of the two out")


__all__ = ["require_unset"]
