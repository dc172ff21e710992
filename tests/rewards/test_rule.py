"""A rule as a reward: its limits, what it lacks, and who may be one."""

import asyncio
import itertools
from pathlib import Path

import pytest

from rewardsmith import Prompt, Rollout, RolloutGroup, UserError
from rewardsmith.config import Choice, Chosen
from rewardsmith.rewards.rule import Rule
from rewardsmith.rewards.rules import NEEDS, RULES, Needs
from tests.rewards.test_pool import HERE, PROMPT, outcomes

RULE = Choice("rule", "rewardsmith.rewards.rules:RULES", inputs=2)
NAMES = map("own_rules_{}".format, itertools.count())


def group(*texts: str) -> RolloutGroup:
    return RolloutGroup(PROMPT, [Rollout(text) for text in texts])


def chosen(name: str) -> Chosen:
    return RULE.choose(name)


def test_the_deadline_is_the_rule_s_own_unless_the_recipe_sets_it() -> None:
    assert (Rule(rule=chosen("exact")).deadline, Rule(rule=chosen("exact")).memory) == (5.0, 1024)
    assert Rule(rule=chosen("code")).deadline == 60.0
    assert Rule(rule=chosen("code"), deadline=0.5).deadline == 0.5


def test_a_rule_uses_the_shared_pool_with_its_own_limits() -> None:
    table = {"type": f"{HERE}:act", "plus": 1.0}
    reward = Rule(rule=RULE.choose(table), deadline=0.5, memory=64)
    asyncio.run(reward.check())
    assert outcomes(asyncio.run(reward.score(group("good 1", "hang", "hoard", "good 2")))) == [
        2.0,
        "timeout",
        "crashed",
        3.0,
    ]


def test_a_rule_that_lacks_a_library_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "exact", Needs(("absent_module.part",), extra="translation"))
    with pytest.raises(
        UserError, match=r'the rule exact needs absent_module: pip install "rewardsmith\[translation\]"'
    ):
        Rule(rule=chosen("exact"))


def test_the_check_names_what_is_wrong_with_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = next(NAMES)
    code = "import os\nassert os.environ.get('CUDA_VISIBLE_DEVICES') != '', 'no GPU'\ndef rule(p, t): return 1.0"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match="no GPU"):
        asyncio.run(Rule(rule=chosen(f"{name}:rule")).check())


def test_a_rule_that_no_worker_can_import_is_refused() -> None:
    settings = chosen("exact").settings
    for target, words in [(lambda prompt, text: 1.0, "top of a module"), (main_rule, "put it in a module")]:
        with pytest.raises(UserError, match=words):
            Rule(rule=Chosen("mine", target, settings))
    with pytest.raises(UserError, match="put it in a module"):
        Rule(rule=Chosen("__main__:rule", RULES["exact"], settings))
    with pytest.raises(UserError, match="async"):
        Rule(rule=chosen(f"{HERE}:later"))


def main_rule(prompt: Prompt, text: str) -> float:
    return 1.0


main_rule.__module__ = "__main__"
