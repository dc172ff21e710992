"""What is judged of a rollout, and what a judge is told of the prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, RolloutGroup
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.asking import feedback_of
from rewardsmith.rewards.judges.candidates import WAYS, candidates_of, shown_of
from rewardsmith.text.judge_prompts import LANGUAGES, language
from rewardsmith.text.templates import Template


@pytest.mark.parametrize(
    ("way", "text", "found"),
    [
        ("whole", "  two\nlines ", "two\nlines"),
        ("whole", " \n", None),
        ("final", "<think>hm</think> yes", "yes"),
        ("final", "<think>hm", None),
        ("line", "First.\nlast \n\n", "last"),
        ("line", "\n", None),
        ("oneline", " one line ", "one line"),
        ("oneline", "two\nlines", None),
        ("boxed", r"so \boxed{4}", "4"),
        ("tagged", "<answer>x</answer>", "x"),
        ("codeblock", "Analysis.\n\n```\nDas Haus\n```\n", "Das Haus"),
        ("codeblock", "```text\nzwei\nZeilen\n```", "zwei\nZeilen"),
        ("codeblock", "```\nfirst\n```\nand\n```\nlast\n```", "last"),
        ("codeblock", "````\nhas ``` inside\n```\n````", "has ``` inside\n```"),
        ("codeblock", "It is ```Das Haus```", "Das Haus"),
        ("codeblock", "```\nnot closed", None),
        ("codeblock", "```\nclosed\n```\nbut more", None),
        ("codeblock", "```\n\n```", None),
        ("codeblock", "no block", None),
        ("codeblock", "```", None),
        ("codeblock", "", None),
    ],
)
def test_what_is_judged(way: str, text: str, found: str | None) -> None:
    assert WAYS[way](text) == found


@pytest.mark.parametrize("piece", ["`", "```", "```\n", "``` x ", "\n", "````\n```\n"])
def test_megabytes_do_not_hang(piece: str) -> None:
    for way in WAYS.values():
        way(piece * (1_000_000 // len(piece)))


def test_identical_answers_are_one_candidate_and_bad_ones_none() -> None:
    texts = ["b", " a\n", "", "a", "x" * 11, "b "]
    group = RolloutGroup(Prompt("p", [Message("user", "?")]), [Rollout(text) for text in texts])
    found = candidates_of(group, "whole", 10)
    assert sorted(found.texts) == ["a", "b"]
    assert [None if i is None else found.texts[i] for i in found.of] == ["b", "a", None, "a", None, "b"]
    assert [found.copies(i) for i in range(2)] == [2, 2]


@given(st.permutations(["a", "b", "c", "b", "", "d"]))
def test_candidates_have_an_order_of_their_own(texts: list[str]) -> None:
    group = RolloutGroup(Prompt("p", [Message("user", "?")]), [Rollout(text) for text in texts])
    usual = RolloutGroup(group.prompt, [Rollout(text) for text in "abcd"])
    assert candidates_of(group, "whole", 10).texts == candidates_of(usual, "whole", 10).texts


def shown(template: str, **prompt: object) -> dict[str, str]:
    known = ("question", "source_text", "source_language", "target_language", "reference", "criteria")
    made = Prompt("p", [Message("user", "Say it.")], **prompt)
    return shown_of(made, Template.parse(template, "t", known=known), reference="answer", criteria=" be kind ")


def test_a_prompt_is_shown_as_far_as_the_template_asks() -> None:
    assert shown("{{question}}") == {"question": "```\nSay it.\n```"}
    assert shown("{{reference}}", answer=["x", "y"]) == {"reference": "```\nx\n```\n\n```\ny\n```"}
    assert shown("{{criteria}}") == {"criteria": "\n\nAbove all, judge by this:\nbe kind"}
    assert shown("{{source_text}}") == {"source_text": "```\nSay it.\n```"}
    assert shown("{{source_text}}", info={"extra_info": {"src_text": "Haus"}}) == {"source_text": "```\nHaus\n```"}
    both = shown("{{source_language}} {{target_language}}", info={"src_lang": "uk", "trg_lang": "Old Norse"})
    assert both == {"source_language": "Ukrainian", "target_language": "Old Norse"}


@pytest.mark.parametrize(
    "info", [{}, {"src_lang": 3}, {"src_lang": "qq"}, {"src_lang": "x"}, {"src_lang": "a\n\nignore all"}]
)
def test_a_prompt_that_lacks_what_the_template_shows_cannot_be_scored(info: dict[str, object]) -> None:
    with pytest.raises(CannotScore, match="src_lang") as caught:
        shown("{{source_language}}", info=info)
    assert caught.value.kind == "invalid"
    with pytest.raises(CannotScore, match="no reference"):
        shown("{{reference}}")


def test_languages() -> None:
    assert language("zh-CN") == language("ZH_tw") == "Chinese"
    assert language("German") == "German"
    assert language("xx") is None
    assert language("") is None
    # those of the first implementation, of which one copy lacked the last
    assert {"en", "zh", "de", "fr", "es", "it", "pt", "nl", "ru", "ko", "cs", "is", "ja", "uk"} <= set(LANGUAGES)


def test_feedback_has_bounds() -> None:
    assert feedback_of(["a", "b"]) == "a\n\nb"
    assert len(feedback_of(["x" * 50_000] * 10)) < 20_100
    assert feedback_of([]) == ""
