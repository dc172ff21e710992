"""What a failure does: policy, budget, waiting for what is gone, health check; and the state of online rewards."""

import asyncio
from pathlib import Path

import pytest

from rewardsmith import ScoredGroup, UserError
from rewardsmith.rewards import Component, Halt, component, make_reward
from rewardsmith.rewards.tree import check, latencies, learn, load, save, walk
from tests.rewards.stubs import Flaky, given, group, said, values

FLAKY = "tests.rewards.stubs:Flaky"


def judge(**failure: object) -> dict:
    return {"type": "sum", "parts": {"rule": given("p"), "judge": given("v", failure=failure)}}


def test_stop_ends_the_run_with_the_first_failure() -> None:
    with pytest.raises(Halt, match=r'(?s)"judge" could not score.*"stop".*timeout: v says timeout'):
        said(judge(do="stop"), {"p": 1, "v": 1}, {"p": 1, "v": "timeout"})


# ---- the budget ----------------------------------------------------------------------------------------------------


def feed(reward: Component, kinds: list[object]) -> int:
    """Score one rollout after the other; return how many were scored before the run was stopped."""
    for i, kind in enumerate(kinds):
        try:
            said(reward, {"p": 1, "v": kind})
        except Halt:
            return i + 1
    return len(kinds)


@pytest.mark.parametrize(
    ("settings", "kinds", "stops_after"),
    [
        ({"share": 0.5, "window": 10, "least": 3}, ["timeout"] * 20, 3),
        ({"share": 0.5, "window": 10, "least": 3}, [1, "timeout"] * 20, 40),  # exactly half is not more than half
        ({"share": 0.4, "window": 10, "least": 3}, [1, "timeout"] * 20, 6),
        ({"share": 0.5, "window": 4, "least": 2}, ["timeout", 1, 1, 1, 1, "timeout", 1, 1, 1, 1], 10),
        ({"share": 0.5, "window": 4, "least": 2}, [1] * 50 + ["timeout"] * 9, 53),  # the window slides
        ({"share": 1.0, "window": 4, "least": 2}, ["timeout"] * 20, 20),  # never
    ],
)
def test_the_budget(settings: dict, kinds: list[object], stops_after: int) -> None:
    assert feed(make_reward(judge(**settings)), kinds) == stops_after


def test_the_error_names_component_causes_counts_and_the_last_details() -> None:
    reward = make_reward(judge(share=0.5, window=10, least=5))
    assert feed(reward, [1, "timeout", "timeout", "refused", "timeout"]) == 5
    with pytest.raises(Halt) as caught:
        said(reward, {"p": 1, "v": "unparsable"})
    text = str(caught.value)
    assert '"judge" could not score 5 of its last 6 rollouts' in text
    assert "3 timeout, the last: v says timeout" in text
    assert "1 refused" in text
    assert "1 unparsable" in text
    assert "failure.share = 0.5" in text


def test_the_default_budget_stops_a_reward_that_always_fails_and_tolerates_a_few() -> None:
    assert feed(make_reward(judge()), ["timeout"] * 100) == 32
    assert feed(make_reward(judge()), ([1] * 9 + ["timeout"]) * 60) == 600


def test_what_was_skipped_is_no_failure() -> None:
    table = {"type": "gate", "rule": given("p"), "judge": given("v", failure={"share": 0.1, "window": 8, "least": 2})}
    reward = make_reward(table)
    for _ in range(20):
        assert values(reward, {"p": 0, "v": 1}, {"p": 0, "v": 1}) == [0, 0]


def test_a_reward_that_never_answers_has_failed() -> None:
    table = {"type": "tests.rewards.stubs:Sleepy", "failure": {"deadline": 0.05}}
    (score,) = said(table, {})
    assert score.failure is not None
    assert (score.failure.kind, score.failure.detail) == ("timeout", "no answer within 0.05 s")


# ---- a service that is gone ----------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(component, "LONGEST_WAIT", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("checked", [True, False])
def test_a_dead_service_is_waited_for_and_no_rollout_is_lost(checked: bool) -> None:
    reward = make_reward({"type": FLAKY, "after": 3, "checked": checked, "failure": {"wait": 30.0}})
    heard: list[str] = []
    reward.say = heard.append

    async def several() -> list[tuple]:
        return await asyncio.gather(*(reward.score(group({}, {})) for _ in range(5)))

    scores = asyncio.run(several())
    assert [s.value for pair in scores for s in pair] == [1.0] * 10
    assert heard
    assert "nobody listens on port 9" in heard[0]
    if checked:
        assert Flaky.checks == 3  # one group asks for all
        assert Flaky.calls == 10


@pytest.mark.usefixtures("quick")
def test_a_service_that_stays_away_stops_the_run() -> None:
    with pytest.raises(Halt, match=r"(?s)was unreachable for 0.2 s.*port 9.*run the same command again"):
        said({"type": FLAKY, "after": 10**6, "failure": {"wait": 0.2}}, {})


def test_waiting_can_be_switched_off() -> None:
    assert values({"type": FLAKY, "after": 10**6, "failure": {"wait": 0.0}}, {}) == ["unreachable"]


@pytest.mark.usefixtures("quick")
def test_a_rollout_that_alone_is_unreachable_fails_alone() -> None:
    table = given("x", failure={"wait": 0.3})
    reward = make_reward(table)

    async def both() -> list[tuple]:
        async def later() -> tuple:
            await asyncio.sleep(0.1)
            return await reward.score(group({"x": 1}))

        return await asyncio.gather(reward.score(group({"x": 1}, {"x": "unreachable"})), later())

    (first, second) = asyncio.run(both())
    assert [s.value if s.ok else s.failure.kind for s in (*first, *second)] == [1, "unreachable", 1]


# ---- before the first step -----------------------------------------------------------------------------------------


def test_the_health_check_reports_all_that_cannot_work() -> None:
    broken = {"type": FLAKY, "after": 10**6, "checked": True}
    table = {
        "type": "sum",
        "parts": {"a": broken, "b": {"type": "clip", "low": 0.0, "reward": broken}, "c": given("c")},
    }
    with pytest.raises(UserError) as caught:
        asyncio.run(check(make_reward(table)))
    assert str(caught.value).splitlines() == [
        "a: ConnectionRefusedError: still down",
        "b.raw: ConnectionRefusedError: still down",
    ]
    asyncio.run(check(make_reward(given("x"))))


def test_every_component_has_its_dotted_name_and_its_times() -> None:
    reward = make_reward({"type": "gate", "rule": given("p"), "judge": {"type": "scale", "reward": given("v")}})
    assert [path for path, _ in walk(reward)] == ["", "rule", "judge", "judge.raw"]
    said(reward, {"p": 1, "v": 1})
    said(reward, {"p": 0, "v": 1})
    assert {path: len(seconds) for path, seconds in latencies(reward).items()} == {
        "": 2, "rule": 2, "judge": 1, "judge.raw": 1,
    }  # fmt: skip
    assert latencies(reward) == {}


# ---- rewards that change -------------------------------------------------------------------------------------------


def windowed() -> Component:
    inner = {"type": "standardise", "reward": given("x"), "over": "window", "window": 4, "least": 2}
    return make_reward({"type": "sum", "parts": {"a": inner, "b": given("b")}})


def scored(reward: Component, *rows: dict) -> ScoredGroup:
    made = group(*rows)
    return ScoredGroup(made, asyncio.run(reward.score(made)))


def test_a_running_window_changes_between_steps_only_and_is_saved(tmp_path: Path) -> None:
    reward = windowed()
    first = scored(reward, {"x": 1, "b": 0}, {"x": 3, "b": 0}, {"x": "timeout", "b": 0})
    assert [s.value for s in first.scores] == [-1, 1, None]  # nothing is known yet: the group's own
    assert values(reward, {"x": 9, "b": 0}) == [0]  # still so: a step has not ended
    metrics = asyncio.run(learn(reward, [first]))
    assert metrics == {"a/window_mean": 2.0, "a/window_spread": 1.0}
    assert values(reward, {"x": 9, "b": 0}, {"x": 2, "b": 0}) == [7, 0]
    save(reward, tmp_path / "saved")
    again = windowed()
    load(again, tmp_path / "saved")
    assert values(again, {"x": 9, "b": 0}) == [7]
    asyncio.run(learn(again, [scored(again, {"x": 5, "b": 0}, {"x": 7, "b": 0}, {"x": 9, "b": 0})]))
    assert values(again, {"x": 6, "b": 0}) == [0]  # 3, 5, 7, 9: the oldest has left
    load(windowed(), tmp_path / "nothing")
    (tmp_path / "saved" / "a" / "window.json").write_text('["x"]')
    with pytest.raises(UserError, match="does not hold a list of numbers"):
        load(windowed(), tmp_path / "saved")
