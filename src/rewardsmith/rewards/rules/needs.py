"""What a rule needs beyond the standard library and the defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """What a rule asks for before it runs.

    Attributes:
        modules: what the rule imports when it is called. The workers import it once, ahead of the first answer.
        extra: the optional part of this package that installs the modules; "" when they always come with it.
        deadline: seconds per answer, unless the recipe says otherwise.
        ready: raises a `UserError` if the rule cannot work here. It is called with the deadline and the rule's settings
            by name, before the first step.
    """

    modules: tuple[str, ...] = ()
    extra: str = ""
    deadline: float = 5.0
    ready: Callable[..., None] | None = None
