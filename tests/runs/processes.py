"""Runs in processes of their own, which a test may kill at a moment of its choice.

`launch` forks from a process that has imported torch already, which saves seconds; what then runs is the command line
from its first line on. `command` is the same as a plain `python -m rewardsmith.cli`.
"""

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

LIMIT = 120.0  # seconds after which a process has failed; each takes two or three
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}

# A reward with contrast from the first step on, so that weights move and a wrong resume shows.
REWARD = '''
from rewardsmith import Score

class Digits:
    """Digits are better than anything else."""

    async def score(self, group):
        return tuple(Score(sum(c.isdigit() for c in r.text) / max(1, len(r.tokens))) for r in group.rollouts)

class Keyless:
    """Cannot be built."""

    def __init__(self):
        raise RuntimeError("no key")

    async def score(self, group):
        return ()

class Broken:
    """Breaks when it is called."""

    async def score(self, group):
        raise ZeroDivisionError("a user's own mistake")
'''

RECIPE = """
title = "a small run"

[models.policy]
init = "tiny-llama"

[data.train]
type = "arithmetic"

[data.held_out]
type = "arithmetic"
split = "held-out"

[[stages]]
type = "sft"
model = "policy"
data = "train"
steps = 12
batch_size = 4
optimizer = { lr = 2e-3, schedule = "cosine", warmup = 3 }
validation = { data = "held_out", every = 4, demonstrations = 4 }
save = { every = 5 }

[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 6
prompts_per_step = 3
rollouts_per_prompt = 3
mini_batches = 2
sampling = { max_tokens = 8 }
reward = "digits:Digits"
select = { oversample = 1.5, staleness = 2 }
kl = { coefficient = 0.1 }
optimizer = { lr = 2e-3, schedule = "linear" }
validation = { data = "held_out", every = 2, prompts = 3, rollouts_per_prompt = 2 }
save = { every = 2, keep = 2 }

[[stages]]
type = "evaluate"
model = "policy"
data = "held_out"
prompts = 3
sampling = { max_tokens = 8 }
reward = "digits:Digits"
"""


@dataclass(frozen=True)
class Strike:
    """A signal that a process sends itself when it calls `function` (`module:Name`) for the `call`-th time."""

    function: str
    call: int = 1
    signal: int = signal.SIGKILL


@dataclass
class Launched:
    process: Any
    output: Path

    def wait(self) -> int:
        """Return the exit status; -9 after SIGKILL."""
        self.process.join(LIMIT)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            pytest.fail(f"the run did not end in {LIMIT} s:\n{self.text}")
        return int(self.process.exitcode)

    @property
    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")


_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(
    [
        "rewardsmith.cli",
        "rewardsmith.runs.start",
        "rewardsmith.trainers.policy",
        "rewardsmith.trainers.sft",
        "rewardsmith.engines.embedded.engine",
        "rewardsmith.engines.embedded.chat_model",
        "transformers.models.llama.modeling_llama",
    ]
)


def prepared(folder: Path, recipe: str = RECIPE) -> Path:
    """Make a folder with a recipe, `small.toml`, and its reward."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.toml").write_text(recipe, encoding="utf-8")
    (folder / "digits.py").write_text(REWARD, encoding="utf-8")
    return folder


def launch(
    folder: Path, *arguments: str, strikes: Sequence[Strike] = (), set_up: Callable[[], None] | None = None
) -> Launched:
    """Start `rewardsmith run small.toml` in a prepared folder; `set_up` is called in the process first."""
    output = folder / "output.txt"
    process = _fork.Process(target=_main, args=(folder, ["run", "small.toml", *arguments], output, strikes, set_up))
    process.start()
    return Launched(process, output)


def run(
    folder: Path, *arguments: str, strikes: Sequence[Strike] = (), set_up: Callable[[], None] | None = None
) -> tuple[int, str]:
    """Run to the end; return the exit status and the output."""
    launched = launch(folder, *arguments, strikes=strikes, set_up=set_up)
    return launched.wait(), launched.text


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "rewardsmith.cli", *arguments],
        cwd=folder, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def _main(
    folder: Path, arguments: list[str], output: Path, strikes: Sequence[Strike], set_up: Callable[[], None] | None
) -> None:
    os.environ.update(ENVIRONMENT)
    os.chdir(folder)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(handle, stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", buffering=1, encoding="utf-8")
    for strike in strikes:
        arm(strike)
    if set_up is not None:
        set_up()
    sys.argv = ["rewardsmith", *arguments]
    from rewardsmith.cli import main

    main()


def arm(strike: Strike) -> None:
    """Let the process send itself the signal when the time comes."""
    module, _, path = strike.function.partition(":")
    place: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        place = getattr(place, parent)
    before, calls = getattr(place, name), 0

    def striking(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == strike.call:
            os.kill(os.getpid(), strike.signal)
        return before(*args, **kwargs)

    setattr(place, name, striking)


def uninterrupted(
    make: Callable[[Path, str], Path], factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Any]]:
    """Return a function from a variant, whose folder `make` prepares, to the outcome of its run."""

    @cache
    def of(variant: str) -> dict[str, Any]:
        folder = make(factory.mktemp(variant), variant)
        status, output = run(folder)
        assert status == 0, output
        return outcome(folder / "runs/small")

    return of


def outcome(folder: Path) -> dict[str, Any]:
    """Return all of a finished run that must not depend on how often it was interrupted."""
    models = {str(f.relative_to(folder)): f.read_bytes() for f in folder.glob("models/**/*") if f.is_file()}
    rollouts = {f.name: f.read_text(encoding="utf-8") for f in folder.glob("rollouts/*.jsonl")}
    return {
        "models": models,
        "metrics": metrics(folder),
        "rollouts": rollouts,
        "checkpoints": sorted(f.parent.name for f in folder.glob("checkpoints/*/checkpoint.json")),
        "summary": _untimed(json.loads((folder / "summary.json").read_text())),
    }


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without times."""
    return [_untimed(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        timed = {
            name
            for name in value
            if name in ("seconds", "tokens/s", "facts") or name.startswith(("time/", "memory/", "idle/"))
        }
        return {name: _untimed(inner) for name, inner in value.items() if name not in timed}
    return [_untimed(inner) for inner in value] if isinstance(value, list) else value


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare outcomes, and show the first difference."""
    for here, there in zip(found["metrics"], expected["metrics"], strict=False):
        where = f"{there['stage']} step {there['step']}, next to (stage, step) {here['stage'], here['step']}"
        names = here["metrics"].keys() | there["metrics"].keys()
        values = {name: (here["metrics"].get(name), there["metrics"].get(name)) for name in sorted(names)}
        assert here == there, f"{where}: { ({name: pair for name, pair in values.items() if pair[0] != pair[1]}) }"
    assert len(found["metrics"]) == len(expected["metrics"])
    assert found["models"].keys() == expected["models"].keys()
    different = [name for name, content in expected["models"].items() if found["models"][name] != content]
    assert not different, f"other content: {different}"
    for name, text in expected["rollouts"].items():
        pairs = enumerate(zip(found["rollouts"][name].splitlines(), text.splitlines(), strict=False))
        lines = [i + 1 for i, (here, there) in pairs if here != there]
        assert found["rollouts"][name] == text, f"{name}: lines {lines} differ"
    assert found["summary"] == expected["summary"], f"{found['summary']} instead of {expected['summary']}"
    assert found["checkpoints"] == expected["checkpoints"], (
        f"{found['checkpoints']} instead of {expected['checkpoints']}"
    )
