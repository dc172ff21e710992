"""The strings of the translation world: its dictionary, its truth and its analysis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.data.translation import (
    DICTIONARY,
    FALSE_FRIENDS,
    HARD,
    SOURCE_WORDS,
    TARGET_WORDS,
    errors,
    pairs,
    quality,
    score_of,
    translate,
    write_analysis,
)

sentences = st.text(SOURCE_WORDS, min_size=1, max_size=5)


def test_the_dictionary_is_one_to_one_and_no_false_friend_is_right() -> None:
    for words in (DICTIONARY, FALSE_FRIENDS):
        assert "".join(words) == SOURCE_WORDS
        assert sorted(words.values()) == sorted(TARGET_WORDS)
    assert all(DICTIONARY[word] != FALSE_FRIENDS[word] for word in SOURCE_WORDS)
    assert len(set(HARD)) == 4
    assert set(HARD) < set(SOURCE_WORDS)
    assert not set(TARGET_WORDS) & set("ABCD")  # what candidates are called


@pytest.mark.parametrize("sentence", ["", "abz", "PTQ", "a b", "ａ"])
def test_what_is_no_sentence_is_refused(sentence: str) -> None:
    with pytest.raises(ValueError, match="not a sentence"):
        translate(sentence)


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


@given(sentences)
def test_the_right_translation_has_no_errors(sentence: str) -> None:
    assert errors(sentence, translate(sentence)) == 0
    assert errors(sentence, "".join(map(FALSE_FRIENDS.__getitem__, sentence))) == len(sentence)


@given(sentences, st.text(max_size=200))
def test_any_text_has_a_quality(sentence: str, text: str) -> None:
    assert 0.0 <= quality(sentence, text) <= 1.0
    assert (quality(sentence, text) == 1.0) == (text == translate(sentence))


def test_scores_fall_by_two_and_end_at_0() -> None:
    assert [score_of(wrong) for wrong in range(8)] == [10, 8, 6, 4, 2, 0, 0, 0]


def test_an_analysis_copies_every_pair_marks_it_and_adds_up() -> None:
    texts = ["PTV", "WT", "PTQQ"]
    compared = [pairs("kab", text) for text in texts]
    true = [[not pair.right for pair in found] for found in compared]
    assert write_analysis("ABC", compared, true, [8, 6.0, 8]) == "A:kP.aT.bV!=8\nB:kW!aT.b-!=6\nC:kP.aT.bQ.+Q!=8"
    blind = [[False] * len(found) for found in compared]
    overrated = write_analysis("ABC", compared, blind, [10, 10, 11.5])
    assert overrated == "A:kP.aT.bV.=10\nB:kW.aT.b-.=10\nC:kP.aT.bQ.+Q.=11.5"
