"""The command lines of the servers that a recipe can name, and what they need in their environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping

from rewardsmith.engines.settings import ManagedSettings
from rewardsmith.masking import resolved

_PLACEHOLDER = re.compile(r"\{(model|port|host)\}")


def at_home(settings: ManagedSettings) -> ManagedSettings:
    """Return settings without a `~`: no shell will replace it by the user's folder."""
    changed: dict[str, object] = {"model": os.path.expanduser(settings.model)}
    if settings.python is not None:
        changed["python"] = os.path.expanduser(settings.python)
    if isinstance(settings.command, list):
        changed["command"] = [os.path.expanduser(word) for word in settings.command]
    return settings.model_copy(update=changed)


def command_of(settings: ManagedSettings, *, name: str, port: int) -> list[str]:
    """Return the command line of the server.

    Args:
        settings: of the model.
        name: under which the server offers it, where the server can be told.
        port: to listen on.

    Raises:
        UnsetVariableError: an environment variable that the recipe names is not set.
    """
    arguments = resolved(settings.arguments)[0]
    if isinstance(settings.command, list):
        values = {"model": settings.model, "port": str(port), "host": settings.host}
        filled = [_PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in settings.command]
        return [*filled, *arguments]
    known = COMMANDS[settings.command](settings, name, port)
    return [settings.python or sys.executable, *known, *arguments]


def _vllm(settings: ManagedSettings, name: str, port: int) -> list[str]:
    # Not the `vllm` script: in some packages it does not start.
    tasks = {
        "chat": [],
        "classify": ["--runner", "pooling", "--convert", "classify"],
        "score": ["--runner", "pooling"],  # a cross-encoder or an embedding model: the server sees which
        "embed": ["--runner", "pooling", "--convert", "embed"],
    }
    return [
        *("-m", "vllm.entrypoints.openai.api_server", "--model", settings.model, "--served-model-name", name),
        *("--host", settings.host, "--port", str(port), "--tensor-parallel-size", str(settings.tensor_parallel)),
        *("--uvicorn-log-level", "warning"),  # else a line for each request, in a file without a bound
        *_given("--gpu-memory-utilization", settings.memory),
        *_given("--max-model-len", settings.max_length),
        *(["--enable-sleep-mode"] if settings.sleeps else []),
        *tasks[settings.serves],
    ]


def _sglang(settings: ManagedSettings, name: str, port: int) -> list[str]:
    return [
        *("-m", "sglang.launch_server", "--model-path", settings.model, "--served-model-name", name),
        *("--host", settings.host, "--port", str(port), "--tp-size", str(settings.tensor_parallel)),
        *("--log-level-http", "warning"),
        *_given("--mem-fraction-static", settings.memory),
        *_given("--context-length", settings.max_length),
        *(["--is-embedding"] if settings.serves == "embed" else []),
    ]


def _transformers(settings: ManagedSettings, _: str, port: int) -> list[str]:
    return [
        *("-m", "transformers.cli.transformers", "serve", settings.model),
        *("--host", settings.host, "--port", str(port), "--continuous-batching"),
    ]


def _given(option: str, value: float | None) -> list[str]:
    return [] if value is None else [option, str(value)]


COMMANDS: Mapping[str, Callable[[ManagedSettings, str, int], list[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "transformers": _transformers,
}
"""The servers that a recipe can name."""


def secrets_of(settings: ManagedSettings) -> list[str]:
    """Return what the recipe takes from environment variables: it is shown nowhere.

    Raises:
        UnsetVariableError: one of them is not set.
    """
    return resolved([settings.arguments, settings.environment])[1]


def environment_of(settings: ManagedSettings) -> dict[str, str]:
    """Return all variables of the server: those of this process, what the command needs, and what the recipe adds.

    Raises:
        UnsetVariableError: an environment variable that the recipe names is not set.
    """
    needed = {"PYTHONUNBUFFERED": "1"}  # the last lines before a crash are the ones that tell
    usual = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}  # a run reports to nobody unless asked to
    if settings.sleeps:
        needed["VLLM_SERVER_DEV_MODE"] = "1"  # without it, vLLM has no /sleep
    if settings.devices is not None:
        needed["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, settings.devices))
    given: dict[str, str] = resolved(settings.environment)[0]
    return usual | dict(os.environ) | needed | given
