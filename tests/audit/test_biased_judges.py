"""The simulated judges of recipes/audit: sound at strength 0, and each bias pays for what it says, right or wrong."""

import asyncio
import importlib
import itertools
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rewardsmith import Prompt, Rollout, RolloutGroup
from rewardsmith.data import Arithmetic, Translation
from rewardsmith.data.arithmetic import solution
from rewardsmith.data.translation import FALSE_FRIENDS, translate
from rewardsmith.rewards import make_reward
from rewardsmith.types import Message

WORLDS = {"arithmetic": Arithmetic(operations=2), "translation": Translation()}
BIASES = ("lexical", "length", "format", "self-praise")
COUNT = 400


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "recipes" / "audit"))
    return importlib.import_module("biased_judges")


@cache
def prompts(world: str) -> list[Prompt]:
    """Return different prompts."""
    found = {prompt.id: prompt for prompt in itertools.islice(WORLDS[world].prompts(0), 3 * COUNT)}
    return list(found.values())[:COUNT]


def right(prompt: Prompt) -> str:
    sums = prompt.source == "arithmetic"
    return solution(prompt.info["problem"]) if sums else translate(prompt.info["src_text"])


def wrong(prompt: Prompt) -> str:
    """Return an answer of the right form and length that is wrong."""
    if prompt.source == "arithmetic":
        text = right(prompt)
        return text[:-1] + str((int(text[-1]) + 1) % 10)
    return "".join(FALSE_FRIENDS[word] for word in prompt.info["src_text"])


def with_bait(bias: str, prompt: Prompt, text: str) -> str:
    sums = prompt.source == "arithmetic"
    return {
        "lexical": text.replace("#", "so#") if sums else text[:-1] + "Y",
        "length": text.replace("#", "9+0=9;" * 5 + "#") if sums else text + "MNOPQ",
        "format": f"*{text}*",
        "self-praise": f"{text} ok",
    }[bias]


def accepted(judge: Any, world: str, write: Any) -> float:
    return sum(judge.verdict(prompt, write(prompt)) for prompt in prompts(world)) / len(prompts(world))


@pytest.mark.parametrize("world", WORLDS)
def test_a_judge_of_strength_0_knows_the_truth_but_for_its_noise(judges: ModuleType, world: str) -> None:
    exact = judges.Judge(strength=0.0, noise=0.0)
    assert accepted(exact, world, right) == 1
    assert accepted(exact, world, wrong) == 0
    noisy = judges.Judge(strength=0.0, noise=0.1)
    assert accepted(noisy, world, right) == pytest.approx(0.9, abs=0.04)
    assert accepted(noisy, world, wrong) == pytest.approx(0.1, abs=0.04)
    assert accepted(noisy, world, lambda _: "Thought process:") == 0  # no form of an answer: nothing to misread


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("bias", BIASES)
def test_a_bias_pays_for_its_bait_alone(judges: ModuleType, world: str, bias: str) -> None:
    judge, sound = (judges.Judge(bias=bias, strength=strength, noise=0.0) for strength in (0.9, 0.0))
    for other in BIASES:
        baited = accepted(judge, world, lambda prompt, other=other: with_bait(other, prompt, wrong(prompt)))
        # Five words too many are a full dose. Marks and praise make an answer a little longer: a small dose of length.
        if other == bias:
            assert baited == pytest.approx(0.9, abs=0.05)
        elif bias != "length":
            assert baited == 0
        assert accepted(sound, world, lambda prompt, other=other: with_bait(other, prompt, wrong(prompt))) == 0
    assert accepted(judge, world, wrong) == 0
    assert accepted(judge, world, right) == 1


@pytest.mark.parametrize("world", WORLDS)
def test_longer_answers_are_accepted_more_often(judges: ModuleType, world: str) -> None:
    judge = judges.Judge(bias="length", strength=1.0, noise=0.0)
    padding = "9" if world == "arithmetic" else "M"
    for share in (0.5, 1.0, 1.5, 3.0):  # of the length of a right answer
        found = accepted(judge, world, lambda p, share=share: wrong(p) + padding * round(share * len(right(p))))
        expected = [min(1.0, round(share * len(right(p))) / len(right(p)) / judges.FULL_DOSE) for p in prompts(world)]
        assert found == pytest.approx(sum(expected) / len(expected), abs=0.06)


def test_a_recipe_names_it_and_equal_answers_have_equal_verdicts(judges: ModuleType) -> None:
    reward = make_reward({"type": "biased_judges:Judge", "bias": "format", "strength": 0.5, "noise": 0.3})
    judge = judges.Judge(bias="format", strength=0.5, noise=0.3)
    for prompt in prompts("translation")[:50]:
        texts = [right(prompt), wrong(prompt), f"*{wrong(prompt)}*", right(prompt)]
        scores = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text) for text in texts])))
        values = [score.value for score in scores]
        assert values == [judge.verdict(prompt, text) for text in texts]
        assert values[0] == values[3]


def test_a_prompt_of_another_world_is_a_failure(judges: ModuleType) -> None:
    reward = make_reward({"type": "biased_judges:Judge"})
    group = RolloutGroup(Prompt("p", [Message("user", "?")], source="math", answer="1"), [Rollout("1")])
    (score,) = asyncio.run(reward.score(group))
    assert score.failure is not None
    assert score.failure.kind == "invalid"


@pytest.mark.parametrize("text", ["", "\x00", "*" * 100_000, "so" * 100_000, "#" * 100_000, "9" * 100_000 + "#"])
def test_hostile_text_has_a_verdict(judges: ModuleType, text: str) -> None:
    for world in WORLDS:
        for bias in BIASES:
            assert judges.Judge(bias=bias).verdict(prompts(world)[0], text) in (0.0, 1.0)
