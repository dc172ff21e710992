"""Running programs that nobody has read, with limits, a filter of system calls, and few files to read.

Trusted side: `sandbox.py` (one program and its host process), `cases.py` (tests). In the child: `host.py` (forks and
watches), `confine.py` (what a process gives up), `program.py` (calls functions of the program), `tester.py` (runs
tests), `values.py` (data between the two).
"""

from rewardsmith.sandbox.sandbox import (
    BrokenTestsError,
    Isolation,
    ProgramLimits,
    RunOutcome,
    Sandbox,
    SandboxError,
    SandboxGoneError,
    probe,
)

__all__ = ["BrokenTestsError", "Isolation", "ProgramLimits", "RunOutcome"]
__all__ += ["Sandbox", "SandboxError", "SandboxGoneError", "probe"]
