"""The examples of a report: what a rollouts file says at its two ends, in a bounded form.

The groups shown are the first ones of their step in the order of the file, never chosen by their scores. All text in
them was written by a model and stays text: it is cut, and handed on as a JSON string.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.records import from_json
from rewardsmith.runs.report_metrics import is_step, number, parsed
from rewardsmith.runs.report_tokens import Room, scales, token_rewards
from rewardsmith.types import NOT_ASKED, Prompt, Rollout, Score, ScoredGroup

MAX_END = 4_000_000
"""Bytes read at each end of a rollouts file."""

MAX_TEXT = 4_000
"""Characters shown of one text."""

MAX_FEEDBACK = 1_000
"""Characters shown of what a judge or a failure said, and of the right answer."""

MAX_PAIRS = 6
"""Validation prompts shown before and after."""

MAX_TRAINING = 3
"""Training groups shown of the first and of the last step, and dropped ones."""

MAX_ROLLOUTS = 8
"""Rollouts shown of one group."""

MAX_MESSAGES = 12
"""Messages shown of one prompt."""

MAX_PARTS = 24
"""Parts shown of one score."""

_MAX_HELD = 64


@dataclass(frozen=True)
class _Line:
    step: int
    kind: str
    dropped: str
    scored: ScoredGroup
    advantages: list[Any]


@dataclass
class _Ends:
    """The groups of the first and of the last step of one kind."""

    first: list[_Line] = field(default_factory=list)
    last: list[_Line] = field(default_factory=list)

    def add(self, line: _Line) -> None:
        if not self.first or (line.step == self.first[0].step and len(self.first) < _MAX_HELD):
            self.first.append(line)
        if self.last and line.step != self.last[0].step:
            self.last.clear()
        if len(self.last) < _MAX_HELD:
            self.last.append(line)

    @property
    def one_step(self) -> bool:
        return bool(self.first) and self.first[0].step == self.last[0].step


@dataclass
class _Tally:
    """What is counted over every group that was read."""

    groups: int = 0
    rollouts: int = 0
    truncated: int = 0
    unread: int = 0
    low: float = 0.0
    high: float = 1.0
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    parts: dict[str, None] = field(default_factory=dict)

    def add(self, line: _Line) -> None:
        self.groups += 1
        self.rollouts += len(line.scored.scores)
        self.truncated += sum(rollout.stop_reason == "length" for rollout in line.scored.group.rollouts)
        if line.dropped:
            self.drops[line.dropped] += 1
        for score in line.scored.scores:
            if score.value is not None:
                self.low, self.high = min(self.low, score.value), max(self.high, score.value)
            for name, part in (("", score), *score.named_parts()):
                if name and len(self.parts) < MAX_PARTS:
                    self.parts[name] = None
                if part.failure is not None and part.failure.kind not in NOT_ASKED:
                    self.failures[name, part.failure.kind] += 1


def read_rollouts(path: Path, room: Room) -> dict[str, Any]:
    """Return the examples and the counts of one stage as plain JSON values.

    Args:
        path: a rollouts file.
        room: how much it may tell of the rewards of tokens.
    """
    tally = _Tally()
    validation, training = _Ends(), _Ends()
    dropped: list[_Line] = []
    whole = True
    for line in _lines_at_both_ends(path):
        if line is None:
            whole = False
            continue
        read = _read(line)
        if read is None:
            tally.unread += bool(line.strip())
            continue
        tally.add(read)
        (validation if read.kind == "validation" else training).add(read)
        if read.dropped:
            dropped = [*dropped, read][-MAX_TRAINING:]
    shown = {id(line) for line in (*training.first[:MAX_TRAINING], *training.last[:MAX_TRAINING])}
    return {
        "pairs": _pairs(validation, room),
        "first": _groups(training.first[:MAX_TRAINING], room),
        "last": [] if training.one_step else _groups(training.last[:MAX_TRAINING], room),
        "dropped": _groups([line for line in dropped if id(line) not in shown], room),
        "failures": [[part, kind, count] for (part, kind), count in tally.failures.most_common(60)],
        "drops": [[_cut(reason, 80)["text"], count] for reason, count in tally.drops.most_common(20)],
        "parts": list(tally.parts),
        "groups": tally.groups,
        "rollouts": tally.rollouts,
        "truncated": tally.truncated,
        "unread": tally.unread,
        "low": number(tally.low),
        "high": number(tally.high),
        "whole": whole,
        "plain": room.refused,
    }


def _lines_at_both_ends(path: Path) -> Iterator[bytes | None]:
    """Yield the lines in the first and in the last `MAX_END` bytes, with None where some were passed over."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= 2 * MAX_END:
                yield from file.read(2 * MAX_END).split(b"\n")
                return
            # Both pieces start or end within a line, most likely; the piece of it is no damage and is left out.
            yield from file.read(MAX_END).split(b"\n")[:-1]
            yield None
            file.seek(size - MAX_END)
            yield from file.read(MAX_END).split(b"\n")[1:]
    except OSError:
        return


def _read(line: bytes) -> _Line | None:
    record = parsed(line)
    step, kind, dropped, advantages = (record.get(key) for key in ("step", "kind", "dropped", "advantages"))
    if not is_step(step):
        return None
    try:
        scored = from_json(ScoredGroup, record.get("scored"))
    except (UserError, RecursionError):
        return None
    return _Line(
        step=int(str(step)),
        kind=kind if isinstance(kind, str) else "",
        dropped=dropped if isinstance(dropped, str) else "",
        scored=scored,
        advantages=advantages if isinstance(advantages, list) else [],
    )


def _pairs(ends: _Ends, room: Room) -> list[dict[str, Any]]:
    """Return the first prompts of the validation set, each with its groups before and after training."""
    if ends.one_step:
        return [_pair(line, None, room) for line in ends.first[:MAX_PAIRS]]
    after = {line.scored.group.prompt.id: line for line in ends.last}
    both = [(line, after[key]) for line in ends.first if (key := line.scored.group.prompt.id) in after]
    if both:
        return [_pair(first, last, room) for first, last in both[:MAX_PAIRS]]
    half = MAX_PAIRS // 2
    return [_pair(line, None, room) for line in (*ends.first[:half], *ends.last[:half])]


def _pair(first: _Line, last: _Line | None, room: Room) -> dict[str, Any]:
    groups = [_group(line, room) for line in (first, last) if line is not None]
    return {"prompt": _prompt(first.scored.group.prompt), "groups": groups}


def _groups(lines: list[_Line], room: Room) -> list[dict[str, Any]]:
    return [_group(line, room) | {"prompt": _prompt(line.scored.group.prompt)} for line in lines]


def _group(line: _Line, room: Room) -> dict[str, Any]:
    group = line.scored.group
    advantages = [number(value) for value in line.advantages]
    advantages += [None] * (len(group.rollouts) - len(advantages))
    rows = list(zip(group.rollouts, line.scored.scores, advantages, strict=False))
    rollouts = [_rollout(*row, room) for row in rows[:MAX_ROLLOUTS]]
    return {
        "step": line.step,
        "dropped": _cut(line.dropped, 80)["text"],
        "rollouts": rollouts,
        "scales": scales(one["rewards"] for one in rollouts),
        "more": max(0, len(rows) - MAX_ROLLOUTS),
    }


def _prompt(prompt: Prompt) -> dict[str, Any]:
    # The latest messages say most about what was asked.
    messages = prompt.messages[-MAX_MESSAGES:]
    answer = prompt.answer if isinstance(prompt.answer, str) else json.dumps(prompt.answer)
    return {
        "id": prompt.id[:200],
        "source": prompt.source[:200],
        "messages": [{"role": message.role[:40], **_cut(message.content)} for message in messages],
        "earlier": len(prompt.messages) - len(messages),
        "answer": None if prompt.answer is None else _cut(answer, MAX_FEEDBACK),
    }


def _rollout(rollout: Rollout, score: Score, advantage: float | None, room: Room) -> dict[str, Any]:
    return {
        **_cut(rollout.text),
        **_verdict(score),
        "parts": [{"name": name[:100], **_verdict(part)} for name, part in list(score.named_parts())[:MAX_PARTS]],
        "advantage": advantage,
        "stop": rollout.stop_reason,
        "tokens": len(rollout.tokens),
        "rewards": token_rewards(rollout, score, MAX_TEXT, room),
    }


def _verdict(score: Score) -> dict[str, Any]:
    """Return a value or why there is none, and what was said about it.

    `asked` is False where nothing went wrong, but nobody was asked.
    """
    failure = score.failure and {"kind": score.failure.kind, **_cut(score.failure.detail, MAX_FEEDBACK)}
    asked = score.failure is None or score.failure.kind not in NOT_ASKED
    feedback = _cut(score.feedback, MAX_FEEDBACK) if score.feedback else None
    return {"value": number(score.value), "failure": failure, "asked": asked, "feedback": feedback}


def _cut(text: str, limit: int = MAX_TEXT) -> dict[str, Any]:
    return {"text": text[:limit], "cut": max(0, len(text) - limit)}
