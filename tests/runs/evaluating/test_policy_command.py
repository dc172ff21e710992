"""`rewardsmith evaluate policy` as a user meets it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.llm import Usage
from rewardsmith.records import to_json
from rewardsmith.runs.evaluating import policy
from tests.runs.evaluating.commands import measured, run, write


def group(number: int, *rollouts: tuple[str, Score]) -> ScoredGroup:
    asked = RolloutGroup(Prompt(f"p{number}", [Message("user", "?")]), [Rollout(text) for text, _ in rollouts])
    return ScoredGroup(asked, [score for _, score in rollouts])


def score(value: float | None, steps: float) -> Score:
    parts = {"steps": Score(steps)}
    return Score(failure=Failure("timeout"), parts=parts) if value is None else Score(value, parts=parts)


STORED = [
    group(0, ("1", score(1.0, 0.9)), ("1?", score(1.0, 0.2)), ("0", score(0.0, 0.9)), ("lost", score(None, 1.0))),
    group(1, ("1?", score(1.0, 0.1)), ("0", score(0.3, 0.0)), ("0", score(0.0, 0.0)), ("0", score(0.0, 0.0))),
]


def stored(file: Path) -> str:
    file.write_text("".join(json.dumps(to_json(one)) + "\n" for one in STORED))
    return file.name


def test_a_policy_is_measured_by_the_parts_of_stored_scores(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = stored(place / "stored.jsonl")
    found = measured(monkeypatch, capsys, "policy", data, "--sound", "steps", "--sound-from", "0.5")["metrics"]
    assert found["accuracy"] == pytest.approx(3 / 7)
    assert found["verified"] == pytest.approx(1 / 7)
    assert found["unsound"] == pytest.approx(2 / 3)
    assert found["failed"] == pytest.approx(1 / 8)
    plain = measured(monkeypatch, capsys, "policy", data, "--right", "steps", "--right-from", "0.9")["metrics"]
    assert plain["accuracy"] == pytest.approx(3 / 8)
    assert "verified" not in plain


def test_a_reward_may_say_it_now(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = stored(place / "stored.jsonl")
    assert run(monkeypatch, "policy", data, "--sound", "steps.toml", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)["metrics"]
    assert found["unsound"] == pytest.approx(2 / 3)
    assert "sound: 2 groups" in printed.err
    table = write(place / "answers.jsonl", {"prompt": "a", "responses": ["1", "2", "x"]})
    again = measured(monkeypatch, capsys, "policy", table, "--right", "numbers.toml", "--right-from", "2")["metrics"]
    assert (again["accuracy"], again["failed"]) == (0.5, pytest.approx(1 / 3))


def test_a_run_folder_is_told_by_stage_and_step(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "run" / "rollouts").mkdir(parents=True)
    rows = [
        {"step": step, "kind": "validation", "dropped": "", "scored": to_json(one), "advantages": [None] * 4}
        for step, one in ((0, STORED[0]), (9, STORED[1]))
    ]
    write(place / "run" / "rollouts" / "policy.jsonl", *rows)
    assert run(monkeypatch, "policy", "run", "--sound", "steps", "--sound-from", "0.5") == 0
    printed = capsys.readouterr().out
    assert "│ policy, validation, step 0 │       1 │ 66.7% │           33.3% │                50.0% │" in printed
    only = measured(monkeypatch, capsys, "policy", "run", "--step", "9")["metrics"]
    assert only["accuracy"] == 0.25


def test_a_failure_of_either_reward_is_told_with_its_cause(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = stored(place / "stored.jsonl")
    assert (
        run(monkeypatch, "policy", data, "--right", "steps", "--right-from", "0", "--sound", "numbers.toml", "--json")
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["details"] == {"sound unparsable": "1? is no number"}
    assert found["metrics"]["failures/sound/unparsable"] == pytest.approx(3 / 8)
    assert found["metrics"]["sound_failed"] == pytest.approx(3 / 8)
    table = write(place / "answers.jsonl", {"prompt": "a", "responses": ["x"]})
    assert run(monkeypatch, "policy", table, "--right", "numbers.toml") == 1
    assert "right unparsable, the first: x is no number" in capsys.readouterr().out
    assert run(monkeypatch, "policy", data, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["failures/right/timeout"] == pytest.approx(1 / 8)


def test_the_status_looks_at_soundness_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stored(place / "stored.jsonl")
    arguments = ("policy", data, "--sound", "numbers.toml")  # two of three right answers cannot be read
    assert run(monkeypatch, *arguments) == 0
    assert run(monkeypatch, *arguments, "--fail-above", "0.5") == 1
    hard = write(place / "hard.jsonl", {"prompt": "a", "responses": ["ok"]})
    assert run(monkeypatch, "policy", hard, "--right", "steps.toml", "--sound", "numbers.toml") == 1


def test_groups_without_the_part_were_not_asked_about(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = group(2, ("1", Score(1.0)), ("0", Score(0.0)))
    (place / "mixed.jsonl").write_text("".join(json.dumps(to_json(one)) + "\n" for one in [bare, *STORED]))
    arguments = ("policy", "mixed.jsonl", "--sound", "steps", "--sound-from", "0.5")
    found = measured(monkeypatch, capsys, *arguments)
    assert found["metrics"]["verified"] == pytest.approx(1 / 7)
    assert found["metrics"]["accuracy"] == pytest.approx(4 / 9)
    assert "Of 1 of 3 prompts nothing was said about soundness." in found["tables"][0]["note"]
    assert run(monkeypatch, "policy", "mixed.jsonl", "--right", "steps") == 2  # without it nothing is known


def test_a_model_that_is_asked_twice_is_counted_twice(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Usage]] = []
    monkeypatch.setattr(policy, "show", lambda found, used, facts, as_json: shown.append(used))
    one = policy.with_models

    def asking(*arguments: Any) -> Any:
        return one(*arguments)[0], {"judge": Usage(calls=2)}

    monkeypatch.setattr(policy, "with_models", asking)
    data = stored(place / "stored.jsonl")
    run(monkeypatch, "policy", data, "--right", "steps.toml", "--sound", "steps.toml")
    assert shown == [{"judge": Usage(calls=4)}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("stored.jsonl", "--sound", "step"), ["--sound is 'step'", 'Did you mean "steps"?', "Known parts: steps"]),
        (("answers.jsonl",), ["no score is stored there", "--right reward.toml"]),
        (("stored.jsonl", "--sound", "nothing.toml"), ["there is no recipe 'nothing.toml'"]),
        (("missing.jsonl",), ["missing.jsonl"]),
    ],
)
def test_mistakes_about_policies(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: list[str],
) -> None:
    stored(place / "stored.jsonl")
    write(place / "answers.jsonl", {"prompt": "a", "responses": ["1"]})
    assert run(monkeypatch, "policy", *arguments) == 2
    error = capsys.readouterr().err
    for word in words:
        assert word in error
