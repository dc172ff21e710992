r"""Counts the errors of answer verifiers on labelled pairs: our rules beside math-verify, on the same texts in one run.

    make bench-verifiers     # or: python benchmarks/verifiers.py [--list ours]

`verifier_pairs.toml` holds right and wrong answers to the same truth. A wrong answer that gets 1 is a false positive,
a right answer that gets 0 a false negative. An answer without a verdict within five seconds counts as `failed` and as
neither. Both verifiers run in our worker pool, so that a comparison that hangs costs one worker.

math-verify is called as its documentation does: the truth between `$`, the answer as the model wrote it, and for
multiple choice its extraction of letters.
"""

from __future__ import annotations

import argparse
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rewardsmith import Message, Prompt, Score
from rewardsmith.rewards.pool import Call, Pool
from rewardsmith.rewards.rules.choice import choice
from rewardsmith.rewards.rules.math import math

PAIRS = Path(__file__).parent / "verifier_pairs.toml"
DEADLINE = 5.0


@dataclass(frozen=True)
class Pair:
    """An answer and whether it is right.

    Attributes:
        sort: the group of answers that it is counted with, such as "units".
        rule: "math" or "choice".
        truth: the prompt's answer.
        text: what the model wrote.
        right: the label.
    """

    sort: str
    rule: str
    truth: str
    text: str
    right: bool


def labelled_pairs() -> list[Pair]:
    """Return all pairs of the file."""
    groups = tomllib.loads(PAIRS.read_text())["groups"]
    return [pair for group in groups for pair in _pairs(group)]


def _pairs(group: dict[str, object]) -> Iterator[Pair]:
    for label in ("right", "wrong"):
        answers = group[label]
        assert isinstance(answers, list)
        for answer in answers:
            text = answer if group.get("text") else f"\\boxed{{{answer}}}"
            yield Pair(str(group["sort"]), str(group.get("rule", "math")), str(group["truth"]), text, label == "right")


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
    return pool.score_now(call, prompt, [pair.text], deadline=DEADLINE, memory=1024)[0]


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
    """Print a table of both error rates by sort, and the errors of one verifier where they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=["ours", "math_verify"], help="print every error of this verifier")
    arguments = parser.parse_args()
    console = Console()
    pairs = labelled_pairs()
    found = {name: verdicts(name, pairs) for name in ("ours", "math_verify")}
    counted: dict[str, dict[str, Errors]] = {name: defaultdict(Errors) for name in found}
    for name, given in found.items():
        for pair, verdict in zip(pairs, given, strict=True):
            counted[name][pair.sort].add(pair, verdict)
            counted[name]["all"].add(pair, verdict)
    table = Table(
        "answers", "ours: wrong but paid", "right but refused", "math-verify: wrong but paid", "right but refused"
    )
    for sort in counted["ours"]:
        if sort == "all":
            continue
        table.add_row(sort, *counted["ours"][sort].rates(), *counted["math_verify"][sort].rates())
    table.add_section()
    table.add_row("all", *counted["ours"]["all"].rates(), *counted["math_verify"]["all"].rates())
    console.print(table)
    for name in found:
        console.print(f"{name}: no verdict on {counted[name]['all'].failed} of {len(pairs)} answers")
    if arguments.list:
        for pair, verdict in zip(pairs, found[arguments.list], strict=True):
            if verdict is None or (verdict >= 1) != pair.right:
                kind = "failed" if verdict is None else "refused" if pair.right else "PAID"
                console.print(f"{kind:8} {pair.sort:16} {pair.truth!s:24} {pair.text}", markup=False, highlight=False)


if __name__ == "__main__":
    main()
