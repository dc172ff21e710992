"""Hugging Face models: which ones the engine can run exactly, their heads, and LoRA adapters.

peft is imported where an adapter is created: that takes seconds, and most models have none.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from rewardsmith.engines.embedded.attention import ATTENTION, PackedAttention, attention_plan, consecutive
from rewardsmith.engines.embedded.chat_template import may_end_with
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.engines.embedded.int8_linear import dequantise_layers, is_quantisable
from rewardsmith.engines.embedded.recompute import run_layer
from rewardsmith.engines.model_settings import LoraSettings
from rewardsmith.errors import UserError, listing, nearest

Backbone = Callable[[Tensor, Tensor], Tensor]
"""Token ids and positions, both [N], to hidden states [N, D]; attention follows the current plan."""
_LAYERS = {"full_attention", "sliding_attention"}


def max_length(config: Any) -> int:
    """Return the longest sequence that a model of this configuration reads."""
    return int(getattr(config, "max_position_embeddings", None) or 2**31)


def check_architecture(model: Any, backbone: Backbone, name: str) -> None:
    """Refuse a model that would give other numbers here than in transformers: a few tokens are run both ways."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - _LAYERS or getattr(config, "attention_chunk_size", None):
        unknown = ", ".join(sorted(kinds - _LAYERS)) or "chunked attention"
        raise UserError(f"models.{name}: {config.model_type} has layers that the engine cannot run: {unknown}")
    try:
        with torch.no_grad():
            difference, windows = _compare(model, backbone)
    except Exception as error:  # an architecture may do anything that transformers allows
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"models.{name}: the engine cannot run a {config.model_type} model ({why})") from error
    if difference > (1e-3 if model.dtype == torch.float32 else 0.1):
        why = f"other numbers here than in transformers (off by {difference:.2g} of the largest)"
        raise UserError(f"models.{name}: the engine cannot run a {config.model_type} model ({why})")
    slides = "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if slides and getattr(config, "sliding_window", None) and windows == {None}:
        # So few tokens fit into any window, so the comparison does not show it.
        why = f"its window of {config.sliding_window} tokens is not passed to its attention function"
        raise UserError(f"models.{name}: the engine cannot run a {config.model_type} model ({why})")


def _compare(model: Any, backbone: Backbone, length: int = 6) -> tuple[float, set[int | None]]:
    """Return the largest difference, as a share of the largest number, and the windows that layers used."""
    # Spread over the vocabulary: the first ones are special tokens, on which real models in bfloat16 round wildly.
    size = model.config.vocab_size
    stride = max(1, size // (2 * length))
    tokens = (stride * torch.arange(2 * length, device=model.device) + stride // 2).remainder(size)
    plan = PackedAttention(consecutive([length, length]), model.device)
    with attention_plan(plan):
        ours = backbone(tokens, plan.positions_N)
    is_language = model.get_output_embeddings() is not None
    if is_language:
        ours = head_of(model).logits(ours)
    model.set_attn_implementation("eager")
    try:
        run = partial(model, use_cache=False) if is_language else model.base_model
        outputs = [run(input_ids=part[None]) for part in tokens.view(-1, length)]
    finally:
        model.set_attn_implementation(ATTENTION)
    theirs = torch.cat([(o.logits if is_language else o.last_hidden_state)[0].float() for o in outputs])
    return float((ours.float() - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6)), plan.windows


def fuse_norms(model: Any) -> None:
    """On a GPU, let one kernel do what an RMS norm does in seven; a norm that would come out differently stays."""
    if model.device.type != "cuda":
        return
    for module in model.modules():
        weight = getattr(module, "weight", None)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not type(module).__name__.endswith("RMSNorm") or weight is None or eps is None or weight.dim() != 1:
            continue
        with torch.no_grad():
            probe = torch.linspace(-2, 3, 4 * len(weight), device=weight.device, dtype=weight.dtype).view(4, -1)
            fused = partial(_rms_norm, module, float(eps))
            if torch.allclose(fused(probe), module(probe), rtol=2e-2 if weight.dtype != torch.float32 else 1e-5):
                module.forward = fused


def _rms_norm(module: Any, eps: float, hidden_states: Tensor) -> Tensor:
    return nn.functional.rms_norm(hidden_states, module.weight.shape, module.weight, eps)


def use_run_layer(model: Any) -> bool:
    """Let transformers run the layers of a model by `run_layer`; return whether its architecture allows that."""
    if not model.supports_gradient_checkpointing:
        return False
    # Before transformers 5.23 it has the second name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module._gradient_checkpointing_func = run_layer
    return True


def disable_dropout(model: nn.Module) -> None:
    """Switch dropout off for good: sampled and trained log-probabilities must agree."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):  # a rate that is passed to a function (OPT)
                setattr(module, name, 0.0)


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the parameters, not the buffers: rotary frequencies need float32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


# ---- heads -----------------------------------------------------------------------------------------------------------


def head_of(model: Any) -> Head:
    """Return the head of a causal language model, with what its configuration does to the logits."""
    layer, config = model.get_output_embeddings(), model.config
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    return Head(layer.weight, getattr(layer, "bias", None), scale, getattr(config, "final_logit_softcapping", None))


def with_scalar_head(model: Any) -> Any:
    """Return a model with the same backbone and a new scalar head, which gives 0 everywhere."""
    config = copy.deepcopy(model.config)
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        other = AutoModelForSequenceClassification.from_config(config, attn_implementation=ATTENTION)  # type: ignore[no-untyped-call]
    cast_parameters(other, model.dtype)
    other.to(model.device)
    other.base_model.load_state_dict(model.base_model.state_dict())
    nn.init.zeros_(other.score.weight)
    disable_dropout(other)
    return other.train()


def configure_scalar_head(model: Any, tokenizer: Any, arguments: Mapping[str, Any]) -> None:
    """Make every program that loads a new scalar head read it at the last token, and as it is.

    transformers skips padding at the end of a text, and vLLM does not. So the configuration names no padding token
    where a conversation may end with it. A head that was trained elsewhere is read as its folder says.
    """
    if bool(model.score.weight.any()):
        return
    padding = None if may_end_with(tokenizer, tokenizer.pad_token_id, arguments) else tokenizer.pad_token_id
    model.config.pad_token_id = model.config.get_text_config().pad_token_id = padding
    model.config.problem_type = "regression"  # pipelines and servers would apply a sigmoid to the number


# ---- LoRA ------------------------------------------------------------------------------------------------------------


def attach_adapter(model: Any, settings: LoraSettings, name: str) -> Any:
    """Return the model with a fresh adapter, which changes nothing yet; only the adapter is trainable."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft's annotation says int; it divides by the rank
        target_modules=settings.targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM" if model.get_output_embeddings() is not None else "SEQ_CLS",
    )
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        # Its first factor is random: it must not depend on what was drawn before, or a run could not be repeated.
        with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(zlib.crc32(name.encode()))
            warnings.simplefilter("ignore")  # peft warns of what it corrects by itself, such as GPT-2's layout
            adapted = get_peft_model(model, config)
    except Exception as error:  # noqa: BLE001 a pattern that is invalid, or targets that are not there
        raise UserError(f"models.{name}.lora.targets = {settings.targets!r}: {error}") from None
    modules = {module.rpartition(".")[2] for module in adapted.targeted_module_names}
    for target in settings.targets if isinstance(settings.targets, list) else ():
        if target.rpartition(".")[2] not in modules:
            known = f"{nearest(target, modules)} Known: {listing(modules)}"
            raise UserError(f"models.{name}.lora.targets: the model has no module {target!r}.{known}")
    if model.get_output_embeddings() is not None and hasattr(model.get_output_embeddings(), "lora_A"):
        raise UserError(f"models.{name}.lora.targets: the output layer cannot have an adapter; leave it out")
    return adapted


def check_base(model: Any, settings: LoraSettings, place: str) -> None:
    """Raise a `UserError` for a model of which nothing can be stored in 8 bits."""
    if settings.base == "int8" and not any(map(is_quantisable, model.base_model.modules())):
        kind = model.config.model_type
        raise UserError(f'{place}.base = "int8": a {kind} model has no ordinary linear layers: leave it out')


def check_trained_adapter(settings: LoraSettings, place: str) -> None:
    """Raise a `UserError` for a trained adapter that is missing, or of another rank or alpha."""
    if settings.init is None:
        return
    try:
        trained = json.loads((Path(settings.init) / "adapter_config.json").read_text(encoding="utf-8"))
        values = {"rank": trained["r"], "alpha": trained["lora_alpha"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{place}.init = {settings.init!r}: no peft adapter can be read there ({error!r})") from None
    for setting, value in values.items():
        if value != getattr(settings, setting):
            raise UserError(
                f"{place}.init = {settings.init!r} was trained with {setting} = {value}: set {place}.{setting} to it"
            )


def base_of(model: Any) -> Any:
    """Return the Hugging Face model inside a peft model; its layers carry the adapter."""
    return model.base_model.model if _is_adapted(model) else model


def merge_adapter(model: Any) -> Any:
    """Return a copy of the model, its adapter merged into the weights; that is done in host memory.

    Under 8-bit weights it is merged into what they stand for, since that is the model that was trained.
    """
    if not _is_adapted(model):
        return copy.deepcopy(model)
    on_host = {
        id(tensor): nn.Parameter(host, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else host
        for tensor in (*model.parameters(), *model.buffers())
        for host in [tensor.detach().to("cpu", copy=True)]
    }
    other = copy.deepcopy(model, on_host)
    dequantise_layers(other)
    return other.merge_and_unload()


def adapter_is_fresh(model: Any) -> bool:
    """Whether an adapter changes nothing yet: the second factor of each product is still zero."""
    return not any(bool(p.any()) for name, p in model.named_parameters() if ".lora_B." in name)


def _is_adapted(model: Any) -> bool:
    peft = sys.modules.get("peft")  # where nothing has imported peft, no model is one of peft's
    return peft is not None and isinstance(model, peft.PeftModel)
