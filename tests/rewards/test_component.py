"""What a failure does: policy, budget, waiting for a lost service, health check; and the state of online rewards."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup, UserError
from rewardsmith.rewards import Component, Halt, component, make_reward
from rewardsmith.rewards.base import parts_of, score
from rewardsmith.rewards.tree import check, latencies, learn, load, save, unfit, walk
from tests.rewards.stubs import given, group, score_rows, values

FLAKY = "tests.rewards.stubs:Flaky"


def judge(**failure: object) -> dict:
    return {"type": "sum", "parts": {"rule": given("p"), "judge": given("v", failure=failure)}}


def odd(name: str, **settings: object) -> dict:
    return {"type": f"tests.rewards.odd:{name}", **settings}


def score_often(reward: Component, times: int, *rows: dict) -> list[Score]:
    """Return the scores of equal groups that are scored at the same time."""

    async def several() -> list[Any]:
        return await asyncio.gather(*(reward.score(group(*rows)) for _ in range(times)))

    return [one for scores in asyncio.run(several()) for one in scores]


def test_stop_ends_the_run_with_the_first_failure() -> None:
    with pytest.raises(Halt, match=r'(?s)"judge" could not score.*"stop".*timeout: v says timeout'):
        score_rows(judge(do="stop"), {"p": 1, "v": 1}, {"p": 1, "v": "timeout"})


# ---- the budget ----------------------------------------------------------------------------------------------------


def feed(reward: Component, kinds: list[object]) -> int:
    """Score one rollout after the other; return how many were scored before the run was stopped."""
    for i, kind in enumerate(kinds):
        try:
            score_rows(reward, {"p": 1, "v": kind})
        except Halt:
            return i + 1
    return len(kinds)


@pytest.mark.parametrize(
    ("share", "window", "min_failures", "kinds", "stops_after"),
    [
        (0.5, 10, 3, ["timeout"] * 20, 3),
        (0.5, 10, 3, [1, "timeout"] * 20, 40),  # exactly half is not more than half
        (0.4, 10, 3, [1, "timeout"] * 20, 6),
        (0.5, 4, 2, ["timeout", 1, 1, 1, 1, "timeout", 1, 1, 1, 1], 10),
        (0.5, 4, 2, [1] * 50 + ["timeout"] * 9, 53),  # the window slides
        (0.5, 4, 32, ["timeout"] * 9, 4),  # a window that is smaller than min_failures
        (1.0, 4, 2, ["timeout"] * 20, 20),  # never
    ],
)
def test_the_budget(share: float, window: int, min_failures: int, kinds: list[object], stops_after: int) -> None:
    assert feed(make_reward(judge(share=share, window=window, min_failures=min_failures)), kinds) == stops_after


def test_the_error_names_component_causes_counts_and_the_last_details() -> None:
    reward = make_reward(judge(share=0.5, window=10, min_failures=5))
    assert feed(reward, [1, "timeout", "timeout", "refused", "timeout"]) == 5
    with pytest.raises(Halt) as caught:
        score_rows(reward, {"p": 1, "v": "unparsable"})
    words = [
        '"judge" could not score 5 of its last 6',
        "3 timeout, the last: v says timeout",
        "1 refused",
        "share = 0.5",
    ]
    assert [word for word in words if word not in str(caught.value)] == []


def test_what_was_skipped_or_is_only_watched_never_stops_the_run() -> None:
    strict = {"share": 0.1, "window": 8, "min_failures": 2}
    gate = make_reward({"type": "gate", "rule": given("p"), "judge": given("v", failure=strict)})
    watched = given("v", weight=0.0, watch=True, failure=strict)
    whole = make_reward({"type": "sum", "parts": {"p": given("p"), "v": watched}})
    for _ in range(9):
        assert values(gate, {"p": 0, "v": 1}, {"p": 0, "v": 1}) == [0, 0]
        assert values(whole, {"p": 1, "v": "timeout"}) == [1]


def test_settings_that_a_composition_would_ignore_are_refused() -> None:
    table = {"type": "sum", "parts": {"x": given("x")}, "failure": {"share": 0.1}}
    with pytest.raises(UserError, match=r"failure\.share of reward, a composed reward"):
        make_reward(table)


def test_a_rule_is_reached_in_five_frames() -> None:
    """`score()` > `Component.score` > outage wait > one call > the reward."""
    frames: list[str] = []

    class Recording:
        async def score(self, group: RolloutGroup) -> list[Score]:
            frame = sys._getframe()
            while frame is not None and "score" not in frames:
                frames.append(frame.f_code.co_qualname)
                frame = frame.f_back  # type: ignore[assignment]
            return [Score(1.0)] * len(group.rollouts)

    asyncio.run(score(Component("reward", Recording()), group({})))
    assert frames[-1] == "score"
    assert len(frames) <= 5


def test_the_deadline_of_a_group() -> None:
    (found,) = score_rows({"type": "tests.rewards.stubs:Sleepy", "failure": {"deadline": 0.05}}, {})
    assert found.failure is not None
    assert (found.failure.kind, found.failure.detail) == ("timeout", "no scores within 0.05 s")
    assert values(odd("SlowWithOwnDeadline", failure={"deadline": 0.01}), {}) == [1.0]


# ---- a service that is gone ----------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(component, "MAX_PAUSE", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("checked", [True, False])
def test_a_dead_service_is_waited_for_and_no_rollout_is_lost(checked: bool) -> None:
    reward = make_reward({"type": FLAKY, "after": 3, "checked": checked, "failure": {"wait": 30.0}})
    messages: list[str] = []
    reward.log = messages.append
    assert [s.value for s in score_often(reward, 5, {}, {})] == [1.0] * 10
    first, last = messages
    assert "nobody listens on port 9" in first
    assert "responds again" in last


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "times", "rollouts"),
    [
        ("DiesWithin", 6, 3),
        ("SlowAfterOutage", 12, 1),  # one by one they would be too late
    ],
)
def test_a_service_that_comes_and_goes_costs_nobody_a_rollout(name: str, times: int, rollouts: int) -> None:
    reward = make_reward(odd(name, failure={"wait": 1.0 if name == "SlowAfterOutage" else 30.0}))
    assert all(one.ok for one in score_often(reward, times, *[{}] * rollouts))


@pytest.mark.usefixtures("quick")
def test_a_service_that_stays_away_stops_the_run_or_another_reward_is_used() -> None:
    gone = {"type": FLAKY, "after": 10**6}
    with pytest.raises(Halt, match=r"(?s)was unreachable for 0.2 s.*port 9.*run the same command again"):
        score_rows(gone | {"failure": {"wait": 0.2}}, {})
    assert values(gone | {"failure": {"wait": 0.0}}, {}) == ["unreachable"]
    assert values(gone | {"failure": {"wait": 0.1, "do": "use", "instead": given("y")}}, {"y": 3}) == [3]
    assert feed(make_reward(given("v", failure={"do": "use", "instead": given("p")})), ["timeout"] * 99) == 32


class Comparing:
    """Gives each rollout its place in the group; goes away in the middle of the first one."""

    whole = True

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def check(self) -> None: ...

    async def score(self, group: RolloutGroup) -> list[Score]:
        self.sizes.append(len(group.rollouts))
        order = sorted(rollout.text for rollout in group.rollouts)
        scores = [Score(float(order.index(rollout.text))) for rollout in group.rollouts]
        return scores if len(self.sizes) > 1 else [Score(failure=Failure("unreachable", "nobody")), *scores[1:]]


@pytest.mark.usefixtures("quick")
def test_scores_that_depend_on_each_other_are_computed_together_after_an_outage() -> None:
    reward = Comparing()
    group_ = RolloutGroup(Prompt("p", [Message("user", "?")]), [Rollout(text) for text in "cab"])
    scores = asyncio.run(Component("ranking", reward).score(group_))
    assert [one.value for one in scores] == [2.0, 0.0, 1.0]
    assert reward.sizes == [3, 3]


@pytest.mark.usefixtures("quick")
def test_a_rollout_that_alone_is_unreachable_fails_alone() -> None:
    assert values(odd("Poisoned", failure={"wait": 30.0}), {}) == ["unreachable"]
    reward = make_reward(given("x", failure={"wait": 0.3}))

    async def both() -> list[tuple]:
        async def later() -> tuple:
            await asyncio.sleep(0.1)
            return await reward.score(group({"x": 1}))

        return await asyncio.gather(reward.score(group({"x": 1}, {"x": "unreachable"})), later())

    (first, second) = asyncio.run(both())
    assert [s.value if s.ok else s.failure.kind for s in (*first, *second)] == [1, "unreachable", 1]


@contextmanager
def service(answers: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Serve 1 by HTTP after these statuses, each once; 0 is an answer that does not come in time."""
    given_statuses: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = answers.pop(0) if answers else 200
            given_statuses.append(status)
            if not status:
                time.sleep(1.5)
                return
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"1")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/", given_statuses
        finally:
            server.shutdown()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("client", ["aiohttp", "requests", "httpx", "urllib"])
def test_http_errors_of_a_users_own_reward(client: str) -> None:
    pytest.importorskip(client)
    with service([503, 0]) as (url, statuses):
        assert values(odd("Service", url=url, client=client, failure={"wait": 30.0}), {}, {}) == [1.0, 1.0]
    assert statuses == [503, 0, 200]
    with service([429, 404, 500]) as (url, _):
        for kind in ("unreachable", "refused", "refused"):
            assert values(odd("Service", url=url, client=client, failure={"wait": 0.0}), {}) == [kind]
    with service([500, 404]) as (url, statuses):  # 500 is tried again, 404 is not
        assert values(odd("Service", url=url, client=client, failure={"wait": 30.0}), {}) == ["refused"]
    assert statuses == [500, 404]
    with service([500] * 20) as (url, statuses):  # it never stops the run: these answers may be the cause
        assert values(odd("Service", url=url, client=client, failure={"wait": 30.0}), {}) == ["refused"]
    assert len(statuses) == 1 + component.MAX_REPEATS


@pytest.mark.usefixtures("quick")
def test_a_service_that_stays_slow_is_tried_a_few_times_and_stops_no_run() -> None:
    with service([0] * 20) as (url, statuses):
        assert values(odd("Service", url=url, client="aiohttp", failure={"wait": 30.0}), {}) == ["timeout"]
    assert len(statuses) == 1 + component.MAX_REPEATS
    assert values(odd("SilentCannotScore", failure={"wait": 30.0}), {}) == ["timeout"]  # its own decision


@pytest.mark.usefixtures("quick")
def test_a_check_that_hangs_does_not_hang_us() -> None:
    with pytest.raises(Halt, match="was unreachable"):
        score_rows(odd("HangsWhenChecked", failure={"wait": 0.3}), {})
    with pytest.raises(UserError, match=r"within 0\.1 s \(failure\.deadline\)"):
        asyncio.run(check(make_reward(odd("HangsWhenChecked", failure={"deadline": 0.1}))))


# ---- before the first step -----------------------------------------------------------------------------------------


def test_the_health_check_reports_all_that_cannot_work() -> None:
    broken = {"type": FLAKY, "after": 10**6, "checked": True}
    parts = {"a": broken, "b": {"type": "clip", "low": 0.0, "reward": broken}, "c": given("c")}
    with pytest.raises(UserError) as caught:
        asyncio.run(check(make_reward({"type": "sum", "parts": parts})))
    first, second = str(caught.value).splitlines()
    assert first.startswith("a: ConnectionRefusedError: still down (stubs.py:")  # and the line that raised
    assert second.startswith("b.raw: ConnectionRefusedError: still down (stubs.py:")


def test_what_a_users_own_reward_raises_before_a_run_names_it() -> None:
    for table in (odd("Picky"), {"type": "steps", "truth": "tests.rewards.odd:truth"}):
        ((_, why),) = unfit(make_reward(table), group({}).prompt)
        assert "KeyError: 'nothing'" in why
    with pytest.raises(UserError, match=r"mine.*KeyError: 'judge'"):
        make_reward({"type": "sum", "parts": {"mine": odd("Unconnectable")}}, models={})


def test_every_component_has_its_dotted_name_and_its_times() -> None:
    reward = make_reward({"type": "gate", "rule": given("p"), "judge": {"type": "scale", "reward": given("v")}})
    assert [path for path, _ in walk(reward)] == ["", "rule", "judge", "judge.raw"]
    score_rows(reward, {"p": 1, "v": 1})
    score_rows(reward, {"p": 0, "v": 1})
    taken = {path: len(seconds) for path, seconds in latencies(reward).items()}
    assert taken == {"": 2, "rule": 2, "judge": 1, "judge.raw": 1}
    assert latencies(reward) == {}


# ---- rewards that change -------------------------------------------------------------------------------------------


def windowed() -> Component:
    inner = {"type": "standardise", "reward": given("x"), "over": "window", "window": 4, "min_count": 2}
    return make_reward({"type": "sum", "parts": {"a": inner, "b": given("b")}})


def scored(reward: Component, *rows: dict) -> ScoredGroup:
    made = group(*rows)
    return ScoredGroup(made, asyncio.run(reward.score(made)))


def test_a_running_window_changes_between_steps_only_and_is_saved(tmp_path: Path) -> None:
    reward = windowed()
    first = scored(reward, {"x": 1, "b": 0}, {"x": 3, "b": 0}, {"x": "timeout", "b": 0})
    assert [s.value for s in first.scores] == [-1, 1, None]  # nothing is known yet: the group's own
    assert values(reward, {"x": 9, "b": 0}, {"x": 9, "b": 0}) == [0, 0]  # still so: a step has not ended
    metrics = asyncio.run(learn(reward, [first]))
    assert metrics == {"learned/a/window_mean": 2.0, "learned/a/window_spread": 1.0}
    assert values(reward, {"x": 9, "b": 0}, {"x": 2, "b": 0}) == [7, 0]
    save(reward, tmp_path / "saved")
    again = windowed()
    load(again, tmp_path / "saved")
    assert values(again, {"x": 9, "b": 0}) == [7]
    asyncio.run(learn(again, [scored(again, {"x": 5, "b": 0}, {"x": 7, "b": 0}, {"x": 9, "b": 0})]))
    assert values(again, {"x": 6, "b": 0}) == [0]  # 3, 5, 7, 9: the oldest has left
    load(windowed(), tmp_path / "nothing")
    (tmp_path / "saved" / "a" / "window.json").write_text("not JSON")
    with pytest.raises(UserError, match=r'the reward "a" could not load its state'):
        load(windowed(), tmp_path / "saved")


# ---- odd rewards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("UnknownKind", "crashed", "'http 500' is no kind of failure: the judge"),
        ("SilentCannotScore", "timeout", "SilentCannotScore"),
        ("SaysSkipped", "invalid", "the reward itself returned skipped"),
        ("NotAsync", "crashed", "write `async def score(self, group)`"),
        ("Floats", "crashed", "2 values (float) for 2 rollouts: it must return one Score"),
        ("TooFew", "crashed", "returned 1 values"),
        ("CancelsItself", "crashed", "CancelledError"),
        ("InAGroup", "unreachable", "ConnectionRefusedError: port 9"),
        ("WithReason", "unreachable", "URLError"),
        ("NoRoute", "unreachable", "no route"),
        ("WithCause", "unreachable", "RuntimeError: my client"),
        ("Wrapped", "unreachable", "RuntimeError: my client"),
        ("TooLate", "timeout", "APITimeoutError"),
        ("Expired", "timeout", "TimeoutExpired"),
        ("Exits", "crashed", "SystemExit"),
        ("Huge", "invalid", "beyond 1e+30"),
        ("Nothing", "crashed", "TypeError"),
    ],
)
def test_whatever_a_reward_does_is_a_failure_with_its_cause(name: str, kind: str, words: str) -> None:
    scores = score_rows(odd(name, failure={"wait": 0.0}), {}, {})
    assert [one.failure.kind for one in scores if one.failure] == [kind, kind]
    assert words in scores[0].failure.detail  # type: ignore[union-attr]


def test_a_halt_inside_a_group_of_tasks_stops_the_run() -> None:
    with pytest.raises(Halt, match="enough"):
        score_rows(odd("HaltsInAGroup"), {}, {})


def test_attributes_of_a_users_own_mean_nothing_to_us() -> None:
    reward = make_reward(odd("Furnished"))
    asyncio.run(check(reward))
    assert values(reward, {}) == [1.0]
    assert dict(parts_of(reward)) == {}


def test_parts_that_nobody_declared_cost_no_rollout() -> None:
    table = {"type": "gate", "rule": given("p"), "judge": {"type": "tests.rewards.stubs:WithParts"}}
    scores = score_rows(table, {"p": 1}, {"p": 0})
    assert [one.value for one in scores] == [1.0, 0.0]
    assert set(scores[1].parts["judge"].parts) == {"style", "truth"}
    mixed = score_rows(odd("FailsWithoutParts"), {}, {})
    assert [one.ok for one in mixed] == [True, False]
    assert set(mixed[1].parts) == {"style"}


def test_rewards_per_token_are_scaled_and_cannot_be_shifted() -> None:
    made = RolloutGroup(group({}).prompt, [Rollout("ab", [1, 2])])
    (found,) = asyncio.run(make_reward({"type": "scale", "factor": 2.0, "reward": odd("Dense")}).score(made))
    assert found.value == 6.0
    assert found.token_values is not None
    assert found.token_values.tolist() == [2.0, 4.0]
    (found,) = asyncio.run(make_reward({"type": "scale", "offset": 1.0, "reward": odd("Dense")}).score(made))
    assert found.failure is not None
    assert found.failure.kind == "invalid"
