"""The benchmark of limits: with one token more the longest answer no longer fits, and a trial does all of a step."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rewardsmith.engines.memory_estimate import GIB, ModelShape, with_adapter
from rewardsmith.engines.model_settings import LoraSettings

TINY = ModelShape(100_000, layers=2, hidden=32, heads=2, kv_heads=1, head_width=16, intermediate=64, vocabulary=128)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("limits")


@pytest.mark.parametrize("offload", [False, True])
def test_the_longest_answer_is_the_last_that_fits(limits: ModuleType, offload: bool) -> None:
    found = {}
    for way in limits.WAYS:
        shape = way.shape("Qwen3-4B")
        found[way.name] = [limits.longest_answer(shape, way, gib, 8, offload=offload) for gib in limits.GPUS.values()]
        for answer, gib in zip(found[way.name], limits.GPUS.values(), strict=True):
            room = limits.SHARE * (gib - limits.CONTEXT) * GIB
            assert limits.needed(shape, way, answer + 1, 8, offload=offload) > room
            assert answer == 0 or limits.needed(shape, way, answer, 8, offload=offload) <= room
    plain, eight_bit, in_host, lora, int8 = found.values()
    assert plain[1:] < eight_bit[1:] < in_host[1:]
    assert all(a < b for a, b in zip(lora, int8, strict=True))


def test_a_trial_writes_and_learns(limits: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LONGEST": 40, "PROMPT": 8, "WRITTEN": 4}.items():
        monkeypatch.setattr(limits, name, value)
    way = limits.Way("int8", LoraSettings(rank=2, base="int8"))
    monkeypatch.setattr(limits.Way, "shape", lambda self, model: with_adapter(TINY, self.lora))
    found = limits.trial("tiny", way, 8.0, 2, torch.device("cpu"), offload=True)
    assert found.startswith("40 | ")
    assert found.endswith("| fits")
    assert limits.trial("tiny", way, 0.01, 2, torch.device("cpu"), offload=True).endswith("by the estimate")
