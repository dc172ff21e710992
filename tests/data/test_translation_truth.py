"""The strings of the translation world: its dictionary, its truth and its analysis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.data.translation import (
    SOURCE_WORDS,
    errors,
    pairs,
    quality,
    translate,
    write_analysis,
)

sentences = st.text(SOURCE_WORDS, min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("PTQ", 0),
        ("PTV", 1),  # the false friend
        ("QTP", 2),  # the right words in the wrong places
        ("PT", 1),
        ("TQ", 3),  # the first is missing, and then nothing is in its place
        ("", 3),
        ("PTQQ", 1),
        ("PTQ" * 2, 3),
        ("kab", 3),
        ("ptq", 3),
        ("P T Q", 4),
        ("PTQ" + "\U0001f600" * 2, 2),
    ],
)
def test_errors_are_words_that_are_wrong_missing_or_too_many(text: str, wrong: int) -> None:
    assert errors("kab", text) == wrong
    assert quality("kab", text) == max(0.0, 1 - wrong / 3)


def test_a_megabyte_is_no_translation_and_costs_nothing() -> None:
    assert len(pairs("kab", "P" * 10_000_000)) == 64
    assert quality("kab", "PTQ" * 1_000_000) == 0.0


@given(sentences, st.text(max_size=200))
def test_any_text_has_a_quality(sentence: str, text: str) -> None:
    assert 0.0 <= quality(sentence, text) <= 1.0
    assert (quality(sentence, text) == 1.0) == (text == translate(sentence))


def test_an_analysis_copies_every_pair_marks_it_and_adds_up() -> None:
    texts = ["PTV", "WT", "PTQQ"]
    compared = [pairs("kab", text) for text in texts]
    true = [[not pair.right for pair in found] for found in compared]
    assert write_analysis("ABC", compared, true, [8, 6.0, 8]) == "A:kP.aT.bV!=8\nB:kW!aT.b-!=6\nC:kP.aT.bQ.+Q!=8"
    blind = [[False] * len(found) for found in compared]
    overrated = write_analysis("ABC", compared, blind, [10, 10, 11.5])
    assert overrated == "A:kP.aT.bV.=10\nB:kW.aT.b-.=10\nC:kP.aT.bQ.+Q.=11.5"
