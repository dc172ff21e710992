"""Continuous batching: many rows decode together; a group's prompt is prefilled once; finished rows make room.

A row of the batch is one response. Its state is in tensors on the device, so that a decoding step is one function of
fixed tensors and can be recorded and replayed as a CUDA graph. A row that is finished but not yet taken out stands
still, so how often the host looks (`CHECK_EVERY`) changes nothing in the result.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.attention import (
    DecodeAttention,
    KeyValueCache,
    PrefillAttention,
    attention_plan,
    to_device,
)
from rewardsmith.engines.embedded.cards import current
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.engines.embedded.sampling import sample, uniforms
from rewardsmith.engines.protocol import Sampling, Tick, no_tick
from rewardsmith.errors import UserError

CHECK_EVERY = {"cpu": 1, "cuda": 8}  # decoding steps between two looks of the host: on a GPU each one waits
ROWS_STEP = {"cpu": 8, "cuda": 32}  # the batch size is a multiple of this: it shrinks only when that saves something
LENGTH_STEP = {"cpu": 32, "cuda": 128}  # attention reads the cache up to a multiple of this many tokens
PREFILL_TOKENS = 16_384  # prompt tokens in one forward pass

Backbone = Callable[[Tensor, Tensor], Tensor]
"""Token ids and positions, both [b, t], to hidden states [b, t, D]; attention follows the current plan."""


@dataclass(frozen=True)
class GenerationRequest:
    """A request for n responses to a prompt.

    With `alone`, the prompt is prefilled in a pass of its own. What is read together changes the last bits of it, and
    on a CPU decoding does not: the response then is the same, bit for bit, whatever else is in the batch.
    """

    prompt: NDArray[np.int32]  # [P], at least one token
    n: int
    seed: int  # response i depends on (seed, i) and on nothing else in the batch
    limit: int | None = None  # longest response, where that is less than `Sampling.max_tokens`
    alone: bool = False
    first: int = 0  # number of the first response, where others have the ones before it

    def max_tokens(self, sampling: Sampling) -> int:
        """Return the tokens that a response may have."""
        return sampling.max_tokens if self.limit is None else min(self.limit, sampling.max_tokens)


@dataclass(frozen=True)
class Completion:
    """One response."""

    tokens: NDArray[np.int32]  # [T], the token that ended it included
    logprobs: NDArray[np.float32]  # [T]
    text: str  # decoded, without what ended it
    stopped: bool  # by the model; False when the token limit ended it


class Generator:
    """Generates the responses of some requests: `schedule`, `run`, `postprocess`, until all are complete.

    `backbone` is the model without its head; `max_rows` is how many responses are generated at a time.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        stop: StopRule,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        device: torch.device,
        *,
        max_rows: int,
    ) -> None:
        self._backbone, self._head, self._stop = backbone, head, stop
        self._requests, self._sampling, self._device = requests, sampling, device
        kind = device.type
        self._check_every, self._rows_step, self._length_step = CHECK_EVERY[kind], ROWS_STEP[kind], LENGTH_STEP[kind]
        self._waiting = deque(
            (index, range(first, min(first + max_rows, request.n)))
            for index, request in enumerate(requests)
            for first in range(0, request.n, max_rows)
        )
        self._max_rows = min(max_rows, sum(request.n for request in requests))
        size = round_up(self._max_rows, self._rows_step)
        length = max(len(request.prompt) + request.max_tokens(sampling) for request in requests) + 1
        self._state = DecodeState(size, max(request.max_tokens(sampling) for request in requests), device)
        self._cache = KeyValueCache(size, round_up(length, self._length_step))
        self._stops_K = torch.tensor(stop.ids, device=device)
        self._rows_S = torch.arange(size, device=device)
        self._owners: list[tuple[int, int] | None] = [None] * size  # (request, response) of each row
        self._lengths = [0] * size  # upper bounds, kept on the host: reading the device would wait for it
        self._completions: list[dict[int, Completion]] = [{} for _ in requests]
        self._finished = 0  # responses
        self._tokens = 0  # approximate: a row that ends between two looks counts up to the second
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle() if kind == "cuda" else None

    async def complete(self, tick: Tick = no_tick) -> AsyncIterator[tuple[int, tuple[Completion, ...]]]:
        """Yield (index of the request, its responses) as soon as all responses of a request are there.

        Between two rounds the event loop runs, so groups are scored while others are still generated; then `tick` is
        called, and an exception from it ends the work.
        """
        while self._waiting or any(self._owners):
            with torch.inference_mode(), current(self._device):
                self._schedule()
                self._run()
            if self._device.type == "cuda":
                await asyncio.sleep(0)  # while this GPU works, another model may give its own GPU work
            with torch.inference_mode(), current(self._device):
                complete = self._postprocess()
            for item in complete:
                yield item
            await asyncio.sleep(0)
            tick(self._finished, self._tokens)

    # ---- schedule: rows come and go --------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Give free rows to waiting groups, in order, and prefill their prompts; then close gaps."""
        active = sum(owner is not None for owner in self._owners)
        free = deque([i for i, owner in enumerate(self._owners) if owner is None][: self._max_rows - active])
        admitted: list[tuple[int, range, list[int]]] = []
        longest = 0
        while self._waiting and len(self._waiting[0][1]) <= len(free):
            index, responses = self._waiting.popleft()
            rows = [free.popleft() for _ in responses]
            length = len(self._requests[index].prompt)
            for row, response in zip(rows, responses, strict=True):
                self._owners[row], self._lengths[row] = (index, response), length + 1
            # Attention pads prompts to the longest of a pass, so that is what counts.
            longest = max(longest, length)
            if admitted and (self._requests[index].alone or (len(admitted) + 1) * longest > PREFILL_TOKENS):
                self._prefill(admitted)
                admitted, longest = [], length
            admitted.append((index, responses, rows))
        if admitted:
            self._prefill(admitted)
        self._close_gaps()

    def _prefill(self, admitted: list[tuple[int, range, list[int]]]) -> None:
        """Read the prompts, once each, and sample the first token of every row."""
        state = self._state
        requests = [self._requests[index] for index, _, _ in admitted]
        counts = [len(rows) for _, _, rows in admitted]
        lengths = [len(request.prompt) for request in requests]
        limits = [request.max_tokens(self._sampling) for request in requests]
        rows_R = self._ids([row for _, _, rows in admitted for row in rows])
        state.count_S[rows_R], state.done_S[rows_R] = 0, False
        state.limit_S[rows_R] = self._ids(np.repeat(limits, counts))
        state.position_S[rows_R] = self._ids(np.repeat(lengths, counts))
        width = state.uniforms_ST.shape[1]
        numbers = [
            uniforms(self._requests[index].seed, self._requests[index].first + i, width)
            for index, responses, _ in admitted
            for i in responses
        ]
        state.uniforms_ST[rows_R] = torch.from_numpy(np.stack(numbers)).to(self._device)
        plan = PrefillAttention(lengths, [rows for _, _, rows in admitted], self._cache, self._device)
        tokens_N = self._ids(np.concatenate([request.prompt for request in requests]))
        with attention_plan(plan):
            hidden_ND = self._backbone(tokens_N[None], plan.positions_N[None])[0]
        last_R = self._ids(np.repeat(np.cumsum(lengths) - 1, counts))
        self._sample(rows_R, hidden_ND[last_R])
        self._tokens += len(rows_R)

    def _close_gaps(self) -> None:
        """Move the last rows into free ones, where that makes the batch smaller."""
        used, active = self._used, sum(owner is not None for owner in self._owners)
        if round_up(active, self._rows_step) >= round_up(used, self._rows_step):
            return
        targets = [i for i in range(active) if self._owners[i] is None]
        sources = [i for i in range(active, used) if self._owners[i] is not None]
        length = min(max(self._lengths[i] for i in sources), self._cache.length)
        self._state.move(self._ids(sources), self._ids(targets))
        self._cache.move(self._ids(sources), self._ids(targets), length)
        self._state.retire(self._ids(sources))
        for source, target in zip(sources, targets, strict=True):
            self._owners[target], self._owners[source] = self._owners[source], None
            self._lengths[target] = self._lengths[source]

    @property
    def _used(self) -> int:
        """Rows up to the last one in use."""
        return max((i + 1 for i, owner in enumerate(self._owners) if owner is not None), default=0)

    # ---- run: some tokens for each row -----------------------------------------------------------------------------

    def _run(self) -> None:
        """Decode until the host looks at the rows again."""
        rows = round_up(self._used, self._rows_step)
        active = [i for i, owner in enumerate(self._owners) if owner is not None]
        for _ in range(self._check_every):
            self._lengths = [n + 1 for n in self._lengths]
            self._tokens += len(active)
            longest = max(self._lengths[i] for i in active)
            length = min(round_up(longest, self._length_step), self._cache.length)
            if self._device.type == "cuda":
                self._replay(rows, length)
            else:
                self._decode(rows, length)

    def _replay(self, rows: int, length: int) -> None:
        """Decode as a CUDA graph: the first time eagerly, recorded the second time, and then replayed.

        The eager run is on the stream that records. So the workspace of its matrix products belongs to the stream, and
        not to the memory of a graph, with which it would be freed while the next graph still uses it.
        """
        key, stream, now = (rows, length), recording_stream(self._device), torch.cuda.current_stream(self._device)
        if key not in self._graphs:
            self._graphs[key] = None
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                self._decode(rows, length)
            now.wait_stream(stream)
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                self._decode(rows, length)
        graph.replay()

    def _decode(self, rows: int, length: int) -> None:
        """Generate one token for each of the first rows, reading the cache up to `length`."""
        positions_R = self._state.position_S[:rows]
        with attention_plan(DecodeAttention(self._cache, positions_R, length)):
            hidden_R1D = self._backbone(self._state.token_S[:rows, None], positions_R[:, None])
        self._sample(self._rows_S[:rows], hidden_R1D[:, -1])

    def _sample(self, rows_R: Tensor, hidden_RD: Tensor) -> None:
        """Sample the next token of the given rows and update their state."""
        state, sampling = self._state, self._sampling
        count_R, done_R, position_R = (x[rows_R] for x in (state.count_S, state.done_S, state.position_S))
        logits_RV = self._head.logits(hidden_RD)
        if sampling.min_tokens:
            early_R1 = (count_R < sampling.min_tokens)[:, None]
            logits_RV[:, self._stops_K] = logits_RV[:, self._stops_K].masked_fill(early_R1, -math.inf)
        tokens_R, logprobs_R = sample(logits_RV, state.uniforms_ST[rows_R, count_R], sampling)
        state.tokens_ST[rows_R, count_R] = tokens_R.int()
        state.logprobs_ST[rows_R, count_R] = logprobs_R
        state.token_S[rows_R] = tokens_R
        state.count_S[rows_R] = torch.where(done_R, count_R, count_R + 1)
        # The first token follows the prompt, where the row stands already; each later one is a place further on.
        state.position_S[rows_R] = torch.where(done_R | (count_R == 0), position_R, position_R + 1)
        ends_R = (tokens_R[:, None] == self._stops_K).any(-1) | (count_R + 1 >= state.limit_S[rows_R])
        state.done_S[rows_R] = done_R | ends_R

    # ---- postprocess: finished rows become completions -------------------------------------------------------------

    def _postprocess(self) -> list[tuple[int, tuple[Completion, ...]]]:
        """Take out finished rows, and return the requests that have all their responses now."""
        state, used = self._state, self._used
        done = state.done_S[:used].tolist()
        if self._stop.texts:
            counts, tokens = state.count_S[:used].tolist(), state.tokens_ST[:used].cpu().numpy()
            done = [
                end or self._stop.has_stop_text(tokens[i, : counts[i]], self._check_every) for i, end in enumerate(done)
            ]
        finished = [(i, owner) for i, owner in enumerate(self._owners[:used]) if owner is not None and done[i]]
        if not finished:
            return []
        rows_R = self._ids([row for row, _ in finished])
        counts = state.count_S[rows_R].tolist()
        tokens, logprobs = (x[rows_R].cpu().numpy() for x in (state.tokens_ST, state.logprobs_ST))
        complete: list[tuple[int, tuple[Completion, ...]]] = []
        for i, ((row, (index, response)), count) in enumerate(zip(finished, counts, strict=True)):
            self._owners[row] = None
            completions = self._completions[index]
            completions[response] = self._stop.completion(tokens[i, :count], logprobs[i, :count])
            if len(completions) == self._requests[index].n:
                complete.append((index, tuple(completions[i] for i in range(len(completions)))))
                self._completions[index] = {}
        self._finished += len(finished)
        state.retire(rows_R)
        return complete

    def _ids(self, numbers: Sequence[int] | NDArray[np.integer]) -> Tensor:
        return to_device(numbers, self._device)


class DecodeState:
    """The state of S rows on the device."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.token_S = torch.zeros(rows, dtype=torch.long, device=device)  # the last one, not yet read by the model
        self.position_S = torch.zeros_like(self.token_S)  # of that token
        self.count_S = torch.zeros_like(self.token_S)  # tokens generated so far
        self.limit_S = torch.zeros_like(self.token_S)  # tokens that may be generated
        self.done_S = torch.ones(rows, dtype=torch.bool, device=device)
        # One column more than a response has: a finished row keeps writing there.
        self.tokens_ST = torch.zeros(rows, width + 1, dtype=torch.int32, device=device)
        self.logprobs_ST = torch.zeros(rows, width + 1, device=device)
        self.uniforms_ST = torch.zeros(rows, width + 1, device=device)

    def retire(self, rows_R: Tensor) -> None:
        """Free rows.

        They stand at position 0, where they see themselves however little of the cache is read: a row that saw nothing
        would leave NaN behind, and a masked NaN is still NaN for the next owner of the row.
        """
        self.done_S[rows_R] = True
        self.position_S[rows_R] = 0

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows."""
        for tensor in vars(self).values():
            tensor[targets] = tensor[sources]


class StopRule:
    """Finds where a response ends: stop tokens, and stop texts that may begin or end inside a token."""

    def __init__(self, decode: Callable[[NDArray[np.int32]], str], stop_ids: Sequence[int], sampling: Sampling) -> None:
        self.ids = sorted(stop_ids)
        self.texts = sampling.stop
        self._decode = decode
        self._min_tokens = sampling.min_tokens

    def completion(self, tokens: NDArray[np.int32], logprobs: NDArray[np.float32]) -> Completion:
        """Return a finished row; what follows the first stop text is cut off."""
        if not np.isfinite(logprobs).all():
            raise UserError("the model's logits are not finite: its weights are broken")
        stopped = int(tokens[-1]) in self.ids
        text = self._decode(tokens[:-1] if stopped else tokens)
        find = partial(self._find, after=self._protected(tokens))
        if not find(text):
            return Completion(tokens, logprobs, text, stopped)
        cut = 1 + bisect_left(range(1, len(tokens)), 1, key=lambda n: len(find(self._decode(tokens[:n]))))
        text = self._decode(tokens[:cut])
        return Completion(tokens[:cut], logprobs[:cut], text[: min(find(text))], stopped=True)

    def has_stop_text(self, tokens: NDArray[np.int32], new: int) -> bool:
        """Whether a stop text ends in the last `new` tokens; a character may take four tokens."""
        if len(tokens) < max(1, self._min_tokens):
            return False
        recent = tokens[-(new + 4 * max(map(len, self.texts))) :]
        return bool(self._find(self._decode(recent), 0)) and bool(
            self._find(self._decode(tokens), self._protected(tokens))
        )

    def _protected(self, tokens: NDArray[np.int32]) -> int:
        """Return how many characters come too early for a stop text to end in them."""
        return len(self._decode(tokens[: self._min_tokens - 1])) if self._min_tokens > 1 else 0

    def _find(self, text: str, after: int) -> list[int]:
        """Return where the stop texts are that do not end in the first `after` characters."""
        places = (text.find(stop, max(0, after - len(stop) + 1)) for stop in self.texts)
        return [place for place in places if place >= 0]


@cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all CUDA graphs of a GPU are recorded."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def round_up(count: int, step: int) -> int:
    """Return the next multiple of `step`."""
    return math.ceil(count / step) * step
