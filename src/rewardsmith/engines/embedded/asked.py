"""A model of this process that answers questions, many of them together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rewardsmith.asking import Answer, CannotAnswer, Question, Usage
from rewardsmith.engines.embedded.batches import Batches, Piece, Turn
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import Request
from rewardsmith.engines.embedded.loading import require_chat_template
from rewardsmith.engines.embedded.plain import Plain
from rewardsmith.engines.protocol import Sampling
from rewardsmith.errors import UserError
from rewardsmith.types import Prompt


@dataclass(frozen=True)
class _Asked:
    request: Request
    sampling: Sampling


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
        self._plain = Plain(engine.tokenizer)
        self._batches: Batches[_Asked, Answer] = Batches(self._answer, turn, alike=lambda asked: asked.sampling)

    async def identity(self) -> str:
        """Return what a cache knows the model by: a hash of its weights and of its chat template."""
        return f"embedded:{self._engine.digest()}"

    async def check(self) -> None:
        """Raise a `UserError` if the model has no chat template."""
        require_chat_template(self._engine.tokenizer, self._engine.settings.init or self.name)

    async def close(self) -> None:
        """Stop answering."""
        await self._batches.close()

    async def ask(self, question: Question) -> Answer:
        """Return the model's answer.

        Raises:
            CannotAnswer: the prompt is longer than what the model reads, or the engine failed.
        """
        try:
            answer = await self._batches.add(self._ready(question))
        except CannotAnswer:
            self.usage.failed += 1
            raise
        self.usage.calls += 1
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.tokens += answer.tokens
        return answer

    def _ready(self, question: Question) -> _Asked:
        """Return a question as tokens, with a seed that depends on it alone; an answer without room will be cut off."""
        try:
            if isinstance(question.prompt, str):
                tokens = self._engine.encode_text(question.prompt)
            else:
                tokens = self._engine.encode(Prompt("question", self._plain(question.prompt)))
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
            max_tokens=question.max_tokens,
            stop=question.stop,
        )
        return _Asked(Request(tokens, 1, seed, limit=room), sampling)

    async def _answer(self, batch: Sequence[Piece[_Asked, Answer]]) -> None:
        requests = [piece.job.request for piece in batch]
        async for number, (answer,) in self._engine.answer(requests, batch[0].job.sampling):
            batch[number].finish(
                Answer(
                    answer.text,
                    truncated=not answer.stopped,
                    prompt_tokens=len(requests[number].prompt),
                    tokens=len(answer.tokens),
                    logprobs=tuple(answer.logprobs.tolist()),
                )
            )
