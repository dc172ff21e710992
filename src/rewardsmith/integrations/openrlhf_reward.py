"""A reward as OpenRLHF's reward function: a file for `--reward.remote_url`.

    # reward.py
    from rewardsmith.integrations.openrlhf_reward import openrlhf_reward

    reward_func = openrlhf_reward({"type": "rule", "rule": "math"})

OpenRLHF calls it for one answer at a time, in a thread. It has no value for "no score", so a failure is raised:
OpenRLHF logs it, and the answer stays without a reward.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.integrations.peer_rows import PeerColumns, ScoreFailedError, load, logged_parts
from rewardsmith.types import Rollout, RolloutGroup, Score

_COLUMNS = PeerColumns(answer=("label",))

END_TOKENS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<|eom_id|>", "<|return|>", "<|eos|>",
    "<|pad|>", "</s>", "<s>", "<pad>", "<eos>", "<end_of_turn>", "[PAD]", "<｜end▁of▁sentence｜>",
)  # fmt: skip
"""End-of-sequence and padding tokens, as OpenRLHF leaves them at the end of a query."""

LEADING_TOKENS = re.compile(r"(?:\s|<[^<>\s]{1,40}>|\[PAD\])*")
"""What may stand before the prompt in a query: padding, and a begin-of-sequence token."""

RewardFunction = Callable[[Sequence[str], Sequence[str], Sequence[Any]], dict[str, Any]]


def openrlhf_reward(
    reward: Any,
    *,
    models: Mapping[str, Any] | None = None,
    source: str = "",
) -> RewardFunction:
    """Return `reward_func(queries, prompts, labels)` for OpenRLHF's `--reward.remote_url FILE.py`.

    Args:
        reward: whatever `rewardsmith.reward` takes: a table, a name, `RECIPE.toml[:STAGE]`, a function, an object.
        models: the models that its judges name.
        source: the source of all prompts, by which `route` chooses.
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
                _COLUMNS.prompt(prompt, {"label": label, "source": source}),
                [Rollout(answer_in_query(query, prompt, i))],
            )
            for i, (query, prompt, label) in enumerate(zip(queries, prompts, labels, strict=True))
        ]
        scores = [one.scores[0] for one in loaded.score_groups(groups)]
        for score in scores:
            if score.failure is not None:
                # OpenRLHF logs what is raised below its default level.
                logging.getLogger(__name__).warning("no reward: %s: %s", score.failure.kind, score.failure.detail)
                raise ScoreFailedError(score)
        return openrlhf_table(scores)

    return reward_func


def openrlhf_table(scores: Sequence[Score]) -> dict[str, Any]:
    """Return scores as OpenRLHF's table: a number for one answer, a list for several; every score has a value.

    The parts are `part/NAME`. One without a value is NaN: OpenRLHF needs the same names in all samples, and only logs
    them.
    """
    values: list[Any] = [score.value for score in scores]
    # OpenRLHF has `score`, `reward` and other entries of its own next to them.
    rows = [{f"part/{name}": value for name, value in logged_parts(score).items()} for score in scores]
    if len(scores) == 1:
        return {"rewards": values[0], "scores": values[0], "extra_logs": rows[0]}
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {"rewards": values, "scores": values, "extra_logs": {name: [row[name] for row in rows] for name in names}}


def answer_in_query(query: str, prompt: str, i: int = 0) -> str:
    """Return the answer of a query: what follows the prompt, without end-of-sequence and padding tokens."""
    at = query.find(prompt)
    before = LEADING_TOKENS.match(query, 0, max(0, at))
    if at < 0 or before is None or before.end() != at:
        raise UserError(
            f"query[{i}] does not begin with prompts[{i}], so that its answer is unknown: the prompt was cut off"
            " (raise --data.max_len), or the tokenizer changed it"
        )
    return without_end_tokens(query[at + len(prompt) :])


def without_end_tokens(text: str) -> str:
    """Return the text without `END_TOKENS` at its end; white space before them stays."""
    end = last = len(text)
    while True:
        while last and text[last - 1].isspace():
            last -= 1
        token = next((token for token in END_TOKENS if text.endswith(token, 0, last)), None)
        if token is None:
            return text[:end]
        end = last = last - len(token)
