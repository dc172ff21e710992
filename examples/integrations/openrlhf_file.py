"""A reward of rewardsmith for OpenRLHF: `openrlhf.cli.train_ppo_ray --reward.remote_url openrlhf_file.py …`."""

from rewardsmith.integrations.openrlhf_reward import openrlhf_reward

reward_func = openrlhf_reward(
    {
        "type": "sum",
        "parts": {
            "answer": {"type": "rule", "rule": "math"},
            "short": {"type": "rule", "rule": {"type": "length", "max_length": 200}, "weight": 0.1},
        },
    }
)
