"""Continuous batching: many rows decode together; a group's prompt is prefilled once; finished rows make room.

A row of the batch is one response. Its state is in tensors on the device, so that a decoding step is one function of
fixed tensors, recorded once as a CUDA graph and replayed in this call and in later ones. A row that is finished but not
yet taken out stands still, so how often the host looks (`CHECK_EVERY`) changes nothing in the result. Rows wait while
the memory for keys and values is full; a row that cannot grow is taken out and prefilled again later.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.architectures import Backbone
from rewardsmith.engines.embedded.attention import attention_plan
from rewardsmith.engines.embedded.cards import current, to_device
from rewardsmith.engines.embedded.decode_state import DecodeState
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.engines.embedded.kv_cache import Cache
from rewardsmith.engines.embedded.sampling import sample, uniforms
from rewardsmith.engines.protocol import Sampling, Tick, no_tick
from rewardsmith.errors import UserError

CHECK_EVERY = {"cpu": 1, "cuda": 8}  # decoding steps between two looks of the host: on a GPU each one waits
ROWS_STEP = {"cpu": 8, "cuda": 32}  # the batch size is a multiple of this: it shrinks only when that saves something
PREFILL_TOKENS = 16_384  # prompt tokens in one forward pass


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


@dataclass(frozen=True)
class Waiting:
    """Responses that wait for rows; one that was taken out goes on after the tokens that it has already."""

    index: int  # of the request
    responses: tuple[int, ...]
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True)
class FinishedRow:
    """What a row has generated."""

    index: int  # of the request
    response: int
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]


class Generator:
    """Generates the responses of some requests: `schedule`, `run`, `postprocess`, until all are complete.

    `backbone` is the model without its head; `max_rows` is how many responses are generated at a time at most.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        stop: StopRule,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        state: DecodeState,
        cache: Cache,
        *,
        max_rows: int,
    ) -> None:
        self._backbone, self._head, self._stop = backbone, head, stop
        self._requests, self._sampling, self._state, self._device = requests, sampling, state, state.device
        kind = self._device.type
        self._check_every, self._rows_step = CHECK_EVERY[kind], ROWS_STEP[kind]
        self._waiting = deque(
            Waiting(index, tuple(range(first, min(first + max_rows, request.n))))
            for index, request in enumerate(requests)
            for first in range(0, request.n, max_rows)
        )
        self._max_rows = max_rows
        self._cache = cache
        state.retire(slice(None))
        self._stops_K = state.stop_ids(stop.ids)
        self._owners: list[tuple[int, int] | None] = [None] * state.rows  # (request, response) of each row
        # Tokens of each response, the one included that the model has not read. It is an upper bound, kept on the host:
        # reading the device would wait for it.
        self._counts_S = np.zeros(state.rows, dtype=np.int64)
        self._prompts_S, self._limits_S = np.zeros_like(self._counts_S), np.zeros_like(self._counts_S)  # tokens
        self._order: list[int] = []  # rows in use, in the order in which they were admitted
        self._completions: list[dict[int, Completion]] = [{} for _ in requests]
        self._finished = 0  # responses
        self._tokens = 0  # approximate: a row that ends between two looks counts up to the second

    async def complete(self, tick: Tick = no_tick) -> AsyncIterator[tuple[int, tuple[Completion, ...]]]:
        """Yield (index of the request, its responses) as soon as all responses of a request are there.

        A GPU works on a round while the host decodes the texts of the round before, and while the event loop runs: so
        groups are scored while others are still generated. After a round `tick` is called, and an exception from it
        ends the work.
        """
        finished: list[FinishedRow] = []
        while True:
            with torch.inference_mode(), current(self._device):
                self._schedule()
                self._run()
            for item in self._postprocess(finished):
                yield item
            if not self._order:
                return
            await asyncio.sleep(0)
            with torch.inference_mode(), current(self._device):
                finished = self._take_finished()
            tick(self._finished, self._tokens)

    # ---- schedule: rows come and go --------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Give free rows to waiting responses, in order, and prefill their prompts; then close gaps."""
        free = deque([i for i, owner in enumerate(self._owners) if owner is None][: self._max_rows - len(self._order)])
        admitted: list[tuple[Waiting, list[int]]] = []
        longest = 0
        while self._waiting and len(self._waiting[0].responses) <= len(free):
            waiting = self._waiting[0]
            rows = [free[i] for i in range(len(waiting.responses))]
            length = len(self._prefix(waiting))
            if not self._cache.admit(rows, length, spare=len(self._order)):  # a block each to grow
                if self._order or len(rows) == 1:
                    break
                half = len(rows) // 2  # the group as a whole may never fit
                parts = waiting.responses[:half], waiting.responses[half:]
                self._waiting[0] = replace(waiting, responses=parts[1])
                self._waiting.appendleft(replace(waiting, responses=parts[0]))
                continue
            self._waiting.popleft()
            for row, response in zip(rows, waiting.responses, strict=True):
                free.popleft()
                self._owners[row] = waiting.index, response
                self._order.append(row)
            request = self._requests[waiting.index]
            self._counts_S[rows], self._prompts_S[rows] = len(waiting.tokens) + 1, len(request.prompt)
            self._limits_S[rows] = request.max_tokens(self._sampling)
            # Attention may pad prompts to the longest of a pass, so that is what counts.
            longest = max(longest, length)
            if admitted and (request.alone or (len(admitted) + 1) * longest > PREFILL_TOKENS):
                self._prefill(admitted)
                admitted, longest = [], length
            admitted.append((waiting, rows))
        if admitted:
            self._prefill(admitted)
        self._close_gaps()

    def _prefix(self, waiting: Waiting) -> NDArray[np.int32]:
        """Return the tokens to prefill: the prompt, and what the response has already."""
        return np.concatenate([self._requests[waiting.index].prompt, waiting.tokens])

    def _prefill(self, admitted: list[tuple[Waiting, list[int]]]) -> None:
        """Read the prompts, once each, and sample the next token of every row."""
        state = self._state
        prefixes = [self._prefix(waiting) for waiting, _ in admitted]
        lengths, counts = [len(prefix) for prefix in prefixes], [len(rows) for _, rows in admitted]
        rows_R = self._ids([row for _, rows in admitted for row in rows])
        state.done_S[rows_R] = False
        state.count_S[rows_R] = self._ids(np.repeat([len(waiting.tokens) for waiting, _ in admitted], counts))
        limits = [self._requests[waiting.index].max_tokens(self._sampling) for waiting, _ in admitted]
        state.limit_S[rows_R] = self._ids(np.repeat(limits, counts))
        state.position_S[rows_R] = self._ids(np.repeat(lengths, counts))
        state.start_S[rows_R] = state.position_S[rows_R] - state.count_S[rows_R]
        numbers = np.zeros((len(rows_R), max(limits)), dtype=np.float32)
        requests = [(self._requests[waiting.index], i) for waiting, _ in admitted for i in waiting.responses]
        for row, (request, i) in zip(numbers, requests, strict=True):
            row[:] = uniforms(request.seed, request.first + i, len(row))
        state.uniforms_ST[rows_R, : max(limits)] = torch.from_numpy(numbers).to(self._device)
        for waiting, rows in admitted:
            if count := len(waiting.tokens):
                state.tokens_ST[rows, :count] = torch.from_numpy(waiting.tokens).to(self._device)
                state.logprobs_ST[rows, :count] = torch.from_numpy(waiting.logprobs).to(self._device)
        plan = self._cache.prefill([(rows, length) for (_, rows), length in zip(admitted, lengths, strict=True)])
        with attention_plan(plan):
            hidden_ND = self._backbone(self._ids(np.concatenate(prefixes)), plan.positions_N)
        last_R = self._ids(np.repeat(np.cumsum(lengths) - 1, counts))
        self._sample(rows_R, hidden_ND[last_R])
        self._tokens += len(rows_R)

    def _make_room(self) -> None:
        """Make room for the next round of every row; if there is too little, the rows admitted last wait again."""
        while True:
            rows = np.array(self._order)
            counts = np.minimum(self._counts_S[rows] + self._check_every, self._limits_S[rows])
            if self._cache.grow(rows, self._prompts_S[rows] + counts):
                return
            self._preempt(self._order[-1])

    def _preempt(self, row: int) -> None:
        """Take a row out and let it wait, with the tokens that it has."""
        owner = self._owners[row]
        assert owner is not None
        index, response = owner
        count = int(self._state.count_S[row])
        tokens, logprobs = (x[row, :count].cpu().numpy() for x in (self._state.tokens_ST, self._state.logprobs_ST))
        self._waiting.appendleft(Waiting(index, (response,), tokens, logprobs))
        self._release([row])

    def _release(self, rows: list[int]) -> None:
        """Free rows."""
        for row in rows:
            self._owners[row] = None
            self._order.remove(row)
            self._cache.release(row)
        self._state.retire(self._ids(rows))

    def _close_gaps(self) -> None:
        """Move the last rows into free ones, where that makes the batch smaller."""
        used, active = self._used, len(self._order)
        if round_up(active, self._rows_step) >= round_up(used, self._rows_step):
            return
        targets = [i for i in range(active) if self._owners[i] is None]
        sources = [i for i in range(active, used) if self._owners[i] is not None]
        self._state.move(self._ids(sources), self._ids(targets))
        self._cache.move(sources, targets, int(self._counts_S[sources].max()))
        for source, target in zip(sources, targets, strict=True):
            self._owners[target], self._owners[source] = self._owners[source], None
            self._order[self._order.index(source)] = target
        for numbers in (self._counts_S, self._prompts_S, self._limits_S):
            numbers[targets] = numbers[sources]
        self._state.retire(self._ids(sources))

    @property
    def _used(self) -> int:
        """Rows up to the last one in use."""
        return max(self._order, default=-1) + 1

    # ---- run: some tokens for each row -----------------------------------------------------------------------------

    def _run(self) -> None:
        """Decode until the host looks at the rows again."""
        if not self._order:
            return
        if self._cache.is_limited:
            self._make_room()
            self._close_gaps()
        self._cache.upload()
        rows = round_up(self._used, self._rows_step)
        for _ in range(self._check_every):
            self._state.replay((rows, *self._key), partial(self._decode, rows))
            self._counts_S += 1
            self._tokens += len(self._order)

    @cached_property
    def _key(self) -> tuple[object, ...]:
        """What a recorded step depends on, apart from the number of rows."""
        sampling = self._sampling
        return (
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_tokens,
            self._cache.shares_prompts,
            *self._stop.ids,
        )

    def _decode(self, rows: int) -> None:
        """Generate one token for each of the first rows."""
        state = self._state
        with attention_plan(self._cache.decode(rows, int(self._counts_S[self._order].max()))):
            hidden_RD = self._backbone(state.token_S[:rows], state.position_S[:rows])
        state.position_S[:rows] += ~state.done_S[:rows]  # the token that is sampled now stands one place further on
        self._sample(slice(0, rows), hidden_RD)

    def _sample(self, rows: Tensor | slice, hidden_RD: Tensor) -> None:
        """Sample the next token of the given rows and update their state."""
        state, sampling = self._state, self._sampling
        count_R, done_R = state.count_S[rows], state.done_S[rows]
        logits_RV = self._head.logits(hidden_RD)
        if sampling.min_tokens:
            early_R1 = (count_R < sampling.min_tokens)[:, None]
            logits_RV[:, self._stops_K] = logits_RV[:, self._stops_K].masked_fill(early_R1, -math.inf)
        row_R = state.row_S[rows]
        tokens_R, logprobs_R = sample(logits_RV, state.uniforms_ST[row_R, count_R], sampling)
        state.tokens_ST[row_R, count_R] = tokens_R.int()
        state.logprobs_ST[row_R, count_R] = logprobs_R
        state.token_S[rows] = tokens_R
        ends_R = (tokens_R[:, None] == self._stops_K).any(-1) | (count_R + 1 >= state.limit_S[rows])
        state.count_S[rows] = count_R + ~done_R
        state.done_S[rows] = done_R | ends_R

    # ---- postprocess: finished rows become completions -------------------------------------------------------------

    def _take_finished(self) -> list[FinishedRow]:
        """Take finished rows out."""
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
        self._finished += len(finished)
        self._release([row for row, _ in finished])
        return [
            FinishedRow(index, response, tokens[i, :count], logprobs[i, :count])
            for i, ((_, (index, response)), count) in enumerate(zip(finished, counts, strict=True))
        ]

    def _postprocess(self, finished: Sequence[FinishedRow]) -> Iterator[tuple[int, tuple[Completion, ...]]]:
        """Decode the texts of rows, and yield the requests that have all their responses now."""
        for row in finished:
            completions = self._completions[row.index]
            completions[row.response] = self._stop.completion(row.tokens, row.logprobs)
            if len(completions) == self._requests[row.index].n:
                yield row.index, tuple(completions[i] for i in range(len(completions)))
                self._completions[row.index] = {}

    def _ids(self, numbers: Sequence[int] | NDArray[np.integer]) -> Tensor:
        return to_device(numbers, self._device)


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
        find = partial(self._find, after=self._protected(tokens) if self.texts else 0)
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


def longest_sequence(requests: Sequence[GenerationRequest], sampling: Sampling) -> int:
    """Return the most tokens that a prompt and its response may have."""
    return max(len(request.prompt) + request.max_tokens(sampling) for request in requests)


def round_up(count: int, step: int) -> int:
    """Return the next multiple of `step`."""
    return math.ceil(count / step) * step
