"""What the user sees while a run is going."""

import io
import re

import pytest
from rich.console import Console

from rewardsmith.llm import Usage
from rewardsmith.runs import progress as module
from rewardsmith.runs.model_registry import add_usage, usage_line
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.summary import Summary
from rewardsmith.trainers.trainer import Update

STEP = {"loss": 0.1234, "reward/mean": 0.4567, "reward/accuracy": 0.25, "reward/failed": 0.125, "tokens/s": 12345.6}
HELD_OUT = {"validation/mean@2": 0.375, "validation/pass@1": 0.375}


class Clock:
    """The time, for a test to set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def console(*, terminal: bool = False, width: int = 160) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None, _environ={})


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


def test_without_a_terminal_there_are_lines_and_no_control_codes(clock: Clock) -> None:
    out = console()
    progress = Progress(out)
    with progress.stage("policy", 10, 0):
        for step in range(11):
            progress.step(Update(step, STEP if step else HELD_OUT))
            clock.now += 3
    numbers = "loss 0.123  reward 0.457  right 25%  failed 12%  12,346 tokens/s  held out 37.5%"
    assert text_of(out).splitlines() == [
        "policy: 10 steps",
        "policy 0/10  held out 37.5%  elapsed 0:00",
        f"policy 4/10  {numbers}  elapsed 0:12  left 0:18  3.00 s/step",  # quick steps are not all written
        f"policy 8/10  {numbers}  elapsed 0:24  left 0:06  3.00 s/step",
        f"policy 10/10  {numbers}  elapsed 0:30  3.00 s/step",
    ]


def test_without_a_terminal_a_long_step_is_reported_every_30_seconds(clock: Clock) -> None:
    out = console()
    progress = Progress(out)
    with progress.stage("policy", 10, 0):
        progress.step(Update(3, STEP))
        for i in range(100):
            clock.now += 1
            progress.within("writing", i, 100, tokens=50 * i)
    assert text_of(out).splitlines()[1:] == [
        f"policy step 4/10: writing {i}/100 rollouts  50 tokens/s  for {module._clock(i)}" for i in (30, 61, 92)
    ]


def test_a_terminal_shows_the_step_the_numbers_the_phase_and_the_time_left(clock: Clock) -> None:
    out = console(terminal=True, width=60)
    progress = Progress(out)
    with progress.stage("policy [1]", 12_345, 0):
        for step in (1, 1_000):
            clock.now += 3_600
            progress.step(Update(step, STEP | HELD_OUT | {"time/wait": 31.49, "groups/kept": 0.0}))
        progress.within("validation: writing", 128, 1_512, tokens=10**6)
        clock.now += 61
        progress.within("validation: writing", 128, 1_512, tokens=10**6)
        screen = console(width=100)
        screen.print(*progress._bar.get_renderables(), sep="\n")
    text = " ".join(text_of(screen).split())
    for part in (
        "policy [1]", "1000/12345", "elapsed 2:01:01", "left 11:21:", "reward 0.457", "right 25%", "failed 12%",
        "12,346 tokens/s", "waited 31.5 s for rewards", "no group to learn from", "held out 37.5%",
        "validation: writing 128/1,512 rollouts", "16,393 tokens/s", "for 1:01",
    ):  # fmt: skip
        assert part in text, (part, text)
    assert "writing" not in text_of(out).splitlines()[-1]  # a phase ends with its stage


def test_names_with_brackets_are_not_markup() -> None:
    out = console()
    Progress(out).log("loading policy: [bold]models[/]")
    assert text_of(out) == "loading policy: [bold]models[/]\n"


def test_a_process_reward_model_is_shown_by_its_order_of_fresh_pairs() -> None:
    out = console()
    progress = Progress(out)
    with progress.stage("prm", 10, 0):
        progress.step(Update(0, {"validation/process/accuracy_fresh": 0.71}))
        progress.step(Update(10, {"learned/process/accuracy_fresh": 0.6833, "reward/failed": 0.125}))
    assert "failed 12%  process: pairs in order 68%  held out 71.0%" in text_of(out).splitlines()[-1]


# ---- the summary at the end ------------------------------------------------------------------------------------------


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
    row = next(line for line in table_of(summary()) if "mean@2" in line)
    assert re.findall(r"[\d.]+%", row) == ["25.0%", "75.0%"]
    assert "5 s" in row


@pytest.mark.parametrize(
    ("name", "before", "after", "output"),
    [
        ("mean@1", -0.0316, 0.062, ["-0.0316", "0.062"]),  # a reward that is no verdict, as of a classifier
        ("pass@1", 0.25, 1.0, ["25.0%", "100.0%"]),
        ("gain@2", -0.1, 0.35, ["-0.1", "0.35"]),
        ("sources/gsm8k/accuracy", 0.5, 0.3513, ["50.0%", "35.1%"]),
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


def test_of_what_is_measured_by_source_the_main_measure_is_a_result() -> None:
    made = Summary("")
    made.begin("policy", "policy", 1)
    figures = {"mean@4": 0.5, "pass@1": 0.5, "prompts": 64.0, "length": 9.0}
    metrics = {f"validation/{place}{name}": v for place in ("", "sources/gsm8k/") for name, v in figures.items()}
    made.add("policy", Update(1, metrics), 1.0)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table_of(made) if line.startswith("│")]
    assert [row[1:3] for row in cells if "sources" in row[1]] == [["sources/gsm8k/mean@4", "50.0%"]]


def table_of(made: Summary) -> list[str]:
    out = console(width=100)
    out.print(made.table())
    return text_of(out).splitlines()


def test_the_usage_of_models_adds_up_and_is_reported() -> None:
    before = {"judge": Usage(calls=1, prompt_tokens=10, tokens=5, cost=0.5), "old": Usage(cached=1)}
    now = {"judge": Usage(calls=1_000, retries=1, failed=2, tokens=1), "idle": Usage()}
    sums = add_usage(before, now)
    assert set(sums) == {"judge", "old"}
    assert usage_line(sums["judge"]) == "1,001 calls, 1 retried, 2 failed, 10 prompt and 6 completion tokens, cost 0.5"
    assert usage_line(sums["old"]) == "0 calls, 1 from the cache"
