"""Checks and times the kernels of the embedded engine against their torch versions, in the shapes of two models.

    python benchmarks/kernel_times.py [--tokens 16384] [--dtype float32] [--only norm] [--device cpu]

Errors are relative to the largest value of torch's result in float32, over results and gradients. GB/s counts the
tensors that must be read and written once; an H200 moves 4,800. On a CPU the torch version runs. The tests
(`pytest tests/kernels`) check odd sizes. A kernel is a row of `CASES`. Decoding has 512 rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rewardsmith.engines.embedded.heads import Head
from rewardsmith.engines.embedded.kernels.block_attention import block_attention, block_attention_torch
from rewardsmith.engines.embedded.kernels.cache_blocks import BLOCK_TOKENS, store_keys_values, store_keys_values_torch
from rewardsmith.engines.embedded.kernels.gated import silu_mul, silu_mul_torch
from rewardsmith.engines.embedded.kernels.logprobs import (
    LogitScale,
    logits_gradient,
    logits_gradient_torch,
    measure,
    measure_torch,
)
from rewardsmith.engines.embedded.kernels.norms import add_rms_norm, add_rms_norm_torch
from rewardsmith.engines.embedded.kernels.nucleus import nucleus_floor, nucleus_floor_torch
from rewardsmith.engines.embedded.kernels.rotary import rotate, rotate_torch
from rewardsmith.engines.embedded.kernels.sample_tokens import sample_tokens, sample_tokens_torch

Function = Callable[..., Any]
GROUP = 8  # rows that share a prompt


@dataclass(frozen=True)
class Model:
    """The sizes that a kernel sees."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    head_norms: bool


MODELS = [
    Model("Qwen3-0.6B", 1024, 16, 8, 128, 3072, 151936, head_norms=True),
    Model("SmolLM2-135M", 576, 9, 3, 64, 1536, 49152, head_norms=False),
]


@dataclass(frozen=True)
class Case:
    """A kernel and its torch version, called with the same tensors; gradients are those of tensors that require one."""

    name: str
    ours: Function
    reference: Function | None
    inputs: Sequence[Any]
    forward: float  # bytes, or floating-point operations, that one pass needs
    backward: float = 0.0  # 0: there is none
    unit: str = "GB/s"


class Maker:
    """Makes the tensors of a case."""

    def __init__(self, tokens: int, dtype: torch.dtype, device: str) -> None:
        self.tokens, self.dtype, self.device = tokens, dtype, device
        self.rows = 512 if device != "cpu" else 16  # that decode
        self.itemsize = dtype.itemsize

    def leaf(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return random numbers that get a gradient."""
        return self.plain(*shape, scale=scale).requires_grad_()

    def plain(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return random numbers."""
        return (torch.randn(shape, device=self.device) * scale).to(self.dtype)


def _with_eps(function: Function, *inputs: Any) -> Any:
    return function(*inputs, 1e-6)


def norm_case(model: Model, make: Maker) -> Case:
    """RMS norm with the addition before it."""
    inputs = [*(make.leaf(make.tokens, model.hidden) for _ in range(2)), make.leaf(model.hidden)]
    row = make.tokens * model.hidden * make.itemsize
    return Case(
        "add_rms_norm",
        partial(_with_eps, add_rms_norm),
        partial(_with_eps, add_rms_norm_torch),
        inputs,
        4 * row,
        4 * row,
    )


def rotary_case(model: Model, make: Maker) -> Case:
    """Rotary embedding of queries and keys, views of a joined product, with norms of heads where the model has them."""
    sizes = (model.heads, model.kv_heads, model.kv_heads)
    joined = make.plain(make.tokens, sum(sizes), model.head)
    q, k, _ = (x.detach().requires_grad_() for x in joined.split(sizes, 1))
    turns = torch.rand(make.tokens, model.head // 2, device=make.device).repeat(1, 2) * 6
    norms = [make.leaf(model.head) if model.head_norms else None for _ in range(2)]
    inputs = [q, k, turns.cos().to(make.dtype), turns.sin().to(make.dtype), *norms]
    row = make.tokens * (model.heads + model.kv_heads) * model.head * make.itemsize
    back = (3 if model.head_norms else 2) * row
    return Case("rotate", partial(_with_eps, rotate), partial(_with_eps, rotate_torch), inputs, 2 * row, back)


def gated_case(model: Model, make: Maker) -> Case:
    """The gated unit."""
    inputs = [make.leaf(make.tokens, model.mlp) for _ in range(2)]
    row = make.tokens * model.mlp * make.itemsize
    return Case("silu_mul", silu_mul, silu_mul_torch, inputs, 3 * row, 5 * row)


def logprob_cases(model: Model, make: Maker) -> Iterator[Case]:
    """The two passes over a chunk of logits."""
    n = max(1, min(make.tokens, 2**29 // model.vocabulary))
    logits_NV = make.plain(n, model.vocabulary, scale=3.0)
    targets_N = torch.randint(model.vocabulary, (n,), device=make.device)
    row = logits_NV.numel() * make.itemsize

    def found(function: Function, entropy: bool, logits_NV: Tensor) -> Any:
        return function(logits_NV, targets_N, LogitScale(), entropy=entropy)

    for entropy in (False, True):
        name = "measure, entropy" if entropy else "measure"
        yield Case(name, partial(found, measure, entropy), partial(found, measure_torch, entropy), [logits_NV], row)
    numbers = measure(logits_NV.clone(), targets_N, LogitScale(), entropy=True)

    def gradient(function: Function, logits_NV: Tensor) -> Any:
        _, lse_N, entropy_N = numbers
        return function(logits_NV, targets_N, lse_N, entropy_N, lse_N, lse_N, LogitScale())

    yield Case(
        "logits_gradient",
        partial(gradient, logits_gradient),
        partial(gradient, logits_gradient_torch),
        [logits_NV],
        2 * row,
    )


def head_case(model: Model, make: Maker) -> Case:
    """The whole head: hidden states to log-probabilities and back."""
    hidden, weight = make.leaf(make.tokens, model.hidden), make.leaf(model.vocabulary, model.hidden, scale=0.05)
    targets_N = torch.randint(model.vocabulary, (make.tokens,), device=make.device)

    def ours(hidden: Tensor, weight: Tensor) -> Tensor:
        return Head(weight).token_logprobs(hidden, targets_N, temperature=1.0, entropy=False)[0]

    product = 2 * make.tokens * model.hidden * model.vocabulary
    return Case("token_logprobs", ours, None, [hidden, weight], product, 3 * product, "TFLOP/s")


def attention_cases(model: Model, make: Maker) -> Iterator[Case]:
    """One new token for each row, over a cache in blocks; GB/s counts a shared prompt once."""
    for length, prompt in ((192, 0), (1088, 0), (8192, 0), (192, 64), (512, 256), (2048, 1024)):
        if make.device == "cpu" and length > 192:
            continue
        blocks, shared = -(-length // BLOCK_TOKENS), prompt // BLOCK_TOKENS
        table = torch.randperm(make.rows * blocks, device=make.device, dtype=torch.int32).view(-1, GROUP, blocks)
        table[:, :, :shared] = table[:, :1, :shared]
        positions = torch.full((make.rows,), length - 1, device=make.device)
        members = torch.full((make.rows // 2, GROUP), -1, device=make.device, dtype=torch.int32)  # as in `DecodeState`
        members.view(-1)[: make.rows] = torch.arange(make.rows, dtype=torch.int32)
        prefix = (members, torch.full((make.rows,), shared, device=make.device, dtype=torch.int32))
        cache = [make.plain(make.rows * blocks, model.kv_heads, BLOCK_TOKENS, model.head) for _ in range(2)]
        inputs = [make.plain(make.rows, model.heads, model.head), *cache]
        tokens = make.rows * (length - prompt) + make.rows // GROUP * prompt
        rows = (table.view(make.rows, blocks), positions)

        def attend(function: Function, rows: tuple[Tensor, ...], options: dict[str, Any], *inputs: Tensor) -> Any:
            return function(*inputs, *rows, scale=model.head**-0.5, **options)

        for name, options in (("", {}), (", once", {"prefix": prefix}))[: 2 if prompt else 1]:
            yield Case(
                f"attention, {length:,}" + (f", {prompt:,} shared{name}" if prompt else ""),
                partial(attend, block_attention, rows, options),
                partial(attend, block_attention_torch, rows, {}) if length <= 2048 else None,
                inputs,
                2 * tokens * model.kv_heads * model.head * make.itemsize,
            )


def store_case(model: Model, make: Maker) -> Case:
    """New keys and values into the cache."""
    slots = torch.randperm(2 * make.rows * BLOCK_TOKENS, device=make.device)[: make.rows]

    def store(function: Function, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Any:
        function(k, v, keys, values, slots)
        return keys, values

    inputs = [make.plain(make.rows, model.kv_heads, model.head) for _ in range(2)]
    cache = [torch.zeros(2 * make.rows, model.kv_heads, BLOCK_TOKENS, model.head).to(inputs[0]) for _ in range(2)]
    work = 4 * inputs[0].numel() * make.itemsize
    reference = partial(store, store_keys_values_torch)
    return Case("store_keys_values", partial(store, store_keys_values), reference, [*inputs, *cache], work)


def sampling_cases(model: Model, make: Maker) -> Iterator[Case]:
    """From logits to tokens. At a border, rounding decides between two tokens: mean log-probabilities are compared."""
    logits_RV = make.plain(make.rows, model.vocabulary, scale=3.0)
    uniforms_R = torch.rand(make.rows, device=make.device)
    work = logits_RV.numel() * make.itemsize

    def draw(function: Function, temperature: float, logits_RV: Tensor) -> Tensor:
        return function(logits_RV, uniforms_R, temperature)[1].mean()

    for name, temperature in (("greedy", 0.0), ("sampled", 0.9)):
        ours, reference = (partial(draw, function, temperature) for function in (sample_tokens, sample_tokens_torch))
        yield Case(f"sample_tokens, {name}", ours, reference, [logits_RV], work)

    def floor(function: Function, logits_RV: Tensor) -> Tensor:
        return function(logits_RV, 0.9, 0.95)

    yield Case("nucleus_floor", partial(floor, nucleus_floor), partial(floor, nucleus_floor_torch), [logits_RV], work)


CASES: list[Callable[[Model, Maker], Case | Iterator[Case]]] = [
    norm_case,
    rotary_case,
    gated_case,
    logprob_cases,
    head_case,
    attention_cases,
    store_case,
    sampling_cases,
]


def leaves(inputs: Sequence[Any]) -> list[Tensor]:
    """Return the inputs that get a gradient."""
    return [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]


def outputs(function: Function, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return what a function returns, as a tuple."""
    found = function(*inputs)
    return (found,) if isinstance(found, Tensor) else tuple(found)


def gradient(function: Function, inputs: Sequence[Any]) -> Callable[[], tuple[Tensor, ...]]:
    """Return the backward pass of a function."""
    found = outputs(function, inputs)
    weights = [torch.linspace(-1, 1, x.numel(), device=x.device).view_as(x).to(x.dtype) for x in found]
    return lambda: torch.autograd.grad(found, leaves(inputs), weights, retain_graph=True)


def error(case: Case, function: Function) -> float:
    """Return the largest error of results and gradients, each relative to its largest value."""

    def results(function: Function, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
        inputs = [
            x.detach().to(dtype or x.dtype, copy=True).requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
            for x in case.inputs
        ]
        found = (*outputs(function, inputs), *(gradient(function, inputs)() if case.backward else ()))
        return tuple(x.detach() for x in found)

    assert case.reference is not None
    pairs = zip(results(function, None), results(case.reference, torch.float32), strict=True)
    return max(float((a.float() - b).abs().max() / b.abs().max().clamp(min=1e-9)) for a, b in pairs)


def seconds(call: Callable[[], Any], device: str) -> float:
    """Return the median time of a call."""
    if device == "cpu":
        call()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    from triton.testing import do_bench  # noqa: PLC0415, absent on a CPU

    return float(do_bench(call, quantiles=[0.5])) / 1e3


def rows(case: Case, device: str) -> Iterator[list[str]]:
    """Check and time one case: a row for each pass."""
    reference = case.reference
    errors = ["", ""] if reference is None else [f"{error(case, f):.1e}" for f in (case.ours, reference)]
    for label, work in (("forward", case.forward), ("backward", case.backward)):
        if work:

            def timed(function: Function, label: str = label) -> float:
                call = partial(function, *case.inputs) if label == "forward" else gradient(function, case.inputs)
                return seconds(call, device)

            ours = timed(case.ours)
            theirs = None if reference is None else timed(reference)
            speed = work / ours / (1e9 if case.unit == "GB/s" else 1e12)
            times = [f"{ours * 1e6:,.0f}", "" if theirs is None else f"{theirs * 1e6:,.0f}"]
            ratio = "" if theirs is None else f"{theirs / ours:.1f}x"
            yield [
                f"{case.name}, {label}" if case.backward else case.name,
                *times,
                ratio,
                f"{speed:,.0f} {case.unit}",
                *errors,
            ]


def main() -> None:
    """Print one table for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="", help="cases whose function has this in its name")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    make = Maker(arguments.tokens, getattr(torch, arguments.dtype), arguments.device)
    for model in MODELS:
        table = Table(title=f"{model.name}, {arguments.tokens:,} tokens, {arguments.dtype}, {arguments.device}")
        for column in ("kernel", "µs", "torch µs", "speedup", "speed", "error", "torch's error"):
            table.add_column(column, justify="left" if column == "kernel" else "right")
        for build in CASES:
            if arguments.only in build.__name__:
                built = build(model, make)
                for case in [built] if isinstance(built, Case) else built:
                    for row in rows(case, arguments.device):
                        table.add_row(*row)
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
