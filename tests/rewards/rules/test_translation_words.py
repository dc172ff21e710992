"""The true quality of a translation in the tiny world."""

import pytest

from rewardsmith.rewards import CannotScore
from tests.rewards.rules.ask import value


@pytest.mark.parametrize(
    ("text", "quality"),
    [
        ("PTQ", 1.0),
        (" PTQ\n", 1.0),
        ("PTV", 2 / 3),
        ("PTQM", 2 / 3),
        ("PT", 2 / 3),
        ("kab", 0.0),
        ("", 0.0),
        ("PTQ" * 1_000_000, 0.0),
    ],
)
def test_quality(text: str, quality: float) -> None:
    assert value("translation_words", text, info={"src_text": "kab"}) == pytest.approx(quality)


def test_the_sentence_may_lie_where_verl_puts_it() -> None:
    assert value("translation_words", "PTQ", info={"extra_info": {"src_text": "kab"}}) == 1.0


@pytest.mark.parametrize("info", [{}, {"src_text": ""}, {"src_text": 7}, {"src_text": "Guten Tag"}])
def test_a_prompt_without_a_sentence_is_a_failure(info: dict) -> None:
    with pytest.raises(CannotScore) as caught:
        value("translation_words", "PTQ", info=info)
    assert caught.value.kind == "invalid"
