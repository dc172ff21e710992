"""Whether a text stands by the answer that is found in it."""

from rewardsmith.text.answers import WAYS
from rewardsmith.text.claims import claimed
from tests.rewards.hostile import hostile, megabytes

GIVEN = [
    ("boxed", "so \\boxed{7}.", "7"),
    ("boxed", "It is not 6 but \\boxed{7}.", "7"),
    ("boxed", "Since 6 is wrong, we get \\boxed{7}.", "7"),
    ("boxed", "If it were 6, that would be wrong. So \\boxed{7}", "7"),
    ("boxed", "\\boxed{7}, not 8.", "7"),
    ("boxed", "\\boxed{7}\n\nI checked that 3 + 4 = 7.", "7"),
    ("boxed", "\\boxed{6}. Wait, that is wrong. \\boxed{7}", "7"),
    ("boxed", "\\boxed{7} is the final answer.", "7"),
    ("boxed", "$\\boxed{7}$. It is correct, as no other value is possible.", "7"),
    ("stated", "The answer is 7.", "7"),
    ("stated", "The answer is 7, not 8.", "7"),
    ("stated", "The answer is not 8 but 7.", "7"),
    ("stated", "It cannot be 8, so the answer is 7.", "7"),
    ("stated", "If x = 3, the answer is 7.", "7"),
    ("stated", "The answer is $7$ because it is not even.", "$7$ because it is not even"),
    ("number", "We get 3 + 4 = 7", "7"),
    ("number", "7 apples, 1,234,567 in all", "1234567"),
    ("number", "not 6, but 7", "7"),
    ("hash", "#### 7", "7"),
    ("tagged", "<answer>7</answer>", "7"),
    ("text", "not 7", "not 7"),
    ("boxed", "\\boxed{not defined}", "not defined"),
    ("stated", "The answer is never.", "never"),
    ("boxed", "\\boxed{5} or \\boxed{7}", "5, 7"),
    ("boxed", "$\\boxed{5}$ and $\\boxed{7}$", "5, 7"),
    ("boxed", "$x=\\boxed{5}$, $\\boxed{7}$", "5, 7"),
    ("boxed", "\\boxed{1} \\boxed{2} \\boxed{3}", "1, 2, 3"),
    ("boxed", "\\boxed{7}, \\boxed{7}", "7"),
    ("boxed", "First \\boxed{5}. Then \\boxed{7}", "7"),
    ("boxed", "\\boxed{\\boxed{7}}", "7"),
    ("boxed", "I made an error to begin with. Now I get \\boxed{7}.", "7"),
    ("boxed", "\\boxed{\\text{true, false}}", "\\text{true, false}"),
    ("boxed", "\\boxed{7}</answer> is the answer.", "7"),
    ("stated", "The answer is false.", "false"),
    ("stated", "The answer is wrong.", "wrong"),
    ("number", "3 * 4 = 12, so 7 = 7.0", "7.0"),
    ("number", "Total: 60 minutes = 1", "1"),
    ("number", "5 and 6 are too small. It is 7", "7"),
]
DENIED = {
    "boxed": [
        *("The answer is not \\boxed{7}.", "It isn't \\boxed{7}", "It can't be $\\boxed{7}$"),
        *("Anything but \\boxed{7}", "x \\neq \\boxed{7}", "x ≠ \\boxed{7}", "not equal to \\boxed{7}"),
        *("rather than \\boxed{7}", "A wrong answer is \\boxed{7}", "It would be incorrect to say \\boxed{7}"),
        *("\\boxed{not 7}", "\\boxed{7} (this is wrong)", "\\boxed{7} is wrong.", "\\boxed{7} is not the answer."),
        *("\\boxed{7} is not correct.", "$\\boxed{7}$. That is incorrect.", "\\boxed{7}. Wait, it is 8."),
        *("\\boxed{7}. No, it is 8.", "\\boxed{7}? No.", "\\boxed{7}. Actually, the answer is 8."),
        *("\\boxed{7}. Scratch that.", "\\boxed{7}. I made a mistake.", "\\boxed{7}. I take that back: 8."),
        *("\\boxed{7}\n\nCorrection: 8", "\\boxed{7}, but that isn't right."),
        *(
            "It would be a mistake to write \\boxed{7} here.",
            "\\boxed{7 (this is wrong)}",
            "\\boxed{7, which is wrong}",
        ),
        *("\\boxed{7 \\text{ (incorrect)}}", "<answer>\\boxed{7}</answer> is not the answer."),
    ],
    "stated": [
        *("The answer is not 7.", "The answer is not $7$.", "The answer is certainly not 7."),
        *("The answer isn't 7. I think the answer is never 7.", "I do not think the answer is 7."),
        *("I doubt that the answer is 7.", "The wrong answer is 7.", "It is false that the answer is 7."),
        *("The answer is anything but 7.", "Nobody knows whether the answer is 7."),
        *("The answer is 7. No, that is wrong.", "The answer is 7 (this is wrong)."),
        *("The answer is 7. Oops, it is 8.", "Answer: 7 is not the answer.", "Answer: 7 cm is wrong."),
        *("It would be an error to say the answer is 7.", "The answer is 7 \\text{ is wrong}."),
    ],
    "number": [
        *("It is not 7.", "5 is what I get, not 7", "It is 5 or 7", "It can't be 7", "0 1 2 3 4 5 6 7"),
        *("0, 1, 2, 3, 4, 5, 6, 7", "0,1,2,3,4,5,6,7", "1\n2\n3\n4\n5\n6\n7", "1, 2, ..., 7"),
        *("7. But that's wrong.", "5 and 7", "5 cm or 7 cm", "5\\% or 7\\%", "x=5 or x=7", "2^{5} or 2^{7}"),
        *("1 or \\frac{3}{7}", "-9 -8 -7", "-9, -8, -7", "5 = 7", "Answer 1: 5 = 7", "(5 = 7)", "1/2 = 7", "not x=7"),
        *("x=5 \\ne x=7", "It would be a mistake to write 7 here.", "<answer>7</answer> is not the answer."),
        *("7 cm is not the answer.", "(7\\%) is wrong.", "7\\% \\text{ is wrong}", "<a>7 cm</a> is wrong."),
    ],
    "hash": [
        *("#### not 7", "#### 7\nThat is wrong.", "#### 7 is not the answer."),
    ],
    "tagged": [
        *("<answer>not 7</answer>", "<answer>7</answer> is wrong", "<answer>7 (this is wrong)</answer>"),
    ],
}


def test_claimed() -> None:
    for way, text, found in GIVEN:
        assert (text, claimed(text, way)) == (text, found)
    for way, texts in DENIED.items():
        assert {text: claimed(text, way) for text in texts} == dict.fromkeys(texts, "")
        assert claimed("seven", way) is None


def test_megabytes_are_read_in_linear_time() -> None:
    """Anything but linear time would take hours here."""
    for text in [*megabytes().values(), *hostile()]:
        for way in WAYS:
            found = claimed(text, way)
            assert found is None or isinstance(found, str)
