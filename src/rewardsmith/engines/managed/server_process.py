"""The process of a server: its command line and environment, its log, and its end."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rewardsmith.engines.model_settings import ManagedSettings, visible_gpus
from rewardsmith.masking import resolved
from rewardsmith.storage import writing

HOST = "127.0.0.1"
GRACE = 5.0  # seconds that a server has to end after SIGTERM
STOP_TIMEOUT = GRACE + 12.0  # seconds after which a supervisor that has not ended is killed
TAIL = 30  # lines of the log that an error shows

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_TAIL_BYTES, _MAX_LINE = 1 << 16, 500
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PLACEHOLDER = re.compile(r"\{(model|port|host)\}")


class HostedProcess(Protocol):
    """The process of a server, on this machine or on another."""

    command: str

    def exit_text(self) -> str:
        """Return how it ended, such as `ended with status 1`; "" while it runs."""

    async def exits(self, within: float) -> bool:
        """Return whether it has ended, or ends within some seconds."""

    def terminate(self) -> None:
        """Let it end, and do not wait."""

    async def stop(self) -> None:
        """End it; return when it is gone."""


Launch = Callable[[ManagedSettings, str, Path], Awaitable[tuple[HostedProcess, str]]]
"""Starts a server from its settings, the served model name and its log; returns the process and its URL."""


async def launch_here(settings: ManagedSettings, name: str, log: Path) -> tuple[HostedProcess, str]:
    """Start a server on this machine; `OSError` if its port is taken."""
    port = free_port(settings.port or 0)
    command = server_command(settings, name=name, port=port)
    return ServerProcess(command, server_environment(settings), log), f"http://{HOST}:{port}"


def free_port(port: int = 0, host: str = HOST) -> int:
    """Return a port that is free now: the given one, or any; `OSError` if it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else the one of a server that died is taken
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def server_command(settings: ManagedSettings, *, name: str, port: int, host: str = HOST) -> list[str]:
    """Return the command line of a server; `name` is the served model name."""
    arguments = resolved(settings.arguments)[0]
    if isinstance(settings.command, list):
        values = {"model": settings.model, "port": str(port), "host": host}
        return [*(_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in settings.command), *arguments]
    if settings.command == "vllm":
        known = _vllm(settings, name)
    elif settings.command == "sglang":
        known = _sglang(settings, name)
    else:
        known = ["-m", "transformers.cli.transformers", "serve", settings.model, "--continuous-batching"]
    listen = ["--host", host, "--port", str(port)]
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
        *(["--is-embedding"] if settings.serves != "chat" else []),
        # Without the second, the weights are lost in sleep.
        *(["--enable-memory-saver", "--enable-weights-cpu-backup"] if settings.offload else []),
    ]


def _option(name: str, value: float | None) -> list[str]:
    return [] if value is None else [name, str(value)]


def server_environment(settings: ManagedSettings) -> dict[str, str]:
    """Return all variables of a server: those of this process, what the command needs, and those of the recipe."""
    needed = {"PYTHONUNBUFFERED": "1"}  # the last lines before a crash matter most
    defaults = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    if settings.offload and settings.api == "vllm":
        needed["VLLM_SERVER_DEV_MODE"] = "1"  # without it, vLLM has no /sleep
    if settings.offload and settings.api == "sglang":
        needed["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "false"  # /health would generate, and sleepers cannot
    if settings.devices is not None:
        visible = visible_gpus()
        needed["CUDA_VISIBLE_DEVICES"] = ",".join(visible[n] if visible else str(n) for n in settings.devices)
    given: dict[str, str] = resolved(settings.environment)[0]
    return defaults | dict(os.environ) | needed | given


def log_tail(file: Path, lines: int = TAIL) -> list[str]:
    """Return the last lines of a log that have text, without colours, progress bars and control characters."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = opened.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    last = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]  # the last state of a progress bar
    cleaned = [_CONTROLS.sub(" ", _COLOURS.sub("", line))[:_MAX_LINE].strip() for line in last]
    return [line for line in cleaned if line][-lines:]


class ServerProcess:
    """A server under a supervisor (`supervisor.py`), which ends with this process in any case.

    Its output goes to the file `log`; that of the start before is kept with `.1` at its end.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command = shlex.join(command)
        self._owner = os.getpid()
        with writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            if log.exists():
                log.replace(log.with_name(f"{log.name}.1"))
            with log.open("wb") as output:
                self._popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_SUPERVISOR), str(self._owner), str(GRACE), *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for the trainer, which needs the server to finish its step
                )
        _RUNNING.add(self)

    def exit_text(self) -> str:
        """Return how it ended, such as `ended with status 1`; "" while it runs."""
        code = self._popen.poll()
        if code is None:
            return ""
        if self in _RUNNING:
            _RUNNING.discard(self)
            if code < 0:
                self._kill_group()  # the supervisor was killed, and could not end the others
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
        self._popen.terminate()  # a process forked from this one may hold the pipe open

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
    """Stop all servers, so that their memory is free when the program has ended; a forked process stops none."""
    mine = [process for process in _RUNNING if process._owner == os.getpid()]
    for process in mine:
        process.terminate()
    for process in mine:
        process.stop_now()
