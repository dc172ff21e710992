"""The Python API, as a script, a notebook and a thread use it."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rewardsmith as rs
from rewardsmith.rewards.base import Halt
from tests.rewards.models import Scripted, text_of

ROWS = [
    {"prompt": f"{a}+{b}?", "response": f"#{a + b}", "reward_model": {"ground_truth": str(a + b)}}
    for a in range(6)
    for b in range(6)
]


def right(response: str, answer: str) -> float:
    return float(response.strip() == f"#{answer}")


def short(response: str) -> float:
    return 1 / (1 + len(response))


async def doubled(text: str) -> float:
    await asyncio.sleep(0)
    return 2.0 * len(text)


def order(responses: list[str]) -> list[int]:
    return list(range(len(responses)))


class Longest:
    """An object with score()."""

    def __init__(self, *, bonus: float = 1.0) -> None:
        self.bonus = bonus

    async def score(self, group: rs.RolloutGroup) -> list[rs.Score]:
        longest = max(len(rollout.text) for rollout in group.rollouts)
        return [rs.Score(self.bonus * (len(rollout.text) == longest)) for rollout in group.rollouts]


def tiny_recipe(**stage: Any) -> dict[str, Any]:
    policy = {"type": "policy", "model": "policy", "data": "train", "steps": 1, "prompts_per_step": 2}
    policy |= {"rollouts_per_prompt": 2, "sampling": {"max_tokens": 4}, "reward": right}
    return {
        "models": {"policy": {"init": "tiny-llama"}},
        "data": {"train": ROWS},
        "stages": [policy | stage],
    }


# ---- scoring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (right, [1.0, 0.0]),
        (short, [1 / 3, 1 / 4]),
        (len, [2.0, 3.0]),
        (doubled, [4.0, 6.0]),
        (order, [0.0, 1.0]),
        (lambda group: [group.prompt.answer == "4", 0], [1.0, 0.0]),
        (lambda prompt, rollout: Fraction(len(rollout.text), 2), [1.0, 1.5]),
        (Longest(), [0.0, 1.0]),
        (Longest, [0.0, 1.0]),
        ({"type": Longest, "bonus": 3.0}, [0.0, 3.0]),
        ({"type": "sum", "parts": {"a": right, "b": {"type": right, "weight": 2.0}}}, [3.0, 0.0]),
        ({"type": "rule", "rule": "normalised"}, [0.0, 0.0]),
    ],
)
def test_whatever_scores_is_a_reward(spec: Any, expected: list[float]) -> None:
    assert rs.score(spec, "2+2?", ["#4", "#55"], answers="4").values == [expected]


def test_parts_keep_their_names_weights_and_failures() -> None:
    def sometimes(response: str) -> float | None:
        return None if response == "#5" else 1.0

    reward = rs.reward({"type": "sum", "parts": {"right": {"type": right, "weight": 2.0}, "sometimes": sometimes}})
    assert set(reward.part_names) == {"right", "sometimes"}
    scores = rs.score(reward, ["2+2?"], [["#4", "#5"]], answers=["4"])
    assert scores.values == [[3.0, None]]
    assert scores.part("right") == [[1.0, 0.0]]
    assert [one and one.kind for one in scores.failures[0]] == [None, "invalid"]
    first, second = scores.rows()
    assert (first["reward"], first["part/sometimes"], first["failure"]) == (3.0, 1.0, None)
    assert (second["reward"], second["part/right"], second["part/sometimes/failure"]) == (None, 0.0, "invalid")
    with pytest.raises(rs.UserError, match="Known: right, sometimes"):
        scores.part("left")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1.0", b"1", [1.0], 10**400, {"value": 1.0}])
def test_what_is_no_finite_number_is_a_failure(value: Any) -> None:
    scores = rs.score(lambda response: value, "2+2?", ["#4"])
    assert scores.values == [[None]]
    assert scores.failures[0][0].kind == "invalid"


def test_an_exception_for_one_answer_is_a_failure_of_that_answer() -> None:
    def fragile(response: str) -> float:
        return 1.0 / int(response)

    scores = rs.score(fragile, "a number", ["2", "0", "x"])
    assert scores.values == [[0.5, None, None]]
    assert [one and one.kind for one in scores.failures[0]] == [None, "crashed", "crashed"]
    assert "ZeroDivisionError" in scores.failures[0][1].detail


def exits(response: str) -> float:
    raise SystemExit(3)


async def exits_async(response: str) -> float:
    raise SystemExit(2)


def interrupted(response: str) -> float:
    raise KeyboardInterrupt


def exhausted(responses: list[str]) -> list[float]:
    return [next(iter(()))]


def endless(responses: list[str]) -> Any:
    return itertools.repeat(1.0)


@pytest.mark.parametrize("function", [exits, exits_async, interrupted, exhausted, endless])
def test_what_a_function_raises_or_returns_never_ends_the_event_loop(function: Any) -> None:
    assert rs.score(function, "p", ["x", "y"]).values == [[None, None]]
    assert rs.score(short, "p", ["x"]).values == [[0.5]]


@pytest.mark.parametrize(
    "values", [{0: 1.0, 1: 0.0}, {1.0, 0.0}, b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab", 1.0]
)
def test_values_without_an_order_or_of_bytes_are_no_scores(values: Any) -> None:
    scores = rs.score(lambda responses: values, "p", ["x", "y"])
    assert scores.values == [[None, None]]
    assert scores.failures[0][0].kind == "invalid"


def test_numpy_arrays_generators_and_plain_functions_that_return_coroutines_are_fine() -> None:
    assert rs.score(lambda responses: np.array([1.0, 0.5]), "p", ["x", "y"]).values == [[1.0, 0.5]]
    assert rs.score(lambda responses: (len(one) for one in responses), "p", ["x", "yy"]).values == [[1.0, 2.0]]
    assert rs.score(lambda response: doubled(response), "p", ["x", "yy"]).values == [[2.0, 4.0]]  # noqa: PLW0108


def test_a_function_that_hangs_keeps_no_other_waiting() -> None:
    release = threading.Event()
    reward = rs.reward({"type": lambda response: release.wait(60) and 1.0, "failure": {"deadline": 0.2}})
    scores = rs.score(reward, [f"p{i}" for i in range(40)], [["x"]] * 40)
    assert {one[0].kind for one in scores.failures} == {"timeout"}
    assert rs.score(short, "p", ["x"]).values == [[0.5]]
    release.set()


def test_a_program_ends_although_a_function_hangs() -> None:
    code = """
import rewardsmith as rs, threading
reward = rs.reward({"type": lambda response: threading.Event().wait(), "failure": {"deadline": 0.2}})
print(rs.score(reward, "p", ["x"]).failures[0][0].kind)
"""
    found = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60, check=True)
    assert found.stdout.strip() == "timeout"


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    code = """
import os, sys, rewardsmith as rs
reward = rs.reward(lambda response: float(len(response)))
assert rs.score(reward, "p", ["x"]).values == [[1.0]]
if (child := os.fork()) == 0:
    sys.exit(0 if rs.score(reward, "p", ["xyz"]).values == [[3.0]] else 1)
assert os.waitpid(child, 0)[1] == 0
print(rs.score(reward, "p", ["xy"]).values)
"""
    found = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60, check=True)
    assert found.stdout.strip() == "[[2.0]]"


def test_flat_answers_of_equal_prompts_form_a_group_and_come_back_in_order() -> None:
    prompts, answers = ["a", "b", "a"], ["1", "2", "1"]
    scores = rs.score(order, prompts, ["x", "y", "z"], answers=answers)
    assert [len(group.scores) for group in scores] == [2, 1]
    assert scores.values == [0.0, 0.0, 1.0]
    assert len(rs.score(order, prompts, ["x", "y", "z"], answers=["1", "2", "3"])) == 3  # another truth, another prompt


def test_prompts_are_text_messages_rows_or_prompts() -> None:
    row = {
        "prompt": [{"role": "user", "content": "2+2?"}],
        "reward_model": {"ground_truth": "4"},
        "data_source": "sums",
    }
    chat = [{"role": "system", "content": "Count."}, {"role": "user", "content": "2+2?"}]
    own = rs.Prompt("own", [rs.Message("user", "2+2?")], answer="4")
    scores = rs.score(right, [row, chat, own], [["#4"]] * 3, answers=[None, "4", None])
    assert scores.values == [[1.0]] * 3
    assert scores[0].group.prompt.source == "sums"
    completion = [{"role": "assistant", "content": "#4"}]
    assert rs.score(right, [chat], [completion], answers=["4"]).values == [1.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rs.score(right, ["a", "b"], ["x"]), "2 prompts and 1 responses"),
        (lambda: rs.score(right, ["a"], [[]]), "no response"),
        (lambda: rs.score(right, ["a"], [[3]]), "response to prompt 0"),
        (lambda: rs.score(right, [""], [["x"]]), "prompt 0 cannot be used"),
        (lambda: rs.score(right, ["a", "b"], [["x"], ["y"]], answers=["1"]), "1 answers"),
        (lambda: rs.reward("mathh"), "unknown reward"),
        (lambda: rs.reward({"type": "rule", "rule": "mathh"}), "math"),
        (lambda: rs.reward("nowhere.toml:policy"), "no recipe or run"),
        (lambda: rs.reward(lambda a, b: 1.0), "unknown parameter 'a'"),
        (lambda: rs.reward(lambda prompt: 1.0), "take `response`"),
        (lambda: rs.reward(lambda response, group: 1.0), "take `response`"),
        (lambda: rs.reward({"type": Longest, "bonsu": 1.0}), "bonsu"),
        (lambda: rs.reward({"type": Longest(), "bonus": 1.0}), "bonus"),
        (lambda: rs.reward({"type": "rubric", "model": "judge"}), "judge"),
        (lambda: rs.reward({"type": "rule", "rule": lambda prompt, text: 1.0}), "define it at the top of a module"),
        (lambda: rs.advantages([[1.0, 0.0]], estimator="gae"), "needs the values of a critic"),
        (lambda: rs.advantages([[1.0, 0.0]], estimator="rlo"), "rloo"),
        (lambda: rs.load_run("nowhere"), "there is no folder"),
        (lambda: rs.load_run("."), "is no run folder"),
        (lambda: rs.load_run(None), "NoneType"),
        (lambda: rs.train(None), "NoneType"),
        (lambda: rs.train("quickstart", [3]), "overrides"),
        (lambda: rs.train(tiny_recipe(), resume="yes"), "resume is 'yes'"),
        (lambda: rs.train(tiny_recipe(), on="ray"), "on is 'ray'"),
        (lambda: rs.score(right, None, ["x"]), "prompts is of type NoneType"),
        (lambda: rs.advantages(None), "list of groups"),
        (lambda: rs.advantages([1.0, 0.0]), "list of groups"),
        (lambda: rs.advantages([[1.0, "a"]]), r"scores\[0\]\[1\]"),
        (lambda: rs.advantages([[1.0, float("nan")]]), "None for a failure"),
        (lambda: rs.advantages([[1.0, 0.0]], estimator=lambda inputs: 3), "must return"),
        (lambda: rs.evaluate(right, [], kind="foo"), "policy"),
        (lambda: rs.evaluate(None, [], kind="pairs"), "reward is None"),
        (lambda: rs.reward(right, models="http://x"), "models is of type str"),
        (lambda: rs.reward(right, models={"judge": 3}), "models.judge is 3"),
        (lambda: rs.reward(lambda completions, **kwargs: [1.0]), "from_trl"),
        (lambda: rs.reward(lambda data_source, solution_str, ground_truth: 1.0), "verl_function"),
        (lambda: rs.train("nowhere.toml"), "nowhere.toml"),
        (lambda: rs.train(tiny_recipe(), {"stages.policy.stepps": 1}), "stepps"),
        (lambda: rs.train(tiny_recipe(), {"stages.polcy.steps": 1}), "policy"),
        (lambda: rs.train({**tiny_recipe(), "data": {"train": 3}}), "data.train"),
        (lambda: rs.train({**tiny_recipe(), "data": {"train": []}}, quiet=True), "no rows"),
        (lambda: rs.evaluate(right, [{"prompt": "1"}], kind="pairs"), "chosen"),
        (lambda: rs.audit(right, [{"prompt": "1"}], require="attack"), r"require is .*attack.*: give limits by name"),
        (lambda: rs.audit(right, [{"prompt": "1"}], require={"attack": "0"}), r"require\.attack"),
        (lambda: rs.audit(right, [{"prompt": "1"}], require={"attack": -1}), "attack is -1.*limit from 0 to 1"),
        (lambda: rs.audit(right, [{"prompt": "1"}], model=5), "model is 5: name it"),
        (lambda: rs.audit(right, [{"prompt": "1"}], own_attacks=5), "own-attacks"),
    ],
)
def test_mistakes_are_explained(call: Callable[[], object], words: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rs.UserError, match=words):
        call()


def test_a_judge_is_called_through_a_python_object() -> None:
    judge = Scripted(lambda request: "Total Score: 7/10" if "#4" in text_of(request) else "I cannot tell.")
    criteria = "6 points: the sum is right.\n4 points: it is shown how."
    with rs.reward({"type": "rubric", "model": "judge", "criteria": criteria}, models={"judge": judge}) as reward:
        scores = rs.score(reward, "2+2?", ["#4", "#5"], answers="4")
    assert scores.values == [[0.7, None]]
    assert scores.failures[0][1].kind == "unparsable"
    assert scores[0].scores[0].feedback == "Total Score: 7/10"


def test_a_judge_may_be_a_plain_function_of_messages() -> None:
    def judge(messages: list[dict[str, str]]) -> str:
        return "Total Score: 10/10" if "#4" in messages[-1]["content"] else "I cannot tell."

    async def down(messages: list[dict[str, str]]) -> str:
        raise ConnectionError("no route")

    criteria = "10 points: the sum is right."
    table = {"type": "rubric", "model": "judge", "criteria": criteria, "failure": {"wait": 0.0}}
    with rs.reward(table, models={"judge": judge}) as reward:
        assert rs.score(reward, "2+2?", ["#4", "#5"]).values == [[1.0, None]]
        assert reward.usage() == {} or reward.models["judge"].usage.calls >= 2
    assert rs.score(table, "2+2?", ["#4"], models={"judge": down}).failures[0][0].kind == "unreachable"
    wrong = rs.score(table, "2+2?", ["#4"], models={"judge": lambda messages: 3}).failures[0][0]
    assert wrong.kind == "invalid"


def test_arrays_columns_and_iterators_are_lists() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"prompt": ["a", "b"], "response": ["#1", "#3"], "truth": ["1", "2"]})
    assert rs.score(right, frame.prompt, frame.response, answers=frame.truth).values == [1.0, 0.0]
    responses = np.array([["#1", "#2"], ["#1", "#2"]])
    assert rs.score(right, ["a", "b"], responses, answers=np.array(["1", "2"])).values == [[1.0, 0.0], [0.0, 1.0]]
    assert rs.score(right, iter(["a"]), iter([["#1"]]), answers=["1"]).values == [[1.0]]
    parts = [{"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}]
    assert rs.score(right, [parts], [["#1"]], answers="1")[0].group.prompt.messages[0].content == "1\n2"
    assert rs.advantages(np.array([[1.0, 0.0]]), "rloo") == [[1.0, -1.0]]
    assert rs.advantages([], "rloo") == rs.advantages(rs.score(right, [], []), "rloo") == []


def test_a_table_with_score_has_its_other_numbers_as_parts() -> None:
    scores = rs.score(lambda response: {"score": 1.0, "length": len(response)}, "p", ["x", "yy"])
    assert scores.values == [[1.0, 1.0]]
    assert scores.part("length") == [[1.0, 2.0]]


def test_failures_do_not_stop_scoring_unless_the_reward_is_used_for_training() -> None:
    def broken(response: str) -> float:
        if len(response) > 1:
            raise RuntimeError("no")
        return 1.0

    reward = rs.reward({"type": broken, "failure": {"share": 0.1, "window": 8, "min_failures": 2}})
    answers = [["ab", "b"]] * 20
    assert rs.score(reward, [f"p{i}" for i in range(20)], answers).values == [[None, 1.0]] * 20
    reward.stop_on_failures = True
    with pytest.raises(Halt, match=r"failure\.share"):
        rs.score(reward, [f"p{i}" for i in range(20)], answers)


# ---- advantages ----------------------------------------------------------------------------------------------------


def test_advantages_are_those_of_the_formula_and_a_failure_has_none() -> None:
    found = rs.advantages([[1.0, 0.0, None, 0.0], [2.0, 0.0]], estimator="rloo")
    assert found[0] == [pytest.approx(1 - 0 / 2), pytest.approx(0 - 1 / 2), None, pytest.approx(0 - 1 / 2)]
    assert found[1] == [pytest.approx(2.0), pytest.approx(-2.0)]


def test_parts_can_be_estimated_each_on_its_own() -> None:
    reward = rs.reward({"type": "sum", "parts": {"a": order, "b": {"type": short, "weight": 10.0}}})
    scores = rs.score(reward, ["p"], [["x", "yy", "zzz"]])
    apart = rs.advantages(scores, "grpo", combine="after")
    one = rs.advantages([scores.part("a")[0]], "grpo")[0]
    other = rs.advantages([scores.part("b")[0]], "grpo")[0]
    assert apart[0] == pytest.approx([a + 10 * b for a, b in zip(one, other, strict=True)], rel=1e-4)


def test_an_estimator_may_be_a_function() -> None:
    def centred(inputs: Any, *, factor: float = 1.0) -> Any:
        return factor * (inputs.rewards_BT - inputs.rewards_BT.mean()) * inputs.mask_BT

    assert rs.advantages([[3.0, 1.0]], estimator=centred, factor=2.0) == [[2.0, -2.0]]


# ---- where it is called --------------------------------------------------------------------------------------------


def test_a_running_event_loop_and_threads_do_not_matter() -> None:
    reward = rs.reward({"type": "sum", "parts": {"a": {"type": "rule", "rule": "exact"}, "b": doubled}})

    async def notebook() -> list[Any]:
        blocking = rs.score(reward, "2+2?", ["4"], answers="4").values
        awaited = await asyncio.gather(*(rs.score_async(reward, "2+2?", ["4"], answers="4") for _ in range(8)))
        return [blocking, *(one.values for one in awaited)]

    assert asyncio.run(notebook()) == [[[3.0]]] * 9
    assert asyncio.run(notebook()) == [[[3.0]]] * 9  # another loop, the same connections
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: rs.score(reward, "2+2?", ["4"], answers="4").values, range(8)))
    assert found == [[[3.0]]] * 8
    reward.close()


def test_a_reward_that_would_wait_for_itself_is_refused() -> None:
    async def nested(response: str) -> float:
        return float(rs.score(short, "p", [response]).values[0][0])

    async def awaited(response: str) -> float:
        return float((await rs.score_async(short, "p", [response])).values[0][0])

    assert "use the async form" in rs.score(nested, "p", ["x"]).failures[0][0].detail
    assert rs.score(awaited, "p", ["x"]).values == [[0.5]]


# ---- runs ----------------------------------------------------------------------------------------------------------


def test_a_run_from_python_objects_can_be_read_and_measured(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe(validation={"data": "train", "prompts": 2})

    async def notebook() -> Any:
        return rs.train(recipe, {"seed": 3, "stages.policy.steps": 2}, quiet=True)

    run = asyncio.run(notebook())
    assert run.state == "finished"
    assert run.folder == Path("runs/run")
    assert run.recipe["seed"] == 3
    assert recipe["stages"][0]["steps"] == 1  # the caller's table is left alone
    assert run.recipe["stages"][0]["reward"]["type"] == f"{__name__}:right"
    steps = run.metrics("policy")
    assert [row["step"] for row in steps] == [0, 1, 2]
    assert "reward/mean" in steps[1]
    rollouts = run.rollouts(kind="train", step=1)
    assert len(rollouts) == 4
    assert {"step", "kind", "prompt", "response", "reward", "advantage", "failure"} <= rollouts[0].keys()
    assert all(right(row["response"], row["answer"]) == row["reward"] for row in run.rollouts())
    assert run.models["policy"].is_dir()
    assert run.report.is_file()
    measured = rs.evaluate(None, run, kind="policy")
    assert measured.metrics["rollouts"] == len(run.rollouts())
    again = rs.load_run("runs/run")
    assert again.rollouts(limit=1) == run.rollouts(limit=1)
    with pytest.raises(rs.UserError, match="policy"):
        again.metrics("polcy")
    # A recipe.toml that names objects of a program is understood as that.
    with pytest.raises(rs.UserError, match="object of a Python program"):
        rs.train("runs/run/recipe.toml")


def test_interrupting_a_run_in_a_thread_saves_it_and_the_same_call_resumes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    from rewardsmith import api

    seen: list[int] = []
    stopped = threading.Event()

    def stopping(response: str) -> float:
        seen.append(1)
        stopped.set()
        return float(len(response))

    recipe = tiny_recipe(steps=3, reward=stopping)
    begin = api.call_without_loop

    def interrupted(work: Callable[[threading.Event | None], Any]) -> Any:
        stop = threading.Event()
        watcher = threading.Thread(target=lambda: (stopped.wait(60), stop.set()))
        watcher.start()
        try:
            return begin(lambda _: work(stop))
        finally:
            watcher.join()

    monkeypatch.setattr(api, "call_without_loop", interrupted)

    def call() -> None:
        with pytest.raises(KeyboardInterrupt, match="everything is saved"):
            rs.train(recipe, quiet=True)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()
    assert rs.load_run("runs/run").state == "stopped"
    monkeypatch.setattr(api, "call_without_loop", begin)
    run = rs.train(recipe, quiet=True)
    assert run.folder == Path("runs/run")
    assert run.state == "finished"
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]


# ---- data ----------------------------------------------------------------------------------------------------------


def test_rows_frames_and_datasets_give_the_same_prompts() -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    from rewardsmith.data import SOURCE

    table = [{"question": f"{i}+1?", "solution": str(i + 1), "tags": ["sum", str(i)]} for i in range(5)]
    columns = {"prompt_column": "question", "answer_column": "solution"}
    given = [table, tuple(table), pandas.DataFrame(table), datasets.Dataset.from_list(table)]
    found = [list(SOURCE.choose({"type": rows, **columns}).build().prompts(seed=1)) for rows in given]
    assert all(prompts == found[0] for prompts in found)
    assert sorted(prompt.answer for prompt in found[0]) == ["1", "2", "3", "4", "5"]
    assert [prompt.answer for prompt in found[0]] != ["1", "2", "3", "4", "5"]  # a new order for each seed
    assert found[0][0].info["tags"][0] == "sum"


def test_a_reward_is_measured_on_rows() -> None:
    pairs = [{"prompt": f"{i}+0?", "chosen": f"#{i}", "rejected": "#9", "reward_model": {"ground_truth": str(i)}}
             for i in range(4)]  # fmt: skip
    assert rs.evaluate(right, pairs, kind="pairs").metrics["accuracy"] == 1.0
    assert rs.evaluate(lambda response: response == "#9", pairs, kind="pairs").metrics["accuracy"] == 0.0


def test_importing_the_package_is_light() -> None:
    code = "import rewardsmith, sys; print(sorted({'torch', 'pydantic', 'aiohttp'} & {*sys.modules})); dir(rewardsmith)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
