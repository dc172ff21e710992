"""Where a model's tensors are while it sleeps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Rest:
    """Host memory for the tensors of one model, page-locked, so that the way there and back is short.

    The memory is kept from one sleep to the next: locking pages takes longer than copying them.
    """

    def __init__(self) -> None:
        self._places: dict[int, Tensor] = {}

    def down(self, tensors: Iterable[Tensor], *, known: bool = False) -> None:
        """Move tensors off the device.

        Args:
            tensors: each keeps its identity; only where its data are changes.
            known: nothing was changed since they were last moved up, so that nothing need be copied.
        """
        moving = _distinct(tensors)
        for tensor in moving:
            place = self._places.get(id(tensor))
            if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
                place = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            elif known:
                continue
            self._places[id(tensor)] = place.copy_(tensor.detach(), non_blocking=True)
        torch.cuda.synchronize()
        for tensor in moving:
            tensor.data = self._places[id(tensor)]
        self._places = {id(tensor): self._places[id(tensor)] for tensor in moving}

    def up(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """Move tensors back to the device; their places in host memory stay theirs."""
        for tensor in _distinct(tensors):
            tensor.data = tensor.data.to(device, non_blocking=True)
        torch.cuda.synchronize()


def _distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return each tensor once: weights may be tied."""
    return list({id(tensor): tensor for tensor in tensors}.values())
