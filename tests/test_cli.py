"""The command line as a user meets it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rewardsmith import __version__
from rewardsmith.cli import GROUPS, JOBS, app, main

QUICKSTART = str(Path(__file__).parents[1] / "recipes" / "quickstart.toml")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command line in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["rewardsmith", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_explain_prints_a_recipe_with_every_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "explain", QUICKSTART, "stages.policy.advantage.type=rloo") == 0
    printed = capsys.readouterr().out
    assert 'type = "rloo"' in printed
    assert 'leave_one_out = "exact"' in printed


def test_a_mistake_prints_its_message_and_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "explain", QUICKSTART, "stages.policy.loss.hgih=0.3") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "stages.1.loss.hgih = 0.3" in captured.err
    assert 'Did you mean "high"?' in captured.err


def test_a_misspelt_command_gets_the_nearest_name() -> None:
    # In its own process: the commands of other tests are registered in this one.
    command = [sys.executable, "-m", "rewardsmith", "scroe"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'Did you mean "score"?' in done.stderr


def test_a_real_process_shows_no_traceback_and_survives_a_closed_pipe(tmp_path: Path) -> None:
    recipe = tmp_path / "typo.toml"
    recipe.write_text("stagess = []")
    command = [sys.executable, "-m", "rewardsmith.cli", "explain"]
    failed = subprocess.run([*command, str(recipe)], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert 'Did you mean "stages"?' in failed.stderr
    piped = subprocess.run(
        f"{sys.executable} -m rewardsmith.cli explain {QUICKSTART} | head -n 1",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert piped.stdout.startswith("title = ")
    assert all(line.startswith("memory: ") for line in piped.stderr.splitlines())


def test_help_is_not_cut_at_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in (
        "",
        "init",
        "list",
        "show",
        "run",
        "explain",
        "cache",
        "cache stats",
        "cache clear",
        "prepare",
        *JOBS,
    ):
        assert run(monkeypatch, *command.split(), "--help") == 0
        printed = capsys.readouterr().out
        assert "Usage: " in printed, command
        assert max(map(len, printed.splitlines())) <= 80, command
        assert not re.findall(r"\S+…", printed), command


def test_help_shows_every_command_in_a_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--help") == 0
    printed = capsys.readouterr().out
    grouped = {name for names in GROUPS.values() for name in names}
    assert {name for name in app if name != "-h"} <= grouped
    assert "─ Commands ─" not in printed
    for title in ("Start", "Run", "Data", "Measure", "Look"):
        assert f"─ {title} ─" in printed
    assert printed.index("rewardsmith run quickstart") < printed.index("─ Start ─")


def test_the_package_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rewardsmith", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"rewardsmith {__version__}\n"), done.stderr


def test_ctrl_c_while_the_command_is_imported_ends_without_a_traceback() -> None:
    code = (
        "import sys, types\n"
        "class Interrupted(types.ModuleType):\n"
        "    def __getattr__(self, name): raise KeyboardInterrupt\n"
        "sys.modules['rewardsmith.cli'] = Interrupted('rewardsmith.cli')\n"
        "from rewardsmith.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
