"""A run that is killed and goes on ends exactly as one that was never interrupted: weights, metrics and rollouts."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.processes import (
    ENVIRONMENT,
    LIMIT,
    RECIPE,
    Strike,
    assert_same,
    command,
    launch,
    metrics,
    outcome,
    prepared,
    run,
    uninterrupted,
)

pytestmark = pytest.mark.slow

LEARN = "rewardsmith.engines.embedded.learner:Learner.step"
SCORE = "rewardsmith.trainers.collect:score"
WRITE = "rewardsmith.engines.embedded.engine:write_tensors"
SAVE = "rewardsmith.runs.folder:RunFolder.save"
KEEP = "rewardsmith.runs.folder:RunFolder.keep"
LOG = "rewardsmith.runs.folder:RunFolder.log"
PRUNE = "rewardsmith.runs.folder:RunFolder.prune"
PUBLISH = "rewardsmith.runs.run:Run._publish"
SYNC = "rewardsmith.storage:_sync"
VALIDATE = "rewardsmith.trainers.policy_validation:validate"

CRITIC = '[models.critic]\ncopy_of = "policy"\nhead = "scalar"\n\n[data.train]'
GAE = 'advantage = "gae"\ncritic = { model = "critic", warmup = 1, optimizer = { lr = 1e-3 } }\nkl ='
FROZEN = '[models.frozen]\ncopy_of = "policy"\n\n[data.train]'

# What is different from the recipe of `processes`, which has full weights and a copy of the policy as reference.
VARIANTS = {
    "full": [],
    "lora": [('init = "tiny-llama"', 'init = "tiny-llama"\nlora = { rank = 4, base = "int8" }')],
    "critic": [("[data.train]", CRITIC), ("kl =", GAE), ("coefficient = 0.1", 'coefficient = 0.1, place = "both"')],
    "bfloat16": [
        ('init = "tiny-llama"', 'init = "tiny-llama"\ndtype = "bfloat16"'),
        ("kl =", 'advantage = "remax"\nkl ='),
    ],
    "reference": [("[data.train]", FROZEN), ("coefficient = 0.1", 'coefficient = 0.1, reference = "frozen"')],
}


# In the order in which successive attempts meet them.
MOMENTS = [
    Strike(WRITE, 1),  # the first checkpoint: weights are written, the optimizer's state is not
    Strike(LEARN, 7),  # between two checkpoints of sft
    Strike(SYNC, 12),  # a checkpoint is written, and not yet in its place
    Strike(KEEP, 1),  # validation before the first step of policy
    Strike(SCORE, 6),  # while answers are written
    Strike(SCORE, 14),
    Strike(PRUNE, 1),  # a new checkpoint is there, and old ones too
    Strike(LOG, 2),  # rollouts are written, metrics are not
    Strike(SAVE, 2),
    Strike(PUBLISH, 1),
    Strike("rewardsmith.engines.embedded.engine:save_folder", 1),  # while the trained model is written
]


def recipe(variant: str) -> str:
    text = RECIPE
    for before, after in VARIANTS[variant]:
        assert before in text
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What comes of each variant without an interruption."""
    return uninterrupted(lambda folder, variant: prepared(folder, recipe(variant)), tmp_path_factory)


def finish(folder: Path) -> dict[str, Any]:
    """Go on with the run to its end."""
    status, output = run(folder)
    assert status == 0, output
    return outcome(folder / "runs/small")


@pytest.mark.parametrize("variant", ["full", "lora", "critic", "bfloat16"])
def test_killed_at_the_worst_moments(variant: str, tmp_path: Path, expected: Callable[[str], dict[str, Any]]) -> None:
    folder = prepared(tmp_path, recipe(variant))
    for moment in MOMENTS if variant == "full" else MOMENTS[1:8:2]:
        status, output = run(folder, strikes=[moment])
        assert status == -signal.SIGKILL, f"{moment} was not reached:\n{output}"
    assert_same(finish(folder), expected(variant))


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random(seed: int, tmp_path: Path, expected: Callable[[str], dict[str, Any]]) -> None:
    rng = random.Random(seed)
    folder = prepared(tmp_path)
    killed = 0
    for _ in range(4):
        launched = launch(folder)
        launched.process.join(rng.uniform(0.2, 1.2))
        launched.process.kill()
        killed += launched.wait() == -signal.SIGKILL
    assert killed
    assert_same(finish(folder), expected("full"))


def test_a_reference_that_is_a_copy_stays_what_it_was(
    tmp_path: Path, expected: Callable[[str], dict[str, Any]]
) -> None:
    folder = prepared(tmp_path, recipe("reference"))
    status, output = run(folder, strikes=[Strike(LEARN, 12 + 9)])
    assert status == -signal.SIGKILL, output
    assert_same(finish(folder), expected("reference"))


# ---- stopped by a signal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "checkpoint"),
    [
        (Strike(LEARN, 7, signal.SIGINT), "01-sft-000007"),  # the step that has begun is finished
        (Strike(SCORE, 5, signal.SIGTERM), "02-policy-000000"),  # answers that have not changed anything are given up
        (Strike(LEARN, 12 + 2 * 2 + 1, signal.SIGTERM), "02-policy-000003"),
        (Strike(PRUNE, 1, signal.SIGINT), "01-sft-000004"),  # which is there already: its validation was the best
    ],
)
def test_a_signal_saves_and_the_same_command_resumes(
    moment: Strike, checkpoint: str, tmp_path: Path, expected: Callable[[str], dict[str, Any]]
) -> None:
    folder = prepared(tmp_path)
    status, output = run(folder, strikes=[moment])
    assert status == 130, output
    assert "saves and ends at the next safe point" in output
    assert "To resume, run the same command again" in output
    assert "Traceback" not in output
    assert (folder / "runs/small/checkpoints" / checkpoint / "checkpoint.json").exists()
    assert '"state": "stopped"' in (folder / "runs/small/summary.json").read_text()
    assert_same(finish(folder), expected("full"))


def test_stopped_at_every_step(tmp_path: Path, expected: Callable[[str], dict[str, Any]]) -> None:
    folder = prepared(tmp_path)
    for _ in range(6):
        status, output = run(folder, strikes=[Strike(LOG, 2, signal.SIGINT)])
        assert status == 130, output
    assert_same(finish(folder), expected("full"))


@pytest.mark.parametrize("moment", [Strike(VALIDATE, 2, signal.SIGINT), Strike(LEARN, 12 + 4, signal.SIGTERM)])
def test_a_stop_while_a_step_is_validated_does_not_learn_it_twice(
    moment: Strike, tmp_path: Path, expected: Callable[[str], dict[str, Any]]
) -> None:
    folder = prepared(tmp_path)
    status, output = run(folder, strikes=[moment])
    assert status == 130, output
    assert_same(finish(folder), expected("full"))


def stop_at_pass_60() -> None:
    """Send SIGINT while answers are written, and note how many passes through the model there were in the end."""
    from rewardsmith.engines.embedded.engine import EmbeddedEngine

    before, passes = EmbeddedEngine._backbone, 0

    def counting(*arguments: Any) -> Any:
        nonlocal passes
        passes += 1
        Path("passes").write_text(str(passes))
        if passes == 60:
            os.kill(os.getpid(), signal.SIGINT)
        return before(*arguments)

    EmbeddedEngine._backbone = counting  # type: ignore[method-assign]


def test_a_stop_does_not_wait_for_long_answers(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    long = "stages.policy.sampling={ min_tokens = 190, max_tokens = 200 }"
    status, output = run(folder, long, "stages.sft.steps=1", set_up=stop_at_pass_60)
    assert status == 130, output
    assert int((folder / "passes").read_text()) < 70


@pytest.mark.parametrize(
    "strikes",
    [
        [Strike(LEARN, 14, signal.SIGINT), Strike("rewardsmith.trainers.batch:row_means", 1, signal.SIGINT)],
        [Strike(SAVE, 2, signal.SIGINT), Strike(WRITE, 2, signal.SIGINT)],
    ],
    ids=["learning", "saving"],
)
def test_a_second_signal_ends_at_once_and_the_run_can_resume(
    strikes: list[Strike], tmp_path: Path, expected: Callable[[str], dict[str, Any]]
) -> None:
    folder = prepared(tmp_path)
    status, output = run(folder, strikes=strikes)
    assert status not in (0, 2), output
    assert "Traceback" not in output
    assert "everything is saved" not in output
    first, second = output.index("stopping:"), output.index("stopped at once")
    assert "Ctrl-C again" in output[first:second]  # what it would do
    assert re.search(r"since the last checkpoint is lost.*same command", output[second:])  # what it did
    assert "Aborted" not in output
    assert status == 130
    assert '"state": "stopped"' in (folder / "runs/small/summary.json").read_text()
    assert not [f.name for f in (folder / "runs/small/checkpoints").iterdir() if f.name.startswith(".")]
    assert_same(finish(folder), expected("full"))


def test_ctrl_c_reaches_a_fresh_interpreter(tmp_path: Path, expected: Callable[[str], dict[str, Any]]) -> None:
    """From outside and whenever it comes, not at a call that we chose."""
    folder = prepared(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-m", "rewardsmith.cli", "run", "small.toml"],
        cwd=folder, env=os.environ | ENVIRONMENT, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        lines, until = folder / "runs/small/metrics.jsonl", time.monotonic() + LIMIT
        while process.poll() is None and time.monotonic() < until and not (lines.exists() and lines.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, output
    assert "run the same command again" in output
    assert 0 < len(metrics(folder / "runs/small")) < 21
    done = command(folder, "run", "small.toml")
    assert done.returncode == 0, done.stderr
    assert_same(outcome(folder / "runs/small"), expected("full"))
