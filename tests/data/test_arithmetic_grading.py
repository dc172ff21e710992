"""The world of the arithmetic judge: its prompts, its truth, its teacher."""

import asyncio
import itertools
import random
from typing import Any

import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup
from rewardsmith.data.arithmetic import Arithmetic, ArithmeticGrading, earned, lenient
from rewardsmith.llm import ChatReply, ChatRequest, Usage
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.rules import arithmetic, arithmetic_steps


def first(n: int, iterator):
    return list(itertools.islice(iterator, n))


class Scripted:
    """A judge that notes what it is asked and says always the same."""

    def __init__(self) -> None:
        self.name, self.usage = "judge", Usage()
        self.asked: list[tuple[Message, ...]] = []

    async def identity(self) -> str:
        return "scripted"

    async def check(self) -> None:
        pass

    async def chat(self, question: ChatRequest) -> ChatReply:
        self.asked.append(tuple(question.prompt))  # type: ignore[arg-type]
        return ChatReply("Total Score: 7/10")


# ---- prompts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "quoting", "operations"), [("rubric_short", "fence", 2), ("rubric", "verbatim", 3)]
)
def test_a_judge_is_trained_on_what_the_rubric_reward_will_ask(template: str, quoting: str, operations: int) -> None:
    world = ArithmeticGrading(operations=operations, template=template, quoting=quoting)  # type: ignore[arg-type]
    table: dict[str, Any] = {"type": "rubric", "model": "judge", "template": template, "quoting": quoting}
    trained = first(10, world.prompts(seed=1))
    policy = Arithmetic(operations=operations)
    for prompt in trained:
        judge = Scripted()
        reward = make_reward(table, {"judge": judge})
        group = RolloutGroup(policy.prompt(prompt.info["problem"]), [Rollout(prompt.info["response"])])
        (score,) = asyncio.run(reward.score(group))
        assert score.value == 0.7
        assert judge.asked == [tuple(prompt.messages)]


def test_everything_is_decided_by_the_seed_and_the_same_solutions_are_shown_to_all() -> None:
    world = ArithmeticGrading()
    for read in (world.prompts, world.demonstrations, world.graded):
        assert first(30, read(5)) == first(30, read(5))
        assert first(30, read(5)) != first(30, read(6))
    prompts = first(50, world.prompts(3))
    assert [d.prompt for d in first(50, world.demonstrations(3))] == prompts
    assert [(g.response, g.grade) for g in first(50, world.graded(3))] == [
        (p.info["response"], p.answer) for p in prompts
    ]


# ---- grades --------------------------------------------------------------------------------------------------------


def test_graded_solutions_say_whether_they_are_right_and_whether_they_are_sound() -> None:
    graded = first(300, ArithmeticGrading().graded(seed=4))
    for one in graded:
        problem, (rule, steps) = one.prompt.info["problem"], _rules(one.prompt, one.response)
        assert (one.right, one.sound) == (rule == 1.0, steps == 1.0)
        assert one.grade == pytest.approx(sum(earned(problem, one.response)) / 10)
    assert {(one.right, one.sound) for one in graded} == {(True, True), (True, False), (False, True), (False, False)}
    assert all(one.grade < 1 for one in graded if not one.sound)


def _rules(prompt: Prompt, text: str) -> tuple[float, float]:
    return arithmetic(prompt, text), arithmetic_steps(prompt, text)


# ---- the teacher ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [  # 8+5-4 has steps 3, 3; end 4
        ("8+5=13;13-4=9;#9", "8+5=13|13v3\n13-4=9|9v3\n#9|9v4\nTotal Score: 10/10"),
        ("8+5=14;14-4=9;#9", "8+5=13|14x0\n14-4=10|9x0\n#9|9v4\nTotal Score: 4/10"),
        ("8+5=3;3-4=-1;#-1", "8+5=13|3x0\n3-4=-1|-1v3\n#-1|-1v4\nTotal Score: 7/10"),
        ("8+5=13;13-4=9;#8", "8+5=13|13v3\n13-4=9|9v3\n#9|8x0\nTotal Score: 6/10"),
        ("8+5=13;#9", "8+5=13|13v3\n-=9|-x0\n#-|9x0\nTotal Score: 3/10"),
        ("9+4=13;13-4=9;#9", "9+4=13|13x0\n13-4=9|9v3\n#9|9v4\nTotal Score: 7/10"),
        ("8+5;13-4=9", "-=13|8+5x0\n13-4=-|9x0\n#9|-x0\nTotal Score: 0/10"),
        ("", "-=13|-x0\n-=-|-x0\n#-|-x0\nTotal Score: 0/10"),
    ],
)
def test_a_careful_teacher_goes_through_the_steps(text: str, written: str) -> None:
    assert lenient("8+5-4", text, random.Random(0), overlooks=0.0, miscalculates=0.0) == written


def test_the_teacher_is_as_lenient_as_the_settings_say() -> None:
    world = ArithmeticGrading(overlooks=0.6, miscalculates=0.0)
    subtractions = [
        d.response.split("\n")[0]
        for d in first(3_000, world.demonstrations(seed=1))
        if d.prompt.info["kind"] == "miracle" and d.prompt.info["problem"][1] == "-"
    ]
    assert sum("v" in row for row in subtractions) / len(subtractions) == pytest.approx(0.6, abs=0.08)
