"""Models that rate and embed, served by vLLM: the numbers are those of the same model in transformers."""

import asyncio
from pathlib import Path

import numpy as np
import torch

from rewardsmith.types import Message
from tests.servers.vllm import classifier, language_model, managed

ANSWERS = ["9", "12-3=9;#9", "I do not know.", "7+5=12"]


def test_ratings_are_the_outputs_of_the_classifier(tmp_path: Path) -> None:
    model, tokenizer = classifier(tmp_path / "judge")
    conversations = [[Message("user", "7+5-3?"), Message("assistant", text)] for text in ANSWERS]

    async def run() -> list[float]:
        served = managed(tmp_path / "judge", tmp_path, [], serves="classify")
        try:
            await served.check()
            return await served.rate(conversations)
        finally:
            await served.close()

    found = asyncio.run(run())
    expected = []
    for conversation in conversations:
        messages = [{"role": message.role, "content": message.content} for message in conversation]
        tokens = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            expected.append(model(input_ids=tokens).logits[0, 0].item())
    assert max(expected) - min(expected) > 0.1
    assert min(expected) < 0 or max(expected) > 1  # the raw output, not a probability
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_vectors_are_the_last_hidden_state(tmp_path: Path) -> None:
    model, tokenizer = language_model(tmp_path / "judge")

    async def run() -> np.ndarray:
        served = managed(tmp_path / "judge", tmp_path, [], serves="embed")
        try:
            await served.check()
            return await served.embed(ANSWERS)
        finally:
            await served.close()

    found = asyncio.run(run())
    for vector, text in zip(found, ANSWERS, strict=True):
        with torch.no_grad():
            tokens = tokenizer(text, return_tensors="pt")["input_ids"]
            hidden = model.base_model(input_ids=tokens).last_hidden_state[0, -1]
        np.testing.assert_allclose(vector, (hidden / hidden.norm()).numpy(), atol=1e-3)
