"""reasoning-gym as a source of prompts: what a seed decides, what is held out, and what is refused."""

import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from rewardsmith import Prompt, UserError
from rewardsmith.data import SOURCES, ReasoningGym, reasoning_gym
from rewardsmith.data.reasoning_gym import UNSEEDED, UNSOUND
from rewardsmith.records import dumps, loads

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}  # a few hundred different sums


def first(n: int, prompts: Iterator[Prompt]) -> list[Prompt]:
    return list(itertools.islice(prompts, n))


def questions(prompts: list[Prompt]) -> list[str]:
    return [prompt.messages[-1].content for prompt in prompts]


def test_a_prompt() -> None:
    source = ReasoningGym(task="chain_sum", config=SMALL, system="Answer within <answer> tags.")
    prompt = first(1, source.prompts(0))[0]
    assert SOURCES["reasoning-gym"] is ReasoningGym
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert prompt.messages[0].content == "Answer within <answer> tags."
    assert prompt.source == "reasoning-gym/chain_sum"
    left, sign, right = prompt.info["metadata"]["expression"].split()
    assert int(prompt.answer) == int(left) + int(right) * {"+": 1, "-": -1}[sign]
    assert f"{left} {sign} {right}" in prompt.messages[1].content
    assert (prompt.info["task"], prompt.info["config"]) == ("chain_sum", SMALL)
    assert loads(Prompt, dumps(prompt)) == prompt


def test_another_process_makes_the_same_prompts() -> None:
    tasks = ["syllogism", "word_sorting", "family_relationships", "group_anagrams", "gsm_symbolic", "acre"]
    program = (
        "import itertools; from rewardsmith.data import ReasoningGym; from rewardsmith.records import dumps;"
        f"[print(dumps(p)) for p in itertools.islice(ReasoningGym(task={tasks}).prompts(5), 24)]"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}  # sets of texts are in another order
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True, text=True)
    assert [dumps(prompt) for prompt in first(24, ReasoningGym(task=tasks).prompts(5))] == other.stdout.splitlines()


def test_tasks_are_drawn_by_weight() -> None:
    def counted(task: object) -> Counter[str]:
        return Counter(prompt.info["task"] for prompt in first(600, ReasoningGym(task=task).prompts(0)))

    even, weighted = counted(["gcd", "lcm"]), counted({"gcd": 3, "lcm": 1.0})
    assert 250 < even["gcd"] < 350
    assert 400 < weighted["gcd"] < 500  # 450 ± 3σ of 11


def test_what_is_held_out_is_never_trained_on() -> None:
    def every(split: str, share: float) -> set[str]:
        source = ReasoningGym(task="chain_sum", config=SMALL, split=split, held_out=share)
        return set(questions(first(1_500, source.prompts(1 if split == "train" else 2))))

    train, held_out = every("train", 0.3), every("held-out", 0.3)
    assert not train & held_out
    assert 0.2 < len(held_out) / (len(train) + len(held_out)) < 0.4
    assert every("train", 0) > held_out  # such a small world is drawn nearly whole
    assert not every("train", 0.3) & every("held-out", 0.1)  # a larger share holds out the same questions and more


def test_a_fixed_set() -> None:
    source = ReasoningGym(task={"chain_sum": 1, "gcd": 1}, config={"chain_sum": SMALL}, size=80)
    one, other = list(source.prompts(0)), list(source.prompts(1))
    assert len({prompt.id for prompt in one}) == len(set(questions(one))) == 80
    assert sorted(questions(one)) == sorted(questions(other))
    assert one != other
    assert list(ReasoningGym(task={"chain_sum": 1, "gcd": 1}, config={"chain_sum": SMALL}, size=80).prompts(0)) == one
    held_out = ReasoningGym(task="chain_sum", config=SMALL, size=20, split="held-out")
    assert not {prompt.id for prompt in held_out.prompts(0)} & {prompt.id for prompt in one}


def test_entries_that_cannot_be_used_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(prompt.answer for prompt in first(150, ReasoningGym(task="ab").prompts(0)))  # 1 of 30 has the answer ""
    ask = reasoning_gym.Task._run_scorer
    monkeypatch.setattr(
        reasoning_gym.Task, "_run_scorer", lambda task, answer, entry: ask(task, answer, entry) * (int(answer) % 2)
    )
    assert all(int(prompt.answer) % 2 for prompt in first(50, ReasoningGym(task="gcd").prompts(0)))
    monkeypatch.setattr(reasoning_gym.Task, "_run_scorer", lambda *_: 0.5)
    with pytest.raises(UserError, match="no question of gcd is in the split"):
        ReasoningGym(task="gcd").check()


def test_wrong_settings() -> None:
    wrong: list[tuple[dict, str]] = [
        ({"task": "chain_sums"}, "has no task 'chain_sums'. Did you mean \"chain_sum\""),
        ({"task": "gcd", "config": {"num_min": 2}}, "config.num_min is no setting of the task gcd. .*Known: max_num"),
        ({"task": "gcd", "config": {"min_numbers": 9}}, "gcd of reasoning-gym refuses config .* max_numbers must be"),
        ({"task": "gcd", "config": {"min_numbers": "x"}}, "gcd of reasoning-gym refuses config .* TypeError"),
        ({"task": "gcd", "config": {"seed": 9}}, "config.seed is no setting"),
        ({"task": ["gcd", "lcm"], "config": {"min_numbers": 2}}, "with several tasks, config has a table for each"),
        ({"task": ["gcd", "lcm"], "config": {"gdc": {}}}, 'Did you mean "gcd"'),
        ({"task": ["gcd", "lcm"], "config": {"gcd": {"min": 2}}}, "config.min is no setting"),
        ({"task": "gcd", "split": "held-out", "held_out": 0.0}, "held-out split needs a share"),
        *[({"task": name}, f"task {name} of reasoning-gym cannot be used: it") for name in (*UNSOUND, *UNSEEDED)],
    ]
    for settings, message in wrong:
        with pytest.raises(UserError, match=message):
            ReasoningGym(**settings)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    reasoning_gym._registry.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(UserError, match=r'pip install "rewardsmith\[reasoning-gym\]"'):
        ReasoningGym(task="gcd")


def test_known_answers_of_reasoning_gym() -> None:
    source = ReasoningGym(task="basic_arithmetic")
    prompt = next(source.prompts(0))
    made = list(source.known_answers(prompt, random.Random(0)))
    assert [one.right for one in made] == [True, False, False]
    assert made[0].text == prompt.answer
