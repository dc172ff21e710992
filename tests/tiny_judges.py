"""Real judges for tests: tiny language models, taught in seconds to write verdicts of one form.

They say something of the right form about whatever they are asked, and nothing sensible.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.llm import ChatReply, ChatRequest, Usage
from rewardsmith.rewards import make_reward
from rewardsmith.types import Prompt, Rollout, RolloutGroup

STEPS, BATCH = 70, 8


class Recorder:
    """A judge that notes what it is asked."""

    def __init__(self, verdict: Callable[[random.Random], str]) -> None:
        self.name, self.usage = "judge", Usage()
        self.asked: list[tuple[ChatRequest, str]] = []
        self._verdict = verdict
        self._random = random.Random(0)

    async def identity(self) -> str:
        return "recorder"

    async def check(self) -> None:
        pass

    async def chat(self, question: ChatRequest) -> ChatReply:
        text = self._verdict(self._random)
        self.asked.append((question, text))
        return ChatReply(text)


def teach(
    folder: Path, reward: dict[str, Any], prompts: Sequence[Prompt], verdict: Callable[[random.Random], str], *, n: int
) -> Path:
    """Write a judge that answers what `reward` asks about n random rollouts of each prompt.

    Args:
        folder: where the model goes.
        reward: the table of a reward whose model is called "judge".
        prompts: what the rollouts answer.
        verdict: what the judge is to write.
        n: rollouts in a group.
    """
    recorder = Recorder(verdict)
    made = make_reward(reward, {"judge": recorder})
    dice = random.Random(1)
    while len(recorder.asked) < 64:
        texts = ["".join(chr(dice.randrange(32, 127)) for _ in range(dice.randrange(1, 9))) for _ in range(n)]
        prompt = prompts[dice.randrange(len(prompts))]
        asyncio.run(made.score(RolloutGroup(prompt, [Rollout(text, [1] * len(text)) for text in texts])))
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-llama"), seed=0, name="judge")
    rows = [
        Row(engine.encode(Prompt("q", question.prompt)), engine.encode_response(text))  # type: ignore[arg-type]
        for question, text in recorder.asked
    ]
    engine.learn_with(OptimizerSettings(lr=3e-3))
    for step in range(STEPS):
        batch = dice.sample(rows, BATCH)
        tokens = sum(len(row.response) for row in batch)
        engine.update(
            batch,
            lambda outputs, tokens=tokens: -(outputs.logprobs_bT * outputs.mask_bT).sum() / tokens,
            lr=3e-3 * (1 - step / STEPS),
        )
    _require_taught(engine, recorder.asked[0][0])
    engine.publish(folder)
    return folder


def _require_taught(engine: EmbeddedEngine, question: ChatRequest) -> None:
    async def first() -> str:
        prompt = Prompt("q", question.prompt)  # type: ignore[arg-type]
        async for _, group in engine.generate([prompt], Sampling(temperature=0, max_tokens=80), n=1, seeds=[0]):
            return group.rollouts[0].text
        raise AssertionError

    text = asyncio.run(first())
    assert any(mark in text for mark in ("core", ">")), f"the judge has learned nothing: {text!r}"
