"""A place to run programs that nobody has read: limits, a filter of system calls, and few files to read."""

from rewardsmith.sandbox.run import (
    BrokenTestsError,
    Isolation,
    Limits,
    Outcome,
    Sandbox,
    SandboxError,
    SandboxGoneError,
    probe,
)

__all__ = ["BrokenTestsError", "Isolation", "Limits", "Outcome", "Sandbox", "SandboxError", "SandboxGoneError", "probe"]
