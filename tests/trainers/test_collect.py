"""From prompts to the groups of a step: refills, surplus, staleness, long prompts, and resuming after a stop."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.errors import UserError
from rewardsmith.trainers.collect import Collector, StepRollouts
from rewardsmith.trainers.trainer import Draws
from rewardsmith.types import Prompt, RolloutGroup, Score, ScoredGroup
from tests.trainers.world import FAILED, new_engine, policy_stage, prompt, wait

ENGINE = new_engine()
PROMPTS = 64


class ByPrompt:
    """Scores by the number of the prompt alone: `g` has a contrast, `c` is constant, `f` fails."""

    def __init__(self, plan: str) -> None:
        self.plan = plan
        self.asked: list[int] = []

    async def score(self, group: RolloutGroup) -> list[Score]:
        number = int(group.prompt.id[1:])
        self.asked.append(number)
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
    ends: bool = False,  # whether the reward must know where tokens end
    **stage: Any,
) -> tuple[Collector, ByPrompt]:
    def prompts(seed: int) -> Iterator[Prompt]:
        return (prompt(i, text(i)) for i in range(PROMPTS))

    reward = ByPrompt(plan)
    reward.reads_ends = ends
    settings = policy_stage(
        prompts_per_step=3,
        rollouts_per_prompt=2,
        sampling={"max_tokens": 2},
        select={"constant": "drop"} | (select or {}),
        **stage,
    )
    return Collector(settings, ENGINE, reward, Draws(prompts, 0, "train"), seed=7, pause=pause), reward


def ids(groups: list[ScoredGroup]) -> list[int]:
    return [int(scored.group.prompt.id[1:]) for scored in groups]


def fates(found: StepRollouts) -> dict[str, int]:
    return {fate: count for fate, count in found.counts.items() if count}


def test_a_step_takes_the_next_prompts_in_their_order() -> None:
    collect, reward = collector("g")
    first, second = wait(collect.collect(1)), wait(collect.collect(2))
    assert (ids(first.kept), ids(second.kept)) == ([0, 1, 2], [3, 4, 5])
    assert sorted(reward.asked) == list(range(6))
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
    assert sorted(reward.asked) == [0, 1, 2, 3, 4, 5]


def test_surplus_is_used_in_the_next_step_as_it_was_written() -> None:
    collect, reward = collector("g", select={"oversample": 2.0, "staleness": 1})
    first = wait(collect.collect(1))
    surplus = [scored for scored, reason in first.rejected if reason == "surplus"]
    second = wait(collect.collect(2))
    assert ids(second.kept) == ids(surplus) == [3, 4, 5]
    assert second.kept == surplus  # tokens, log-probabilities, version and scores
    assert all(s.group.policy_version == 0 for s in second.kept)
    assert (second.rounds, second.counts["reused"], len(reward.asked)) == (0, 3, 6)


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
def test_every_prompt_is_asked_once_and_has_one_fate(plan: str, rounds: int, oversample: float, staleness: int) -> None:
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
    assert sorted(reward.asked) == list(range(len(reward.asked)))
    assert len(set(learned)) == len(learned)
    assert all(plan[i % len(plan)] == "g" for i in learned)
    assert not set(learned) & refused
    waiting = {i for i in range(len(reward.asked)) if plan[i % len(plan)] == "g"} - set(learned)
    if staleness == 0 and oversample == 1.0:
        assert not waiting


# ---- long prompts ----------------------------------------------------------------------------------------------------


def long_second(number: int) -> str:
    return "1+1+1+1?" if number % 2 else "1+1?"


def test_long_prompts_are_left_out_and_counted() -> None:
    limit = len(ENGINE.encode(prompt(0, long_second(0))))
    collect, reward = collector("g", text=long_second, max_prompt_tokens=limit)
    found = wait(collect.collect(1))
    assert ids(found.kept) == sorted(reward.asked) == [0, 2, 4]
    assert found.counts["overlong_prompts"] == 2
    longer, _ = collector("g", text=long_second, max_prompt_tokens=limit + 4)
    assert ids(wait(longer.collect(1)).kept) == [0, 1, 2]


def test_long_prompts_can_be_an_error_that_names_the_prompt() -> None:
    collect, _ = collector("g", text=long_second, max_prompt_tokens=6, overlong_prompts="error")
    with pytest.raises(
        UserError, match=r"prompt 'p1' has 10 tokens, more than the limit of 6: raise max_prompt_tokens"
    ):
        wait(collect.collect(1))


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


# ---- what a step makes of it -----------------------------------------------------------------------------------------


def test_patience_is_used_up_by_steps_in_a_row_and_survives_a_stop() -> None:
    select = {"min_groups": 2, "patience": 2}
    one, _ = collector("c" * 3 + "g" * 3 + "gcc" + "ccg", select=select)
    assert [one.enough(wait(one.collect(step))) for step in (1, 2, 3)] == [False, True, False]
    state = json.loads(json.dumps(one.state()))
    assert state["idle"] == 1
    other, _ = collector("c" * 3 + "g" * 3 + "gcc" + "ccg", select=select)
    other.restore(state)
    said = r"2 steps in a row found fewer than 2 groups to learn from \(last: 2 constant, 1 too_few\)\. Widen select"
    for each in (one, other):
        with pytest.raises(UserError, match=said):
            each.enough(wait(each.collect(4)))


def test_every_group_is_written_with_its_fate_and_its_share_of_the_advantages() -> None:
    collect, _ = collector("gcg", select={"rounds": 1})
    found = wait(collect.collect(1))
    records = found.records(5, [1.0, 2.0, None, 4.0])
    assert [(record.step, record.kind, record.dropped) for record in records] == [
        (5, "train", ""),
        (5, "train", ""),
        (5, "train", "constant"),
    ]
    assert ids([record.scored for record in records]) == [0, 2, 1]
    assert [list(record.advantages) for record in records] == [[1.0, 2.0], [None, 4.0], [None, None]]
    assert [list(record.advantages) for record in found.records(5)] == [[None, None]] * 3
