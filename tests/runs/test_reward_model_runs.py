"""A reward model is trained and then used in one run; killed in between or inside, it ends as if never interrupted."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.processes import Strike, assert_same, outcome, prepared, run, uninterrupted

pytestmark = pytest.mark.slow

WORLD = '''
import random
from rewardsmith import Message, Prompt
from rewardsmith.types import Preference


class Digits:
    """Of two answers the one with more digits is better."""

    def __init__(self, *, items: int = 30):
        self.items = items

    def prompts(self, seed):
        yield from (preference.prompt for preference in self.preferences(seed))

    def preferences(self, seed):
        rng = random.Random(seed)
        for i in range(self.items):
            texts = ["".join(rng.choice("12ab ") for _ in range(6)) for _ in range(2)]
            texts.sort(key=lambda text: -sum(c.isdigit() for c in text))
            yield Preference(Prompt(f"p{i}", [Message("user", f"{rng.randint(1, 9)}?")]), *texts)
'''

RECIPE = """
title = "a reward model and its policy"
cache = ""

[models.policy]
init = "tiny-llama"

[models.preference]
init = "tiny-llama"
head = "scalar"

[data.sums]
type = "arithmetic"

[data.pairs]
type = "world:Digits"

[[stages]]
type = "reward_model"
model = "preference"
data = "pairs"
epochs = 2
batch_size = 8
optimizer = { lr = 3e-3, schedule = "cosine", warmup = 2 }
validation = { data = "pairs", every = 3, items = 20 }
save = { every = 2 }

[[stages]]
type = "policy"
model = "policy"
data = "sums"
steps = 4
prompts_per_step = 2
rollouts_per_prompt = 4
sampling = { max_tokens = 6 }
reward = { type = "classifier", model = "preference" }
optimizer = { lr = 2e-3 }
validation = { data = "sums", every = 2, prompts = 2 }
save = { every = 2 }
"""

LEARN = "rewardsmith.engines.embedded.learner:Learner.step"
WRITE = "rewardsmith.engines.embedded.engine:write_tensors"
RATE = "rewardsmith.engines.embedded.chat_model:EmbeddedRater.rate"
FINISH = "rewardsmith.runs.lineage:Lineage.end"

VARIANTS = {
    "full": [],
    "lora": [('init = "tiny-llama"\nhead', 'init = "tiny-llama"\nlora = { rank = 4 }\nhead')],
    "copy": [('init = "tiny-llama"\nhead', 'copy_of = "policy"\nhead')],
}
MOMENTS = [
    Strike(LEARN, 3),  # inside the reward model's stage, one step after a checkpoint
    Strike(WRITE, 1),  # while the next one is written
    Strike(FINISH, 1),  # between the two stages
    Strike(RATE, 6),  # while the policy's answers are rated
    Strike(LEARN, 3),  # while the policy learns
]


def folder_of(path: Path, variant: str) -> Path:
    recipe = RECIPE
    for before, after in VARIANTS[variant]:
        assert before in recipe
        recipe = recipe.replace(before, after)
    folder = prepared(path, recipe)
    (folder / "world.py").write_text(WORLD, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What comes of each variant without an interruption."""
    return uninterrupted(folder_of, tmp_path_factory)


def test_the_policy_is_rewarded_by_what_was_trained(expected: Callable[[str], dict[str, Any]]) -> None:
    whole = expected("full")
    lines = [line for line in whole["metrics"] if line["stage"] == "reward_model"]
    assert [line["step"] for line in lines] == list(range(9))  # two passes over 30 pairs, 8 at a time
    assert lines[0]["metrics"]["validation/undecided"] == 1  # the head begins at zero
    assert lines[-1]["metrics"]["validation/accuracy"] > 0.6
    first = next(line["metrics"] for line in whole["metrics"] if line["stage"] == "policy" and line["step"] == 1)
    assert first["reward/spread"] > 0
    assert first["models/preference/calls"] > 0
    assert "reward/accuracy" not in first  # its numbers only compare answers: none of them means right
    held_out = [name for line in whole["metrics"] if line["stage"] == "policy" for name in line["metrics"]]
    assert "validation/mean@1" in held_out
    assert "validation/pass@1" not in held_out
    config = json.loads(whole["models"]["models/preference/config.json"])
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert "models/policy/model.safetensors" in whole["models"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_inside_and_between_the_stages(
    variant: str, tmp_path: Path, expected: Callable[[str], dict[str, Any]]
) -> None:
    folder = folder_of(tmp_path, variant)
    for moment in MOMENTS if variant == "full" else MOMENTS[::2]:
        status, output = run(folder, strikes=[moment])
        assert status == -signal.SIGKILL, f"{moment} was not reached:\n{output}"
    status, output = run(folder)
    assert status == 0, output
    assert_same(outcome(folder / "runs/small"), expected(variant))
