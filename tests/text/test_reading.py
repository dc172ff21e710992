"""Thoughts, numbers and objects in what a judge wrote, and what it is shown as the question."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt
from rewardsmith.text.objects import last_object
from rewardsmith.text.questions import question_of
from rewardsmith.text.ratings import read_field, read_number
from rewardsmith.text.reading import Unreadable, after_thinking, voices


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<THINK >a</Think >b", "b"),
        ("<thinking>a</thinking>\nb", "\nb"),
        ("[THINK]a[/THINK]b", "b"),
        ("< think>a", "< think>a"),
        ("I think> so", "I think> so"),
        ("<seed:think>a</seed:think>b", "b"),
        ("◁think▷a◁/think▷b", "b"),
        ("a. </think> b", " b"),
        ("a\n</think>\n\nb", "\n\nb"),
        # mentioned by the judge
        ("The <think> part is long.\n\nTotal Score: 8/10", "The <think> part is long.\n\nTotal Score: 8/10"),
        ("8/10\n(The closing </think> tag was missing.)", "8/10\n(The closing </think> tag was missing.)"),
        ("8/10\nIt ends with `</think>`.", "8/10\nIt ends with `</think>`."),
        ("<think>the </think> tag is odd</think>b", "b"),
        # channels
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", "b"),
        ("<|channel|>final<|message|>b", "b"),
        ("analysisWe see a.assistantfinalThus b", "Thus b"),
        ("analysis: final words", "analysis: final words"),
    ],
)
def test_after_thinking(text: str, rest: str) -> None:
    assert after_thinking(text) == rest


@pytest.mark.parametrize(
    "text",
    ["<think>a", "a</think><think>b", " <thinking>", "[THINK]a", "<|channel|>analysis<|message|>a", "analysisWe"],
)
def test_an_unfinished_thought_has_no_answer(text: str) -> None:
    with pytest.raises(Unreadable, match="unfinished thought"):
        after_thinking(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7", 7),
        ("7.", 7),
        ("**7.5**", 7.5),
        (r"\boxed{-1}", -1),
        ("−1", -1),
        ("I say:\n\n7\n", 7),
        ("1\n0", 0),
    ],
)
def test_a_number(text: str, found: float) -> None:
    assert read_number(text) == found


@pytest.mark.parametrize(
    "text", ["", "seven", "7 of 10", "1e3", "1_0", "1*0", "inf", "nan", "7\nwell", "٧", "9" * 300, "Score: 7"]
)
def test_no_number(text: str) -> None:
    with pytest.raises(Unreadable, match="no number"):
        read_number(text)


@pytest.mark.parametrize(
    ("text", "key", "found"),
    [
        ('{"score": 7}', "score", 7),
        ('so {"score": 3} or rather\n```json\n{"score": 7.5}\n```', "score", 7.5),
        ('{"a": {"b": 2}}', "a.b", 2),
        ('{"a": "{", "score": 1}', "score", 1),
        ('{"score": "8"}', "score", 8),
        ('{"score": true}', "score", 1),
        ('{bad {"score": 4}', "score", 4),
        ('It says {"score": 10}.\n' + "\\frac{a}{b} " * 120 + '\n{"score": 2}', "score", 2),
        ("\\frac{a}{b} " * 120 + '\n{"score": 2}', "score", 2),
        ('{"reason": "a\nb", "score": 2}', "score", 2),
        ('{"score": X} is the form.\n{ "score": 3 }', "score", 3),
        ('{"score": 2, "why": "' + "{" * 300 + '"}', "score", 2),
    ],
)
def test_a_field(text: str, key: str, found: float) -> None:
    assert read_field(text, key) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("7", "no JSON"),
        ('{"score": 7', "no JSON"),
        ("[7]", "no JSON"),
        ('{"other": 7}', "no number"),
        ('{"score": null}', "no number"),
        ('{"score": NaN}', "no number"),
        ('{"score": -Infinity}', "no number"),
        ('{"score": 1e400}', "no number"),
        ('{"score": "seven"}', "no number"),
        ('{"score": [7]}', "no number"),
        ('{"score": {"score": 7}}', "no number"),
        ('{"score": ' + "9" * 5000 + "}", "no JSON"),
        ("{" * 1_000_000, "no JSON"),
        ('{"a":' * 300_000, "no JSON"),
        # within an object that cannot be decoded, before one, or in one that began before what is read
        ('{"reason": "it says {"score": 10}", "score": 2}', "no JSON"),
        ('{"score": 10} is claimed.\n{"score": 2, "why": "it"s"}', "no JSON"),
        ('{"why": "' + "y" * 60_000 + '", "it": {"score": 10}, "score": 2}', "no JSON"),
        ('{"}":[' * 200_000 + '{"score": 10}', "no JSON"),
    ],
    ids=lambda value: value[:24],
)
def test_no_field(text: str, reason: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_field(text, "score")
    assert caught.value.reason == reason


JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9), st.lists, max_leaves=5)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.text(alphabet="ab {[\n", max_size=20))
def test_the_last_object_is_found_behind_anything(table: dict[str, Any], before: str) -> None:
    assert last_object(f"{before}\n{json.dumps(table)} that is it") == table


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("a\nb", ("a\nb",)),
        ("a\n> b\nc", ("a\n\nc",)),
        ("a\n```\nb\n```\nc", ("a\n\n\n\nc",)),
        ("a\n```\nb\n```\n", ("a\n\n\n\n", "a\n\nb\n\n")),
        ("a\n~~~~ text\n~~~\n> b\n~~~~", ("a\n\n\n\n", "a\n\n~~~\n\n")),
        ("```\na\n```\n```\nb", ("\n\n\n\n", "\n\n\n\nb")),
        ("It says:\n```\nb\n```", ("It says:\n\n\n",)),
        ("```a```", ("```a```",)),
    ],
)
def test_whose_words(text: str, heard: tuple[str, ...]) -> None:
    assert voices(text) == heard


def asked(*messages: tuple[str, str], **info: object) -> str:
    return question_of(Prompt("p", [Message(*message) for message in messages], info=info))


def test_question() -> None:
    assert asked(("user", "6 · 7?")) == "6 · 7?"
    assert asked(("system", "Be brief."), ("user", "6 · 7?")) == "6 · 7?"
    assert asked(("system", "Be brief.")) == "Be brief."
    assert asked(("user", "6 · 7?\nBox it."), question="6 · 7?") == "6 · 7?"
    assert asked(("user", "6 · 7?\nBox it."), extra_info={"question": "6 · 7?"}) == "6 · 7?"
    assert asked(("user", "6 · 7?"), question={"no": "text"}, extra_info="no table") == "6 · 7?"
    chat = (("system", "s"), ("user", "6 · 7?"), ("assistant", "42"), ("user", "Twice?"))
    assert asked(*chat) == "user: 6 · 7?\n\nassistant: 42\n\nuser: Twice?"
