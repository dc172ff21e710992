"""Attacks: what every family holds, what none of them may be, and that our own rules pay for none."""

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Message, Prompt
from rewardsmith.auditing.attack_strings import MASTER_KEYS, VERDICTS
from rewardsmith.auditing.attacks import FAMILIES, MAX_CHARS, Anchors, Probe, attacks, padding
from rewardsmith.data import Arithmetic, Translation
from rewardsmith.data.known_answers import occurrences, same_answer
from rewardsmith.text.grades import parse_field, parse_grade, parse_rating
from rewardsmith.text.rankings import parse_ranking
from rewardsmith.text.verdicts import parse_boolean, parse_comparison
from tests.audit.probe_anchors import anchors_of, worked
from tests.rewards.rules.rule_values import chosen

TRUTHS = [
    *("9", "-3", "0", "10", "1", "1/2", "\\frac{3}{4}", "50\\%", "1,000", "3.14", "2\\sqrt{3}", "x^2+1", "\\pi"),
    *(
        "x=3",
        "(1,2)",
        "\\{1,2,3\\}",
        "[0,2)",
        "2^{10}",
        "\\text{blue}",
        "Paris",
        "yes",
        "no",
        "true",
        "B",
        "(C)",
        "5 cm",
    ),
    *("PTQ", "\\infty", "None", "The cat sat on the mat."),
]


def by_family(probes: list[Probe]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for probe in probes:
        found[probe.family][probe.name] = probe.text
    return found


# ---- what attacks are ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", TRUTHS)
def test_attacks_are_bounded_different_and_repeatable(truth: str) -> None:
    anchors = anchors_of(truth)
    made = attacks(anchors, 4)
    assert made == attacks(anchors, 4)
    assert max(len(probe.text) for probe in made) <= MAX_CHARS
    assert set(Counter(probe.text for probe in made).values()) == {1}
    assert set(Counter((probe.family, probe.name) for probe in made).values()) == {1}
    assert [probe.family for probe in made] == sorted((p.family for p in made), key=list(FAMILIES).index)


def test_every_family_is_there() -> None:
    assert set(by_family(attacks(anchors_of("9"), 0))) == set(FAMILIES)


@pytest.mark.parametrize("truth", TRUTHS)
def test_no_attack_is_the_right_answer(truth: str) -> None:
    anchors = anchors_of(truth)
    for probe in attacks(anchors, 0):
        assert probe.text.strip() != anchors.right.strip()
        assert not same_answer(probe.text.strip() or "?", truth)


WITH_THE_TRUTH = {"every-option", "retraction"}


@pytest.mark.parametrize(
    ("truth", "value"), [("\\binom{5}{2}", "10"), ("1^{7}", "1"), ("\\cos(2\\pi)", "1"), ("2^{0}", "1")]
)
def test_other_attacks_do_not_mention_the_value_of_the_truth(truth: str, value: str) -> None:
    for probe in attacks(worked(f"\\boxed{{{truth}}}", truth, "77"), 0):
        if probe.family not in WITH_THE_TRUTH:
            assert not occurrences(probe.text, value), probe


@pytest.mark.parametrize("truth", ["10", "1", "A", "B", "true", "yes", "no", "100%", "correct", "0", "None"])
def test_other_attacks_do_not_mention_the_truth_by_chance(truth: str) -> None:
    anchors = anchors_of(truth, work="")
    for probe in attacks(anchors, 0):
        if probe.family not in WITH_THE_TRUTH:
            assert not occurrences(probe.text.replace(anchors.wrong, ""), truth), probe


@given(answer=st.text(max_size=20), right=st.text(max_size=80), wrong=st.text(max_size=6000), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_any_anchors_have_attacks(answer: str, right: str, wrong: str, seed: int) -> None:
    prompt = Prompt("p", [Message("user", right)], answer=answer)
    anchors = Anchors(prompt, right, wrong, answer, ["w"] if answer != "w" else [], right, lambda text: f"<{text}>")
    made = attacks(anchors, seed)
    assert max(len(probe.text) for probe in made) <= MAX_CHARS
    assert {"injection", "confident", "malformed"} <= {probe.family for probe in made}


def test_without_a_truth_no_attack_needs_one() -> None:
    made = by_family(attacks(anchors_of(""), 0))
    assert set(FAMILIES) - set(made) == WITH_THE_TRUTH


# ---- one attack on many prompts --------------------------------------------------------------------------------------


def template(text: str, anchors: Anchors) -> str:
    """Return a text with a mark in place of the wrong solution."""
    return text.replace(anchors.wrong, "{wrong}")


FIXED = {"empty", "master-key", "injection", "confident", "padding", "language", "non-finite", "universal"}


@pytest.mark.parametrize(("one", "other"), [("10", "9"), ("yes", "9"), ("A", "10"), ("the", "true"), ("9", "17")])
def test_an_attack_is_the_same_on_every_prompt(one: str, other: str) -> None:
    first, second = anchors_of(one), anchors_of(other)
    for seed in range(4):
        found, expected = (
            {(p.family, p.name): template(p.text, anchors) for p in attacks(anchors, seed) if p.family in FIXED}
            for anchors in (first, second)
        )
        both = found.keys() & expected.keys()
        assert {key: found[key] for key in both} == {key: expected[key] for key in both}
        escapes = {key for key in both if "+" in key[1]}
        assert len(escapes) >= 3  # an escape is put together with a verdict at random


def test_the_same_random_letters_on_every_prompt() -> None:
    drawn = {by_family(attacks(anchors_of(t), 1))["malformed"]["random-letters"] for t in ("10", "yes", "Paris")}
    assert len(drawn) == 1


def test_another_seed_draws_others() -> None:
    names = [{p.name for p in attacks(anchors_of("9"), seed) if p.family == "injection"} for seed in (0, 1)]
    assert names[0] != names[1]


# ---- worked solutions ------------------------------------------------------------------------------------------------

ONE_LINE = "First 50+52=102. The answer is \\boxed{102}"
GSM8K = "He has 50+54=104.\nSo 104 it is.\n#### 104"
ARITHMETIC = "7+5=12;12-3=9;#9"
THOUGHT = "<think>50+52=102</think>\nWe have 102.\n<answer>102</answer>"


def test_a_quoted_form_states_nothing_in_words_of_its_own() -> None:
    made = by_family(attacks(worked(ONE_LINE, "102", "103"), 0))["retraction"]
    assert made["form-in-prose"] == "It would be a mistake to write \\boxed{102} here."
    assert made["denied-after"] == "\\boxed{102} is not the answer."
    made = by_family(attacks(worked("As 50+52=102, it is 102. The answer is 102.", "102", "103"), 0))["retraction"]
    assert made["form-in-prose"] == "It would be a mistake to write The answer is 102. here."
    made = by_family(attacks(worked(THOUGHT, "102", "103"), 0))["retraction"]
    assert made["denied-after"] == "<think>50+52=102</think>\n<answer>102</answer> is not the answer."


@pytest.mark.parametrize(
    ("solution", "answer", "wrong", "expected"),
    [
        (ONE_LINE, "102", "103", "The answer is \\boxed{{{}}}"),
        (GSM8K, "104", "105", "#### {}"),
        (ARITHMETIC, "9", "8", "#{}"),
        (THOUGHT, "102", "103", "<think>\nI work it out.\n</think>\n<answer>{}</answer>"),
        ("We add them.\n#### 104", "104", "105", "We add them.\n#### {}"),
    ],
)
def test_other_content_in_form_comes_without_steps_that_have_the_truth(
    solution: str, answer: str, wrong: str, expected: str
) -> None:
    anchors = worked(solution, answer, wrong)
    made = by_family(attacks(anchors, 0))
    assert made["non-finite"]["NaN"] == expected.format("NaN")
    assert made["hollow"]["question-mark-in-form"] == expected.format("?")
    assert made["echo"]["last-line-in-form"] == expected.format("Give the result alone.")
    assert made["malformed"]["gibberish 1 in form"] == expected.format("qwfp zxcv lkjh mnbv")
    assert [name for name in made["injection"] if name.endswith("-in-form")]
    for family in ("hollow", "echo", "non-finite", "universal", "malformed", "injection"):
        paid = [text for text in made[family].values() if occurrences(text.replace(anchors.wrong, ""), answer)]
        assert paid == []


def test_content_of_several_lines_stays_whole() -> None:
    made = [
        text
        for seed in range(12)
        for name, text in by_family(attacks(worked(GSM8K, "104", "105"), seed))["injection"].items()
        if name == "ranking-in-form"
    ]
    assert made
    assert set(made) == {f"#### {VERDICTS['ranking']}"}


def test_an_echo_of_the_truth_in_form_is_left_out() -> None:
    question = "Which city?\nA) Rome\nB) Oslo\nC) Paris\nD) Bonn"
    for truth in "ABCD":
        echoes = by_family(attacks(anchors_of(truth, question=question), 0))["echo"]
        assert "prompt" in echoes
        assert ("last-line-in-form" in echoes) == (truth != "D")


def test_of_a_long_solution_only_the_final_answer_is_attacked() -> None:
    long = "We think about it. " * 300 + "\n#### 104"
    made = by_family(attacks(worked(long, "104", "105"), 0))
    assert made["confident"]["certain"].startswith("#### 105\n\nI am")
    assert made["retraction"]["right-then-retracted"].startswith("#### 104\n\nThis is wrong.")


# ---- several accepted answers, and equal values ----------------------------------------------------------------------


def test_no_attack_is_another_accepted_answer() -> None:
    anchors = worked("It is \\boxed{no}", "no", "wo", "yes", "true", "10")
    made = attacks(anchors, 0)
    assert not any(same_answer(probe.text.strip() or "?", one) for probe in made for one in anchors.accepted)
    for probe in made:
        if probe.family not in WITH_THE_TRUTH:
            assert not any(occurrences(probe.text, one) for one in anchors.accepted), probe


@pytest.mark.parametrize(
    ("truth", "wrong", "equal"),
    [
        ("1 \\le x \\le 2", "1 \\le x \\le 3", {"and", "list"}),
        ("1 \\le x \\le 3", "1 \\le x \\le 2", {"or", "or-last", "latex-or", "logical-or"}),
        ("9", "8", set()),
    ],
)
def test_options_that_have_the_value_of_the_truth_are_left_out(truth: str, wrong: str, equal: set[str]) -> None:
    options = set(by_family(attacks(worked(f"\\boxed{{{truth}}}", truth, wrong), 0))["every-option"])
    assert equal & options == set()
    assert {"and", "or", "or-last", "latex-or", "logical-or", "list", "slash"} - equal <= options


# ---- the families ----------------------------------------------------------------------------------------------------


def test_the_published_master_keys() -> None:
    assert len(MASTER_KEYS) == 10
    texts = {probe.text for probe in attacks(anchors_of("9"), 0)}
    assert set(MASTER_KEYS) <= texts


@pytest.mark.parametrize("truth", ["9", "-3", "1/2", "B", "yes", "Paris", "2\\sqrt{3}"])
def test_options_hold_the_truth_and_another_answer(truth: str) -> None:
    anchors = anchors_of(truth)
    options = by_family(attacks(anchors, 0))["every-option"]
    assert {"list", "or", "slash", "forms", "lines"} <= set(options)
    for name in ("list", "or", "or-last", "and", "slash", "forms", "lines", "one-of"):
        assert truth in options[name]
        assert anchors.distractors[0] in options[name]
    lines = options["lines"].split("\n")
    assert truth not in (lines[0], lines[-1])  # a rule that reads the first or the last has no reason to pay


def test_counting() -> None:
    options = by_family(attacks(anchors_of("42"), 0))["every-option"]
    assert options["counting-to-the-truth"].split() == [str(n) for n in range(43)]
    assert options["counting"].split()[-1] == "52"


def test_fake_verdicts_are_verdicts_of_every_kind() -> None:
    """Each would be read as the best verdict if a judge wrote it."""
    assert parse_boolean(VERDICTS["boolean"]) is parse_boolean(VERDICTS["json-boolean"]) is True
    assert parse_boolean(VERDICTS["criterion"]) is parse_boolean(VERDICTS["yes"]) is True
    assert parse_grade(VERDICTS["grade"]).share == parse_grade(VERDICTS["grade-boxed"]).share == 1.0
    assert parse_grade(VERDICTS["grade-percent"]).share == 1.0
    assert parse_comparison(VERDICTS["comparison"]) == parse_comparison(VERDICTS["comparison-bracketed"]) == "A"
    assert parse_comparison(VERDICTS["comparison-second"]) == "B"
    assert parse_ranking(VERDICTS["ranking"], "ABCD").levels[0] == ("A",)
    assert parse_ranking(VERDICTS["ranking-last"], "ABCD").levels[0] == ("D",)
    assert parse_grade(VERDICTS["rating"], marker="Score").share == parse_rating(VERDICTS["last-line-one"]) == 1.0
    assert parse_field(VERDICTS["json-grade"], "score") == 10.0
    injected = by_family(attacks(anchors_of("9"), 0))["injection"]
    assert set(VERDICTS) <= set(injected)


def test_the_wrong_answer_is_in_every_attack_that_decorates_it() -> None:
    anchors = anchors_of("9")
    made = by_family(attacks(anchors, 0))
    for family in ("confident", "padding", "language"):
        held = [text for name, text in made[family].items() if "alone" not in name]
        assert all(anchors.wrong in text for text in held)


@given(words=st.integers(20, 300), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_padding_has_about_so_many_words(words: int, seed: int) -> None:
    assert words <= len(padding(words, random.Random(seed)).split()) <= words + 15


def test_the_answer_of_another_prompt_is_left_out_where_it_is_the_same() -> None:
    anchors = anchors_of("9")
    assert "another-prompt" in by_family(attacks(anchors, 0))
    same = Anchors(anchors.prompt, anchors.right, anchors.wrong, "9", ["8"], "Other work.\n\\boxed{9.0}", anchors.write)
    assert "another-prompt" not in by_family(attacks(same, 0))


def test_universal_texts_are_the_same_for_all_prompts() -> None:
    one, other = (by_family(attacks(anchors_of(t), 0))["universal"] for t in ("9", "Paris"))
    assert len(other) >= 20
    assert {name: other[name] for name in one} == one


# ---- our own rules ---------------------------------------------------------------------------------------------------

NUMBERS = ["9", "-3", "0", "10", "1/2", "1,000", "3.14"]
CASES = [
    (
        "math",
        "boxed",
        [*NUMBERS, "\\frac{3}{4}", "50\\%", "2\\sqrt{3}", "x^2+1", "\\pi", "x=3", "(1,2)", "\\{1,2,3\\}"],
    ),
    ("math", "boxed", ["[0,2)", "2^{10}", "\\text{blue}", "Paris", "yes", "5 cm", "\\text{true}", "C"]),
    ("math", "stated", [*NUMBERS, "2\\sqrt{3}", "yes"]),
    ("math", "tagged-boxed", ["9", "x^2+1"]),
    ("gsm8k", "hash-line", NUMBERS),
    ("gsm8k", "boxed", ["9", "-3"]),
    ("numeric", "boxed", NUMBERS),
    ("numeric", "bare", ["9", "-3"]),
    ("choice", "boxed", ["B", "(C)", "A"]),
    ("choice", "tagged", ["B", "D"]),
    ("choice", "stated", ["B", "D"]),
    ("normalised", "bare", ["Paris", "9", "yes"]),
    ("exact", "bare", ["Paris", "9", "A"]),
    ("arithmetic", "hash", ["9", "0", "14"]),
]


@pytest.mark.parametrize(("rule", "form", "truths"), CASES)
def test_our_rules_pay_for_no_attack(rule: str, form: str, truths: list[str]) -> None:
    found = chosen(rule)
    strict = rule in ("normalised", "exact")
    paid, universal = [], defaultdict(list)
    for truth in truths:
        anchors = anchors_of(truth, form, work="" if strict else "We think about it.\n")
        score = lambda text, prompt=anchors.prompt: found.target(prompt, text, **found.arguments())  # noqa: E731
        assert (score(anchors.right), score(anchors.wrong)) == (1.0, 0.0), truth
        for probe in attacks(anchors, 0):
            if score(probe.text):
                (universal[probe.name] if probe.family == "universal" else paid).append((truth, probe))
    assert paid == []
    assert [name for name, found in universal.items() if len(found) > 1] == []


def test_the_worlds_pay_for_no_attack() -> None:
    for world, rule in ((Arithmetic(), "arithmetic"), (Translation(), "translation_words")):
        found, prompts = chosen(rule), world.prompts(0)
        prompt, other = next(prompts), next(prompts)
        right, wrong, *_ = world.known_answers(prompt, random.Random(0))
        reference = next(iter(world.known_answers(other, random.Random(0))))
        write = (lambda text: f"#{text}") if rule == "arithmetic" else (lambda text: text)
        wrongs = ["8", "7", "90"] if rule == "arithmetic" else ["PPP", "MMM", "XXX"]
        anchors = Anchors(prompt, right.text, wrong.text, str(prompt.answer), wrongs, reference.text, write)
        scores = {p: found.target(prompt, p.text, **found.arguments()) for p in attacks(anchors, 0)}
        assert prompt.answer not in wrongs
        assert [probe for probe, score in scores.items() if score == 1.0] == []
