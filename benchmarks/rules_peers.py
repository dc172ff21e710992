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
from functools import partial
from pathlib import Path

from verl.utils.reward_score import math_verify
from verl.workers.reward_manager import prime

PROCESSES = 2
"""As many as there are cores, instead of 64; and a deadline of 10 s instead of 300 s: both in the peer's favour."""
DEADLINE = 10.0


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
        calls = [threads.submit(math_verify.compute_score, text, gold, timeout=DEADLINE) for text, gold in batch]
        return [call.result() for call in calls]


def main() -> None:
    """Score the corpus batch by batch."""
    prime.single_compute_score = partial(_limited, prime.single_compute_score)
    way = {"prime": by_prime, "pool": by_pool}[sys.argv[2]]
    work = json.loads(Path(sys.argv[1]).read_text())
    if way is by_pool:
        by_pool([("\\boxed{1}", "1")] * 8)  # its pool lives on: starting it is not counted
    begun = time.perf_counter()
    verdicts = [verdict for batch in work for verdict in way([tuple(pair) for pair in batch])]
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "verdicts": verdicts}), flush=True)


async def _limited(inner, *args, timeout: float) -> object:  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002
    return await inner(*args, timeout=min(timeout, DEADLINE))


if __name__ == "__main__":
    main()
