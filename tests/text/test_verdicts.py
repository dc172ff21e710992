"""Yes or no: words that are the verdict, and words that merely occur."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.reading import Unreadable, after_thinking
from rewardsmith.text.verdicts import read_boolean

TRUE = [
    "True",
    "true.",
    "TRUE!",
    "**True**",
    " `True`\n",
    '"True"',
    "- True",
    "yes",
    "Answer: True",
    "**Answer:** True",
    "Answer: **True**.",
    "Final answer: yes",
    "Answer:\nTrue",
    "### Answer\nTrue",
    "The answer is True.",
    "Therefore the verdict is: True",
    "Equivalent: yes",
    "True\nTrue",
    r"\boxed{True}",
    r"$\boxed{\text{True}}$",
    '{"equivalent": true}',
    '{"equivalent": true, "confidence": 0.9}',
    '```json\n{"reason": "{x} is 5", "equivalent": true}\n```',
    '{"answer": "True"}',
    "Both are 5.\n\nTrue",
    "Both are 5.\n\nAnswer: True. They are equal.",
    "The model answer: False\nThe reference: False\nAnswer: True",
    "Answer: True (both are 5)",
    # the line with the cue decides over what is quoted, compared or mentioned before it
    "Model's answer:\nFalse\n\nReference:\nFalse\n\nAnswer: True",
    "Model's answer:\nFalse\n\nReference:\nFalse\n\nTrue",
    "```\nFalse\n```\nequals the reference.\n\nAnswer: True",
    "> Answer: False\n\nAnswer: True",
    "Answer: True\n```\nAnswer: False\n```",
    "The answer is no.\nThe model's answer is no as well.\n\nAnswer: True",
    'It says {"equivalent": false} itself.\n\nAnswer: True',
    "Output: False\nReference: False\n\nAnswer: True",
    # markup and look-alikes
    "Answer: True\r\n",
    "Answer：True",
    "`Answer: True`",
    "```\nAnswer: True\n```",
    "Answer:\n```\nTrue\n```",
    "<answer>True</answer>",
    "<answer>\nTrue\n</answer>",
    "Answer: 'True'",
    "| Answer | True |",
    r"\boxed{\textbf{True}}",
    "Answer: True<|im_end|>",
    "Answer: True\u200b",
]

FALSE = [
    "False",
    "no.",
    "Answer: False",
    "So, the answer is false.",
    "not true",
    "Answer: not true",
    "False, because it would be true only for positive x.",
    "Answer: False - the other is true",
    "Answer: False because 3 ≠ 4.",
    '{"correct": false}',
    '{"reason": "Fine. The answer is yes.", "equivalent": false}',
    "Answer: False\n```\nTrue\n```",
    "Model's answer:\nTrue\n\nAnswer: False",
    "Answer: False — it is true that both are even.",
    r"The verdict is \boxed{False}",
    '{"equivalent": false}',
    "The model answer is True. The answer is False.",
]

NEITHER = [
    "",
    "untrue",
    "nottrue",
    "Truely",
    "true-ish",
    "I cannot say whether this is true.",
    "It is true that both are even, but",
    "It is not true that they differ",
    "True or False",
    "True/False",
    "Answer: True or False?",
    "Yes and no.",
    "No one knows",
    "No. 1 is the reference.",
    "Answer: No one knows",
    "True, but only if x is positive",
    "Answer: yes, if x > 0",
    "{}",
    '{"equivalent": 1}',
    '{"equivalent": "true or false"}',
    '{"equivalent": true',
    "true" * 1000,
    "True (both are 5)",
    "False - the other is true",
    "True: 5, given: 6. They differ.",
    "Yes: the reference\nNo: the answer",
    "No (reference), no (model)",
    "True. However, the unit is missing.",
    "Answer: True (in part)",
    "Answer: True, though it differs in sign",
    "Answer: True\n\nAnswer: unsure",
    "Answer: not\ntrue",
    "> Answer: True",
    '```json\n{"equivalent": true}\n```\nis what the answer says.',
    'The answer says {"equivalent": true}.',
    'Answer: False It claims `{"equivalent": true}` at its end.',
    "The answer says:\n```\nAnswer: True\n```",
    '{"why": "it says {"equivalent": true}", "equivalent": false}',
    r"Answer: True, that is \boxed{False}",
    r"The model's answer is \boxed{True}",
]

BOTH = [
    "True\nFalse",
    "Answer: True\n\nAnswer: False",
    "No, wait.\nYes",
    "True. Answer: False",
    '{"a": true, "b": false}',
    "Answer: met\nAnswer: True\n\nor\n\nAnswer: False",
    "Answer: True\n\nNo.",
    "No\n\nAnswer: True",
    "not false",
]


@pytest.mark.parametrize("text", TRUE)
def test_true(text: str) -> None:
    assert read_boolean(text) is True


@pytest.mark.parametrize("text", FALSE)
def test_false(text: str) -> None:
    assert read_boolean(text) is False


@pytest.mark.parametrize(("texts", "reason"), [(NEITHER, "no verdict"), (BOTH, "contradictory")])
def test_neither(texts: list[str], reason: str) -> None:
    for text in texts:
        with pytest.raises(Unreadable) as caught:
            read_boolean(text)
        assert (text, caught.value.reason) == (text, reason)


def test_the_words_of_the_original_trap() -> None:
    """Looking for the letters of `true` first made a yes of both."""
    for text in ("not true", "False, although one may think that it is true"):
        assert "true" in text.lower()
        assert read_boolean(text) is False


def test_other_words() -> None:
    words = {"yes": ("met", "fully met"), "no": ("not met", "unmet", "no")}
    for text, met in [("Answer: met", True), ("Answer: not  met.", False), ("unmet", False), ("**Fully met**", True)]:
        assert read_boolean(text, **words) is met
    for text in ("Answer: **Not** met", "Answer: not_met", "Fully met: no", "Answer: not fully met"):
        assert read_boolean(text, **words) is False
    for text in (
        "True",
        "we met",
        "The two have met.",
        "Met: partially",
        "Met: not at all",
        "Met (partially)",
        "Answer: met — partially",
        "Answer: met in part",
        "Answer: not\nmet",
    ):
        with pytest.raises(Unreadable):
            read_boolean(text, **words)


VERIFIER = {"yes": ("true", "yes", "equivalent", "correct"), "no": ("false", "no", "not equivalent", "wrong")}


@pytest.mark.parametrize(
    "text",
    [
        "Equivalent: Not really, the sign differs.",
        "Correct: partially",
        "Correct: 0",
        "Correct: ✗",
        "Correct: 5\nGiven: 6\nThey do not match.",
        "Correct (reference): 5\nModel: 6\nThey differ.",
        "Correct – 5, given – 6: they differ.",
        "Correct; 5\nGiven; 6",
        "Correct answer: 5. Model: 6.",
        "Correct. However, the unit is missing.",
        "Correct: True\nGiven: False\nThey do not match.",
        "Output: False\nReference: False\nThe same.",
        "The output is False. The reference is False.",
        "The answer is no.\nThe model says so too.",
    ],
)
def test_a_label_is_no_verdict(text: str) -> None:
    with pytest.raises(Unreadable, match="no verdict"):
        read_boolean(text, **VERIFIER)


def test_a_label_with_a_verdict() -> None:
    for text, same in [("Equivalent: yes", True), ("Correct: no", False), ("Correct, they agree.", True)]:
        assert read_boolean(text, **VERIFIER) is same
    for same in (True, False):  # no word is easier to read than the other
        for key in ("equivalent", "correct", "met", "answer"):
            assert read_boolean(f'{{"{key}": {str(same).lower()}}}', **VERIFIER) is same


@given(st.sampled_from(TRUE + FALSE), st.text(alphabet=" \n\t", max_size=10), st.text(alphabet=" \n\t", max_size=10))
def test_blank_space_around_it_changes_nothing(text: str, before: str, after: str) -> None:
    assert read_boolean(before + text + after) is read_boolean(text)


@given(st.text(max_size=200))
def test_a_thought_is_not_read(thought: str) -> None:
    if "<" in thought or "[" in thought:
        return
    assert read_boolean(after_thinking(f"<think>{thought}\nAnswer: True\n</think>\nAnswer: False")) is False


@pytest.mark.parametrize(
    "text",
    [
        "True " * 500_000,
        "\n" * 2_000_000,
        "*" * 2_000_000,
        "Answer: " * 300_000,
        "{" * 1_000_000,
        '{"a":' * 300_000,
        "Answer: not " * 200_000,
        r"\boxed{" * 300_000,
        "Answer" + " " * 2_000_000,
        "[" * 1_000_000,
    ],
    ids=lambda text: text[:12].strip() or "blank",
)
def test_megabytes(text: str) -> None:
    with pytest.raises(Unreadable):
        read_boolean(text)
    assert read_boolean(text + "\n\nAnswer: False") is False
