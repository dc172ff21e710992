"""A reward of ours in TRL's own trainers: whole groups, failures that have no part, and what is logged."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from aiohttp import web
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.rewards import think_format_reward

import rewardsmith as rs
from rewardsmith import Failure, RolloutGroup, Score, UserError
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.integrations.trl_reward import FAILURE_KINDS, from_trl, trl_reward
from rewardsmith.rewards import CannotScore
from tests.peers.loopback import serve

pytestmark = pytest.mark.filterwarnings("default")  # of TRL and its libraries
EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "trl_grpo.py"
GROUP = 4


REQUESTS = itertools.count(1)


async def judge(request: web.Request) -> web.Response:
    """Grade an answer by its length; every third request is refused."""
    body = await request.json()
    if next(REQUESTS) % 3 == 0:
        return web.Response(status=400, text="no")
    return web.json_response({"grade": len(body["text"]) + 0.25 * (sum(map(ord, body["text"])) % 7)})


@pytest.fixture(scope="module")
def judge_url() -> Iterator[str]:
    with serve(judge) as url:
        yield url


class Judged:
    """Asks a service for each answer; what it refuses has no score."""

    parts = ("grade",)

    def __init__(self, *, url: str) -> None:
        self.url, self.groups = url, []

    async def score(self, group: RolloutGroup) -> list[Score]:
        self.groups.append(group)
        async with aiohttp.ClientSession() as session:
            return [await self._score(session, rollout.text) for rollout in group.rollouts]

    async def _score(self, session: aiohttp.ClientSession, text: str) -> Score:
        async with session.post(self.url, json={"text": text}) as response:
            if response.status != 200:
                why = Failure("refused", f"status {response.status}")
                return Score(failure=why, parts={"grade": Score(failure=why)})
            grade = (await response.json())["grade"]
            return Score(grade, parts={"grade": Score(grade)})


class Ranked:
    """Its scores are ranks among the answers to a prompt."""

    whole = True

    async def score(self, group: RolloutGroup) -> list[Score]:
        order = sorted({rollout.text for rollout in group.rollouts})
        return [Score(float(order.index(rollout.text))) for rollout in group.rollouts]


def train(kind: str, reward: Any, *, steps: int = 1, conversational: bool = True, **settings: Any) -> Any:
    trainer_class, config = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig)}[kind]
    torch.manual_seed(0)
    model, tokenizer = make_tiny("tiny-llama", seed=0)
    questions = [f"{n}+{n}?" for n in range(8)]
    rows = [
        {
            "prompt": [{"role": "user", "content": question}] if conversational else question,
            "solution": str(2 * n),
            "data_source": "sums",
            "hint": {"level": n},
        }
        for n, question in enumerate(questions)
    ]
    common: dict[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": 3 * GROUP,
        "num_generations": GROUP,
        "max_completion_length": 6,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "learning_rate": 1e-3,
        "disable_tqdm": True,
    }
    common["per_device_eval_batch_size"] = settings.pop("eval_batch", 8)
    args = config(output_dir=settings.pop("folder"), **common | settings)
    data = Dataset.from_list(rows)
    trainer = trainer_class(model, reward_funcs=reward, train_dataset=data, processing_class=tokenizer, args=args)
    trainer.train()
    return trainer


def advantages(kind: str, rewards: Sequence[float]) -> list[float]:
    """The trainers' formulas, over the answers of a group that have a score; 0 for the others."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    if len(known) < 2:
        return [0.0] * len(rewards)
    mean = sum(known) / len(known)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in known) / (len(known) - 1))
    grpo = [0.0 if math.isnan(reward) else (reward - mean) / (deviation + 1e-4) for reward in rewards]
    others = [0.0 if math.isnan(r) else r - (sum(known) - r) / (len(known) - 1) for r in rewards]
    return grpo if kind == "grpo" else others


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
@pytest.mark.parametrize("conversational", [True, False])
def test_failed_rollouts_have_no_advantage_and_no_vote(
    kind: str, conversational: bool, judge_url: str, tmp_path: Path
) -> None:
    judged = Judged(url=judge_url)
    plain = {"normalize_advantages": False, "beta": 0.0} if kind == "rloo" else {}
    trainer = train(kind, trl_reward(judged), conversational=conversational, folder=str(tmp_path), **plain)
    rewards, found = list(trainer._logs["rewards"]["rewardsmith"]), list(trainer._logs["advantages"])
    failed = [math.isnan(reward) for reward in rewards]
    assert len(rewards) == 3 * GROUP
    assert sum(failed) == len(rewards) // 3
    for start in range(0, len(rewards), GROUP):
        group = slice(start, start + GROUP)
        assert found[group] == pytest.approx(advantages(kind, rewards[group]), abs=1e-3)
    assert all(advantage == 0 for advantage, lost in zip(found, failed, strict=True) if lost)
    assert any(found)

    assert [len(group.rollouts) for group in judged.groups] == [GROUP] * 3
    prompt = judged.groups[0].prompt
    assert (prompt.source, prompt.messages[0].role) == ("sums", "user")
    assert prompt.messages[0].content == f"{prompt.info['hint']['level']}+{prompt.info['hint']['level']}?"
    assert prompt.answer == str(2 * prompt.info["hint"]["level"])
    assert all(len(rollout.tokens) for group in judged.groups for rollout in group.rollouts)

    (logged,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    known = [reward for reward in rewards if not math.isnan(reward)]
    assert logged["rewardsmith/failed"] == pytest.approx(1 / 3)
    assert logged["rewardsmith/failed/refused"] == pytest.approx(1 / 3)
    assert sum(logged[f"rewardsmith/failed/{one}"] for one in FAILURE_KINDS) == pytest.approx(1 / 3)
    assert logged["rewardsmith/grade/mean"] == pytest.approx(sum(known) / len(known))
    extra = trainer._logs["extra"]
    assert [value is None for value in extra["rewardsmith/grade"]] == failed
    assert [kind == "refused" for kind in extra["rewardsmith/failure"]] == failed


def test_a_part_that_fails_inside_a_sum_fails_the_row(tmp_path: Path, judge_url: str) -> None:
    """As two functions of TRL, the missing part would count 0."""

    parts = {
        "judge": {"type": f"{__name__}:Judged", "url": judge_url},
        "length": {"type": "rule", "rule": {"type": "length", "unit": "characters"}},
    }
    reward = trl_reward({"type": "sum", "parts": parts}, name="ours")
    trainer = train("grpo", reward, folder=str(tmp_path))
    rewards, extra = list(trainer._logs["rewards"]["ours"]), trainer._logs["extra"]
    assert [math.isnan(reward) for reward in rewards] == [value is None for value in extra["ours/judge"]]
    assert list(extra["ours/length"]) == [1.0] * len(rewards)


def test_a_ranking_gets_whole_groups(tmp_path: Path) -> None:
    trainer = train("grpo", trl_reward(Ranked()), folder=str(tmp_path))
    rewards = list(trainer._logs["rewards"]["rewardsmith"])
    assert all(min(rewards[start : start + GROUP]) == 0 for start in range(0, len(rewards), GROUP))


def test_an_evaluation_with_groups_of_another_size(tmp_path: Path) -> None:
    trainer = train("grpo", trl_reward(Ranked()), folder=str(tmp_path), num_generations_eval=2, eval_batch=6)
    metrics = trainer.evaluate(trainer.train_dataset)
    assert metrics["eval_reward"] <= 0.5  # ranks 0 and 1
    assert metrics["eval_rewardsmith/failed"] == 0


def test_a_recipe_by_its_name(tmp_path: Path) -> None:
    recipe = EXAMPLE.parents[2] / "recipes" / "quickstart.toml"
    reward = trl_reward(f"{recipe}:policy")
    prompts = [[{"role": "user", "content": "7+5-3?"}]] * 2
    values = asyncio.run(reward(prompts=prompts, completions=["7+5=12;12-3=9;#9", "#8"], answer=["9", "9"]))
    assert values[0] > values[1]


def test_a_ranking_of_a_split_group_is_refused(tmp_path: Path) -> None:
    """What a process sees whose share of the batch is no multiple of the group."""
    reward = trl_reward(Ranked(), num_generations=GROUP)
    prompts = ["a"] * GROUP + ["b"] * (GROUP - 1)
    with pytest.raises(UserError, match="per_device_train_batch_size"):
        asyncio.run(reward(prompts=prompts, completions=["x"] * len(prompts)))
    mixed = ["a"] * (GROUP - 1) + ["b"] * (GROUP + 1)
    with pytest.raises(UserError, match="num_generations"):
        asyncio.run(reward(prompts=mixed, completions=["x"] * len(mixed)))
    with pytest.raises(UserError, match="num_generations of trl_reward"):
        asyncio.run(trl_reward(Ranked())(prompts=prompts, completions=["x"] * len(prompts)))


def test_a_reward_of_single_answers_takes_a_split_group(judge_url: str) -> None:
    reward = trl_reward({"type": "rule", "rule": "exact"}, num_generations=GROUP, answer="truth")
    prompts, truth = ["a"] * 3 + ["b"] * 2, ["1"] * 2 + ["2"] * 3  # the third is another row with the same prompt
    values = asyncio.run(reward(prompts=prompts, completions=["1", "2", "2", "2", "1"], truth=truth))
    assert values == [1.0, 0.0, 1.0, 1.0, 0.0]
    with pytest.raises(UserError, match="truth"):
        asyncio.run(reward(prompts=prompts, completions=["1"] * 5))


def test_a_reward_that_stops_the_run_stops_trl(tmp_path: Path) -> None:
    reward = trl_reward({"type": f"{__name__}:AlwaysRefused", "failure": {"do": "stop"}})
    with pytest.raises(UserError, match=r"failure\.do"):
        train("grpo", reward, folder=str(tmp_path))


class AlwaysRefused:
    """Scores nothing."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        raise CannotScore("refused", "always")


def test_the_example_runs() -> None:
    spec = importlib.util.spec_from_file_location("trl_grpo", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    last = module.main(2)
    assert last["rewardsmith/failed"] == 0
    assert last["reward"] == pytest.approx(last["rewardsmith/digits/mean"] + 0.5 * last["rewardsmith/short/mean"])


def test_functions_of_trl_itself_are_rewards_of_ours() -> None:
    """By module and as objects they give what TRL's own function gives."""
    texts = ["<think>\nso\n</think>\n\nIt is 4.", "It is 4."]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    expected = think_format_reward(completions=completions)
    table = {"type": "trl_function", "path": "trl.rewards", "name": "think_format_reward"}
    for reward in (table, from_trl(think_format_reward)):
        with rs.reward(reward) as loaded:
            assert rs.score(loaded, "2+2?", texts).values == [expected]
    assert expected == [1.0, 0.0]


@pytest.mark.parametrize(("batch", "split"), [(GROUP, False), (GROUP // 2, True)])
def test_two_processes(batch: int, split: bool, tmp_path: Path) -> None:
    """Whole groups in each process are ranked; groups that are split over the processes are refused."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = str(Path(__file__).with_name("trl_processes.py"))
    paths = os.pathsep.join(filter(None, [str(Path(rs.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [*launch, script, str(tmp_path), str(batch)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if split:
        errors = [file.read_text() for file in tmp_path.glob("error-*")]  # the first to fail may end the other
        assert errors, result.stderr[-3000:]
        assert all("steps_per_generation" in error for error in errors)
    else:
        assert result.returncode == 0, result.stderr[-3000:]
        logs = json.loads((tmp_path / "logs.json").read_text())
        assert logs["history"][0]["rewardsmith/size/mean"] == GROUP
        groups = [logs["rewards"][start : start + GROUP] for start in (0, GROUP)]
        assert all(min(group) == 0 for group in groups)
