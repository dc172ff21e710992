"""reasoning-gym's scorers behind a rule: gold answers after a trip through JSON, and answers that mean harm."""

import asyncio
import dataclasses
import itertools
import json
import time
from functools import cache
from pathlib import Path

import pytest

from rewardsmith import Prompt, Rollout, RolloutGroup
from rewardsmith.data import reasoning_gym as gym
from rewardsmith.data.reasoning_gym import UNSEEDED, UNSOUND, ReasoningGym, known_tasks
from rewardsmith.records import dumps, loads
from rewardsmith.rewards import CannotScore, make_reward
from rewardsmith.rewards.rules.gym_rule import reasoning_gym
from rewardsmith.rewards.tree import check

SLOW = {"futoshiki", "knight_swap", "sokoban", "zebra_puzzles"}  # tenths of a second for an entry
PLANS = {"boxnet", "graph_color", "rubiks_cube", "rush_hour"}  # many answers are right, and none is given
TASKS = sorted(set(known_tasks()) - set(UNSOUND) - set(UNSEEDED))


@cache
def prompts(task: str, count: int = 3) -> list[Prompt]:
    """Prompts of a task, as another process reads them from a file."""
    made = itertools.islice(ReasoningGym(task=task).prompts(seed=1), 1 if task in SLOW else count)
    return [loads(Prompt, dumps(prompt)) for prompt in made]


def tagged(answer: object) -> str:
    return f"<think>I wonder.</think> It is <answer>{answer}</answer>"


def changed(prompt: Prompt, **info: object) -> Prompt:
    return dataclasses.replace(prompt, info={**prompt.info, **info})


@pytest.mark.parametrize("task", sorted(set(TASKS) - PLANS))
def test_the_gold_answer_earns_one_and_others_less(task: str) -> None:
    found = prompts(task)
    for prompt in found:
        assert reasoning_gym(prompt, tagged(prompt.answer)) == 1.0
        others = {p.answer for p in found} - {prompt.answer}
        for wrong in ("banana", "nan", "[]", *others):
            assert reasoning_gym(prompt, tagged(wrong)) < 1.0
            assert reasoning_gym(prompt, tagged(wrong), partial=False) == 0.0
        unfinished = f"<think>or <answer>{prompt.answer}</answer>"
        for absent in ("", str(prompt.answer), "<answer></answer>", unfinished, f"<answer>{prompt.answer}"):
            assert reasoning_gym(prompt, absent) == 0.0


def test_plans() -> None:
    prompt = prompts("graph_color")[0]
    colours = prompt.info["metadata"]["possible_answer"]
    assert reasoning_gym(prompt, tagged(json.dumps(colours))) == 1.0
    assert reasoning_gym(prompt, tagged(json.dumps(dict.fromkeys(colours, 9)))) < 0.1
    prompt = prompts("rubiks_cube")[0]
    moves = prompt.info["metadata"]["example_correct_answer"]
    assert reasoning_gym(prompt, tagged(moves)) == 1.0
    assert reasoning_gym(prompt, tagged(f"{moves} R")) < 1.0
    board = changed(prompts("rush_hour")[0], metadata={"board_config": "o" * 12 + "AAoooo" + "o" * 18})
    assert [reasoning_gym(board, tagged(moves)) for moves in ("A+4", "A+2 A+2")] == [1.0, 1.0]
    assert reasoning_gym(board, tagged("A+3")) < 0.1
    state = {"0.5_0.5": ["box_red"], "0.5_1.5": ["target_red"]}
    boxes = changed(prompts("boxnet")[0], metadata={"initial_state": state})
    carry = {"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"}
    match = {"Agent[0.5, 1.5]": "move(box_red, target_red)"}
    assert reasoning_gym(boxes, tagged(json.dumps([carry, match]))) == 1.0
    assert reasoning_gym(boxes, tagged(json.dumps([carry]))) < 0.1
    assert reasoning_gym(boxes, tagged("17")) == 0.0  # the scorer raises


# ---- what cannot be scored -----------------------------------------------------------------------------------------


def test_a_scorer_that_cannot_be_trusted_is_refused() -> None:
    for task in UNSOUND:
        with pytest.raises(CannotScore, match=task) as caught:
            reasoning_gym(changed(prompts("chain_sum")[0], task=task), tagged("1"))
        assert caught.value.kind == "refused"


SUM = {"task": "chain_sum", "config": {}, "metadata": {}}


@pytest.mark.parametrize(
    ("answer", "info", "message"),
    [
        ("9", {}, "not from reasoning-gym"),
        ("9", {**SUM, "task": 5}, "not from reasoning-gym"),
        ("9", {**SUM, "task": "chain_sums"}, 'no task .* Did you mean "chain_sum"'),
        ("9", {**SUM, "config": {"min_terms": 99}}, "chain_sum of reasoning-gym refuses"),
        ("9", {**SUM, "config": {"terms": 2}}, "chain_sum of reasoning-gym refuses"),
        (9, SUM, "is no text"),
        ("9", {**SUM, "task": "word_sorting"}, "the scorer of word_sorting fails: KeyError"),
        (None, {**SUM, "task": "boxnet"}, "the scorer of boxnet fails: KeyError"),
        # These scorers swallow their own errors, and would call every answer wrong.
        ("9", {**SUM, "task": "number_sorting"}, "gives 0 to the entry's own answer"),
        ("1 1\n1 1", {**SUM, "task": "arc_agi"}, "the scorer of arc_agi fails: KeyError"),
    ],
)
def test_a_broken_prompt_is_invalid_whatever_the_answer(answer: object, info: dict, message: str) -> None:
    prompt = dataclasses.replace(prompts("chain_sum")[0], answer=answer, info=info)
    for text in (tagged("[1]"), tagged("banana"), ""):
        with pytest.raises(CannotScore, match=message) as caught:
            reasoning_gym(prompt, text)
        assert caught.value.kind == "invalid"


def test_marks_outside_of_0_to_1_are_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompts("chain_sum")[0]
    for marks in (float("nan"), -0.5, 1.5, float("inf")):
        with monkeypatch.context() as patch:
            patch.setattr(gym.Task, "_run_scorer", lambda *_, marks=marks: marks)
            patch.setattr(gym.Task, "require_sound", lambda *_: None)
            with pytest.raises(CannotScore, match="not from 0 to 1") as caught:
                reasoning_gym(prompt, tagged("1"))
            assert caught.value.kind == "invalid"


# ---- answers that mean harm ----------------------------------------------------------------------------------------


def payloads(path: Path) -> list[str]:
    """Programs that leave a file behind when somebody evaluates them."""
    return [
        f"open({str(path)!r}, 'w')",
        f"[open({str(path)!r}, 'w').name]",
        f"__import__('pathlib').Path({str(path)!r}).touch()",
        f"[[x for x in [open({str(path)!r}, 'w')]]]",
    ]


@pytest.mark.parametrize("task", ["binary_matrix", "countdown", "n_queens", "spiral_matrix", "string_insertion"])
def test_the_forms_are_what_keeps_programs_out(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompts(task)[0]
    monkeypatch.setattr(gym, "FORMS", {})
    for answer in payloads(tmp_path / "harm"):
        reasoning_gym(prompt, tagged(answer))
    assert (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("task", "answer", "info"),
    [("bitwise_arithmetic", "0x1", {"problem": "PAYLOAD"}), ("number_sorting", "PAYLOAD", {"direction": "ascending"})],
)
def test_no_entry_is_run_as_a_program(task: str, answer: str, info: dict, tmp_path: Path) -> None:
    for payload in payloads(tmp_path / "harm"):
        metadata = {key: value.replace("PAYLOAD", payload) for key, value in info.items()}
        prompt = dataclasses.replace(
            prompts(task)[0],
            answer=answer.replace("PAYLOAD", payload),
            info={**SUM, "task": task, "metadata": metadata},
        )
        with pytest.raises(CannotScore, match="more than numbers"):
            reasoning_gym(prompt, tagged("[1]"))
        assert not (tmp_path / "harm").exists()


HOSTILE = [
    "9**9**9**9", "9 ** 9 ** 9", "R999999999", "A-999999999 B+999999999", "1e999999999", "0x" + "f" * 9_000,
    "9" * 9_999, "-" * 9_000 + "1", "(" * 5_000 + "1" + ")" * 5_000, "[" * 9_000, '{"a":' * 1_500, "R99 " * 250,
    "1/" * 400 + "1", "a∧" * 4_000, "1×" * 4_000, "\x00", "٣", "None", "1e400", "inf", "nan", "=" * 5_000,
    "Move disk 1 from Peg 9 to Peg 1", "1" * 5_000_000,
]  # fmt: skip


@pytest.mark.parametrize("task", sorted(set(TASKS) - SLOW))
def test_hostile_answers_are_wrong_and_none_is_run_or_hangs(
    task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prompt = prompts(task)[0]
    started = time.process_time()
    for answer in [*payloads(tmp_path / "harm"), *HOSTILE]:
        assert 0.0 <= reasoning_gym(prompt, tagged(answer)) < 1.0
    assert not (tmp_path / "harm").exists()
    assert time.process_time() - started < 20  # a tenth of it, usually; one of them alone took two minutes unguarded
    assert capfd.readouterr().out == ""  # some scorers print


def test_it_works_in_worker_processes() -> None:
    reward = make_reward({"type": "rule", "rule": "reasoning_gym", "deadline": 60})
    asyncio.run(check(reward))  # loads reasoning-gym, which takes longer than an answer
    prompt = prompts("countdown")[0]
    texts = [tagged(prompt.answer), tagged("9**9**9**9"), tagged("1 + 1"), "", tagged(prompt.answer)]
    scores = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text) for text in texts])))
    assert [score.value for score in scores] == [1.0, 0.0, pytest.approx(0.05), 0.0, 1.0]
