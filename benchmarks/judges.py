"""Asks a judge about many rollouts, beside the peers: the same prompts and the same faults, in one run.

    make bench-judges     # or: python benchmarks/judges.py [--clean 3072] [--faulty 960] [--concurrency 256]

The judge is `judges_server.py`: a process of its own, fixed latency and capacity, verdicts that are known beforehand.

1. Clean: calls per second, how much of the server's capacity is kept busy, and what a call costs the client's CPU.
2. Faults: one request in twenty fails. A reward that is not the true one is false, unless there is none. What each
   client makes of each fault is shown; its first request for a rollout meets the same fault as that of the others.
3. Tokens for a group: a rubric rollout by rollout, the whole group in one call, and both once more with the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from judges_server import FAULTS, MARK, Behaviour, Counts, behave, counted, fault, mark, truth, verdict
from rich.console import Console
from rich.table import Table

from rewardsmith import Message, Prompt, Rollout, RolloutGroup
from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.llm import ChatReply, ChatRequest, Usage
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.cache import CachedModel, VerdictCache

HERE = Path(__file__).parent
SIZE = 8  # rollouts in a group
PATIENCE = 60.0  # seconds for a request where nothing fails
PEERS = {"verl": "verl, rate-limited manager", "verifiers": "verifiers", "openai": "openai"}
OURS, BARE = "rewardsmith", "rewardsmith, no cache"
RUBRIC = {"type": "rubric", "model": "judge"}
RANKING = {"type": "ranking", "model": "judge"}
STEP = "We set up the equation, collect the terms on one side, and see that the constraint still holds. "
CRITERIA = [
    {"text": "The equation follows from the conditions of the problem.", "points": 4},
    {"text": "Every transformation is valid, and none is left out.", "points": 4},
    {"text": "The result is stated, and it follows from what stands before.", "points": 2},
]

NOTES = """\
Capacity busy is counted from the first request to the last one. All rollouts are handed over at once, and all clients
keep as many calls in flight as the server has slots. CPU is that of the client's process. A verdict is never 0.
verl: the manager with a reward function like that of its documentation, one process. 0 is what it would train on. A
flag stands beside it where a call raised or took too long, and none where the verdict could not be read.
verifiers: a task whose reward is a judge. What fails is recorded and left out; it asks again only by running the whole
rollout again, where its settings say so. It opens a client for each call.
openai: the client with its own two retries. Its user's code, here, takes 0 where the verdict cannot be read, and must
catch what is raised."""


@dataclass(frozen=True)
class Terms:
    """On what terms all clients ask.

    Attributes:
        address: of the server.
        concurrency: calls in flight.
    """

    address: str
    concurrency: int


@dataclass(frozen=True)
class Phase:
    """Something that every client does.

    Attributes:
        behaviour: of the server.
        limit: seconds that a client gives a request.
        groups: that are scored, all at once.
        prompts: that a judge is asked for them, one for each rollout.
    """

    behaviour: Behaviour
    limit: float
    groups: list[RolloutGroup]
    prompts: list[str]


@dataclass(frozen=True)
class Result:
    """What came out of a phase.

    Attributes:
        seconds: from the first call to the last answer.
        cpu: seconds that the client's process computed.
        outcomes: for each rollout the reward, or None where there is none, and what was said about it.
        counts: of the server.
    """

    seconds: float
    cpu: float
    outcomes: list[tuple[float | None, str]]
    counts: Counts


def make_groups(rollouts: int, seed: int) -> list[RolloutGroup]:
    """Return groups whose rollouts are numbered from 0; an answer has some 300 tokens."""
    draw = random.Random(seed)
    groups = []
    for first in range(0, rollouts, SIZE):
        question = f"A problem, number {first}. " + "It has several conditions, of which each one matters. " * 6
        texts = [f"{mark(first + i)}. {STEP * draw.randint(8, 16)}" for i in range(min(SIZE, rollouts - first))]
        prompt = Prompt(f"problem-{first}", [Message("user", question)], answer="12", info={"criteria": CRITERIA})
        groups.append(RolloutGroup(prompt, [Rollout(text) for text in texts]))
    return groups


class Recorder:
    """A model that notes what it is asked."""

    name = "judge"

    def __init__(self) -> None:
        self.usage = Usage()
        self.prompts: dict[int, str] = {}

    async def identity(self) -> str:
        """Return its name."""
        return self.name

    async def check(self) -> None:
        """Find nothing wrong."""

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Note the prompt, and answer as the server would."""
        turns = question.prompt
        text = turns if isinstance(turns, str) else "\n\n".join(turn.content for turn in turns)
        number = int(MARK.findall(text)[0])
        self.prompts[number] = text
        return ChatReply(verdict([number]))


def make_phase(behaviour: Behaviour, limit: float, rollouts: int, seed: int) -> Phase:
    """Return a phase; its prompts are those that our judge asks, so that the peers ask the very same."""
    recorder, groups = Recorder(), make_groups(rollouts, seed)
    scored = asyncio.run(score_all(groups, recorder))
    wrong = sum(value != truth(i) / 10 for i, (value, _) in enumerate(scored))
    if wrong:
        raise SystemExit(f"{wrong} of {rollouts} verdicts are not read as they are meant")
    return Phase(behaviour, limit, groups, [recorder.prompts[i] for i in range(rollouts)])


async def score_all(
    groups: Sequence[RolloutGroup], model: Any, table: dict[str, Any] = RUBRIC
) -> list[tuple[float | None, str]]:
    """Return the reward of every rollout, or None and why; all groups are handed over at once, as in a step."""
    reward = make_reward(table, {"judge": model})
    scored = await asyncio.gather(*map(reward.score, groups))
    return [(s.value, s.failure.kind if s.failure else "") for scores in scored for s in scores]


@contextmanager
def server() -> Iterator[str]:
    """Start the server; yield its address."""
    process = subprocess.Popen([sys.executable, str(HERE / "judges_server.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


async def ours(terms: Terms, phases: Sequence[Phase], cached: bool) -> list[Result]:
    """Score the groups of each phase with our rubric judge."""
    address, results = terms.address, []
    async with AsyncExitStack() as stack:
        for phase in phases:
            cache = stack.enter_context(closing(VerdictCache(stack.enter_context(tempfile.TemporaryDirectory()))))
            settings = ClientSettings(version="1", concurrency=terms.concurrency, timeout=phase.limit)
            model = await stack.enter_async_context(ServedModel(settings, [f"{address}/v1"], name="judge"))
            behave(address, phase.behaviour)
            begun, cpu = time.perf_counter(), time.process_time()
            outcomes = await score_all(phase.groups, CachedModel(model, cache) if cached else model)
            seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
            results.append(Result(seconds, cpu, outcomes, counted(address)))
    return results


def theirs(terms: Terms, phases: Sequence[Phase], way: str, python: str) -> list[Result]:
    """Let a peer ask about the same prompts, in its own environment."""
    todo = [{"behaviour": asdict(p.behaviour), "limit": p.limit, "prompts": p.prompts} for p in phases]
    work = asdict(terms) | {"phases": todo}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.json"
        file.write_text(json.dumps(work))
        command = [python, str(HERE / "judges_peers.py"), str(file), way]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return [Result(**{**one, "counts": Counts(**one["counts"])}) for one in json.loads(done.stdout.splitlines()[-1])]


def judged(number: int, value: float | None, said: str) -> str:
    """Return what a reward is: `true`, `false`, `none` where that is what is said, or `raised`."""
    if value is None:
        return "raised" if said.startswith("raised") else "none"
    return "true" if abs(value - truth(number) / 10) < 1e-6 else "false"


def all_judged(result: Result) -> list[str]:
    """Return what each reward of a phase is."""
    return [judged(number, *outcome) for number, outcome in enumerate(result.outcomes)]


def show_clean(console: Console, results: dict[str, Result], behaviour: Behaviour) -> None:
    """Print the speeds."""
    most = behaviour.slots / behaviour.latency
    title = f"no faults, {behaviour.slots} slots of {behaviour.latency:g} s: at most {most:g} calls/s"
    columns = ("calls", "calls/s", "ours is faster by", "capacity busy", "first request after", "CPU ms/call")
    table = Table("client", *columns, title=title)
    speeds = {name: len(result.outcomes) / result.seconds for name, result in results.items()}
    for name, result in results.items():
        calls, speed, counts = len(result.outcomes), speeds[name], result.counts
        busy, waited, cpu = f"{counts.busy:.1%}", f"{counts.waited:.2f} s", f"{1e3 * result.cpu / calls:.2f}"
        table.add_row(name, f"{calls:,}", f"{speed:,.0f}", f"{speeds[OURS] / speed:.1f}x", busy, waited, cpu)
        if set(all_judged(result)) != {"true"}:
            console.print(f"{name}: {Counter(all_judged(result))} without any fault")
    console.print(table)


def show_faulty(console: Console, results: dict[str, Result], behaviour: Behaviour) -> None:
    """Print what became of the rewards, and what each client makes of each fault."""
    columns = ("false reward", "with a flag beside it", "none, and said so", "raised", "requests", "seconds")
    table = Table("client", *columns, title=f"one request in {1 / behaviour.faults:.0f} fails")
    for name, result in results.items():
        whats, rollouts = all_judged(result), len(result.outcomes)
        found = Counter(whats)
        false = f"{found['false']} ({found['false'] / rollouts:.1%})"
        flagged = sum(what == "false" and said != "" for what, (_, said) in zip(whats, result.outcomes, strict=True))
        numbers = (flagged, found["none"], found["raised"], f"{result.counts.requests:,}", f"{result.seconds:.1f}")
        table.add_row(name, false, *map(str, numbers))
    console.print(table)
    table = Table("the first request meets", "rollouts", *results, title="what the reward is then")
    for kind in FAULTS:
        met = [i for i in range(len(results[OURS].outcomes)) if fault(behaviour, i, 0) == kind]
        made = [Counter(judged(i, *result.outcomes[i]) for i in met).most_common() for result in results.values()]
        table.add_row(kind, str(len(met)), *(", ".join(f"{n} {what}" for what, n in counts) for counts in made))
    console.print(table)


async def tokens(console: Console, address: str, groups: list[RolloutGroup]) -> None:
    """Print what a group costs: by rubric and by ranking, asked for the first time and once more."""
    settings = ClientSettings(version="1")  # the server does not reply to probes
    title = f"tokens asked for a group of {SIZE}, four letters each"
    table = Table("judge", "calls", "read", "written", "all, as a share of the first", title=title)
    first = 0
    async with AsyncExitStack() as stack:
        cache = stack.enter_context(closing(VerdictCache(stack.enter_context(tempfile.TemporaryDirectory()))))
        model = CachedModel(
            await stack.enter_async_context(ServedModel(settings, [f"{address}/v1"], name="judge")), cache
        )
        for name, chosen in (("rubric, rollout by rollout", RUBRIC), ("ranking, the group in one call", RANKING)):
            for again in ("", ", once more with the cache"):
                behave(address, Behaviour(latency=0.01))
                outcomes = await score_all(groups, model, chosen)
                whats = Counter(judged(number, *outcome) for number, outcome in enumerate(outcomes))
                if set(whats) != {"true"}:
                    console.print(f"{name}: {whats} without any fault")
                counts, n = counted(address), len(groups)
                first = first or counts.read + counts.written
                share = f"{(counts.read + counts.written) / first:.0%}"
                numbers = [f"{count / n:,.0f}" for count in (counts.requests, counts.read, counts.written)]
                table.add_row(name + again, *numbers, share)
    console.print(table)


def main() -> None:
    """Run the three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", type=int, default=3072, help="calls without faults")
    parser.add_argument("--slow", type=int, default=512, help="of them, those of verifiers, which is slow")
    parser.add_argument("--faulty", type=int, default=960, help="calls with faults")
    parser.add_argument("--latency", type=float, default=1.0, help="seconds for an answer, without faults")
    parser.add_argument("--concurrency", type=int, default=256, help="calls in flight, and slots of the server")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds that a request may take, with faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--peer-python", default=str(HERE.parent / ".venv-peers/bin/python"), help="'' leaves peers out"
    )
    chosen = parser.parse_args()
    console, width = Console(width=150), chosen.concurrency
    clean = Behaviour(latency=chosen.latency, slots=width)
    faulty = Behaviour(latency=0.25, slots=width, faults=0.05, seed=chosen.seed + 1)
    phases = [
        make_phase(Behaviour(latency=0.01), PATIENCE, 64, chosen.seed),  # warms up
        make_phase(clean, PATIENCE, chosen.clean, chosen.seed),
        make_phase(faulty, chosen.limit, chosen.faulty, chosen.seed),
    ]
    slower = [phases[0], make_phase(clean, PATIENCE, min(chosen.slow, chosen.clean), chosen.seed), phases[2]]
    console.print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    with server() as address:
        terms = Terms(address, width)
        results = {OURS: asyncio.run(ours(terms, phases, True)), BARE: asyncio.run(ours(terms, phases, False))}
        for way, name in PEERS.items() if chosen.peer_python else ():
            work = slower if way == "verifiers" else phases
            results[name] = theirs(terms, work, way, chosen.peer_python)
        console.print(f"load after {os.getloadavg()[0]:.1f}")
        show_clean(console, {name: result[1] for name, result in results.items()}, clean)
        show_faulty(console, {name: result[2] for name, result in results.items()}, faulty)
        asyncio.run(tokens(console, address, make_groups(32 * SIZE, chosen.seed)))
        console.print(NOTES)


if __name__ == "__main__":
    main()
