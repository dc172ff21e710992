"""What `audit.json` has about the rewards of a run, as JSON values of a bounded size: audits, and alarms of the watch.

A run folder may come from elsewhere. All texts stay text and are cut; what cannot be read is counted, and an audit of
which a part cannot be read has not passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from rewardsmith.auditing.findings import Direction
from rewardsmith.viewer.rollout_view import UNREADABLE, cut, number, read_json, short_text

MAX_STAGES = 8  # with an audit, and as many with a watch
MAX_FINDINGS = 80  # of one audit
MAX_ALARMS = 40  # of one watch
MAX_EXAMPLES = 5  # of a finding or an alarm
MAX_TEXT = 2_000  # characters of an example
MAX_LINE = 600  # characters of a sentence
MAX_NAME = 200


def read_trust(path: Path) -> dict[str, Any]:
    """Return the `audits` and the `watches` of the stages in a file, and what is `unread`: "" or a sentence."""
    content = read_json(path)
    audits, lost = _by_stage(content.get("audits"), _audit)
    watches, more_lost = _by_stage(content.get("watch"), _watch)
    damaged = lost or more_lost or (path.exists() and not content)
    unread = f"{path.name} cannot be read, or only in part" if damaged else ""
    return {"audits": audits, "watches": watches, "unread": unread}


def _by_stage(table: object, read: Callable[[Any], dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return what is read of each stage with its name, and how many stages could not be read."""
    items = list(table.items())[:MAX_STAGES] if isinstance(table, dict) else []
    found, lost = _readable(items, lambda item: {"name": item[0][:MAX_NAME], **read(item[1])})
    return found, lost + (table is not None and not isinstance(table, dict))


def _readable(items: object, read: Callable[[Any], dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the items of a list that can be read, and how many cannot."""
    if not isinstance(items, list):
        return [], 1
    found, lost = [], 0
    for item in items:
        try:
            found.append(read(item))
        except UNREADABLE:
            lost += 1
    return found, lost


def _audit(content: Mapping[str, Any]) -> dict[str, Any]:
    findings, lost = _readable(content["findings"], _finding)
    unmeasured, names_lost = _unmeasured(content.get("unmeasured", {}))
    lost += names_lost
    verdicts = [one["passed"] for one in findings if one["passed"] is not None]
    failed = verdicts.count(False)
    if failed or unmeasured:
        state = "failed"
    elif lost or content["passed"] is not (True if verdicts else None):  # its own verdict rests on something else
        state = "unknown"
    else:
        state = "passed" if verdicts else "free"
    notes = content.get("notes")
    return {
        "state": state,
        "required": len(verdicts) + len(unmeasured),
        "failed": failed,
        "unmeasured": unmeasured[:MAX_FINDINGS],
        "findings": sorted(findings, key=lambda one: one["passed"] is not False)[:MAX_FINDINGS],
        "more": max(0, len(findings) - MAX_FINDINGS),
        "unread": lost,
        "notes": [note[:MAX_LINE] for note in notes[:MAX_FINDINGS] if isinstance(note, str)] if notes else [],
    }


def _unmeasured(table: object) -> tuple[list[dict[str, Any]], int]:
    """Return the requirements that could not be measured, with their limits, and how many cannot be read."""
    items = list(table.items()) if isinstance(table, dict) else None
    return _readable(items, lambda item: {"name": item[0][:MAX_NAME], "limit": number(item[1])})


def _finding(content: Mapping[str, Any]) -> dict[str, Any]:
    passed, direction = content["passed"], content["direction"]
    if not (passed is None or isinstance(passed, bool)):
        raise ValueError(f"passed = {passed!r}")
    if direction not in get_args(Direction):
        raise ValueError(f"direction = {direction!r}")
    return {
        "name": short_text(content["name"], MAX_NAME),
        "topic": short_text(content["topic"], MAX_NAME),
        "line": short_text(content["line"], MAX_LINE),
        "passed": passed,
        "direction": direction,
        "count": number(content.get("count")),
        **_measured(content),
        **_examples(content),
    }


def _watch(content: Mapping[str, Any]) -> dict[str, Any]:
    alarms, lost = _readable(content["alarms"], _alarm)
    return {
        "on_alarm": short_text(content["on_alarm"], MAX_NAME),
        "reference": short_text(content["reference"], MAX_NAME),
        "every": number(content.get("every")),
        "alarms": alarms[:MAX_ALARMS],
        "more": max(0, len(alarms) - MAX_ALARMS),
        "unread": lost,
    }


def _alarm(content: Mapping[str, Any]) -> dict[str, Any]:
    step = number(content["step"])
    if not isinstance(step, int):
        raise ValueError(f"step = {step!r}")
    measure, line = short_text(content["measure"], MAX_NAME), short_text(content["line"], MAX_LINE)
    return {"step": step, "measure": measure, "line": line, **_measured(content), **_examples(content)}


def _measured(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: number(content.get(name)) for name in ("value", "low", "high", "limit")}


def _examples(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first examples; one that is damaged takes nothing from the number that it stands below."""
    given = content.get("examples")
    found, _ = _readable(given[:MAX_EXAMPLES] if isinstance(given, list) else [], _example)
    return {"examples": found}


def _example(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "prompt": short_text(content["prompt"], MAX_NAME),
        "probe": short_text(content["probe"], MAX_NAME),
        "expected": short_text(content["expected"], MAX_LINE),
        "reward": number(content["reward"]),
        **cut(short_text(content["text"]), MAX_TEXT),
    }
