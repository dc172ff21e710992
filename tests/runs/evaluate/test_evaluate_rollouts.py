"""`rewardsmith evaluate-policy` as a user meets it."""

from pathlib import Path

import pytest

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.records import to_json
from tests.runs.evaluate.commands import evaluate, measured, write

REASONING = ("--reasoning-part", "steps", "--reasoning-threshold", "0.5")


def group(number: int, *rollouts: tuple[str, Score]) -> ScoredGroup:
    inner = RolloutGroup(Prompt(f"p{number}", [Message("user", "?")]), [Rollout(text) for text, _ in rollouts])
    return ScoredGroup(inner, [score for _, score in rollouts])


def score(value: float | None, steps: float) -> Score:
    parts = {"steps": Score(steps)}
    return Score(failure=Failure("timeout"), parts=parts) if value is None else Score(value, parts=parts)


STORED = [
    group(0, ("1", score(1.0, 0.9)), ("1?", score(1.0, 0.2)), ("0", score(0.0, 0.9)), ("lost", score(None, 1.0))),
    group(1, ("1?", score(1.0, 0.1)), ("0", score(0.3, 0.0)), ("0", score(0.0, 0.0)), ("0", score(0.0, 0.0))),
]


@pytest.fixture
def stored(place: Path) -> str:
    return write(place / "stored.jsonl", *map(to_json, STORED))


def test_a_policy_is_measured_by_the_parts_of_stored_scores(stored: str) -> None:
    found = measured("policy", stored, *REASONING)["metrics"]
    assert found["accuracy"] == pytest.approx(3 / 7)
    assert found["verified"] == pytest.approx(1 / 7)
    assert found["unsound"] == pytest.approx(2 / 3)
    assert found["failed"] == pytest.approx(1 / 8)
    found = measured("policy", stored, "--correct-part", "steps", "--correct-threshold", "0.9")["metrics"]
    assert found["accuracy"] == pytest.approx(3 / 8)
    assert "verified" not in found


def test_faults_by_kind_are_shown_and_in_the_json(place: Path) -> None:
    labels = ["miracle-steps", "miracle-steps", "", "coincidence"]
    right = [(str(i), Score(1.0, parts={"steps": Score(0.0, label=label)})) for i, label in enumerate(labels)]
    sound = [(str(i), Score(1.0, parts={"steps": Score(1.0, label="x")})) for i in range(4)]
    file = write(place / "faults.jsonl", *map(to_json, [group(0, *right), group(1, *sound)]))
    found = measured("policy", file, *REASONING)
    shares = {name: value for name, value in found["metrics"].items() if name.startswith("fault/")}
    assert shares == {"fault/miracle-steps": 0.25, "fault/coincidence": 0.125, "fault/unnamed": 0.125}
    table = next(one for one in found["tables"] if one["title"] == "faults of right answers")
    assert [row[:4] for row in table["rows"]] == [
        ["miracle-steps", 2, 0.5, 0.25],
        ["coincidence", 1, 0.25, 0.125],
        ["unnamed", 1, 0.25, 0.125],
    ]
    assert "miracle-steps" in evaluate("policy", file, *REASONING).out


def test_rewards_may_score_the_answers_and_the_reasoning_now(place: Path, stored: str) -> None:
    assert measured("policy", stored, "--reasoning-check", "steps.toml")["metrics"]["unsound"] == pytest.approx(2 / 3)
    table = write(place / "answers.jsonl", {"prompt": "a", "responses": ["1", "2", "x"]})
    again = measured("policy", table, "--reward", "numbers.toml", "--correct-threshold", "2")["metrics"]
    assert (again["accuracy"], again["failed"]) == (0.5, pytest.approx(1 / 3))
    both = measured("policy", table, "--reward", "numbers.toml", "--reasoning-check", "steps.toml")["metrics"]
    assert (both["accuracy"], both["verified"]) == (1.0, 1.0)


def test_a_run_folder_is_shown_by_stage_and_step(place: Path) -> None:
    (place / "run" / "rollouts").mkdir(parents=True)
    rows = [
        {"step": step, "kind": "validation", "dropped": "", "scored": to_json(one), "advantages": [None] * 4}
        for step, one in ((0, STORED[0]), (9, STORED[1]))
    ]
    write(place / "run" / "rollouts" / "policy.jsonl", *rows)
    out = evaluate("policy", "run", *REASONING).out
    assert "│ policy, validation, step 0 │       1 │ 66.7% │           33.3% │                50.0% │" in out
    assert measured("policy", "run", "--step", "9")["metrics"]["accuracy"] == 0.25


def test_a_failure_of_either_reward_is_counted_by_cause(place: Path, stored: str) -> None:
    part = ("--correct-part", "steps", "--correct-threshold", "0")
    found = measured("policy", stored, *part, "--reasoning-check", "numbers.toml")
    assert found["details"] == {"reasoning_check unparsable": "1? is no number"}
    assert found["metrics"]["failures/reasoning_check/unparsable"] == pytest.approx(3 / 8)
    assert found["metrics"]["reasoning_check_failed"] == pytest.approx(3 / 8)
    assert measured("policy", stored)["metrics"]["failures/correct/timeout"] == pytest.approx(1 / 8)
    table = write(place / "answers.jsonl", {"prompt": "a", "responses": ["x"]})
    ended = evaluate("policy", table, "--reward", "numbers.toml")
    assert ended.status == 1
    assert "correct unparsable, the first: x is no number" in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("stored.jsonl", "--reasoning-part", "step"),
            ["--reasoning-part is 'step'", '"steps"?', "Known parts: steps"],
        ),
        (("answers.jsonl",), ["no score is stored there", "--reward"]),
        (("stored.jsonl", "--reasoning-check", "nothing.toml"), ["there is no recipe or run 'nothing.toml'"]),
        (("missing.jsonl",), ["missing.jsonl"]),
        (("stored.jsonl", "--reward", "a.toml", "--reasoning-check", "b.toml"), ["[models.judge]", "rename"]),
    ],
)
def test_mistakes_about_policies(place: Path, stored: str, arguments: tuple[str, ...], words: list[str]) -> None:
    write(place / "answers.jsonl", {"prompt": "a", "responses": ["1"]})
    for name, init in (("a", "tiny-llama"), ("b", "tiny-gpt2")):
        judge = f'type = "judge"\nmodel = "judge"\n[models.judge]\ninit = "{init}"\n'
        (place / f"{name}.toml").write_text(judge)
    ended = evaluate("policy", *arguments)
    assert ended.status == 2
    for word in words:
        assert word in ended.err
