"""Distractors, final answers in texts, and known answers from references and from the worlds."""

import random
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, UserError
from rewardsmith.data import Arithmetic, KnownAnswer, Translation
from rewardsmith.data.arithmetic import check_steps, conclusion
from rewardsmith.data.known_answers import (
    FORMS,
    corrupt_step,
    distractors,
    final_answer,
    final_answers,
    found_answer,
    known_answers,
    occurrences,
    same_answer,
    stated_answer,
    with_answer,
)
from rewardsmith.data.source import CheckedSource
from rewardsmith.data.translation import errors
from rewardsmith.rewards.rules.math import math
from tests.rewards.hostile import hostile, megabytes
from tests.rewards.rules.expressions import truths

SEEDS = st.integers(0, 1_000)


def prompt_of(answer: object, question: str = "What is it?") -> Prompt:
    return Prompt("p", [Message("user", question)], answer=answer)


# ---- distractors -----------------------------------------------------------------------------------------------------

NUMBERS = (
    st.integers(-(10**9), 10**9).map(str)
    | st.integers(1_000, 10**9).map(lambda n: f"{n:,}")
    | st.decimals(-1000, 1000, places=2).map(str)
    | st.fractions(-50, 50, max_denominator=60).filter(lambda q: q.denominator > 1).map(str)
    | st.fractions(0, 50, max_denominator=60).map(lambda q: f"\\frac{{{q.numerator}}}{{{q.denominator}}}")
    | st.integers(1, 400).map(lambda n: f"{n}\\%")
    | st.integers(1, 400).map(lambda n: f"{n}%")
)


@settings(max_examples=60)
@given(answer=NUMBERS, seed=SEEDS)
def test_no_distractor_of_a_number_has_its_value(answer: str, seed: int) -> None:
    made = distractors(answer, random.Random(seed))
    assert len(made) == 4
    assert [text for text in made if math(prompt_of(answer), f"\\boxed{{{text}}}")] == []
    assert len(set(made)) == 4
    assert made == distractors(answer, random.Random(seed))


@settings(max_examples=60)
@given(answer=st.text(min_size=1, max_size=30), seed=SEEDS, count=st.integers(0, 6))
def test_any_text_has_distractors_that_differ_from_it(answer: str, seed: int, count: int) -> None:
    made = distractors(answer, random.Random(seed), count)
    assert len(made) <= count
    assert not any(same_answer(text, answer) for text in made)
    assert all(text.strip() for text in made)


def test_no_distractor_of_a_truth_is_paid_by_the_math_rule() -> None:
    paid = [
        (truth, text)
        for truth in truths()
        for text in distractors(truth, random.Random(truth))
        if math(prompt_of(truth), f"\\boxed{{{text}}}")
    ]
    assert paid == []
    assert all(distractors(truth, random.Random(0)) for truth in truths())


KINDS = {
    "B": set("ACDE"),
    "(C)": {"(A)", "(B)", "(D)", "(E)"},
    "yes": {"no"},
    "FALSE": {"TRUE"},
    "\\infty": {"0", "1", "-1", "100"},
}


@pytest.mark.parametrize(("answer", "expected"), KINDS.items())
def test_letters_and_opposites(answer: str, expected: set[str]) -> None:
    assert set(distractors(answer, random.Random(0))) == expected


def test_words_keep_their_shape_and_change_half_of_their_letters() -> None:
    for text in distractors("Paris", random.Random(3)):
        assert len(text) == 5
        assert text.istitle()
        assert sum(a != b for a, b in zip(text, "Paris", strict=True)) >= 3


KEPT_VALUES = [
    *("\\binom{5}{2}", "1^{7}", "0 \\cdot 5", "\\cos(2\\pi)", "\\max(3,5)", "\\gcd(12,18)", "x=\\cos(2\\pi)", "2^{0}"),
    *("\\lfloor 2.5 \\rfloor", "0!+\\sqrt{2}", "\\frac{0}{\\sqrt{5}}", "\\binom{n}{2}", "\\log_2 1"),
]


@pytest.mark.parametrize("answer", KEPT_VALUES)
def test_no_integer_is_changed_where_that_may_keep_the_value(answer: str) -> None:
    made = distractors(answer, random.Random(0))
    assert made == [f"{answer}{shift}" for shift in ("+1", "-2", "+10", "-7")]
    assert [text for text in made if math(prompt_of(answer), f"\\boxed{{{text}}}")] == []


def test_elsewhere_an_integer_is_changed() -> None:
    for answer in ("2\\sqrt{3}", "5 min", "(1^{7}, 3)", "10^{5}", "[0,2)", "1 \\le x \\le 2", "x^2+1", "10\\pi"):
        made = distractors(answer, random.Random(0))
        assert len(made) == 4
        assert f"{answer}-2" not in made


@pytest.mark.parametrize("accepted", [["yes", "no"], ["100", "101", "99", "102"], list("ABCDE"), ["Paris", "paris"]])
def test_no_distractor_is_another_accepted_answer(accepted: list[str]) -> None:
    for seed in range(20):
        made = distractors(accepted[0], random.Random(seed), accepted=accepted)
        assert made
        assert not any(same_answer(text, one) for text in made for one in accepted)


SAME = [("1/2", "0.50"), ("50%", "1/2"), ("50%", "50"), ("1,000", "1000"), ("$5$", "5"), ("Paris.", "paris")]
OTHER = [("1", "-1"), ("5", "0.5"), ("1e3", "100"), ("a b", "b a"), ("x+1", "x-1"), ("10", "1"), ("x^2", "x2")]


def test_same_answers() -> None:
    assert [pair for pair in SAME if not same_answer(*pair)] == []
    assert [pair for pair in OTHER if same_answer(*pair)] == []


# ---- the final answer in a text --------------------------------------------------------------------------------------

GSM8K = "He has 48/2 = <<48/2=24>>24 in May.\nSo 48+24 = <<48+24=72>>72 in all.\n#### 72"
REPLACED = [
    ("7+5=12;12-3=9;#9", "9", "7+5=12;12-3=9;#X"),
    ("3*3=9, so \\boxed{9}. As 9 > 3, done.", "9", "3*3=9, so \\boxed{X}. As X > 3, done."),
    (GSM8K, "72", GSM8K.removesuffix("72") + "X"),
    ("It is 1,000. The answer is 1,000.", "1000", "It is 1,000. The answer is X."),
    ("We get $\\frac{1}{2}$", "0.5", "We get $X$"),
    ("So (B).", "B", "So (X)."),
    ("\\boxed{9} and again \\boxed{9}", "9", "\\boxed{X} and again \\boxed{X}"),
    ("Costs $9.", "9", "Costs $X."),
    ("PTQ", "PTQ", "X"),
    ("It is 99 or -9 or 9.5 or 1/9", "9", None),
    ("Barbara", "B", None),
    ("anything", "", None),
]


@pytest.mark.parametrize(("text", "truth", "expected"), REPLACED)
def test_the_final_answer_is_replaced(text: str, truth: str, expected: str | None) -> None:
    assert with_answer(text, truth, "X") == expected


@given(steps=st.lists(st.integers(100, 999), max_size=5), truth=st.integers(1, 99), new=st.integers(1000, 2000))
@settings(max_examples=40)
def test_replacing_and_replacing_back_gives_the_text(steps: list[int], truth: int, new: int) -> None:
    text = "".join(f"We get {n}. " for n in steps) + f"So \\boxed{{{truth}}}."
    changed = with_answer(text, str(truth), str(new))
    assert changed is not None
    assert found_answer(changed) == str(new)
    assert with_answer(changed, str(new), str(truth)) == text


@given(seed=SEEDS)
@settings(max_examples=30)
def test_a_corrupted_step_keeps_the_final_answer_and_changes_one_number(seed: int) -> None:
    text = corrupt_step(GSM8K, "72", random.Random(seed))
    assert text is not None
    assert text != GSM8K
    assert found_answer(text) == "72"
    lines = zip(text.split("\n"), GSM8K.split("\n"), strict=True)
    assert sum(line != other for line, other in lines) == 1


def test_numbers_of_items_and_steps_are_no_steps() -> None:
    assert corrupt_step("1. We think.\nStep 2: We end.\n\\boxed{9}", "9", random.Random(0)) is None
    assert corrupt_step("No truth here: 3+4=7", "9", random.Random(0)) is None


def test_occurrences_are_whole() -> None:
    assert occurrences("9 19 9.5 -9 x9 9", "9") == [(0, 1), (15, 16)]
    assert occurrences("Yes, yes; yesterday", "yes") == [(0, 3), (5, 8)]
    assert occurrences("A cat. a dog. A", "A") == [(0, 1), (14, 15)]


def test_forms_hold_the_answer() -> None:
    assert all(occurrences(write("42"), "42") for write in FORMS.values())
    assert len({write("42") for write in FORMS.values()}) == len(FORMS)


FINAL = [(9, "9"), ("so\n#### 72", "72"), ("thus \\boxed{x+1}", "x+1"), (["a", "b"], "a"), (None, ""), ({"a": 1}, "")]


@pytest.mark.parametrize(("answer", "expected"), FINAL)
def test_the_true_final_answer(answer: object, expected: str) -> None:
    assert final_answer(prompt_of(answer)) == expected


ACCEPTED = [
    (["100", "200"], ["100", "200"]),
    (["so\n#### 72", "\\boxed{x}", 5], ["72", "x", "5"]),
    (["a", None, "a", " "], ["a"]),
    ("9", ["9"]),
    (None, []),
    ([], []),
    (["a", {"b": 1}], []),  # rules cannot score it
    ([["a"]], []),
]


@pytest.mark.parametrize(("answer", "expected"), ACCEPTED)
def test_all_accepted_answers(answer: object, expected: list[str]) -> None:
    assert final_answers(prompt_of(answer)) == expected
    assert final_answer(prompt_of(answer)) == (expected[0] if expected else "")


STATED = [
    ("From 100 we get \\boxed{200}", "200"),
    ("\\boxed{200}, which is twice 100.", "200"),
    ("It is 200, no, 100", "100"),
    ("First 100.\n#### 200", "200"),
    ("I do not know", ""),
    ("1000 or 2000", ""),
]


@pytest.mark.parametrize(("solution", "expected"), STATED)
def test_the_accepted_answer_that_a_solution_states(solution: str, expected: str) -> None:
    assert stated_answer(prompt_of(["100", "200"]), solution) == expected
    assert stated_answer(prompt_of(None), solution) == ""


# ---- known answers ---------------------------------------------------------------------------------------------------


def test_known_answers_of_a_reference() -> None:
    reference = "2+3=5 and 5+4 is one less than ten, so \\boxed{9}."
    made = known_answers(prompt_of("9"), reference, random.Random(0))
    assert [one.kind for one in made] == [
        "reference",
        "wrong-answer",
        "wrong-answer",
        "corrupted-step",
        "no-conclusion",
    ]
    assert [math(prompt_of("9"), one.text) == 1.0 for one in made] == [one.right for one in made]
    assert [one.sound for one in made] == [True, False, False, False, False]


def test_with_several_accepted_answers_none_is_a_wrong_one() -> None:
    prompt = prompt_of(["100", "99", "101", "110"])
    for seed in range(20):
        made = known_answers(prompt, "99 is one. Then 60+40 is \\boxed{101}.", random.Random(seed))
        assert [one.kind for one in made][:3] == ["reference", "wrong-answer", "wrong-answer"]
        assert "no-conclusion" not in {one.kind for one in made}  # it would end in "99 is one"
        assert [math(prompt, one.text) == 1.0 for one in made] == [one.right for one in made]


def test_wrong_answers_may_be_given() -> None:
    made = known_answers(prompt_of("9"), "So \\boxed{9}", random.Random(0), wrong=["7", "6", "5"])
    assert [one.text for one in made if one.kind == "wrong-answer"] == ["So \\boxed{7}", "So \\boxed{6}"]
    made = known_answers(prompt_of("9"), "So \\boxed{9}", random.Random(0), wrong=[])
    assert "wrong-answer" not in {one.kind for one in made}


def test_only_what_can_be_made_is_made() -> None:
    assert [one.kind for one in known_answers(prompt_of("9"), "It is nine.", random.Random(0))] == ["reference"]
    made = known_answers(prompt_of(None), "Der Hund schläft heute unter dem Tisch.", random.Random(0))
    assert [(one.kind, one.right) for one in made] == [
        ("reference", True),
        ("cut-off", False),
        ("words-in-disorder", False),
    ]


def test_hostile_references_cost_little() -> None:
    texts = [*hostile(50), *megabytes().values(), "9 " * 3_000, "\\boxed{9} " * 500, "\\boxed{" * 2_500 + "9"]
    for text in texts:
        made = known_answers(prompt_of("9"), text, random.Random(0))
        assert made[0].text == text
        assert len(distractors(text, random.Random(0))) <= 4


@pytest.mark.parametrize("operations", [1, 2, 4])
def test_known_answers_of_arithmetic(operations: int) -> None:
    world, rng = Arithmetic(operations=operations), random.Random(1)
    for prompt in islice(world.prompts(0), 20):
        made = list(world.known_answers(prompt, rng))
        assert len({one.kind for one in made}) == len(made) == 6 + (operations > 1)
        for one in made:
            assert one.right == (conclusion(one.text) == prompt.answer)
            assert one.sound == (one.right and all(check_steps(prompt.info["problem"], one.text)))


def test_known_answers_of_translation() -> None:
    world, rng = Translation(), random.Random(1)
    for prompt in islice(world.prompts(0), 50):
        made = list(world.known_answers(prompt, rng))
        wrong = {one.kind: errors(prompt.info["src_text"], one.text) for one in made}
        assert [one.right for one in made] == [count == 0 for count in wrong.values()]
        assert made[0] == KnownAnswer("reference", str(prompt.answer), right=True, sound=True)
        assert wrong["false-friend"] == wrong["wrong-word"] == wrong["word-too-many"] == 1


class Own:
    def __init__(self, answers: list[object]) -> None:
        self.answers = answers

    def prompts(self, seed: int) -> list[Prompt]:
        return [prompt_of("9")]

    def known_answers(self, prompt: Prompt, rng: random.Random) -> list[object]:
        if not self.answers:
            raise KeyError("no answers")
        return self.answers


def test_a_source_of_the_users_own_is_checked() -> None:
    good = KnownAnswer("reference", "9", right=True, sound=True)
    prompt, rng = prompt_of("9"), random.Random(0)
    assert list(CheckedSource("data.own", Own([good])).known_answers(prompt, rng)) == [good]
    with pytest.raises(UserError, match=r"data.own: known_answers\(prompt, rng\) yielded a str.*data.KnownAnswer"):
        list(CheckedSource("data.own", Own(["9"])).known_answers(prompt, rng))
    with pytest.raises(UserError, match=r"known_answers\(prompt, rng\) raised KeyError"):
        list(CheckedSource("data.own", Own([])).known_answers(prompt, rng))
    assert not hasattr(CheckedSource("data.other", object()), "known_answers")
