"""Tokens over several places: the sum over the places of a token, against a loop."""

import numpy as np
import pytest
import torch

from rewardsmith.engines.embedded.kernels.repeats import Repeats, sum_places, sum_places_torch

Place = tuple[str, torch.dtype]
LAYOUTS = {
    "one place each": ([2, 0, 1, 3], None),
    "a prompt of two tokens for three responses": ([0, 1, 2, 0, 1, 3, 4, 0, 1, 5], None),
    "padded": ([0, 1, 2, 0, 0, 1, 3, 0], [0, 1, 2, 4, 5, 6]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 128), (9, 130)])
def test_the_gradient_of_a_token_is_the_sum_over_its_places(place: Place, layout: str, shape: tuple[int, ...]) -> None:
    tokens, places = LAYOUTS[layout]
    real = range(len(tokens)) if places is None else places
    x_P = torch.randn(len(tokens), *shape, generator=torch.Generator().manual_seed(1)).to(*place)
    repeats = Repeats(np.array(tokens), x_P.device, None if places is None else np.array(places))
    count = max(tokens) + 1
    expected = torch.stack([sum(x_P[p].double() for p in real if tokens[p] == n) for n in range(count)])
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 1e-2}[place[1]]
    for found in (sum_places(x_P, repeats), sum_places_torch(x_P, repeats)):
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
    x_N = torch.randn(count, *shape, generator=torch.Generator().manual_seed(2)).to(*place).requires_grad_()
    spread_P = repeats.apply(x_N)
    torch.testing.assert_close(spread_P[real], x_N[[tokens[p] for p in real]], atol=0, rtol=0)
    torch.testing.assert_close(repeats.undo(spread_P), x_N, atol=0, rtol=0)
    spread_P.backward(x_P)
    torch.testing.assert_close(x_N.grad, sum_places(x_P, repeats), atol=0, rtol=0)
