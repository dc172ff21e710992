"""Counts of the reward server in Prometheus' text format. With several processes, each has its own label."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from rewardsmith.types import NOT_COMPUTED, ScoredGroup

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0)
"""Upper bounds of the latency histogram in seconds."""

MAX_SERIES = 1_000
"""Pairs of part and kind that are counted apart; the parts of a reward behind another server are not known here."""

FAMILIES = {
    "rewardsmith_requests_total": ("counter", "requests by endpoint and HTTP status"),
    "rewardsmith_scores_total": ("counter", "answers that got a value"),
    "rewardsmith_failures_total": ("counter", "failed scores by part of the reward and kind; part reward is the whole"),
    "rewardsmith_request_seconds": ("histogram", "seconds from a request to its reply"),
    "rewardsmith_part_seconds": ("summary", "seconds that a part of the reward took for a group"),
    "rewardsmith_rollouts_in_flight": ("gauge", "answers that are accepted and have no reply yet"),
    "rewardsmith_groups_scoring": ("gauge", "groups that are being scored"),
    "rewardsmith_groups_queued": ("gauge", "groups that wait for a free place"),
    "rewardsmith_ready": ("gauge", "1 while the reward's check has passed and the server is not draining"),
}

Snapshot = dict[str, list[tuple[str, dict[str, str], float]]]
"""By family: suffix of the name, labels, value."""


class ServerMetrics:
    """The counts of one process; `gauges` reads the present values."""

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._gauges = gauges
        self._requests: Counter[tuple[str, int]] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._scores = 0
        self._parts: dict[str, tuple[int, float]] = {}  # groups and seconds
        self._latency: dict[str, tuple[list[int], list[float]]] = {}

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a reply."""
        self._requests[endpoint, status] += 1
        counts, total = self._latency.setdefault(endpoint, ([0] * (len(BUCKETS) + 1), [0.0]))
        counts[bisect_left(BUCKETS, seconds)] += 1
        total[0] += seconds

    def scored(self, groups: Iterable[ScoredGroup], seconds: Mapping[str, Sequence[float]]) -> None:
        """Count the scores of groups, the failures of their parts, and how long the parts took; "" is the whole."""
        for name, taken in seconds.items():
            count, total = self._parts.get(name or "reward", (0, 0.0))
            self._parts[name or "reward"] = (count + len(taken), total + sum(taken))
        for score in chain.from_iterable(group.scores for group in groups):
            self._scores += score.ok
            for name, part in (("reward", score), *score.named_parts()):
                if part.failure is not None and part.failure.kind not in NOT_COMPUTED:
                    key = (name, part.failure.kind)
                    full = key not in self._failures and len(self._failures) >= MAX_SERIES
                    self._failures[("other", part.failure.kind) if full else key] += 1

    def snapshot(self) -> Snapshot:
        """Return all counts."""
        latency: list[tuple[str, dict[str, str], float]] = []
        for endpoint, (counts, total) in self._latency.items():
            so_far = 0
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
                so_far += count
                latency.append(("_bucket", {"endpoint": endpoint, "le": bound}, so_far))
            latency += [("_sum", {"endpoint": endpoint}, total[0]), ("_count", {"endpoint": endpoint}, so_far)]
        found: Snapshot = {
            "rewardsmith_requests_total": [
                ("", {"endpoint": name, "status": str(code)}, n) for (name, code), n in self._requests.items()
            ],
            "rewardsmith_scores_total": [("", {}, self._scores)],
            "rewardsmith_failures_total": [
                ("", {"part": part, "kind": kind}, n) for (part, kind), n in self._failures.items()
            ],
            "rewardsmith_request_seconds": latency,
            "rewardsmith_part_seconds": [
                (suffix, {"part": part}, value)
                for part, (count, total) in self._parts.items()
                for suffix, value in (("_sum", total), ("_count", count))
            ],
        }
        return found | {f"rewardsmith_{name}": [("", {}, value)] for name, value in self._gauges().items()}


def render(snapshots: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the counts of all processes, by their number, as text."""
    lines = []
    for family, (kind, about) in FAMILIES.items():
        lines += [f"# HELP {family} {about}", f"# TYPE {family} {kind}"]
        for process, snapshot in sorted(snapshots.items()):
            for suffix, labels, value in snapshot.get(family, ()):
                named = ",".join(f'{name}="{_escaped(text)}"' for name, text in (*labels.items(), ("process", process)))
                lines.append(f"{family}{suffix}{{{named}}} {value}")
    return "\n".join(lines) + "\n"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
