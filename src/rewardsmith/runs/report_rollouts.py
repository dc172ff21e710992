"""The examples of a report: the groups at the two ends of a rollouts file, in a bounded form.

They are the first ones of their step in the order of the file, never chosen by their scores. All text was written by a
model and stays text: it is cut, and becomes a JSON string.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
MAX_TOKENS = 2_000  # pieces of one rollout that are coloured; the rest of its text stays plain
MAX_COLOURED = 6  # parts of one score between which one can choose
MAX_ALL_VALUES = 300_000  # numbers about tokens in a whole report; its stages share them
DIGITS = 4  # digits of a reward that are kept, which is more than a colour shows

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


@dataclass
class _Counts:
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

    def add(self, line: GroupRecord) -> None:
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
                if part.failure is not None and part.failure.kind not in NOT_COMPUTED:
                    self.failures[name, part.failure.kind] += 1


def read_rollouts(path: Path, budget: TokenBudget) -> dict[str, Any]:
    """Return the examples and the counts of one stage as JSON values."""
    tally = _Counts()
    validation, training = _Ends(), _Ends()
    dropped: list[GroupRecord] = []
    whole = True
    for line in _lines_at_both_ends(path):
        if line is None:
            whole = False
            continue
        record = parse_line(line)
        if not record:
            tally.unread += bool(line.strip())
            continue
        read = from_json(GroupRecord, record)
        tally.add(read)
        (validation if read.kind == "validation" else training).add(read)
        if read.dropped:
            dropped = [*dropped, read][-MAX_TRAINING:]
    shown = {id(line) for line in (*training.first[:MAX_TRAINING], *training.last[:MAX_TRAINING])}
    return {
        "pairs": _pairs(validation, budget),
        "first": _groups(training.first[:MAX_TRAINING], budget),
        "last": [] if training.one_step else _groups(training.last[:MAX_TRAINING], budget),
        "dropped": _groups([line for line in dropped if id(line) not in shown], budget),
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
        "plain": budget.refused,
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


def _pairs(ends: _Ends, budget: TokenBudget) -> list[dict[str, Any]]:
    """Return the first prompts of the validation set, each with its groups before and after training."""
    if ends.one_step:
        return [_pair(line, None, budget) for line in ends.first[:MAX_PAIRS]]
    after = {line.scored.group.prompt.id: line for line in ends.last}
    both = [(line, after[key]) for line in ends.first if (key := line.scored.group.prompt.id) in after]
    if both:
        return [_pair(first, last, budget) for first, last in both[:MAX_PAIRS]]
    half = MAX_PAIRS // 2
    return [_pair(line, None, budget) for line in (*ends.first[:half], *ends.last[:half])]


def _pair(first: GroupRecord, last: GroupRecord | None, budget: TokenBudget) -> dict[str, Any]:
    groups = [_group(line, budget) for line in (first, last) if line is not None]
    return {"prompt": _prompt(first.scored.group.prompt), "groups": groups}


def _groups(lines: list[GroupRecord], budget: TokenBudget) -> list[dict[str, Any]]:
    return [_group(line, budget) | {"prompt": _prompt(line.scored.group.prompt)} for line in lines]


def _group(line: GroupRecord, budget: TokenBudget) -> dict[str, Any]:
    group = line.scored.group
    advantages = [number(value) for value in line.advantages]
    advantages += [None] * (len(group.rollouts) - len(advantages))
    rows = list(zip(group.rollouts, line.scored.scores, advantages, strict=False))
    rollouts = [_rollout(*row, budget) for row in rows[:MAX_ROLLOUTS]]
    return {
        "step": line.step,
        "dropped": _cut(line.dropped, 80)["text"],
        "rollouts": rollouts,
        "scales": scales(one["rewards"] for one in rollouts),
        "more": max(0, len(rows) - MAX_ROLLOUTS),
    }


def _prompt(prompt: Prompt) -> dict[str, Any]:
    # The latest messages matter most.
    messages = prompt.messages[-MAX_MESSAGES:]
    answer = prompt.answer if isinstance(prompt.answer, str) else json.dumps(prompt.answer)
    return {
        "id": prompt.id[:200],
        "source": prompt.source[:200],
        "messages": [{"role": message.role[:40], **_cut(message.content)} for message in messages],
        "earlier": len(prompt.messages) - len(messages),
        "answer": None if prompt.answer is None else _cut(answer, MAX_FEEDBACK),
    }


def _rollout(rollout: Rollout, score: Score, advantage: float | None, budget: TokenBudget) -> dict[str, Any]:
    return {
        **_cut(rollout.text),
        **_verdict(score),
        "parts": [{"name": name[:100], **_verdict(part)} for name, part in list(score.named_parts())[:MAX_PARTS]],
        "advantage": advantage,
        "stop": rollout.stop_reason,
        "tokens": len(rollout.tokens),
        "rewards": token_rewards(rollout, score, MAX_TEXT, budget),
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


@dataclass
class TokenBudget:
    """How many numbers one stage may still show, and how many rollouts stay uncoloured because it was spent."""

    values: int = MAX_ALL_VALUES
    refused: int = 0

    def take(self, count: int) -> bool:
        """Take `count` numbers, or none at all; a rollout is coloured as a whole or not."""
        if count > self.values:
            self.refused += 1
            return False
        self.values -= count
        return True


def token_rewards(rollout: Rollout, score: Score, limit: int, budget: TokenBudget) -> dict[str, Any] | None:
    """Return the first `limit` characters of a rollout in pieces, and the rewards of each piece; None without any.

    `sizes` and `counts` [n] are the characters and the tokens of each piece, and each of `parts` has its `name`, the
    `sum` of all its rewards and the `values` [n] of the pieces; a piece without a reward of its own has None.
    """
    if rollout.ends is None or not len(rollout.tokens):
        return None
    scores = (("reward", score), *score.named_parts())
    parts = list(islice(((name, part) for name, part in scores if part.token_values is not None), MAX_COLOURED))
    supports = [_support(part) for _, part in parts]
    bounds = _bounds(rollout, supports, limit)
    first = bounds[:-1]
    shown = [
        {"name": name[:100], "sum": _short(_sum(part, support)), "values": _values(part, support, first)}
        for (name, part), support in zip(parts, supports, strict=True)
        if support[first].any()
    ]
    if not shown or not budget.take(len(first) * (len(shown) + 2)):
        return None
    # What a token wrote begins where the token before it ended.
    edges = np.minimum(np.concatenate(([0], rollout.ends)), limit)[bounds]
    return {"sizes": np.diff(edges).tolist(), "counts": np.diff(bounds).tolist(), "parts": shown}


def scales(rollouts: Iterable[dict[str, Any] | None]) -> list[list[Any]]:
    """Return the name of each part of some `token_rewards`, and the largest absolute reward that it gave there."""
    found: dict[str, float] = {}
    for one in rollouts:
        for part in one["parts"] if one else ():
            largest = max((abs(value) for value in part["values"] if value is not None), default=0.0)
            found[part["name"]] = max(found.get(part["name"], 0.0), largest)
    return [[name, largest] for name, largest in islice(found.items(), MAX_COLOURED)]


def _support(part: Score) -> NDArray[np.bool_]:
    assert part.token_values is not None
    return np.ones(len(part.token_values), np.bool_) if part.token_support is None else part.token_support


def _bounds(rollout: Rollout, supports: Sequence[NDArray[np.bool_]], limit: int) -> NDArray[np.intp]:
    """Return the numbers of the tokens at which a piece begins, and of the one after the last piece."""
    assert rollout.ends is not None
    count = len(rollout.tokens)
    if len(rollout.text) > limit:
        # The first token always begins at 0; another one is in sight if the token before it ends there.
        count = min(count, 1 + int(np.searchsorted(rollout.ends, limit)))
    own = np.zeros(count, np.bool_)
    for support in supports:
        own |= support[:count]
    begins = np.concatenate(([True], own[1:] | own[:-1]))
    return np.append(np.flatnonzero(begins), count)[: MAX_TOKENS + 1]


def _values(part: Score, support: NDArray[np.bool_], first: NDArray[np.intp]) -> list[float | None]:
    assert part.token_values is not None
    pairs = zip(part.token_values[first].tolist(), support[first].tolist(), strict=True)
    return [_short(value) if carries else None for value, carries in pairs]


def _sum(part: Score, support: NDArray[np.bool_]) -> float:
    assert part.token_values is not None
    return float(part.token_values.sum(where=support, dtype=np.float64))


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") + 0.0  # no negative zero
