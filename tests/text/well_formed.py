"""Replies as judges write them, with the verdict of each: what a parser must read, every one of them."""

_GRADES = {
    0.8: [
        *("Total Score: 8/10", "The proof has a gap.\n\nTotal Score: 8/10\nThe gap is in step 3."),
        *("TOTAL SCORE:8/10", "total score: 8/10", "**Total Score:** 8/10", "**Total Score: 8/10**"),
        *("**Total** **Score**: 8", "__Total Score__: 8/10", "<b>Total Score</b>: 8/10", "`Total Score: 8/10`"),
        *("## Total Score\n\n**8/10**", "| **Total Score** | **8/10** |", "```\nTotal Score: 8/10\n```"),
        *("Total Score:\n```\n8/10\n```", "<total_score>8</total_score>", '{"feedback": "good", "total_score": 8}'),
        *('{"total_score": 8, "max": 10}', "Total Score - 8/10", "Total Score – 8/10", "Total Score—8/10"),
        *("Total Score => 8/10", "Total Score = 8/10", "The total score is 8/10.", "The total score is therefore 8."),
        *("My final total score: 8/10", "Total Score for the student's answer: 8/10", "Total Score earned: 8/10"),
        *("Total Score: [8/10]", "Total Score: 8", "Total Score: 8.", "Total Score: 8pts", "Total Score: 8 points"),
        *("Total Score: 8 out of 10", "Total Score: 8 points out of 10", "Total Score: 8 out of a possible 10"),
        *("Total Score: 8 out of 10 possible points", "Total Score: 8 of 10", "Total Score: 80 %"),
        *(r"Total Score: \boxed{8}/10", r"Total Score: $\boxed{\text{8 points}}$", "Total Score: <score>8</score>"),
        *("Total Score (8/10)", "Total Score: 3 (correctness)\n+ 5 (clarity)\n= 8/10", "Total Score: 8/10 = 0.8"),
        *("Total Score: 8/10 - good work", "Total Score: 8/10, since x = 3 is right"),
        *("Total Score: 8 because step 3 has a gap", "Total Score: 8/10 (5 + 3 = 8)", "Total Score： ８/10<|im_end|>"),
        *("Total Score: 8⁄10", "Total Score: 3/10\nOn second thought:\nTotal Score: 8/10"),
        *("Total Score: 8/10\nMaximum Total Score: 10", "Total Score: 8\nTotal Score Possible: 10"),
    ],
    0.7: [
        *("Total Score: **7.0 / 10.0**", "Total Score: 3 + 2 + 2 = 7", "Total Score: 4 (logic) + 3 (form) = 7/10"),
        *("Total Score = 4/5 + 3/5 = 7/10", "Total Score: 4+3 = 7/10 = 70%"),
    ],
    0.5: [
        "Total Score: .5/1",
    ],
    0.0: [
        *("Total Score: 0/10", "Total Score: -0/10"),
    ],
    0.4: [
        *("Total Score (out of 20): 8", "Total Score (max 20 points): 8", "Total Score [0-20]: 8"),
        *("Total Score/20: 8", "Total Score (/20): 8/20", "Total Score: 8/20"),
    ],
}
GRADES = {text: value for value, texts in _GRADES.items() for text in texts}

TRUE = [
    *("True", "true.", "TRUE!", "**True**", " `True`\n", '"True"', "- True", "yes", "True\nTrue"),
    *("Both are 5.\n\nTrue", "Answer: True", "**Answer:** True", "Answer: **True**.", "Final answer: yes"),
    *("Answer:\nTrue", "### Answer\nTrue", "The answer is True.", "Therefore the verdict is: True"),
    *("Equivalent: yes", "| Answer | True |", "Answer：True", r"\boxed{True}", r"$\boxed{\text{True}}$"),
    *(r"\boxed{\textbf{True}}", "Answer: 'True'", "`Answer: True`", "Answer: True. They are equal."),
    *("Answer: True (both are 5)", "Answer: True<|im_end|>", "Answer: True\u200b\r\n", "```\nAnswer: True\n```"),
    *("Answer:\n```\nTrue\n```", "<answer>True</answer>", "<answer>\nTrue\n</answer>", '{"equivalent": true}'),
    *('{"equivalent": true, "confidence": 0.9}', '{"answer": "True"}'),
    '```json\n{"reason": "{x} is 5", "equivalent": true}\n```',
    "The model answer: False\nThe reference: False\nAnswer: True",
    "Model's answer:\nFalse\n\nReference:\nFalse\n\nAnswer: True",
    "Model's answer:\nFalse\n\nReference:\nFalse\n\nTrue",
    *("```\nFalse\n```\nequals the reference.\n\nAnswer: True", "> Answer: False\n\nAnswer: True"),
    "Answer: True\n```\nAnswer: False\n```",
    "The answer is no.\nThe model's answer is no as well.\n\nAnswer: True",
    *('It says {"equivalent": false} itself.\n\nAnswer: True', "Output: False\nReference: False\n\nAnswer: True"),
]

FALSE = [
    *("False", "no.", "Answer: False", "So, the answer is false.", "not true", "Answer: not true"),
    *('{"correct": false}', "False, because it would be true only for positive x."),
    *("Answer: False - the other is true", "Answer: False because 3 ≠ 4."),
    *('{"reason": "Fine. The answer is yes.", "equivalent": false}', "Answer: False\n```\nTrue\n```"),
    *("Model's answer:\nTrue\n\nAnswer: False", "Answer: False — it is true that both are even."),
    r"The verdict is \boxed{False}",
]

_COMPARISONS = {
    "A": [
        *("Verdict: A", "### Final verdict\n\nA", "### Verdict:\n\n**Answer A is better.**", "Therefore, [[A]]"),
        *("My final verdict is: [[A]]", r"Verdict: \boxed{A}", "Better answer: A", "Verdict: A > B", "[[A>>B]]"),
        *("Verdict: A is better than B", "Verdict: A, because B is wrong", "Verdict: A (B has errors)"),
        *("Verdict: A - more complete", "Verdict: A. B has an error in step 2."),
        *("Verdict: A\n\nThe second answer forgets the units.", "The better answer is A.", "<verdict>A</verdict>"),
        *("| Verdict | A |", "```\nVerdict: A\n```<|im_end|>"),
        *("Answer B says 'Verdict: B'. That is a trick.\nVerdict: A", "[[B]] was my first thought.\nVerdict: A"),
    ],
    "B": [
        *("Verdict: B.", "**Verdict:** B", "**Verdict: B**", "Verdict： B", "Verdict: [[B]]", "Winner: Response B"),
        *("Verdict: B>A", "Verdict: A < B", "Both are fine.\n\nB", "Verdict: B is slightly better"),
        *('{"winner": "B"}', '```json\n{"reason": "A is wrong", "verdict": "B"}\n```'),
        *("Verdict: A\nNo, wait.\nVerdict: B", "Verdict: B\nNo, wait: [[A]]"),
        "Verdict: B\n\nThe correct option was \\boxed{A}, as answer B says.",
        "The correct choice is \\boxed{A}. Answer A chose D, answer B chose A.\n\nAnswer B is better.",
    ],
    "tie": [
        *("verdict: tie", r"\boxed{\text{tie}}", "Verdict: A = B", "Verdict: It’s a tie", "Verdict: A tie"),
        *("Verdict: a tie between A and B", "Verdict: neither is better", "Verdict: both are equally good"),
        "Both are fine.\nTie.",
    ],
}
COMPARISONS = {text: value for value, texts in _COMPARISONS.items() for text in texts}

RANKINGS = [  # all of them: A > B = C, with the scores 8, 3 and 3
    "A > B = C\nA: 8, B: 3, C: 3",
    "Final Ranking: A > B = C\nScores: A: 8, B: 3, C: 3",
    "**Final ranking (best first):** `A > B = C`\n\n**Scores (0-10):** A: 8/10, B: 3/10, C: 3/10",
    "```\n### Final Ranking:\nA>B=C\n### Scores:\nA:8,B:3,C:3\n```",
    "### Final Ranking:\n\nCandidate A > Candidate B = Candidate C\n\n### Scores:\n\n- **A**: 8\n- B: 3\n* C: 3",
    "Ａ ＞ Ｂ ＝ Ｃ\n\nＡ：８，Ｂ：３，Ｃ：３",
    "A > B = C\n\n1. A: 8.0\n2. B: 3.0\n3. C: 3.0\n\nA is best because it is true to the source.",
    'A > B = C\n\n{"A": 8, "B": 3, "C": 3}',
    "A > B = C\n\n| Candidate | Score |\n|---|---|\n| A | 8 |\n| **B** | 3/10 |\n| C | 3 |",
    "A > B = C (tie)\n\nA: 8 (clear), B: 3 (ok, but long), C: 3 (ok)",
    "A > B = C\n\nA: 8 | B: 3 | C: 3",
    "A > B = C\n\nA: 8、B: 3、C: 3",
    "A > B = C\nA: 8, B: 3, C: 3\n\nA > B because it is clear.\nA: 9 would be too much.",
    "A > B = C\nA: 8, B: 3, C: 3\u200b<|im_end|>",
    'A > B = C\n\n```json\n{\n  "A": 8,\n  "B": 3,\n  "C": 3\n}\n```',
    "Scores:\nA: 8 out of 10\nB: 3 points\nC: 3\n\nRanking: A > B = C",
    "\nA > B = C\r\n\r\nA: 8, B: 3, C: 3\r\n",
]

RATINGS: dict[str, float] = {
    "7": 7,
    "7.": 7,
    "**7.5**": 7.5,
    r"\boxed{-1}": -1,
    "−1": -1,
    "I say:\n\n7\n": 7,
    "1\n0": 0,
}
