"""A reward as verl's `custom_reward_function`.

    reward.custom_reward_function.path=pkg://rewardsmith.integrations.verl_reward
    +reward.custom_reward_function.reward_kwargs.recipe=judge.toml:policy

verl calls it for one answer at a time, and has no value for "no score", so a failure is raised. verl's trainer then
leaves that rollout out of its group; see docs/integrations/verl.md. `verl_manager` scores whole groups.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.integrations.peer_rows import PeerColumns, ScoreFailedError, json_fields, load, logged_parts
from rewardsmith.runs.loaded_reward import LoadedReward
from rewardsmith.types import Prompt, Rollout, RolloutGroup, Score

COLUMNS = PeerColumns(answer=("ground_truth",), source=("data_source",))

_loaded: dict[str, LoadedReward] = {}
_lock = threading.Lock()


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, *, recipe: Any = None, **_: Any
) -> dict[str, float]:
    """Return the score of an answer and its parts.

    Args:
        data_source: the name of the data set.
        solution_str: the answer.
        ground_truth: what is right.
        extra_info: the question stands in its field `question`: verl does not hand over the prompt.
        recipe: `RECIPE.toml[:STAGE]`, a name or a table: whatever `rewardsmith.reward` takes.

    Raises:
        ScoreFailedError: the answer could not be scored.
        UserError: there is no recipe, or its reward compares answers with each other.
    """
    reward = reward_of(recipe)
    if reward.needs_whole_groups:
        raise UserError(
            f"the reward {plain(recipe)!r} compares the answers to a prompt with each other, and verl calls a function"
            " for one answer at a time: set reward.reward_manager.source=importlib,"
            " reward.reward_manager.name=GroupRewardManager and"
            " reward.reward_manager.module.path=pkg://rewardsmith.integrations.verl_manager"
        )
    prompt = verl_prompt(None, data_source, ground_truth, extra_info)
    scored = await reward.score_group(RolloutGroup(prompt, [Rollout(solution_str)]))
    return verl_table(scored.scores[0])


def verl_prompt(messages: Any, data_source: Any, ground_truth: Any, extra_info: Any) -> Prompt:
    """Return the prompt of a row of verl's data; without messages, it is the question in `extra_info`."""
    extra = json_fields(plain(extra_info)) if isinstance(extra_info, Mapping) else {}
    question = extra.get("question")
    row = {"ground_truth": plain(ground_truth), "data_source": str(data_source), "extra_info": extra}
    return COLUMNS.prompt((question if isinstance(question, str) else "") if messages is None else messages, row)


def verl_table(score: Score) -> dict[str, float]:
    """Return a score as verl's table; every row has the same keys, and a part that has no value is NaN in the logs."""
    if score.value is None:
        raise ScoreFailedError(score)
    return {**logged_parts(score), "score": score.value}


def reward_of(recipe: Any) -> LoadedReward:
    """Return the reward of a recipe, loaded once per process."""
    if not recipe:
        raise UserError(
            "verl has no reward to load: set +reward.custom_reward_function.reward_kwargs.recipe=RECIPE.toml[:STAGE]"
        )
    table = plain(recipe)
    key = json.dumps(table, sort_keys=True)
    with _lock:
        if key not in _loaded:
            _loaded[key] = load(table)
        return _loaded[key]


def plain(value: Any) -> Any:
    """Return settings of verl (OmegaConf) and columns of its data (numpy) as plain tables and lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else value
