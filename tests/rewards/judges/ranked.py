"""Groups that are ranked, and judges who read the quality of an answer from its first number."""

import asyncio
import re
from collections.abc import Callable

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards.base import score as scored
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.text.rankings import write_ranking
from tests.rewards.models import Scripted, text_of

PROMPT = Prompt("p", [Message("user", "Which?")], answer="ref", info={"src_lang": "de", "trg_lang": "en"})
BLOCK = re.compile(r"^Candidate ([A-Z]):\n(`{3,})\n(.*?)\n\2$", re.MULTILINE | re.DOTALL)


def group(*texts: str, tokens: int | None = None) -> RolloutGroup:
    return RolloutGroup(PROMPT, [Rollout(text, [1] * (len(text) if tokens is None else tokens)) for text in texts])


def shown(question: ChatRequest) -> list[str]:
    """Return the candidates that a question shows, in its order."""
    return [text for _, _, text in BLOCK.findall(text_of(question))]


def by_number(question: ChatRequest, grade: Callable[[int, str], float] | None = None, output: str = "both") -> str:
    """Answer as a judge would who reads the quality of a candidate from its first number."""
    texts = shown(question)
    scores = {
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[place]: grade(place, text) if grade else float(re.search(r"\d+", text)[0])
        for place, text in enumerate(texts)
    }
    return write_ranking(scores, "I compared them.", output)


def scores(judge: Scripted, rollouts: RolloutGroup, **settings: object) -> tuple[Score, ...]:
    reward = RankingJudge(model="judge", **settings)
    reward.connect({"judge": judge}.__getitem__)
    return tuple(asyncio.run(scored(reward, rollouts)).scores)


def values(judge: Scripted, rollouts: RolloutGroup, **settings: object) -> list[float | str]:
    return [s.value if s.failure is None else s.failure.kind for s in scores(judge, rollouts, **settings)]
