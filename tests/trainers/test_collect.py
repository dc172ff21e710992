"""From prompts to the groups of a step: selection, refills, surplus, long prompts, seeds, resuming, timing."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.engines.protocol import Sampling
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.trainers.collect import Collector, StepRollouts, generate_and_score, rejection
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.settings import SelectSettings
from rewardsmith.types import Failure, Prompt, RolloutGroup, Score, ScoredGroup
from tests.trainers.world import FAILED, World, new_engine, policy_stage, prompt, scored, steps, wait

ENGINE = new_engine()


PROMPTS = 64


class ByPrompt:
    """Scores by the number of the prompt alone: `g` has a contrast, `c` is constant, `f` fails."""

    def __init__(self, plan: str) -> None:
        self.plan = plan
        self.scored: list[int] = []

    async def score(self, group: RolloutGroup) -> list[Score]:
        number = int(group.prompt.id[1:])
        self.scored.append(number)
        kind = self.plan[number % len(self.plan)]
        scores = {"g": [Score(1.0), Score(0.0)], "c": [Score(1.0)] * 2, "f": [FAILED] * 2}[kind]
        assert len(group.rollouts) == len(scores)
        return scores


def collector(
    plan: str,
    *,
    text: Callable[[int], str] = lambda i: "1+1?",
    pause: Callable[[], None] = lambda: None,
    select: dict[str, Any] | None = None,
    **stage: Any,
) -> tuple[Collector, ByPrompt]:
    def prompts(seed: int) -> Iterator[Prompt]:
        return (prompt(i, text(i)) for i in range(PROMPTS))

    reward = ByPrompt(plan)
    settings = policy_stage(
        prompts_per_step=3,
        rollouts_per_prompt=2,
        sampling={"max_tokens": 2},
        select={"constant": "drop"} | (select or {}),
        **stage,
    )
    context = World(Path())
    context._sources["train"] = SimpleNamespace(prompts=prompts)
    context.pause = pause  # type: ignore[method-assign]
    return Collector(settings, ENGINE, reward, context), reward


def ids(groups: list[ScoredGroup]) -> list[int]:
    return [int(scored.group.prompt.id[1:]) for scored in groups]


def fates(found: StepRollouts) -> dict[str, int]:
    return {fate: count for fate, count in found.counts.items() if count}


def test_a_step_takes_the_next_prompts_in_their_order() -> None:
    collect, reward = collector("g")
    first, second = wait(collect.collect(1)), wait(collect.collect(2))
    assert (ids(first.kept), ids(second.kept)) == ([0, 1, 2], [3, 4, 5])
    assert sorted(reward.scored) == list(range(6))
    assert [s.group.policy_version for s in (*first.kept, *second.kept)] == [0, 0, 0, 1, 1, 1]
    assert (fates(first), first.rounds) == ({"kept": 3}, 1)
    assert all(len(r.logprobs) == len(r.tokens) > 0 for s in first.kept for r in s.group.rollouts)


def test_what_is_missing_is_drawn_again_until_the_step_is_full() -> None:
    collect, reward = collector("gcfgcgg", select={"rounds": 5})
    found = wait(collect.collect(1))
    # 0 1 2 -> one passes; 3 4 -> one passes; 5 -> passes
    assert (ids(found.kept), found.rounds) == ([0, 3, 5], 3)
    assert {(ids([s])[0], reason) for s, reason in found.rejected} == {(1, "constant"), (2, "failed"), (4, "constant")}
    assert fates(found) == {"kept": 3, "constant": 2, "failed": 1}
    assert sorted(reward.scored) == [0, 1, 2, 3, 4, 5]


# ---- passes over the data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "settings", "expected"),
    [
        (1, {}, 21),  # of 64 prompts, 3 in each step: the last one is left out
        (3, {}, 64),  # a step may begin in one pass and end in the next
        (1, {"select": {"oversample": 1.5}}, 12),  # 5 in each step
        (1, {"text": lambda i: "1" * (200 if i % 2 else 1) + "?"}, 10),  # every other one is too long
    ],
)
def test_epochs_are_as_many_steps_as_the_prompts_fill(epochs: int, settings: dict[str, Any], expected: int) -> None:
    collect, _ = collector("g", steps=None, epochs=epochs, max_prompt_tokens=50, **settings)
    assert collect.steps == expected
    log = collect._context.messages  # type: ignore[attr-defined]
    assert f"epochs = {epochs} are {expected} steps" in log[-1]
    assert ("32 of which have more than 50 tokens" in log[-1]) == ("text" in settings)


def test_no_prompt_is_drawn_more_often_than_there_are_epochs() -> None:
    collect, reward = collector("g", steps=None, epochs=3)
    epochs = [wait(collect.collect(step + 1)).epoch for step in range(collect.steps)]
    assert sorted(reward.scored) == sorted(list(range(PROMPTS)) * 3)
    assert epochs == pytest.approx([3 * (step + 1) / PROMPTS for step in range(collect.steps)])


def test_epochs_that_fill_no_step_or_have_no_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for few in ({"select": {"oversample": 30.0}}, {"max_prompt_tokens": 1}):
        with pytest.raises(UserError, match=r"data\.train has 64 prompts.*would not fill one step"):
            collector("g", steps=None, epochs=1, **few)
    with pytest.raises(UserError, match=r"prompt 'p0' has \d+ tokens"):
        collector("g", steps=None, epochs=1, max_prompt_tokens=1, overlong_prompts="error")
    monkeypatch.setattr("rewardsmith.trainers.trainer.MAX_COUNTED", 50)
    with pytest.raises(UserError, match="has no end, or more than 50 prompts: set steps instead of epochs"):
        collector("g", steps=None, epochs=1)
    for change in ({"epochs": 2}, {"steps": None}):
        with pytest.raises(RecipeError, match=r"exactly one of steps and epochs: .* ppo_epochs"):
            policy_stage(**change)


def test_a_restored_collector_goes_on_within_its_epochs() -> None:
    def shuffled(seed: int) -> Iterator[Prompt]:
        return iter(random.Random(seed).sample([prompt(i) for i in range(7)], 7))

    def made() -> Collector:
        world = World(Path(), sources={"train": SimpleNamespace(prompts=shuffled)})
        stage = policy_stage(steps=None, epochs=4, prompts_per_step=2, rollouts_per_prompt=2)
        return Collector(stage, ENGINE, ByPrompt("g"), world)

    whole, first, second = made(), made(), made()
    expected = [wait(whole.collect(step + 1)) for step in range(whole.steps)]
    passes = [sorted(ids([g for found in expected for g in found.sampled])[i : i + 7]) for i in range(0, 28, 7)]
    assert (whole.steps, passes) == (14, [list(range(7))] * 4)
    orders = {tuple(ids([g for found in expected for g in found.sampled])[i : i + 7]) for i in range(0, 28, 7)}
    assert len(orders) > 1  # each pass has an order of its own
    for step in range(5):
        wait(first.collect(step + 1))
    second.restore(json.loads(json.dumps(first.state())))
    for step in range(5, 14):
        found = wait(second.collect(step + 1))
        assert (found.kept, found.epoch) == (expected[step].kept, expected[step].epoch)


def test_schedules_run_over_the_steps_of_the_epochs(tmp_path: Path) -> None:
    few = [prompt(i) for i in range(10)]
    world = World(tmp_path, sources={"train": SimpleNamespace(prompts=lambda seed: iter(few))})  # type: ignore[dict-item]
    optimizer = {"lr": 0.01, "schedule": "linear", "warmup": 0.3}
    stage = policy_stage(steps=None, epochs=2, prompts_per_step=4, mini_batches=2, optimizer=optimizer, entropy=0.01)
    trainer = PolicyTrainer(stage, world)
    found = steps(trainer, trainer.steps)
    # 5 steps of 2 optimizer steps each, of which the first 3 warm up; a metric has the last one of its step
    expected = [2 / 3, 1.0] + [1 - (done - 3) / 7 for done in (5, 7, 9)]
    assert [metrics["policy/lr"] for metrics in found] == pytest.approx([0.01 * factor for factor in expected])
    assert [metrics["epoch"] for metrics in found] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])


def test_surplus_is_used_in_the_next_step_as_it_was_written() -> None:
    collect, reward = collector("g", select={"oversample": 2.0, "staleness": 1})
    first = wait(collect.collect(1))
    surplus = [scored for scored, reason in first.rejected if reason == "surplus"]
    second = wait(collect.collect(2))
    assert ids(second.kept) == ids(surplus) == [3, 4, 5]
    assert second.kept == surplus  # tokens, log-probabilities, version and scores
    assert all(s.group.policy_version == 0 for s in second.kept)
    assert (second.rounds, second.counts["reused"], len(reward.scored)) == (0, 3, 6)


def test_surplus_that_is_too_old_is_dropped_and_counted() -> None:
    collect, _ = collector("g", select={"oversample": 2.0, "staleness": 1})
    wait(collect.collect(1))
    found = wait(collect.collect(3))  # a step later than it could be used
    assert fates(found) == {"stale": 3, "kept": 3, "surplus": 3}
    assert [reason for s, reason in found.rejected if ids([s])[0] in (3, 4, 5)] == ["stale"] * 3
    assert ids(found.kept) == [6, 7, 8]


@settings(max_examples=12)
@given(
    plan=st.text("gcf", min_size=1, max_size=7),
    rounds=st.integers(1, 3),
    oversample=st.sampled_from([1.0, 1.5, 2.0]),
    staleness=st.integers(0, 2),
)
def test_every_prompt_is_scored_once_and_has_one_fate(
    plan: str, rounds: int, oversample: float, staleness: int
) -> None:
    select = {"rounds": rounds, "oversample": oversample, "staleness": staleness}
    collect, reward = collector(plan, select=select)
    learned: list[int] = []
    refused: set[int] = set()
    for step in range(1, 4):
        found = wait(collect.collect(step))
        assert len(found.kept) <= 3
        assert found.rounds <= rounds
        assert all(step - 1 - s.group.policy_version <= staleness for s in found.kept)
        assert len(found.kept) == 3 or found.rounds == rounds
        learned += ids(found.kept)
        refused |= {ids([s])[0] for s, reason in found.rejected if reason != "surplus"}
    assert sorted(reward.scored) == list(range(len(reward.scored)))
    assert len(set(learned)) == len(learned)
    assert all(plan[i % len(plan)] == "g" for i in learned)
    assert not set(learned) & refused
    waiting = {i for i in range(len(reward.scored)) if plan[i % len(plan)] == "g"} - set(learned)
    if staleness == 0 and oversample == 1.0:
        assert not waiting


# ---- long prompts ----------------------------------------------------------------------------------------------------
def long_second(number: int) -> str:
    return "1+1+1+1?" if number % 2 else "1+1?"


def test_long_prompts_are_left_out_and_counted() -> None:
    limit = len(ENGINE.encode(prompt(0, long_second(0))))
    collect, reward = collector("g", text=long_second, max_prompt_tokens=limit)
    found = wait(collect.collect(1))
    assert ids(found.kept) == sorted(reward.scored) == [0, 2, 4]
    assert found.counts["overlong_prompts"] == 2
    longer, _ = collector("g", text=long_second, max_prompt_tokens=limit + 4)
    assert ids(wait(longer.collect(1)).kept) == [0, 1, 2]


# ---- going on --------------------------------------------------------------------------------------------------------
def test_a_restored_collector_goes_on_as_if_nothing_had_happened() -> None:
    plan, select = "ggcgfgg", {"rounds": 2, "oversample": 2.0, "staleness": 2}
    one, _ = collector(plan, select=select)
    wait(one.collect(1))
    state = json.loads(json.dumps(one.state()))
    other, _ = collector(plan, select=select)
    other.restore(state)
    for step in (2, 3, 4):
        expected, found = wait(one.collect(step)), wait(other.collect(step))
        assert found == expected
        assert one.state() == other.state()


def test_a_collector_that_was_interrupted_in_a_step_can_repeat_it() -> None:
    requests: list[str] = []

    def pause() -> None:
        if requests:
            raise InterruptedError(requests.pop())

    one, _ = collector("g", pause=pause)
    wait(one.collect(1))
    state = one.state()
    requests.append("stop")
    with pytest.raises(InterruptedError, match="stop"):
        wait(one.collect(2))
    one.restore(state)
    undisturbed, _ = collector("g")
    wait(undisturbed.collect(1))
    assert wait(one.collect(2)) == wait(undisturbed.collect(2))


def test_rollouts_of_other_steps_and_rounds_have_other_seeds() -> None:
    collect, _ = collector("cg", select={"rounds": 2})
    groups = [*wait(collect.collect(1)).sampled, *wait(collect.collect(2)).sampled]
    texts = [tuple(token for r in s.group.rollouts for token in r.tokens.tolist()) for s in groups]
    assert len(set(texts)) == len(texts)


# ---- what a step makes of it -----------------------------------------------------------------------------------------
def test_patience_is_used_up_by_steps_in_a_row_and_survives_a_stop() -> None:
    select = {"min_groups": 2, "patience": 2}
    one, _ = collector("c" * 3 + "g" * 3 + "gcc" + "ccg", select=select)
    assert [one.enough(wait(one.collect(step))) for step in (1, 2, 3)] == [False, True, False]
    state = json.loads(json.dumps(one.state()))
    assert state["idle"] == 1
    other, _ = collector("c" * 3 + "g" * 3 + "gcc" + "ccg", select=select)
    other.restore(state)
    message = r"2 steps in a row found fewer than 2 groups to learn from \(last: 2 constant, 1 too_few\)\. Widen select"
    for each in (one, other):
        with pytest.raises(UserError, match=message):
            each.enough(wait(each.collect(4)))


def test_every_group_is_written_with_its_fate_and_its_share_of_the_advantages() -> None:
    collect, _ = collector("gcg", select={"rounds": 1})
    found = wait(collect.collect(1))
    records = found.records(5, {"advantages": [1.0, 2.0, None, 4.0]})
    assert [(record.step, record.kind, record.dropped) for record in records] == [
        (5, "train", ""),
        (5, "train", ""),
        (5, "train", "constant"),
    ]
    assert ids([record.scored for record in records]) == [0, 2, 1]
    assert [list(record.advantages) for record in records] == [[1.0, 2.0], [None, 4.0], [None, None]]
    assert [list(record.advantages) for record in found.records(5)] == [[None, None]] * 3


def why(scores: list[Score | float], **settings: object) -> str | None:
    return rejection(scored(scores), SelectSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], "too_hard"),
        ([1.0, 0.0, 0.0, 0.0], None),
        ([1.0, 1.0, 1.0, 0.0], None),
        ([1.0, 1.0, 1.0, 1.0], "too_easy"),
        ([1.0, FAILED], "too_easy"),
        ([0.0, FAILED, FAILED, 0.5], None),
    ],
)
def test_the_bounds_of_the_mean_are_inclusive_and_failures_do_not_count(
    values: list[Score | float], expected: str | None
) -> None:
    assert why(values, lowest=0.25, highest=0.75) == expected


def test_the_mean_of_one_part_can_be_measured() -> None:
    scores = [Score(5.0, parts={"judge": Score(3.0, parts={"style": Score(0.5)})}) for _ in range(2)]
    assert why([*scores], part="judge.style", highest=0.5) is None
    assert why([*scores], part="judge.style", highest=0.4) == "too_easy"
    assert why([*scores], part="judge", lowest=4.0) == "too_hard"
    assert why([*scores], part="jugde") == "failed"
    lost = [Score(failure=Failure("timeout"), parts={"judge": Score(1.0)}) for _ in range(2)]
    assert why([*lost], part="judge", lowest=1.0) == "failed"  # without a sum there is nothing to learn from
    settings = SelectSettings(part="judge", lowest=1.0)
    assert rejection(scored([*lost]), settings, streams=["judge"], by_parts=True) is None
    assert rejection(scored([*lost]), settings, streams=["other"], by_parts=True) == "failed"


def test_equal_rewards_are_constant_only_where_that_is_asked() -> None:
    assert why([0.5, 0.5], constant="keep") is None
    assert why([0.5, 0.5], constant="drop") == "constant"
    assert why([0.5, 0.6], constant="drop") is None
    assert why([0.5, FAILED], constant="drop") == "constant"
    assert why([FAILED, 0.5, 0.4], constant="drop") is None


def part(value: float, **more: object) -> Score:
    return Score(1.0, parts={"a": Score(value, **more), "b": Score(-value)})  # type: ignore[arg-type]


def by_parts(scores: list[Score], *streams: str, after: bool = True) -> str | None:
    return rejection(scored([*scores]), SelectSettings(constant="drop"), streams=streams, by_parts=after)


def test_parts_that_differ_are_a_contrast_where_each_is_a_stream_of_its_own() -> None:
    assert by_parts([part(1.0), part(2.0)], "a", "b") is None
    assert by_parts([part(1.0), part(2.0)], "a", "b", after=False) == "constant"  # their sum is all that counts
    assert by_parts([part(1.0), part(1.0)], "a", "b") == "constant"
    failed = Score(1.0, parts={"a": FAILED, "b": Score(-1.0)})
    assert by_parts([failed, part(1.0)], "a", "b") is None
    assert by_parts([failed, failed], "a", "b") == "constant"


def test_what_is_only_watched_is_no_contrast() -> None:
    assert by_parts([part(1.0), part(2.0)], "c") == "constant"
    assert why([part(1.0), part(2.0)], constant="drop") == "constant"
    lost = Score(failure=Failure("timeout"), parts={"watched": Score(1.0), "judge": FAILED})
    assert by_parts([lost, lost], "judge") == "failed"


def test_rewards_per_token_that_differ_are_a_contrast() -> None:
    def dense(*values: float) -> Score:
        return Score(sum(values), token_values=list(values))

    assert why([dense(1.0, 0.0), dense(0.0, 1.0)], constant="drop") is None
    assert why([dense(1.0, 0.0), dense(1.0, 0.0)], constant="drop") == "constant"
    two = [part(1.0, token_values=[0.5, 0.5]), part(1.0, token_values=[1.0, 0.0])]
    assert by_parts(two, "a", after=False) is None
    assert by_parts(two, "b", after=False) == "constant"


@pytest.mark.parametrize(("setting", "expected"), [("keep", None), ("mask", None), ("drop", "truncated")])
def test_truncated_answers_drop_their_group_only_where_that_is_asked(setting: str, expected: str | None) -> None:
    group = scored([1.0, 0.0], stop_reasons=["stop", "length"])
    assert rejection(group, SelectSettings(truncated=setting)) == expected  # type: ignore[arg-type]
    assert rejection(scored([1.0, 0.0]), SelectSettings(truncated=setting)) is None  # type: ignore[arg-type]


class AfterWriting:
    """Scores nothing before the last token is written."""

    def __init__(self) -> None:
        self.written = asyncio.Event()
        self.scored = 0

    async def score(self, group: RolloutGroup) -> list[Score]:
        async with asyncio.timeout(60):
            await self.written.wait()
        self.scored += 1
        return [Score(1.0)] * len(group.rollouts)


def test_writing_ends_with_the_last_token_and_not_with_the_last_reward() -> None:
    reward, laps = AfterWriting(), []

    def lap(name: str) -> None:
        laps.append((name, reward.scored))
        if name == "write":
            reward.written.set()

    prompts = [prompt(i) for i in range(3)]
    found = wait(generate_and_score(new_engine(), reward, prompts, Sampling(max_tokens=2), n=2, seeds=[0] * 3, lap=lap))
    assert all(score.ok for group in found for score in group.scores)
    assert laps == [("wait", 0), ("write", 0), ("wait", 3)]


@pytest.mark.parametrize(("needed", "ends"), [(False, False), (False, True), (True, False)])
def test_rollouts_say_where_their_tokens_end_if_somebody_must_know(needed: bool, ends: bool) -> None:
    class Looking:
        reads_ends = needed

        async def score(self, group: RolloutGroup) -> list[Score]:
            return [Score(float(rollout.ends is not None)) for rollout in group.rollouts]

    found = wait(
        generate_and_score(new_engine(), Looking(), [prompt(0)], Sampling(max_tokens=2), n=2, seeds=[0], ends=ends)
    )
    assert [score.value for score in found[0].scores] == [float(needed or ends)] * 2


# ---- how far a step is -----------------------------------------------------------------------------------------------
def phases(world: World) -> list[str]:
    return list(dict.fromkeys(phase for phase, _, _, _ in world.reported))


def test_a_step_reports_how_far_writing_scoring_and_learning_are(tmp_path: Path) -> None:
    validation = {"data": "held_out", "every": 1, "prompts": 2, "rollouts_per_prompt": 2}
    world = World(tmp_path)
    engine = world.engine("policy")
    engine._token_budget = 30  # several micro-batches
    stage = policy_stage(validation=validation, ppo_epochs=2, mini_batches=2, entropy=0.01)
    (metrics,) = steps(PolicyTrainer(stage, world), 1)
    assert phases(world)[:2] == ["validation: writing rollouts", "validation: scoring groups"]
    assert {"writing rollouts", "scoring groups", "learning rollouts"} <= set(phases(world))
    writing = [(done, total, tokens) for phase, done, total, tokens in world.reported if phase == "writing rollouts"]
    assert writing[-1][:2] == (16, 16)
    assert writing == sorted(writing)
    assert metrics["tokens/sampled"] <= writing[-1][2] <= 16 * 8
    learning = [(done, total) for phase, done, total, _ in world.reported if phase == "learning rollouts"]
    assert len(learning) > 4  # more than one to an update
    assert learning == sorted(learning)
    assert learning[0] == (0, 2 * 16)
    assert learning[-1] == (2 * 16, 2 * 16)
