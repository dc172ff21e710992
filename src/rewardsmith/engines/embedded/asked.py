"""A model of this process that answers questions, or reads answers, many of them together."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.embedded.batches import Batches, Piece, Turn
from rewardsmith.engines.embedded.conversations import tokens_of
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import Request
from rewardsmith.engines.embedded.loading import require_chat_template
from rewardsmith.engines.embedded.plain import Plain
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError, TokenLogprobs, Usage
from rewardsmith.types import Prompt, Rollout, RolloutGroup


@dataclass(frozen=True)
class _Asked:
    request: Request
    sampling: Sampling


@dataclass(frozen=True)
class _Page:
    rows: Sequence[Row]
    adapter: bool


class AskedModel:
    """Answers questions with an embedded engine, and reads answers; see `rewardsmith.llm.Asked` and `Reader`.

    Questions that come while others are being answered wait, and are then answered together: the engine writes many
    answers at a time. Which these are depends on time, so on a CPU each prompt is read alone, and an answer does not
    depend on the others. A group is read in passes of its own. A question's deadline is not looked at: a model in this
    process takes the time that it takes.

    Args:
        engine: a language model.
        turn: entered while the engine works; it is awake then.
    """

    def __init__(self, engine: EmbeddedEngine, turn: Turn = nullcontext) -> None:
        self.name = engine.name
        self.usage = Usage()
        self._engine = engine
        self._plain = Plain(engine.tokenizer)
        self._batches: Batches[_Asked, ChatReply] = Batches(self._answer, turn, alike=lambda asked: asked.sampling)
        self._pages: Batches[_Page, list[NDArray[np.float32]]] = Batches(self._read, turn, lambda page: page.adapter)

    async def identity(self) -> str:
        """Return what a cache knows the model by: a hash of its weights and of its chat template."""
        return f"embedded:{self._engine.digest()}"

    async def check(self) -> None:
        """Raise a `UserError` if the model has no chat template."""
        require_chat_template(self._engine.tokenizer, self._engine.settings.init or self.name)

    async def close(self) -> None:
        """Stop answering and reading."""
        await self._batches.close()
        await self._pages.close()

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's answer.

        Raises:
            ModelCallError: the prompt is longer than what the model reads, or the engine failed.
        """
        try:
            answer = await self._batches.add(self._ready(question))
        except ModelCallError:
            self.usage.failed += 1
            raise
        self.usage.calls += 1
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.tokens += answer.tokens
        return answer

    async def read(self, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs]:
        """Return how likely the model finds each rollout; one without tokens and text has nothing to read.

        Args:
            group: the rollouts. One with tokens is read as these; one without as the model would write its text, with
                the token that ends it, unless it was cut off.
            adapter: False reads with the adapter switched off.

        Raises:
            ModelCallError: the tokens are not of this model's tokenizer, or the prompt cannot be rendered, or a rollout
                is longer than what the model reads, or a log-probability is not finite, or the engine failed.
        """
        try:
            if not adapter and self._engine.settings.lora is None:
                raise ModelCallError("refused", f"{self.name} has no adapter that could be switched off")
            rows = self._rows(group)
            ends = [self._ends(row.response, r.text) for row, r in zip(rows, group.rollouts, strict=True)]
            found = await self._pages.add(_Page(rows, adapter))
            read = [TokenLogprobs(_finite(logprobs), end) for logprobs, end in zip(found, ends, strict=True)]
        except ModelCallError:
            self.usage.failed += len(group.rollouts)
            raise
        self.usage.calls += len(group.rollouts)
        return read

    def _rows(self, group: RolloutGroup) -> list[Row]:
        """Return the rollouts as the model reads them, if it can."""
        try:
            prompt = self._engine.encode(group.prompt)
        except UserError as error:
            raise ModelCallError("refused", str(error)) from None
        rows = [Row(prompt, self._response(rollout)) for rollout in group.rollouts]
        longest = max(len(row.prompt) + len(row.response) for row in rows)
        if longest > self._engine.max_length or not len(prompt):
            length = f"{longest} tokens, and {self.name} reads {self._engine.max_length}"
            raise ModelCallError("refused", f"prompt and answer have {length}, the prompt at least one")
        return rows

    def _response(self, rollout: Rollout) -> NDArray[np.int32]:
        if not len(rollout.tokens) and rollout.text:
            cut_off = rollout.stop_reason == "length"
            encode = self._engine.encode_text if cut_off else self._engine.encode_response
            return encode(rollout.text)
        known = int(self._engine.model.config.get_text_config().vocab_size)
        highest = int(rollout.tokens.max(initial=-1))
        if highest >= known:
            told = f"token {highest} is beyond the {known} of {self.name}"
            raise ModelCallError("refused", f"{told}: its tokenizer is not the one of who wrote the answer")
        return rollout.tokens

    def _ends(self, tokens: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        try:
            return self._engine.ends(tokens, text)
        except ValueError as error:
            raise ModelCallError("refused", f"{self.name} cannot read an answer: {error}") from None

    async def _read(self, pieces: Sequence[Piece[_Page, list[NDArray[np.float32]]]]) -> None:
        """TokenLogprobs pass by pass, those of each group apart from the others; others run in between."""
        measure = self._engine.logprobs if pieces[0].job.adapter else self._engine.reference_logprobs
        for piece in pieces:
            rows = piece.job.rows
            found = [np.empty(0, np.float32) for _ in rows]
            written = [i for i, row in enumerate(rows) if len(row.response)]
            for chosen in self._engine.parts([rows[i] for i in written]):
                if piece.result.done():  # who asked has gone
                    break
                batch = [written[i] for i in chosen]
                logprobs_bT = measure([rows[i] for i in batch]).cpu().numpy()
                self.usage.prompt_tokens += tokens_of([rows[i] for i in batch])
                for i, logprobs_T in zip(batch, logprobs_bT, strict=True):
                    found[i] = logprobs_T[: len(rows[i].response)]
                await asyncio.sleep(0)
            piece.finish(found)

    def _ready(self, question: ChatRequest) -> _Asked:
        """Return a question as tokens, with a seed that depends on it alone; an answer without room will be cut off."""
        try:
            if isinstance(question.prompt, str):
                tokens = self._engine.encode_text(question.prompt)
            else:
                tokens = self._engine.encode(Prompt("question", self._plain(question.prompt)))
        except UserError as error:
            raise ModelCallError("refused", str(error)) from None
        room = self._engine.max_length - len(tokens)
        if room < 1 or not len(tokens):
            length = f"{len(tokens)} tokens, and {self.name} reads {self._engine.max_length}, the answer included"
            raise ModelCallError("refused", f"the prompt has {length}")
        told = f"{question.seed} {question.attempt} ".encode() + tokens.tobytes()
        seed = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "big") >> 1
        sampling = Sampling(
            temperature=question.temperature,
            top_p=question.top_p,
            max_tokens=question.max_tokens,
            stop=question.stop,
        )
        alone = self._engine.device.type == "cpu"
        return _Asked(Request(tokens, 1, seed, limit=room, alone=alone), sampling)

    async def _answer(self, batch: Sequence[Piece[_Asked, ChatReply]]) -> None:
        requests = [piece.job.request for piece in batch]
        async for number, (answer,) in self._engine.answer(requests, batch[0].job.sampling):
            batch[number].finish(
                ChatReply(
                    answer.text,
                    truncated=not answer.stopped,
                    prompt_tokens=len(requests[number].prompt),
                    tokens=len(answer.tokens),
                    logprobs=tuple(answer.logprobs.tolist()),
                )
            )


def _finite(found: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(found).all():
        raise ModelCallError("invalid", "the model's log-probability of a token of the answer is not finite")
    return found
