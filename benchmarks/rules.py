"""Times rules in the worker pool beside direct calls and beside verl: same answers, same run, two cores.

    make bench-rules     # or: python benchmarks/rules.py [--problems 128] [--hostile 0.01] [--gsm8k FILE]

1. Clean answers: a pool of one worker runs the very function that is called directly; the overhead is the pool's.
2. Mixed answers, of which the share `--hostile` makes a verifier hang: our `math` rule, the same function as above in
   our pool, and verl's two ways of calling math-verify. A verdict on a clean answer that differs from the right one
   counts as wrong; a failure is counted on its own, and is 0 for the peers, who do not tell the two apart.
3. With `--gsm8k`, a file of model solutions with labels: agreement of the `gsm8k` rule with them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rules_corpus import Answer, corpus

from rewardsmith import Message, Prompt, Score
from rewardsmith.rewards.pool import Call, Pool
from rewardsmith.rewards.rules import RULES

HERE = Path(__file__).parent
BATCH = 32  # problems in a step
MATH = Call("rewardsmith.rewards.rules.math:math", {}, ("mpmath",))
DIRECT = Call("rules:direct", {}, ("math_verify",))


def direct(prompt: Prompt, text: str) -> float:
    """Call math-verify as its documentation does, with its own time limits."""
    from math_verify import parse, verify  # noqa: PLC0415

    return float(verify(parse("$" + str(prompt.answer) + "$"), parse(text)))


def prompt_of(answer: Answer) -> Prompt:
    """Return the prompt of an answer."""
    return Prompt(f"problem-{answer.problem}", [Message("user", "?")], answer=answer.gold)


def ours(call: Call, answers: list[Answer], workers: int) -> tuple[float, list[Score], int]:
    """Return seconds, scores and lost workers of our pool; a step's groups are all handed over at once."""
    groups = [list(members) for _, members in groupby(answers, key=lambda answer: answer.problem)]
    pool = Pool(workers)
    try:
        asyncio.run(pool.score(call, prompt_of(answers[0]), ["\\boxed{1}"] * (2 * workers), deadline=60, memory=1024))

        async def step(batch: list[list[Answer]]) -> list[list[Score]]:
            made = [pool.score(call, prompt_of(g[0]), [a.text for a in g], deadline=5.0, memory=1024) for g in batch]
            return await asyncio.gather(*made)

        async def steps() -> list[Score]:
            batches = [groups[i : i + BATCH] for i in range(0, len(groups), BATCH)]
            return [score for batch in batches for group in await step(batch) for score in group]

        begun = time.perf_counter()
        scores = asyncio.run(steps())
        return time.perf_counter() - begun, scores, pool.lost
    finally:
        pool.close()


def theirs(answers: list[Answer], way: str, python: str) -> tuple[float, list[float]]:
    """Return seconds and verdicts of verl."""
    groups = [list(members) for _, members in groupby(answers, key=lambda answer: answer.problem)]
    batches = [[(a.text, a.gold) for g in groups[i : i + BATCH] for a in g] for i in range(0, len(groups), BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.json"
        file.write_text(json.dumps(batches))
        done = subprocess.run(
            [python, str(HERE / "rules_peers.py"), str(file), way], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    result = json.loads(done.stdout.splitlines()[-1])
    return result["seconds"], result["verdicts"]


def judged(answers: list[Answer], verdicts: list[float | None]) -> tuple[int, int, int]:
    """Return how many verdicts on clean answers are wrong, how many are failures, and hostile answers called right."""
    pairs = list(zip(answers, verdicts, strict=True))
    wrong = sum(a.right is not None and v is not None and (v >= 1) != a.right for a, v in pairs)
    failed = sum(a.right is not None and v is None for a, v in pairs)
    return wrong, failed, sum(a.right is None and v is not None and v >= 1 for a, v in pairs)


def called(answers: list[Answer]) -> tuple[float, list[float]]:
    """Return seconds and verdicts of direct calls, one after the other."""
    direct(prompt_of(answers[0]), "\\boxed{1}")
    begun = time.perf_counter()
    verdicts = [direct(prompt_of(answer), answer.text) for answer in answers]
    return time.perf_counter() - begun, verdicts


def clean(console: Console, answers: list[Answer], rounds: int) -> None:
    """Time the same function called directly and in the pool with one worker, taking turns.

    Each starts in a process of its own: what sympy and the parser remember makes a second pass over the same answers
    faster.
    """
    times: dict[str, list[float]] = {"called directly": [], "pool, one worker": [], "our math rule, one worker": []}
    unlike = 0
    for _ in range(rounds):
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            seconds, before = fresh.submit(called, answers).result()
        times["called directly"].append(seconds)
        seconds, scores, _ = ours(DIRECT, answers, 1)
        times["pool, one worker"].append(seconds)
        unlike += sum(score.value != value for score, value in zip(scores, before, strict=True))
        times["our math rule, one worker"].append(ours(MATH, answers, 1)[0])
    table = Table(
        "clean answers", "answers/s", "time, as a ratio", title=f"{len(answers)} answers, {rounds} rounds, best"
    )
    for name, seconds_taken in times.items():
        best = min(seconds_taken)
        table.add_row(name, f"{len(answers) / best:,.0f}", f"{best / min(times['called directly']):.2f}")
    console.print(table)
    console.print(f"verdicts of the pool that differ from the direct call: {unlike}")


def mixed(console: Console, answers: list[Answer], python: str | None) -> None:
    """Time the mixed corpus: ours with two workers, and both ways of verl."""
    hostile = sum(a.right is None for a in answers)
    title = f"{len(answers)} answers, {hostile} of them hostile, two cores"
    table = Table(
        "mixed answers", "answers/s", "ours is faster by", "wrong", "failed", "hostile right", "lost", title=title
    )
    rows: list[tuple[str, float, tuple[int, int, int], str]] = []
    for name, call in (("our math rule", MATH), ("our pool, plain math-verify", DIRECT)):
        seconds, scores, lost = ours(call, answers, 2)
        rows.append((name, seconds, judged(answers, [score.value for score in scores]), str(lost)))
    for name, way in (("verl prime manager", "prime"), ("verl math_verify pool", "pool")) if python else ():
        seconds, verdicts = theirs(answers, way, python or "")
        rows.append((name, seconds, judged(answers, list(verdicts)), "?"))
    for name, seconds, (wrong, failed, taken), lost_workers in rows:
        ratio = f"{seconds / rows[0][1]:.1f}x"
        table.add_row(name, f"{len(answers) / seconds:,.0f}", ratio, str(wrong), str(failed), str(taken), lost_workers)
    console.print(table)


def labelled(console: Console, file: Path) -> None:
    """Compare the gsm8k rule with the labels of a file of model solutions."""
    counts: Counter[tuple[bool, bool]] = Counter()
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        gold = row["ground_truth"].rpartition("A:")[2].strip()
        prompt = Prompt("p", [Message("user", row["question"])], answer=gold)
        for solution in (value for value in row.values() if isinstance(value, dict)):
            counts[bool(solution["is_correct"]), RULES["gsm8k"](prompt, solution["solution"]) >= 1] += 1
    table = Table("label", "rule: right", "rule: wrong", title=f"{sum(counts.values())} solutions of {file.name}")
    for label in (True, False):
        table.add_row("right" if label else "wrong", str(counts[label, True]), str(counts[label, False]))
    console.print(table)


def main() -> None:
    """Run the three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--answers", type=int, default=8, help="to each problem")
    parser.add_argument("--hostile", type=float, default=0.01, help="share of the mixed answers")
    parser.add_argument("--rounds", type=int, default=3, help="of the clean part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-python", default=str(HERE.parent / ".venv-peers/bin/python"), help="'' leaves verl out")
    parser.add_argument("--gsm8k", type=Path, help="example_model_solutions.jsonl of grade-school-math")
    chosen = parser.parse_args()
    console = Console(width=140)
    sys.path.insert(0, str(HERE))
    clean(console, corpus(chosen.problems // 2, chosen.answers, 0.0, chosen.seed), chosen.rounds)
    mixed(console, corpus(chosen.problems, chosen.answers, chosen.hostile, chosen.seed + 1), chosen.peer_python or None)
    if chosen.gsm8k:
        labelled(console, chosen.gsm8k)


if __name__ == "__main__":
    main()
