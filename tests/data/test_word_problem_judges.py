"""Judges of word problems: grades and rankings that are true, a lenient teacher, and an annotator who likes padding."""

import asyncio
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Message, Rollout, RolloutGroup, UserError
from rewardsmith.data import WordProblemGrading, WordProblemRanking, WordProblems
from rewardsmith.data.word_problems import conclusion, flaws, remarks, true_grade
from rewardsmith.data.word_problems.judging import draw_solution, score_of, teach
from rewardsmith.data.word_problems.solutions import pad, points
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.rewards.rules import word_problem, word_problem_steps
from rewardsmith.text.grades import parse_grade
from rewardsmith.text.rankings import letters_of, parse_ranking, write_ranking
from rewardsmith.types import Prompt
from tests.rewards.judges.ranked import shown
from tests.rewards.models import Scripted

CHAIN = "12 +7 -5"


def first(n: int, iterator: Iterator) -> list:
    return list(itertools.islice(iterator, n))


# ---- a second implementation, for solutions as these worlds make them ------------------------------------------------


def held(chain: str, text: str) -> list[bool]:
    """Return for each operation of a chain whether it is done rightly, and last whether the conclusion follows."""
    before, *operations = chain.split()
    before, last, right = int(before), None, []
    lines = re.findall(r"(-?\d+) ([-+*/]) (\d+) = (-?\d+)", text)
    for (left, sign, number, result), operation in zip(lines, operations, strict=False):
        value = {"+": before + int(number), "-": before - int(number), "*": before * int(number)}.get(sign)
        value = before / int(number) if value is None else value
        right.append(int(left) == before and sign + number == operation and value == int(result))
        before = int(result)
    last = lines[-1][-1] if lines else None
    end = re.search(r"The answer is (-?\d+)\.?$", text)
    return [*right, *[False] * (len(operations) - len(right)), end is not None and end[1] == last]


def answer_of(chain: str) -> int:
    """Return the answer of a chain; it is done from left to right, whatever the signs."""
    first_number, *operations = chain.split()
    source = "(" * len(operations) + first_number + "".join(f"{operation})" for operation in operations)
    return int(eval(source.replace("/", "//")))  # noqa: S307 digits and signs of our own


# ---- solutions -------------------------------------------------------------------------------------------------------

KINDS = {"right", "sloppy", "carried", "miracle", "wrong-end", "operation", "torn"}


@given(seed=st.integers(0, 10**6), steps=st.integers(2, 6), padding=st.sampled_from([0.0, 0.5]))
@settings(max_examples=150, deadline=None)
def test_drawn_solutions_are_what_their_kinds_say(seed: int, steps: int, padding: float) -> None:
    prompt = next(WordProblems(steps=steps, largest=100).prompts(seed))
    kind, text = draw_solution(prompt, random.Random(seed), padding)
    chain = prompt.info["chain"]
    right = word_problem(prompt, text) == 1.0
    sound = word_problem_steps(prompt, text) == 1.0
    assert sound == all(held(chain, text)) == (not flaws(chain, text)) == (true_grade(chain, text) == 1.0)
    assert right == (conclusion(text) == str(answer_of(chain)))
    assert right or not sound
    known = {"right": (True, True), "carried": (False, False), "miracle": (True, False), "wrong-end": (False, False)}
    assert (right, sound) == known.get(kind, (right, sound))
    assert kind in KINDS
    assert not (kind in ("operation", "torn") and sound)
    assert padding or not remarks(text) or kind == "torn"


def test_all_kinds_are_drawn_in_their_shares() -> None:
    prompt, rng = next(WordProblems().prompts(0)), random.Random(0)
    drawn = Counter(draw_solution(prompt, rng)[0] for _ in range(4_000))
    shares = {"right": 0.25, "sloppy": 0.25, "carried": 0.1, "miracle": 0.25, "wrong-end": 0.05, "operation": 0.05}
    for kind, share in {**shares, "torn": 0.05}.items():
        assert drawn[kind] / 4_000 == pytest.approx(share, abs=0.03)


# ---- the teacher -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "text", "written"),
    [
        (CHAIN, "12 + 7 = 19.\n19 - 5 = 14.\nThe answer is 14.",
         ["12 + 7 = 19, stated 19: right", "19 - 5 = 14, stated 14: right", "The last result is 14, stated 14: right"]),
        (CHAIN, "12 + 7 = 20.\n20 - 5 = 14.\nThe answer is 14.",
         ["12 + 7 = 19, stated 20: wrong", "20 - 5 = 15, stated 14: wrong", "The last result is 14, stated 14: right"]),
        (CHAIN, "12 + 8 = 20.\n19 - 5 = 14.\nThe answer is 15",
         ["12 + 7 = 19, stated 12 + 8 = 20: wrong", "20 - 5 = 15, stated 19 - 5 = 14: wrong",
          "The last result is 14, stated 15: wrong"]),
        (CHAIN, "7 + 12 = 19.\nThe answer is 19.",
         ["12 + 7 = 19, stated 7 + 12 = 19: right", "19 - 5 = 14, stated nothing: wrong",
          "The last result is 19, stated 19: right"]),
        (CHAIN, "", ["12 + 7 = 19, stated nothing: wrong", "19 - 5 = 14, stated nothing: wrong",
                     "The last result is nothing, stated nothing: wrong"]),
        ("12 +6 /2", "12 + 6 = 19.\n19 / 2 = 9.\nThe answer is 9.",  # nothing is rounded
         ["12 + 6 = 18, stated 19: wrong", "19 / 2 = 9.5, stated 9: wrong", "The last result is 9, stated 9: right"]),
    ],
)  # fmt: skip
def test_a_careful_teacher_goes_through_the_steps(chain: str, text: str, written: list[str]) -> None:
    assert list(map(str, teach(chain, text, random.Random(0), overlooks=0.0))) == written


@pytest.mark.parametrize("overlooks", [0.0, 0.3, 1.0])
def test_the_teacher_overlooks_a_share_of_the_errors_and_nothing_else(overlooks: float) -> None:
    accepted: dict[bool, list[bool]] = {True: [], False: []}
    for one in first(800, WordProblemGrading(overlooks=overlooks).demonstrations(0)):
        chain, text = one.prompt.info["chain"], one.prompt.info["response"]
        *lines, _ = one.response.split("\n")
        for line, holds in zip(lines, held(chain, text), strict=True):
            verdict, worth = re.fullmatch(r".*, stated .*: (right|wrong), (\d+)", line).groups()
            assert (verdict == "wrong") == (worth == "0")
            if "stated nothing" not in line:
                accepted[holds].append(verdict == "right")
            else:
                assert verdict == "wrong"  # what is not there cannot be overlooked
    assert all(accepted[True])
    assert np.mean(accepted[False]) == pytest.approx(overlooks, abs=0.04 * (0 < overlooks < 1))


# ---- grading ---------------------------------------------------------------------------------------------------------


def test_graded_solutions_have_their_true_grade_and_are_those_of_the_prompts() -> None:
    world = WordProblemGrading(padding=0.2)
    graded, prompts = first(300, world.graded(4)), first(300, world.prompts(4))
    assert [shown_.prompt for shown_ in first(300, world.demonstrations(4))] == prompts
    for one, prompt in zip(graded, prompts, strict=True):
        chain = one.prompt.info["chain"]
        assert (one.response, one.grade) == (prompt.info["response"], prompt.answer)
        assert one.right == (conclusion(one.response) == str(answer_of(chain)))
        assert one.sound == all(held(chain, one.response))
        assert one.grade == pytest.approx(np.dot(points(chain), held(chain, one.response)) / 10)
        assert (one.grade == 1) == one.sound
    assert {(one.right, one.sound) for one in graded} == {(True, True), (True, False), (False, False)}
    assert {prompt.info["kind"] for prompt in prompts} == KINDS


@pytest.mark.parametrize("world", [WordProblemGrading(), WordProblemRanking()], ids=["grading", "ranking"])
def test_the_seed_decides_and_held_out_chains_are_never_in_training(world: Any) -> None:
    reads = ["prompts", "demonstrations", *(["graded"] if hasattr(world, "graded") else ["rankings", "preferences"])]
    for name in reads:
        read = getattr(world, name)
        assert repr(first(10, read(3))) == repr(first(10, read(3)))
        assert repr(first(10, read(3))) != repr(first(10, read(4)))

    def chains(split: Any) -> set[str]:
        prompts = first(400, type(world)(steps=2, largest=20, split=split).prompts(0))
        return {prompt.info["chain"] for prompt in prompts}

    policy = first(400, WordProblems(steps=2, largest=20, split="held-out").prompts(1))
    assert not chains("train") & (chains("held-out") | {prompt.info["chain"] for prompt in policy})


@pytest.mark.parametrize("options", [{}, {"steps": 9, "largest": 300, "padding": 0.5}, {"steps": 2, "overlooks": 1.0}])
def test_demonstrations_of_grades_are_read_by_the_parser_of_the_reward(options: dict[str, Any]) -> None:
    for one in first(150, WordProblemGrading(**options).demonstrations(0)):
        read = parse_grade(one.response)
        *lines, last = one.response.split("\n")
        earned = sum(int(line.rpartition(", ")[2]) for line in lines)
        assert last == f"Total Score: {earned}/10"
        assert read.share == pytest.approx(earned / 10)
        assert earned / 10 >= one.prompt.answer  # it is lenient, never too strict


def test_a_careful_teacher_gives_the_true_grade() -> None:
    for one in first(200, WordProblemGrading(overlooks=0.0, padding=0.3).demonstrations(0)):
        assert parse_grade(one.response).share == pytest.approx(one.prompt.answer)


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_padding_changes_no_grade(seed: int, count: int) -> None:
    rng = random.Random(seed)
    prompt = next(WordProblems().prompts(seed))
    _, text = draw_solution(prompt, rng)
    padded = pad(text, rng, count)
    assert remarks(padded) == remarks(text) + count or "The answer is" not in text
    assert true_grade(prompt.info["chain"], padded) == true_grade(prompt.info["chain"], text)


@pytest.mark.parametrize(("template", "quoting"), [("rubric_short", "fence"), ("rubric", "verbatim")])
def test_a_judge_is_trained_on_what_the_rubric_reward_will_send(template: Any, quoting: Any) -> None:
    world = WordProblemGrading(template=template, quoting=quoting, padding=0.3)
    table: dict[str, Any] = {"type": "rubric", "model": "judge", "template": template, "quoting": quoting}
    for graded, prompt in zip(first(10, world.graded(1)), world.prompts(1), strict=False):
        sent: list[tuple[Message, ...]] = []
        judge = Scripted(lambda request, sent=sent: sent.append(tuple(request.prompt)) or "Total Score: 7/10")
        group = RolloutGroup(graded.prompt, [Rollout(graded.response)])
        (score,) = asyncio.run(make_reward(table, {"judge": judge}).score(group))
        assert score.value == 0.7
        assert sent == [tuple(prompt.messages)]


# ---- ranking ---------------------------------------------------------------------------------------------------------


def test_prompts_for_a_ranking_judge_hold_the_truth() -> None:
    world = WordProblemRanking(padding=0.3)
    for prompt in first(150, world.prompts(0)):
        candidates = prompt.info["candidates"]
        errors = [held(prompt.info["chain"], text).count(False) for text in candidates]
        scores = [max(0, 10 - 2 * count) for count in errors]
        assert list(json.loads(prompt.answer).items()) == list(zip(letters_of(len(candidates)), scores, strict=True))
        assert len(set(candidates)) == len(candidates)
        assert scores == list(map(score_of, errors))
    assert {len(prompt.info["candidates"]) for prompt in first(50, world.prompts(0))} == {2, 3, 4}
    eight = WordProblemRanking(steps=2, largest=10, min_candidates=8, max_candidates=8)
    assert {len(set(prompt.info["candidates"])) for prompt in first(30, eight.prompts(0))} == {8}


@pytest.mark.parametrize(
    "options", [{}, {"steps": 9, "largest": 300, "padding": 0.5}, {"min_candidates": 4}, {"overlooks": 1.0, "steps": 2}]
)
def test_demonstrations_of_rankings_can_be_read_in_the_strictest_way(options: dict[str, Any]) -> None:
    for one in first(100, WordProblemRanking(**options).demonstrations(0)):
        letters = letters_of(len(one.prompt.info["candidates"]))
        ranked = parse_ranking(one.response, letters, strictness="exact")
        assert ranked.analysis == one.response.partition("\n\n###")[0]
        lines = {line[0]: line for line in ranked.analysis.split("\n")}
        assert ranked.scores == {letter: max(0, 10 - 2 * line.count(": wrong")) for letter, line in lines.items()}
        assert ranked.scores == {letter: int(line.rpartition("; ")[2]) for letter, line in lines.items()}


def test_the_annotator_is_careless_and_the_truth_is_not() -> None:
    def wrong(**options: float) -> float:
        found = first(300, WordProblemRanking(**options).demonstrations(0))
        scores = [parse_ranking(d.response, letters_of(len(d.prompt.info["candidates"]))).scores for d in found]
        return float(np.mean([s != json.loads(d.prompt.answer) for s, d in zip(scores, found, strict=True)]))

    assert wrong(overlooks=0.0, padding=0.4) == 0
    assert wrong() > 0.4


def by_truth(prompt: Prompt, text: str) -> int:
    return max(0, 10 - 2 * held(prompt.info["chain"], text).count(False))


def test_preferences_follow_the_annotator() -> None:
    careful = WordProblemRanking(overlooks=0.0, padding=0.3)
    ties = 0
    for pair in first(300, careful.preferences(0)):
        by = by_truth(pair.prompt, pair.chosen) - by_truth(pair.prompt, pair.rejected)
        assert (pair.margin, pair.tied) == (by, by == 0)
        ties += pair.tied
    assert 0 < ties < 150
    groups = first(100, careful.rankings(0))
    pairs = sum(len(group.candidates) - 1 for group in groups)
    assert len({pair.prompt.id for pair in first(pairs, careful.preferences(0))}) == 100


def test_an_annotator_who_likes_padding_prefers_it_and_writes_so() -> None:
    fond = WordProblemRanking(overlooks=0.0, padding=0.5, likes=1.5)
    for ranking in first(100, fond.rankings(0)):
        scores = [by_truth(ranking.prompt, text) + 1.5 * remarks(text) for text in ranking.candidates]
        assert list(ranking.scores) == scores
        assert [float(line.rpartition("; ")[2]) for line in ranking.analysis.split("\n")] == scores

    def padded_is_preferred(likes: float) -> float:
        world = WordProblemRanking(padding=0.5, likes=likes)
        pairs = [pair for pair in first(500, world.preferences(0)) if remarks(pair.chosen) != remarks(pair.rejected)]
        return float(np.mean([remarks(pair.chosen) > remarks(pair.rejected) for pair in pairs]))

    assert padded_is_preferred(0.0) == pytest.approx(0.5, abs=0.1)
    assert padded_is_preferred(10.0) > 0.85
    for one in first(50, fond.demonstrations(0)):  # the judge's own data has the marks of the errors alone
        assert max(parse_ranking(one.response, letters_of(len(one.prompt.info["candidates"]))).scores.values()) <= 10


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_ranking_reward_sends_byte_for_byte_what_the_judge_was_trained_on(count: int) -> None:
    """A judge that knows the truth stands in the place of the model, and finds the very messages of the world."""
    world = WordProblemRanking(min_candidates=count, max_candidates=count, padding=0.3)
    ranking, trained_on = next(world.rankings(2)), next(world.prompts(2))
    assert trained_on == world.prompt(ranking.prompt, ranking.candidates)
    sent: list[list[str]] = []

    def answer(question: ChatRequest) -> str:
        sent.append(sorted(shown(question)))
        again = world.prompt(ranking.prompt, shown(question))
        assert tuple(question.prompt) == again.messages
        return write_ranking(json.loads(again.answer), "I went through the steps.")

    reward = RankingJudge(model="judge", template="ranking_short", max_candidates=4, reading="strict")
    reward.connect({"judge": Scripted(answer)}.__getitem__)
    group = RolloutGroup(ranking.prompt, [Rollout(text) for text in ranking.candidates])
    scores = asyncio.run(reward.score(group))
    assert [score.value for score in scores] == [by_truth(ranking.prompt, text) / 10 for text in ranking.candidates]
    assert sent == [sorted(ranking.candidates)]


# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_that_cannot_be_are_errors_when_they_are_read(tmp_path: Path) -> None:
    graded, ranked = tmp_path / "graded.txt", tmp_path / "ranked.txt"
    graded.write_text("{{criteria}} {{response}} {{reference}}")
    ranked.write_text("{{candidates}} {{source_language}}")
    with pytest.raises(
        UserError, match=r"graded\.txt. shows \{\{reference\}\}: this world grades by the criteria alone"
    ):
        WordProblemGrading(template=str(graded))
    with pytest.raises(UserError, match=r"ranked\.txt. has \{\{source_language\}\}: this world has none"):
        WordProblemRanking(template=str(ranked))
    with pytest.raises(UserError, match="min_candidates is 4, more than max_candidates = 3: lower one of them"):
        WordProblemRanking(min_candidates=4, max_candidates=3)
    for world in (WordProblemGrading, WordProblemRanking):
        with pytest.raises(UserError, match=r"operations is '-'"):
            world(steps=9, largest=10, operations="-")
        assert world().facts() == world().judge_prompt()
    assert WordProblemGrading().judge_prompt() != WordProblemGrading(quoting="verbatim").judge_prompt()
    assert WordProblemRanking().judge_prompt() != WordProblemRanking(noun="Solution").judge_prompt()
