"""Generation: many rows decode together; a group's prompt is read once; finished rows make room for waiting prompts.

A row of the batch is one rollout. Its state lives in tensors on the device (`Rows`), so that a decoding step is one
function of fixed tensors and can be recorded and replayed as a CUDA graph. The host looks at the rows every few steps
(`CHECK_EVERY`), takes out the finished ones, and admits waiting groups. A row that is finished but not yet taken out
stands still, so how often the host looks changes nothing in the result.
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

from rewardsmith.engines.embedded.attention import Decode, KeyValues, Prefill, planned
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.engines.embedded.rows import Rows
from rewardsmith.engines.embedded.sampling import sample, uniforms
from rewardsmith.engines.protocol import Sampling, Tick, no_tick
from rewardsmith.errors import UserError

CHECK_EVERY = {"cpu": 1, "cuda": 8}
"""Steps between two looks of the host: on a GPU each look waits for the device."""
ROWS_STEP = {"cpu": 8, "cuda": 32}
"""The batch is this many rows, or a multiple: it shrinks only when that saves something."""
LENGTH_STEP = {"cpu": 32, "cuda": 128}
"""Attention reads the cache up to a multiple of this many tokens."""
PREFILL_TOKENS = 16_384
"""Prompt tokens in one forward pass."""

Backbone = Callable[[Tensor, Tensor], Tensor]
"""Token ids and positions, both [b, t], to hidden states [b, t, D]; attention follows the plan in force."""


@dataclass(frozen=True)
class Request:
    """Ask for n answers to a prompt.

    Attributes:
        prompt: int32 [P], at least one token.
        n: answers.
        seed: of their randomness; answer i depends on (seed, i) and on nothing else in the batch.
        limit: longest answer, where that is less than what the sampling allows; None where it is not.
        alone: whether the prompt is read in a pass of its own. What is read together changes the last bits of it, and
            on a CPU decoding does not: an answer then is the same, bit for bit, whatever else is in the batch.
    """

    prompt: NDArray[np.int32]
    n: int
    seed: int
    limit: int | None = None
    alone: bool = False

    def most(self, sampling: Sampling) -> int:
        """Return the tokens that an answer may have."""
        return sampling.max_tokens if self.limit is None else min(self.limit, sampling.max_tokens)


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        tokens: int32 [T], the token that ended it included.
        logprobs: float32 [T].
        text: decoded, without what ended it.
        stopped: whether the model ended it; False when the token limit did.
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    text: str
    stopped: bool


class Generator:
    """Answers requests with a model.

    Args:
        backbone: the model without its head.
        head: from hidden states to logits.
        decode: token ids to text, special tokens left out.
        stop_ids: tokens that end an answer.
        device: of the model.
        rows: how many answers are written at a time.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        decode: Callable[[NDArray[np.int32]], str],
        stop_ids: Sequence[int],
        device: torch.device,
        *,
        rows: int,
    ) -> None:
        self._backbone = backbone
        self._head = head
        self._decode = decode
        self._stop_ids = set(stop_ids)
        self._stops_K = torch.tensor(sorted(stop_ids), device=device)
        self._device = device
        self._rows = rows

    async def answer(
        self, requests: Sequence[Request], sampling: Sampling, tick: Tick = no_tick
    ) -> AsyncIterator[tuple[int, tuple[Answer, ...]]]:
        """Yield (number of the request, its answers) as soon as all answers of a request are there.

        Between two decoding steps the event loop runs, so groups are scored while others are still written; then `tick`
        is called, and what it raises ends the work.
        """
        if not requests:
            return
        batch = _Batch(self, requests, sampling)
        with torch.inference_mode():
            batch.admit()
        while batch.busy:
            with torch.inference_mode():
                finished = batch.advance()
            for number, answers in finished:
                yield number, answers
            await asyncio.sleep(0)
            tick(batch.finished, batch.tokens)

    def _answer(self, tokens: NDArray[np.int32], logprobs: NDArray[np.float32], sampling: Sampling) -> Answer:
        """Return a finished row; what follows the first stop text is cut off."""
        if not np.isfinite(logprobs).all():
            raise UserError("the model's logits are not finite: its weights are broken")
        stopped = int(tokens[-1]) in self._stop_ids
        text = self._decode(tokens[:-1] if stopped else tokens)
        early = self.early(tokens, sampling)
        if _places(text, sampling.stop, early):
            stops = partial(_places, stops=sampling.stop, early=early)
            cut = 1 + bisect_left(range(1, len(tokens)), 1, key=lambda n: len(stops(self._decode(tokens[:n]))))
            text = self._decode(tokens[:cut])
            return Answer(tokens[:cut], logprobs[:cut], text[: min(stops(text))], stopped=True)
        return Answer(tokens, logprobs, text, stopped)

    def early(self, tokens: NDArray[np.int32], sampling: Sampling) -> int:
        """Return how many characters come too early for a stop text to end in them."""
        return len(self._decode(tokens[: sampling.min_tokens - 1])) if sampling.min_tokens > 1 else 0


def _places(text: str, stops: tuple[str, ...], early: int) -> list[int]:
    """Return where the stop texts are that do not end in the first `early` characters."""
    found = (text.find(stop, max(0, early - len(stop) + 1)) for stop in stops)
    return [place for place in found if place >= 0]


class _Batch:
    """One call of `Generator.answer`: what waits, what runs, what is complete."""

    def __init__(self, generator: Generator, requests: Sequence[Request], sampling: Sampling) -> None:
        self._g = generator
        self._sampling = sampling
        self._device = generator._device
        kind = self._device.type
        self._check_every, self._rows_step, self._length_step = CHECK_EVERY[kind], ROWS_STEP[kind], LENGTH_STEP[kind]
        self._requests = requests
        self._waiting = deque(
            (number, range(first, min(first + generator._rows, request.n)))
            for number, request in enumerate(requests)
            for first in range(0, request.n, generator._rows)
        )
        self._most = min(generator._rows, sum(request.n for request in requests))
        size = _up(self._most, self._rows_step)
        longest = max(len(request.prompt) + request.most(sampling) for request in requests) + 1
        self._rows = Rows(size, max(request.most(sampling) for request in requests), self._device)
        self._cache = KeyValues(size, _up(longest, self._length_step))
        self._owner: list[tuple[int, int] | None] = [None] * size  # (request, rollout) of each row
        self._length = [0] * size  # an upper bound of each row's tokens, kept on the host: asking the device would wait
        self._answers: list[dict[int, Answer]] = [{} for _ in requests]
        self.finished = 0  # answers
        self.tokens = 0  # written so far, about: a row that ends between two checks counts up to the second
        self._every_S = torch.arange(size, device=self._device)
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle() if kind == "cuda" else None

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or any(owner is not None for owner in self._owner)

    @property
    def _used(self) -> int:
        """Rows up to the last one in use."""
        return max((i + 1 for i, owner in enumerate(self._owner) if owner is not None), default=0)

    def advance(self) -> list[tuple[int, tuple[Answer, ...]]]:
        """Decode some steps, take out what is finished, and let waiting groups in."""
        for _ in range(self._check_every):
            self._step()
        complete = self._take_finished()
        self.admit()
        self._close_gaps()
        return complete

    # ---- one token for each row ------------------------------------------------------------------------------------

    def _step(self) -> None:
        rows = _up(self._used, self._rows_step)
        if not rows:
            return
        self._length = [n + 1 for n in self._length]
        self.tokens += sum(owner is not None for owner in self._owner)
        longest = max(n for n, owner in zip(self._length, self._owner, strict=True) if owner is not None)
        length = min(_up(longest, self._length_step), self._cache.length)
        if self._device.type == "cuda":
            self._replay(rows, length)
        else:
            self._decode(rows, length)

    def _replay(self, rows: int, length: int) -> None:
        """Run a step as a CUDA graph: it is run plainly the first time, recorded the second, and then replayed.

        The plain run is on the stream that records. So the workspace of its matrix products belongs to the stream, and
        not to the memory of a graph, with which it would be freed while the next graph still uses it.
        """
        key, stream, now = (rows, length), recording_stream(), torch.cuda.current_stream()
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
        state = self._rows
        positions_R = state.position_S[:rows]
        with planned(Decode(self._cache, positions_R, length)):
            hidden = self._g._backbone(state.token_S[:rows, None], positions_R[:, None])
        self._write(self._every_S[:rows], hidden[:, -1])

    def _write(self, rows_R: Tensor, hidden_RD: Tensor) -> None:
        """Sample the next token of the given rows and note it."""
        state, sampling = self._rows, self._sampling
        count_R, done_R, position_R = (x[rows_R] for x in (state.count_S, state.done_S, state.position_S))
        logits_RV = self._g._head.logits(hidden_RD).float()
        if sampling.min_tokens:
            early_R1 = (count_R < sampling.min_tokens)[:, None]
            stops_RK = logits_RV[:, self._g._stops_K]
            logits_RV[:, self._g._stops_K] = stops_RK.masked_fill(early_R1, -math.inf)
        tokens_R, logprobs_R = sample(logits_RV, state.uniforms_ST[rows_R, count_R], sampling)
        state.tokens_ST[rows_R, count_R] = tokens_R.int()
        state.logprobs_ST[rows_R, count_R] = logprobs_R
        state.token_S[rows_R] = tokens_R
        state.count_S[rows_R] = torch.where(done_R, count_R, count_R + 1)
        # The first token follows the prompt, where the row stands already; each later one is a place further on.
        state.position_S[rows_R] = torch.where(done_R | (count_R == 0), position_R, position_R + 1)
        ends_R = (tokens_R[:, None] == self._g._stops_K).any(-1) | (count_R + 1 >= state.limit_S[rows_R])
        state.done_S[rows_R] = done_R | ends_R

    # ---- rows come and go ------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Give free rows to waiting groups, in order, and read their prompts."""
        active = sum(owner is not None for owner in self._owner)
        free = deque([i for i, owner in enumerate(self._owner) if owner is None][: self._most - active])
        admitted: list[tuple[int, range, list[int]]] = []
        longest = 0
        while self._waiting and len(self._waiting[0][1]) <= len(free):
            number, rollouts = self._waiting.popleft()
            mine = [free.popleft() for _ in rollouts]
            prompt = len(self._requests[number].prompt)
            for row, rollout in zip(mine, rollouts, strict=True):
                self._owner[row], self._length[row] = (number, rollout), prompt + 1
            # Attention pads prompts to the longest of a pass, so that is what counts.
            longest = max(longest, prompt)
            if admitted and (self._requests[number].alone or (len(admitted) + 1) * longest > PREFILL_TOKENS):
                self._prefill(admitted)
                admitted, longest = [], prompt
            admitted.append((number, rollouts, mine))
        if admitted:
            self._prefill(admitted)

    def _prefill(self, admitted: list[tuple[int, range, list[int]]]) -> None:
        """Read the prompts, once each, and write the first token of every row."""
        prompts = [self._requests[number].prompt for number, _, _ in admitted]
        lengths = [len(prompt) for prompt in prompts]
        rows_R = self._ids([row for _, _, mine in admitted for row in mine])
        state = self._rows
        state.count_S[rows_R], state.done_S[rows_R] = 0, False
        state.limit_S[rows_R] = self._ids(
            [self._requests[number].most(self._sampling) for number, _, mine in admitted for _ in mine]
        )
        state.position_S[rows_R] = self._ids(
            [n for n, (_, _, mine) in zip(lengths, admitted, strict=True) for _ in mine]
        )
        width = state.uniforms_ST.shape[1]
        numbers = [uniforms(self._requests[number].seed, i, width) for number, mine, _ in admitted for i in mine]
        state.uniforms_ST[rows_R] = torch.from_numpy(np.stack(numbers)).to(self._device)
        plan = Prefill(lengths, [mine for _, _, mine in admitted], self._cache, self._device)
        with planned(plan):
            hidden = self._g._backbone(self._ids(np.concatenate(prompts))[None], plan.positions_N[None])[0]
        ends = np.repeat(np.cumsum(lengths) - 1, [len(mine) for _, _, mine in admitted])
        self._write(rows_R, hidden[self._ids(ends)])
        self.tokens += len(rows_R)

    def _take_finished(self) -> list[tuple[int, tuple[Answer, ...]]]:
        """Return the requests that have all their answers now."""
        used = self._used
        done = self._rows.done_S[:used].tolist()
        if self._sampling.stop:
            counts, written = self._rows.count_S[:used].tolist(), self._rows.tokens_ST[:used].cpu().numpy()
            done = [end or self._has_stop(written[i, : counts[i]]) for i, end in enumerate(done)]
        rows = [i for i in range(used) if done[i] and self._owner[i] is not None]
        if not rows:
            return []
        index = self._ids(rows)
        counts = self._rows.count_S[index].tolist()
        tokens, logprobs = (x[index].cpu().numpy() for x in (self._rows.tokens_ST, self._rows.logprobs_ST))
        complete: list[tuple[int, tuple[Answer, ...]]] = []
        for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
            owner = self._owner[row]
            assert owner is not None
            number, rollout = owner
            self._owner[row] = None
            answers = self._answers[number]
            answers[rollout] = self._g._answer(tokens[i, :count], logprobs[i, :count], self._sampling)
            if len(answers) == self._requests[number].n:
                complete.append((number, tuple(answers[i] for i in range(len(answers)))))
                self._answers[number] = {}
        self.finished += len(rows)
        self._rows.retire(index)
        return complete

    def _has_stop(self, tokens: NDArray[np.int32]) -> bool:
        """Whether one of the stop texts has just been written; a character may take four tokens."""
        if len(tokens) < max(1, self._sampling.min_tokens):
            return False
        recent = tokens[-(self._check_every + 4 * max(map(len, self._sampling.stop))) :]
        if not _places(self._g._decode(recent), self._sampling.stop, 0):
            return False
        return bool(_places(self._g._decode(tokens), self._sampling.stop, self._g.early(tokens, self._sampling)))

    def _close_gaps(self) -> None:
        """Move the last rows into free ones, where that makes the batch smaller."""
        used, active = self._used, sum(owner is not None for owner in self._owner)
        if _up(active, self._rows_step) >= _up(used, self._rows_step):
            return
        targets = [i for i in range(active) if self._owner[i] is None]
        sources = [i for i in range(active, used) if self._owner[i] is not None]
        longest = min(max(self._length[i] for i in sources), self._cache.length)
        self._rows.move(self._ids(sources), self._ids(targets))
        self._cache.move(self._ids(sources), self._ids(targets), longest)
        self._rows.retire(self._ids(sources))
        for source, target in zip(sources, targets, strict=True):
            self._owner[target], self._owner[source] = self._owner[source], None
            self._length[target] = self._length[source]

    def _ids(self, numbers: Sequence[int] | NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(np.asarray(numbers, dtype=np.int64)).to(self._device)


@cache
def recording_stream() -> torch.cuda.Stream:
    """Return the stream on which all graphs are recorded."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _up(count: int, step: int) -> int:
    return math.ceil(count / step) * step
