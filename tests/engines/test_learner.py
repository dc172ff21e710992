"""The optimizer: AdamW on masters, clipping, steps that are skipped, and going on exactly from a file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded import loading
from rewardsmith.engines.embedded.engine import LEARNER_FILE, EmbeddedEngine
from rewardsmith.engines.embedded.learner import Learner
from rewardsmith.engines.model_settings import LoraSettings
from rewardsmith.engines.protocol import OptimizerStep, Outputs
from rewardsmith.errors import UserError

from .running import random_rows

SHAPES = {"matrix": (4, 3), "vector": (5,), "table": (2, 2, 2), "number": ()}


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SHAPES.items()}


def gradient(step: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator) * scale for name, shape in SHAPES.items()}


def give(owners: dict[str, nn.Parameter], gradients: dict[str, Tensor]) -> None:
    """Run a backward pass that adds these gradients."""
    sum((p * gradients[name].to(p.dtype)).sum() for name, p in owners.items()).backward()  # type: ignore[union-attr]


def adamw(p: Tensor, grads: list[Tensor], rates: list[float], *, beta1: float, beta2: float, decay: float) -> Tensor:
    """Return where AdamW takes a parameter: Loshchilov & Hutter, Decoupled weight decay regularization, algorithm 2."""
    p = p.double()
    mean = square = torch.zeros_like(p)
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), 1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g * g
        p = p - lr * decay * p
        p = p - lr * (mean / (1 - beta1**t)) / ((square / (1 - beta2**t)).sqrt() + 1e-8)
    return p


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_those_of_adamw_and_only_matrices_decay(decay: float) -> None:
    mine, start = parameters(), parameters()
    learner = Learner(mine, OptimizerSettings(lr=1.0, beta1=0.8, beta2=0.95, weight_decay=decay, clip_norm=1e9))
    rates = [1e-2, 3e-2, 1e-3, 2e-2]
    grads = [gradient(step) for step in range(4)]
    for lr, grad in zip(rates, grads, strict=True):
        give(mine, grad)
        step = learner.step(lr)
        length = torch.sqrt(sum((g.double() ** 2).sum() for g in grad.values()))  # type: ignore[arg-type]
        assert step == OptimizerStep(pytest.approx(float(length), rel=1e-5), skipped=False)
        assert all(p.grad is None for p in mine.values())
    for name, p in start.items():
        mine_decays = decay if p.dim() > 1 else 0.0
        expected = adamw(p.detach(), [g[name].double() for g in grads], rates, beta1=0.8, beta2=0.95, decay=mine_decays)
        torch.testing.assert_close(mine[name].detach().double(), expected, atol=1e-6, rtol=1e-5)


def test_a_long_gradient_is_scaled_down_and_a_short_one_left_alone() -> None:
    for scale in (0.01, 100.0):
        mine, start = parameters(), parameters()
        grads = [gradient(0, scale), gradient(1)]
        lengths = [float(torch.cat([g.flatten() for g in grad.values()]).norm()) for grad in grads]
        assert (lengths[0] > 1) == (scale > 1)
        learner = Learner(mine, OptimizerSettings(lr=1.0, clip_norm=1.0))
        found = []
        for grad in grads:
            give(mine, grad)
            found.append(learner.step(1e-2).grad_norm)
        assert found == pytest.approx(lengths)  # before it is clipped
        for name, p in start.items():
            clipped = [grad[name] / max(1.0, length) for grad, length in zip(grads, lengths, strict=True)]
            expected = adamw(p.detach(), clipped, [1e-2] * 2, beta1=0.9, beta2=0.98, decay=0.0)
            torch.testing.assert_close(mine[name].detach().double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_a_step_that_would_break_the_model_is_skipped(dtype: torch.dtype, bad: float) -> None:
    mine, other = parameters(dtype), parameters(dtype)
    learner, undisturbed = (Learner(p, OptimizerSettings(lr=1.0)) for p in (mine, other))
    for p, who in ((mine, learner), (other, undisturbed)):
        give(p, gradient(0))
        who.step(1e-2)
    before = {name: tensor.clone() for name, tensor in learner.state().items()}
    weights = {name: p.detach().clone() for name, p in mine.items()}
    broken = gradient(1)
    broken["table"][1, 0, 1] = bad
    give(mine, broken)
    step = learner.step(1e-2)
    assert step.skipped
    assert not step.grad_norm < float("inf")
    assert all(torch.equal(p, weights[name]) for name, p in mine.items())
    after = learner.state()
    assert set(after) == set(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    for p, who in ((mine, learner), (other, undisturbed)):
        give(p, gradient(2))
        assert not who.step(1e-2).skipped
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_masters_keep_what_bfloat16_would_lose() -> None:
    mine = parameters(torch.bfloat16)
    start = {name: p.detach().float() for name, p in mine.items()}
    learner = Learner(mine, OptimizerSettings(lr=1.0, clip_norm=1e9))
    ones = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    for _ in range(400):  # a constant gradient: each step of AdamW goes lr down
        give(mine, ones)
        learner.step(1e-5)
        assert all(p.grad is None for p in mine.values())
    for name, p in mine.items():
        expected = start[name] - 400 * 1e-5
        torch.testing.assert_close(learner.state()[f"master/{name}"], expected, atol=4e-5, rtol=0)
        assert torch.equal(p.detach(), learner.state()[f"master/{name}"].bfloat16())


def test_gradients_of_many_passes_are_added_in_float32() -> None:
    p = {"matrix": nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16))}
    learner = Learner(p, OptimizerSettings(lr=1.0))
    for value in [256.0] + [0.5] * 64:  # in bfloat16, 256 + 0.5 is 256
        (p["matrix"] * value).sum().backward()
    assert learner.step(0.0).grad_norm == pytest.approx(2 * (256 + 32))


# ---- resuming from a file --------------------------------------------------------------------------------------------

ROWS = random_rows(0, [(4, 6), (3, 5), (4, 1)])
KINDS: dict[str, dict[str, Any]] = {
    "full": {"init": "tiny-qwen3"},
    "bfloat16": {"init": "tiny-llama", "dtype": "bfloat16"},
    "adapter": {"init": "tiny-llama", "lora": LoraSettings(rank=2)},
    "scalar": {"init": "tiny-gpt2", "head": "scalar"},
    "scalar adapter": {"init": "tiny-llama", "head": "scalar", "lora": LoraSettings(rank=2)},
}


def loss(outputs: Outputs) -> Tensor:
    return ((outputs.values_bT - 1) ** 2 * outputs.mask_bT - outputs.logprobs_bT).sum()


def learning(kind: str, seed: int = 0) -> EmbeddedEngine:
    engine = EmbeddedEngine.open(ModelSettings(device="cpu", **KINDS[kind]), seed=seed)
    engine.learn_with(OptimizerSettings(lr=1e-2, weight_decay=0.01))
    return engine


def learn(engine: EmbeddedEngine, steps: int) -> list[float]:
    return [engine.update(ROWS, loss, lr=1e-2).grad_norm for _ in range(steps)]


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_from_a_file_is_as_if_never_stopped(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)  # an adapter begins with random numbers
    whole = learning(kind)
    learn(whole, 3)
    whole.save(tmp_path)
    torch.manual_seed(1)
    # An adapter is saved without the weights below it, which come from where they came from the first time.
    again = learning(kind, seed=0 if "adapter" in kind else 7)
    again.load(tmp_path)
    again.load_learner(tmp_path)
    assert learn(whole, 3) == learn(again, 3)
    ours, theirs = whole.model.state_dict(), again.model.state_dict()
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_large_states_are_written_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SHARD_BYTES", 100)
    tensors = {name: torch.randn(n) for name, n in (("a", 20), ("b", 5), ("c", 40), ("d", 1), ("e", 24))}
    loading.write_tensors(tensors, tmp_path / "s.safetensors")
    files = sorted(tmp_path.iterdir())
    assert [sorted(load_file(file)) for file in files] == [["c"], ["d", "e"], ["a", "b"]]
    assert [file.name for file in files] == ["s-00002.safetensors", "s-00003.safetensors", "s.safetensors"]
    read = loading.read_tensors(tmp_path / "s.safetensors")
    assert set(read) == set(tensors)
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_a_hash_shows_any_change_of_a_tensor() -> None:
    tensor = torch.randn(6, 4)
    bits = tensor.clone()
    bits.view(torch.int32)[5, 3] ^= 1
    others = {"bits": bits, "shape": tensor.view(4, 6), "dtype": tensor.view(torch.int32), "part": tensor[:5]}
    hashes = loading.hash_tensors({"tensor": tensor, "tied": tensor, "copy": tensor.clone(), **others})
    assert hashes["tensor"] == hashes["tied"] == hashes["copy"]
    assert hashes["dtype"] == hashes["tensor"], "the engine names the dtype of all weights"
    assert len({hashes[name] for name in ("tensor", "bits", "shape", "part")}) == 4


def test_a_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    engine = learning("full")
    learn(engine, 1)
    engine.save(tmp_path)
    state = load_file(tmp_path / LEARNER_FILE)
    names = [next(name for name in sorted(state) if name.startswith(kind)) for kind in ("exp_avg_sq/", "step/")]
    wrong = [{n: t for n, t in state.items() if n != name} for name in names]
    for tensors in (*wrong, state | {"exp_avg/other": torch.zeros(3)}):
        save_file(tensors, tmp_path / LEARNER_FILE)
        with pytest.raises(UserError, match="optimizer state"):
            learning("full").load_learner(tmp_path)
