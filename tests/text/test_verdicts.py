"""Yes or no, and which of two: words that are the verdict, and words that merely occur; thoughts and quotations."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.judge_replies import Unparsable, after_thinking, own_words
from rewardsmith.text.verdicts import parse_boolean, parse_comparison
from tests.text.well_formed import COMPARISONS, FALSE, TRUE


def boolean(text: str, **words: tuple[str, ...]) -> bool | str:
    try:
        return parse_boolean(text, **words)
    except Unparsable as error:
        return error.reason


def test_every_well_formed_verdict_is_parsed() -> None:
    expected = {**dict.fromkeys(TRUE, True), **dict.fromkeys(FALSE, False)}
    assert {text: boolean(text) for text in expected} == expected
    assert {text: parse_comparison(text) for text in COMPARISONS} == COMPARISONS


NEITHER = [
    *("", "untrue", "nottrue", "Truely", "true-ish", "true" * 1000, "True or False", "True/False", "Yes and no.", "{}"),
    *("I cannot say whether this is true.", "It is true that both are even, but", "It is not true that they differ"),
    *("Answer: True or False?", "No one knows", "No. 1 is the reference.", "Answer: No one knows", "Answer: not\ntrue"),
    *("True, but only if x is positive", "Answer: yes, if x > 0", "True. However, the unit is missing."),
    *('{"equivalent": 1}', '{"equivalent": "true or false"}', '{"equivalent": true', "True (both are 5)"),
    *("False - the other is true", "True: 5, given: 6. They differ.", "Yes: the reference\nNo: the answer"),
    *("No (reference), no (model)", "Answer: True (in part)", "Answer: True, though it differs in sign"),
    *("Answer: True\n\nAnswer: unsure", "> Answer: True", 'The answer says {"equivalent": true}.'),
    '```json\n{"equivalent": true}\n```\nis what the answer says.',
    'Answer: False It claims `{"equivalent": true}` at its end.',
    "The answer says:\n```\nAnswer: True\n```",
    '{"why": "it says {"equivalent": true}", "equivalent": false}',
    *(r"Answer: True, that is \boxed{False}", r"The model's answer is \boxed{True}", "True. Answer: False"),
]
BOTH = [
    *("True\nFalse", "Answer: True\n\nAnswer: False", "No, wait.\nYes", '{"a": true, "b": false}', "not false"),
    *("Answer: met\nAnswer: True\n\nor\n\nAnswer: False", "Answer: True\n\nNo.", "No\n\nAnswer: True"),
]


def test_what_is_no_verdict() -> None:
    expected = {**dict.fromkeys(NEITHER, "no verdict"), **dict.fromkeys(BOTH, "contradictory")}
    assert {text: boolean(text) for text in expected} == expected


def test_other_words() -> None:
    words = {"yes": ("met", "fully met"), "no": ("not met", "unmet", "no")}
    for text in ("Answer: met", "**Fully met**"):
        assert boolean(text, **words) is True
    for text in ("Answer: not  met.", "unmet", "Answer: **Not** met", "Answer: not_met", "Fully met: no"):
        assert boolean(text, **words) is False
    assert boolean("Answer: not fully met", **words) is False
    for text in ("True", "we met", "The two have met.", "Met: partially", "Met: not at all", "Met (partially)"):
        assert isinstance(boolean(text, **words), str), text
    for text in ("Answer: met — partially", "Answer: met in part", "Answer: not\nmet"):
        assert isinstance(boolean(text, **words), str), text


VERIFIER = {"yes": ("true", "yes", "equivalent", "correct"), "no": ("false", "no", "not equivalent", "wrong")}
LABELS = [
    *("Equivalent: Not really, the sign differs.", "Correct: partially", "Correct: 0", "Correct: ✗"),
    *("Correct: 5\nGiven: 6\nThey do not match.", "Correct (reference): 5\nModel: 6\nThey differ."),
    *("Correct – 5, given – 6: they differ.", "Correct; 5\nGiven; 6", "Correct answer: 5. Model: 6."),
    *("Correct. However, the unit is missing.", "Correct: True\nGiven: False\nThey do not match."),
    *("Output: False\nReference: False\nThe same.", "The output is False. The reference is False."),
    "The answer is no.\nThe model says so too.",
]


def test_a_label_is_no_verdict_but_may_have_one() -> None:
    assert {text: boolean(text, **VERIFIER) for text in LABELS} == dict.fromkeys(LABELS, "no verdict")
    for text, same in [("Equivalent: yes", True), ("Correct: no", False), ("Correct, they agree.", True)]:
        assert boolean(text, **VERIFIER) is same
    for key in ("equivalent", "correct", "met", "answer"):  # no word is easier to parse than the other
        assert boolean(f'{{"{key}": true}}', **VERIFIER) is True
        assert boolean(f'{{"{key}": false}}', **VERIFIER) is False


NO_WINNER = {
    "no verdict": [
        *("", "   \n", "A good question.", "A is wordy, B is short.", "After thought, [[A]]", "> Verdict: A"),
        *("\\boxed{A}\nis what answer A says, but it is wrong.", "Answer A says:\n[[A]]\n\nI cannot decide."),
        *("Answer A contains:\n```\nVerdict: A\n```", 'The answer says {"verdict": "A"}.', "A" + " " * 300 + "or B"),
    ],
    "unclear verdict": [
        *("Verdict:", "Verdict: not A", "Verdict: A or B", "Verdict: A is not better", "Verdict: A is worse than B"),
        *("Verdict: A close call", "Verdict: a", "Verdict: C", "Verdict: not a tie", "Verdict: A ≥ B"),
        *("Verdict: A > A", "Verdict: A is better than A", "Verdict: A - no, B", "Verdict: A (or B)"),
        *("Verdict: A (B is better)", r"Verdict: B, I thought. \boxed{A}", '{"winner": "A or B"}'),
        *("Verdict: A\nVerdict: unsure", "Verdict: Untied"),
    ],
    "contradictory": [
        *("Verdict: A\nVerdict: B\nVerdict: tie", "Answer B is better.\n\n[[A]]"),
    ],
}


def test_what_is_no_winner() -> None:
    for reason, texts in NO_WINNER.items():
        for text in texts:
            with pytest.raises(Unparsable) as caught:
                parse_comparison(text)
            assert (text, caught.value.reason) == (text, reason)


@given(st.text(max_size=200), st.sampled_from(["A", "B", "tie"]))
def test_nothing_that_stands_before_changes_the_verdict(before: str, winner: str) -> None:
    assert parse_comparison(f"{before}\nVerdict: {winner}") == winner


PIECES = [
    *("True ", "\n", "*", "Answer: ", "{", '{"a":', "Answer: not ", "\\boxed{", "[", "Verdict:", "[[A]]", "A ", "ﷺ"),
    "verdict *",
]


def test_megabytes() -> None:
    for piece in PIECES:
        text = piece * (2_000_000 // len(piece))
        assert isinstance(boolean(text), str)
        assert boolean(f"{text}\n\nAnswer: False") is False
        with contextlib.suppress(Unparsable):
            parse_comparison(text)


# ---- whose words -------------------------------------------------------------------------------------------------

THOUGHTS = {
    "plain": "plain",
    "<think>a</think>b": "b",
    "a</think>b": "b",
    "<think>a</think>b<think>c</think>d": "d",
    "<THINK >a</Think >b": "b",
    "<thinking>a</thinking>\nb": "\nb",
    "[THINK]a[/THINK]b": "b",
    "< think>a": "< think>a",
    "<seed:think>a</seed:think>b": "b",
    "◁think▷a◁/think▷b": "b",
    "a\n</think>\n\nb": "\n\nb",
    # mentioned by the judge
    "The <think> part is long.\n\n8/10": "The <think> part is long.\n\n8/10",
    "8/10\n(The closing </think> tag was missing.)": "8/10\n(The closing </think> tag was missing.)",
    "8/10\nIt ends with `</think>`.": "8/10\nIt ends with `</think>`.",
    "<think>the </think> tag is odd</think>b": "b",
    # channels
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b": "b",
    "<|channel|>final<|message|>b": "b",
    "analysisWe see a.assistantfinalThus b": "Thus b",
    "analysis: final words": "analysis: final words",
}


def test_after_thinking() -> None:
    assert {text: after_thinking(text) for text in THOUGHTS} == THOUGHTS
    for text in ("<think>a", "a</think><think>b", " <thinking>", "[THINK]a", "<|channel|>analysis<|message|>a"):
        with pytest.raises(Unparsable, match="unfinished thought"):
            after_thinking(text)


def test_whose_words() -> None:
    expected = {
        "a\nb": ("a\nb",),
        "a\n> b\nc": ("a\n\nc",),
        "a\n```\nb\n```\nc": ("a\n\n\n\nc",),
        "a\n```\nb\n```\n": ("a\n\n\n\n", "a\n\nb\n\n"),
        "a\n~~~~ text\n~~~\n> b\n~~~~": ("a\n\n\n\n", "a\n\n~~~\n\n"),
        "```\na\n```\n```\nb": ("\n\n\n\n", "\n\n\n\nb"),
        "It says:\n```\nb\n```": ("It says:\n\n\n",),
        "```a```": ("```a```",),
    }
    assert {text: own_words(text) for text in expected} == expected
