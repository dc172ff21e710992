"""Which Hugging Face models the engine can run exactly, and how to reach their heads."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from rewardsmith.engines.embedded.attention import NAME, Packed, planned
from rewardsmith.engines.embedded.chat import may_end_with
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.errors import UserError

_LAYERS = {"full_attention", "sliding_attention"}


def max_length(config: Any) -> int:
    """Return the longest sequence that a model of this configuration reads."""
    return int(getattr(config, "max_position_embeddings", None) or 2**31)


def check(model: Any, name: str) -> None:
    """Refuse a model that would give other numbers here than in transformers.

    What the configuration tells is looked at first. Then a few tokens are run both ways, two sequences at a time here
    and one by one there: whatever an architecture does beyond attention as we know it shows in the difference.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - _LAYERS or getattr(config, "attention_chunk_size", None):
        strange = ", ".join(sorted(kinds - _LAYERS)) or "chunked attention"
        raise UserError(f"models.{name}: {config.model_type} has layers that the engine cannot run: {strange}")
    try:
        with torch.no_grad():
            off, windows = _compared(model)
    except Exception as error:  # an architecture may do anything that transformers allows
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"models.{name}: the engine cannot run a {config.model_type} model ({why})") from error
    if off > (1e-3 if model.dtype == torch.float32 else 0.1):
        raise UserError(
            f"models.{name}: {config.model_type} gives other numbers here than in transformers (off by {off:.2g} of the"
            " largest): its attention or head does something that the engine does not know"
        )
    slides = "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if slides and getattr(config, "sliding_window", None) and windows == {None}:
        # So few tokens fit into any window, so the comparison does not show it.
        raise UserError(
            f"models.{name}: {config.model_type} does not tell its attention about its window of"
            f" {config.sliding_window} tokens, so the engine cannot keep to it"
        )


def _compared(model: Any, length: int = 6) -> tuple[float, set[int | None]]:
    """Return the largest difference, as a share of the largest number, and the windows that layers asked for."""
    # Spread over the vocabulary: the first ones are special tokens, on which real models in bfloat16 round wildly.
    size = model.config.vocab_size
    stride = max(1, size // (2 * length))
    tokens = (stride * torch.arange(2 * length, device=model.device) + stride // 2).remainder(size)
    plan = Packed.apart([length, length], model.device)
    with planned(plan):
        hidden = model.base_model(input_ids=tokens[None], position_ids=plan.positions_N[None], use_cache=False)
    ours: Tensor = hidden.last_hidden_state[0]
    if model.get_output_embeddings() is not None:
        ours = head_of(model).logits(ours)
    theirs = torch.cat([_theirs(model, part) for part in tokens.view(-1, length)])
    return float((ours.float() - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6)), plan.windows


def _theirs(model: Any, tokens: Tensor) -> Tensor:
    model.set_attn_implementation("eager")
    try:
        if model.get_output_embeddings() is None:
            return torch.as_tensor(model.base_model(input_ids=tokens[None]).last_hidden_state[0].float())
        return torch.as_tensor(model(input_ids=tokens[None], use_cache=False).logits[0].float())
    finally:
        model.set_attn_implementation(NAME)


def head_of(model: Any) -> Head:
    """Return the head of a causal language model, with what its configuration does to the logits."""
    layer, config = model.get_output_embeddings(), model.config
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    return Head(layer.weight, getattr(layer, "bias", None), scale, getattr(config, "final_logit_softcapping", None))


def fuse_norms(model: Any) -> None:
    """On a GPU, let one kernel do what an RMS norm does in seven; a norm that would come out differently is left alone.

    Norms are memory-bound and many: four in each layer of a Qwen 3.
    """
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


def without_dropout(model: nn.Module) -> None:
    """Switch dropout off for good: sampled and trained log-probabilities must agree."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):  # a rate that is given to a function (OPT)
                setattr(module, name, 0.0)


def with_head(model: Any, head: Literal["language", "scalar"]) -> Any:
    """Return a model with the same backbone and another head; a new scalar head says 0 everywhere."""
    if head == "language":
        raise UserError("a model with a scalar head has no language model to copy")
    config = copy.deepcopy(model.config)
    config.num_labels = 1
    make = AutoModelForSequenceClassification.from_config
    other = make(config, attn_implementation=NAME)  # type: ignore[no-untyped-call]
    for parameter in other.parameters():  # not the buffers: rotary frequencies need all their digits
        parameter.data = parameter.data.to(model.dtype)
    other.to(model.device)
    other.base_model.load_state_dict(model.base_model.state_dict())
    nn.init.zeros_(other.score.weight)
    without_dropout(other)
    return other.train()


def settle_reading(model: Any, tokenizer: Any, arguments: Mapping[str, Any]) -> None:
    """Let everyone who loads a scalar head that begins here read it at the last token, and as it is.

    transformers passes over padding at the end of a text, and vLLM does not. So the configuration names no padding
    where a conversation may end with it, as with an end token that is used as padding; with none named, transformers
    reads the last token too. A head that was trained elsewhere is read as its folder says, here and when it is saved.

    Args:
        model: with a scalar head.
        tokenizer: of the model, with a padding token.
        arguments: of the chat template.
    """
    if bool(model.score.weight.any()):
        return
    padding = None if may_end_with(tokenizer, tokenizer.pad_token_id, arguments) else tokenizer.pad_token_id
    model.config.pad_token_id = model.config.get_text_config().pad_token_id = padding
    model.config.problem_type = "regression"  # pipelines and servers would make a probability of the number
