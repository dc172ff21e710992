"""The example scripts and notebooks are run as a reader would run them, with fewer steps."""

import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.doc_pages import ROOT

EXAMPLES = ROOT / "examples"
FEW = {
    "stages.sft.steps": 2,
    "stages.policy.steps": 2,
    "stages.policy.prompts_per_step": 4,
    "stages.policy.validation.prompts": 4,
}
IN_NOTEBOOKS = {'"sft": 600, "policy": 30': '"sft": 2, "policy": 2', "prompts_per_step = 64": "prompts_per_step = 4"}


@pytest.fixture(autouse=True)
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def main_of(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


def test_scores_of_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("01_score_answers")()
    printed = capsys.readouterr().out
    assert r"reward 1.0  advantage +0.50  \boxed{\frac{2}{3}}" in printed
    assert r"reward 0.0  advantage -1.00  \boxed{41}" in printed


def test_a_reward_that_fails_for_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("02_own_reward")()
    printed = capsys.readouterr().out
    assert "reward  none  advantage  none  ''" in printed
    assert "crashed" in printed


def test_a_judge_that_is_called_again_and_only_for_right_answers(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("03_judge")()
    printed = capsys.readouterr().out
    assert "the judge's part: [1.0, 0.2, None, None]" in printed
    assert "failure" not in printed


def test_a_function_trains_a_model_and_the_run_is_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main_of("04_train_with_a_function")("runs/function", **FEW)
    main_of("05_replay_and_compare")("runs/function")
    printed = capsys.readouterr().out
    assert "step  2: " in printed
    assert "32 answers of step 2:" in printed


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(notebook: Path, reader: Path) -> None:
    """In a real kernel, whose event loop is running."""
    read = nbformat.read(notebook, as_version=4)
    for cell in read.cells:
        assert not cell.get("outputs"), "notebooks are kept without outputs"
        for old, new in IN_NOTEBOOKS.items():
            cell.source = cell.source.replace(old, new)
    NotebookClient(read, timeout=300, resources={"metadata": {"path": str(reader)}}).execute()
