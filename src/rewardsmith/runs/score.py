"""`rewardsmith score`: score stored rollouts with any reward."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import Field

from rewardsmith import __version__
from rewardsmith.config import Chosen
from rewardsmith.console import Columns, Table, count_of, format_seconds, format_share
from rewardsmith.data.rows import printable
from rewardsmith.engines.model_settings import INCIDENTAL
from rewardsmith.errors import UserError
from rewardsmith.jobs import JobContext, Result
from rewardsmith.recipe import explain, places
from rewardsmith.records import dumps, from_json
from rewardsmith.rewards.base import Halt, score
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.measure import Measured, quantiles
from rewardsmith.rewards.tree import check, latencies
from rewardsmith.runs.folder import RECIPE, REPLAYS
from rewardsmith.runs.lookup import named_models
from rewardsmith.runs.reward_comparison import RewardComparison
from rewardsmith.runs.score_statistics import OutcomeTally, component_name
from rewardsmith.runs.stored_rollouts import RolloutJob, StoredGroup, StoredRollouts
from rewardsmith.storage import ResumableJsonl, changes, write_atomically, writing
from rewardsmith.trainers.evaluate.scorer import FailureLog, run_in_order
from rewardsmith.trainers.settings import RewardChoice
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import ScoredGroup
from rewardsmith.viewer.report import write_report

MAIN = ("cosine", "cosine_below_half", "cosine_below_0", "flipped_share")
"""Metrics of a replay by which replays are compared."""

REMEDY = "add --fresh to start again, or name another file with --out"

# When a reward gives up does not change a score: these may differ between two starts.
_BUDGETS = ("failure.share", "failure.window", "failure.min_failures", "failure.wait", ".deadline")


class ScoreRollouts(RolloutJob):
    """Score stored rollouts with a reward, and show how each of its components did.

    ROLLOUTS is a run folder, one file of its `rollouts/`, a file that this command wrote, or a table in the schema of
    docs/data.md with a list of `responses` in each row, or one `response`.

    Does a reward still give the scores of the run?
    `rewardsmith score runs/quickstart --reward quickstart:policy --compare`

    What would another weight have done, in rewards and in advantages?
    `rewardsmith score runs/mix --reward mix.toml:policy stages.policy.reward.parts.judge.weight=0.3 --compare`

    And another estimator? The stored scores are enough: `rewardsmith score runs/mix --compare --estimator rloo`

    Score the answers of another system, and save the scores; after Ctrl-C or a crash the same command resumes:
    `rewardsmith score answers.parquet --reward reward.toml --out scores.jsonl`

    Does a process reward model predict which answers are right?
    `rewardsmith score runs/prime --reward runs/prime:policy.reward.parts.process --outcome answer`
    """

    reward: RewardChoice | None = Field(
        default=None,
        description="what scores them; with --compare and --estimator it may be left out: the stored scores",
    )
    out: Path | None = Field(default=None, description="save the scores in this JSONL file; the same command resumes")
    compare: bool = Field(default=False, description="compare with the stored rewards")
    max_changes: int = Field(default=10, ge=0, description="with --compare: how many rollouts and groups to list")
    estimator: str | None = Field(
        default=None,
        description='with --compare: the advantage estimator of the new side, by name or as { type = "grpo", … };'
        " not set: that of the run",
    )
    part: str | None = Field(
        default=None, description="with --compare: compare this part with the same part of the stored scores"
    )
    keep: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}$",
        description="with --compare: write the tables under this name into the run folder, for report and viewer",
    )
    outcome: str | None = Field(
        default=None,
        description="part of the new or the stored scores (reward: the whole stored score) that the reward should"
        " predict: pairs in order, best of n",
    )
    concurrency: int = Field(default=32, ge=1, description="groups that are scored at a time")

    async def run(self, context: JobContext) -> Result:
        """Score all groups, or those that an earlier start has left."""
        self._require_flags()
        rollouts = StoredRollouts(self)
        reward = None if self.reward is None else context.reward(self.reward)
        results = None if self.out is None else _results_file(self.out, rollouts.files)
        if context.fresh and results is None:
            raise UserError("--fresh is about the file of --out: name one, or leave it out")
        tally = ScoreTally(self, reward, rollouts.files)
        total = rollouts.count()
        for text in rollouts.incomplete:
            context.log(text)
        with nullcontext() if results is None else results.open(fresh=context.fresh):
            groups = self._with_scores(rollouts)
            if results is not None and self.reward is not None:
                results.claim(_provenance(self.reward, context.model_tables), _differences)
                for stored, scored in _saved(results, groups):
                    tally.add(stored, scored)
            first = next(groups, None)
            if first is not None:
                if reward is not None:
                    if tally.outcome is not None:
                        tally.outcome.require(reward, first.scores)  # before models are loaded
                    await check(reward)
                groups = chain([first], groups)
            tally.begin()

            def keep(stored: StoredGroup, scored: ScoredGroup) -> None:
                if results is not None:
                    results.append(dumps(stored.rescored(scored)))
                tally.add(stored, scored)
                context.progress("scoring", tally.groups, total, unit="groups")

            try:
                await run_in_order(
                    groups,
                    partial(_score, reward),
                    keep,
                    concurrency=self.concurrency,
                    pause=context.pause,
                )
            except Halt as error:
                for line in tally.failures.lines():
                    context.log(line)
                remedy = "With --out FILE" if results is None else f"{results.file} has what is scored:"
                after = count_of(tally.groups, "group")
                raise Halt(f"{error}\nThat was after {after}. {remedy} the same command resumes") from None
            result = tally.result()
            return result if self.keep is None else keep_replay(Path(self.rollouts), self.keep, result)

    def _require_flags(self) -> None:
        """Raise a `UserError` where flags do not go together."""
        if not self.compare:
            for flag in ("estimator", "part", "keep"):
                if getattr(self, flag) is not None:
                    raise UserError(f"--{flag} is about a comparison with the stored rewards: add --compare")
        if self.reward is None and (self.estimator is None or self.out is not None or self.outcome is not None):
            raise UserError(
                "--reward is not set: name what scores the rollouts, such as RECIPE:STAGE. Only --compare --estimator"
                " NAME goes without, on the stored scores"
            )
        if self.keep is not None and not (Path(self.rollouts).expanduser() / RECIPE).is_file():
            raise UserError(f"--keep writes into a run folder, and {self.rollouts!r} is none: leave it out")

    def _with_scores(self, rollouts: StoredRollouts) -> Iterator[StoredGroup]:
        for stored in rollouts:
            if self.compare and stored.scores is None:
                raise UserError(f"{stored.place}: no reward is stored there, and --compare needs one: leave it out")
            yield stored


async def _score(reward: Component | None, stored: StoredGroup) -> ScoredGroup:
    """Score a group; without a reward its scores are the stored ones."""
    if reward is None:
        return ScoredGroup(stored.group, stored.scores or ())
    return await score(reward, stored.group)


def keep_replay(run: Path, name: str, result: Result) -> Result:
    """Write a comparison into a run folder, where report and viewer find it."""
    folder = run.expanduser() / REPLAYS
    with writing(run):
        folder.mkdir(exist_ok=True)
        content = {"name": name, "kind": "replay", "main": MAIN, **result.as_json()}
        write_atomically(folder / f"{name}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        report = write_report(run.expanduser())
    note = f"written to {folder / f'{name}.json'}: {report} and `rewardsmith view` show it"
    return replace(result, notes=[*result.notes, note])


# ---- the results file ----------------------------------------------------------------------------------------------


def _results_file(file: Path, sources: list[Path]) -> ResumableJsonl:
    if file.is_dir() or file.suffix.lower() == ".parquet":
        raise UserError(f"--out {str(file)!r}: scores are written as JSON lines; name a .jsonl file")
    for source in sources:
        in_run = source.parent.name == "rollouts" and file.resolve().parent == source.resolve().parent
        if in_run or file.resolve() == source.resolve():
            raise UserError(f"--out {str(file)!r} would change what is read: name a file in another folder")
    return ResumableJsonl(file, remedy=REMEDY)


def _provenance(chosen: Chosen, models: Mapping[str, Chosen]) -> dict[str, Any]:
    """Return what scores depend on: version, reward, its models, and a digest of each user file `module:Name` in it."""
    reward = tomllib.loads(explain(chosen))
    for name, model in named_models(chosen, models).items():
        table = tomllib.loads(explain(model))
        reward.setdefault("models", {})[name] = {k: v for k, v in table.items() if k not in INCIDENTAL}
    own = [(c.name, c.target) for _, c in places(chosen) if isinstance(c, Chosen) and ":" in c.name]
    note = {"rewardsmith": __version__, "reward": reward, "code": {name: _digest(target) for name, target in own}}
    values: dict[str, Any] = json.loads(json.dumps(note, default=str))  # JSON has no dates
    return values


def _digest(target: Any) -> str:
    try:
        return hashlib.sha256(Path(inspect.getfile(target)).read_bytes()).hexdigest()
    except (OSError, TypeError):  # it has no file of its own
        return ""


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for path, change in changes(before, now).items():
        if path.startswith("code."):
            if "not set" in change:  # then the reward has changed too
                continue
            yield f"the file of {path.removeprefix('code.')} has changed"
        elif not path.endswith(_BUDGETS):
            yield f"{path}: {printable(change, 300)}"


def _saved(results: ResumableJsonl, groups: Iterator[StoredGroup]) -> Iterator[tuple[StoredGroup, ScoredGroup]]:
    """Yield the groups that have scores already, which are the first ones of `groups`."""
    for i, (_, entry) in enumerate(results.entries(), start=1):
        stored = next(groups, None)
        scored = from_json(GroupRecord, entry).scored if "scored" in entry else from_json(ScoredGroup, entry)
        if stored is None or scored.group != stored.group:
            raise UserError(
                f"{printable(str(results.file), 200)}, entry {i}: the rollouts, or the selection of them, have changed:"
                f" {REMEDY}"
            )
        yield stored, scored


# ---- the result ----------------------------------------------------------------------------------------------------


class ScoreTally:
    """Statistics of the groups as they come in; constant memory, but for `--compare`."""

    def __init__(self, job: ScoreRollouts, reward: Component | None, files: Sequence[Path]) -> None:
        self._reward = reward
        self._concurrency = job.concurrency
        self._comparison: RewardComparison | None = None
        if job.compare:
            self._comparison = RewardComparison(
                reward, max_changes=job.max_changes, estimator=job.estimator, part=job.part
            )
            self._comparison.require(files)
        self._rollouts = self._unscored = 0
        self.failures = FailureLog()
        self.outcome = OutcomeTally(job.outcome) if job.outcome is not None else None
        self.groups = 0
        self.begin()

    def begin(self) -> None:
        """Take the groups so far as the results of an earlier start."""
        self._resumed_groups, self._resumed_rollouts = self.groups, self._rollouts
        self._begun = self._ended = time.perf_counter()

    def add(self, stored: StoredGroup, scored: ScoredGroup) -> None:
        """Count a group."""
        self.groups += 1
        self._rollouts += len(scored.scores)
        self._unscored += sum(not one.ok for one in scored.scores)
        self.failures.add(scored)
        if self._comparison is not None and stored.scores is not None:
            self._comparison.add(stored, scored.scores)
        if self.outcome is not None:
            self.outcome.add(stored.scores, scored.scores)
        self._ended = time.perf_counter()

    def result(self) -> Result:
        """Return the statistics as tables and JSON values."""
        measured = self.failures.measures.result()
        taken = {} if self._reward is None else latencies(self._reward)
        seconds = {name: quantiles(each) for name, each in taken.items()}
        now = self._rollouts - self._resumed_rollouts
        rate = now / max(1e-9, self._ended - self._begun) if now else None
        by_name = {
            name: {**asdict(one), "seconds_per_group": dict(seconds.get(name, {}))} for name, one in measured.items()
        }
        facts: dict[str, Any] = {
            "groups": self.groups,
            "rollouts": self._rollouts,
            "unscored": self._unscored,
            "resumed": self._resumed_groups,
            "reward": by_name.pop("", None),
            "parts": by_name,
            "concurrency": self._concurrency,
            "rollouts_per_second": rate,
            "details": self.failures.details,
        }
        tables = [_components(measured, seconds)]
        if self._comparison is not None:
            facts["compared"], compared = self._comparison.result()
            tables += compared
        if self.outcome is not None:
            facts["outcome"], outcome = self.outcome.result()
            tables.append(outcome)
        notes = [*self.failures.lines(), self._pace(seconds.get("", {}), rate)]
        if self._unscored:
            notes.append(f"{self._unscored:,} of {count_of(self._rollouts, 'rollout')} without a score")
        metrics = {f"{name or 'reward'}/mean": one.mean for name, one in measured.items() if one.mean is not None}
        replayed = facts.get("compared", {}).get("replay", {})
        metrics |= {name: replayed[name] for name in MAIN if replayed.get(name) is not None}
        return Result(metrics, tables, notes, facts, self._unscored / max(1, self._rollouts))

    def _pace(self, seconds: Mapping[str, float], rate: float | None) -> str:
        groups = count_of(self.groups, "group")
        if self._reward is None:
            return f"{groups} with their stored scores"
        if rate is None:
            return f"{groups}, all scored before"
        before = f", {self._resumed_groups:,} of them scored before" if self._resumed_groups else ""
        times = ", ".join(f"{name} {format_seconds(value)}" for name, value in seconds.items())
        return f"{groups}{before}; {rate:,.0f} rollouts/s; a group took {times} ({self._concurrency} at a time)"


def _components(measured: Mapping[str, Measured], seconds: Mapping[str, Mapping[str, float]]) -> Table:
    columns: Columns = {
        "component": "text", "rollouts": "count", "mean": "number", "spread": "number", "failed": "text",
        "skipped": "share", "dropped": "share", "flat": "share", "p50": "text", "p99": "text",
    }  # fmt: skip
    skips, drops = (any(getattr(one, kind) for one in measured.values()) for kind in ("skipped", "dropped"))
    rows = []
    for name, one in measured.items():
        times = seconds.get(name, {}) if len(measured) > 1 else {}  # the times of the whole are in a note
        failed = ", ".join(f"{kind} {format_share(share)}" for kind, share in one.failed.items()) or "none"
        shares = (one.skipped if skips else None, one.dropped if drops else None, one.flat)
        latency = (format_seconds(times[at]) if at in times else "" for at in ("p50", "p99"))
        rows.append((component_name(name), one.rollouts, one.mean, one.spread, failed, *shares, *latency))
    return Table("", columns, rows)
