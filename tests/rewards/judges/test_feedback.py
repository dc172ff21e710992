"""What a judge wrote is kept where there is no verdict: for people, who must see why it could not be read."""

from pathlib import Path

from rewardsmith.llm import ChatRequest, RequestSettings
from rewardsmith.rewards.judges.pairwise import Pairwise
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.rewards.judges.rubric import Rubric
from tests.rewards.judges.asked import group, judge, outcomes
from tests.rewards.models import Said, text_of

DIGITS = str(Path(__file__).parent / "plugins" / "digits.py")
LIST = [{"text": "It is right.", "name": "right"}, {"text": "It is short.", "name": "short"}]
TWICE = {"request": {"tries": 2}}


def test_each_criterion() -> None:
    def script(question: ChatRequest) -> Said:
        return "hm" if "It is short." in text_of(question) else "Total Score: 1"

    (score,), _ = judge(Rubric, script, group("42"), criteria=LIST, calls="each", **TWICE)
    assert outcomes([score]) == ["unparsable"]
    lost = score.parts["short"].feedback
    assert lost.count("\nhm") == lost.count("[try ") == 2
    assert score.feedback == f"[right] Total Score: 1\n\n[short] {lost}"


def test_a_ranking_with_the_letter_of_each_answer() -> None:
    (a, b), model = judge(RankingJudge, lambda question: "I cannot", group("3", "8"), orders=2, **TWICE)
    assert outcomes([a, b]) == ["unparsable", "unparsable"]
    assert len(model.asked) == 4
    for score in (a, b):
        assert score.feedback.count("]\nI cannot") == score.feedback.count("[try ") == 4
        assert "[this answer is candidate A of 2]" in score.feedback
        assert "[this answer is candidate B of 2]" in score.feedback


def test_pairs_in_both_orders() -> None:
    def script(question: ChatRequest) -> Said:
        first = text_of(question).partition("Answer A:")[2]
        return "Verdict: A" if first.startswith("\n```\nx\n") else "they differ"

    settings = {"request": RequestSettings(tries=1).model_dump()}
    scores, _ = judge(Pairwise, script, group("x", "y"), **settings)
    assert outcomes(scores) == ["unparsable", "unparsable"]
    for score, names in zip(scores, ("AB", "BA"), strict=True):
        assert f"[this answer is {names[0]}]\nVerdict: A" in score.feedback
        assert f"[this answer is {names[1]}]\n[try 1: " in score.feedback
        assert score.feedback.count("]\nthey differ") == 1
