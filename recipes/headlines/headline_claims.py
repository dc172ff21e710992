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
IDLE = Column("idle lines per answer", "answers/remarks", "number")
LENGTH = Column("tokens", "answers/length", "tokens")
LEFT_OUT = Column("left out: no verdict", "policy/failed")
LEARNING = Column("right, mean while it learns", "policy/learning")


@dataclass(frozen=True)
class Panel:
    """A panel of the figure: a curve of each arm over the steps."""

    title: str
    key: str  # such as `policy/accuracy`


@dataclass(frozen=True)
class Difference:
    """What decides a claim: how far a value of one arm is above that of another one, seed by seed."""

    column: Column
    arm: str
    other: str


@dataclass(frozen=True)
class Claim:
    """What a recipe is to show."""

    title: str
    arms: Mapping[str, str]  # policy stages, and what tables call them
    columns: tuple[Column, ...]
    panels: tuple[Panel, ...]
    decides: tuple[Difference, ...]
    evaluations: Mapping[str, str] = field(default_factory=dict)  # further stages, in a table of their own
    evaluation_columns: tuple[Column, ...] = ()
    curves: Mapping[str, str] | None = None  # stages in the figure; default: the arms
    needs: str = ""  # a claim whose model this one uses, with the same seed
    gpu: bool = True  # whether it is for a GPU

    @property
    def names(self) -> dict[str, str]:
        """What tables call each stage, the start before RL among them."""
        return {"start": "before RL", **self.arms, **self.evaluations}

    @property
    def measured(self) -> list[str]:
        """The stages whose values the tables have."""
        return [*(f"{arm}_answers" for arm in self.arms), *self.evaluations]


ACCURACY_CURVE = Panel("right answers, held out", "policy/accuracy")
VERIFIED_CURVE = Panel("right and sound answers, held out", "policy/verified")
UNSOUND_CURVE = Panel("unsound of the right answers, held out", "policy/unsound")

FLAWS = tuple(
    Column(f"flaw: {kind}", f"answers/flaw/{kind}")
    for kind in ("calculation", "copied", "operation", "missing", "extra", "conclusion")
)
VERIFIED_AT = tuple(Column(f"verified@{k}", f"answers/verified@{k}") for k in (4, 16, 64))

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
    Column("in order by chance", "chance"),
    Column("best one found", "top1"),
    Column("no verdict", "failed"),
)
PROCESS_COLUMNS = (
    Column("pairs in order", "policy/process/accuracy_fresh"),
    Column("first wrong step found", "policy/process/steps/found"),
    Column("found by chance", "policy/process/steps/chance"),
)
PRIME_COLUMNS = (
    ACCURACY,
    VERIFIED,
    LEARNING,
    Reach("steps to the last accuracy of the first", "policy/accuracy"),
    *PROCESS_COLUMNS,
)
PRIME_ARMS = {
    "outcome": "answer alone (RLOO)",
    "prime": "PRIME, counted in full",
    "trusted": "PRIME with trust, larger beta",
}
PRIME_DECIDES = tuple(
    Difference(column, arm, "outcome") for arm in ("prime", "trusted") for column in (LEARNING, ACCURACY)
)
MIRACLE_ARMS = {"outcome": "answer alone", "steps": "steps checked by a program (ceiling)"}
MIRACLE_DECIDES = (
    Difference(UNSOUND, "outcome", "start"),
    Difference(VERIFIED, "steps", "outcome"),
    Difference(ACCURACY, "steps", "outcome"),
)
FAILURE_ARMS = {
    "none": "no failures",
    "dropped": "10 % fail, left out",
    "zeros": "10 % fail, counted as 0",
    "long_dropped": "10 % fail, longer ones more often, left out",
    "long_zeros": "10 % fail, longer ones more often, counted as 0",
}
FAILURE_COLUMNS = (
    ACCURACY,
    VERIFIED,
    LEARNING,
    Column("reward that training reports", "policy/reward"),
    LENGTH,
    LEFT_OUT,
)
FAILURE_DECIDES = (
    Difference(ACCURACY, "dropped", "none"),
    Difference(ACCURACY, "zeros", "dropped"),
    Difference(ACCURACY, "long_zeros", "long_dropped"),
    Difference(LEARNING, "zeros", "dropped"),
    Difference(LEARNING, "long_zeros", "long_dropped"),
)
REPORTED_CURVE = Panel("reward that training reports", "policy/reward")
LENGTH_CURVE = Panel("tokens of an answer, held out", "policy/length")

CLAIMS: dict[str, Claim] = {
    "trained_judge": Claim(
        "The judge: RL corrects what its cold start overlooks",
        arms={},
        columns=(),
        panels=(Panel("mean reward of the grades, held out", "policy/accuracy"),),
        decides=(
            Difference(GRADE_COLUMNS[0], "judge_after", "judge_before"),
            Difference(GRADE_COLUMNS[2], "judge_after", "judge_before"),
        ),
        evaluations={"judge_before": "after the cold start", "judge_after": "after RL"},
        evaluation_columns=GRADE_COLUMNS,
        curves={"judge_rl": "RL of the judge"},
    ),
    "rrm": Claim(
        "RRM: a rubric judge cures right answers that are reached by a wrong way",
        arms={
            "outcome": "answer alone",
            "judged": "answer, gated by the trained judge",
            "steps": "steps checked by a program (ceiling)",
        },
        columns=(ACCURACY, UNSOUND, VERIFIED, *VERIFIED_AT, *FLAWS, LEFT_OUT),
        panels=(ACCURACY_CURVE, UNSOUND_CURVE),
        decides=(
            Difference(VERIFIED, "judged", "outcome"),
            Difference(ACCURACY, "judged", "outcome"),
            Difference(VERIFIED, "judged", "steps"),
        ),
        needs="trained_judge",
    ),
    "miracles_cpu": Claim(
        "Which flaws of right answers RL with the answer alone keeps, with a small model on a CPU",
        arms=MIRACLE_ARMS,
        columns=(ACCURACY, UNSOUND, VERIFIED, *VERIFIED_AT, *FLAWS),
        panels=(ACCURACY_CURVE, UNSOUND_CURVE),
        decides=MIRACLE_DECIDES,
        gpu=False,
    ),
    "pretrained_cpu": Claim(
        "Which flaws of right answers RL with the answer alone keeps, with SmolLM2-135M on a CPU",
        arms=MIRACLE_ARMS,
        columns=(
            ACCURACY,
            UNSOUND,
            VERIFIED,
            *(Column(f"verified@{k}", f"answers/verified@{k}") for k in (4, 8)),
            *FLAWS,
        ),
        panels=(ACCURACY_CURVE, UNSOUND_CURVE),
        decides=MIRACLE_DECIDES,
        gpu=False,
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
            LEFT_OUT,
        ),
        panels=(ACCURACY_CURVE, VERIFIED_CURVE),
        decides=(
            Difference(RANKING_COLUMNS[1], "ranker_after", "ranker_before"),
            Difference(VERIFIED, "ranked", "start"),
            Difference(VERIFIED, "ranked", "judged"),
            Difference(VERIFIED, "ranked", "rule"),
        ),
        evaluations={"ranker_before": "after the cold start", "ranker_after": "after RL"},
        evaluation_columns=RANKING_COLUMNS,
        needs="trained_judge",
    ),
    "several": Claim(
        "Several reward models beat one",
        arms={
            "rule": "rule",
            "preferred": "rule + Bradley-Terry",
            "judged": "rule, gated by the judge",
            "gated": "rule + Bradley-Terry, gated by the judge",
        },
        columns=(
            ACCURACY,
            VERIFIED,
            UNSOUND,
            IDLE,
            LENGTH,
            LEFT_OUT,
            Column("audit: unsound answers with the reward of the right one or more", "audit/unsound"),
            Column("audit: length bias", "audit/length_bias", "number"),
        ),
        panels=(VERIFIED_CURVE, LENGTH_CURVE),
        decides=(
            Difference(VERIFIED, "gated", "rule"),
            Difference(VERIFIED, "gated", "preferred"),
            Difference(VERIFIED, "gated", "judged"),
            Difference(IDLE, "preferred", "rule"),
            Difference(IDLE, "gated", "preferred"),
        ),
        needs="trained_judge",
    ),
    "prime": Claim(
        "PRIME: dense rewards from outcomes alone",
        arms={**PRIME_ARMS, "steps": "steps checked by a program (ceiling)"},
        columns=PRIME_COLUMNS,
        panels=(ACCURACY_CURVE, VERIFIED_CURVE),
        decides=(
            *PRIME_DECIDES,
            Difference(LEARNING, "steps", "outcome"),
            Difference(ACCURACY, "steps", "outcome"),
        ),
    ),
    "prime_larger": Claim(
        "PRIME with a process model that is larger than the policy",
        arms=PRIME_ARMS,
        columns=PRIME_COLUMNS,
        panels=(ACCURACY_CURVE, VERIFIED_CURVE),
        decides=PRIME_DECIDES,
    ),
    "prime_cpu": Claim(
        "What PRIME lacks on sums, with small models on a CPU",
        arms={
            "outcome": "answer alone (RLOO)",
            "steps": "steps checked by a program (ceiling)",
            "noisy": "steps, one verdict in five wrong",
            "noisier": "steps, two verdicts in five wrong",
            "prime": "PRIME, counted in full",
            "trusted": "PRIME with trust",
            "slow": "PRIME, a fifth of the learning rate",
            "unscaled": "PRIME, not normalised",
            "larger": "PRIME, larger process model",
            "knowing": "PRIME, process model from demonstrations without errors",
        },
        columns=(*PRIME_COLUMNS, Column("right against wrong steps, area under the curve", "policy/process/steps/auc")),
        panels=(ACCURACY_CURVE,),
        decides=tuple(
            Difference(column, arm, "outcome")
            for column in (LEARNING, ACCURACY)
            for arm in ("steps", "noisy", "noisier", "prime", "trusted", "slow", "unscaled", "larger", "knowing")
        ),
        curves={
            "outcome": "answer alone (RLOO)",
            "steps": "steps checked by a program (ceiling)",
            "noisy": "steps, one verdict in five wrong",
            "prime": "PRIME, counted in full",
            "larger": "PRIME, larger process model",
            "knowing": "PRIME, process model from demonstrations without errors",
        },
        gpu=False,
    ),
    "failures": Claim(
        "A failure is not a score",
        arms=FAILURE_ARMS,
        columns=FAILURE_COLUMNS,
        panels=(ACCURACY_CURVE, REPORTED_CURVE, LENGTH_CURVE),
        decides=FAILURE_DECIDES,
    ),
    "failures_cpu": Claim(
        "A failure is not a score, with a small model on a CPU",
        arms={
            **FAILURE_ARMS,
            "many_dropped": "40 % fail, left out",
            "many_zeros": "40 % fail, counted as 0",
        },
        columns=FAILURE_COLUMNS,
        panels=(ACCURACY_CURVE, REPORTED_CURVE),
        decides=(
            *FAILURE_DECIDES,
            Difference(ACCURACY, "many_dropped", "none"),
            Difference(ACCURACY, "many_zeros", "none"),
            Difference(ACCURACY, "many_zeros", "many_dropped"),
        ),
        gpu=False,
    ),
}
