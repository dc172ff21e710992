"""Settings of a stage that do not go together are refused before a model is loaded."""

from typing import Any

import pytest

from rewardsmith.errors import RecipeError
from tests.trainers.world import policy_stage


def problem(**changes: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        policy_stage(**changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"advantage": "gae"}, 'the advantage "gae" needs a critic: critic = { model ='),
        ({"critic": {"model": "critic"}}, 'the advantage "grpo" has no use for a critic'),
        ({"advantage": "remax", "critic": {"model": "critic"}}, 'the advantage "remax" has no use for a critic'),
        ({"advantage": {"type": "remax", "combine": "after"}}, 'has one baseline: use combine = "before"'),
        (
            {"advantage": {"type": "gae", "combine": "after"}, "critic": {"model": "critic"}},
            'has one baseline: use combine = "before"',
        ),
        ({"sampling": {"temperature": 0.0}}, "greedy answers are all alike"),
        ({"sampling": {"max_tokens": 4, "min_tokens": 5}}, "min_tokens is 5, more than max_tokens = 4"),
        ({"mini_batches": 5, "prompts_per_step": 4}, "5 mini_batches of 4 groups: some would be empty"),
        ({"overlong": {"buffer": 9}, "sampling": {"max_tokens": 8}}, "overlong.buffer = 9 is more than sampling.max"),
        ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, "k1 in the loss has no gradient but noise"),
        ({"select": {"lowest": 1.0, "highest": 0.0}}, "no group would pass"),
        ({"kl": {"coefficient": -0.1}}, "greater than or equal to 0"),
        ({"rollouts_per_prompt": 0}, "greater than or equal to 1"),
        ({"critic": {"model": "critc"}, "advantage": "gae"}, 'Did you mean "critic"?'),
        ({"advantage": {"combine": "after"}, "overlong": {"buffer": 2}}, "would scale the penalty for length or KL"),
        (
            {"advantage": {"combine": "after"}, "kl": {"coefficient": 0.1, "place": "reward"}},
            "would scale the penalty for length or KL",
        ),
        ({"kl": {"reference": "other"}}, "reference is set, but coefficient is 0"),
        ({"kl": {"place": "both"}}, 'place is "both", but coefficient is 0'),
        ({"kl": {"coefficient": 0.1, "reward_coefficient": 0.1}}, 'are for place = "both"'),
        ({"kl": {"coefficient": 0.1, "place": "reward", "reward_estimator": "k3"}}, 'are for place = "both"'),
        ({"kl": {"coefficient": 0.1, "place": "both", "estimator": "k1"}}, "k1 in the loss has no gradient but noise"),
        (
            {"advantage": {"combine": "after"}, "kl": {"coefficient": 0.1, "place": "both"}},
            "would scale the penalty for length or KL",
        ),
        ({"overlong": {"buffer": 4, "limit": 9}, "sampling": {"max_tokens": 8}}, "no answer is that long"),
        ({"overlong": {"buffer": 5, "limit": 4}}, "overlong.buffer = 5 is more than overlong.limit = 4"),
        ({"importance": {}, "old_logprobs": "sampler"}, "importance weights need the learner's"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_remedy(changes: dict[str, Any], words: str) -> None:
    assert words in problem(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": "gae", "critic": {"model": "critic"}},
        {"advantage": "remax", "rollouts_per_prompt": 1},
        {"mini_batches": 4, "prompts_per_step": 4},
        {"overlong": {"buffer": 8}, "sampling": {"max_tokens": 8}},
        {"kl": {"coefficient": 0.1, "estimator": "k1", "unbiased": True}},
        {"kl": {"coefficient": 0.1, "estimator": "k1", "place": "reward"}},
        {"kl": {"coefficient": 0.1, "place": "both", "reward_coefficient": 0.2, "reward_estimator": "k3"}},
        {"overlong": {"buffer": 2, "limit": 4}},
    ],
)
def test_what_goes_together_is_accepted(changes: dict[str, Any]) -> None:
    policy_stage(**changes)


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo", "opo", "reinforce_plus_plus_baseline"])
def test_an_estimator_that_compares_siblings_needs_some(advantage: str) -> None:
    assert "rollouts_per_prompt" in problem(advantage=advantage, rollouts_per_prompt=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": "gae", "critic": {"model": "other"}},  # a language model: its values would all be 0
        {"advantage": "gae", "critic": {"model": "policy"}},
        {"model": "critic"},  # a scalar head cannot write
        {"kl": {"coefficient": 0.1, "reference": "policy"}},  # the distance from itself is 0
        {"kl": {"coefficient": 0.1, "reference": "critic"}},
        {"select": {"min_groups": 5}},  # more than prompts_per_step: no step would ever update
        {"importance": {"floor": 3.0, "cap": 2.0}},
    ],
    ids=str,
)
def test_a_model_in_the_wrong_place_and_bounds_that_nothing_meets_are_refused(changes: dict[str, Any]) -> None:
    assert problem(**changes)
