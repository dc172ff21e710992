"""The gated unit against its definition in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels.gated import silu_mul
from tests.kernels.exact import check


def definition(gate: Tensor, up: Tensor) -> Tensor:
    return gate / (1 + torch.exp(-gate)) * up


@pytest.mark.parametrize(("n", "width"), [(3, 7), (2, 4097), (0, 16), (1, 1536)])
def test_silu_mul(randn: Callable[..., Tensor], n: int, width: int) -> None:
    check(silu_mul, definition, [randn(n, width, scale=3.0), randn(n, width)])


def test_views_of_one_product(randn: Callable[..., Tensor]) -> None:
    def halves(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda both: f(both[:, :33], both[:, 33:])

    check(halves(silu_mul), halves(definition), [randn(5, 66)])
