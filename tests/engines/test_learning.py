"""Log-probabilities, values and gradients: packed rows that share prompts against transformers, one row at a time."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rewardsmith.engines import OptimizerSettings
from rewardsmith.engines.embedded import heads
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.packing import MAX_PADDING, micro_batches
from rewardsmith.engines.embedded.tiny import TINY
from rewardsmith.engines.protocol import Loss, Outputs, Row

from .running import hf_logits, hf_logprobs, hf_model, open_engine, random_rows, shared_engine

NAMES = list(TINY)


def shared_rows(seed: int = 0) -> list[Row]:
    """Return rows of which some have a prompt in common, in no order; one has no answer, some reach beyond windows."""
    apart = random_rows(seed, [(3, 5), (40, 2), (1, 1), (7, 30), (5, 0), (20, 20)])
    more = random_rows(seed + 1, [(1, 4), (1, 9), (1, 0), (1, 1), (1, 25)])
    return [
        apart[0],
        Row(apart[1].prompt, more[0].response),
        apart[1],
        apart[2],
        Row(apart[0].prompt, more[1].response),
        apart[3],
        Row(apart[1].prompt, more[2].response),
        apart[4],
        Row(apart[0].prompt, more[3].response),
        Row(apart[5].prompt, apart[5].response),
        Row(apart[1].prompt, more[4].response),
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_are_those_of_transformers(name: str, temperature: float) -> None:
    rows, model = shared_rows(), hf_model(name)
    found = shared_engine(name).logprobs(rows, temperature=temperature)
    assert found.shape == (len(rows), max(len(row.response) for row in rows))
    assert found.dtype == torch.float32
    for row, numbers in zip(rows, found, strict=True):
        if not len(row.response):
            assert not numbers.any()
            continue
        with torch.no_grad():
            expected = hf_logprobs(model, row, temperature)
        torch.testing.assert_close(numbers[: len(expected)], expected, atol=2e-5, rtol=1e-5)
        assert not numbers[len(expected) :].any()


def test_entropy_and_mask_of_the_outputs() -> None:
    engine, rows = open_engine("tiny-qwen2"), shared_rows()
    engine.learn_with(OptimizerSettings(lr=1e-3))
    counted: list[int] = []

    def loss(outputs: Outputs) -> Tensor:
        for i, mask, entropy, values in zip(
            outputs.rows.tolist(), outputs.mask_bT, outputs.entropy_bT, outputs.values_bT, strict=True
        ):
            counted.append(i)
            length = len(rows[i].response)
            assert mask.tolist() == [t < length for t in range(len(mask))]
            assert not values.any()
            assert not entropy[length:].any()
            if length:
                with torch.no_grad():
                    p = (hf_logits(hf_model("tiny-qwen2"), rows[i]) / 0.7).softmax(-1)
                torch.testing.assert_close(entropy[:length].detach(), -(p * p.log()).sum(-1), atol=1e-5, rtol=1e-5)
        return outputs.logprobs_bT.sum()

    engine.update(rows, loss, lr=0.0, temperature=0.7)
    assert sorted(counted) == list(range(len(rows)))


def test_no_rows_and_no_answers_are_fine() -> None:
    engine = shared_engine("tiny-llama")
    assert engine.logprobs([]).shape == (0, 0)
    assert engine.logprobs(random_rows(0, [(4, 0), (2, 0)])).shape == (2, 0)


# ---- gradients -------------------------------------------------------------------------------------------------------


def weights_bT(rows: Tensor, width: int) -> Tensor:
    """Return some number for every token of every row, the same whichever rows are chosen."""
    return torch.sin(1 + rows[:, None] * 3.7 + torch.arange(width)[None] * 1.3)


def weighted(outputs: Outputs) -> Tensor:
    """Return a loss that treats every token differently, and uses the entropy too."""
    weights = weights_bT(outputs.rows, outputs.mask_bT.shape[1])
    return (weights * outputs.logprobs_bT + 0.3 * weights.cos() * outputs.entropy_bT).sum()


def gradients(engine: EmbeddedEngine, rows: list[Row], loss: Loss, temperature: float = 1.0) -> dict[str, Tensor]:
    """Return the gradient that an update hands to the optimizer."""
    engine.learn_with(OptimizerSettings(lr=1e-3))
    found: dict[str, Tensor] = {}

    def read(_lr: float) -> Any:
        found.update({n: p.grad.clone() for n, p in engine.model.named_parameters() if p.grad is not None})

    assert engine._learner is not None
    engine._learner.step = read  # type: ignore[method-assign]
    engine.update(rows, loss, lr=0.0, temperature=temperature)
    engine.model.zero_grad()
    engine.stop_learning()
    return found


def hf_gradients(name: str, rows: list[Row], temperature: float) -> dict[str, Tensor]:
    """Return the gradient of `weighted` by transformers, autograd and one row after the other."""
    model = hf_model(name)
    model.zero_grad()
    for i, row in enumerate(rows):
        if len(row.response):
            logp = (hf_logits(model, row) / temperature).log_softmax(-1)
            chosen = logp.gather(-1, torch.from_numpy(row.response.astype(np.int64))[:, None])[:, 0]
            entropy = -(logp.exp() * logp).sum(-1)
            weights = weights_bT(torch.tensor([i]), len(row.response))[0]
            (weights * chosen + 0.3 * weights.cos() * entropy).sum().backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        scale = float(gradient.abs().max())
        assert scale > 0, name
        assert float((found[name] - gradient).abs().max()) < tolerance * scale, name


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_transformers(name: str) -> None:
    engine, rows = open_engine(name, tokens_per_pass=120), shared_rows()
    assert len(micro_batches(rows, 120)) > 1
    assert_same(gradients(engine, rows, weighted, 0.8), hf_gradients(name, rows, 0.8))


@pytest.mark.parametrize("budget", [1, 60, 10_000])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_depend_neither_on_passes_nor_on_recomputation(budget: int, *, recompute: bool) -> None:
    engine = open_engine("tiny-gemma2", tokens_per_pass=budget, recompute=recompute)
    rows = shared_rows()
    assert_same(gradients(engine, rows, weighted), hf_gradients("tiny-gemma2", rows, 1.0))


def test_a_loss_that_fails_leaves_no_gradient_behind() -> None:
    rows = random_rows(0, [(5, 5), (6, 6)])
    engine = open_engine("tiny-llama", tokens_per_pass=8)
    engine.learn_with(OptimizerSettings(lr=1e-3, clip_norm=1e9))
    expected = open_engine("tiny-llama", tokens_per_pass=8)
    expected.learn_with(OptimizerSettings(lr=1e-3, clip_norm=1e9))
    calls = 0

    def fails(outputs: Outputs) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyError
        return weighted(outputs) * 100

    with pytest.raises(KeyError):
        engine.update(rows, fails, lr=1e-3)
    norms = [e.update(rows, weighted, lr=1e-3).grad_norm for e in (engine, expected)]
    assert norms[0] == pytest.approx(norms[1])


# ---- memory ----------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Remember the max_rows rows that a tensor of a given width had; weights are not counted."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.width, self.hidden, self.max_rows = width, hidden, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor) and x.shape[-1:] == (self.width,) and x.shape != (self.hidden, self.width):
                self.max_rows = max(self.max_rows, x.numel() // self.width)
        return result


def test_the_logits_of_a_batch_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("tiny-llama")
    vocabulary = engine.model.config.vocab_size
    rows = random_rows(0, [(4, 60)] * 8)
    engine.learn_with(OptimizerSettings(lr=1e-3))
    for tokens in (7, 96):  # above 16 a multiple of 16
        monkeypatch.setitem(heads.CHUNK_ELEMENTS, "cpu", tokens * vocabulary)
        with Largest(vocabulary, engine.model.config.hidden_size) as counted:
            engine.logprobs(rows)
            engine.update(rows, weighted, lr=0.0)
        assert counted.max_rows == tokens


# ---- packing ---------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=25)
PROMPTS = [row.prompt for row in random_rows(9, [(1, 0), (2, 0), (2, 0), (6, 0), (11, 0)])]


def cost(rows: list[Row], batch: list[int]) -> int:
    prompts = {rows[i].prompt.tobytes(): len(rows[i].prompt) for i in batch}
    return sum(prompts.values()) + sum(max(0, len(rows[i].response) - 1) for i in batch)


@given(SIZES, st.integers(1, 60))
def test_each_row_is_in_one_batch_and_no_batch_is_too_large(sizes: list[tuple[int, int]], budget: int) -> None:
    rows = [Row(PROMPTS[which], np.arange(n, dtype=np.int32)) for which, n in sizes]
    batches = micro_batches(rows, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    assert all(batches)
    for batch in batches:
        assert cost(rows, batch) <= budget or len(batch) == 1
    # Rows of a prompt stand together, and in no more batches than a budget without other rows would need.
    order = [rows[i].prompt.tobytes() for batch in batches for i in batch]
    assert sum(a != b for a, b in pairwise(order)) == max(0, len(set(order)) - 1)
    # Every batch but the last has its share, unless attention would be padded too much.
    total = cost(rows, list(range(len(rows))))
    for one, two in pairwise(batches):
        both = [*one, two[0]]
        padded = len(both) * max(len(rows[i].prompt) + len(rows[i].response) for i in both)
        assert cost(rows, both) > total // math.ceil(total / budget) or padded > MAX_PADDING * budget


def test_attention_is_never_padded_far_beyond_the_budget() -> None:
    rows = random_rows(0, [(10, 900), *[(10, 5)] * 80])
    for batch in micro_batches(rows, 1000):
        longest = max(len(rows[i].prompt) + len(rows[i].response) for i in batch)
        assert len(batch) * longest <= MAX_PADDING * 1000
