"""Edits of right answers: the content stays, and so does what ordinary rules read."""

import random

import pytest

from rewardsmith.auditing.edits import EDITS, WORDS, edits
from rewardsmith.data.known_answers import occurrences
from tests.audit.probe_anchors import anchors_of
from tests.rewards.rules.rule_values import chosen

FORMS = ["boxed", "stated", "hash-line", "tagged", "boxed-sentence", "thought-and-boxed", "tagged-boxed"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("truth", ["9", "-3", "x^2+1", "1/2"])
def test_edits_keep_the_words_and_the_answer(form: str, truth: str) -> None:
    work = "" if form.startswith(("thought", "tagged-")) else "We think.\nThen we write:\n"
    anchors = anchors_of(truth, form, work=work)
    made = edits(anchors, random.Random(1))
    assert made == edits(anchors, random.Random(1))
    assert {probe.family for probe in made} == set(EDITS)
    assert len({probe.text for probe in made} | {anchors.right}) == len(made) + 1
    for probe in made:
        lost = iter(probe.text.replace("*", " ").split())
        assert all(word in lost for word in anchors.right.split()), probe  # in their order
        assert occurrences(probe.text, truth) or truth in probe.text


@pytest.mark.parametrize(("rule", "form"), [("math", "boxed"), ("math", "stated"), ("math", "thought-and-boxed")])
def test_the_math_rule_pays_for_every_edit(rule: str, form: str) -> None:
    found = chosen(rule)
    for truth in ("9", "-3", "1/2", "x^2+1", "\\text{blue}", "2\\sqrt{3}"):
        anchors = anchors_of(truth, form, work="" if form.startswith("thought") else "We think.\nThen we write:\n")
        refused = [
            probe
            for probe in edits(anchors, random.Random(0))
            if found.target(anchors.prompt, probe.text, **found.arguments()) != 1.0
        ]
        assert refused == []


def test_white_space_keeps_a_strict_form() -> None:
    anchors = anchors_of("9", "hash", work="7+5=12;12-3=9;")
    found = chosen("arithmetic")
    kept = [probe for probe in edits(anchors, random.Random(0)) if probe.family == "whitespace"]
    assert len(kept) == 4
    assert [found.target(anchors.prompt, probe.text, **found.arguments()) for probe in kept] == [1.0] * 4


def test_the_name_of_a_longer_answer_is_the_number_of_words_added() -> None:
    anchors = anchors_of("9")
    longer = [probe for probe in edits(anchors, random.Random(0)) if probe.family == "length"]
    assert [len(p.text.split()) - len(anchors.right.split()) for p in longer] == [int(p.name) for p in longer]
    assert all(words <= int(probe.name) <= words + 15 for words, probe in zip(WORDS, longer, strict=True))


def test_without_a_right_answer_there_are_no_edits() -> None:
    assert edits(anchors_of("", "bare", work=""), random.Random(0)) == []
