"""Several verdicts of one judge: their mean, and how many of them may fail."""

from collections.abc import Sequence

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.rewards.judges.custom import CustomJudge
from rewardsmith.rewards.judges.rubric import Rubric
from rewardsmith.rewards.judges.verifier import Verifier
from tests.rewards.judges.asked import group, judge, make, outcomes
from tests.rewards.models import Said

WARM = {"request": {"temperature": 0.7, "tries": 1}}
LIST = [{"text": "It is right.", "name": "right"}, {"text": "It is short.", "name": "short", "points": 3.0}]


@pytest.mark.parametrize(
    ("kind", "settings", "said", "value"),
    [
        (Verifier, {}, ["True", "False", "True", "True"], 3 / 4),
        (Rubric, {"criteria": "right"}, ["Total Score: 8", "Total Score: 9", "Total Score: 4"], (0.8 + 0.9 + 0.4) / 3),
        (CustomJudge, {}, ["Score: 2", "Score: 5"], 0.35),
        (CustomJudge, {"postprocess": "tests.rewards.judges.hooks:stars"}, ["*", "**"], 0.15),
    ],
)
def test_the_mean(kind: type, settings: dict[str, object], said: list[Said], value: float) -> None:
    votes = len(said)
    (score,), model = judge(kind, said, group("42"), votes=votes, **settings, **WARM)
    assert score.value == pytest.approx(value)
    assert model.most == votes  # all at once
    assert len({question.seed for question in model.asked}) == votes
    assert len({question.attempt for question in model.asked}) == votes  # a cache tells them apart
    assert all(f"[vote {i} of {votes}: " in score.feedback for i in range(1, votes + 1))
    assert all(str(text) in score.feedback for text in said)


def test_each_criterion_has_its_votes() -> None:
    said: Sequence[Said] = ["Total Score: 1", "Total Score: 0", "Total Score: 3", "Total Score: 3"]
    (score,), _ = judge(Rubric, said, group("42"), criteria=LIST, calls="each", votes=2, **WARM)
    assert {name: part.value for name, part in score.parts.items()} == {"right": 0.5, "short": 1.0}
    assert score.value == pytest.approx((1 * 0.5 + 3 * 1.0) / 4)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (["True", "hm", "False"], 0.5),
        (["True", "hm", "hm"], "unparsable"),
        (["True", "hm"], "unparsable"),
        (["True", "True", "hm", "hm"], "unparsable"),  # half is not more than half
        (["True", "True", "False", "hm", "hm"], 2 / 3),
        (["hm", ModelCallError("unreachable", "gone"), "True"], "unreachable"),  # what waiting may mend
        ([ModelCallError("timeout", "slow"), "hm", "True"], "timeout"),
    ],
)
def test_more_than_half_must_be_readable(said: list[Said], value: float | str) -> None:
    (score,), _ = judge(Verifier, said, group("42"), votes=len(said), **WARM)
    assert outcomes([score]) == [value]
    assert score.feedback.count("\nTrue") == said.count("True")


@pytest.mark.parametrize(("kind", "settings"), [(Verifier, {}), (Rubric, {"criteria": "x"}), (CustomJudge, {})])
def test_a_cold_judge_would_say_the_same_each_time(kind: type, settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match=r"votes = 3 needs request\.temperature above 0"):
        make(kind, votes=3, **settings)
    make(kind, votes=1, **settings)
