"""Rewards that break in the middle of a run: it stops with a checkpoint and a reason, and goes on unharmed."""

import signal
from pathlib import Path

import pytest

from tests.runs.processes import Strike, assert_same, outcome, prepared, run

pytestmark = pytest.mark.slow  # whole runs in processes of their own

JUDGE = '''
import asyncio
from pathlib import Path

from rewardsmith import Score

class Judge:
    """Likes digits. From its n-th group on it breaks, until the file `fixed` exists."""

    def __init__(self, *, breaks: int, how: str = "RuntimeError", comes_back: int = 0) -> None:
        self._breaks, self._how, self._comes_back, self._groups = breaks, how, comes_back, 0

    async def score(self, group):
        self._groups += 1
        broken = self._groups >= self._breaks and not (self._comes_back and self._groups >= self._comes_back)
        if broken and not Path("fixed").exists():
            raise {"RuntimeError": RuntimeError, "ConnectionError": ConnectionError}[self._how]("the judge is ill")
        return tuple(Score(sum(c.isdigit() for c in r.text) / max(1, len(r.tokens))) for r in group.rollouts)
'''

RECIPE = """
[models.policy]
init = "tiny-llama"

[data.train]
type = "arithmetic"

[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 5
prompts_per_step = 3
rollouts_per_prompt = 3
sampling = { max_tokens = 8 }
optimizer = { lr = 2e-3 }
save = { every = 4, keep = 2 }
validation = { data = "train", every = 2, prompts = 2 }
[stages.reward]
type = "sum"
parts.digits = { type = "judge:Judge", breaks = 1000 }
[stages.reward.parts.judge]
type = "standardise"
over = "window"
min_count = 4
weight = 0.5
reward = { type = "judge:Judge", breaks = BREAKS, FAILURE }
"""


def world(folder: Path, breaks: int = 1000, failure: str = "", *, fixed: bool = False) -> Path:
    prepared(folder, RECIPE.replace("BREAKS", str(breaks)).replace(", FAILURE", failure and f", {failure}"))
    (folder / "judge.py").write_text(JUDGE)
    if fixed:
        (folder / "fixed").touch()
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = world(tmp_path_factory.mktemp("undisturbed"))
    status, output = run(folder)
    assert status == 0, output
    return folder


# Validation scores two groups of one, before the first step and after steps 2 and 4; a step scores three of three.
@pytest.mark.parametrize(
    ("breaks", "min_failures", "failed", "saved"),
    [(7, 5, 6, 1), pytest.param(9, 2, 2, 2, marks=pytest.mark.slow)],  # in a step, in a validation
)
def test_a_broken_judge_stops_the_run_and_nothing_is_lost(
    breaks: int, min_failures: int, failed: int, saved: int, undisturbed: Path, tmp_path: Path
) -> None:
    folder = world(tmp_path, breaks, f"failure = {{ share = 0.2, window = 8, min_failures = {min_failures} }}")
    status, output = run(folder)
    assert status == 2
    assert f'error: the reward "judge.raw" could not score {failed} of its last' in output
    assert f"{failed} crashed, the last: RuntimeError: the judge is ill" in output
    assert "Traceback" not in output
    assert (folder / f"runs/small/checkpoints/01-policy-{saved:06d}").is_dir()
    (folder / "fixed").touch()
    status, output = run(folder)
    assert status == 0, output
    assert "resuming from" in output
    expected = outcome(undisturbed / "runs" / "small")
    found = outcome(folder / "runs" / "small")
    if breaks != 9:
        assert_same(found | {"checkpoints": 0}, expected | {"checkpoints": 0})
    assert found["models"] == expected["models"]  # a validation that failed leaves its mark on its own numbers alone


def test_a_service_that_comes_back_costs_no_prompt(undisturbed: Path, tmp_path: Path) -> None:
    folder = world(tmp_path, 7, 'how = "ConnectionError", comes_back = 11')
    status, output = run(folder)
    assert status == 0, output
    assert '"judge.raw" is unreachable, waiting up to 300 s' in output
    assert_same(outcome(folder / "runs" / "small"), outcome(undisturbed / "runs" / "small"))


def test_ctrl_c_is_heard_while_a_service_is_waited_for(tmp_path: Path) -> None:
    folder = world(tmp_path, 7, 'how = "ConnectionError"')
    strike = Strike("rewardsmith.rewards.component:Component._service_is_up", 2, signal.SIGINT)
    status, output = run(folder, strikes=[strike])
    assert status == 130, output
    assert (folder / "runs/small/checkpoints/01-policy-000001").is_dir()


def test_what_a_reward_has_learned_survives_a_kill(undisturbed: Path, tmp_path: Path) -> None:
    folder = world(tmp_path)
    strike = Strike("rewardsmith.engines.embedded.learner:Learner.step", 5)
    status, _ = run(folder, strikes=[strike])
    assert status == -9
    status, output = run(folder)
    assert status == 0, output
    assert "resuming from 01-policy-000004" in output
    assert_same(outcome(folder / "runs" / "small"), outcome(undisturbed / "runs" / "small"))


def test_a_reward_that_cannot_work_is_found_before_the_first_step(tmp_path: Path) -> None:
    folder = world(tmp_path)
    recipe = folder / "small.toml"
    text = recipe.read_text()
    recipe.write_text(
        text.replace('{ type = "judge:Judge", breaks = 1000 }', '{ type = "rule", rule = "no_such:rule" }', 1)
    )
    status, output = run(folder)
    assert status == 2
    assert "cannot import the module 'no_such'" in output
    route = 'reward = { type = "route", routes = { gsm8k = { type = "judge:Judge", breaks = 9 } } }\n'
    before, _, _ = text.partition("[stages.reward]")
    recipe.write_text(before + route)
    status, output = run(folder)
    assert status == 2
    assert 'stages.0.reward: no route has the source "arithmetic". Known: gsm8k' in output
    assert "loading policy" not in output


def test_ctrl_c_is_heard_while_a_validation_waits_for_a_service(undisturbed: Path, tmp_path: Path) -> None:
    folder = world(tmp_path, 9, 'how = "ConnectionError"')  # the first group of the validation after step 2
    strike = Strike("rewardsmith.rewards.component:Component._service_is_up", 2, signal.SIGINT)
    status, output = run(folder, strikes=[strike])
    assert status == 130, output
    (folder / "fixed").touch()
    status, output = run(folder)
    assert status == 0, output
    assert "resuming from 01-policy-000002" in output
    assert outcome(folder / "runs" / "small")["models"] == outcome(undisturbed / "runs" / "small")["models"]
