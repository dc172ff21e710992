"""The benchmark of process rewards works: each side does what its name says, and the table tells what was measured."""

import asyncio
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
TINY = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "ffn": 32, "vocabulary": 64}
SIZES = {"prompts": 2, "rollouts": 3, "prompt_tokens": 4, "new_tokens": 8, "steps": 1, "vocabulary": 64}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return {name: importlib.import_module(name) for name in ("embedded", "prime", "prime_side", "prime_workload")}


@pytest.fixture
def folder(modules: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, method in (("Reference", "logprobs"), ("TokenOffsets", "token_char_ends")):
        owner = getattr(modules["prime_side"], name)
        monkeypatch.setattr(owner, method, getattr(owner, method))  # a side puts its watch there
    modules["prime"].build_model(tmp_path, modules["embedded"].llama(**TINY))
    return tmp_path


def figures(modules: dict[str, ModuleType], folder: Path, name: str, ends: str) -> Any:
    workload = modules["prime"].Workload(**SIZES, ends=ends)
    return asyncio.run(modules["prime_side"].train(folder, workload, modules["prime_workload"].SIDES[name]))


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("without", set()),
        ("after", {"reference", "PRM update"}),
        ("after-policy", {"PRM update"}),
        ("after-policy-exact", {"reference", "PRM update"}),
        ("after-lora", {"reference", "PRM update"}),
        ("after-lora-policy", {"PRM update"}),
        ("before", {"reference", "PRM update", "PRM forward"}),
        ("none", {"reference", "PRM forward"}),
    ],
)
def test_sides_do_what_their_names_say(
    modules: dict[str, ModuleType], folder: Path, name: str, passes: set[str]
) -> None:
    found = figures(modules, folder, name, "length")
    (step,) = found.steps
    workload = modules["prime_workload"]
    assert found.tokens == 2 * 3 * 8  # no answer ends early
    assert {part for part in workload.PASSES if step.parts[part] > 0} == passes
    assert tuple(step.parts) == workload.PARTS
    assert sum(step.parts.values()) == pytest.approx(step.whole)
    assert (step.parts["ends"] > 0) == (name != "without")
    assert all(step.parts[part] > 0 for part in ("writing", "policy update", "rest"))
    assert found.peak_bytes > 2**20
    assert type(found).from_json(found.to_json()) == found


def test_answers_end_by_themselves_on_both_sides_alike(modules: dict[str, ModuleType], folder: Path) -> None:
    without, after = (figures(modules, folder, name, "eos") for name in ("without", "after"))
    assert 2 * 3 <= without.tokens < 2 * 3 * 8
    assert after.tokens == pytest.approx(without.tokens, rel=0.5)


def test_the_command_measures_in_turns_and_prints_everything(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload, prime = modules["prime_workload"], modules["prime"]
    turns = []

    def measured(folder: Path, work: object, side: object, threads: int, clock: str) -> object:
        assert (folder / "chat_template.jinja").exists()
        turns.append((work.ends, work.new_tokens, side.name, threads, clock))  # type: ignore[attr-defined]
        seconds = 6.0 if side.name == "after" else 4.0  # type: ignore[attr-defined]
        parts = {"policy update": 1.0, "PRM update": seconds - 4.5}
        return workload.Figures(9.0, (workload.Step(seconds, parts),), 2**20)

    monkeypatch.setattr(prime, "measure", measured)
    monkeypatch.setattr(prime, "Console", lambda **how: Console(width=140, highlight=False, file=sys.stdout))
    options = (
        "--shape tiny-llama --sides after --rounds 2 --threads 1 --clock cpu --ends length eos --new-tokens 8 1024"
    )
    monkeypatch.setattr(sys, "argv", ["prime.py", *options.split()])
    prime.main()
    rounds = [("without", 1, "cpu"), ("after", 1, "cpu")] * 2
    assert turns == [(ends, length, *turn) for ends in ("length", "eos") for length in (8, 1024) for turn in rounds]
    told = capsys.readouterr().out
    assert told.count("+50%") == told.count("after: +2.000 s, of which its passes are 1.500 s") == 4
    assert told.count("aim of +60% met") == told.count("aim of +30% missed by 20 points") == 2
    assert "680.3 s with a process reward, 530.7 s without, +28%" in told


def test_the_rule_tells_the_answers_of_a_group_apart(modules: dict[str, ModuleType]) -> None:
    outcome = modules["prime_workload"].outcome
    found = [outcome(None, " ".join(f"w{i * j}" for j in range(1, 8))) for i in range(1, 9)]
    assert all(0 <= value <= 1 for value in found)
    assert len(set(found)) > 1
    assert json.loads(modules["prime_workload"].WITHOUT.to_json())["update"] == ""
