"""One group of rollouts as the pages show it: JSON values of a bounded size.

All text was written by a model and stays text: it is cut, and becomes a JSON string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import NOT_COMPUTED, Prompt, Rollout, Score


@dataclass(frozen=True)
class Limits:
    """How much is shown of one group."""

    text: int = 4_000  # characters of one text
    feedback: int = 1_000  # characters of feedback, of the detail of a failure, and of the right answer
    rollouts: int = 8
    messages: int = 12  # of one prompt
    parts: int = 24  # of one score
    tokens: int = 1_000  # of one rollout that are coloured
    coloured: int = 4  # parts of one score between which one can choose


IN_REPORT = Limits()
IN_VIEWER = Limits(text=60_000, feedback=30_000, rollouts=64, messages=200, parts=100, tokens=8_000, coloured=8)

MAX_FILE = 16_000_000  # bytes of a JSON file

UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading JSON values raises where a file was damaged."""


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line that we wrote; an empty one for a line that was cut off or damaged."""
    try:
        record = json.loads(line)
    except UNREADABLE:
        return {}
    return record if isinstance(record, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one where there is none, it is damaged, or longer than `MAX_FILE`."""
    try:
        if not path.is_file():  # a pipe would never end
            return {}
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError:
        return {}
    return parse_line(content) if len(content) <= MAX_FILE else {}


def short_text(value: object, limit: int | None = None) -> str:
    """Return a text up to its limit; a `TypeError` for what is none."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a text")
    return value[:limit]


def cut(text: str, limit: int) -> dict[str, Any]:
    """Return the beginning of a text, and how many characters were cut off."""
    return {"text": text[:limit], "cut": max(0, len(text) - limit)}


def number(value: object) -> float | int | None:
    """Return `value` with six digits, more than a screen shows; None when it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        short = float(f"{value:.6g}")
    except OverflowError:  # an integer beyond all floats
        return None
    if not math.isfinite(short):
        return None
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def group_view(record: GroupRecord, limits: Limits) -> dict[str, Any]:
    """Return a group with its prompt, its rollouts and their scores."""
    group = record.scored.group
    advantages = [number(value) for value in record.advantages]
    advantages += [None] * (len(group.rollouts) - len(advantages))
    tokens = record.token_advantages or [None] * len(group.rollouts)
    rows = list(zip(group.rollouts, record.scored.scores, advantages, tokens, strict=False))
    rollouts = [_rollout(*row, limits) for row in rows[: limits.rollouts]]
    return {
        "step": record.step,
        "kind": record.kind,
        "dropped": record.dropped[:80],
        "prompt": _prompt(group.prompt, limits),
        "rollouts": rollouts,
        "scales": _scales((one["rewards"] for one in rollouts), limits),
        "more": max(0, len(rows) - limits.rollouts),
    }


def _prompt(prompt: Prompt, limits: Limits) -> dict[str, Any]:
    messages = prompt.messages[-limits.messages :]  # the latest messages matter most
    answer = prompt.answer if isinstance(prompt.answer, str) else json.dumps(prompt.answer, default=str)
    info = json.dumps(dict(prompt.info), indent=1, ensure_ascii=False, default=str) if prompt.info else ""
    return {
        "id": prompt.id[:200],
        "source": prompt.source[:200],
        "messages": [{"role": message.role[:40], **cut(message.content, limits.text)} for message in messages],
        "earlier": len(prompt.messages) - len(messages),
        "answer": None if prompt.answer is None else cut(answer, limits.feedback),
        "info": cut(info, limits.feedback) if info else None,
    }


def _rollout(
    rollout: Rollout, score: Score, advantage: float | None, tokens: NDArray[np.float32] | None, limits: Limits
) -> dict[str, Any]:
    parts = islice(score.named_parts(), limits.parts)
    return {
        **cut(rollout.text, limits.text),
        **_verdict(score, limits),
        "parts": [{"name": name[:100], **_verdict(part, limits)} for name, part in parts],
        "advantage": advantage,
        "stop": rollout.stop_reason,
        "tokens": len(rollout.tokens),
        "rewards": token_rewards(rollout, score, limits, tokens),
    }


def _verdict(score: Score, limits: Limits) -> dict[str, Any]:
    """Return a value or why there is none, and the feedback; `called` is False where the reward was not called."""
    failed = score.failure
    failure = failed and {"kind": failed.kind, "attempts": failed.attempts, **cut(failed.detail, limits.feedback)}
    called = failed is None or failed.kind not in NOT_COMPUTED
    feedback = cut(score.feedback, limits.feedback) if score.feedback else None
    return {
        "value": number(score.value),
        "failure": failure,
        "called": called,
        "feedback": feedback,
        "label": score.label,
    }


# ---- rewards of tokens ----------------------------------------------------------------------------------------------


def token_rewards(
    rollout: Rollout, score: Score, limits: Limits, advantages: NDArray[np.float32] | None = None
) -> dict[str, Any] | None:
    """Return the `sizes` in characters of the tokens in the text that is shown, and their rewards; None without.

    Each of `parts` has its `name`, the `sum` of all its rewards and the `values` of the tokens, with None for a token
    without a reward of its own; the last may be the `advantages` of the tokens, where they differ.
    """
    if rollout.ends is None or not len(rollout.tokens):
        return None
    count = len(rollout.tokens)
    if len(rollout.text) > limits.text:  # a token is shown if the one before it ends within the limit
        count = min(count, 1 + int(np.searchsorted(rollout.ends, limits.text)))
    count = min(count, limits.tokens)
    parts: list[dict[str, Any]] = []
    for name, part in (("reward", score), *score.named_parts()):
        if part.token_values is None or len(parts) == limits.coloured:
            continue
        support = np.ones(len(part.token_values), np.bool_) if part.token_support is None else part.token_support
        if support[:count].any():
            shown = zip(part.token_values[:count].tolist(), support[:count].tolist(), strict=True)
            values = [_short(value) if carries else None for value, carries in shown]
            total = float(part.token_values.sum(where=support, dtype=np.float64))
            parts.append({"name": name[:100], "sum": _short(total), "values": values})
    if advantages is not None and len(parts) < limits.coloured:
        values = [_short(value) for value in advantages[:count].tolist()]
        parts.append({"name": "advantage", "sum": _short(float(advantages.sum(dtype=np.float64))), "values": values})
    sizes = np.diff(np.minimum(rollout.ends[:count], limits.text), prepend=0).tolist()
    return {"sizes": sizes, "parts": parts} if parts else None


def _scales(rollouts: Iterable[dict[str, Any] | None], limits: Limits) -> list[list[Any]]:
    """Return the name of each part of some `token_rewards`, and the largest absolute reward that it gave there."""
    found: dict[str, float] = {}
    for one in rollouts:
        for part in one["parts"] if one else ():
            largest = max((abs(value) for value in part["values"] if value is not None), default=0.0)
            found[part["name"]] = max(found.get(part["name"], 0.0), largest)
    return [[name, largest] for name, largest in islice(found.items(), limits.coloured)]


def _short(value: float) -> float:
    return float(f"{value:.4g}") + 0.0  # more digits than a colour shows; no negative zero
