"""Whether a prompt can be judged at all is known before anything is sampled, and without a model."""

from pathlib import Path

import pytest

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.classifier import Classifier
from rewardsmith.rewards.judges.custom import CustomJudge
from rewardsmith.rewards.judges.pairwise import Pairwise
from rewardsmith.rewards.judges.plugin import Plugin
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.rewards.judges.rubric import Rubric
from rewardsmith.rewards.judges.similarity import Similarity
from rewardsmith.rewards.judges.verifier import Verifier
from tests.rewards.judges.asked import group, make

DIGITS = str(Path(__file__).parent / "plugins" / "digits.py")
NONE = {"answer": None}
LANGUAGES = {"src_lang": "de", "trg_lang": "en"}
COLUMN = {"prompt_field": "rm_prompt"}


@pytest.mark.parametrize(
    ("kind", "settings", "good", "bad", "message"),
    [
        (Rubric, {}, {"criteria": "right"}, {}, "no 'criteria'"),
        (Rubric, {"field": "rubric"}, {"rubric": ["right"]}, {"criteria": "right"}, "no 'rubric'"),
        (Rubric, {"calls": "each"}, {"criteria": ["right"]}, {"criteria": "right"}, "is text: calls"),
        (Verifier, {}, {}, NONE, "no answer"),
        (CustomJudge, {"prompt": "{{response}} {{level}}"}, {"level": 3}, {}, "'level'"),
        (CustomJudge, {"prompt": "{{response}} {{reference}}"}, {}, NONE, "no answer"),
        (CustomJudge, COLUMN, {"rm_prompt": "{response}?"}, {}, "no 'rm_prompt'"),
        (CustomJudge, COLUMN, {"rm_prompt": "{response}?"}, {"rm_prompt": "?"}, "has no {response}"),
        (Plugin, {"file": DIGITS, **COLUMN}, {"rm_prompt": "?"}, {}, "no text 'rm_prompt'"),
        (RankingJudge, {"template": "ranking_translation"}, LANGUAGES, {}, "info.src_lang"),
        (Pairwise, {"against": "reference"}, {}, NONE, "no reference text in answer"),
        (Pairwise, {"against": "reference", "reference": "own"}, {"own": "x"}, {}, "no reference text in info.own"),
        (Similarity, {}, {}, NONE, "no reference text in answer"),
    ],
)
def test_what_a_prompt_must_have(
    kind: type, settings: dict[str, object], good: dict[str, object], bad: dict[str, object], message: str
) -> None:
    reward = make(kind, **settings)  # it has not been given a model
    reward.require(group("42", **good).prompt)
    with pytest.raises(CannotScore, match=message) as caught:
        reward.require(group("42", **bad).prompt)
    assert caught.value.kind == "invalid"


def test_a_rubric_whose_template_shows_the_reference(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("{{criteria}} {{reference}} {{response}}")
    reward = make(Rubric, criteria="right", template=str(own))
    reward.require(group("42").prompt)
    with pytest.raises(CannotScore, match="no answer"):
        reward.require(group("42", answer=None).prompt)


def test_a_critic_who_is_shown_the_reference(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("{{reference}} {{response}}")
    reward = make(Classifier, critique={"model": "judge", "template": str(own)})
    reward.require(group("42").prompt)
    with pytest.raises(CannotScore, match="no answer"):
        reward.require(group("42", answer=None).prompt)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Rubric, {"criteria": "right"}),
        (CustomJudge, {}),
        (CustomJudge, {"preprocess": "tests.rewards.judges.hooks:broken"}),
        (Plugin, {"file": DIGITS}),
        (RankingJudge, {}),
        (Pairwise, {}),
        (Classifier, {}),
        (Classifier, {"critique": {"model": "judge"}}),
    ],
)
def test_those_that_need_nothing(kind: type, settings: dict[str, object]) -> None:
    make(kind, **settings).require(group("42", answer=None).prompt)
