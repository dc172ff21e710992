"""A rule, or another function of the user's, with its settings, as it is sent to workers."""

from __future__ import annotations

import os
import pickle
import sys
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
        loader: empty for a rule. Else `module:function` of ours, which gets the name and the arguments and returns the
            function that is called: it takes two arguments, as a rule does, and returns JSON instead of a number.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    version: str = ""
    loader: str = ""

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.name if self.loader else f"the rule {self.name}"

    @cached_property
    def pickled(self) -> bytes:
        """The arguments as bytes."""
        try:
            return pickle.dumps(dict(self.arguments))
        except Exception as error:  # a setting may be anything
            raise UserError(
                f"the settings of {self.title} cannot be sent to a worker: {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def key(self) -> tuple[str, tuple[str, ...], str, str, bytes]:
        """What tells one call from another."""
        return self.name, self.modules, self.version, self.loader, self.pickled


def version_of(target: Any) -> str:
    """Return what changes when the module of a function does: its file, and when that was written."""
    path = getattr(sys.modules.get(getattr(target, "__module__", "")), "__file__", None)
    try:
        found = os.stat(path or "")
    except OSError:
        return ""
    return f"{path}:{found.st_mtime_ns}:{found.st_size}"


@dataclass(frozen=True)
class Result:
    """What a function that is no rule returned.

    Attributes:
        value: JSON.
    """

    value: Any
