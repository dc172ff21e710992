"""The process of a server: its command line and environment, its log, and its end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.errors import UserError
from rewardsmith.masking import resolved
from rewardsmith.storage import writing

GRACE = 5.0  # seconds that a server has to end after SIGTERM
STOP_TIMEOUT = GRACE + 12.0  # seconds after which a supervisor that has not ended is killed
TAIL = 30  # lines of the log that an error shows
_MARK = "REWARDSMITH_SERVER"
"""Environment variable that all processes of a server inherit, by which lost ones are found."""

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_TAIL_BYTES, _MAX_LINE = 1 << 16, 500
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PLACEHOLDER = re.compile(r"\{(model|port|host)\}")


def server_command(settings: ManagedSettings, *, name: str, port: int) -> list[str]:
    """Return the command line of a server; `name` is the served model name."""
    arguments = resolved(settings.arguments)[0]
    if isinstance(settings.command, list):
        values = {"model": settings.model, "port": str(port), "host": settings.host}
        return [*(_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in settings.command), *arguments]
    if settings.command == "vllm":
        known = _vllm(settings, name)
    elif settings.command == "sglang":
        known = _sglang(settings, name)
    else:
        known = ["-m", "transformers.cli.transformers", "serve", settings.model, "--continuous-batching"]
    listen = ["--host", settings.host, "--port", str(port)]
    return [settings.python or sys.executable, *known, *listen, *arguments]


def _vllm(settings: ManagedSettings, name: str) -> list[str]:
    tasks = {
        "chat": [],
        "classify": ["--runner", "pooling", "--convert", "classify"],
        "score": ["--runner", "pooling"],  # a cross-encoder or an embedding model: the server detects which
        "embed": ["--runner", "pooling", "--convert", "embed"],
    }
    return [
        # Not the `vllm` script: in some packages it does not start.
        *("-m", "vllm.entrypoints.openai.api_server", "--model", settings.model, "--served-model-name", name),
        *("--tensor-parallel-size", str(settings.tensor_parallel_size)),
        *("--uvicorn-log-level", "warning"),  # else a line for each request
        *_option("--gpu-memory-utilization", settings.gpu_memory_utilization),
        *_option("--max-model-len", settings.max_model_len),
        *(["--enable-sleep-mode"] if settings.offload else []),
        *tasks[settings.serves],
    ]


def _sglang(settings: ManagedSettings, name: str) -> list[str]:
    return [
        *("-m", "sglang.launch_server", "--model-path", settings.model, "--served-model-name", name),
        *("--tp-size", str(settings.tensor_parallel_size), "--log-level-http", "warning"),
        *_option("--mem-fraction-static", settings.gpu_memory_utilization),
        *_option("--context-length", settings.max_model_len),
        *(["--is-embedding"] if settings.serves == "embed" else []),
    ]


def _option(name: str, value: float | None) -> list[str]:
    return [] if value is None else [name, str(value)]


def server_environment(settings: ManagedSettings) -> dict[str, str]:
    """Return all variables of a server: those of this process, what the command needs, and those of the recipe."""
    needed = {"PYTHONUNBUFFERED": "1"}  # the last lines before a crash matter most
    defaults = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    if settings.offload:
        needed["VLLM_SERVER_DEV_MODE"] = "1"  # without it, vLLM has no /sleep
    if settings.devices is not None:
        needed["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, settings.devices))
    given: dict[str, str] = resolved(settings.environment)[0]
    return defaults | dict(os.environ) | needed | given


class ServerLog:
    """The file with a server's output; that of the start before is kept with `.1` at its end."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def rotate(self) -> None:
        """Begin an empty file."""
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if self.file.exists():
                self.file.replace(self.file.with_name(f"{self.file.name}.1"))
            self.file.touch()

    def tail(self, lines: int = TAIL) -> list[str]:
        """Return the last lines with text, without colours, progress bars and control characters."""
        try:
            with self.file.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        cleaned = []
        for line in text.split("\n"):
            last = _COLOURS.sub("", line).rstrip("\r").rpartition("\r")[2]  # the last state of a progress bar
            cleaned.append(_CONTROLS.sub(" ", last)[:_MAX_LINE].strip())
        return [line for line in cleaned if line][-lines:]


class ServerProcess:
    """A server under a supervisor (`supervisor.py`), which ends with this process in any case."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: ServerLog) -> None:
        if not sys.executable:
            raise UserError("a managed server needs a Python interpreter, and sys.executable is empty")
        log.rotate()
        self.command = shlex.join(command)
        self._owner = os.getpid()
        self._mark = secrets.token_hex(8)
        with writing(log.file), log.file.open("ab") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(self._owner), str(GRACE), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**environment, _MARK: self._mark},
                start_new_session=True,  # Ctrl-C is for the trainer, which needs the server to finish its step
            )
        _RUNNING.add(self)

    def exit_text(self) -> str:
        """Return how it ended, such as `ended with status 1`; "" while it runs."""
        if self._popen.returncode is None:
            self._kill_orphans()
            self._popen.poll()
        code = self._popen.returncode
        if code is None:
            return ""
        _RUNNING.discard(self)
        self._close_pipe()
        number = -code if code < 0 else code - 128
        if number in set(signal.Signals):
            return f"ended by signal {number} ({signal.Signals(number).name})"
        return f"ended with status {code}"

    async def exits(self, within: float) -> bool:
        """Return whether it has ended, or ends within some seconds."""
        until = time.monotonic() + within
        while not self.exit_text() and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return bool(self.exit_text())

    def _kill_orphans(self) -> None:
        """Kill the processes of a supervisor that was killed; it is not reaped yet, so that its group id is valid."""
        if sys.platform != "linux":
            return
        status = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None or status.si_code == os.CLD_EXITED:
            return
        self._kill_group()
        mark = f"{_MARK}={self._mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):  # those in other groups and sessions
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def _close_pipe(self) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def terminate(self) -> None:
        """Let it end, and do not wait."""
        self._close_pipe()
        if self._owner == os.getpid():
            self._popen.terminate()  # a process forked from this one may hold the pipe open
        else:
            self._popen.returncode = 0  # a copy in a forked process: not our child
            _RUNNING.discard(self)

    async def stop(self) -> None:
        """End it; return when all its processes are gone."""
        await asyncio.to_thread(self.stop_now)

    def stop_now(self) -> None:
        """As `stop`, without an event loop."""
        self.terminate()
        until = time.monotonic() + STOP_TIMEOUT
        while not self.exit_text():
            if time.monotonic() > until:
                self._kill_group()
            time.sleep(0.02)


_RUNNING: set[ServerProcess] = set()


@atexit.register
def _stop_all() -> None:
    """Stop all servers, so that their memory is free when the program has ended."""
    for process in tuple(_RUNNING):
        process.terminate()
    for process in tuple(_RUNNING):
        process.stop_now()
