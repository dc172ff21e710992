r"""Counts the errors of answer verifiers on labelled pairs: our rules beside math-verify, on the same texts in one run.

    make bench-verifiers     # or: python benchmarks/verifiers.py [--sorts] [--list ours]

`verifier_pairs.toml` holds right and wrong answers to the same truth, and was known when the rules were written.
`verifier_pairs_held_out.toml` was written independently of them. A wrong answer that gets 1 is a false positive,
a right answer that gets 0 a false negative. An answer without a verdict within five seconds counts as `failed` and as
neither. Both verifiers run in our worker pool, so that a comparison that hangs costs one worker.

math-verify is called as its documentation does: the truth between `$`, the answer as the model wrote it, and for
multiple choice its extraction of letters.
"""

from __future__ import annotations

import argparse
import asyncio
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rewardsmith import Message, Prompt, Score
from rewardsmith.rewards.pool import Call, Pool
from rewardsmith.rewards.rules.answer_rules import choice
from rewardsmith.rewards.rules.math import math

FILES = ("verifier_pairs.toml", "verifier_pairs_held_out.toml")
DEADLINE = 5.0


@dataclass(frozen=True)
class Pair:
    """An answer and whether it is right.

    Attributes:
        file: where it is.
        sort: the group of answers that it is counted with, such as "units".
        rule: "math" or "choice".
        truth: the prompt's answer.
        text: what the model wrote.
        right: the label.
    """

    file: str
    sort: str
    rule: str
    truth: str
    text: str
    right: bool


def labelled_pairs() -> list[Pair]:
    """Return the pairs of all files."""
    return [pair for file in FILES for group in _groups(file) for pair in _pairs(file, group)]


def _groups(file: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))["groups"]
    return found


def _pairs(file: str, group: dict[str, Any]) -> Iterator[Pair]:
    for label in ("right", "wrong"):
        for answer in group[label]:
            text = answer if group.get("text") else f"\\boxed{{{answer}}}"
            yield Pair(file, group["sort"], group.get("rule", "math"), group["truth"], text, label == "right")


def ours(prompt: Prompt, text: str) -> float:
    """Call our rule for this kind of prompt."""
    return (choice if prompt.info["rule"] == "choice" else math)(prompt, text)


def math_verify(prompt: Prompt, text: str) -> float:
    """Call math-verify as its documentation does; its own time limits are off, because the pool has one."""
    from math_verify import StringExtractionConfig, parse, verify  # type: ignore[import-untyped]  # noqa: PLC0415

    targets = {"extraction_config": [StringExtractionConfig()]} if prompt.info["rule"] == "choice" else {}
    truth = str(prompt.answer) if targets else f"${prompt.answer}$"
    gold = parse(truth, **targets, parsing_timeout=None)
    return float(verify(gold, parse(text, **targets, parsing_timeout=None), timeout_seconds=None))


def verdicts(name: str, pairs: Sequence[Pair]) -> list[float | None]:
    """Return one verdict per pair, None where there is none."""
    call = Call(f"verifiers:{name}", {}, ("math_verify", "mpmath"))
    pool = Pool(2)
    try:
        return [_verdict(pool, call, pair).value for pair in pairs]
    finally:
        pool.close()


def _verdict(pool: Pool, call: Call, pair: Pair) -> Score:
    prompt = Prompt("pair", [Message("user", "?")], answer=pair.truth, info={"rule": pair.rule})
    return asyncio.run(pool.score(call, prompt, [pair.text], deadline=DEADLINE, memory=1024))[0]


@dataclass
class Errors:
    """Errors of one verifier on one sort of answers."""

    wrong: int = 0
    false_positives: int = 0
    right: int = 0
    false_negatives: int = 0
    failed: int = 0

    def add(self, pair: Pair, verdict: float | None) -> None:
        """Count one verdict."""
        paid = verdict is not None and verdict >= 1
        self.failed += verdict is None
        self.wrong += not pair.right
        self.right += pair.right
        self.false_positives += paid and not pair.right
        self.false_negatives += verdict is not None and not paid and pair.right

    def rates(self) -> tuple[str, str]:
        """Return the two error rates as text."""
        return (
            f"{self.false_positives}/{self.wrong} ({self.false_positives / max(self.wrong, 1):.1%})",
            f"{self.false_negatives}/{self.right} ({self.false_negatives / max(self.right, 1):.1%})",
        )


def main() -> None:
    """Print a table of both error rates, and on request every error of one verifier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sorts", action="store_true", help="count each sort of answers by itself")
    parser.add_argument("--list", choices=["ours", "math_verify"], help="print every error of this verifier")
    arguments = parser.parse_args()
    console = Console()
    pairs = labelled_pairs()
    found = {name: verdicts(name, pairs) for name in ("ours", "math_verify")}
    counted: dict[str, dict[tuple[str, str], Errors]] = {name: defaultdict(Errors) for name in found}
    for name, given in found.items():
        for pair, verdict in zip(pairs, given, strict=True):
            counted[name][pair.file, pair.sort if arguments.sorts else pair.rule].add(pair, verdict)
    table = Table(
        "file",
        "answers",
        "ours: wrong but paid",
        "right but refused",
        "math-verify: wrong but paid",
        "right but refused",
    )
    for file, sort in counted["ours"]:
        table.add_row(file, sort, *counted["ours"][file, sort].rates(), *counted["math_verify"][file, sort].rates())
    console.print(table)
    for name, given in found.items():
        console.print(f"{name}: no verdict on {sum(verdict is None for verdict in given)} of {len(pairs)} answers")
    if arguments.list:
        for pair, verdict in zip(pairs, found[arguments.list], strict=True):
            if verdict is None or (verdict >= 1) != pair.right:
                kind = "failed" if verdict is None else "refused" if pair.right else "PAID"
                console.print(f"{kind:8} {pair.sort:16} {pair.truth!s:24} {pair.text}", markup=False, highlight=False)


if __name__ == "__main__":
    main()
