"""A reward as OpenRLHF's reward function: a file for `--reward.remote_url`.

    # reward.py
    from rewardsmith.integrations.openrlhf_reward import openrlhf_reward

    reward_func = openrlhf_reward({"type": "rule", "rule": "math"})

OpenRLHF calls it for one answer at a time, in a thread. It has no value for "no score", so a failure is raised:
OpenRLHF logs it, and the answer stays without a reward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.integrations.peer_rows import PeerColumns, ScoreFailedError, load, logged_parts
from rewardsmith.types import Rollout, RolloutGroup, ScoredGroup

_COLUMNS = PeerColumns(answer=("label",))

RewardFunction = Callable[[Sequence[str], Sequence[str], Sequence[Any]], dict[str, Any]]


def openrlhf_reward(
    reward: Any,
    *,
    models: Mapping[str, Any] | None = None,
    source: str = "",
    strip: Sequence[str] = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "<eos>", "<|eos|>"),
) -> RewardFunction:
    """Return `reward_func(queries, prompts, labels)` for OpenRLHF's `--reward.remote_url FILE.py`.

    Args:
        reward: whatever `rewardsmith.reward` takes: a table, a name, `RECIPE.toml[:STAGE]`, a function, an object.
        models: the models that its judges name.
        source: the source of all prompts, by which `route` chooses.
        strip: end-of-sequence markers, which OpenRLHF leaves at the end of an answer.
    """
    loaded = load(reward, models)
    if loaded.needs_whole_groups:
        raise UserError(
            "the reward compares the answers to a prompt with each other, and OpenRLHF calls a reward for one answer"
            " at a time: take a reward of single answers, such as a rubric instead of a ranking"
        )

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
        """Return the rewards of answers, with the parts as extra logs."""
        groups = [
            RolloutGroup(
                _COLUMNS.prompt(prompt, {"label": label, "source": source}), [Rollout(_answer(query, prompt, strip))]
            )
            for query, prompt, label in zip(queries, prompts, labels, strict=True)
        ]
        return openrlhf_table(loaded.score_groups(groups))

    return reward_func


def openrlhf_table(scored: Sequence[ScoredGroup]) -> dict[str, Any]:
    """Return the scores of groups of one answer as OpenRLHF's table; a number for one answer, a list for several.

    Raises:
        ScoreFailedError: an answer could not be scored.
    """
    scores = [one.scores[0] for one in scored]
    for score in scores:
        if score.failure is not None:
            # OpenRLHF logs what is raised below its default level.
            logging.getLogger(__name__).warning("no reward: %s: %s", score.failure.kind, score.failure.detail)
            raise ScoreFailedError(score)
    values = [score.value for score in scores]
    rows = [logged_parts(score) for score in scores]
    if len(scores) == 1:
        return {"rewards": values[0], "scores": values[0], "extra_logs": rows[0]}
    return {"rewards": values, "scores": values, "extra_logs": {name: [row[name] for row in rows] for name in rows[0]}}


def _answer(query: str, prompt: str, strip: Sequence[str]) -> str:
    """Return the answer in a query, which is the prompt and the answer, with special tokens."""
    at = query.find(prompt)
    text = query[at + len(prompt) :] if at >= 0 else query
    while (marker := next((one for one in strip if text.endswith(one)), None)) is not None:
        text = text.removesuffix(marker)
    return text
