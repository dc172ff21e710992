"""Shell completion, in a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash")

SCRIPT = """
source "$HOME/.bashrc"
for line in "$@"; do
    eval "COMP_WORDS=($line)"
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE="$line" COMP_POINT=${#line} COMPREPLY=()
    _rewardsmith
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder in which completion is installed, and a command `rewardsmith` in its bin."""
    home = tmp_path_factory.mktemp("home")
    command = home / "bin" / "rewardsmith"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rewardsmith "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        [command, "--install-completion", "--shell", "bash"],
        env=environment(home), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return home


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}


def complete(home: Path, *lines: str) -> list[set[str]]:
    """Return what Tab offers after each line; "" as last word begins a new one."""
    done = subprocess.run(
        [str(BASH), "--norc", "-c", SCRIPT, "bash", *lines],
        env=environment(home), cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_commands_families_and_flags_are_completed(home: Path) -> None:
    commands, prepare, families, flags = complete(
        home, 'rewardsmith ""', 'rewardsmith prepare ""', 'rewardsmith list ""', "rewardsmith score --re"
    )
    assert {"init", "list", "show", "explain", "run", "export", "plan", "score", "evaluate", "cache"} <= commands
    assert {"gqm-sft", "gqm-rl", "preferences", "rubric", "graded"} <= prepare
    assert {"rewards", "rules", "recipes"} <= families
    assert "--reward" in flags


def test_recipes_are_completed_by_name_and_by_file(home: Path) -> None:
    (home / "quite_my_own.toml").write_text("")
    run, init = complete(home, "rewardsmith run qui", "rewardsmith init own")
    assert run == {"quickstart", "quite_my_own.toml"}
    assert init == {"own_reward"}
