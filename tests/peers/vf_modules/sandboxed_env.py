"""A task whose reward runs a program."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf


class SandboxedTask(vf.Task[vf.TaskData]):
    """Needs a runtime."""

    @vf.reward
    async def passes(self, trace: vf.Trace, runtime: Any) -> float:
        return 1.0


class Sandboxed(vf.Taskset[SandboxedTask]):
    """No tasks."""

    def load(self) -> list[SandboxedTask]:
        return []


__all__ = ["Sandboxed"]
