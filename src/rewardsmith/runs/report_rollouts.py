"""The examples of a report: the groups at the two ends of a rollouts file, in a bounded form.

They are the first ones of their step in the order of the file, never chosen by their scores. All text was written by a
model and stays text: it is cut, and becomes a JSON string.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rewardsmith.records import from_json
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import NOT_COMPUTED, Prompt, Rollout, Score

MAX_END = 4_000_000  # bytes read at each end of a rollouts file
MAX_TEXT = 4_000  # characters shown of one text
MAX_FEEDBACK = 1_000  # characters shown of feedback, of the detail of a failure, and of the right answer
MAX_PAIRS = 6  # validation prompts shown before and after
MAX_TRAINING = 3  # training groups shown of the first and of the last step, and dropped ones
MAX_ROLLOUTS = 8  # rollouts shown of one group
MAX_MESSAGES = 12  # messages shown of one prompt
MAX_PARTS = 24  # parts shown of one score
MAX_TOKENS = 1_000  # tokens of one rollout that are coloured
MAX_COLOURED = 4  # parts of one score between which one can choose

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


def read_rollouts(path: Path) -> dict[str, Any]:
    """Return the examples and the counts of one stage as JSON values."""
    counts: Counter[str] = Counter()
    failures: Counter[tuple[str, str]] = Counter()
    drops: Counter[str] = Counter()
    parts: dict[str, None] = {}
    values = [0.0, 1.0]
    validation, training = _Ends(), _Ends()
    dropped: list[GroupRecord] = []
    whole = True
    for line in _lines_at_both_ends(path):
        if line is None:
            whole = False
            continue
        record = parse_line(line)
        if not record:
            counts["unread"] += bool(line.strip())
            continue
        read = from_json(GroupRecord, record)
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
                parts |= {name: None} if name else {}
                if part.failure is not None and part.failure.kind not in NOT_COMPUTED:
                    failures[name, part.failure.kind] += 1
    first, last = training.first[:MAX_TRAINING], [] if training.one_step else training.last[:MAX_TRAINING]
    others = [line for line in dropped if not any(line is one for one in (*first, *last))]
    return {
        "pairs": _pairs(validation),
        **{key: _groups(lines) for key, lines in (("first", first), ("last", last), ("dropped", others))},
        "failures": [[part, kind, count] for (part, kind), count in failures.most_common(60)],
        "drops": drops.most_common(20),
        "parts": list(parts)[:MAX_PARTS],
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


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line that we wrote; an empty one for a line that was cut off."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return {}


def number(value: object) -> float | int | None:
    """Return `value` with six digits, more than a screen shows; None when it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _pairs(ends: _Ends) -> list[dict[str, Any]]:
    """Return the first prompts of the validation set, each with its groups before and after training."""
    after = {} if ends.one_step else {line.scored.group.prompt.id: line for line in ends.last}
    pairs = []
    for first in ends.first[:MAX_PAIRS]:
        prompt = first.scored.group.prompt
        groups = [_group(line) for line in (first, after.get(prompt.id)) if line is not None]
        pairs.append({"prompt": _prompt(prompt), "groups": groups})
    return pairs


def _groups(lines: Iterable[GroupRecord]) -> list[dict[str, Any]]:
    return [_group(line) | {"prompt": _prompt(line.scored.group.prompt)} for line in lines]


def _group(line: GroupRecord) -> dict[str, Any]:
    group = line.scored.group
    advantages = [number(value) for value in line.advantages]
    advantages += [None] * (len(group.rollouts) - len(advantages))
    rows = list(zip(group.rollouts, line.scored.scores, advantages, strict=False))
    rollouts = [_rollout(*row) for row in rows[:MAX_ROLLOUTS]]
    return {
        "step": line.step,
        "dropped": line.dropped[:80],
        "rollouts": rollouts,
        "scales": _scales(one["rewards"] for one in rollouts),
        "more": max(0, len(rows) - MAX_ROLLOUTS),
    }


def _prompt(prompt: Prompt) -> dict[str, Any]:
    messages = prompt.messages[-MAX_MESSAGES:]  # the latest messages matter most
    answer = prompt.answer if isinstance(prompt.answer, str) else json.dumps(prompt.answer)
    return {
        "id": prompt.id[:200],
        "source": prompt.source[:200],
        "messages": [{"role": message.role[:40], **_cut(message.content)} for message in messages],
        "earlier": len(prompt.messages) - len(messages),
        "answer": None if prompt.answer is None else _cut(answer, MAX_FEEDBACK),
    }


def _rollout(rollout: Rollout, score: Score, advantage: float | None) -> dict[str, Any]:
    return {
        **_cut(rollout.text),
        **_verdict(score),
        "parts": [{"name": name[:100], **_verdict(part)} for name, part in islice(score.named_parts(), MAX_PARTS)],
        "advantage": advantage,
        "stop": rollout.stop_reason,
        "tokens": len(rollout.tokens),
        "rewards": token_rewards(rollout, score, MAX_TEXT),
    }


def _verdict(score: Score) -> dict[str, Any]:
    """Return a value or why there is none, and the feedback; `called` is False where the reward was not called."""
    failure = score.failure and {"kind": score.failure.kind, **_cut(score.failure.detail, MAX_FEEDBACK)}
    called = score.failure is None or score.failure.kind not in NOT_COMPUTED
    feedback = _cut(score.feedback, MAX_FEEDBACK) if score.feedback else None
    return {"value": number(score.value), "failure": failure, "called": called, "feedback": feedback}


def _cut(text: str, limit: int = MAX_TEXT) -> dict[str, Any]:
    return {"text": text[:limit], "cut": max(0, len(text) - limit)}


# ---- rewards of tokens ----------------------------------------------------------------------------------------------


def token_rewards(rollout: Rollout, score: Score, limit: int) -> dict[str, Any] | None:
    """Return the `sizes` in characters of the tokens in the first `limit` characters, and their rewards; None without.

    Each of `parts` has its `name`, the `sum` of all its rewards and the `values` of the tokens, with None for a token
    without a reward of its own.
    """
    if rollout.ends is None or not len(rollout.tokens):
        return None
    count = len(rollout.tokens)
    if len(rollout.text) > limit:  # a token is shown if the one before it ends within the limit
        count = min(count, 1 + int(np.searchsorted(rollout.ends, limit)))
    count = min(count, MAX_TOKENS)
    parts: list[dict[str, Any]] = []
    for name, part in (("reward", score), *score.named_parts()):
        if part.token_values is None or len(parts) == MAX_COLOURED:
            continue
        support = np.ones(len(part.token_values), np.bool_) if part.token_support is None else part.token_support
        if support[:count].any():
            shown = zip(part.token_values[:count].tolist(), support[:count].tolist(), strict=True)
            values = [_short(value) if carries else None for value, carries in shown]
            total = float(part.token_values.sum(where=support, dtype=np.float64))
            parts.append({"name": name[:100], "sum": _short(total), "values": values})
    sizes = np.diff(np.minimum(rollout.ends[:count], limit), prepend=0).tolist()
    return {"sizes": sizes, "parts": parts} if parts else None


def _scales(rollouts: Iterable[dict[str, Any] | None]) -> list[list[Any]]:
    """Return the name of each part of some `token_rewards`, and the largest absolute reward that it gave there."""
    found: dict[str, float] = {}
    for one in rollouts:
        for part in one["parts"] if one else ():
            largest = max((abs(value) for value in part["values"] if value is not None), default=0.0)
            found[part["name"]] = max(found.get(part["name"], 0.0), largest)
    return [[name, largest] for name, largest in islice(found.items(), MAX_COLOURED)]


def _short(value: float) -> float:
    return float(f"{value:.4g}") + 0.0  # more digits than a colour shows; no negative zero
