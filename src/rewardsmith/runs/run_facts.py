"""When and where a run was made: for its summary, and the head of its report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from rewardsmith import __version__
from rewardsmith.config import Chosen
from rewardsmith.engines.model_settings import ModelSettings

_PACKAGES = ("torch", "transformers", "verl")


def run_facts(models: Mapping[str, Chosen], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a start; a run that is resumed keeps the date of its first one."""
    return {
        "started": earlier.get("started") or datetime.now(UTC).isoformat(timespec="seconds"),
        "device": _device(models),
        "versions": {"rewardsmith": __version__, "python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _device(models: Mapping[str, Chosen]) -> str:
    """Return the devices of the models that run here, by their product names."""
    settings = [model.settings for model in models.values() if isinstance(model.settings, ModelSettings)]
    cpu = f"CPU, {os.cpu_count()} cores"
    if not torch.cuda.is_available() or all(one.device == "cpu" for one in settings):
        return cpu
    numbers = {int(one.device.partition(":")[2] or 0) for one in settings if one.device != "cpu"}
    names = [f"{torch.cuda.get_device_name(i)} ({i})" for i in sorted(numbers) if i < torch.cuda.device_count()]
    return ", ".join(names) or cpu
