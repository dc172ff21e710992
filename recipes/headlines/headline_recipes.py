"""From the plan of a claim to the recipe of a run: its seed, its arms, its models, what is changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headline_claims import CLAIMS
from headline_tiny import make_tiny

from rewardsmith.recipe import load_table, override

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
MODEL = "models/smollm2"
HALF = "models/smollm2-15-layers"
SMALL = "models/small"
LARGER = "models/larger"
RUNS = "runs/headlines/"
MAX_NAME = 80
"""Characters of a folder's name; a longer one ends with a hash."""

Table = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How the claims are run."""

    root: Path
    model: str = MODEL
    steps: int | None = None
    problem_steps: int | None = None
    pilot: bool = False
    tiny: bool = False
    changes: tuple[str, ...] = ()
    quiet: bool = False

    @property
    def differences(self) -> list[str]:
        """What differs from the recipes, for the record of the results."""
        model = [] if self.model == MODEL else [f"--model {self.model}"]
        numbers = {"--steps": self.steps, "--problem-steps": self.problem_steps}
        given = [f"{flag} {number}" for flag, number in numbers.items() if number is not None]
        flags = [flag for flag, on in {"--pilot": self.pilot, "--tiny": self.tiny}.items() if on]
        return [*self.changes, *model, *given, *flags]

    @property
    def folder(self) -> Path:
        """Where the runs are; those with other settings than the recipes' have a folder of their own."""
        text = " ".join(self.differences)
        name = re.sub(r"[^a-z0-9.=]+", "-", text.lower()).strip("-")
        if len(name) > MAX_NAME:
            name = f"{name[:MAX_NAME]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
        return self.root / name if name else self.root

    @property
    def results(self) -> Path:
        """Where the summaries are."""
        return self.folder / "results" if self.differences else RESULTS

    def of(self, claim: str) -> Plan:
        """Return the plan without what does not concern a claim: a judge that others use has no policy steps."""
        return self if CLAIMS[claim].arms else replace(self, steps=None)


def recipe_of(claim: str, seed: int, arms: Sequence[str], plan: Plan) -> Table:
    """Return the recipe of a claim with these arms."""
    table = load_table(HERE / f"{claim}.toml")
    table["seed"] = seed
    _keep_arms(table, claim, arms)
    if plan.pilot:
        _keep_start(table)
    judge = folder_of(plan, CLAIMS[claim].needs, seed) if CLAIMS[claim].needs else Path()
    _set_models(table, judge, "tiny-llama" if plan.tiny else plan.model, everywhere=plan.tiny)
    if plan.steps is not None:
        for stage in table["stages"]:
            if stage["name"] in CLAIMS[claim].arms:
                stage["steps"] = plan.steps
    if plan.problem_steps is not None:
        for source in table["data"].values():
            if source["type"].startswith("word-problems"):
                source["steps"] = plan.problem_steps
    if plan.tiny:
        make_tiny(table)
    for change in plan.changes:
        override(table, change)
    return table


def _set_models(table: Table, judge: Path, model: str, *, everywhere: bool) -> None:
    """Name the judge of the same seed, and the model in place of SmolLM2, or of all models."""
    for settings in table["models"].values():
        if str(settings.get("init", "")).startswith(RUNS):
            settings["init"] = str(judge / "models" / "judge")
        elif settings.get("init") == MODEL or (everywhere and "init" in settings):
            settings["init"] = model


def digest_of(claim: str, seed: int, arms: Sequence[str], plan: Plan) -> str:
    """Return a hash of a recipe, by which results of another version of it are known; wherever the runs are."""
    table = recipe_of(claim, seed, arms, replace(plan, root=Path(RUNS)))
    text = json.dumps(table, sort_keys=True, default=lambda thing: type(thing).__name__)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _keep_start(table: Table) -> None:
    """Leave out all but the imitation of the policy and what it can do after it."""
    names = [stage["name"] for stage in table["stages"]]
    if "start_answers" in names:
        table["stages"] = [stage for stage in table["stages"] if stage["name"] in ("imitation", "start_answers")]
        table["models"] = {"policy": table["models"]["policy"]}


def needs_of(claim: str, arms: Sequence[str]) -> str:
    """Return the claim whose model these arms use; "" where they use none."""
    table = load_table(HERE / f"{claim}.toml")
    _keep_arms(table, claim, arms)
    used = any(str(model.get("init", "")).startswith(RUNS) for model in table["models"].values())
    return CLAIMS[claim].needs if used else ""


def _keep_arms(table: Table, claim: str, arms: Sequence[str]) -> None:
    """Leave out the other arms, and what only they use: models, and the stages that train and measure these."""
    stages = [(stage, _arm_of(stage, claim), set(_models(stage))) for stage in table["stages"]]
    if not CLAIMS[claim].arms:
        return
    used = {name for _, arm, models in stages if arm in arms for name in models}
    used |= {table["models"][name]["copy_of"] for name in used if "copy_of" in table["models"][name]}
    table["stages"] = [stage for stage, arm, models in stages if arm in arms or (arm is None and models <= used)]
    table["models"] = {name: model for name, model in table["models"].items() if name in used}


def _arm_of(stage: Table, claim: str) -> str | None:
    """Return the arm that a stage is part of."""
    name = stage.get("name", stage["type"])
    stage["name"] = name
    return next((arm for arm in CLAIMS[claim].arms if name in (arm, f"{arm}_answers", f"audit_{arm}")), None)


def _models(table: object) -> Iterator[str]:
    """Yield the models that a stage names, however deep."""
    match table:
        case Mapping():
            for key, value in table.items():
                yield from [value] if key in ("model", "reference_model") else _models(value)
        case list():
            for value in table:
                yield from _models(value)


def folder_of(plan: Plan, claim: str, seed: int, arms: Sequence[str] = ()) -> Path:
    """Return the folder of a run; one with a part of the arms has a folder of its own."""
    part = "" if len(arms) in (0, len(CLAIMS[claim].arms)) else f"-{'-'.join(arms)}"
    return plan.of(claim).folder / f"{claim}-{seed}{part}"
