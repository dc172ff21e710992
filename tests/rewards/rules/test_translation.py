"""chrF and BLEU: hand-computed values, agreement with sacrebleu, references, and texts that nobody would call one."""

import logging
import math
from collections import Counter

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Message, Prompt
from rewardsmith.rewards import CannotScore
from rewardsmith.rewards.rules.translation_rules import MAX_RATIO, MIN_CHARACTERS, bleu, chrf

PAIRS = [
    ("The cat sat on the mat.", "The cat sat on the mat."), ("The cat is on a mat", "The cat sat on the mat."),
    ("the CAT sat", "The cat sat on the mat."), ("Dogs bark.", "The cat sat on the mat."),
    ("la casa (azul) es grande, ¿no?", "La casa azul es muy grande, ¿no?"), ("他喜欢喝茶。", "他很喜欢喝绿茶。"),
    ("a", "a b"), ("x\ny\nz", "x y z"), ("1,000.5 %", "1000.5%"),
]  # fmt: skip
words = st.text("ab ,.", min_size=1, max_size=30)


def prompt(answer: object = None, **info: object) -> Prompt:
    return Prompt("p", [Message("user", "Translate: …")], answer=answer, info=info)


def f_beta(precision: float, recall: float, beta: float) -> float:
    both = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / both if both else 0.0


def by_hand(text: str, reference: str, orders: int, beta: float) -> float:
    """chrF by its definition: mean precision and mean recall over the lengths that both have, then F with beta."""
    a, b = "".join(text.split()), "".join(reference.split())
    precisions, recalls = [], []
    for n in range(1, orders + 1):
        ours = Counter(a[i : i + n] for i in range(len(a) - n + 1))
        theirs = Counter(b[i : i + n] for i in range(len(b) - n + 1))
        if ours and theirs:
            matches = (ours & theirs).total()
            precisions.append(matches / ours.total())
            recalls.append(matches / theirs.total())
    if not precisions:
        return 0.0
    return f_beta(sum(precisions) / len(precisions), sum(recalls) / len(recalls), beta)


@pytest.mark.parametrize(
    ("text", "reference", "settings", "value"),
    [
        ("abc", "abd", {"char_order": 2}, f_beta((2 / 3 + 1 / 2) / 2, (2 / 3 + 1 / 2) / 2, 2)),
        ("ab", "abcd", {"char_order": 1}, f_beta(2 / 2, 2 / 4, 2)),
        ("ab", "abcd", {"char_order": 1, "beta": 1}, f_beta(2 / 2, 2 / 4, 1)),
        ("aaaa", "a", {"char_order": 1}, f_beta(1 / 4, 1 / 1, 2)),  # one match for one a, not four
        ("a b", "a b c", {"char_order": 1, "word_order": 2}, f_beta(1, (2 / 3 + 2 / 3 + 1 / 2) / 3, 2)),
        ("AB", "ab", {}, 0.0),
        ("AB", "ab", {"lowercase": True}, 1.0),
        ("a b c", "abc", {}, 1.0),  # white space does not count
        (" \n", "abc", {}, 0.0),
    ],
)
def test_chrf_of_tiny_strings(text: str, reference: str, settings: dict, value: float) -> None:
    assert chrf(prompt(reference), text, **settings) == pytest.approx(value)


@given(words, words, st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=50)
def test_chrf_is_its_definition(text: str, reference: str, orders: int, beta: int) -> None:
    if reference.strip():
        value = chrf(prompt(reference), text, char_order=orders, beta=beta)
        assert value == pytest.approx(by_hand(text, reference, orders, beta))


@pytest.mark.parametrize(
    ("text", "reference", "settings", "value"),
    [
        ("a b", "a b", {}, 1.0),
        ("a b", "a b", {"effective_order": False}, 0.0),
        ("a b c d e", "a b c d x", {}, (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)),
        ("a b c d", "a b c d e f", {}, math.exp(1 - 6 / 4)),  # all of it is right, but it is too short
        ("a b c d", "x a y b", {}, (2 / 4 * 1 / 3 / 2 * 1 / 2 / 4 * 1 / 1 / 8) ** (1 / 4)),  # exp: 1/2, 1/4, 1/8
        ("a b c d", "x a y b", {"smooth": "none"}, 0.0),
        ("a b c d", "x a y b", {"smooth": "floor"}, (2 / 4 * 0.1 / 3 * 0.1 / 2 * 0.1 / 1) ** (1 / 4)),
        ("a b c d", "x a y b", {"smooth": "add-k"}, (2 / 4 * 1 / 4 * 1 / 3 * 1 / 2) ** (1 / 4)),
        ("A B C D", "a b c d", {"lowercase": True}, 1.0),
        ("a b, c d", "a b , c d", {}, 1.0),
        ("a b, c d", "a b , c d", {"tokenize": "none", "smooth": "none"}, 0.0),
        ("他喜欢茶", "他喜欢茶", {"tokenize": "zh"}, 1.0),
        ("", "a", {}, 0.0),
    ],
)
def test_bleu_of_tiny_strings(text: str, reference: str, settings: dict, value: float) -> None:
    assert bleu(prompt(reference), text, **settings) == pytest.approx(value)


@pytest.mark.parametrize(("text", "reference"), PAIRS)
def test_they_equal_sacrebleu_on_a_corpus_of_one(text: str, reference: str) -> None:
    for order in (0, 2):
        theirs = sacrebleu.corpus_chrf([text], [[reference]], word_order=order).score / 100
        assert chrf(prompt(reference), text, word_order=order) == pytest.approx(theirs)
        assert theirs == pytest.approx(sacrebleu.sentence_chrf(text, [reference], word_order=order).score / 100)
    for tokenize in ("13a", "intl", "zh", "char", "none"):
        theirs = sacrebleu.corpus_bleu([text], [[reference]], tokenize=tokenize, use_effective_order=True).score / 100
        assert bleu(prompt(reference), text, tokenize=tokenize) == pytest.approx(theirs)
    assert bleu(prompt(reference), text) == pytest.approx(sacrebleu.sentence_bleu(text, [reference]).score / 100)


@pytest.mark.parametrize("rule", [chrf, bleu])
def test_references(rule) -> None:
    text, other = "the cat sat down", "a dog stood up"
    assert rule(prompt(text), text) == pytest.approx(1.0)
    assert rule(prompt([other, text]), text) == pytest.approx(1.0)  # the best reference counts
    assert rule(prompt([other]), text) < 0.5
    assert rule(prompt("other", reference=text), text, reference="reference") == pytest.approx(1.0)
    assert rule(prompt(references=[other, text]), text, reference="references") == pytest.approx(1.0)
    assert rule(prompt(extra_info={"de": text}), text, reference="extra_info.de") == pytest.approx(1.0)


BROKEN = [
    (prompt(), "answer"), (prompt(" \n"), "answer"), (prompt([]), "answer"), (prompt(["fine", ""]), "answer"),
    (prompt(17), "answer"), (prompt({"de": "fine"}), "answer"), (prompt("fine"), "references"),
    (prompt("fine", references={"de": "fine"}), "references"), (prompt("fine", extra="flat"), "extra.reference"),
]  # fmt: skip


@pytest.mark.parametrize("rule", [chrf, bleu])
def test_a_prompt_without_a_reference_cannot_be_scored(rule) -> None:
    for broken, reference in BROKEN:
        for text in ("fine", ""):  # not even an empty text, which would be 0 otherwise
            with pytest.raises(CannotScore, match=r"'p' has .* reference") as caught:
                rule(broken, text, reference=reference)
            assert caught.value.kind == "invalid"


@pytest.mark.parametrize("rule", [chrf, bleu])
def test_the_translation_may_stand_within_the_text(rule) -> None:
    source, text = prompt("the cat sat down"), "<think>hm</think><answer>the cat sat down</answer>"
    assert rule(source, text, extract=("tagged",)) == pytest.approx(1.0)
    assert rule(source, text) < 0.9
    assert rule(source, "the cat sat down", extract=("tagged",)) == 0.0
    assert rule(source, "<think>the dog ran</think> the cat sat down") == pytest.approx(1.0)
    assert rule(source, "<think>the dog ran</think> the cat sat down", final="never") < 0.9
    assert rule(source, "<think>the cat sat down") == 0.0  # still thinking


@pytest.mark.parametrize("rule", [chrf, bleu])
def test_what_is_absurdly_long_is_zero(rule) -> None:
    source = prompt("a b c d")
    assert rule(source, "a b c d" * 8_000_000) == 0.0
    assert rule(source, "a b c d " + "z" * (MIN_CHARACTERS - 8)) > 0.0
    assert rule(source, "a b c d " + "z" * (MIN_CHARACTERS - 7)) == 0.0
    reference = "a b c d " * 50  # at 100 times its length, the best there can be
    long = reference * MAX_RATIO
    assert 0.0 < rule(prompt(reference), long) < 0.05
    assert rule(prompt(reference), long + reference) == 0.0
    assert rule(prompt(["a", reference]), long) > 0.0  # the longest reference counts


def test_nothing_is_written_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        bleu(prompt("a b ."), "a b .", effective_order=False)
    assert caplog.records == []
