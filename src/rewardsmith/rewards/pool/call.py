"""A rule with its settings, as it is sent to workers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rewardsmith.errors import UserError


@dataclass(frozen=True)
class Call:
    """Which rule to call, and how.

    Attributes:
        name: where the rule lives, as `module:attribute`; a worker must be able to import it.
        arguments: its settings, as keyword arguments; they must be picklable.
        modules: heavy modules that the rule imports when it is called; they are imported once, before the first call.
        version: changes when the module does, such as the time of its file. A rule whose version differs from the one
            that was loaded under its name is imported again.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    version: str = ""

    @cached_property
    def pickled(self) -> bytes:
        """The arguments as bytes."""
        try:
            return pickle.dumps(dict(self.arguments))
        except Exception as error:  # a setting may be anything
            raise UserError(
                f"the settings of the rule {self.name} cannot be sent to a worker: {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def key(self) -> tuple[str, tuple[str, ...], str, bytes]:
        """What tells one call from another."""
        return self.name, self.modules, self.version, self.pickled
