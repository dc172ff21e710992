"""Architectures beyond the tiny ones: run exactly as transformers runs them, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Sampling
from rewardsmith.errors import UserError

from .running import answer, ask, hf_logprobs, open_config, random_rows, tokens_of

MIXED = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
OTHERS: dict[str, dict[str, Any]] = {
    "cohere2": {**MIXED, "num_key_value_heads": 2, "logit_scale": 0.0625},
    "granite": {"logits_scaling": 8.0, "embedding_multiplier": 2.0},
    "phi3": {"sliding_window": 16},
    "gpt_neox": {},
    "qwen3_moe": EXPERTS,
    "deepseek_v3": {**LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}


def assert_as_transformers(engine: EmbeddedEngine, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    sampling = Sampling(temperature=0, max_tokens=24)
    texts = ["7", "a text that is longer than the window"]
    rows = random_rows(0, [(3, 5), (3, 30), (20, 4)])
    for row, found in zip(rows, engine.logprobs(rows), strict=True):
        with torch.no_grad():
            torch.testing.assert_close(found[: len(row.response)], hf_logprobs(model, row), atol=1e-4, rtol=1e-4)
    for text, written in zip(texts, tokens_of(answer(engine, texts, sampling)), strict=True):
        ids = torch.from_numpy(engine.encode(ask(text)).astype(np.int64))[None]
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        assert written[0] == expected[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures_are_run_as_transformers_runs_them(kind: str, tmp_path: Path) -> None:
    assert_as_transformers(open_config(kind, tmp_path, **OTHERS[kind]), tmp_path)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("qwen2_moe", {**EXPERTS, **MIXED, "shared_expert_intermediate_size": 32}),
        ("phimoe", {"num_local_experts": 4, "sliding_window": 16}),
    ],
)
def test_a_window_that_attention_does_not_get_is_found_or_refused(
    kind: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    try:
        engine = open_config(kind, tmp_path, use_sliding_window=True, **shape)
    except UserError:
        return
    assert_as_transformers(engine, tmp_path)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4}),
        ("bloom", {"n_layer": 2, "n_head": 4}),
        ("mamba", {}),
        ("llama4_text", {"attention_chunk_size": 8}),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}),
        ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256}),
        ("gpt_oss", {**MIXED, "num_local_experts": 4}),
    ],
)
def test_an_architecture_that_cannot_be_run_exactly_is_refused(
    kind: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        open_config(kind, tmp_path, **shape)
