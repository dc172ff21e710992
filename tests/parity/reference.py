"""One recorded call of a peer, and the scenario's inputs as tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Reference:
    """What a peer returned.

    Attributes:
        name: of the case, "family/function/scenario/variant".
        function: the peer's function that was called.
        scenario: name of the inputs, or None where the settings say all.
        settings: keyword arguments and configuration values.
        outputs: name -> tensor or list of floats.
    """

    name: str
    function: str
    scenario: str | None
    settings: dict[str, Any]
    outputs: dict[str, Any]


def as_tensor(name: str, values: Any) -> Tensor:
    """Return masks as bool, whole numbers as int64, all else as float64 with NaN for None."""
    if name.startswith("mask_"):
        return torch.tensor(values, dtype=torch.bool)
    return torch.from_numpy(np.array(_filled(values)))


def _filled(values: Any) -> Any:
    if isinstance(values, list):
        return [_filled(value) for value in values]
    return math.nan if values is None else values
