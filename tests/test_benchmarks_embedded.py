"""The benchmark of the embedded engine counts and groups what it says, and shows what could not be measured."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SIZES = {"prompts": 2, "rollouts": 3, "prompt_tokens": 4, "new_tokens": 8, "steps": 1, "vocabulary": 100}


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("embedded")


def test_flops_of_an_update_are_those_that_torch_counts(embedded: ModuleType) -> None:
    config = embedded.llama(hidden=32, layers=2, heads=4, kv_heads=2, ffn=64, vocabulary=50)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    rows, tokens = 3, 8
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(rows, tokens, dtype=torch.long)).logits.sum().backward()
    norms = sum(p.numel() for p in model.parameters() if p.dim() == 1)
    acausal = 6 * 2 * 32 * rows * tokens**2  # the half of attention that a causal mask hides
    assert (
        embedded.update_flops(config, rows, tokens) == counter.get_total_flops() - acausal + 6 * norms * rows * tokens
    )


@pytest.mark.parametrize(
    ("device", "dtype", "teraflops"),
    [
        ("NVIDIA H200", "bfloat16", 989),
        ("NVIDIA H100 PCIe", "bfloat16", None),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989),
        ("NVIDIA L40S", "bfloat16", 362),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165),
        ("NVIDIA L4", "bfloat16", None),
        ("NVIDIA H200", "float32", None),
    ],
)
def test_the_peak_is_that_of_the_gpu(embedded: ModuleType, device: str, dtype: str, teraflops: float | None) -> None:
    assert embedded.peak_flops(device, dtype) == (teraflops and teraflops * 1e12)


def test_the_table_has_ratios_and_says_what_is_missing(
    embedded: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    from workload import Figures, Step, Workload, figures_from_json, figures_to_json

    ours = Figures("rewardsmith", "ours as set", 48, (Step(3.0, 1.0, 2.0),), 2**20)
    written = Figures("vLLM", "theirs as set", 48, (Step(None, 4.0, None), Step(None, 2.0, None)), None)
    assert figures_from_json(figures_to_json(ours, written)) == [ours, written]
    embedded.report("tiny-llama", Workload(**SIZES), [ours], {"vllm": [written], "unsloth": "not installed"})
    shown = capsys.readouterr().out
    assert "3 (3.00x)" in shown  # generating: the median of 4 and 2 seconds, and ours took 1
    assert "16 (3.00x)" in shown  # tokens/s: 48 / 3 against 48
    assert "not installed" in shown
    assert "ours as set" in shown


def test_a_peer_without_its_packages_is_not_installed(embedded: ModuleType, tmp_path: Path) -> None:
    assert embedded.is_installed(sys.executable, ["torch", "transformers"])
    assert not embedded.is_installed(sys.executable, ["torch", "no_such_package"])
    assert not embedded.is_installed(str(tmp_path / "python"), ["torch"])


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<…>>", "attention"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "matrix products"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", "matrix products"),
        ("aten::mm", "matrix products"),
        ("_rms_norm_forward", "norm + rotary + gated"),
        ("at_cuda_detail::cub::DeviceScanKernel", "sampling + head"),
        ("void multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", "optimizer"),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "copies + other"),
        ("Memcpy DtoD (Device -> Device)", "copies + other"),
    ],
)
def test_kernels_are_grouped_by_name(embedded: ModuleType, kernel: str, group: str) -> None:
    assert importlib.import_module("profile_step").group_of(kernel) == group


@pytest.mark.parametrize(
    ("steps", "note"),
    [(16, "6 of 6 rows at a time on average"), (40, "2 of 6 rows at a time on average: more do not fit")],
)
def test_our_side_says_when_memory_holds_fewer_rows(embedded: ModuleType, steps: int, note: str) -> None:
    from workload import Workload

    from rewardsmith.engines import ModelSettings

    workload = Workload(**SIZES | {"new_tokens": 17})  # 6 rows: 6 x 16 tokens are decoded
    our_side = importlib.import_module("our_side")
    assert note in our_side.rows_note(ModelSettings(init="tiny-llama"), workload, 6 * 17, steps)
