"""A function in a user's Python file, called in killable workers: shared by rewards written for other systems.

The first half of this module runs in the trainer, the second half in a worker.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.judges.hooks import MEMORY, call_in_worker, finite_number
from rewardsmith.rewards.judges.plugin import LOAD_TIMEOUT, PythonFile, file_version
from rewardsmith.rewards.pool import Call, Pool, shared, shared_waiting
from rewardsmith.storage import file_facts
from rewardsmith.text.judge_replies import Unparsable

MAX_FEEDBACK = 2_000
"""Characters of what a function returned besides the score that are kept for the rollouts file."""

WorkerDeadline = Annotated[float, Field(gt=0, description="seconds per answer")]
WorkerMemory = Annotated[int, Field(ge=16, description="MiB that a worker may use for an answer")]

__all__ = ["MAX_FEEDBACK", "MEMORY", "FunctionFile", "UserFunction", "WorkerDeadline", "WorkerMemory", "number_of"]


class FunctionFile:
    """A function that workers load from a file, or from a module where `modules` are allowed."""

    def __init__(
        self,
        path: str,
        name: str,
        *,
        loader: str,
        arguments: Mapping[str, Any],
        deadline: float,
        memory: int,
        modules: bool = False,
    ) -> None:
        file = Path(path.removeprefix("file://")).expanduser().resolve()
        self._file: Path | None = file if file.is_file() else None
        if self._file is None and not (modules and _is_module(path)):
            kinds = "a Python file or the name of a module" if modules else "the path of a Python file"
            raise UserError(f"path = {path!r}: there is no such file; give {kinds}")
        version = "" if self._file is None else file_version(self._file)
        place = path if self._file is None else str(self._file)
        self._call = Call(place, {"name": name, **arguments}, version=version, loader=loader)
        self._pool: Callable[[], Pool] = shared_waiting if self._is_async(name) else shared
        self._name, self._deadline, self._memory = name, deadline, memory

    async def load(self) -> None:
        """Load the file in the worker processes; raises a `UserError` if that fails."""
        await self._pool().load(self._call, limit=LOAD_TIMEOUT)

    async def result(self, argument: Any, *, calls: int = 1) -> Any:
        """Return what the loaded function returns for an argument; `calls` of them may take as long as that many."""
        return await call_in_worker(
            self._pool(), self._call, argument, self._name, self._deadline * calls, self._memory
        )

    def facts(self) -> dict[str, Any]:
        """Return which file it is, for the record of a run."""
        return {"module": self._call.name} if self._file is None else {"file": file_facts(self._file)}

    def _is_async(self, name: str) -> bool:
        """Return whether the file defines the function as a coroutine function; the file is not run."""
        if self._file is None:
            return False
        try:
            tree = ast.parse(self._file.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return False  # `load` reports it
        return any(isinstance(node, ast.AsyncFunctionDef) and node.name == name for node in tree.body)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


# ---- in the worker -------------------------------------------------------------------------------------------------


class UserFunction:
    """A function of a file or module, loaded; its file's folder can be imported from while it is called."""

    def __init__(self, path: str, name: str) -> None:
        self._source = PythonFile(path) if Path(path).is_file() else None
        module = importlib.import_module(path) if self._source is None else self._source.module
        function = getattr(module, name, None)
        if not callable(function):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise UserError(f"it has no function {name}.{nearest(name, known)} It has: {listing(known)}")
        self.call: Callable[..., Any] = function

    def importable(self) -> AbstractContextManager[None]:
        """Let the modules next to the file be imported inside the block."""
        return nullcontext() if self._source is None else self._source.importable()


def number_of(value: Any) -> float | None:
    """Return a user's value as a finite number; None if it is none."""
    try:
        return finite_number(value, "it")
    except (TypeError, Unparsable):
        return None
