"""verl's FSDP engines with packed rows and the embedded engine's attention and head.

Rows lie end to end without padding. Log-probabilities are computed at the tokens of the responses alone, chunk by
chunk, so that the logits of a batch never exist. Neither needs flash-attn: without it verl takes one token at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForTokenClassification
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils import tensordict_utils as tu
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from rewardsmith.engines.embedded.attention import ATTENTION, PackedAttention, consecutive, set_attention_plan
from rewardsmith.engines.embedded.heads import Head

SCALAR = "rewardsmith_scalar"  # the model type of a scalar head, in verl's registry
# Models whose logits are the hidden states times a matrix, and nothing after that.
PLAIN_HEADS = {"llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "olmo2", "phi3", "smollm3"}
LOGITS_PER_CHUNK = 2**28


class PackedRows:
    """Sets the attention of the embedded engine up for each micro-batch, where the model uses it."""

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        """Let the rows see themselves alone; the plan stays for the backward pass."""
        if self.model_config.hf_config._attn_implementation == ATTENTION:  # type: ignore[attr-defined]
            starts = micro_batch["input_ids"].offsets()
            set_attention_plan(PackedAttention(consecutive(starts.diff().tolist()), starts.device))
        return super().prepare_model_inputs(micro_batch)  # type: ignore[misc]


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")
class LanguageEngine(PackedRows, FSDPEngineWithLMHead):
    """A language model that returns log-probabilities and entropies of the response tokens, 0 elsewhere."""

    def _build_model_optimizer(self) -> None:
        super()._build_model_optimizer()
        self._predicts_M = self._targets_M = torch.zeros(0, dtype=torch.int64)  # of the current micro-batch
        self._temperature, self._entropy, self._at_responses = 1.0, True, not self.use_ulysses_sp
        model: Any = getattr(self.module, "_fsdp_wrapped_module", self.module)
        self._has_own_head = self._at_responses and model.config.model_type in PLAIN_HEADS
        if self._has_own_head:  # in the place of logits the model then returns [1, M, 2]
            linear = model.get_output_embeddings()
            linear.forward = lambda hidden_1MD: self._token_logprobs(linear, hidden_1MD[0])[None]

    def _token_logprobs(self, linear: torch.nn.Linear, hidden_MD: Tensor) -> Tensor:
        head = Head(linear.weight, linear.bias)
        found = head.token_logprobs(hidden_MD, self._targets_M, temperature=self._temperature, entropy=self._entropy)
        return torch.stack(found, -1)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        """Compute outputs at the tokens before those of the responses alone."""
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        if self._at_responses:
            places_M = micro_batch["loss_mask"].values().nonzero().squeeze(-1)
            self._predicts_M, self._targets_M = places_M - 1, micro_batch["input_ids"].values()[places_M]
            self._temperature = float(micro_batch["temperature"])
            self._entropy = bool(tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False))
            inputs["logits_to_keep"] = self._predicts_M
        return inputs, arguments

    def prepare_model_outputs(self, output: Any, output_args: Any, micro_batch: TensorDict, **others: Any) -> Any:
        """Return them at all tokens, as verl does."""
        if not self._at_responses:
            return super().prepare_model_outputs(output, output_args, micro_batch, **others)
        found_M2 = output.logits[0]
        if not self._has_own_head:
            found_M2 = _from_logits(found_M2, self._targets_M, self._temperature)
        starts = micro_batch["input_ids"].offsets()
        found_N2 = found_M2.new_zeros(int(starts[-1]), 2).index_copy(0, self._predicts_M, found_M2)
        names = ("log_probs", "entropy") if self._entropy else ("log_probs",)
        return {name: torch.nested.nested_tensor_from_jagged(found_N2[:, i], starts) for i, name in enumerate(names)}


def _from_logits(logits_MV: Tensor, targets_M: Tensor, temperature: float) -> Tensor:
    """Return log-probability and entropy at each token, [M, 2]; the backward pass computes each chunk again."""

    def chunk_outputs(logits_CV: Tensor, targets_C: Tensor) -> Tensor:
        logp_CV = (logits_CV.float() / temperature).log_softmax(-1)
        chosen_C = logp_CV.gather(-1, targets_C[:, None]).squeeze(-1)
        return torch.stack([chosen_C, -(logp_CV.exp() * logp_CV).sum(-1)], -1)

    size = max(1, LOGITS_PER_CHUNK // logits_MV.shape[-1])
    starts = range(0, max(1, len(logits_MV)), size)  # one chunk even where no response has a token
    chunks = [(logits_MV[i : i + size], targets_M[i : i + size]) for i in starts]
    return torch.cat([checkpoint(chunk_outputs, *chunk, use_reentrant=False) for chunk in chunks])


@EngineRegistry.register(model_type=SCALAR, backend=["fsdp", "fsdp2"], device=["cuda", "npu"])
class ScalarHeadEngine(PackedRows, FSDPEngineWithValueHead):
    """A model with a scalar head that is read at every token, in the format of a sequence classifier.

    transformers gives the head of a token classifier a bias, which a sequence classifier has not: it stays 0.
    """

    def _build_module(self) -> Any:
        config = self.model_config.hf_config
        config.num_labels, config.classifier_dropout = 1, 0.0
        module, loaded = AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path, dtype=torch.float32, config=config, output_loading_info=True
        )
        torch.nn.init.zeros_(module.score.bias).requires_grad_(False)
        if "score.weight" in loaded["missing_keys"]:
            torch.nn.init.zeros_(module.score.weight)
        apply_monkey_patch(
            module,
            use_remove_padding=self.use_remove_padding,
            ulysses_sp_size=self.engine_config.ulysses_sequence_parallel_size,
        )
        if self.model_config.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable({"use_reentrant": False})
        return module
