"""AdamW in little memory: pieces and host memory change no bit, 8-bit moments lose no more than their codes allow."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded import host_memory, streamed_adamw
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.learner import Learner
from rewardsmith.engines.embedded.streamed_adamw import BLOCK, dequantise, quantise
from rewardsmith.engines.model_settings import LoraSettings
from rewardsmith.errors import UserError

from .test_learner import KINDS, ROWS, loss

SHAPES = {"large": (70, 101), "vector": (4500,), "small": (3, 5), "number": ()}
CHEAP: list[dict[str, Any]] = [{"offload": True}, {"states": "8bit"}, {"states": "8bit", "offload": True}]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_adamw, "PIECE", 16 * BLOCK)


def parameters(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SHAPES.items()}


def gradients(step: int) -> dict[str, Tensor]:
    """Gradients of very different sizes within a block; one parameter has none at first."""
    generator = torch.Generator().manual_seed(step)
    sizes = {name: 10 ** torch.empty(shape).uniform_(-3, 1, generator=generator) for name, shape in SHAPES.items()}
    found = {name: size * torch.randn(size.shape, generator=generator) for name, size in sizes.items()}
    return found if step else {name: found[name] for name in ("large", "vector", "number")}


def moved(dtype: torch.dtype, steps: int = 4, **options: Any) -> tuple[dict[str, nn.Parameter], Learner]:
    mine = parameters(dtype)
    learner = Learner(mine, OptimizerSettings(lr=1.0, weight_decay=0.1, clip_norm=20.0, **options))
    for step in range(steps):
        give(mine, step)
        learner.step(1e-2 / (step + 1))
    return mine, learner


def give(owners: dict[str, nn.Parameter], step: int) -> None:
    for name, gradient in gradients(step).items():
        (owners[name] * gradient.to(owners[name].dtype)).sum().backward()


# ---- states in host memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offloaded_states_change_no_bit(dtype: torch.dtype, small_pieces: None) -> None:
    (expected, resident), (found, offloaded) = moved(dtype), moved(dtype, offload=True)
    assert all(torch.equal(expected[name], found[name]) for name in SHAPES)
    ours, theirs = offloaded.state(), resident.state()
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name].cpu()) for name in theirs)
    assert offloaded.tensors() == []  # nothing to move when the model sleeps


def test_a_run_may_go_on_with_states_elsewhere(small_pieces: None) -> None:
    """The files of both are the same: who ran out of memory can resume with `offload = true`."""
    for first, then in (({}, {"offload": True}), ({"offload": True}, {})):
        expected, whole = moved(torch.bfloat16, 2, **first)
        mine, again = moved(torch.bfloat16, 0, **then)
        for name, p in mine.items():
            p.data.copy_(expected[name].data)
        again.load({name: tensor.clone() for name, tensor in whole.state().items()})
        for owners, learner in ((expected, whole), (mine, again)):
            give(owners, 5)
            learner.step(1e-2)
        assert all(torch.equal(expected[name], mine[name]) for name in SHAPES)


def test_states_that_the_host_has_no_room_for_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_memory.free_host_memory() > 2**20
    files = {"memory.max": "1000000", "memory.current": "999000", "memory.stat": "anon 5\nactive_file 9000"}
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert host_memory.free_host_memory() == 10**4
    moved(torch.float32, 0, states="8bit")
    with pytest.raises(UserError, match=r"optimizer\.offload = true needs 0\.0 GiB of host memory"):
        moved(torch.float32, 0, offload=True)


# ---- 8 bits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_the_dynamic_ones_of_the_paper(signed: bool) -> None:
    values = dequantise(torch.arange(256, dtype=torch.uint8), torch.ones(1), signed=signed)
    assert all(a < b for a, b in pairwise(values.tolist()))
    assert values.max() == 1
    assert (values == 0).sum() == 1
    assert float(values[values > 0].min()) == pytest.approx(5.5e-7 if signed else 3.25e-7)
    for decade in range(7):  # twice as many values in each decade as in the one below
        inside = (values > 10.0 ** (decade - 7)) & (values < 10.0 ** (decade - 6))
        assert int(inside.sum()) == 2**decade * (1 if signed else 2)
    assert not signed or torch.equal(values[values < 0], -values[(values > 0) & (values < 1)].flip(0))


@given(st.integers(1, 3 * BLOCK), st.floats(-30, 30), st.booleans(), st.integers(0, 99))
def test_a_value_becomes_the_nearest_one_of_its_block(count: int, size: float, signed: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator) * 10.0**size
    values = values if signed else values.abs()
    codes, scales = quantise(values, signed=signed)
    found = dequantise(codes, scales, signed=signed)[:count]
    table = dequantise(torch.arange(256, dtype=torch.uint8), torch.ones(1), signed=signed).double()
    for start in range(0, count, BLOCK):
        block = values[start : start + BLOCK].double()
        scale = block.abs().max()
        nearest = (block[:, None] - scale * table).abs().min(-1).values
        torch.testing.assert_close(
            (found[start : start + BLOCK].double() - block).abs(), nearest, atol=float(1e-6 * scale), rtol=0
        )


def test_zeros_stay_zeros() -> None:
    for signed in (True, False):
        assert not dequantise(*quantise(torch.zeros(300), signed=signed), signed=signed).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_8bit_moments_learn_nearly_the_same_and_offloaded_ones_exactly(dtype: torch.dtype, small_pieces: None) -> None:
    expected, found, both = (moved(dtype, 8, **options) for options in ({}, CHEAP[1], CHEAP[2]))
    for name, start in parameters(dtype).items():
        assert torch.equal(found[0][name], both[0][name])
        there, here = (learner.state().get(f"master/{name}", ours[name]) for ours, learner in (expected, found))
        gap, way = (here - there).norm(), (there - start).norm()
        assert gap <= (0.05 * way if start.numel() >= streamed_adamw.MIN_QUANTISED else 0)
    moments = {name: t for name, t in found[1].state().items() if name.startswith("exp_avg") and "large" in name}
    assert sum(t.nbytes for t in moments.values()) <= 70 * 101 * 2 * (1 + 4 / BLOCK) + 2 * BLOCK


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_those_of_torchao(signed: bool) -> None:
    torchao = pytest.importorskip("torchao.optim.quant_utils")
    values = dequantise(torch.arange(256, dtype=torch.uint8), torch.ones(1), signed=signed)
    torch.testing.assert_close(values, torch.tensor(torchao.create_dynamic_map(signed)))


# ---- steps that are skipped, files, adapters -------------------------------------------------------------------------


@pytest.mark.parametrize("options", CHEAP)
def test_a_gradient_that_is_not_finite_changes_nothing(options: dict[str, Any], small_pieces: None) -> None:
    mine, learner = moved(torch.bfloat16, 2, **options)
    before = {name: tensor.clone() for name, tensor in learner.state().items()}
    weights = {name: p.detach().clone() for name, p in mine.items()}
    (mine["large"] * torch.inf).sum().backward()
    assert learner.step(1e-2).skipped
    assert all(torch.equal(p, weights[name]) for name, p in mine.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state().items())


@pytest.mark.parametrize("options", CHEAP)
@pytest.mark.parametrize("kind", ["bfloat16", "scalar adapter"])
def test_going_on_from_a_file_is_exact(
    kind: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_adamw, "MIN_QUANTISED", 300)  # a tiny model has no large parameters

    def learning() -> EmbeddedEngine:
        torch.manual_seed(0)
        engine = EmbeddedEngine.open(ModelSettings(device="cpu", **KINDS[kind]))
        engine.learn_with(OptimizerSettings(lr=1e-2, weight_decay=0.01, **options))
        return engine

    def learn(engine: EmbeddedEngine) -> list[float]:
        return [engine.update(ROWS, loss, lr=1e-2).grad_norm for _ in range(2)]

    whole, again = learning(), learning()
    learn(whole)
    whole.save(tmp_path)
    again.load(tmp_path)
    again.load_learner(tmp_path)
    assert learn(whole) == learn(again)
    ours, theirs = whole.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_moments_of_another_precision_are_refused() -> None:
    _, learner = moved(torch.float32)
    _, other = moved(torch.float32, states="8bit")
    for one, state in ((learner, other.state()), (other, learner.state())):
        with pytest.raises(UserError, match=r"optimizer\.states"):
            one.load(state)


def test_an_adapter_learns_with_offloaded_8bit_states() -> None:
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cpu", lora=LoraSettings(rank=4)))
    engine.learn_with(OptimizerSettings(lr=1e-2, states="8bit", offload=True))
    first, *_, last = [engine.update(ROWS, loss, lr=1e-2) for _ in range(4)]
    assert not first.skipped
    assert last.grad_norm != first.grad_norm
