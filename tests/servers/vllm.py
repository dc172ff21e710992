"""Tiny models in folders, and the settings with which vLLM serves them on a CPU."""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rewardsmith.engines.embedded.loading import save_folder
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.managed import ManagedModel
from rewardsmith.engines.model_settings import ManagedSettings

LENGTH = 8192
"""Positions of the models here: a judge's prompt has more characters than tiny models have positions."""

# Room for all prompts at once: on a CPU, vLLM 0.32 dies of a seeded question whose prompt is read in several pieces.
ARGUMENTS = ["--dtype", "float32", "--enforce-eager", "--max-num-batched-tokens", "16384"]

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


def table(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return the settings of a `[models.NAME]` table."""
    return {
        "command": "vllm",
        "model": str(folder),
        "python": os.environ["REWARDSMITH_SERVER_PYTHON"],
        "arguments": ARGUMENTS,
        "environment": ENVIRONMENT,
        "startup_timeout": 400.0,
        **settings,
    }


def managed(folder: Path, logs: Path, told: list[str], **settings: Any) -> ManagedModel:
    return ManagedModel(ManagedSettings(**table(folder, **settings)), name="judge", folder=logs, log=told.append)


def language_model(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Write a language model with random weights."""
    model, tokenizer = make_tiny("tiny-llama", seed=0)
    model.config.max_position_embeddings = tokenizer.model_max_length = LENGTH
    save_folder(model, tokenizer, folder)
    return model, tokenizer


def classifier(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Write a sequence-classification model with one output and random weights."""
    language, tokenizer = make_tiny("tiny-llama", seed=1)
    config = language.config
    config.num_labels = 1
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        model.score.weight.mul_(50)  # so that outputs differ by more than rounding
    save_folder(model, tokenizer, folder)
    return model, tokenizer
