"""AdamW whose states take less device memory: 8-bit moments, states in host memory, or both.

Parameters are moved piece by piece: the states of a piece are read into float32 on the device, one fused AdamW kernel
runs there, and the states are written back. So host memory changes no number, and needs no second implementation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from rewardsmith.engines.embedded.host_memory import HostBlock, free_host_memory
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings

PIECE = 1 << 22  # elements that are moved at a time: 16 MiB for each float32 tensor
BLOCK = 256  # elements of 8-bit moments that share a scale
MIN_QUANTISED = 4096  # moments of smaller parameters stay in float32: they take no memory to speak of
MOMENTS = ("exp_avg", "exp_avg_sq")


def decay_of(parameter: Tensor, settings: OptimizerSettings) -> float:
    """Return the weight decay of a parameter: vectors have none."""
    return settings.weight_decay if parameter.dim() > 1 else 0.0


class StreamedAdamW:
    """AdamW with 8-bit moments, or with states in host memory."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._parameters, self._settings = parameters, settings
        self._device = next(iter(parameters.values())).device
        self._steps = dict.fromkeys(parameters, 0)
        shapes = {f"{key}/{name}": form for name, p in parameters.items() for key, form in self._layout(p).items()}
        self._states = self._allocate(shapes)
        with torch.no_grad():
            for name, state in self._states.items():
                key, _, owner = name.partition("/")
                state.copy_(parameters[owner]) if key == "master" else state.zero_()
        overlaps = settings.offload and self._device.type == "cuda"  # one stream reads while the other writes
        self._streams = [torch.cuda.Stream(self._device) for _ in range(2)] if overlaps else []  # type: ignore[no-untyped-call]

    def _layout(self, parameter: Tensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Return shape and type of each state of a parameter."""
        states = {} if parameter.dtype == torch.float32 else {"master": (parameter.shape, torch.float32)}
        if self._settings.states == "float32" or parameter.numel() < MIN_QUANTISED:
            return states | dict.fromkeys(MOMENTS, (parameter.shape, torch.float32))
        blocks = math.ceil(parameter.numel() / BLOCK)
        codes = dict.fromkeys(MOMENTS, (torch.Size([blocks * BLOCK]), torch.uint8))
        return states | codes | {f"{key}_scale": (torch.Size([blocks]), torch.float32) for key in MOMENTS}

    def _allocate(self, shapes: Mapping[str, tuple[torch.Size, torch.dtype]]) -> dict[str, Tensor]:
        if not self._settings.offload:
            where = self._device
            return {name: torch.empty(shape, dtype=dtype, device=where) for name, (shape, dtype) in shapes.items()}
        total = HostBlock.size(shapes.values())
        if total > (free := free_host_memory()):
            raise UserError(
                f"optimizer.offload = true needs {total / 2**30:.1f} GiB of host memory, and {free / 2**30:.1f} GiB are"
                ' free: set states = "8bit" too, which needs half of it or less, or train an adapter (lora)'
            )
        self._block = HostBlock(shapes, lock=self._device.type == "cuda")
        return self._block.tensors

    def step(self, lr: float) -> None:
        """Move the weights along their gradients."""
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(self._device))
        number = 0
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if parameter.grad is None:
                    continue
                self._steps[name] += 1
                for start in range(0, parameter.numel(), PIECE):
                    with self._next_stream(number):
                        self._move(name, slice(start, min(start + PIECE, parameter.numel())), lr)
                    number += 1
        for stream in self._streams:
            torch.cuda.current_stream(self._device).wait_stream(stream)

    def _next_stream(self, number: int) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._streams[number % len(self._streams)]) if self._streams else nullcontext()

    def _move(self, name: str, piece: slice, lr: float) -> None:
        """Take the step of some elements of a parameter."""
        parameter, settings = self._parameters[name], self._settings
        weights, gradient = parameter.view(-1)[piece], parameter.grad
        assert gradient is not None
        stored = self._states.get(f"master/{name}")
        master = weights if stored is None else self._fetch(stored.view(-1)[piece])
        mean, square = (self._read(f"{key}/{name}", piece) for key in MOMENTS)
        adamw(
            [master],
            [gradient.reshape(-1)[piece]],
            [mean],
            [square],
            [],
            [torch.full((), self._steps[name] - 1.0, device=self._device)],  # the kernel counts up
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=settings.beta1,
            beta2=settings.beta2,
            lr=lr,
            weight_decay=decay_of(parameter, settings),
            eps=1e-8,
        )
        if stored is not None:
            weights.copy_(master)
            self._store(master, stored.view(-1)[piece])
        for key, moment in zip(MOMENTS, (mean, square), strict=True):
            self._write(f"{key}/{name}", piece, moment)

    def _read(self, name: str, piece: slice) -> Tensor:
        """Return some elements of a moment in float32 on the device."""
        state = self._states[name]
        if state.dtype == torch.float32:
            return self._fetch(state.view(-1)[piece])
        codes, scales = (self._fetch(part) for part in self._quantised(name, piece))
        signed = _is_signed(name)
        found = dequantise(codes, scales, signed=signed)[: piece.stop - piece.start]
        return found if signed else found.square_()

    def _write(self, name: str, piece: slice, moment: Tensor) -> None:
        state = self._states[name]
        if state.dtype == torch.float32:
            self._store(moment, state.view(-1)[piece])
            return
        # Of the squares the root is stored, which is what AdamW divides by: it spans half as many orders of magnitude,
        # and a code of 0, from which the next step would be far too long, is out of reach.
        signed = _is_signed(name)
        parts = quantise(moment if signed else moment.sqrt(), signed=signed)
        for part, into in zip(parts, self._quantised(name, piece), strict=True):
            into.copy_(part, non_blocking=True)

    def _quantised(self, name: str, piece: slice) -> tuple[Tensor, Tensor]:
        """Return the codes and the scales of the blocks of a piece."""
        key, _, owner = name.partition("/")
        first, last = piece.start // BLOCK, math.ceil(piece.stop / BLOCK)
        return self._states[name][first * BLOCK : last * BLOCK], self._states[f"{key}_scale/{owner}"][first:last]

    def _fetch(self, state: Tensor) -> Tensor:
        return state.to(self._device, non_blocking=True)  # itself, where it is there already

    def _store(self, value: Tensor, state: Tensor) -> None:
        if state.device != value.device or state.data_ptr() != value.data_ptr():
            state.copy_(value, non_blocking=True)

    # ---- files -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Return what an exact resume needs; with float32 states, what `ResidentAdamW` returns."""
        if self._streams:
            torch.cuda.synchronize(self._device)  # the last step may still be writing to host memory
        steps = {f"step/{name}": torch.tensor(float(count)) for name, count in self._steps.items() if count}
        return dict(self._saved_states(steps)) | steps

    def _saved_states(self, steps: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
        for name, state in self._states.items():
            key, _, owner = name.partition("/")
            if key == "master" or f"step/{owner}" in steps:
                yield name, state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned; a parameter that never had a gradient has no moments."""
        self._steps = {name: int(state.get(f"step/{name}", 0)) for name in self._parameters}
        load_tensors(self.state(), state)

    def tensors(self) -> list[Tensor]:
        """Return the states that must be where the model is."""
        return [] if self._settings.offload else list(self._states.values())


def load_tensors(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Overwrite the states of an optimizer by saved ones."""
    wrong = sorted(set(own) ^ set(saved)) or [n for n in own if own[n].dtype != saved[n].dtype]
    wrong = wrong or [n for n in own if own[n].shape != saved[n].shape]
    if wrong:
        raise UserError(
            f"the optimizer state does not fit the model (see {wrong[0]}): it is of another model, or was saved with"
            " another optimizer.states"
        )
    with torch.no_grad():
        for name, tensor in saved.items():
            own[name].copy_(tensor)


# ---- 8 bits ----------------------------------------------------------------------------------------------------------


def quantise(values: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    r"""Return 8-bit codes of float32 values [N], and a scale for each block of 256 (the last one is filled up by 0).

    Block-wise dynamic quantisation: with scale $s = \max_{i \in block} |x_i|$, the code of $x$ is that of the value
    nearest to $x / s$ in a table of 256 (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2110.02861).
    """
    blocks = nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(-1)
    _, middles = _table(signed, values.device)
    shares = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    return torch.bucketize(shares, middles, out_int32=True).to(torch.uint8).view(-1), scales


def dequantise(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """Return the float32 values of codes and scales, as many as there are codes."""
    values, _ = _table(signed, codes.device)
    return (values[codes.int()].view(-1, BLOCK) * scales[:, None]).view(-1)


@cache
def _table(signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the 256 values of the codes in ascending order, and the middles between neighbours.

    Each decade from 1e-7 to 1 is divided evenly, the next larger one twice as finely; 0 and 1 are exact.
    """
    values = [0.0, 1.0]
    for decade in range(7):
        count = 2**decade * (1 if signed else 2)
        edges = torch.linspace(0.1, 1, count + 1, dtype=torch.float64)
        found = (10.0 ** (decade - 6) * (edges[1:] + edges[:-1]) / 2).tolist()
        values += found + ([-value for value in found] if signed else [])
    table = torch.tensor(sorted(values), dtype=torch.float32)
    return table.to(device), ((table[1:] + table[:-1]) / 2).to(device)


def _is_signed(name: str) -> bool:
    return name.startswith("exp_avg/")
