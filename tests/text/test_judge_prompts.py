"""What a judge reads: questions, tasks, forms of verdicts, and candidates under their letters."""

import re
from typing import Any

from rewardsmith import Message, Prompt
from rewardsmith.text.judge_prompts import RankingFormat, question_of
from rewardsmith.text.rankings import parse_ranking


def question(*messages: tuple[str, str], **info: object) -> str:
    return question_of(Prompt("p", [Message(*message) for message in messages], info=info))


def test_question() -> None:
    assert question(("user", "6 · 7?")) == "6 · 7?"
    assert question(("system", "Be brief."), ("user", "6 · 7?")) == "6 · 7?"
    assert question(("system", "Be brief.")) == "Be brief."
    assert question(("user", "6 · 7?\nBox it."), question="6 · 7?") == "6 · 7?"
    assert question(("user", "6 · 7?\nBox it."), extra_info={"question": "6 · 7?"}) == "6 · 7?"
    assert question(("user", "6 · 7?"), question={"no": "text"}, extra_info="no table") == "6 · 7?"
    chat = (("system", "s"), ("user", "6 · 7?"), ("assistant", "42"), ("user", "Twice?"))
    assert question(*chat) == "user: 6 · 7?\n\nassistant: 42\n\nuser: Twice?"


def test_the_scores_of_the_form_lie_in_range() -> None:
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((0, 10, False), "X: 8, Y: 5, Z: 5"),
        ((1, 5, False), "X: 4, Y: 3, Z: 3"),
        ((1, 2, False), "X: 2, Y: 1, Z: 1"),
        ((0, 1, True), "X: 0.8, Y: 0.5, Z: 0.5"),
        ((-1, 1, True), "X: 0.6, Y: 0, Z: 0"),
    ]
    for scale, line in cases:
        assert RankingFormat("scores", *scale).example() == line
        assert RankingFormat("both", *scale).example().endswith(f"### Scores:\n\n{line}")


def test_the_task_and_the_form_match_what_is_asked_for() -> None:
    assert "an integer score from 0 (worst) to 10 (best)" in RankingFormat("both").task()
    assert "a score from -1 (worst) to 1 (best)" in RankingFormat("scores", -1, 1, decimals=True).task()
    assert "score" not in RankingFormat("ranking").task().replace("scores", "")
    for output in ("both", "ranking", "scores"):
        form = re.sub("[XYZ]", lambda m: {"X": "A", "Y": "B", "Z": "C"}[m[0]], RankingFormat(output).example())
        assert parse_ranking(f"Text.\n\n{form}", "ABC", output, strictness="exact").levels == (("A",), ("B", "C"))
