"""Whole runs with process reward models: offloaded models give the same results, which are Hugging Face folders."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.runs.processes import metrics, outcome, prepared, run

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
OFFLOADED = [f"models.{name}.offload=true" for name in ("policy", "prm", "frozen")]


@pytest.mark.slow
def test_offloaded_models_give_the_same(tmp_path: Path) -> None:
    folders = [prepared(tmp_path / name, RECIPE) for name in ("loaded", "offloaded")]
    for folder, changes in zip(folders, ([], OFFLOADED), strict=True):
        status, output = run(folder, *changes)
        assert status == 0, output
    loaded, offloaded = (outcome(folder / "runs/small") for folder in folders)
    for what in ("models", "rollouts", "metrics"):
        assert offloaded[what] == loaded[what]
    lines = metrics(folders[0] / "runs/small")
    assert {"models/prm/model.safetensors", "models/policy/model.safetensors"} <= set(loaded["models"])
    # What the model is measured against is a copy: without it, what was learned could not be read any more.
    assert "models/frozen/model.safetensors" in loaded["models"]
    assert any("validation/process/outcome" in line["metrics"] for line in lines)
    folder = folders[0] / "runs/small/models/prm"
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
