"""What the user sees while a run is going."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from rewardsmith.llm import Usage
from rewardsmith.runs import progress as module
from rewardsmith.runs.model_registry import add_usage, usage_line
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.summary import Summary
from rewardsmith.trainers.trainer import Update

STEP = {"loss": 0.1234, "reward/mean": 0.4567, "reward/accuracy": 0.25, "reward/failed": 0.125, "tokens/s": 12345.6}


def shown(*updates: Update, total: int = 10, done: int = 0, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160, _environ={})
    progress = Progress(console)
    with progress.stage("policy", total, done):
        for update in updates:
            progress.step(update)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_without_a_terminal_there_are_lines_and_no_control_codes() -> None:
    text = shown(Update(0, {"validation/mean@2": 0.375, "validation/pass@1": 0.375}), Update(10, STEP))
    assert text.splitlines() == [
        "policy: 10 steps",
        "policy 0/10  held out 37.5%  elapsed 0:00",
        "policy 10/10  loss 0.123  reward 0.457  right 25%  failed 12%  12,346 tokens/s  held out 37.5%"
        "  elapsed 0:00  0.00 s/step",
    ]


def test_quick_steps_are_not_all_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(shown(*(Update(i, STEP) for i in range(11))).splitlines()) == 3
    monkeypatch.setattr(module, "_QUIET_SECONDS", -1.0)  # as if each took long
    assert len(shown(*(Update(i, STEP) for i in range(11))).splitlines()) == 12


def test_a_terminal_shows_the_step_the_numbers_and_the_time_left() -> None:
    held_out = {"validation/mean@2": 0.5, "validation/pass@1": 0.5}
    text = shown(Update(3, STEP), Update(4, STEP | held_out), terminal=True)
    first, second = text.splitlines()[-2:]
    for part in ("policy", "4/10", "elapsed 0:00", "left 0:00", "s/step"):
        assert part in first, part
    for part in ("reward 0.457", "right 25%", "failed 12%", "12,346 tokens/s", "held out 50.0%"):
        assert part in second, part


# ---- lines that fit, times with names, and what happens inside a step ------------------------------------------------


class Clock:
    """The time, for a test to set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def screen(progress: Progress, width: int) -> list[str]:
    """Return what a terminal of this width would show now."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, _environ={})
    console.print(progress._now)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).splitlines()


def terminal(width: int = 80) -> Progress:
    return Progress(Console(file=io.StringIO(), force_terminal=True, width=width, _environ={}))


LONG = STEP | {"time/wait": 31.49, "validation/mean@2": 0.5, "validation/pass@1": 0.5, "groups/kept": 0.0}


@pytest.mark.parametrize("width", [80, 60, 40])
@pytest.mark.parametrize("name", ["policy", "the stage in which 政策 learns from a judge, on Tuesday afternoon"])
def test_what_a_terminal_shows_fits_its_width_and_loses_no_number(width: int, name: str, clock: Clock) -> None:
    progress = terminal(width)
    with progress.stage(name, 12_345, 0):
        progress.step(Update(0, LONG))
        clock.now += 7_300
        progress.step(Update(1_000, LONG))
        progress.within("validation: writing", 128, 1_512, unit="rollouts", tokens=10**6)
        clock.now += 61
        lines = screen(progress, width)
    assert max(cell_len(line) for line in lines) <= width
    text = "\n".join(lines)
    for part in (
        "1000/12345", "elapsed 2:02:41", "left 22:59:18", "7.30 s/step", "reward 0.457", "right 25%", "failed 12%",
        "12,346 tokens/s", "waited 31.5 s for rewards", "no group to learn from", "held out 50.0%",
        "validation: writing 128/1,512 rollouts", "16,393 tokens/s", "for 1:01",
    ):  # fmt: skip
        assert part in text, part
    assert "…" not in text or name != "policy"


def test_the_time_left_follows_the_last_steps_and_what_came_before_the_first_is_no_step(clock: Clock) -> None:
    progress = terminal()
    with progress.stage("policy", 100, 0):
        clock.now += 500  # a validation
        progress.step(Update(0, {}))
        assert progress._now.times() == ["elapsed 8:20"]
        for i in range(40):
            clock.now += 100 if i < 20 else 2  # the first ones are slow
            progress.step(Update(i + 1, {}))
        assert progress._now.times() == ["elapsed 42:20", "left 2:00", "2.00 s/step"]
        clock.now += 5
        assert progress._now.times()[1] == "left 1:55"
        clock.now += 500
        assert progress._now.times()[1] == "left 0:00"


def test_a_phase_ends_with_its_step_and_another_one_begins_its_own_time(clock: Clock) -> None:
    progress = terminal()
    with progress.stage("policy", 10, 0):
        progress.within("writing", 0, 8)
        clock.now += 20
        progress.within("scoring", 1, 2, unit="groups")
        clock.now += 5
        assert screen(progress, 80)[-1].strip() == "scoring 1/2 groups  for 0:05"
        progress.within("learning something", 0, 0)
        assert screen(progress, 80)[-1].strip() == "learning something  for 0:00"
        progress.within("evaluating", 3, 0, unit="groups")
        assert screen(progress, 80)[-1].strip() == "evaluating 3 groups  for 0:00"
        progress.step(Update(1, {"loss": 1.0}))
        assert screen(progress, 80)[-1].strip() == "loss 1.000"


def test_without_a_terminal_a_long_step_is_reported_every_30_seconds(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=160, _environ={})
    progress = Progress(console)
    with progress.stage("policy", 10, 0):
        progress.step(Update(3, STEP))
        for i in range(100):
            clock.now += 1
            progress.within("writing", i, 100, tokens=50 * i)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[1:] == [
        f"policy step 4/10: writing {i}/100 rollouts  {50 * i / i:,.0f} tokens/s  for {module._clock(i)}"
        for i in (30, 61, 92)
    ]


def test_names_with_brackets_are_not_markup() -> None:
    console = Console(file=io.StringIO(), width=160, _environ={})
    Progress(console).log("loading policy: [bold]models[/]")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "loading policy: [bold]models[/]\n"


LEARNED = {"learned/process/accuracy_fresh": 0.6833, "learned/process/loss": 0.4709, "learned/process/trust": 0.3}


def test_a_process_reward_model_is_shown_by_what_it_knows_not_by_the_policy_that_writes() -> None:
    step = LEARNED | {"reward/mean": 0.094, "reward/failed": 0.125, "tokens/s": 3749.0}
    held_out = {"validation/process/accuracy_fresh": 0.71, "validation/process/outcome": 0.2}
    assert shown(Update(0, held_out), Update(10, step)).splitlines()[1:] == [
        "policy 0/10  held out 71.0%  elapsed 0:00",
        "policy 10/10  pairs in order 68%  loss 0.471  failed 12%  3,749 tokens/s  held out 71.0%"
        "  elapsed 0:00  0.00 s/step",
    ]


# ---- the summary at the end --------------------------------------------------------------------------------


def summary() -> Summary:
    made = Summary("a title")
    made.begin("sft", "sft", 3)
    made.add("sft", Update(3, {"loss": 1.0}), 2.0)
    made.begin("policy", "policy", 2)
    for step, right, seconds in ((0, 0.25, 3.0), (2, 0.75, 7.0)):
        held_out = {"validation/mean@2": right, "validation/pass@1": right, "validation/failed": 0.0}
        made.add("policy", Update(step, held_out), seconds)
    return made


def test_the_table_shows_shares_as_percentages() -> None:
    console = Console(file=io.StringIO(), width=100, _environ={})
    console.print(summary().table())
    assert isinstance(console.file, io.StringIO)
    row = next(line for line in console.file.getvalue().splitlines() if "mean@2" in line)
    assert re.findall(r"[\d.]+%", row) == ["25.0%", "75.0%"]
    assert "5 s" in row


@pytest.mark.parametrize(
    ("name", "before", "after", "output"),
    [
        ("mean@1", -0.0316, 0.062, ["-0.0316", "0.062"]),  # a reward that is no verdict, as of a classifier
        ("pass@1", 0.25, 1.0, ["25.0%", "100.0%"]),
        ("gain@2", -0.1, 0.35, ["-0.1", "0.35"]),
        ("accuracy/gsm8k", 0.5, 0.3513, ["50.0%", "35.1%"]),
        ("process/accuracy_fresh", 0.5, 0.68, ["50.0%", "68.0%"]),
        ("process/steps/found", 0.25, 0.5, ["25.0%", "50.0%"]),
        ("process/best_of_n", 0.25, 0.5, ["0.25", "0.5"]),  # an outcome may be any number
    ],
)
def test_what_a_measure_is_decides_how_it_is_shown(name: str, before: float, after: float, output: list[str]) -> None:
    made = Summary("")
    made.begin("stage", "policy", 1)
    for step, value in enumerate((before, after)):
        made.add("stage", Update(step, {"validation/pass@1": 0.5, f"validation/{name}": value}), 1.0)
    row = next(line for line in table_of(made) if f" {name} " in line)
    assert re.findall(r"-?\d[\d.]*%?", row.partition(f" {name} ")[2])[:2] == output


MEASURED = {
    "accuracy_fresh": 0.5, "best_of_n": 0.5, "outcome": 0.25, "logit_right": 0.1, "logit_wrong": -0.1,
    "steps/found": 0.4, "steps/chance": 0.302, "steps/judged": 512.0,
}  # fmt: skip


def test_the_results_of_a_process_reward_model_are_few_and_chance_stands_next_to_what_it_is_the_chance_of() -> None:
    made = Summary("")
    made.begin("learn", "process_model", 1)
    made.add("learn", Update(0, {f"validation/process/{name}": value for name, value in MEASURED.items()}), 1.0)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table_of(made) if line.startswith("│")]
    assert [row[1:4] for row in cells] == [
        ["process/accuracy_fresh", "50.0%", "50.0%"],
        ["process/best_of_n", "0.5", "0.5"],
        ["process/outcome", "0.25", "0.25"],
        ["process/steps/found (chance 30.2%)", "40.0%", "40.0%"],
    ]


def table_of(made: Summary) -> list[str]:
    console = Console(file=io.StringIO(), width=100, _environ={})
    console.print(made.table())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_what_was_asked_of_models_adds_up_and_is_reported() -> None:
    before = {"judge": Usage(calls=1, prompt_tokens=10, tokens=5, cost=0.5), "old": Usage(cached=1)}
    now = {"judge": Usage(calls=1_000, retries=1, failed=2, tokens=1), "idle": Usage()}
    sums = add_usage(before, now)
    assert set(sums) == {"judge", "old"}
    assert usage_line(sums["judge"]) == "1,001 calls, 1 retry, 2 failed, 10 prompt and 6 completion tokens, cost 0.5"
    assert usage_line(sums["old"]) == "0 calls, 1 cache hit"
