"""A reward of ours in OpenRLHF's own executor, which generates an answer and then calls the reward file."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rewardsmith import UserError
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.integrations.openrlhf_reward import openrlhf_reward
from rewardsmith.integrations.peer_rows import ScoreFailedError

if find_spec("openrlhf") is None:
    pytest.skip("OpenRLHF is not installed", allow_module_level=True)
from openrlhf.utils.agent import SingleTurnAgentExecutor

pytestmark = pytest.mark.filterwarnings("default")  # of its libraries
EXAMPLE = Path(__file__).parents[2] / "examples" / "integrations" / "openrlhf_file.py"
PROMPT = "<|user|>12 + 30 = ?<|assistant|>"


class Engine:
    """Writes one answer, as OpenRLHF's vLLM engine does."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    async def generate(self, prompt: list[int], sampling: Any, multi_modal_data: Any = None) -> Any:
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=self._tokens, finish_reason="stop", logprobs=None)])


def execute(file: Path, answer: str, label: Any) -> dict[str, Any]:
    tokenizer: Any = make_tiny("tiny-llama", seed=0)[1]
    sampling = SimpleNamespace(max_tokens=64, logprobs=None)
    executor = SingleTurnAgentExecutor(str(file))
    engine = Engine(tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"])
    return asyncio.run(executor.execute(PROMPT, label, sampling, 256, tokenizer, engine))


@pytest.mark.parametrize(("answer", "right"), [("It is 42", 1.0), ("It is 41", 0.0)])
def test_an_answer_gets_its_reward_and_parts(answer: str, right: float) -> None:
    output = execute(EXAMPLE, answer, "42")
    assert output["reward"] == output["scores"] == pytest.approx(right + 0.1)
    assert output["extra_logs"] == {"part/answer": right, "part/short": 1.0}


def test_the_reward_gets_the_answer_alone(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        "from rewardsmith.integrations.openrlhf_reward import openrlhf_reward\n"
        "seen = []\n"
        "def score(response, answer):\n"
        "    seen.append((response, answer))\n"
        "    return float(len(response))\n"
        "reward_func = openrlhf_reward(score)\n"
    )
    assert execute(file, "abc", "42")["reward"] == 3.0


def test_a_failure_is_no_reward(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        "from rewardsmith.integrations.openrlhf_reward import openrlhf_reward\n"
        "def score(response): raise ValueError('the judge is confused')\n"
        "reward_func = openrlhf_reward(score)\n"
    )
    output = execute(file, "abc", "42")
    assert (output["reward"], output["scores"], output["extra_logs"]) == (None, None, {})


def test_several_answers_at_once_and_what_is_raised() -> None:
    reward = openrlhf_reward({"type": "rule", "rule": "exact"})
    table = reward(["Q: 1</s>", "Q: 2"], ["Q: ", "Q: "], ["1", "1"])
    assert table == {"rewards": [1.0, 0.0], "scores": [1.0, 0.0], "extra_logs": {}}
    with pytest.raises(ScoreFailedError, match="invalid"):
        reward(["Q: 1"], ["Q: "], [None])


def test_a_ranking_is_refused() -> None:
    with pytest.raises(UserError, match="one answer"):
        openrlhf_reward(lambda responses: [float(len(one)) for one in responses])
