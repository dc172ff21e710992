"""The product with 8-bit weights against the dequantised weights in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.int8_linear import quantise_rows
from rewardsmith.engines.embedded.kernels.int8_product import MAX_ROWS, int8_product, int8_product_torch
from tests.kernels.exact import close


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 7, 3), (17, 130, 33), (3, 8, 4100), (70, 64, 40)])
def test_product(randn: Callable[..., Tensor], rows: int, inputs: int, outputs: int, bias: bool) -> None:
    x, weight = randn(rows, inputs).detach(), randn(outputs, inputs).detach() * torch.rand(1).item()
    added = randn(outputs).detach() if bias else None
    codes, scales = quantise_rows(weight)
    exact = x.double() @ (codes.double() * scales.double()).T + (0 if added is None else added.double())
    for product in (int8_product, int8_product_torch):
        close(product(x, codes, scales, added), exact.cpu())


def test_dimensions_before_the_last_stay_and_many_rows_go_to_torch(randn: Callable[..., Tensor]) -> None:
    codes, scales = quantise_rows(randn(8, 16).detach())
    for shape in ((2, 3, 16), (0, 16), (MAX_ROWS + 1, 16)):
        x = randn(*shape).detach()
        found, expected = (product(x, codes, scales) for product in (int8_product, int8_product_torch))
        assert found.shape == expected.shape == (*shape[:-1], 8)
        close(found, expected.double().cpu())
    assert torch.equal(found, expected)
