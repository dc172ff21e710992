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
    reference = modules["prime_side"].Reference
    monkeypatch.setattr(reference, "logprobs", reference.logprobs)  # a side puts its watch there
    modules["prime"].build_model(tmp_path, modules["embedded"].llama(**TINY))
    return tmp_path


def figures(modules: dict[str, ModuleType], folder: Path, name: str, ends: str) -> Any:
    workload = modules["prime"].Workload(**SIZES, ends=ends)
    return asyncio.run(modules["prime_side"].train(folder, workload, modules["prime_workload"].SIDES[name]))


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("without", set()),
        ("after", {"reference", "learning"}),
        ("after-policy", {"learning"}),
        ("after-lora", {"reference", "learning"}),
        ("after-lora-policy", {"learning"}),
        ("before", {"reference", "learning", "scoring"}),
        ("none", {"reference", "scoring"}),
    ],
)
def test_sides_do_what_their_names_say(
    modules: dict[str, ModuleType], folder: Path, name: str, inside: set[str]
) -> None:
    found = figures(modules, folder, name, "length")
    (step,) = found.steps
    assert found.tokens == 2 * 3 * 8  # no answer ends early
    assert {key for key, seconds in step.inside.items() if seconds > 0} == inside
    assert tuple(step.parts) == modules["prime_workload"].PARTS
    assert sum(step.parts.values()) == pytest.approx(step.whole)
    assert sum(step.inside.values()) <= step.parts["process"]
    assert (step.parts["process"] > 0) == (name != "without")
    assert step.parts["write"] > 0 < step.parts["learn"]
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
        turns.append((work.ends, side.name, threads, clock))  # type: ignore[attr-defined]
        seconds = 6.0 if side.name == "after" else 4.0  # type: ignore[attr-defined]
        return workload.Figures(9.0, (workload.Step(seconds, {"learn": 1.0, "process": seconds - 4}),), 2**20)

    monkeypatch.setattr(prime, "measure", measured)
    monkeypatch.setattr(prime, "Console", lambda **how: Console(width=140, highlight=False, file=sys.stdout))
    options = "--shape tiny-llama --sides after --rounds 2 --threads 1 --clock cpu --ends length eos"
    monkeypatch.setattr(sys, "argv", ["prime.py", *options.split()])
    prime.main()
    rounds = [("without", 1, "cpu"), ("after", 1, "cpu")] * 2
    assert turns == [(ends, *turn) for ends in ("length", "eos") for turn in rounds]
    told = capsys.readouterr().out
    assert told.count("+50%") == told.count("missed by 30 points") == 2
    assert "680.3 s with a process reward, 530.7 s without, +28%" in told


def test_the_rule_tells_the_answers_of_a_group_apart(modules: dict[str, ModuleType]) -> None:
    outcome = modules["prime_workload"].outcome
    found = [outcome(None, " ".join(f"w{i * j}" for j in range(1, 8))) for i in range(1, 9)]
    assert all(0 <= value <= 1 for value in found)
    assert len(set(found)) > 1
    assert json.loads(modules["prime_workload"].WITHOUT.to_json())["update"] == ""
