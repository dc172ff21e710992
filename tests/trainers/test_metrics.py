"""The numbers of a step: what each part of it took, the range of each reward, and the first failures."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.advantages import Stream
from rewardsmith.trainers import metrics as module
from rewardsmith.trainers.metrics import Clock, FirstFailures, reward_metrics, stream_metrics
from rewardsmith.types import Failure, Rollout, RolloutGroup, Score, ScoredGroup
from tests.trainers.world import prompt, scored

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


# ---- time ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, for the test to set."""
    time = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: time[0])
    return time


def test_a_part_that_occurs_again_adds_to_its_time(now: list[float]) -> None:
    clock = Clock()
    for name, seconds in (("write", 2.0), ("wait", 0.5), ("write", 3.0), ("learn", 1.0)):
        now[0] += seconds
        clock.lap(name)
    assert clock.metrics(sampled=50.0) == {"time/write": 5, "time/wait": 0.5, "time/learn": 1, "tokens/s": 10}


# ---- rewards -------------------------------------------------------------------------------------------------------
def test_a_part_has_the_bounds_of_what_could_be_scored() -> None:
    late = Score(failure=Failure("timeout"))
    parts = [{"judge": Score(value), "rule": late} for value in (0.25, -2.0, 7.0)] + [{"judge": late, "rule": late}]
    scores = [Score(part["judge"].value, parts=part) if part["judge"].ok else late for part in parts]
    scores[-1] = Score(failure=Failure("timeout"), parts=parts[-1])
    found = reward_metrics([scored(scores[:2]), scored(scores[2:], number=1)], 0.25)
    assert (found["reward/min"], found["reward/max"]) == (-2.0, 7.0)
    assert (found["reward/judge/min"], found["reward/judge"], found["reward/judge/max"]) == (-2.0, 1.75, 7.0)
    assert not [name for name in found if name.startswith("reward/rule")]
    assert found["reward/accuracy"] == pytest.approx(2 / 3)


# ---- memory --------------------------------------------------------------------------------------------------------
def of_memory(clock: Clock) -> dict[str, float]:
    return {name: value for name, value in clock.metrics(0).items() if name.startswith("memory/")}


def test_on_a_cpu_a_part_has_what_is_resident_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statm = tmp_path / "statm"
    monkeypatch.setattr(module, "STATM", statm)
    clock = Clock(CPU)
    for name, gib in (("write", 1.0), ("learn", 4.0), ("write", 3.0), ("learn", 2.0)):
        pages = int(gib * 2**30) // os.sysconf("SC_PAGE_SIZE")
        statm.write_text(f"{9 * pages} {pages} 77 1 0 5 0\n")
        clock.lap(name)
    assert of_memory(clock) == {"memory/write": 3, "memory/learn": 4}  # the larger of the two


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_gpu_the_peak_is_that_of_the_part() -> None:
    clock = Clock(GPU)
    torch.empty(2**28, dtype=torch.uint8, device=GPU)  # a quarter of a GiB, given back at once
    clock.lap("large")
    torch.empty(2**20, dtype=torch.uint8, device=GPU)
    clock.lap("small")
    found = of_memory(clock)
    assert found["memory/large"] - found["memory/small"] == pytest.approx(0.25 - 2**-10, abs=0.01)


# ---- streams -------------------------------------------------------------------------------------------------------
MASK_BT = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])


X = torch.nan


def ranges(stream: Stream, mask_BT: torch.Tensor = MASK_BT) -> list[float]:
    """Return reward and return, low and high."""
    found = stream_metrics([stream], mask_BT)
    names = ("reward_low", "reward_high", "return_low", "return_high")
    assert list(found) == [f"streams/{stream.name}/{name}" for name in names]
    return list(found.values())


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_a_stream_without_a_token_has_no_numbers(shape: tuple[int, int]) -> None:
    nothing_BT = torch.zeros(shape, dtype=torch.bool)
    rewards_BT = torch.full(shape, X)
    assert stream_metrics([Stream("a", rewards_BT), Stream("b", rewards_BT, nothing_BT)], nothing_BT) == {}
    full = Stream("c", rewards_BT, mask_BT=nothing_BT)
    assert stream_metrics([full], torch.ones(shape, dtype=torch.bool)) == {}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), discount=st.sampled_from([None, 0.6, 0.0]), dense=st.booleans())
def test_ranges_agree_with_a_loop(seed: int, discount: float | None, dense: bool) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, 4)
    mask_BT = torch.arange(6) < torch.from_numpy(lengths)[:, None]
    scored_BT = mask_BT & torch.from_numpy(rng.integers(0, 2, (4, 1)) > 0)
    support_BT = torch.from_numpy(rng.integers(0, 2, (4, 6)) > 0) if dense else None
    drawn_BT = torch.from_numpy(rng.normal(size=(4, 6)))
    carried_BT = drawn_BT if support_BT is None else torch.where(support_BT, drawn_BT, 0)
    rewards, sums = [], []
    for i, length in enumerate(lengths.tolist()):
        row = carried_BT[i, :length].tolist() if scored_BT[i].any() else []
        rewards += [row[t] for t in range(len(row)) if support_BT is None or support_BT[i, t]] if dense else []
        rewards += [sum(row)] if row and not dense else []
        gamma = 1.0 if discount is None else discount
        sums += [sum(gamma**k * r for k, r in enumerate(row[t:])) for t in range(len(row))]
    stream = Stream("s", torch.where(scored_BT, carried_BT, X), support_BT, scored_BT, discount=discount)
    if rewards:
        assert ranges(stream, mask_BT) == pytest.approx([min(rewards), max(rewards), min(sums), max(sums)])
    else:
        assert stream_metrics([stream], mask_BT) == {}


def failed(kind: str, detail: str = "") -> Score:
    return Score(failure=Failure(kind, detail))  # type: ignore[arg-type]  # a kind


def group_of(*scores: Score) -> ScoredGroup:
    return ScoredGroup(RolloutGroup(prompt(0), [Rollout("1", [9], [-1.0]) for _ in scores]), list(scores))


def test_the_first_failure_of_each_part_and_kind_is_logged() -> None:
    logged: list[str] = []
    failures = FirstFailures(logged.append)
    parts = {"rule": failed("timeout", "slow"), "judge": failed("refused", "no")}
    failures.add([group_of(Score(1.0), failed("timeout", "x" * 1000)), group_of(failed("timeout", "again"))])
    assert logged == ["a rollout could not be scored (timeout): " + "x" * 300]
    failures.add([group_of(Score(failure=Failure("timeout", "rule: slow"), parts=parts))] * 2)
    failures.add([group_of(failed("crashed", "oh"))])
    assert logged[1:] == [
        "rule could not score a rollout (timeout): slow",
        "judge could not score a rollout (refused): no",
        "a rollout could not be scored (crashed): oh",
    ]


def test_what_was_not_scored_on_purpose_is_no_failure() -> None:
    logged: list[str] = []
    whole = Score(1.0, parts={"a": failed("skipped", "late"), "b": failed("dropped", "left out"), "c": Score(1.0)})
    FirstFailures(logged.append).add([group_of(whole)])
    assert logged == []
