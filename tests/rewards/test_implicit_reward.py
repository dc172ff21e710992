"""The implicit process reward where nothing is trained: two models are called, and their distance is the reward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score, UserError
from rewardsmith.engines.embedded.chat_model import EmbeddedChatModel
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.engines.protocol import Outputs, Row
from rewardsmith.learning import OptimizerSettings
from rewardsmith.llm import ModelCallError, TokenLogprobs, Usage
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.base import score
from rewardsmith.rewards.implicit import Implicit

PROMPT = Prompt("p", [Message("user", "1+1?")], answer="2")


@dataclass
class Fixed:
    """Reads an answer letter by letter; the log-probability of each is a function of text and place."""

    name: str
    logprob: Callable[[str, int], float]
    usage: Usage = field(default_factory=Usage)
    width: int = 1
    checked: int = 0

    async def identity(self) -> str:
        return self.name

    async def check(self) -> None:
        self.checked += 1

    async def read(self, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs]:
        found = []
        for rollout in group.rollouts:
            if "unparsable" in rollout.text:
                raise ModelCallError("refused", f"{self.name} cannot read this")
            ends = list(range(self.width, len(rollout.text), self.width)) + [len(rollout.text)] * bool(rollout.text)
            numbers = [self.logprob(rollout.text, i) if adapter else -1.0 for i in range(len(ends))]
            found.append(TokenLogprobs(np.array(numbers, np.float32), np.array(ends, np.int32)))
        return found


def model_of(text: str, place: int) -> float:
    return -0.5 if text[place].isdigit() else -2.0


def reference_of(text: str, place: int) -> float:
    return -1.0


MODELS: Mapping[str, Any] = {"prm": Fixed("prm", model_of), "base": Fixed("base", reference_of)}


def scores(*texts: str, models: Mapping[str, Any] = MODELS, tokens: bool = True, **changes: Any) -> Sequence[Score]:
    """Return the scores of answers, whose tokens are their letters."""
    rollouts = [Rollout(t, [1] * len(t), [-1.0] * len(t)) if tokens else Rollout(t) for t in texts]
    table = {"type": "implicit", "model": "prm", "reference_model": "base", "separator": ";", "beta": 0.5} | changes
    if table["reference_model"] is None:
        table.pop("reference_model")
    reward = make_reward(table, models=models)
    return asyncio.run(score(reward, RolloutGroup(PROMPT, rollouts))).scores


# ---- the numbers ---------------------------------------------------------------------------------------------------


def test_the_reward_of_a_token_is_beta_times_the_log_ratio() -> None:
    (found,) = scores("1+2")
    up, down = 0.5 * (-0.5 + 1.0), 0.5 * (-2.0 + 1.0)
    assert found.value == pytest.approx(up + down + up)
    assert found.token_values is not None
    assert found.token_values.tolist() == pytest.approx([up, down, up])
    assert found.token_support is None  # every token carries one


@pytest.mark.parametrize(
    ("granularity", "values", "support"),
    [
        ("step", [0, 0, 0.0, 0, 0.5], [False, False, True, False, True]),  # 12; and 34
        ("whole", [0, 0, 0, 0, 0.5], [False, False, False, False, True]),
    ],
)
def test_the_rewards_of_a_step_lie_on_its_last_token(
    granularity: str, values: list[float], support: list[bool]
) -> None:
    (found,) = scores("12;34", granularity=granularity)
    assert found.token_values is not None
    assert found.token_support is not None
    assert found.token_values.tolist() == pytest.approx(values)
    assert found.token_support.tolist() == support
    assert found.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("sum", 3 * 0.25 + 4 * -0.5), ("mean", (3 * 0.25 + 4 * -0.5) / 7), ("lowest-step", -1.0)],
)
def test_what_an_answer_is_worth_is_a_choice(setting: str, value: float) -> None:
    (found,) = scores("12;+;3+", value=setting)  # steps: 12;  +;  3+
    assert found.value == pytest.approx(value)
    assert found.feedback == "steps: +0.000 -1.000 -0.250; lowest: step 2"


def test_a_step_without_a_token_of_its_own_is_not_the_lowest() -> None:
    models = {"prm": Fixed("prm", lambda *_: -0.5, width=4), "base": Fixed("base", reference_of, width=4)}
    (found,) = scores("1;2;3;4;", models=models, tokens=False, value="lowest-step")
    assert found.value == pytest.approx(0.25)  # of four steps two end inside a token


def test_smoothing_moves_rewards_but_not_what_the_answer_is_worth() -> None:
    (original,), (moved,) = scores("1+2"), scores("1+2", smooth=0.5)
    assert moved.value == original.value
    assert moved.token_values is not None
    assert moved.token_values.tolist() == pytest.approx([0.25 + 0.5 * -0.5 + 0.25 * 0.25, -0.5 + 0.5 * 0.25, 0.25])


def test_a_text_without_tokens_is_read_too_and_its_steps_are_in_the_feedback() -> None:
    (found,) = scores("12;+", tokens=False)
    assert found.token_values is None  # there are no tokens that these could belong to
    assert found.feedback == "steps: +0.000 -0.500; lowest: step 2"


# ---- what cannot be scored -------------------------------------------------------------------------------------------


def test_an_answer_that_cannot_be_read_costs_the_others_nothing() -> None:
    first, bad, last = scores("1", "unparsable", "+")
    assert (first.value, last.value) == (pytest.approx(0.25), pytest.approx(-0.5))
    assert bad.failure is not None
    assert (bad.failure.kind, bad.failure.detail) == ("refused", "prm cannot read this")


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"prm": Fixed("prm", model_of), "base": Fixed("base", reference_of, width=2)}, "as the same tokens"),
        ({"prm": Fixed("prm", lambda *_: -np.inf), "base": Fixed("base", reference_of)}, "is not finite"),
        ({"prm": Fixed("prm", model_of), "base": Fixed("base", lambda *_: -np.inf)}, "is not finite"),
    ],
)
def test_what_is_no_number_is_a_failure(models: Mapping[str, Any], message: str) -> None:
    (found,) = scores("1+2", models=models, tokens=False)
    assert found.failure is not None
    assert found.failure.kind == "invalid"
    assert message in found.failure.detail


def test_a_model_that_cannot_read_is_named() -> None:
    class Served:
        name = "prm"

    (found,) = scores("1", models={"prm": Served(), "base": MODELS["base"]})
    assert found.failure is not None
    assert "models.prm gives no log-probabilities" in found.failure.detail


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r'is "start".*set.*reference_model'),
        ({"reference": "policy"}, r'is "policy".*set reference = "start" and reference_model'),
    ],
)
def test_without_a_reference_there_are_no_rewards(settings: dict[str, Any], message: str) -> None:
    reward = Implicit(model="prm", **settings)
    reward.connect(MODELS.__getitem__)
    with pytest.raises(UserError, match=message):
        asyncio.run(reward.check())
    reward.online = True  # the trainer has its reference
    asyncio.run(reward.check())


# ---- with real models ------------------------------------------------------------------------------------------------


def test_the_reference_may_be_the_same_model_without_its_adapter() -> None:
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cpu", lora=LoraSettings(rank=2)), name="prm")
    base = EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cpu"), name="base")
    text = "1+1=2;#2"
    row = Row(engine.encode(PROMPT), engine.encode_response(text))

    def both(**changes: Any) -> float:
        models = {"prm": EmbeddedChatModel(engine), "base": EmbeddedChatModel(base)}
        (found,) = scores(text, models=models, tokens=False, **changes)
        assert found.value is not None
        return found.value

    assert both() == both(reference_model=None, reference="adapter-off") == 0.0  # nothing has been learned yet

    def upwards(outputs: Outputs) -> torch.Tensor:
        return -outputs.logprobs_bT.sum()

    engine.learn_with(OptimizerSettings(lr=1e-2))
    for _ in range(5):
        engine.update([row], upwards, lr=1e-2)
    rewards = 0.5 * float((engine.logprobs([row]) - base.logprobs([row])).sum())
    assert rewards > 0.5
    assert both() == pytest.approx(rewards, abs=1e-5)
    assert both(reference_model=None, reference="adapter-off") == pytest.approx(rewards, abs=1e-5)


def test_what_a_run_records_of_it() -> None:
    facts = Implicit(model="prm", beta=0.1, reference_model="base").facts()
    assert facts | {"beta": 0.1, "reference": "base", "loss": "cross-entropy", "offset": "none"} == facts
    assert "loss" not in Implicit(model="prm", update="none").facts()
