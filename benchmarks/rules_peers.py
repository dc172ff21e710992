"""The peers' side of `rules.py`: verl's own code, run in the peers' environment.

    python benchmarks/rules_peers.py CORPUS.json WAY      # prints {"seconds": …, "verdicts": […]} as the last line

WAY is `prime`, the manager that makes a new process pool for every batch, or `pool`, the module with one pool of four.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from verl.utils.reward_score import math_verify
from verl.workers.reward_manager import prime

PROCESSES = 2
"""As many as there are cores, instead of 64: in the peer's favour. Its time limits are its own, 300 s and 30 s."""


def evaluate(_task: str, completion: str, reference: str, _extra: object) -> float:
    """Score one answer by math-verify, in a process of the pool."""
    return math_verify._verify_in_subprocess("\\boxed{" + reference + "}", completion)  # type: ignore[no-any-return]


def by_prime(batch: list[tuple[str, str]]) -> list[float]:
    """Score a batch as the prime manager does."""
    texts, golds = [text for text, _ in batch], [gold for _, gold in batch]
    made = prime.parallel_compute_score_async(evaluate, texts, golds, ["math"] * len(batch), None, PROCESSES)
    return asyncio.run(made)  # type: ignore[no-any-return]


def by_pool(batch: list[tuple[str, str]]) -> list[float]:
    """Score a batch as the reward loop does with the math_verify module: from threads."""
    with ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(math_verify.compute_score, text, gold) for text, gold in batch]
        return [call.result() for call in calls]


def main() -> None:
    """Score the corpus batch by batch."""
    way = {"prime": by_prime, "pool": by_pool}[sys.argv[2]]
    work = json.loads(Path(sys.argv[1]).read_text())
    if way is by_pool:
        by_pool([("\\boxed{1}", "1")] * 8)  # its pool lives on: starting it is not counted
    begun = time.perf_counter()
    verdicts = [verdict for batch in work for verdict in way([tuple(pair) for pair in batch])]
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "verdicts": verdicts}), flush=True)


if __name__ == "__main__":
    main()
