"""Anchors for the tests of probes."""

import random

from rewardsmith import Message, Prompt
from rewardsmith.auditing.attacks import Anchors
from rewardsmith.data.known_answers import FORMS, distractors, same_answer, with_answer

QUESTION = "Please say what is asked for here.\nGive the result alone."


def worked(solution: str, answer: str, wrong: str, *accepted: str) -> Anchors:
    """Return the anchors of a worked solution, in which only the final answer is replaced."""
    prompt = Prompt("p", [Message("user", QUESTION)], answer=[answer, *accepted] if accepted else answer)
    write = lambda final: with_answer(solution, answer, final) or final  # noqa: E731
    return Anchors(prompt, solution, write(wrong), answer, [wrong], "", write, [answer, *accepted])


def anchors_of(
    answer: str, form: str = "boxed", work: str = "We think about it.\n", question: str = QUESTION
) -> Anchors:
    """Return the anchors of a prompt with a short solution."""
    prompt, write = Prompt("p", [Message("user", question)], answer=answer or None), FORMS[form]
    wrong = distractors(answer, random.Random(0))
    right = work + write(answer)
    other = "" if same_answer("17", answer) else work + write("17")
    return Anchors(
        prompt, right, with_answer(right, answer, wrong[0]) or "" if wrong else "", answer, wrong, other, write
    )
