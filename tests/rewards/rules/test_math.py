"""Answers of mathematics: labelled pairs, broken prompts, and answers that are hostile or costly."""

import asyncio
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.rewards import CannotScore, make_reward
from rewardsmith.rewards.rules import math
from rewardsmith.rewards.rules.math.evaluation import MAX_SIZE, NoValue, agree
from rewardsmith.rewards.rules.math.math_rule import beyond
from rewardsmith.rewards.rules.math.parser import parse
from tests.rewards.rules.rule_values import problem, value

STILL_WRONG = [
    # (right, answer, what we say, though the opposite is true)
    ("AB", "\\overline{AB}", 0.0),
    ("1.5 \\text{ hours}", "90 \\text{ minutes}", 0.0),  # units are compared, not converted
    ("10^{10}!", "10^{10}!", None),  # equal as text, but no other form of it could be compared
    ("12", "12 \\text{ thereabouts}", 1.0),  # words after a number are taken for what was counted
    ("y=\\frac{1}{x}", "xy=1", 0.0),  # equations are compared up to a number, not solved
    ("\\frac{x}{2}", "1/2x", 0.0),  # not read: people mean different things by it
    ("2", "\\log 100", 0.0),  # the base is not known
    ("(-1)^n", "\\cos(n\\pi)", 0.0),  # equal for whole numbers alone
    ("\\frac{\\pi}{2}", "90^\\circ", 0.0),
]


@pytest.mark.parametrize(("right", "answer", "verdict"), STILL_WRONG)
def test_what_we_still_get_wrong(right: str, answer: str, verdict: float | None) -> None:
    if verdict is None:
        with pytest.raises(CannotScore, match="too large"):
            value("math", f"\\boxed{{{answer}}}", right)
    else:
        assert value("math", f"\\boxed{{{answer}}}", right) == verdict


def test_the_ways_and_the_part_to_read_can_be_chosen() -> None:
    assert value("math", "it is 5", "5", extract=["boxed"]) == 0.0
    assert value("math", "\\boxed{6} and \\boxed{5", "5", extract=["boxed"]) == 0.0
    assert value("math", "<answer>\\boxed{5}</answer> 6", "5", extract=["tagged"]) == 1.0
    assert value("math", "<think>\\boxed{5}", "5", final="never") == 1.0
    assert value("math", "\\boxed{5}", "5", final="always") == 0.0
    assert value("math", "so</think>\\boxed{5}", "5", final="always") == 1.0


def test_forms_of_the_right_answer() -> None:
    for answer in ("5", 5, 5.0, ["4", "5"], [4, 5], "so \\boxed{5}", "2 + 3 = 5\n#### 5", "$5$"):
        assert (value("math", "\\boxed{5}", answer), value("math", "\\boxed{6}", answer)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "answer", [None, "", " ", [], "\\frac{1}{", "x^{", "10^{10^{10}}", "\\sum_k k", "9" * 11_000, {"a": 1}, "$"]
)
@pytest.mark.parametrize("text", ["\\boxed{5}", "", "\\boxed{10^{10^{10}}}"])
def test_a_broken_right_answer_is_a_failure_whatever_the_text(answer: object, text: str) -> None:
    with pytest.raises(CannotScore) as caught:
        value("math", text, answer)
    assert caught.value.kind == "invalid"


def test_precision() -> None:
    assert value("math", "\\boxed{3.14}", "\\pi", precision=2) == 1.0
    assert value("math", "\\boxed{3.15}", "\\pi", precision=2) == 0.0
    assert value("math", "\\boxed{0.33}", "1/3", precision=2) == 1.0
    assert value("math", "\\boxed{0.34}", "1/3", precision=2) == 0.0


def test_names_of_variables_matter_when_strict() -> None:
    assert value("math", "\\boxed{t^2+1}", "x^2+1") == 0.0
    assert value("math", "\\boxed{t^2+1}", "x^2+1", strict=False) == 1.0
    assert value("math", "\\boxed{t^2+2}", "x^2+1", strict=False) == 0.0
    assert value("math", "\\boxed{y=5}", "x=5", strict=False) == 1.0


def test_settings_are_checked() -> None:
    assert "must be one of boxed, stated" in problem("math", extract=["boxt"])
    assert "precision" in problem("math", precision=99)
    assert "extract" in problem("math", extract=[])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("\\sqrt{" * 11 + "2" + "}" * 11, "nesting"), ("+".join(["\\sqrt{2}"] * 11), "roots"), ("---5", "signs"),
        ("\\sum_{k=1}^{9} k", "limits"), ("9" * 301, "digits"), ("x" * 501, "length"), ("5!+" * 7, "factorials"),
        ("2^{2024}", ""), ("\\frac{-b\\pm\\sqrt{b^2-4ac}}{2a}", ""), ("\\sqrt{2+\\sqrt{2+\\sqrt{2}}}", ""),
    ],
)  # fmt: skip
def test_bounds(text: str, what: str) -> None:
    assert beyond(text) == what


HOSTILE = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from rewardsmith import Message, Prompt
from rewardsmith.rewards.rules import RULES
from tests.rewards.hostile import hostile, megabytes

class Late(BaseException): ...

def ring(*_):
    raise Late

signal.signal(signal.SIGALRM, ring)
rights = ["5", "x^2+1", "\\\\sqrt{2}", "x=5", "\\\\{1,2\\\\}", "(1,2]", "x>2", "0", "x", "\\\\infty", "\\\\frac{1}{3}"]
late = 0
for i, text in enumerate([*hostile(), *megabytes().values()]):
    prompt = Prompt("p", [Message("user", "?")], answer=rights[i % len(rights)])
    signal.alarm(30)
    try:
        value = RULES["math"](prompt, text, extract=("boxed", "stated", "hash", "tagged", "text"))
        assert value in (0.0, 1.0), (value, text[:100])
    except Late:
        late += 1
        print("late:", prompt.answer, text[:100])
    signal.alarm(0)
assert RULES["math"](prompt, "\\\\boxed{" + prompt.answer + "}") == 1.0
print("late", late)
"""


def test_a_thousand_hostile_answers_are_wrong_or_right_but_never_late(pytestconfig: pytest.Config) -> None:
    """In a process of its own: an answer that hangs would take the tests with it."""
    result = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(pytestconfig.rootpath)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.splitlines()[-1] == "late 0", result.stdout
    assert "taken over" not in result.stdout


@given(
    st.integers(-(10**12), 10**12),
    st.sampled_from(["{}", " {} ", "${}$", "{}.", "x = {}", "{}.0", "+{}", "\\text{{{}}}"]),
)
def test_spelling_changes_nothing(number: int, spelling: str) -> None:
    answer = spelling.format(number) if number >= 0 or "+" not in spelling else str(number)
    assert value("math", f"\\boxed{{{answer}}}", str(number)) == 1.0
    assert value("math", f"\\boxed{{{answer}}}", str(number + 1)) == 0.0


@settings(max_examples=20)
@given(st.permutations(["1", "\\sqrt{2}", "-3", "\\frac{1}{2}"]), st.sampled_from([",", ", ", " ,\\, "]))
def test_a_set_has_no_order_and_white_space_no_meaning(members: list[str], comma: str) -> None:
    answer = comma.join(members)
    assert value("math", f"\\boxed{{\\{{ {answer} \\}}}}", "\\{1, -3, 0.5, \\sqrt2\\}") == 1.0
    assert value("math", f"\\boxed{{\\{{ {answer} \\}}}}", "\\{1, -3, 0.5, \\sqrt3\\}") == 0.0


# ---- labelled pairs, and a search for answers that are taken for two truths: such an answer earns a false reward ----

PAIRS = tomllib.loads(Path(__file__).with_name("math_pairs.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["boxed", "texts"])
def test_labelled_pairs(kind: str) -> None:
    """Wrong answers that are paid matter more than right ones that are refused."""
    wrong_verdicts, counts = [], [0, 0]
    for truth, right, wrong in PAIRS[kind]:
        for verdict, texts in ((1.0, right), (0.0, wrong)):
            counts[int(verdict)] += len(texts)
            boxed = [f"\\boxed{{{text}}}" if kind == "boxed" else text for text in texts]
            wrong_verdicts += [(truth, text, verdict) for text in boxed if value("math", text, truth) != verdict]
    assert wrong_verdicts == []
    assert kind == "texts" or (counts[0] >= 600 and counts[1] >= 350)


# ---- infinity: an answer that is infinite or undefined equals no finite truth ---------------------------------------

FINITE = ["42", "-7", "0", "\\frac{1}{3}", "\\sqrt{2}", "\\pi", "x^2+1", "x=5", "\\{1,2\\}", "(1,2)", "[0,1)", "x>2"]
INFINITE = (
    r"""
\max(1,\infty) ; \min(1,-\infty) ; \exp(\sqrt{\infty}) ; \ln(||\frac{1}{0}||) ; \infty
-\infty ; \infty-\infty ; 0\cdot\infty ; \frac{\infty}{\infty} ; \infty^0
\frac{1}{0} ; \frac{0}{0} ; \frac{1}{1-1} ; \ln 0 ; \ln(2-2)
|\frac{1}{0}| ; \tan(\frac{\pi}{2}) ; (-1)! ; 42+\infty ; x+\infty
\{1,\infty\} ; (\infty,\infty) ; (0,\infty) ; \cos(\infty) ; \frac{42}{\infty}+42
42+0\cdot\frac{1}{0}
""".replace("\n", " ; ")
    .strip(" ;")
    .split(" ; ")
)


def test_an_infinite_answer_is_wrong_for_every_finite_truth() -> None:
    pairs = ((truth, answer) for truth in FINITE for answer in INFINITE)
    assert [pair for pair in pairs if value("math", f"\\boxed{{{pair[1]}}}", pair[0])] == []


# ---- cost: an answer that is costly to compute with is wrong, and must not choose a failure in place of 0 ------------

COSTLY = [
    "\\cos(\\log_{x}(\\infty))", "(\\sqrt{2}+\\sqrt{3}+\\sqrt{5}+\\sqrt{7}+\\sqrt{11}+\\sqrt{13})^{40}",
    "(a+b+c+d)^{40}-(a+b+c-d)^{40}", "\\sin(\\sin(\\sin(\\sin(2^{1900}\\pi))))", "(\\sqrt{2})!\\cdot 2^{2700}",
    "(x!+y!)!(n!)!", "e^{e^{e^{e^{e}}}}", "9^{9^{9^{9}}}", "((9!)!)!", "\\binom{10^9}{5\\cdot 10^8}",
    "2^{-1000000007}", "(x+y+z)^{4999}", "\\frac{(x+1)^{2000}(x+2)^{2000}}{(x+3)^{2000}}",
    "x^{50}+x^{49}=x^{48}+y^{47}", "\\{" + ",".join(f"\\sqrt{{{i}}}!" for i in range(2, 8)) + "\\}",
    "\\lfloor 2^{4000}\\sqrt{2}\\rfloor", "\\gcd(2^{4000}-1,3^{2500})",
]  # fmt: skip


def scores(truth: str, texts: list[str]) -> tuple[Score, ...]:
    group = RolloutGroup(Prompt("p", [Message("user", "?")], answer=truth), [Rollout(text) for text in texts])
    return asyncio.run(make_reward({"type": "rule", "rule": "math"}).score(group))


@pytest.mark.parametrize("truth", ["5", "(x+y+z)!", "\\{1,2\\}", "x^2+y^2=25"])
def test_a_costly_answer_is_0_and_no_failure(truth: str) -> None:
    found = scores(truth, [f"\\boxed{{{answer}}}" for answer in [*COSTLY, truth]])
    assert [(score.value, score.failure) for score in found] == [(0.0, None)] * len(COSTLY) + [(1.0, None)]


@pytest.mark.parametrize(
    "truth", ["10^{10^{10}}", "((9!)!)!", "2^{100000}", "\\{1, 10^{10^{10}}\\}", "x=(y+1)^{99999}"]
)
def test_a_costly_truth_is_a_failure_whatever_the_answer_is(truth: str) -> None:
    for answer in ("5", "(x+y+z)^{4999}"):
        with pytest.raises(CannotScore) as caught:
            math(Prompt("p", [Message("user", "?")], answer=truth), f"\\boxed{{{answer}}}")
        assert caught.value.kind == "invalid"


def test_a_difference_that_needs_too_many_digits_is_not_decided() -> None:
    one, other = parse("2^{4000}+\\sqrt{2}"), parse("2^{4000}+\\sqrt{3}")
    with pytest.raises(NoValue):
        agree(one, other, frozenset(), 0)
    assert MAX_SIZE >= 4000


def test_threads_do_not_change_each_other_s_precision() -> None:
    prompts = [Prompt("p", [Message("user", "?")], answer=f"\\sqrt{{{n}}}+2^{{{9 * n}}}") for n in range(2, 60)]
    answers = [f"\\boxed{{2^{{{9 * n}}}+\\frac{{{n}}}{{\\sqrt{{{n}}}}}}}" for n in range(2, 60)]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda pair: math(*pair), zip(prompts * 3, answers * 3, strict=True)))
    assert verdicts == [1.0] * len(verdicts)
