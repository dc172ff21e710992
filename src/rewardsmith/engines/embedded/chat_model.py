"""An embedded engine as the models that rewards call: chat, log-probabilities, ratings.

What goes through a model together changes the last bits of its numbers, and which calls arrive together depends on
time. So on a CPU each prompt is prefilled alone, and the rows of a call share forward passes with no other call.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.conversation_rows import conversation_rows, ratings, tokens_read
from rewardsmith.engines.embedded.chat_template import special_token_escaper
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import GenerationRequest
from rewardsmith.engines.embedded.tiny import TINY
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, TokenLogprobs, Usage
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup

_NOTHING = np.empty(0, np.float32)
OnDevice = Callable[[], AbstractAsyncContextManager[None]]  # entered while the engine works


class _EngineModel:
    """What chat models and raters share; `usage.prompt_tokens` counts tokens that rows share once."""

    def __init__(self, engine: EmbeddedEngine, on_device: OnDevice = nullcontext) -> None:
        self.name = engine.name
        self.usage = Usage()
        self._engine = engine
        self._on_device = on_device

    async def identity(self) -> str:
        """Return the model's key in a cache: a hash of its weights and of its chat template."""
        return f"embedded:{self._engine.digest()}"

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Hold the device; whatever the engine raises is a `ModelCallError`."""
        try:
            async with self._on_device():
                yield
        except ModelCallError:
            raise
        except Exception as error:
            raise ModelCallError("crashed", f"{type(error).__name__}: {error}") from error

    async def _run(self, rows: Sequence[Row], forward: Callable[[Sequence[Row]], Tensor]) -> list[NDArray[np.float32]]:
        """Return what the engine computes for each row; other coroutines run between two passes."""
        results = [np.empty(0, np.float32)] * len(rows)
        async with self._working():
            for chosen in self._engine.micro_batches(rows):
                part = [rows[i] for i in chosen]
                computed = forward(part)
                await asyncio.sleep(0)  # while this GPU works, another model may give its own GPU work
                outputs = computed.cpu().numpy()
                self.usage.prompt_tokens += tokens_read(part)
                for i, output in zip(chosen, outputs, strict=True):
                    results[i] = output
        return results

    def _require_length(self, length: int, what: str, *, room: int = 0) -> None:
        """Refuse what has no tokens, or more than the model reads."""
        if not 0 < length <= self._engine.max_length - room:
            limit = f"{length} tokens, and {self.name} reads 1 to {self._engine.max_length}"
            raise ModelCallError("refused", f"{what} has {limit}{', the response included' if room else ''}")


@dataclass(eq=False)
class _PendingChat:
    """A request that waits for the next batch; its future is done already if the caller was cancelled."""

    request: GenerationRequest
    sampling: Sampling
    reply: asyncio.Future[ChatReply]


class EmbeddedChatModel(_EngineModel):
    """Implements `rewardsmith.llm.ChatModel` and `LogprobModel` with an embedded engine that has a language head.

    Requests that arrive while a batch is generated form the next batch. The deadline of a request is not used: a model
    in this process takes the time that it takes.
    """

    def __init__(self, engine: EmbeddedEngine, on_device: OnDevice = nullcontext) -> None:
        super().__init__(engine, on_device)
        self._escape = special_token_escaper(engine.tokenizer)
        self._waiting: list[_PendingChat] = []
        self._task: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Raise a `UserError` if the model has no chat template."""
        self._engine.require_chat_template()

    async def close(self) -> None:
        """Cancel the requests that wait."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._cancel([])

    # ---- chat ------------------------------------------------------------------------------------------------------

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's reply; `ModelCallError` if the prompt is too long, or the engine failed."""
        try:
            request, sampling = self._prepare(question)
            pending = _PendingChat(request, sampling, asyncio.get_running_loop().create_future())
            self._waiting.append(pending)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._serve())
            reply = await pending.reply
        except ModelCallError:
            self.usage.failed += 1
            raise
        self.usage.calls += 1
        self.usage.prompt_tokens += reply.prompt_tokens
        self.usage.tokens += reply.tokens
        return reply

    def _prepare(self, question: ChatRequest) -> tuple[GenerationRequest, Sampling]:
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
        sampling = Sampling(
            temperature=question.temperature,
            top_p=question.top_p,
            max_tokens=question.max_tokens,
            stop=question.stop,
        )
        room, alone = engine.max_length - len(tokens), engine.device.type == "cpu"
        return GenerationRequest(tokens, 1, seed, limit=room, alone=alone), sampling

    async def _serve(self) -> None:
        """Generate what waits, one batch for each kind of sampling after the other."""
        await asyncio.sleep(0)  # the requests of a group come one after the other
        while self._waiting:
            sampling = self._waiting[0].sampling
            batch = [p for p in self._waiting if p.sampling == sampling and not p.reply.done()]
            self._waiting = [p for p in self._waiting if p.sampling != sampling]
            try:
                async with self._working():
                    await self._generate(batch, sampling)
            except ModelCallError as error:
                for pending in batch:
                    if not pending.reply.done():
                        pending.reply.set_exception(error)
            except BaseException:
                self._cancel(batch)
                raise

    async def _generate(self, batch: Sequence[_PendingChat], sampling: Sampling) -> None:
        requests = [pending.request for pending in batch]
        async for index, (completion,) in self._engine.complete(requests, sampling):
            if not batch[index].reply.done():
                reply = ChatReply(
                    completion.text,
                    truncated=not completion.stopped,
                    prompt_tokens=len(requests[index].prompt),
                    tokens=len(completion.tokens),
                    logprobs=tuple(completion.logprobs.tolist()),
                )
                batch[index].reply.set_result(reply)

    def _cancel(self, batch: Sequence[_PendingChat]) -> None:
        for pending in [*batch, *self._waiting]:
            if not pending.reply.done():
                pending.reply.set_exception(ModelCallError("cancelled", "the run stopped before it was done"))
        self._waiting = []

    # ---- log-probabilities -----------------------------------------------------------------------------------------

    async def read(self, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs]:
        """Return the log-probabilities of each rollout; without `adapter`, those of the base model.

        A rollout without tokens is read as the model would generate its text, with the end token unless truncated.
        """
        try:
            if not adapter and self._engine.settings.lora is None:
                raise ModelCallError("refused", f"{self.name} has no adapter that could be switched off")
            rows = self._rows(group)
            ends = [self._char_ends(row.response, r.text) for row, r in zip(rows, group.rollouts, strict=True)]
            forward = self._engine.logprobs if adapter else self._engine.reference_logprobs
            found = iter(await self._run([row for row in rows if len(row.response)], forward))
            logprobs = [next(found)[: len(row.response)] if len(row.response) else _NOTHING for row in rows]
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
            return self._engine.offsets.token_char_ends(tokens, text)
        except ValueError as error:
            raise ModelCallError("refused", f"{self.name} cannot read a response: {error}") from None


class EmbeddedRater(_EngineModel):
    """Implements `rewardsmith.llm.Rater` with an embedded engine that has a scalar head."""

    rates_together = True  # a rating belongs to the whole call

    async def check(self) -> None:
        """Raise a `UserError` if the model cannot rate: its head is untrained, or it has no usable chat template."""
        engine, where = self._engine, f"models.{self.name}"
        init = engine.settings.init or self.name
        if init not in TINY and not bool(engine.model.score.weight.any()):
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

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return the rating of each conversation; one that cannot be rated fails the call."""
        try:
            tokens = [self._encode(conversation) for conversation in conversations]
            rows = conversation_rows(conversations, tokens)
            # Sorted and without duplicates: the order of the call must not matter.
            by_tokens = sorted(
                zip(tokens, rows, strict=True), key=lambda pair: (pair[0].tobytes(), len(pair[1].prompt))
            )
            distinct = {each.tobytes(): row for each, row in by_tokens}
            found = await self._run(list(distinct.values()), lambda part: ratings(self._engine.values(part), part))
            if not np.isfinite(found).all():
                raise ModelCallError("invalid", "the rating of a conversation is not finite")
        except ModelCallError:
            self.usage.failed += len(conversations)
            raise
        self.usage.calls += len(conversations)
        by_key = dict(zip(distinct, map(float, found), strict=True))
        return [by_key[each.tobytes()] for each in tokens]

    def _encode(self, conversation: Conversation) -> NDArray[np.int32]:
        tokens = self._engine.encode_conversation(conversation)
        self._require_length(len(tokens), "the conversation")
        return tokens
