"""A reward model that was trained here, served by vLLM from the folder that the run published."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from rewardsmith.engines.embedded.chat_model import EmbeddedRater
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.trainers.reward_model import RewardModelTrainer
from rewardsmith.types import Message
from tests.servers.vllm import managed
from tests.trainers.compared import Fixed, pairs, reward_model_stage
from tests.trainers.test_reward_model_use import language_folder
from tests.trainers.world import World, steps

ITEMS = pairs(("9", "12-3=9;#9"), ("I do not know.", "7+5=12"), ("", "3"))


@pytest.mark.parametrize("padding", ["own", "none"])
def test_the_server_gives_the_numbers_that_were_trained(padding: str, tmp_path: Path) -> None:
    """Also where conversations end with the only token that could pad them."""
    init = language_folder(tmp_path / "language", padding=padding)
    world = World(tmp_path, sources={"train": Fixed(*ITEMS)})
    chosen = ModelSettings(init=str(init), head="scalar", device="cpu", dtype="float32")
    engine = world._engines["critic"] = EmbeddedEngine.open(chosen, name="critic")
    steps(RewardModelTrainer(reward_model_stage(steps=10, optimizer={"lr": 5e-3}), world), 10)
    engine.publish(tmp_path / "judge")
    conversations = [[*p.prompt.messages, Message("assistant", t)] for p in ITEMS for t in (p.chosen, p.rejected)]
    # Asked for an activation, too, the server has none to apply: the folder says that the number is no probability.
    body = {"use_activation": True} if padding == "own" else {}

    async def run() -> list[float]:
        served = managed(tmp_path / "judge", tmp_path, [], serves="classify", body=body)
        try:
            await served.check()
            return await served.rate(conversations)
        finally:
            await served.close()

    expected = asyncio.run(EmbeddedRater(engine).rate(conversations))
    assert max(expected) - min(expected) > 0.5
    assert min(expected) < 0 or max(expected) > 1
    np.testing.assert_allclose(asyncio.run(run()), expected, atol=1e-3)
    config = json.loads((tmp_path / "judge" / "config.json").read_text())
    assert (config.get("pad_token_id") is None) == (padding == "none")
