"""The plan: which claims there are, which arms each compares, and what is measured. It was fixed before the runs.

A claim is a recipe of the same name. Its arms are policy stages that start from the same model and draw the same
prompts. After each arm there is a stage `ARM_answers`, which evaluates it on held-out problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SEEDS = (0, 1, 2)

Form = Literal["share", "number", "tokens", "count"]


@dataclass(frozen=True)
class Column:
    """A column of a table: a value of each arm, such as `answers/accuracy`; its name says in which stage it is."""

    heading: str
    key: str
    form: Form = "share"


@dataclass(frozen=True)
class Reach(Column):
    """Steps until the validation first reaches what the first arm has at its end; `key` is a curve."""

    form: Form = "count"


ACCURACY = Column("right", "answers/accuracy")
VERIFIED = Column("right and sound", "answers/verified")
UNSOUND = Column("unsound of the right", "answers/unsound")
LENGTH = Column("tokens", "answers/length", "tokens")
FAILED = Column("judge failed", "policy/failed")


@dataclass(frozen=True)
class Panel:
    """A panel of the figure: a curve of each arm over the steps."""

    title: str
    key: str  # such as `policy/accuracy`


@dataclass(frozen=True)
class Claim:
    """What a recipe is to show."""

    title: str
    arms: Mapping[str, str]  # policy stages, and what tables call them
    columns: tuple[Column, ...]
    panels: tuple[Panel, ...]
    compared: Column = ACCURACY  # whose difference from another arm is shown
    others: Mapping[str, str] = field(default_factory=dict)  # which arm each is compared with; default: the first
    evaluations: Mapping[str, str] = field(default_factory=dict)  # further stages, in a table of their own
    evaluation_columns: tuple[Column, ...] = ()
    needs: str = ""  # a claim whose model this one uses, with the same seed
    gpu: bool = True  # whether it is for a GPU

    def other(self, arm: str) -> str:
        """Return the arm that an arm is compared with."""
        return self.others.get(arm, next(iter(self.arms)))


ACCURACY_CURVE = Panel("right answers, held out", "policy/accuracy")
VERIFIED_CURVE = Panel("right and sound answers, held out", "policy/verified")
UNSOUND_CURVE = Panel("unsound of the right answers, held out", "policy/unsound")

FLAWS = tuple(
    Column(f"flaw: {kind}", f"answers/flaw/{kind}")
    for kind in ("calculation", "copied", "operation", "missing", "extra", "conclusion")
)
VERIFIED_AT = tuple(Column(f"verified@{k}", f"answers/verified@{k}") for k in (1, 4, 16, 64))

GRADE_COLUMNS = (
    Column("distance from the true grade", "mad", "number"),
    Column("calibration error", "calibration_error", "number"),
    Column("F1, unsound right answers", "f1"),
    Column("precision", "precision"),
    Column("recall", "recall"),
    Column("no verdict", "failed"),
)
RANKING_COLUMNS = (
    Column("pairs in order", "accuracy"),
    Column("groups that fail counted as wrong", "accuracy_all"),
    Column("chance", "chance"),
    Column("best one found", "top1"),
    Column("no verdict", "failed"),
)
PROCESS_COLUMNS = (
    Column("pairs in order", "policy/process/accuracy_fresh"),
    Column("first wrong step found", "policy/process/steps/found"),
    Column("chance", "policy/process/steps/chance"),
)
PRIME_COLUMNS = (
    ACCURACY,
    VERIFIED,
    Reach("steps to the accuracy of the first", "policy/accuracy"),
    *PROCESS_COLUMNS,
)
FAILURE_ARMS = {
    "none": "no failures",
    "dropped": "10 % fail, left out",
    "zeros": "10 % fail, counted as 0",
    "long_dropped": "10 % fail, longer ones more often, left out",
    "long_zeros": "10 % fail, longer ones more often, counted as 0",
}
FAILURE_OTHERS = {"zeros": "dropped", "long_zeros": "long_dropped"}
FAILURE_COLUMNS = (ACCURACY, VERIFIED, Column("reward that training reports", "policy/reward"), LENGTH, FAILED)
PRIME_ARMS = {
    "outcome": "answer alone (RLOO)",
    "prime": "PRIME as published",
    "trusted": "PRIME with trust, larger beta",
}

CLAIMS: dict[str, Claim] = {
    "judge": Claim(
        "The judge: RL corrects what its cold start overlooks",
        arms={},
        columns=(),
        panels=(Panel("mean reward of the grades, held out", "judge_rl/accuracy"),),
        evaluations={"judge_before": "after the cold start", "judge_after": "after RL"},
        evaluation_columns=GRADE_COLUMNS,
    ),
    "rrm": Claim(
        "RRM: a rubric judge cures right answers that are reached by a wrong way",
        arms={
            "outcome": "answer alone",
            "judged": "answer, gated by the trained judge",
            "steps": "steps checked by a program (ceiling)",
        },
        columns=(ACCURACY, UNSOUND, VERIFIED, *VERIFIED_AT, *FLAWS),
        panels=(ACCURACY_CURVE, UNSOUND_CURVE),
        compared=VERIFIED,
        needs="judge",
    ),
    "grrm": Claim(
        "GRRM: RL lifts a ranker over its cold start, and the ranker lifts a policy",
        arms={"rule": "rule", "judged": "pointwise judge", "ranked": "group ranker"},
        columns=(
            ACCURACY,
            VERIFIED,
            Column("judge calls per step", "policy/judge/calls", "count"),
            Column("tokens that the judge wrote per step", "policy/judge/tokens", "count"),
            Column("tokens that it read per step", "policy/judge/prompt_tokens", "count"),
            FAILED,
        ),
        panels=(ACCURACY_CURVE, VERIFIED_CURVE),
        compared=VERIFIED,
        evaluations={"ranker_before": "after the cold start", "ranker_after": "after RL"},
        evaluation_columns=RANKING_COLUMNS,
        needs="judge",
    ),
    "several": Claim(
        "Several reward models beat one",
        arms={
            "rule": "rule",
            "preferred": "rule + Bradley-Terry",
            "gated": "rule + Bradley-Terry, gated by the judge",
        },
        columns=(
            ACCURACY,
            VERIFIED,
            UNSOUND,
            Column("idle lines per answer", "answers/remarks", "number"),
            LENGTH,
            Column("audit: unsound answers that are paid for", "audit/unsound"),
            Column("audit: style bias", "audit/style_bias", "number"),
        ),
        panels=(VERIFIED_CURVE, Panel("tokens of an answer, held out", "policy/length")),
        compared=VERIFIED,
        needs="judge",
    ),
    "prime": Claim(
        "PRIME: dense rewards from outcomes alone",
        arms={**PRIME_ARMS, "steps": "steps checked by a program (ceiling)"},
        columns=PRIME_COLUMNS,
        panels=(ACCURACY_CURVE, VERIFIED_CURVE),
    ),
    "prime_larger": Claim(
        "PRIME with a process model that is larger than the policy",
        arms=PRIME_ARMS,
        columns=PRIME_COLUMNS,
        panels=(ACCURACY_CURVE, VERIFIED_CURVE),
    ),
    "failures": Claim(
        "A failure is not a score",
        arms=FAILURE_ARMS,
        columns=FAILURE_COLUMNS,
        others=FAILURE_OTHERS,
        panels=(
            ACCURACY_CURVE,
            Panel("reward that training reports", "policy/reward"),
            Panel("tokens of an answer, held out", "policy/length"),
        ),
    ),
    "failures_cpu": Claim(
        "A failure is not a score, with a small model on a CPU",
        arms={
            **FAILURE_ARMS,
            "many_dropped": "40 % fail, left out",
            "many_zeros": "40 % fail, counted as 0",
        },
        columns=FAILURE_COLUMNS,
        others={**FAILURE_OTHERS, "many_zeros": "many_dropped"},
        panels=(ACCURACY_CURVE, Panel("reward that training reports", "policy/reward")),
        gpu=False,
    ),
}
