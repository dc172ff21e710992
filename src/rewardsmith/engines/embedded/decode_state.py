"""The state of the rows that decode, and the CUDA graphs of their steps: both outlive a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from rewardsmith.engines.embedded.kernels.cache_blocks import Places, cache_offsets


class CachePlaces:
    """Where the tensors of a cache are, as numbers on the device: a recorded graph reads them when it is replayed.

    So the memory of the cache can be given back between two calls, and graphs stay valid.
    """

    def __init__(self, layers: int, dtype: torch.dtype, device: torch.device) -> None:
        self._anchor = torch.zeros(64, dtype=dtype, device=device)
        self._offsets_L2 = torch.zeros(layers, 2, dtype=torch.int64, device=device)

    def set(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Note the places of a layer, counted in elements from the anchor."""
        self._offsets_L2[layer] = torch.tensor(cache_offsets(self._anchor, keys, values))

    def of(self, layer: int) -> Places:
        """Return what kernels need to find the tensors of a layer."""
        return self._anchor, self._offsets_L2[layer]


class DecodeState:
    """S rows on a device, for responses of up to `width` tokens.

    A recorded graph holds the addresses of these tensors and of the weights. It stays valid as long as both do.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        device: torch.device,
        *,
        blocks: int = 0,
        tile_rows: int = 1,
        places: CachePlaces | None = None,
    ) -> None:
        self.rows, self.width, self.blocks, self.device, self.places = rows, width, blocks, device, places
        self.row_S = torch.arange(rows, device=device)
        self.token_S = torch.zeros_like(self.row_S)  # the last one, not yet read by the model
        self.position_S = torch.zeros_like(self.row_S)  # of that token
        self.start_S = torch.zeros_like(self.row_S)  # of the response: the length of the prompt
        self.count_S = torch.zeros_like(self.row_S)  # tokens generated so far
        self.limit_S = torch.zeros_like(self.row_S)  # tokens that may be generated
        self.done_S = torch.ones(rows, dtype=torch.bool, device=device)
        # One column more than a response has: a finished row keeps writing there.
        self.tokens_ST = torch.zeros(rows, width + 1, dtype=torch.int32, device=device)
        self.logprobs_ST = torch.zeros(rows, width + 1, device=device)
        self.uniforms_ST = torch.zeros(rows, width + 1, device=device)
        self.table_SM = torch.zeros(rows, blocks, dtype=torch.int32, device=device)  # blocks of the cache
        # Rows that share the first blocks of their table, tile by tile, and how many each row shares.
        self.members_Pn = torch.zeros(rows // 2, tile_rows, dtype=torch.int32, device=device)
        self.shared_S = torch.zeros(rows, dtype=torch.int32, device=device)
        self._stops: dict[tuple[int, ...], Tensor] = {}
        self._graphs: dict[tuple[object, ...], torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows, tokens of a response, and blocks of a row."""
        return self.rows, self.width, self.blocks

    def holds(self, rows: int, width: int, blocks: int) -> bool:
        """Whether there is room for so many rows of so many tokens and blocks each."""
        return rows <= self.rows and width <= self.width and blocks <= self.blocks

    def retire(self, rows: Tensor | slice) -> None:
        """Free rows.

        They stand at position 0 without a prompt, and see themselves: a row that saw nothing would leave NaN behind,
        and a masked NaN is still NaN for the next owner of the row.
        """
        self.done_S[rows] = True
        self.position_S[rows] = self.start_S[rows] = 0

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows; their blocks are kept by the host."""
        numbers = (self.token_S, self.position_S, self.start_S, self.count_S, self.limit_S, self.done_S)
        for tensor in (*numbers, self.tokens_ST, self.logprobs_ST, self.uniforms_ST):
            tensor[targets] = tensor[sources]

    def stop_ids(self, ids: Sequence[int]) -> Tensor:
        """Return stop tokens on the device, the same tensor for the same tokens: graphs read it."""
        return self._stops.setdefault(tuple(ids), torch.tensor(ids, device=self.device))

    def replay(self, key: tuple[object, ...], step: Callable[[], None]) -> None:
        """Run a step as a CUDA graph: the first time eagerly, recorded the second time, and then replayed.

        The eager run is on the stream that records. So the workspace of its matrix products belongs to the stream, and
        not to the memory of a graph, with which it would be freed while the next graph still uses it.
        """
        if self.device.type != "cuda":
            step()
            return
        stream, now = recording_stream(self.device), torch.cuda.current_stream(self.device)
        if key not in self._graphs:
            self._graphs[key] = None
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                step()
            now.wait_stream(stream)
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                step()
        graph.replay()


@cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all CUDA graphs of a GPU are recorded."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
