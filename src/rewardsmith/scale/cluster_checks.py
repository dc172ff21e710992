"""What becomes of each setting of a model on a cluster, and what is refused before Ray starts. Imports no verl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rewardsmith.config import Chosen
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import Problem
from rewardsmith.masking import shown
from rewardsmith.scale.scale_settings import ScaleSettings

MODEL_SETTINGS: dict[str, str] = {
    "init": "verl",
    "copy_of": "rewardsmith",  # the weights are written to the run folder, and the copy starts there
    "head": "rewardsmith",  # it decides which kind of worker
    "device": "refused",  # scale.device says where models run
    "dtype": "verl",
    "lora": "verl",
    "chat": "rewardsmith",  # the driver has the tokenizer
    "template": "rewardsmith",
    "rows": "verl",
    "tokens_per_pass": "verl",
    "recompute": "verl",
    "offload": "refused",  # unless scale.offload moves the learner too
}
"""Whether a setting is one of verl's, is honoured by our part, or is refused when it says what a cluster cannot do."""


def model_problems(models: Mapping[str, Chosen], scale: ScaleSettings) -> Iterator[Problem]:
    """Yield a problem for each setting of a model that a cluster cannot honour."""
    for name, chosen in models.items():
        model = chosen.settings
        if not isinstance(model, ModelSettings):
            continue
        where = f"models.{name}"
        if model.device not in ("auto", scale.device):
            message = f'scale.device = "{scale.device}" says where models run on a cluster: leave it out'
            yield Problem(f"{where}.device", message, shown(model.device))
        if scale.device == "cpu" and model.dtype == "bfloat16":
            yield Problem(f"{where}.dtype", 'a cluster with scale.device = "cpu" computes in float32', '"bfloat16"')
        if model.offload and not scale.offload:
            message = "on a cluster, scale.offload = true moves the models that learn: set it too"
            yield Problem(f"{where}.offload", message, "true")
        if model.recompute == "offload":
            message = "activations stay on the GPUs of a cluster: set recompute = true"
            yield Problem(f"{where}.recompute", message, '"offload"')
        if model.lora is not None and model.head == "scalar":
            message = "a model with a scalar head trains all its weights on a cluster: leave out lora"
            yield Problem(f"{where}.lora", message)
        if model.lora is not None and model.lora.base != "dtype":
            yield Problem(f"{where}.lora.base", "weights are not quantised on a cluster: leave it out", '"int8"')
