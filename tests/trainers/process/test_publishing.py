"""What a run leaves behind: the process reward model as an ordinary Hugging Face folder, and as the start of others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rewardsmith.engines.protocol import Row
from tests.runs.processes import metrics, outcome, prepared, run
from tests.trainers.process.process_cases import ProcessWorld, alone
from tests.trainers.world import new_engine, steps

LORA = {"init": "tiny-llama", "lora": {"rank": 4}}


@pytest.mark.parametrize("table", [{"copy_of": "policy"}, LORA], ids=["full", "adapter"])
def test_a_published_model_is_an_ordinary_folder(table: dict[str, Any], tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path, {"prm": table})
    steps(alone(world), 2)
    engine = world.engine("prm")
    engine.publish(tmp_path / "prm")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "prm", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "prm")
    assert tokenizer.get_vocab() == engine.tokenizer.get_vocab()
    gaps = []
    for record in world.records[:2]:
        for rollout in record.scored.group.rollouts:
            prompt, tokens = engine.encode(record.scored.group.prompt), rollout.tokens
            with torch.no_grad():
                logits = plain(torch.tensor([[*prompt.tolist(), *tokens.tolist()]])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1)[range(len(tokens)), tokens.tolist()]
            row = [Row(prompt, tokens)]
            assert torch.allclose(engine.logprobs(row)[0], expected, atol=1e-5)
            gaps.append(float((engine.logprobs(row) - new_engine().logprobs(row)).abs().max()))
    assert max(gaps) > 0.01  # it has learned


# ---- whole runs ------------------------------------------------------------------------------------------------------

RECIPE = """
[models.policy]
init = "tiny-llama"

[models.prm]
copy_of = "policy"

[models.frozen]
copy_of = "policy"

[data.train]
type = "arithmetic"

[[stages]]
type = "process_model"
name = "alone"
model = "policy"
data = "train"
steps = 1
prompts_per_step = 2
rollouts_per_prompt = 3
sampling = { max_tokens = 6, temperature = 0.7 }
validation = { data = "train", every = 1, prompts = 2, rollouts_per_prompt = 2 }

[stages.reward]
type = "sum"
parts.answer = "digits:Digits"
parts.process = { type = "implicit", model = "prm", reference = "policy", learn = { optimizer = { lr = 1e-3 } } }

[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 2
prompts_per_step = 2
rollouts_per_prompt = 3
sampling = { max_tokens = 6 }
advantage = { type = "rloo", combine = "after" }
optimizer = { lr = 1e-3 }
kl = { coefficient = 0.1 }
validation = { data = "train", every = 1, prompts = 2, rollouts_per_prompt = 2 }

[stages.reward]
type = "sum"
parts.answer = "digits:Digits"

[stages.reward.parts.process]
type = "implicit"
model = "prm"
reference_model = "frozen"
update = "before"
trust.by = "nothing"
learn.optimizer = { lr = 1e-3 }
"""
ASLEEP = [f"models.{name}.offload=true" for name in ("policy", "prm", "frozen")]


def test_models_that_sleep_in_turns_do_the_same(tmp_path: Path) -> None:
    """Whoever is asked while asleep says so: each is awake when it writes, scores, is measured and learns."""
    folders = [prepared(tmp_path / name, RECIPE) for name in ("awake", "asleep")]
    for folder, changes in zip(folders, ([], ASLEEP), strict=True):
        status, said = run(folder, *changes)
        assert status == 0, said
    awake, asleep = (outcome(folder / "runs/small") for folder in folders)
    assert asleep["models"] == awake["models"]
    assert asleep["rollouts"] == awake["rollouts"]
    assert asleep["metrics"] == awake["metrics"]
    lines = metrics(folders[0] / "runs/small")
    assert {"models/prm/model.safetensors", "models/policy/model.safetensors"} <= set(awake["models"])
    # What the model is measured against is a copy: without it, what was learned could not be read any more.
    assert "models/frozen/model.safetensors" in awake["models"]
    assert any("validation/process/outcome" in line["metrics"] for line in lines)
    folder = folders[0] / "runs/small/models/prm"
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
