"""The run folder: the resolved recipe, metrics, rollouts, checkpoints. See docs/runs.md for its layout."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rewardsmith.errors import UserError
from rewardsmith.records import to_json
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import save
from rewardsmith.storage import damaged, new_folder, recover, remove, write_atomically, write_sums, writing
from rewardsmith.trainers.trainer import GroupRecord

CHECKPOINTS = "checkpoints"
EVALUATIONS = "evaluations"
AUDIT = "audit.json"
REPLAYS = "replays"
RECIPE = "recipe.toml"
METRICS = "metrics.jsonl"
LOCK = ".lock"
SUMMARY = "summary.json"
_FACTS = "checkpoint.json"
_REWARDS = ".rewards"


class RunFolder:
    """Files of one run. Use it inside `locked`, so that no two processes write to the same one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            (path / "rollouts").mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to the run folder {str(path)!r}: {error.strerror}") from None
        self._files: dict[str, IO[bytes]] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder; a `UserError` if another process does."""
        with writing(self.path):
            handle = (self.path / LOCK).open("w")
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"another process is running in {str(self.path)!r}: stop it, or use --folder") from None
            with writing(self.path):
                recover(self.path / CHECKPOINTS)
            try:
                yield
            finally:
                for file in self._files.values():
                    with suppress(OSError):  # what could not be written has been reported by then
                        file.close()
                self._files.clear()

    def log(self, stage: str, step: int, seconds: float, metrics: Mapping[str, float]) -> None:
        """Add a line of metrics."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        line = {"stage": stage, "step": step, "seconds": round(seconds, 3), "metrics": finite}
        self._append(METRICS, [json.dumps(line, allow_nan=False)])

    def keep(self, stage: str, records: Sequence[GroupRecord]) -> None:
        """Add groups to a stage's rollouts."""
        lines = [json.dumps(to_json(record), ensure_ascii=False, separators=(",", ":")) for record in records]
        self._append(f"rollouts/{stage}.jsonl", lines)

    def _append(self, name: str, lines: Sequence[str]) -> None:
        if name not in self._files:
            self._files[name] = (self.path / name).open("ab")
        with writing(self.path):
            self._files[name].write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
            self._files[name].flush()

    def _growing(self) -> dict[str, Path]:
        """Return the files that grow, by their names in the folder."""
        files = [self.path / METRICS, *(self.path / "rollouts").glob("*.jsonl")]
        return {str(file.relative_to(self.path)): file for file in files if file.exists()}

    def require_lengths(self, checkpoint: str, lengths: Mapping[str, int]) -> None:
        """Raise a `UserError` if a growing file has lost lines that it had at a checkpoint."""
        for name, length in lengths.items():
            file = self.path / name
            size = file.stat().st_size if file.exists() else 0
            if size < length:
                raise UserError(
                    f"{file} has {size:,} bytes, and had {length:,} when the checkpoint was written: restore the file,"
                    f" or remove {self.path / CHECKPOINTS / checkpoint} to resume from an earlier checkpoint"
                )

    def rewind(self, lengths: Mapping[str, int]) -> None:
        """Cut the growing files to what they were at a checkpoint: what came after it is done again."""
        for name, file in self._growing().items():
            os.truncate(file, lengths.get(name, 0))

    def keep_evaluations_of(self, stages: Sequence[str]) -> None:
        """Remove what other stages measured: those that come again, and those that the recipe no longer has."""
        for file in (self.path / EVALUATIONS).glob("*.json"):
            if file.stem not in stages:
                file.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Write a text file of the run."""
        with writing(self.path):
            write_atomically(self.path / name, text)

    def keep_evaluation(self, stage: str, content: dict[str, Any]) -> None:
        """Write what a stage measured: its numbers and tables."""
        with writing(self.path):
            (self.path / EVALUATIONS).mkdir(exist_ok=True)
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        self.write(f"{EVALUATIONS}/{stage}.json", text + "\n")

    def keep_audit(self, kind: str, name: str, content: dict[str, Any]) -> None:
        """Write what an audit or a watch has found, next to what others have."""
        everything = json.loads(self.read(AUDIT) or "{}")
        everything.setdefault(kind, {})[name] = content
        self.write(AUDIT, json.dumps(everything, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def read(self, name: str) -> str | None:
        """Return a text file of the run, or None if there is none."""
        file = self.path / name
        return file.read_text(encoding="utf-8") if file.exists() else None

    def save(
        self, name: str, facts: dict[str, Any], models: Mapping[str, Any], reward: Component | None = None
    ) -> None:
        """Write a checkpoint atomically: facts as JSON, models, what online rewards have learned, and hashes."""
        with writing(self.path), new_folder(self.path / CHECKPOINTS / name) as folder:
            for model, engine in models.items():
                engine.save(folder / model)
            if reward is not None:
                save(reward, folder / _REWARDS)
            for file in self._files.values():
                os.fsync(file.fileno())
            lengths = {name: file.stat().st_size for name, file in self._growing().items()}
            facts = facts | {"lengths": lengths, "models": sorted(models)}
            (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
            write_sums(folder)

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints, oldest first."""
        folders = (self.path / CHECKPOINTS).iterdir()
        return sorted(f.name for f in folders if not f.name.startswith(".") and (f / _FACTS).exists())

    def require_intact(self, name: str) -> None:
        """Raise a `UserError` if a file of a checkpoint has changed since it was written."""
        if problem := damaged(self.path / CHECKPOINTS / name):
            raise UserError(f"{problem}: remove that folder to resume from an earlier one")

    def facts(self, name: str) -> dict[str, Any]:
        """Return the facts of a checkpoint."""
        try:
            return dict(json.loads((self.path / CHECKPOINTS / name / _FACTS).read_bytes()))
        except ValueError:  # a damaged file need not be JSON any more
            self.require_intact(name)
            raise

    def model(self, checkpoint: str, name: str) -> Path:
        """Return the folder of a model in a checkpoint."""
        return self.path / CHECKPOINTS / checkpoint / name

    def rewards(self, checkpoint: str) -> Path:
        """Return the folder of what online rewards had learned; it is there only if one had."""
        return self.path / CHECKPOINTS / checkpoint / _REWARDS

    def prune(self, kept: set[str]) -> None:
        """Remove all checkpoints but these."""
        for name in self.checkpoints():
            if name not in kept:
                remove(self.path / CHECKPOINTS / name)

    def clear(self) -> None:
        """Forget a run that never came to a checkpoint."""
        self.rewind({})
        (self.path / AUDIT).unlink(missing_ok=True)
        for name in ("references", EVALUATIONS, REPLAYS):
            shutil.rmtree(self.path / name, ignore_errors=True)
