"""The forward pass of Llama-like decoders, on the weights of a Hugging Face model.

One function serves prefill, decoding and learning: tokens lie end to end, and the attention plan knows which see which.
Norm, rotary embedding and gated unit are one kernel each, and a residual is added where it is normed.

    x = embed(tokens)
    for each layer:
        x, h = x + last, norm(x + last)
        q, k, v = W_q h, W_k h, W_v h;  q, k = rotary(norm q), rotary(norm k)   (the norm only in Qwen3)
        x, h = x + W_o attention(q, k, v), norm(…)
        last = W_down (silu(W_gate h) · W_up h)
    norm(x + last)

Other architectures run in their own code, with our attention function (see `architectures`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rewardsmith.engines.embedded.attention import AttentionLayer, attend
from rewardsmith.engines.embedded.joined_linear import JoinedLinear, gated_mlp
from rewardsmith.engines.embedded.kernels.norms import add_rms_norm
from rewardsmith.engines.embedded.kernels.rotary import rotate
from rewardsmith.engines.embedded.recompute import recomputes, run_layer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def why_general(config: Any) -> str | None:
    """Return why a model of this configuration needs its own forward pass; None if it is one of ours."""
    if config.model_type not in FAMILIES:
        return f"{config.model_type} is none of {', '.join(FAMILIES)}"
    return None if config.hidden_act == "silu" else f"its activation is {config.hidden_act}, and not silu"


class Decoder:
    """The backbone of a model of one of the `FAMILIES`; adapters on its linear layers are applied."""

    def __init__(self, backbone: Any) -> None:
        self._backbone = backbone
        self._layers = [DecoderLayer(layer, backbone.config) for layer in backbone.layers]
        self._address = 0  # of a weight when weights were joined last

    def forward(self, tokens_N: Tensor, positions_N: Tensor) -> Tensor:
        """Return hidden states [N, D]."""
        backbone = self._backbone
        if self._address != (address := backbone.layers[0].self_attn.o_proj.weight.data_ptr()):
            self._address = address
            for layer in self._layers:
                layer.join()
        residual_ND: Tensor = backbone.embed_tokens(tokens_N)
        cos_1ND, sin_1ND = backbone.rotary_emb(residual_ND, position_ids=positions_N[None])
        last_ND: Tensor | None = None
        for layer in self._layers:
            if last_ND is not None and recomputes():  # the layer then keeps one input, and not two
                residual_ND, last_ND = residual_ND + last_ND, None
            residual_ND, last_ND = run_layer(layer.forward, residual_ND, last_ND, cos_1ND[0], sin_1ND[0])
        hidden_ND, _ = add_rms_norm(residual_ND, last_ND, *_norm(backbone.norm))
        return hidden_ND

    def release(self) -> None:
        """Hold no weights, which are about to be moved; the next pass joins them again."""
        self._address = 0
        for layer in self._layers:
            layer.release()


class DecoderLayer:
    """One layer: attention, then the gated unit."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention = layer.self_attn
        self._layer, self._attention, self._mlp = layer, attention, layer.mlp
        self._qkv = JoinedLinear(attention, ("q_proj", "k_proj", "v_proj"))
        self._gate_up = JoinedLinear(layer.mlp, ("gate_proj", "up_proj"))
        window = config.sliding_window if config.model_type == "mistral" else getattr(attention, "sliding_window", None)
        self._place = AttentionLayer(int(attention.layer_idx), float(attention.scaling), window, None)

    def forward(
        self, residual_ND: Tensor, last_ND: Tensor | None, cos_ND: Tensor, sin_ND: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream, and what this layer adds to it last."""
        attention, mlp = self._attention, self._mlp
        hidden_ND, residual_ND = add_rms_norm(residual_ND, last_ND, *_norm(self._layer.input_layernorm))
        q_NHD, k_NKD, v_NKD = (x.view(len(x), -1, attention.head_dim) for x in self._qkv(hidden_ND))
        q_NHD, k_NKD = rotate(q_NHD, k_NKD, cos_ND, sin_ND, *_head_norms(attention))
        out_NHD = attend(self._place, q_NHD, k_NKD, v_NKD)
        added_ND = attention.o_proj(out_NHD.flatten(1))
        hidden_ND, residual_ND = add_rms_norm(residual_ND, added_ND, *_norm(self._layer.post_attention_layernorm))
        return residual_ND, gated_mlp(self._gate_up, mlp.down_proj, hidden_ND)

    def join(self) -> None:
        """Join weights with the same input."""
        self._qkv.join()
        self._gate_up.join()

    def release(self) -> None:
        """Hold no joined weights."""
        self._qkv.release()
        self._gate_up.release()


def _norm(module: Any) -> tuple[Tensor, float]:
    return module.weight, float(module.variance_epsilon)


def _head_norms(attention: Any) -> tuple[Tensor | None, Tensor | None, float]:
    if not hasattr(attention, "q_norm"):
        return None, None, 0.0
    return attention.q_norm.weight, attention.k_norm.weight, float(attention.q_norm.variance_epsilon)
