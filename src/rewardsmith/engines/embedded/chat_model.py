"""An embedded engine as the models that rewards call: chat, log-probabilities, ratings.

Jobs that arrive while others are in work are then processed together. What goes through a model together changes the
last bits of its numbers, and which jobs these are depends on time. So on a CPU each prompt is prefilled alone, and the
rows of a call share forward passes with those of no other call.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.conversation_rows import conversation_rows, ratings, tokens_read
from rewardsmith.engines.embedded.chat_template import special_token_escaper
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import GenerationRequest
from rewardsmith.engines.embedded.tiny import TINY
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, TokenLogprobs, Usage
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup

J = TypeVar("J")
R = TypeVar("R")

OnDevice = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while the engine works; its weights are on the device then."""


@dataclass(eq=False)
class PendingJob(Generic[J, R]):
    """A job and its result, which may be done already: the caller was cancelled."""

    job: J
    result: asyncio.Future[R]

    def finish(self, result: R) -> None:
        """Return the result to the caller, if it still waits."""
        if not self.result.done():
            self.result.set_result(result)

    def fail(self, error: ModelCallError) -> None:
        """Raise an error in the caller, if it still waits."""
        if not self.result.done():
            self.result.set_exception(error)


class JobBatcher(Generic[J, R]):
    """Collects the jobs that arrive while a batch is in work into the next batch.

    Args:
        work: finishes the jobs of a batch; what it raises is why the others failed.
        on_device: entered around each batch.
        key: jobs of one batch have the same key.
    """

    def __init__(
        self,
        work: Callable[[Sequence[PendingJob[J, R]]], Awaitable[None]],
        on_device: OnDevice,
        key: Callable[[J], object] = lambda job: None,
    ) -> None:
        self._work = work
        self._on_device = on_device
        self._key = key
        self._waiting: list[PendingJob[J, R]] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, job: J) -> asyncio.Future[R]:
        """Return the future result of a job; it may raise `ModelCallError`."""
        pending: PendingJob[J, R] = PendingJob(job, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())
        return pending.result

    async def close(self) -> None:
        """Cancel what is not done."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._cancel([])

    async def _serve(self) -> None:
        await asyncio.sleep(0)  # the jobs of a group come one after the other
        while self._waiting:
            key = self._key(self._waiting[0].job)
            batch = [p for p in self._waiting if self._key(p.job) == key and not p.result.done()]
            self._waiting = [p for p in self._waiting if self._key(p.job) != key]
            if not batch:
                continue
            error = ModelCallError("crashed", "the engine returned no result")
            try:
                async with self._on_device():
                    await self._work(batch)
            except Exception as raised:  # noqa: BLE001 whatever the engine raises, these jobs have no result
                error = ModelCallError("crashed", f"{type(raised).__name__}: {raised}")
            except BaseException:
                self._cancel(batch)
                raise
            for pending in batch:
                pending.fail(error)

    def _cancel(self, batch: Sequence[PendingJob[J, R]]) -> None:
        for pending in [*batch, *self._waiting]:
            pending.fail(ModelCallError("cancelled", "the run stopped before it was done"))
        self._waiting = []


class _EngineModel:
    """What chat models and raters share.

    Attributes:
        name: the model's name in the recipe.
        usage: calls and tokens so far; `prompt_tokens` counts shared tokens once.
    """

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.name = engine.name
        self.usage = Usage()
        self._engine = engine

    async def identity(self) -> str:
        """Return the model's key in a cache: a hash of its weights and of its chat template."""
        return f"embedded:{self._engine.digest()}"

    def _require_length(self, length: int, what: str, *, room: int = 0) -> None:
        """Refuse what has no tokens, or more than the model reads."""
        if not 0 < length <= self._engine.max_length - room:
            limit = f"{length} tokens, and {self.name} reads 1 to {self._engine.max_length}"
            raise ModelCallError("refused", f"{what} has {limit}{', the response included' if room else ''}")


@dataclass(frozen=True)
class _ChatJob:
    request: GenerationRequest
    sampling: Sampling


@dataclass(frozen=True)
class _LogprobJob:
    rows: Sequence[Row]
    adapter: bool


class EmbeddedChatModel(_EngineModel):
    """Implements `rewardsmith.llm.ChatModel` and `LogprobModel` with an embedded engine.

    The deadline of a request is not used: a model in this process takes the time that it takes.

    Args:
        engine: a language model.
        on_device: entered while the engine works.
    """

    def __init__(self, engine: EmbeddedEngine, on_device: OnDevice = nullcontext) -> None:
        super().__init__(engine)
        self._escape = special_token_escaper(engine.tokenizer)
        self._chats: JobBatcher[_ChatJob, ChatReply] = JobBatcher(self._generate, on_device, lambda job: job.sampling)
        self._reads: JobBatcher[_LogprobJob, list[NDArray[np.float32]]] = JobBatcher(
            self._measure, on_device, lambda job: job.adapter
        )

    async def check(self) -> None:
        """Raise a `UserError` if the model has no chat template."""
        self._engine.require_chat_template()

    async def close(self) -> None:
        """Cancel what is not done."""
        await self._chats.close()
        await self._reads.close()

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply; `ModelCallError` if the prompt is too long, or the engine failed."""
        try:
            reply = await self._chats.add(self._chat_job(question))
        except ModelCallError:
            self.usage.failed += 1
            raise
        self.usage.calls += 1
        self.usage.prompt_tokens += reply.prompt_tokens
        self.usage.tokens += reply.tokens
        return reply

    def _chat_job(self, question: ChatRequest) -> _ChatJob:
        """Return the request as tokens, with a seed that depends on it alone."""
        engine = self._engine
        try:
            if isinstance(question.prompt, str):
                tokens = engine.encode_text(question.prompt)
            else:
                tokens = engine.encode(Prompt("question", self._escape(question.prompt)))
        except UserError as error:
            raise ModelCallError("refused", str(error)) from None
        self._require_length(len(tokens), "the prompt", room=1)
        key = f"{question.seed} {question.attempt} ".encode() + tokens.tobytes()
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1
        sampling = Sampling(question.temperature, question.top_p, max_tokens=question.max_tokens, stop=question.stop)
        room, alone = engine.max_length - len(tokens), engine.device.type == "cpu"
        return _ChatJob(GenerationRequest(tokens, 1, seed, limit=room, alone=alone), sampling)

    async def _generate(self, batch: Sequence[PendingJob[_ChatJob, ChatReply]]) -> None:
        requests = [pending.job.request for pending in batch]
        async for index, (completion,) in self._engine.complete(requests, batch[0].job.sampling):
            reply = ChatReply(
                completion.text,
                truncated=not completion.stopped,
                prompt_tokens=len(requests[index].prompt),
                tokens=len(completion.tokens),
                logprobs=tuple(completion.logprobs.tolist()),
            )
            batch[index].finish(reply)

    async def read(self, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs]:
        """Return the log-probabilities of each rollout; without `adapter`, those of the base model.

        A rollout with tokens is read as these; one without as the model would generate its text, with the end token
        unless it was truncated. `ModelCallError` if it cannot be read, or the numbers are not finite.
        """
        try:
            if not adapter and self._engine.settings.lora is None:
                raise ModelCallError("refused", f"{self.name} has no adapter that could be switched off")
            rows = self._rows(group)
            ends = [self._char_ends(row.response, r.text) for row, r in zip(rows, group.rollouts, strict=True)]
            logprobs = await self._reads.add(_LogprobJob(rows, adapter))
            if not all(np.isfinite(each).all() for each in logprobs):
                raise ModelCallError("invalid", "the log-probability of a token of the response is not finite")
        except ModelCallError:
            self.usage.failed += len(group.rollouts)
            raise
        self.usage.calls += len(group.rollouts)
        return [TokenLogprobs(each, end) for each, end in zip(logprobs, ends, strict=True)]

    def _rows(self, group: RolloutGroup) -> list[Row]:
        try:
            prompt = self._engine.encode(group.prompt)
        except UserError as error:
            raise ModelCallError("refused", str(error)) from None
        self._require_length(len(prompt), "the prompt")
        rows = [Row(prompt, self._response(rollout)) for rollout in group.rollouts]
        self._require_length(max(len(row.prompt) + len(row.response) for row in rows), "prompt and response")
        return rows

    def _response(self, rollout: Rollout) -> NDArray[np.int32]:
        engine = self._engine
        if not len(rollout.tokens) and rollout.text:
            truncated = rollout.stop_reason == "length"
            return engine.encode_text(rollout.text) if truncated else engine.encode_response(rollout.text)
        known = int(engine.model.config.get_text_config().vocab_size)
        highest = int(rollout.tokens.max(initial=-1))
        if highest >= known:
            message = f"token {highest} is beyond the {known} of {self.name}"
            raise ModelCallError("refused", f"{message}: the response was generated with another tokenizer")
        return rollout.tokens

    def _char_ends(self, tokens: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        try:
            return self._engine.token_char_ends(tokens, text)
        except ValueError as error:
            raise ModelCallError("refused", f"{self.name} cannot read a response: {error}") from None

    async def _measure(self, batch: Sequence[PendingJob[_LogprobJob, list[NDArray[np.float32]]]]) -> None:
        engine = self._engine
        measure = engine.logprobs if batch[0].job.adapter else engine.reference_logprobs
        for pending in batch:
            rows = pending.job.rows
            results = [np.empty(0, np.float32) for _ in rows]
            nonempty = [i for i, row in enumerate(rows) if len(row.response)]
            for chosen in engine.micro_batches([rows[i] for i in nonempty]):
                if pending.result.done():  # the caller was cancelled
                    break
                indices = [nonempty[i] for i in chosen]
                logprobs_bT = measure([rows[i] for i in indices]).cpu().numpy()
                self.usage.prompt_tokens += tokens_read([rows[i] for i in indices])
                for i, logprobs_T in zip(indices, logprobs_bT, strict=True):
                    results[i] = logprobs_T[: len(rows[i].response)]
                await asyncio.sleep(0)
            pending.finish(results)


class EmbeddedRater(_EngineModel):
    """Implements `rewardsmith.llm.Rater` with an embedded engine.

    Args:
        engine: a model with a scalar head.
        on_device: entered while the engine works.

    Attributes:
        rates_together: a rating belongs to the whole call.
    """

    rates_together = True

    def __init__(self, engine: EmbeddedEngine, on_device: OnDevice = nullcontext) -> None:
        super().__init__(engine)
        self._jobs: JobBatcher[list[Row], list[float]] = JobBatcher(self._rate, on_device)

    async def check(self) -> None:
        """Raise a `UserError` if the model cannot rate: no scalar head, or an untrained one, or no chat template."""
        engine, where = self._engine, f"models.{self.name}"
        if engine.settings.head != "scalar":
            raise UserError(f'{where} has a language head: a model that rates has head = "scalar"')
        init, weight = engine.settings.init or self.name, engine.model.score.weight
        if weight.shape[0] != 1:
            raise UserError(f"{where}: the head gives {weight.shape[0]} numbers for a text. A reward model gives one")
        if init not in TINY and not bool(weight.any()):
            raise UserError(
                f"{where}: the head is all zeros, so every text would have the same rating. {init} has no trained head:"
                " name a reward model (a Hugging Face folder of a sequence classifier with one label)"
            )
        engine.require_chat_template()
        question = Message("user", "1+1?")
        try:
            first, second = (self._encode([question, Message("assistant", text)]) for text in ("2", "3"))
        except ModelCallError as error:
            raise UserError(f"{where}: {error}") from None
        if first.tolist() == second.tolist():
            raise UserError(f"{where}: its chat template leaves out the assistant's messages")

    async def close(self) -> None:
        """Cancel what is not done."""
        await self._jobs.close()

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the rating of each conversation.

        `ModelCallError` if one is too long, or cannot be rendered, or has no finite rating, or the engine failed.
        """
        try:
            tokens = [self._encode(conversation) for conversation in conversations]
            rows = conversation_rows(conversations, tokens)
            # Sorted and without duplicates: the order of the call must not matter.
            by_tokens = sorted(
                zip(tokens, rows, strict=True), key=lambda pair: (pair[0].tobytes(), len(pair[1].prompt))
            )
            distinct = {each.tobytes(): row for each, row in by_tokens}
            numbers = await self._jobs.add(list(distinct.values())) if distinct else []
            for number in numbers:
                if not isfinite(number):
                    raise ModelCallError("invalid", f"the rating of the conversation is {number}")
        except ModelCallError:
            self.usage.failed += len(conversations)
            raise
        self.usage.calls += len(conversations)
        by_key = dict(zip(distinct, numbers, strict=True))
        return [by_key[each.tobytes()] for each in tokens]

    def _encode(self, conversation: Conversation) -> NDArray[np.int32]:
        tokens = self._engine.encode_conversation(conversation)
        self._require_length(len(tokens), "the conversation")
        return tokens

    async def _rate(self, batch: Sequence[PendingJob[list[Row], list[float]]]) -> None:
        for pending in batch:
            numbers = [0.0] * len(pending.job)
            for chosen in self._engine.micro_batches(pending.job):
                if pending.result.done():  # the caller was cancelled
                    break
                rows = [pending.job[i] for i in chosen]
                for i, rating in zip(chosen, ratings(self._engine.values(rows), rows).tolist(), strict=True):
                    numbers[i] = rating
                self.usage.prompt_tokens += tokens_read(rows)
                await asyncio.sleep(0)
            pending.finish(numbers)
