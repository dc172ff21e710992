"""Replay of stored steps: the run's own advantages come out again, and what another reward would have taught."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith import UserError
from rewardsmith.runs.replay_stage import choose_estimator, find_stage
from tests.command_line import call
from tests.runs.scoring.replayed import (
    PARTS,
    HandMadeRun,
    Row,
    estimate,
    grpo,
    random_rows,
    reinforce_plus_plus,
    replay,
    rloo,
    whitened,
)


def total(row: Row) -> float | None:
    return row.total


def after(rows: list[Row]) -> list[float | None]:
    """Estimate each part on its own, add them up, and whiten over the tokens of rollouts that some part compared."""
    each = {name: estimate(rows, rloo, lambda row, name=name: row.values[name]) for name in PARTS}
    sums, compared = [], []
    for i, row in enumerate(rows):
        found = {name: each[name][i] for name in PARTS if each[name][i] is not None}
        sums.append(math.fsum(PARTS[name]["weight"] * value for name, value in found.items()) if found else None)
        voters = [sum(r.values[n] is not None for r in rows if r.group == row.group) for n in found]
        compared.append(any(count > 1 for count in voters))
    kept = [i for i, is_in in enumerate(compared) if is_in]
    white = dict(zip(kept, whitened([sums[i] for i in kept], [rows[i].tokens for i in kept]), strict=True))
    return [None if one is None else white.get(i, 0.0) for i, one in enumerate(sums)]


def overlong(row: Row) -> float | None:
    """The reward less up to one half over the last four of eight tokens."""
    return None if row.total is None else row.total - 0.5 * min(1.0, max(0.0, (row.tokens - 4) / 4))


CASES: dict[str, tuple[dict[str, Any], Callable[[list[Row]], list[float | None]]]] = {
    "grpo": ({}, lambda rows: estimate(rows, grpo, total)),
    "rloo": ({"advantage": "rloo"}, lambda rows: estimate(rows, rloo, total)),
    "reinforce_plus_plus": (
        {"advantage": "reinforce_plus_plus"},
        lambda rows: estimate(rows, reinforce_plus_plus, total),
    ),
    "overlong": (
        {"advantage": "rloo", "overlong": {"buffer": 4, "factor": 0.5}},
        lambda rows: estimate(rows, rloo, overlong),
    ),
    "after": ({"advantage": {"type": "rloo", "combine": "after", "whiten": True}}, after),
}


@pytest.mark.parametrize("failing", [(), ("digits",), ("digits", "brevity")])
@pytest.mark.parametrize("case", CASES)
def test_advantages_computed_by_hand_are_reproduced(case: str, failing: tuple[str, ...], tmp_path: Path) -> None:
    stage, by_hand = CASES[case]
    run = HandMadeRun(tmp_path / "run", stage)
    for step in (1, 2):
        rows = random_rows(step + 10 * len(failing), failing=failing)
        for row, advantage in zip(rows, by_hand(rows), strict=True):
            row.advantage = advantage
        run.add(step, rows)
    found = replay(run.write(), "--estimator", str(stage.get("advantage", "grpo") if case != "after" else "rloo"))
    reproduced = found["replay"]["reproduced"]
    assert reproduced["rollouts"] == 32
    assert reproduced["largest"] > 0.5
    assert reproduced["difference"] < 2e-6 * max(1, reproduced["largest"])
    assert "Warning" not in " ".join(found["replay"]["notes"])
    # The same estimator on the same scores teaches the same.
    assert found["replay"]["cosine"] == pytest.approx(1)
    assert (found["sign_changes"], found["replay"]["flipped"], found["replay"]["largest_disagreements"]) == (0, 0, [])


def test_another_estimator_on_the_stored_scores(tmp_path: Path) -> None:
    rows = random_rows(3)
    for row, advantage in zip(rows, estimate(rows, grpo, total), strict=True):
        row.advantage = advantage
    run = HandMadeRun(tmp_path / "run")
    run.add(1, rows)
    found = replay(run.write(), "--estimator", "reinforce_plus_plus")["replay"]
    other = estimate(rows, reinforce_plus_plus, total)
    assert found["estimators"] == ["grpo → reinforce_plus_plus"]
    assert found["flipped"] == sum(row.advantage * new < 0 for row, new in zip(rows, other, strict=True))
    cosines = []
    for group in range(4):
        pairs = [(row.advantage, new, row.tokens) for row, new in zip(rows, other, strict=True) if row.group == group]
        dot, ours, theirs = (
            math.fsum(n * a**i * b**j for a, b, n in pairs) for i, j in ((1, 1), (2, 0), (0, 2))
        )  # every token counts
        cosines.append(dot / math.sqrt(ours * theirs))
    assert found["cosine"] == pytest.approx(np.mean(cosines), abs=1e-6)
    assert found["cosine_below_half"] == np.mean(np.array(cosines) < 0.5)
    assert [one["cosine"] for one in found["largest_disagreements"]] == pytest.approx(sorted(cosines), abs=1e-6)
    table = replay(tmp_path / "run", "--estimator", '{ type = "grpo", scale = "none" }')["replay"]
    assert table["cosine"] == pytest.approx(1, abs=1e-6)  # within a group only the factor is another


def test_flips_gains_and_groups_that_teach_on_one_side_only_by_hand(tmp_path: Path) -> None:
    """The new reward is the share of digits, and the stored values are made up."""

    def row(group: int, old: float, text: str, tokens: int = 2) -> Row:
        return Row(group, tokens, {"digits": old / 2, "brevity": 0.0}, text=text)  # the total is `old`

    rows = [
        *(row(0, 1.0, "abcd"), row(0, 0.0, "12ab", tokens=6)),  # the other one is better now, and longer
        *(row(1, 1.0, "1"), row(1, 0.0, "a")),  # as before
        *(row(2, 0.5, "1"), row(2, 0.5, "a")),  # taught nothing, and would now
        *(row(3, 1.0, "ab"), row(3, 0.0, "cd")),  # taught something, and would no longer
    ]
    for one, advantage in zip(rows, estimate(rows, rloo, total), strict=True):
        one.advantage = advantage
    run = HandMadeRun(tmp_path / "run", {"advantage": "rloo", "select": {"truncated": "keep"}})
    run.add(1, rows)
    run.write()
    (tmp_path / "digits.toml").write_text('type = "tests.trainers.world:Digits"\n')
    found = replay(tmp_path / "run", "--reward", str(tmp_path / "digits.toml"))["replay"]
    assert (found["groups"], found["compared"], found["newly"], found["no_longer"]) == (4, 2, 1, 1)
    assert (found["taught_before"], found["teaching_now"]) == (3, 3)
    assert (found["flipped"], found["flipped_share"]) == (2, 2 / 8)
    assert (found["cosine"], found["cosine_below_0"], found["cosine_below_half"]) == (0.0, 0.5, 0.5)
    first, *others = found["largest_disagreements"]
    assert (first["prompt"], first["cosine"], first["flipped"]) == ("p1.0", pytest.approx(-1), 2)
    gains = first["gains"]
    assert (gains["index"], gains["text"]) == (1, "12ab")
    assert (gains["old_advantage"], gains["new_advantage"], gains["gain"]) == pytest.approx((-1, 2 / 8, 2))
    assert {(one["prompt"], one["taught_before"], one["teaches_now"], one["cosine"]) for one in others} == {
        ("p1.2", False, True, None),
        ("p1.3", True, False, None),
    }
    assert found["gain_with_length"] == pytest.approx(1)  # only the first group has answers of two lengths
    assert {name: one["groups"] for name, one in found["sources"].items()} == {"source 0": 2, "source 1": 2}
    assert found["sources"]["source 1"]["flipped"] == 0


def test_selection_is_done_again_and_only_groups_rejected_for_their_reward_come_back(tmp_path: Path) -> None:
    run = HandMadeRun(tmp_path / "run", {"advantage": "rloo", "select": {"constant": "drop"}})

    def pair(group: int, values: tuple[float, float], texts: tuple[str, str]) -> list[Row]:
        rows = [Row(group, 2, {"digits": v / 2, "brevity": 0.0}, text=t) for v, t in zip(values, texts, strict=True)]
        for row, advantage in zip(rows, estimate(rows, rloo, total), strict=True):
            row.advantage = advantage if len(set(values)) > 1 else None
        return rows

    run.add(1, pair(0, (1.0, 0.0), ("aa", "bb")))  # kept, and constant under the new reward
    run.add(1, pair(1, (1.0, 1.0), ("a1", "b")), dropped="constant")
    run.add(1, pair(2, (1.0, 1.0), ("cc", "dd")), dropped="constant")
    run.add(1, pair(3, (1.0, 1.0), ("a1", "b")), dropped="surplus")
    run.add(1, pair(4, (1.0, 0.0), ("a", "1")), kind="validation")
    run.write()
    (tmp_path / "digits.toml").write_text('type = "tests.trainers.world:Digits"\n')
    found = replay(tmp_path / "run", "--reward", str(tmp_path / "digits.toml"))
    assert (found["groups"], found["replay"]["groups"]) == (5, 2)  # no policy learned from a validation
    assert {one["prompt"] for one in found["replay"]["largest_disagreements"]} == {"p1.0", "p1.1"}
    assert (found["replay"]["newly"], found["replay"]["no_longer"]) == (1, 1)
    assert found["sign_changes"] == 2  # of the validation, by the mean of its group


@pytest.mark.parametrize(("min_groups", "teaching"), [(1, 1), (2, 0)])
def test_a_step_of_fewer_groups_than_the_stage_wants_teaches_nothing(
    min_groups: int, teaching: int, tmp_path: Path
) -> None:
    rows = [
        Row(group, 2, {"digits": value / 2, "brevity": 0.0}, text=text)
        for group, value, text in ((0, 1.0, "1"), (0, 0.0, "a"), (1, 1.0, "b"), (1, 0.0, "c"))
    ]
    for row, advantage in zip(rows, estimate(rows, rloo, total), strict=True):
        row.advantage = advantage
    select = {"constant": "drop", "min_groups": min_groups}
    run = HandMadeRun(tmp_path / "run", {"advantage": "rloo", "select": select})
    run.add(1, rows)
    run.write()
    (tmp_path / "digits.toml").write_text('type = "tests.trainers.world:Digits"\n')
    found = replay(tmp_path / "run", "--reward", str(tmp_path / "digits.toml"))["replay"]
    assert (found["taught_before"], found["teaching_now"]) == (2, teaching)  # of the second group all are equal now
    assert (found["compared"], found["no_longer"]) == (teaching, 2 - teaching)


def test_truncated_answers_that_are_masked_teach_nothing_on_either_side(tmp_path: Path) -> None:
    rows = [
        Row(0, 2, {"digits": value / 2, "brevity": 0.0}, text=text, stop=stop)
        for value, text, stop in ((1.0, "a", "length"), (0.0, "1", "stop"), (0.0, "2b", "stop"))
    ]
    for row, advantage in zip(rows, estimate(rows, rloo, total), strict=True):
        row.advantage = advantage
    for select, flips in (("keep", 3), ("mask", 2)):
        run = HandMadeRun(tmp_path / select, {"advantage": "rloo", "select": {"truncated": select}})
        run.add(1, rows)
        run.write()
        (tmp_path / "digits.toml").write_text('type = "tests.trainers.world:Digits"\n')
        assert replay(tmp_path / select, "--reward", str(tmp_path / "digits.toml"))["replay"]["flipped"] == flips


def test_one_part_against_the_same_stored_part(tmp_path: Path) -> None:
    rows = random_rows(5, failing=("digits",))
    for row in rows:
        row.text, row.advantage = "1" * row.tokens, 0.5  # the whole is not what is compared
    run = HandMadeRun(tmp_path / "run", {"advantage": "rloo"})
    run.add(1, rows)
    run.write()
    for reward, title in (("policy", "sum"), ("policy.reward.parts.brevity", "the part alone")):
        found = replay(tmp_path / "run", "--reward", f"{tmp_path / 'run'}:{reward}", "--part", "brevity")
        old = estimate(rows, rloo, lambda row: row.values["brevity"])
        new = estimate(rows, rloo, lambda row: 1 - row.tokens / 8)
        flips = sum(a * b < 0 for a, b in zip(old, new, strict=True))
        assert (found["part"], found["both"], found["replay"]["flipped"]) == ("brevity", len(rows), flips), title
        assert found["new_mean"] == pytest.approx(np.mean([1 - row.tokens / 8 for row in rows]))
        assert found["replay"]["reproduced"]["rollouts"] == 0
    ended = call(
        "score", str(tmp_path / "run"), "--reward", f"{tmp_path / 'run'}:policy", "--compare", "--part", "digit"
    )
    assert ended.status == 2
    assert "Did you mean" in ended.err
    assert "brevity" in ended.err


def test_a_part_alone_has_its_own_discount(tmp_path: Path) -> None:
    discount = 0.5
    parts = PARTS | {"brevity": PARTS["brevity"] | {"discount": discount}}
    stage = {"advantage": {"type": "grpo", "combine": "after"}, "reward": {"type": "sum", "parts": parts}}
    values, tokens = (0.0, 1.0, 0.25), (1, 2, 6)
    rows = [
        Row(0, n, {"digits": 0.0, "brevity": value}, advantage=0.5, text="1" * n)
        for n, value in zip(tokens, values, strict=True)
    ]
    run = HandMadeRun(tmp_path / "run", stage)
    run.add(1, rows)
    run.write()
    found = replay(tmp_path / "run", "--reward", f"{tmp_path / 'run'}:policy", "--part", "brevity")["replay"]
    old = estimate(rows, grpo, lambda row: row.values["brevity"])
    new = estimate(rows, grpo, lambda row: 1 - row.tokens / 8)
    # A token that is k before the last one has γᵏ of the advantage, on both sides.
    weights = [math.fsum(discount ** (2 * k) for k in range(n)) for n in tokens]
    dot, ours, theirs = (
        math.fsum(w * x * y for w, x, y in zip(weights, a, b, strict=True))
        for a, b in ((old, new), (old, old), (new, new))
    )
    assert found["cosine"] == pytest.approx(dot / math.sqrt(ours * theirs), abs=1e-5)


# ---- what a user sees ----------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    rows = random_rows(8)
    for row, advantage in zip(rows, estimate(rows, grpo, total), strict=True):
        row.advantage = advantage
    run = HandMadeRun(tmp_path / "run")
    run.add(1, rows)
    return run.write()


def test_a_file_whose_advantages_are_others_is_told(stored: Path) -> None:
    file = stored / "rollouts" / "policy.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["advantages"][0] += 0.5
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = replay(stored, "--estimator", "grpo")["replay"]
    assert found["reproduced"]["difference"] == pytest.approx(0.5)
    assert "Warning: the stored scores reproduce the stored advantages of 16 rollouts up to 5.0e-01 only" in " ".join(
        found["notes"]
    )


def test_mistakes_end_with_a_remedy(stored: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("--compare",), "--reward is not set"),
        (("--estimator", "rloo"), "add --compare"),
        (("--part", "digits"), "add --compare"),
        (("--compare", "--estimator", "rlo"), 'mean "rloo"'),
        (("--compare", "--estimator", "{ type = "), "cannot read estimator"),
        (("--compare", "--estimator", '{ type = "grpo", scael = "none" }'), "scale"),
        (("--compare", "--estimator", "gae"), "the run has no critic"),
        (("--compare", "--estimator", "process_value"), "no implicit reward"),
        (("--compare", "--estimator", "rloo", "--keep", "../x"), "--keep"),
    ):
        ended = call("score", str(stored), *arguments)
        assert (ended.status, ended.out) == (2, ""), arguments
        assert message in ended.err, arguments
    alone = tmp_path / "alone.jsonl"
    alone.write_bytes((stored / "rollouts" / "policy.jsonl").read_bytes())
    ended = call("score", str(alone), "--compare", "--estimator", "rloo", "--keep", "x")
    assert (ended.status, "--keep writes into a run folder" in ended.err) == (2, True)


def test_a_recipe_that_is_damaged_is_named(stored: Path) -> None:
    (stored / "recipe.toml").write_text('[[stages]]\ntype = "policy"\nname = "policy"\nadvantage = "grpo"\n')
    ended = call("score", str(stored), "--compare", "--estimator", "rloo")
    assert ended.status == 2
    assert "the stage 'policy' cannot be read" in ended.err


def test_a_replay_is_kept_for_report_and_viewer(stored: Path) -> None:
    ended = call("score", str(stored), "--compare", "--estimator", "rloo", "--keep", "by-rloo")
    assert ended.status == 0, ended.err
    kept = json.loads((stored / "replays" / "by-rloo.json").read_text())
    assert (kept["kind"], kept["compared"]["replay"]["groups"]) == ("replay", 4)
    report = (stored / "report.html").read_text()
    assert "by-rloo" in report
    assert "groups would have taught" in report


def test_the_estimator_keeps_combine_and_whiten_of_the_stage_unless_it_sets_them(stored: Path) -> None:
    (stored / "recipe.toml").unlink()
    HandMadeRun(stored, {"advantage": {"type": "rloo", "combine": "after", "whiten": True}}).write()
    stage = find_stage(stored / "rollouts" / "policy.jsonl")
    assert stage is not None
    assert {name: part.weight for name, part in stage.parts.items()} == {"digits": 2.0, "brevity": -1.0}
    chosen: Any = choose_estimator("grpo", stage)
    assert (chosen.name, chosen.slot.combine, chosen.slot.whiten) == ("grpo", "after", True)
    chosen = choose_estimator({"type": "grpo", "combine": "before"}, stage)
    assert (chosen.slot.combine, chosen.slot.whiten) == ("before", True)
    assert not choose_estimator("grpo").slot.whiten  # type: ignore[union-attr]
    with pytest.raises(UserError, match="which no run stores"):
        choose_estimator("remax", stage)
