"""Is it the reference answer in other words: what the model sees, and what its words are worth."""

import asyncio

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.verifier import Verifier
from tests.rewards.judges.asked import connected, group, judge, make, outcomes
from tests.rewards.models import text_of

MODELS_42 = "## Model's answer\n\n```\n42\n"


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("True", 1.0),
        ("False", 0.0),
        ("Both are 42.\n\nAnswer: True", 1.0),
        ("<think>Is it true? Yes.</think>\n\nAnswer: False", 0.0),
        ("not true", 0.0),
        ("False, although one may think that it is true.", 0.0),
        ("Answer: equivalent", 1.0),
        ("Answer: not equivalent", 0.0),
        ("Answer: incorrect", 0.0),
        ("I think that true is the right word here", "unparsable"),
        ("Answer: True\nAnswer: False", "unparsable"),
        ("<think>Answer: True", "unparsable"),
    ],
)
def test_what_its_words_are_worth(said: str, value: float | str) -> None:
    scores, _ = judge(Verifier, [said], group("42"), request={"tries": 1})
    assert outcomes(scores) == [value]


def test_equal_answers_are_asked_about_once() -> None:
    texts = ["It is \\boxed{42}.", "So \\boxed{42}", "The answer is 42.", "#### 7", "42"]
    scores, model = judge(Verifier, lambda q: "True" if MODELS_42 in text_of(q) else "False", group(*texts))
    assert outcomes(scores) == [1, 1, 1, 0, 1]
    assert len(model.asked) == 2


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({}, "42"),
        ({"show": "response"}, "Let me see. It is \\boxed{42}."),
        ({"extract": ["tagged"]}, None),
    ],
)
def test_what_the_model_sees(settings: dict[str, object], seen: str | None) -> None:
    scores, model = judge(Verifier, ["True"], group("Let me see. It is \\boxed{42}."), **settings)
    if seen is None:
        assert model.asked == []
        assert outcomes(scores) == [0.0]  # no answer is not the reference answer
    else:
        assert f"## Model's answer\n\n```\n{seen}\n```" in model.seen[0]


@pytest.mark.parametrize("text", ["", "  ", "<think>I wonder"])
def test_no_answer(text: str) -> None:
    scores, model = judge(Verifier, [], group(text))
    assert outcomes(scores) == [0.0]
    assert model.asked == []


def test_several_references() -> None:
    _, model = judge(Verifier, ["True"], group("x", answer=["42", 42.5]))
    assert "## Reference answer\n\n```\n42\nor: 42.5\n```" in model.seen[0]


@pytest.mark.parametrize("answer", [None, [], {"a": 1}])
def test_a_prompt_without_a_reference(answer: object) -> None:
    reward, model = connected(Verifier, [])
    with pytest.raises(CannotScore) as caught:
        asyncio.run(reward.score(group("42", answer=answer)))
    assert caught.value.kind == "invalid"
    assert model.asked == []


def test_a_server_that_is_gone_fails_one_rollout_alone() -> None:
    scores, _ = judge(Verifier, ["True", ModelCallError("timeout", "slow"), "no"], group("1", "2", "3"))
    assert outcomes(scores) == [1.0, "timeout", 0.0]


def test_ways_to_find_an_answer_that_is_not_looked_for() -> None:
    with pytest.raises(UserError, match=r'extract = .* has no effect with show = "response"'):
        make(Verifier, show="response", extract=["boxed"])
    make(Verifier, extract=["boxed"])


def test_a_template_must_show_both() -> None:
    with pytest.raises(UserError, match='template = "rubric" has'):
        make(Verifier, template="rubric")
