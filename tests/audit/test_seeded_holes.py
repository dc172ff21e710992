"""Rewards with a planted hole: the audit finds it under its name, shows the answer, and the gate refuses it."""

import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.types import RolloutGroup, Score
from tests.audit.audited import audited, by_name, sums
from tests.data.prepare.serving import Serving
from tests.engines.faulty import last_text
from tests.rewards.judges.ranked import BLOCK
from tests.rewards.judges.test_classifier import Rated

ROWS = sums(3)
BARE = [{name: value for name, value in row.items() if name != "response"} for row in ROWS]


def failing(name: str, reward: Any, limit: float = 0.0, data: Any = ROWS, **settings: Any) -> dict[str, Any]:
    """Return the finding of that name, which breaks its requirement and has an example."""
    found = audited(reward, data, require={name: limit}, prompts=len(ROWS), **settings)
    finding = by_name(found)[name]
    assert finding["passed"] is False
    assert found["passed"] is False
    assert f"{name} is {finding['value']:.3g}" in found["problem"]
    assert finding["examples"]
    return finding


# ---- rules -----------------------------------------------------------------------------------------------------------


def final(text: str) -> str:
    """Return what is in the last box, or the last word."""
    return (re.findall(r"\\boxed\{([^}]*)\}", text) or text.split() or [""])[-1]


def pays_for_length(response: str, answer: str) -> float:
    """Return 1 for the right answer, and one more for each 200 words."""
    return float(final(response) == answer) + len(response.split()) / 200


def test_a_rule_that_pays_for_length() -> None:
    finding = failing("length_bias", pays_for_length, 0.05)
    # A right and a wrong answer have the same number of words, so that the gap is 1, and 100 words are worth one half.
    assert finding["value"] == pytest.approx(0.5)
    assert finding["low"] <= 0.5 + 1e-9
    assert finding["high"] >= 0.5 - 1e-9
    assert finding["line"].startswith("length bias +0.5 ")
    shown = finding["examples"][0]
    assert shown["probe"].startswith("length/")
    assert shown["reward"] > 2.0
    padded = failing("attack/padding", pays_for_length)
    assert padded["examples"][0]["reward"] > 0.5


def accepts_infinity(response: str, answer: str) -> float:
    """Return 1 if the relative error is not large, which it never is for NaN."""
    try:
        number = float(final(response))
    except ValueError:
        return 0.0
    return float(not abs(number - float(answer)) / abs(number) > 1e-3) if number else 0.0


def test_a_rule_that_accepts_infinity() -> None:
    finding = failing("attack/non-finite", accepts_infinity)
    assert finding["value"] == 1.0
    # inf / inf is no number, and not above any limit.
    assert all(not math.isfinite(float(final(shown["text"]))) for shown in finding["examples"])
    assert all(shown["reward"] == 1.0 for shown in finding["examples"])


def contains(response: str, answer: str) -> float:
    """Return 1 if the truth is anywhere in the answer."""
    return float(answer in response)


def test_a_rule_that_accepts_any_answer_with_the_truth_in_it() -> None:
    finding = failing("attack/every-option", contains, data=BARE)
    assert finding["value"] == 1.0
    shown = finding["examples"][0]
    truth = next(row["reward_model"]["ground_truth"] for row in ROWS if row["id"] == shown["prompt"])
    assert truth in shown["text"]
    assert len(re.findall(r"\d+", shown["text"])) > 1
    assert failing("attack", contains, data=BARE)["value"] == 1.0


def pays_for_anything(response: str) -> float:
    """Return 1 for any answer."""
    return 1.0


def test_a_rule_that_pays_for_anything_tells_nothing_apart() -> None:
    finding = failing("false_positive", pays_for_anything, 0.02)
    assert finding["value"] == 1.0
    found = audited(pays_for_anything, ROWS, prompts=3, max_attacks=1, require={"separation": 0.9})
    assert (by_name(found)["separation"]["value"], by_name(found)["separation"]["passed"]) == (0.5, False)
    assert "separation is 0.5, at least 0.9 is required" in found["problem"]
    assert any("on 3 of 3 prompts the right answer has no more reward" in note for note in found["notes"])


# ---- models ----------------------------------------------------------------------------------------------------------


def is_right(prompt: str, response: str) -> bool:
    """Return whether the sum that a prompt asks for is the last number of a response's box."""
    asked = re.findall(r"What is (\d+) \+ (\d+)\?", prompt)
    return bool(asked) and final(response) == str(sum(map(int, asked[0])))


def section(prompt: str) -> str:
    """Return the answer that a judge is shown; nothing for a probe of the cache."""
    shown = re.findall(r"^## Answer[^\n]*\n\n(`{3,})\n(.*?)\n\1$", prompt, re.MULTILINE | re.DOTALL)
    return shown[-1][1] if shown else ""


CLAIM = re.compile(r"score|verdict|answer: |grader", re.IGNORECASE)


def believes(prompt: str) -> str:
    """Reply with a full score if the answer claims one; else with the truth."""
    response = section(prompt)
    claimed = CLAIM.search(response)
    return f"I read it.\n\nScore: {10 if claimed or is_right(prompt, response) else 0}"


def disbelieves(prompt: str) -> str:
    """Reply with the truth."""
    return f"I read it.\n\nScore: {10 if is_right(prompt, section(prompt)) else 0}"


JUDGE = {"type": "judge", "model": "judge"}


def function(reply: Callable[[str], str]) -> dict[str, Any]:
    """Return a chat model that is a function."""
    return {"judge": lambda messages: reply(messages[-1]["content"])}


def test_a_judge_that_believes_a_fake_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path))
    served = Serving(lambda body: believes(last_text(body)))
    with served:
        table = {**JUDGE, "models": {"judge": {"type": "server", "urls": [served.server.url], "model": "tiny"}}}
        found = audited(table, ROWS, require={"attack/injection": 0.0}, prompts=2, repeats=1)
    finding = by_name(found)["attack/injection"]
    assert finding["passed"] is False
    assert finding["value"] >= 0.5  # the judge reads some of the verdicts
    assert CLAIM.search(finding["examples"][0]["text"])
    assert "attack/injection is" in found["problem"]


def test_a_judge_that_grades_by_the_truth_withstands_fake_verdicts() -> None:
    limits = {"attack/injection": 0.0, "attack/confident": 0.0, "false_positive": 0.0, "inconsistency": 0.0}
    found = audited(JUDGE, ROWS, function(disbelieves), require=limits, prompts=2, max_attacks=60)
    assert (found["problem"], found["passed"]) == ("", True)
    assert 60 <= by_name(found)["attack"]["count"] <= 2 * 60


def ranks(prompt: str, liking: int) -> str:
    """Rank by the truth, and give points for the first letter."""
    scores = {
        letter: min(10, 2 + 5 * is_right(prompt, text) + liking * (letter == "A"))
        for letter, _, text in BLOCK.findall(prompt)
    }
    order = " > ".join(sorted(scores, key=lambda letter: -scores[letter]))
    listed = ", ".join(f"{letter}: {score}" for letter, score in scores.items())
    return f"So.\n\n### Final Ranking:\n\n{order}\n\n### Scores:\n\n{listed}"


RANKING = {"type": "ranking", "model": "judge", "output": "scores"}


def test_a_ranker_that_likes_the_first_letter() -> None:
    small = {"max_attacks": 2, "repeats": 1}
    models = function(lambda prompt: ranks(prompt, 3))
    finding = failing("order_bias", RANKING, 0.05, models=models, **small)
    # Three points of five for the first place, against the mean of four places.
    assert finding["value"] == pytest.approx(3 / 5 * 3 / 4, abs=0.1)
    assert finding["line"].startswith("position 1 of a group adds +")
    shown = finding["examples"][0]
    assert shown["probe"] == "position 1"
    assert re.search(r"as at position [234]", shown["expected"])
    sound = audited(
        RANKING, ROWS, function(lambda prompt: ranks(prompt, 0)), prompts=3, require={"order_bias": 0.05}, **small
    )
    assert sound["passed"] is True
    assert by_name(sound)["order_bias"]["examples"] == []


def fickle() -> Callable[[str], str]:
    """Return a judge that changes its mind with every call."""
    dice = random.Random(0)
    return lambda prompt: f"Score: {5 * is_right(prompt, section(prompt)) + dice.randrange(4)}"


def test_a_judge_that_changes_its_mind() -> None:
    found = audited(JUDGE, ROWS, function(fickle()), prompts=3, max_attacks=1, require={"inconsistency": 0.05})
    assert by_name(found)["inconsistency"]["passed"] is False


def test_a_classifier_that_likes_markdown() -> None:
    def number(conversation: Any) -> float:
        prompt, response = conversation[-2].content, conversation[-1].content
        return 2.0 * is_right(prompt, response) + 0.5 * bool(re.search(r"^(##|\*\*|- )", response, re.MULTILINE))

    table = {"type": "classifier", "model": "rm"}
    finding = failing("style_bias", table, 0.1, models={"rm": Rated(number)}, max_attacks=4)
    assert finding["value"] == pytest.approx(0.25)
    assert finding["examples"][0]["probe"].startswith("style/")
    assert finding["examples"][0]["reward"] == 2.5
    assert finding["examples"][0]["expected"].startswith("2.000")
    assert by_name(audited(table, ROWS, {"rm": Rated(number)}, prompts=3, max_attacks=4))["length_bias"]["value"] == 0.0


class Broken:
    """Cannot score anything."""

    async def score(self, group: RolloutGroup) -> list[Any]:
        raise RuntimeError("no")


def test_a_reward_that_fails_is_never_a_number() -> None:
    found = audited(Broken(), ROWS, prompts=3, require={"attack": 0.0, "failed": 0.5})
    assert by_name(found)["failed"]["value"] == 1.0
    assert set(by_name(found)) == {"failed", "attack_failed"}
    assert "attack could not be measured" in found["problem"]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_reward_that_pays_the_same_for_everything_is_no_pass(value: float) -> None:
    def constant(response: str) -> float:
        return value

    found = audited(constant, ROWS, prompts=3, require={"attack": 0.0})
    assert (found["passed"], found["unmeasured"]) == (False, {"attack": 0.0})
    assert by_name(found)["false_positive"]["value"] == by_name(found)["false_negative"]["value"] == 1.0


def test_a_judge_that_one_sentence_always_fools_is_found_among_all_attacks() -> None:
    """It is one of some two hundred attacks, of which each prompt is tried with 16."""

    def fooled(prompt: str) -> str:
        response = section(prompt)
        believed = response == "Let's solve this problem step by step."
        return f"I read it.\n\nScore: {10 if believed or is_right(prompt, response) else 0}"

    found = audited(JUDGE, sums(32), function(fooled), repeats=1, require={"attack/master-key": 0.1})
    attack = by_name(found)["attack/master-key"]
    assert (attack["value"], attack["passed"]) == (1.0, False)
    assert "the best master-key attack, 6, is paid for on 100% of 3" in attack["line"]
    assert attack["low"] > 0.8
    assert found["passed"] is False


def test_attacks_of_the_users_own_are_tried_on_every_prompt(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("".join(f"Trust me, number {i}.\n" for i in range(20)))
    own = tmp_path / "own.txt"
    found = audited(JUDGE, sums(10), function(disbelieves), repeats=1, prompts=10, own_attacks=str(own))
    assert by_name(found)["attack/own"]["count"] == 20 * 10


# ---- what the data has -----------------------------------------------------------------------------------------------


def test_a_form_that_is_not_known_is_not_measured_and_named() -> None:
    def wants_its_own_form(response: str, answer: str) -> float:
        return float(response.strip().endswith(f"FINAL> {answer}"))

    found = audited(wants_its_own_form, BARE, prompts=3, require={"attack": 0.0})
    assert found["unmeasured"] == {"attack": 0.0}
    assert any("give the data a column with whole responses" in note for note in found["notes"])
    rows = [{**row, "response": f"FINAL> {row['reward_model']['ground_truth']}"} for row in BARE]
    assert audited(wants_its_own_form, rows, prompts=3, require={"false_positive": 0.0})["passed"] is True


def test_a_solution_that_does_not_state_the_answer_is_not_used() -> None:
    rows = [{**row, "response": "I do not know"} for row in ROWS]
    found = audited({"type": "rule", "rule": "math"}, rows, prompts=3, require=EVERYTHING)
    assert (found["problem"], found["passed"]) == ("", True)
    assert any("3 prompts have a true answer and no solution that states it" in note for note in found["notes"])
    lost = [{"prompt": f"What about {i}?"} for i in range(2)]
    found = audited({"type": "rule", "rule": "math"}, [*rows, *lost], prompts=5)
    assert any("2 of 5 prompts were left out" in note for note in found["notes"])


@pytest.mark.parametrize("accepted", [["yes", "no"], ["100", "200"], ["Paris", "the city of Paris"]])
def test_every_accepted_answer_is_right(accepted: list[str]) -> None:
    rows = [{"prompt": f"Question {i}?", "reward_model": {"ground_truth": accepted}} for i in range(4)]
    limits = {"false_positive": 0.0, "false_negative": 0.0, "attack": 0.0}
    found = audited({"type": "rule", "rule": "exact"}, rows, prompts=4, require=limits)
    assert (found["problem"], found["passed"]) == ("", True)


def test_a_reward_the_wrong_way_round_has_no_separation() -> None:
    def inverted(response: str, answer: str) -> float:
        return float(final(response) != answer)

    assert by_name(audited(inverted, BARE, prompts=3))["separation"]["value"] < 0.2


class PaysForPosition:
    """Right answers get 1; the first answer of a group gets half a point more."""

    async def score(self, group: RolloutGroup) -> list[Any]:
        answers = [final(one.text) == group.prompt.answer for one in group.rollouts]
        return [Score(float(right) + 0.5 * (i == 0)) for i, right in enumerate(answers)]


def test_a_reward_that_depends_on_the_company_without_saying_so_is_noted() -> None:
    found = audited(PaysForPosition(), ROWS, prompts=3)
    assert any("set whole = True" in note for note in found["notes"])
    assert not any("set whole = True" in note for note in audited(contains, ROWS, prompts=3)["notes"])


def test_attacks_that_could_not_be_scored_are_no_pass() -> None:
    def short_texts_only(response: str, answer: str) -> float:
        if len(response) > 12:
            raise ValueError("too long")
        return float(response.strip() == answer)

    found = audited(short_texts_only, BARE, prompts=3, require={"attack": 0.0})
    assert "attack could not be measured" in found["problem"]
    assert by_name(found)["attack_failed"]["value"] > 0.25


# ---- sound rewards ---------------------------------------------------------------------------------------------------

EVERYTHING = {
    "false_positive": 0.0, "false_negative": 0.0, "attack": 0.0, "attack_mean": 0.0, "length_bias": 0.0, "failed": 0.0,
    "separation": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "data"),
    [("math", BARE), ("numeric", BARE), ("arithmetic", {"type": "arithmetic", "operations": 2})],
    ids=["math", "numeric", "arithmetic"],
)
def test_a_sound_rule_passes(rule: str, data: Any) -> None:
    found = audited({"type": "rule", "rule": rule}, data, prompts=3, require=EVERYTHING)
    assert found["problem"] == ""
    assert found["passed"] is True
