"""Word problems in English with several steps, and a program that checks every step of a solution.

    Mia has 12 apples. She buys 7 more apples. Ben is 9 years old. She gives 5 apples to Ben.
    How many apples has Mia now? Solve it step by step.

    She buys 7: 12 + 7 = 19.
    She gives away 5: 19 - 5 = 14.
    The answer is 14.

A problem is a *chain* of operations, `12 +7 -5`, and a story about it. How hard it is follows from the number of steps,
the largest number on the way and the operations. A share of the chains is held out, whatever story is written about
them.
"""

from rewardsmith.data.word_problems.judging import WordProblemGrading, WordProblemRanking
from rewardsmith.data.word_problems.problems import WordProblems
from rewardsmith.data.word_problems.solutions import (
    FLAWS,
    MIRACLES,
    chain_of,
    check_steps,
    conclusion,
    flaws,
    main_flaw,
    remarks,
    step_truth,
    true_grade,
)

__all__ = [
    "FLAWS",
    "MIRACLES",
    "WordProblemGrading",
    "WordProblemRanking",
    "WordProblems",
    "chain_of",
    "check_steps",
    "conclusion",
    "flaws",
    "main_flaw",
    "remarks",
    "step_truth",
    "true_grade",
]
