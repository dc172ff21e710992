"""A model of this process that answers questions, many of them together."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from rewardsmith.asking import Answer, CannotAnswer, Question, Usage
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import Request
from rewardsmith.engines.embedded.loading import require_chat_template
from rewardsmith.engines.protocol import Sampling
from rewardsmith.errors import UserError
from rewardsmith.types import Prompt

Turn = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(eq=False)
class _Waiting:
    request: Request
    sampling: Sampling
    answer: asyncio.Future[Answer]


class AskedModel:
    """Answers questions with an embedded engine; see `rewardsmith.asking.Asked`.

    Questions that come while others are being answered wait, and are then answered together: the engine writes many
    answers at a time. A question's deadline is not looked at: a model in this process takes the time that it takes.

    Args:
        engine: a language model.
        turn: entered while the engine works; it is awake then.
    """

    def __init__(self, engine: EmbeddedEngine, turn: Turn = nullcontext) -> None:
        self.name = engine.name
        self.usage = Usage()
        self._engine = engine
        self._turn = turn
        self._waiting: list[_Waiting] = []
        self._work: asyncio.Task[None] | None = None

    async def identity(self) -> str:
        """Return what a cache knows the model by: a hash of its weights and of its chat template."""
        return f"embedded:{self._engine.digest()}"

    async def check(self) -> None:
        """Raise a `UserError` if the model has no chat template."""
        require_chat_template(self._engine.tokenizer, self._engine.settings.init or self.name)

    async def close(self) -> None:
        """Stop answering."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def ask(self, question: Question) -> Answer:
        """Return the model's answer.

        Raises:
            CannotAnswer: the prompt is longer than what the model reads, or the engine failed.
        """
        try:
            mine = self._ready(question)
            self._waiting.append(mine)
            if self._work is None or self._work.done():
                self._work = asyncio.create_task(self._serve())
            answer = await mine.answer
        except CannotAnswer:
            self.usage.failed += 1
            raise
        self.usage.calls += 1
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.tokens += answer.tokens
        return answer

    def _ready(self, question: Question) -> _Waiting:
        """Return a question as tokens, with a seed that depends on it alone; an answer without room will be cut off."""
        try:
            if isinstance(question.prompt, str):
                tokens = self._engine.encode_text(question.prompt)
            else:
                tokens = self._engine.encode(Prompt("question", question.prompt))
        except UserError as error:
            raise CannotAnswer("refused", str(error)) from None
        room = self._engine.max_length - len(tokens)
        if room < 1 or not len(tokens):
            length = f"{len(tokens)} tokens, and {self.name} reads {self._engine.max_length}, the answer included"
            raise CannotAnswer("refused", f"the prompt has {length}")
        told = f"{question.seed} {question.attempt} ".encode() + tokens.tobytes()
        seed = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "big") >> 1
        sampling = Sampling(
            temperature=question.temperature,
            top_p=question.top_p,
            max_tokens=min(question.max_tokens, room),
            stop=question.stop,
        )
        return _Waiting(Request(tokens, 1, seed), sampling, asyncio.get_running_loop().create_future())

    async def _serve(self) -> None:
        """Answer all that waits, batch after batch; questions that are sampled alike make a batch."""
        await asyncio.sleep(0)  # the questions of a group come one after the other
        while self._waiting:
            sampling = self._waiting[0].sampling
            batch = [one for one in self._waiting if one.sampling == sampling and not one.answer.done()]
            self._waiting = [one for one in self._waiting if one.sampling != sampling]
            try:
                async with self._turn():
                    await self._answer(batch, sampling)
            except Exception as error:  # noqa: BLE001 whatever the engine raises, it is these that have no answer
                _fail(batch, CannotAnswer("crashed", f"{type(error).__name__}: {error}"))
            except BaseException:
                _fail([*batch, *self._waiting], CannotAnswer("cancelled", "the run stopped before the answer came"))
                self._waiting = []
                raise

    async def _answer(self, batch: list[_Waiting], sampling: Sampling) -> None:
        async for number, (answer,) in self._engine.answer([one.request for one in batch], sampling):
            if not batch[number].answer.done():  # who asked may have gone
                batch[number].answer.set_result(
                    Answer(
                        answer.text,
                        truncated=not answer.stopped,
                        prompt_tokens=len(batch[number].request.prompt),
                        tokens=len(answer.tokens),
                        logprobs=tuple(answer.logprobs.tolist()),
                    )
                )


def _fail(batch: list[_Waiting], why: CannotAnswer) -> None:
    for one in batch:
        if not one.answer.done():
            one.answer.set_exception(why)
