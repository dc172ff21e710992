"""`rewardsmith score`, from its options to what it prints."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rewardsmith.data.rows import ANSWER, PROMPT
from rewardsmith.errors import UserError, nearest
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.rescoring.choice import find_reward
from rewardsmith.runs.rescoring.compare import Comparison
from rewardsmith.runs.rescoring.kept import KeptScores, Maker
from rewardsmith.runs.rescoring.models import Logs, models_of
from rewardsmith.runs.rescoring.outcomes import Outcomes
from rewardsmith.runs.rescoring.rescore import Halted, Rescored, rescore
from rewardsmith.runs.rescoring.showing import PromptPrinter
from rewardsmith.runs.rescoring.stored import StoredRollouts, Wanted
from rewardsmith.runs.rescoring.tables import as_json, as_tables, unscored
from rewardsmith.runs.stopping import Interrupted

KINDS = ("train", "validation")
WIDE = 200


def wanted(
    *,
    stage: str | None,
    kind: str | None,
    step: str | None,
    limit: int | None,
    responses: str | None,
    answers: str | None,
    prompts: str | None,
) -> Wanted:
    """Return what the options choose, each as the user wrote it."""
    if kind is not None and kind not in KINDS:
        raise UserError(f"--kind is {kind!r}: it must be {' or '.join(KINDS)}.{nearest(kind, KINDS)}")
    return Wanted(
        stage, kind, None if step is None else _steps(step), limit, responses, answers or ANSWER, prompts or PROMPT
    )


def _steps(text: str) -> tuple[int, int]:
    """Return the first and the last step that `40` or `40-60` means."""
    first, dash, last = text.strip().partition("-")
    ends = [first, last if dash else first]
    if not all(end.isdecimal() and end.isascii() and len(end) < 10 for end in ends) or int(ends[0]) > int(ends[1]):
        raise UserError(f"cannot read --step {text!r}: write a step such as 40, or the first and the last as 40-60")
    return int(ends[0]), int(ends[1])


def score_stored(
    path: str,
    groups: Wanted,
    reward: str,
    overrides: Sequence[str] = (),
    *,
    out: Path | None = None,
    fresh: bool = False,
    show: int | None = None,
    outcome: str | None = None,
    at_once: int = 32,
    json: bool = False,
    show_prompts: int = 0,
    fail_above: float = 1.0,
) -> bool:
    """Score the rollouts of a path and print how the reward did; return whether enough of them have a score.

    Args:
        path: a run folder or a file.
        groups: which groups of it.
        reward: as `RECIPE[:path]`; see `find_reward`.
        overrides: changes of that file.
        out: where to keep the scores; None keeps none.
        fresh: start anew although `out` has scores.
        show: compare with the stored rewards, and list so many changes of sign; None compares nothing.
        outcome: the part by which the reward is judged; None judges by none.
        at_once: how many groups are scored at the same time.
        json: print JSON instead of tables.
        show_prompts: how many questions to models to print, with the answers.
        fail_above: share of rollouts without a score that is too much; without any score it never is enough.

    Raises:
        UserError: for whatever a user can mend.
        Interrupted: after Ctrl-C.
    """
    if fresh and out is None:
        raise UserError("--fresh is about the file of --out: name one, or leave it out")
    rollouts = StoredRollouts(path, groups)
    found = find_reward(reward, overrides)
    progress = Progress(Console(stderr=True))
    maker = Maker.of(found.reward, found.asked)
    logs = Logs()
    try:
        rescored = rescore(
            rollouts,
            found.reward,
            progress=progress,
            models=models_of(found, progress.log, logs),
            kept=None if out is None else KeptScores(out, maker, rollouts.files, fresh=fresh),
            comparison=None if show is None else Comparison(show),
            outcomes=None if outcome is None else Outcomes(outcome),
            at_once=at_once,
            watch=PromptPrinter(show_prompts, progress.log) if show_prompts else None,
        )
    except Halted as stopped:
        if stopped.rescored.groups:
            _print(stopped.rescored, json)
        raise
    logs.remove()
    _print(rescored, json)
    return rescored.unscored < rescored.rollouts and rescored.unscored / rescored.rollouts <= fail_above


def _print(rescored: Rescored, json: bool) -> None:
    if json:
        sys.stdout.write(jsonlib.dumps(as_json(rescored), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        if rescored.unscored:
            sys.stderr.write(f"{unscored(rescored)}\n")
        return
    # A file or a pipe has no width of its own, and a number that is cut off says nothing.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    for shown in as_tables(rescored):
        console.print(shown, soft_wrap=isinstance(shown, Text))


__all__ = ["Interrupted", "score_stored", "wanted"]
