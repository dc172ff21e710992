"""Sampling by inversion of the cumulative distribution, against the same in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.engines.embedded.kernels import INTERPRETED, nucleus
from rewardsmith.engines.embedded.kernels import sample_tokens as module
from rewardsmith.engines.embedded.kernels.nucleus import nucleus_floor
from rewardsmith.engines.embedded.kernels.sample_tokens import sample_tokens

Place = tuple[str, torch.dtype]
LARGEST = 1 - 2**-24  # the uniform number next to 1
FEW = settings(
    max_examples=3 if INTERPRETED else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LOGITS = st.lists(st.one_of(st.just(-math.inf), st.floats(-30, 30, width=16)), min_size=1, max_size=40)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in (module, nucleus):
        monkeypatch.setattr(kernel, "CHUNK", 16)


def draw(rows: int, vocabulary: int, place: Place, scale: float = 2.0) -> Tensor:
    return (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * scale).to(*place)


def assert_inverts(
    logits_RV: Tensor, uniforms_R: Tensor, temperature: float, floor_R: Tensor | None = None, gap: float = 2e-6
) -> None:
    """Each uniform number is between the sum of probabilities before the token and the sum with it."""
    tokens_R, logprobs_R = (
        x.cpu() for x in sample_tokens(logits_RV, uniforms_R.to(logits_RV.device), temperature, floor_R)
    )
    x_RV = logits_RV.cpu().double()
    if floor_R is not None:
        x_RV[x_RV < floor_R.cpu().double()[:, None]] = -math.inf
    p_RV = (x_RV / temperature).softmax(-1)
    p_R = p_RV.gather(1, tokens_R[:, None])[:, 0]
    after_R = p_RV.cumsum(-1).gather(1, tokens_R[:, None])[:, 0]
    assert (p_R > 0).all()
    assert (after_R - p_R <= uniforms_R + gap).all()
    assert (after_R >= uniforms_R - gap).all()
    torch.testing.assert_close(logprobs_R.double(), p_R.log(), atol=1e-5, rtol=3e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("vocabulary", [1, 50])
def test_the_token_is_where_the_cumulative_probability_passes(
    place: Place, vocabulary: int, temperature: float
) -> None:
    uniforms_R = torch.tensor([0.0, 0.1, 0.35, 0.5, 0.77, 0.999, LARGEST])
    logits_RV = draw(7, 2 * vocabulary, place)[:, :vocabulary]  # rows with a gap between them
    assert_inverts(logits_RV, uniforms_R, temperature)
    if vocabulary > 1:
        assert_inverts(logits_RV, uniforms_R, temperature, logits_RV.float().median(-1).values)


def test_counts_are_the_probabilities(place: Place) -> None:
    count, logits_V = 30, draw(1, 40, place)[0]
    uniforms_R = (torch.arange(count, device=place[0]) + 0.5) / count
    tokens_R, _ = sample_tokens(logits_V.expand(count, -1), uniforms_R, 1.0)
    counts_V = torch.bincount(tokens_R, minlength=40).cpu()
    assert ((counts_V - count * logits_V.cpu().double().softmax(-1)).abs() <= 1 + 1e-4).all()


@pytest.mark.skipif(INTERPRETED, reason="slow in the interpreter")
def test_a_large_vocabulary(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in (module, nucleus):
        monkeypatch.setattr(kernel, "CHUNK", 4096)
    logits_RV, uniforms_R = draw(6, 50_257, place, scale=3.0), torch.linspace(0, LARGEST, 6)
    assert_inverts(logits_RV, uniforms_R, 1.0, gap=2e-5)
    assert_inverts(logits_RV, uniforms_R, 0.8, nucleus_floor(logits_RV, 0.8, 0.9), gap=2e-5)


@FEW
@given(LOGITS, st.one_of(st.sampled_from([0.0, LARGEST]), st.floats(0, LARGEST, width=32)), st.floats(0.3, 2))
def test_a_token_of_probability_zero_is_never_chosen(
    place: Place, logits: list[float], u: float, temperature: float
) -> None:
    if max(logits) > -math.inf:
        padded = [-math.inf] * 20 + logits + [-math.inf] * 20  # a chunk and more, before and after
        assert_inverts(torch.tensor([padded]).to(*place), torch.tensor([u]), temperature)


def test_greedy_takes_the_first_of_the_likeliest(place: Place) -> None:
    logits_RV = draw(4, 70, place).clamp(max=5)
    for row, ties in enumerate([(3, 5), (15, 16), (69,), (2, 40, 41)]):
        logits_RV[row, list(ties)] = 6
    tokens_R, logprobs_R = sample_tokens(logits_RV, torch.rand(4, device=place[0]), 0)
    assert tokens_R.tolist() == [3, 15, 69, 2]
    exact_R = logits_RV.double().log_softmax(-1).max(-1).values
    torch.testing.assert_close(logprobs_R.double(), exact_R, atol=1e-5, rtol=0)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter's argmax refuses NaN from Triton 3.7 on")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize(("temperature", "top_p"), [(0, 1.0), (1.0, 1.0), (1.0, 0.9)])
def test_broken_logits_are_reported(place: Place, temperature: float, top_p: float) -> None:
    logits_RV = draw(5, 25, place)
    logits_RV[0, 20], logits_RV[1, 2], logits_RV[2] = math.nan, math.inf, -math.inf
    logits_RV[3] = math.nan
    floor_R = nucleus_floor(logits_RV, 1.0, top_p) if top_p < 1 else None
    tokens_R, logprobs_R = sample_tokens(logits_RV, torch.full((5,), 0.5, device=place[0]), temperature, floor_R)
    assert torch.isfinite(logprobs_R).tolist() == [False, False, False, False, True]
    assert ((tokens_R >= 0) & (tokens_R < 25)).all()


# ---- top-p -----------------------------------------------------------------------------------------------------------


def smallest_kept(logits: list[float], temperature: float, top_p: float) -> tuple[float, float]:
    """Return bounds of the floor: what it is for a top_p a little larger and a little smaller."""
    x_V = torch.tensor(logits, dtype=torch.float64)
    p_V = (x_V / temperature).softmax(0)

    def floor(mass: float) -> float:
        return min(x for x in x_V.tolist() if float(p_V[x_V > x].sum()) < mass)

    return floor(top_p + 1e-6), floor(top_p - 1e-6)


@FEW
@given(LOGITS, st.floats(0.05, 0.99), st.floats(0.3, 2))
def test_the_floor_is_the_smallest_logit_that_top_p_keeps(
    place: Place, logits: list[float], top_p: float, temperature: float
) -> None:
    logits_V = torch.tensor(logits).to(*place)
    if max(logits) > -math.inf:
        least, most = smallest_kept(logits_V.tolist(), temperature, top_p)
        assert least <= float(nucleus_floor(logits_V[None], temperature, top_p)) <= most


def test_tokens_as_likely_as_the_last_are_kept_too(place: Place) -> None:
    logits_RV = torch.tensor([[0.0, 1.0, -2.0, 1.0, 0.0], [-1.5, -1.5, -1.5, -1.5, -math.inf]]).to(*place)
    assert nucleus_floor(logits_RV, 1.0, 0.8).tolist() == [0.0, -1.5]
    assert nucleus_floor(logits_RV, 1.0, 0.2).tolist() == [1.0, -1.5]
