"""Rewards that fail for a third of the answers, and write what they did to a file."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from rewardsmith import Failure, RolloutGroup, Score


class Logged:
    """The share of digits in an answer; a third of all texts cannot be scored, and no answer to one question."""

    parts = ("digits",)

    def __init__(self, *, file: str, lost: str = "") -> None:
        self._file, self._lost = Path(file), lost

    async def score(self, group: RolloutGroup) -> list[Score]:
        scores = [self._score(rollout.text, lost=group.prompt.answer == self._lost) for rollout in group.rollouts]
        row = {"prompt": group.prompt.messages[0].content, "answer": group.prompt.answer}
        with self._file.open("a") as file:
            file.write(json.dumps(row | {"values": [score.value for score in scores]}) + "\n")
        return scores

    def _score(self, text: str, *, lost: bool) -> Score:
        if lost or zlib.crc32(text.encode()) % 3 == 0:
            why = Failure("refused", "a third of all texts")
            return Score(failure=why, parts={"digits": Score(failure=why)})
        share = sum(char.isdigit() for char in text) / max(1, len(text))
        return Score(share + 1, parts={"digits": Score(share)})


class Ranked(Logged):
    """As before, less the best of the group: the answers are compared with each other."""

    whole = True

    async def score(self, group: RolloutGroup) -> list[Score]:
        scores = await super().score(group)
        best = max((score.value for score in scores if score.value is not None), default=0.0)
        return [score if score.value is None else Score(score.value - best, parts=score.parts) for score in scores]
