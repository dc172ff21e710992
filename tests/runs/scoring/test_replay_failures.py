"""A rollout that one side could not score has no gain, no flip and no place in the list, and no part in the update."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import rewardsmith as rs
from tests.runs.scoring.groups import scored, write
from tests.runs.scoring.replayed import HandMadeRun, Row, estimate, rloo

Numbers = Sequence[float | None]

TOKENS = (2, 4, 8, 6, 3)
OLD: Numbers = (1.0, 0.0, None, 0.5, 0.5)
NEW: Numbers = (0.0, 1.0, 2.0, None, 0.25)
BOTH = [0, 1, 4]


def rows_of(old: Numbers, new: Numbers, tokens: Sequence[int], stops: Sequence[str] = (), group: int = 0) -> list[Row]:
    """Return rollouts of one group whose text is what the new reward gives, with their advantages by rloo."""
    rows = [
        Row(group, n, {"digits": None if a is None else a / 2, "brevity": 0.0}, text=str(b))
        for a, b, n in zip(old, new, tokens, strict=True)
    ]
    for row, stop in zip(rows, stops, strict=False):
        row.stop = stop
    for row, advantage in zip(rows, estimate(rows, rloo, lambda row: row.total), strict=True):
        row.advantage = advantage
    return rows


def leave_one_out(values: Numbers) -> list[float | None]:
    known = [value for value in values if value is not None]
    return [None if v is None else v - (math.fsum(known) - v) / (len(known) - 1) for v in values]


def new_reward(response: str) -> float | None:
    return None if response == "None" else float(response)


def compared(run: HandMadeRun, **settings: Any) -> Any:
    return rs.compare(run.write(), new_reward, **settings)


def gains_by_hand(old: Numbers, new: Numbers, tokens: Sequence[int]) -> list[float]:
    """Return the gains of rollouts that both sides scored, in units of the root mean square over their tokens."""
    sides = []
    for side in (old, new):
        square = math.fsum(n * value**2 for value, n in zip(side, tokens, strict=True)) / sum(tokens)  # type: ignore[operator]
        sides.append([value / math.sqrt(square) for value in side])  # type: ignore[operator]
    return [after - before for before, after in zip(*sides, strict=True)]


def test_gains_and_flips_are_those_of_rollouts_that_both_sides_scored(tmp_path: Path) -> None:
    run = HandMadeRun(tmp_path / "run", {"advantage": "rloo", "select": {"truncated": "keep"}})
    run.add(1, rows_of(OLD, NEW, TOKENS, ["stop", "length", "length", "length", "stop"]))
    result = compared(run)
    found = result.facts["compared"]["replay"]
    old, new = leave_one_out(OLD), leave_one_out(NEW)
    gains = gains_by_hand(*([side[i] for i in BOTH] for side in (old, new, TOKENS)))
    flips = sum(old[i] * new[i] < 0 for i in BOTH)  # type: ignore[operator]
    assert (found["rollouts"], found["both"], found["flipped"]) == (5, 3, flips)
    assert found["flipped_share"] == pytest.approx(flips / 3)
    rank = scipy.stats.spearmanr(gains, [TOKENS[i] for i in BOTH]).statistic
    assert found["gain_with_length"] == pytest.approx(rank)
    assert found["gain_of_truncated"] == pytest.approx(gains[1], abs=1e-5)
    (listed,) = found["largest_disagreements"]
    best = listed["gains"]
    # The third rollout has the highest new advantage, and no old one.
    assert (best["index"], best["text"], listed["flipped"], listed["both"]) == (1, "1.0", flips, 3)
    assert (best["old_advantage"], best["new_advantage"]) == pytest.approx((old[1], new[1]))
    assert best["gain"] == pytest.approx(gains[1], abs=1e-5)
    (row,) = next(table for table in result.tables if "something else" in table.title).rows
    assert row[3] == f"{flips} of 3"
    # A failed rollout has no part in the update: its tokens are 0 in the cosine.
    old_T, new_T = (np.repeat([value or 0.0 for value in side], TOKENS) for side in (old, new))
    assert found["cosine"] == pytest.approx(old_T @ new_T / np.linalg.norm(old_T) / np.linalg.norm(new_T), abs=1e-6)


def test_a_group_in_which_nothing_was_scored_by_both_sides_has_no_gain(tmp_path: Path) -> None:
    run = HandMadeRun(tmp_path / "run", {"advantage": "rloo"})
    run.add(1, rows_of((1.0, 0.0, None, None), (None, None, 1.0, 0.0), (1, 2, 3, 4)))
    result = compared(run)
    found = result.facts["compared"]["replay"]
    assert (found["both"], found["flipped"], found["flipped_share"]) == (0, 0, None)
    assert (found["gain_with_length"], found["gain_of_truncated"]) == (None, None)
    (listed,) = found["largest_disagreements"]
    assert (listed["gains"], listed["cosine"]) == (None, 0.0)  # the updates have no rollout in common
    (row,) = next(table for table in result.tables if "something else" in table.title).rows
    assert row[3:] == ("0 of 0", "-", "")


def test_what_could_be_scored_in_a_group_that_was_not_learned_from_has_the_advantage_0(tmp_path: Path) -> None:
    run = HandMadeRun(tmp_path / "run", {"advantage": "rloo", "select": {"constant": "drop"}})
    run.add(1, rows_of((1.0, 0.0), (1.0, 0.0), (1, 2)))
    values: tuple[Numbers, Numbers] = (0.5, 0.5, None, 0.5), (0.0, 1.0, 4.0, 0.5)
    constant = rows_of(*values, (1, 2, 9, 3), group=1)
    for row in constant:
        row.advantage = None
    run.add(1, constant, dropped="constant")
    found = compared(run).facts["compared"]["replay"]
    assert (found["newly"], found["rollouts"], found["both"]) == (1, 6, 5)
    (listed,) = found["largest_disagreements"]
    new = leave_one_out(values[1])
    assert (listed["gains"]["index"], listed["gains"]["old_advantage"]) == (1, 0.0)
    assert listed["gains"]["new_advantage"] == pytest.approx(new[1])
    assert found["gain_with_length"] == pytest.approx(scipy.stats.spearmanr([new[i] for i in (0, 1, 3)], [1, 2, 3])[0])


def test_parts_that_are_streams_of_their_own_have_an_advantage_where_the_sum_failed(tmp_path: Path) -> None:
    run = HandMadeRun(tmp_path / "run", {"advantage": {"type": "rloo", "combine": "after"}})
    rows = [
        Row(0, n, {"digits": digits, "brevity": brevity}, text="1", advantage=advantage)
        for n, digits, brevity, advantage in (
            (1, 0.5, 0.25, 1.0),
            (2, None, 0.5, -0.5),
            (3, None, None, None),
            (4, 0.5, 0.25, -0.5),
        )
    ]
    run.add(1, rows)
    for row in rows:
        row.advantage = None
    run.add(2, rows, dropped="constant")
    kept = rs.compare(run.write(), estimator="rloo", step="1").facts["compared"]["replay"]
    assert (kept["rollouts"], kept["both"]) == (4, 3)
    both = rs.compare(run.folder, estimator="rloo").facts["compared"]["replay"]
    assert both["both"] == 6
    before = rs.compare(run.folder, estimator={"type": "rloo", "combine": "before"}).facts["compared"]["replay"]
    assert before["both"] == 2 + 2  # on one side at least the second rollout has no sum


@pytest.mark.parametrize("estimator", [None, "rloo"])
def test_groups_of_no_run_have_gains_where_both_sides_scored(estimator: str | None, tmp_path: Path) -> None:
    file = write(
        tmp_path / "stored.jsonl", [scored("p", [str(value) for value in NEW], ["timeout", 1.0, 3.0, 0.0, 2.0])]
    )
    found = rs.compare(file, new_reward, estimator=estimator).facts["compared"]["replay"]
    assert (found["rollouts"], found["both"]) == (5, 3)
    old, new = ([value - np.mean(side) for value in side] for side in ([1.0, 3.0, 0.0, 2.0], [0.0, 1.0, 2.0, 0.25]))
    flips = sum(a * b < 0 for a, b in ((old[0], new[1]), (old[1], new[2]), (old[3], new[3])))
    assert (found["flipped"], found["flipped_share"]) == (flips, flips / 3)
    (listed,) = found["largest_disagreements"]
    sides = [old[0], old[1], old[3]], [new[1], new[2], new[3]]
    assert listed["gains"]["index"] == (1, 2, 4)[int(np.argmax(gains_by_hand(*sides, (1, 1, 1))))]
