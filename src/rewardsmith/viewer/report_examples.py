"""The examples of a report: the groups at the two ends of a rollouts file.

They are the first ones of their step in the order of the file, never chosen by their scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.records import from_json
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import NOT_COMPUTED
from rewardsmith.viewer.rollout_view import IN_REPORT, group_view, number, parse_line

MAX_END = 4_000_000  # bytes read at each end of a rollouts file
MAX_PAIRS = 6  # validation prompts shown before and after
MAX_TRAINING = 3  # training groups shown of the first and of the last step, and dropped ones

_MAX_HELD = 64


@dataclass
class _Ends:
    """The groups of the first and of the last step of one kind."""

    first: list[GroupRecord] = field(default_factory=list)
    last: list[GroupRecord] = field(default_factory=list)

    def add(self, line: GroupRecord) -> None:
        if not self.first or (line.step == self.first[0].step and len(self.first) < _MAX_HELD):
            self.first.append(line)
        if self.last and line.step != self.last[0].step:
            self.last.clear()
        if len(self.last) < _MAX_HELD:
            self.last.append(line)

    @property
    def one_step(self) -> bool:
        return bool(self.first) and self.first[0].step == self.last[0].step


def read_examples(path: Path) -> dict[str, Any]:
    """Return the examples and the counts of one stage as JSON values."""
    counts: Counter[str] = Counter()
    failures: Counter[tuple[str, str]] = Counter()
    drops: Counter[str] = Counter()
    values = [0.0, 1.0]
    validation, training = _Ends(), _Ends()
    dropped: list[GroupRecord] = []
    whole = True
    for line in _lines_at_both_ends(path):
        if line is None:
            whole = False
            continue
        try:
            read = from_json(GroupRecord, parse_line(line))
        except UserError:
            counts["unread"] += bool(line.strip())
            continue
        (validation if read.kind == "validation" else training).add(read)
        if read.dropped:
            dropped = [*dropped, read][-MAX_TRAINING:]
            drops[read.dropped[:80]] += 1
        counts["groups"] += 1
        counts["rollouts"] += len(read.scored.scores)
        counts["truncated"] += sum(rollout.stop_reason == "length" for rollout in read.scored.group.rollouts)
        for score in read.scored.scores:
            values = [min(values[0], score.value), max(values[1], score.value)] if score.value is not None else values
            for name, part in (("", score), *score.named_parts()):
                if part.failure is not None and part.failure.kind not in NOT_COMPUTED:
                    failures[name, part.failure.kind] += 1
    first, last = training.first[:MAX_TRAINING], [] if training.one_step else training.last[:MAX_TRAINING]
    others = [line for line in dropped if not any(line is one for one in (*first, *last))]
    shown = {"first": first, "last": last, "dropped": others}
    return {
        "pairs": [[group_view(line, IN_REPORT) for line in pair] for pair in _pairs(validation)],
        **{key: [group_view(line, IN_REPORT) for line in lines] for key, lines in shown.items()},
        "failures": [[part, kind, count] for (part, kind), count in failures.most_common(60)],
        "drops": drops.most_common(20),
        **{name: counts[name] for name in ("groups", "rollouts", "truncated", "unread")},
        "low": number(values[0]),
        "high": number(values[1]),
        "whole": whole,
    }


def _lines_at_both_ends(path: Path) -> Iterator[bytes | None]:
    """Yield the lines in the first and in the last `MAX_END` bytes, with None where some were passed over."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= 2 * MAX_END:
            yield from file.read().split(b"\n")
            return
        # Both pieces start or end within a line, most likely; the piece of it is no damage and is left out.
        yield from file.read(MAX_END).split(b"\n")[:-1]
        yield None
        file.seek(size - MAX_END)
        yield from file.read(MAX_END).split(b"\n")[1:]


def _pairs(ends: _Ends) -> Iterator[list[GroupRecord]]:
    """Yield the groups of the first prompts of the validation set, each before and after training."""
    after = {} if ends.one_step else {line.scored.group.prompt.id: line for line in ends.last}
    for first in ends.first[:MAX_PAIRS]:
        last = after.get(first.scored.group.prompt.id)
        yield [first] if last is None else [first, last]
