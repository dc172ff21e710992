"""A job as a command: flags from its fields, reward and data from files, one result."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from cyclopts import App
from pydantic import Field

from rewardsmith import cli
from rewardsmith.jobs import Job, JobContext, Result
from rewardsmith.rewards.base import score
from rewardsmith.rewards.component import Component
from rewardsmith.trainers.settings import DataName, RewardChoice
from rewardsmith.types import Prompt, Rollout, RolloutGroup


class ScorePrompts(Job):
    """Score a fixed answer to every prompt."""

    arguments: ClassVar[tuple[str, ...]] = ("data", "answer")
    data: DataName = Field(description="the prompts")
    answer: str = Field(description="the answer to score")
    reward: RewardChoice = Field(description="what scores it")
    limit: int | None = Field(default=None, ge=1, description="only the first ones")
    order: Literal["forward", "back"] = Field(default="forward", description="of the prompts")
    marks: Annotated[tuple[str, ...], Field(strict=False)] = Field(default=(), description="repeated in the result")

    async def run(self, context: JobContext) -> Result:
        reward = Component.root(self.reward, context.log, context.model)
        prompts: list[Prompt] = list(context.source(self.data).prompts(0))[: self.limit]
        found = [await score(reward, RolloutGroup(p, (Rollout(self.answer),))) for p in prompts]
        values = [one.scores[0].value for one in found if one.scores[0].ok]
        context.progress("scoring", len(values), len(prompts))
        assert context.folder.is_dir()
        assert not context.fresh
        mean = sum(values) / max(1, len(values))
        failed = 1 - len(values) / max(1, len(prompts))
        return Result({"mean": mean, "seed": context.seed}, notes=list(self.marks), failed=failed)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Call the job as a command; return its exit status."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"What is {i}?", "reward_model": {"ground_truth": str(i)}} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.toml").write_text('type = "rule"\nrule = "exact"\n')
    app = App(name="rewardsmith", default_parameter=cli.app.default_parameter)
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "JOBS", {"score-prompts": f"{__name__}:ScorePrompts"})

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["rewardsmith", "score-prompts", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return int(caught.value.code or 0)

    return call


def test_flags_are_the_fields_of_the_job(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--help") == 0
    printed = capsys.readouterr().out
    for text in ("DATA", "ANSWER", "--limit", "--order", "forward", "--reward", "--fail-above", "--json", "--source"):
        assert text in printed, text


def test_a_job_runs_and_prints_json(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("rows.jsonl", "2", "--reward", "reward.toml", "--limit", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == {"mean": 0.25, "seed": 0}


def test_lists_notes_and_sources_with_settings(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("rows.jsonl", "2", "--reward", "reward.toml", "--source", "limit=2", "--marks", "a", "--marks", "b")
    assert command(*arguments) == 0
    assert capsys.readouterr().out.split() == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("rows.jsonl", "2", "--reward", "reward.toml", "--limit", "0"), "--limit"),
        (("rows.jsonl", "2", "--reward", "reward.toml", "--order", "forwards"), "forward"),
        (("rows.jsonl", "2", "--reward", "reward.toml", "--limt", "1"), "--limit"),
        (("rows.jsonl", "2", "--reward", "rewards.toml"), "reward.toml"),
        (("row.jsonl", "2", "--reward", "reward.toml"), "rows.jsonl"),
        (("rows.jsonl", "2", "--reward", "reward.toml", "--fail-above", "2"), "--fail-above"),
        (("rows.jsonl", "2"), "reward"),
        (("rows.jsonl", "2", "--reward", "reward.toml", "rul=exact"), "rule"),
    ],
)
def test_mistakes_name_the_flag_and_the_remedy(
    command: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    assert command(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert named in captured.err


def test_too_many_failures_end_with_status_1(command: Any, tmp_path: Path) -> None:
    rows = [{"prompt": "a", "reward_model": {"ground_truth": "2"}}, {"prompt": "b"}]
    (tmp_path / "half.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ("half.jsonl", "2", "--reward", "reward.toml", "--fail-above")
    assert command(*arguments, "0.4") == 1
    assert command(*arguments, "0.6") == 0
