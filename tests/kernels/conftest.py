"""The same tests three ways: torch on a CPU; the kernels on a GPU; the kernels on a CPU, in Triton's interpreter.

Triton chooses between compiler and interpreter when it is imported. So `test_interpreter.py` runs this folder once more
in a process of its own, with TRITON_INTERPRET=1; there the tensors of a CPU go to the kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels import INTERPRETED

collect_ignore = ["test_interpreter.py"] if INTERPRETED else []
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() and not INTERPRETED else ["cpu"]
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]  # it cuts bfloat16 instead of rounding
PLACES = list(itertools.product(DEVICES, DTYPES))

if INTERPRETED:  # numpy 2.4 makes no number of an array with one element; the bounds of a loop are such arrays
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_index


@pytest.fixture(params=PLACES, ids=lambda place: f"{place[0]}-{str(place[1])[6:]}")
def place(request: pytest.FixtureRequest) -> tuple[str, torch.dtype]:
    """Where a test runs, and in which dtype."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def randn(place: tuple[str, torch.dtype]) -> Callable[..., Tensor]:
    """Normal numbers in that place, the same in every run: values of its dtype, and leaves of the graph."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return numbers.to(*place).requires_grad_()

    return draw
