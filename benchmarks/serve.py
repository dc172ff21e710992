"""Measures `rewardsmith serve` with real processes on the loopback.

    python benchmarks/serve.py [--seconds 5] [--peer PYTHON]     # PYTHON: an interpreter that has fastapi and uvicorn

1. Requests per second for a cheap rule, with 1 and 2 processes, and latency under 256 concurrent clients. A request is
   one sample in OpenRLHF's form, or a group of 8 answers in our own. The load comes from a process of its own.
2. Faults: the reward is a judge behind `judges_server.py`, of whose requests 30 % fail. A value that is not the true
   one is false; a failure is not.
3. SIGTERM under load: a request that was sent on an accepted connection and has no reply is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from judges_server import Behaviour, behave, counted, mark, truth
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
CLIENTS = 256
RULE = 'type = "rule"\nrule = "exact"\n'
IN_PROCESS = 'type = "serve_rewards:Exact"\n'
JUDGE = """cache = ""
type = "rubric"
model = "judge"
criteria = "10 points for a good answer."
[models.judge]
type = "server"
urls = ["{address}/v1"]
timeout = 5
"""
PROMPT = "How much is 6 times 7? Give the number alone."
SAMPLE = {"query": [f"{PROMPT}42"], "prompts": [PROMPT], "labels": ["42"]}
GROUP = {"prompt": PROMPT, "answer": "42", "responses": ["42", "41", "about 42", "43", "42", "44", "45", "46"]}


@dataclass(frozen=True)
class Load:
    """What a load of requests showed: their number per second, and latencies in seconds."""

    rate: float
    p50: float
    p99: float
    errors: int
    all: int  # requests, those of the first second too, which are in no other figure
    cpu: float = 0.0  # seconds of the server's processes for one request


def cpu_seconds(root: int) -> float:
    """Return the CPU time of a process and of all that it has started."""
    times, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(") ")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        times[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def inside(pid: int) -> bool:
        return pid == root or (pid in parents and inside(parents[pid]))

    return sum(used for pid, used in times.items() if inside(pid))


@contextmanager
def serving(reward: str, *arguments: str, processes: int = 1) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `rewardsmith serve`; yield its address and process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reward.toml"
        file.write_text(reward, encoding="utf-8")
        port = _free_port()
        line = [sys.executable, "-m", "rewardsmith", "serve", str(file), "--port", str(port)]
        paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [*line, "--processes", str(processes), *arguments], stderr=log, env=os.environ | {"PYTHONPATH": paths}
            )
        with _ended(process):
            yield _ready(f"http://127.0.0.1:{port}", processes), process


@contextmanager
def peer(python: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the server of `serve_peer.py`."""
    port = _free_port()
    process = subprocess.Popen([python, str(HERE / "serve_peer.py"), str(port)])
    with _ended(process):
        yield _ready(f"http://127.0.0.1:{port}"), process


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _ready(address: str, processes: int = 1) -> str:
    """Wait until a server is ready, and so often in a row that all its processes are."""
    until, ready = time.monotonic() + 60, 0
    while ready < 20 * processes:
        if time.monotonic() > until:
            raise SystemExit(f"{address} is not ready after 60 s")
        try:
            with urllib.request.urlopen(f"{address}/ready", timeout=5) as reply:
                ready += reply.status == 200
        except OSError:
            ready = 0
            time.sleep(0.1)
    return address


# ---- load ----------------------------------------------------------------------------------------------------------


def load(server: int, address: str, path: str, body: Any, *, clients: int, seconds: float) -> Load:
    """Return what `clients` connections get that send one request after the other, from another process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        before = cpu_seconds(server)
        found = pool.apply(_load, (address, path, body, clients, seconds))
        return replace(found, cpu=(cpu_seconds(server) - before) / found.all)


def _load(address: str, path: str, body: Any, clients: int, seconds: float) -> Load:
    return asyncio.run(_load_all(address, path, body, clients, seconds))


async def _load_all(address: str, path: str, body: Any, clients: int, seconds: float) -> Load:
    host, _, port = address.removeprefix("http://").partition(":")
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    request = head.encode() + b"\r\n" + data
    latencies: list[float] = []
    errors = requests = 0
    warm = time.perf_counter() + 1.0
    until = warm + seconds

    async def client() -> None:
        nonlocal errors, requests
        reader, writer = await asyncio.open_connection(host, int(port))
        while (begun := time.perf_counter()) < until:
            writer.write(request)
            reply = await reader.readuntil(b"\r\n\r\n")
            lowered = reply.lower()
            at = lowered.index(b"content-length:") + 15
            await reader.readexactly(int(lowered[at : lowered.index(b"\r\n", at)]))
            requests += 1
            if begun > warm:
                latencies.append(time.perf_counter() - begun)
                errors += not reply.startswith(b"HTTP/1.1 200")
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    latencies.sort()
    return Load(
        len(latencies) / seconds, *(latencies[int(q * (len(latencies) - 1))] for q in (0.5, 0.99)), errors, requests
    )


def speed(seconds: float, peer_python: str | None) -> None:
    """Print requests per second and latencies."""
    table = Table("server", "processes", "request", "clients", "requests/s", "p50 ms", "p99 ms", "CPU µs", "errors")
    rates: dict[tuple[str, int], float] = {}

    def row(name: str, processes: int, server: int, address: str, path: str, body: Any, clients: int) -> None:
        found = load(server, address, path, body, clients=clients, seconds=seconds)
        shown = "one sample" if body is SAMPLE else "group of 8"
        times = (f"{1000 * found.p50:.1f}", f"{1000 * found.p99:.1f}")
        table.add_row(
            name,
            str(processes),
            shown,
            str(clients),
            f"{found.rate:,.0f}",
            *times,
            f"{1e6 * found.cpu:,.0f}",
            str(found.errors),
        )
        if body is SAMPLE:
            rates[name, processes] = found.rate

    for name, reward in (("rule in worker processes", RULE), ("reward in the server", IN_PROCESS)):
        for processes in (1, 2):
            with serving(reward, processes=processes) as (address, process):
                row(name, processes, process.pid, address, "/get_reward", SAMPLE, CLIENTS)
                row(name, processes, process.pid, address, "/score", GROUP, CLIENTS)
    if peer_python is not None:
        with peer(peer_python) as (address, process):
            row("FastAPI, uvicorn", 1, process.pid, address, "/get_reward", SAMPLE, CLIENTS)
    Console(width=120).print(table)
    if peer_python is not None:
        base = rates["FastAPI, uvicorn", 1]
        for (name, processes), rate in rates.items():
            print(f"{name}, {processes} process(es): {rate / base:.2f} of the peer's requests/s")


# ---- faults --------------------------------------------------------------------------------------------------------


def faults(count: int) -> None:
    """Print how many values are false while the judge behind the server fails."""
    judge = subprocess.Popen([sys.executable, str(HERE / "judges_server.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert judge.stdout is not None
        address = f"http://127.0.0.1:{int(judge.stdout.readline())}"
        behave(address, Behaviour(latency=0.02, slots=128, faults=0.3, seed=1))
        with serving(JUDGE.format(address=address), "--deadline", "60") as (served, _):
            found = asyncio.run(_judged(served, range(count)))
        values = {number: score["value"] for number, score in found if score["value"] is not None}
        false = sum(abs(10 * value - truth(number)) > 1e-6 for number, value in values.items())
        kinds = Counter(score["failure"]["kind"] for _, score in found if score["failure"])
        met = sum(counted(address).faults.values())
        print(f"judge with faults: {met} faults, {len(values)} values, {false} false, failures {dict(kinds)}")
    finally:
        judge.terminate()
        judge.wait(30)


async def _judged(served: str, numbers: Sequence[int]) -> list[tuple[int, Any]]:
    """Return each number with its score, from both forms."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:

        async def one(number: int) -> tuple[int, Any]:
            group = {"prompt": "Solve it.", "responses": [f"It is solved: {mark(number)}"]}
            while True:
                async with session.post(f"{served}/score", json=group) as reply:
                    body = await reply.json()
                    if reply.status == 200:
                        return number, body["scores"][0]
                await asyncio.sleep(0.2)

        return list(await asyncio.gather(*map(one, numbers)))


# ---- SIGTERM -------------------------------------------------------------------------------------------------------


async def _stopped_under_load(address: str, process: subprocess.Popen[bytes]) -> tuple[int, int, int]:
    """Return the replies, the lost requests, and the connections that were refused after the end."""
    replies = lost = refused = 0

    async def client() -> None:
        nonlocal replies, lost, refused
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.post(f"{address}/score", json=GROUP) as reply:
                        await reply.json()
                        replies += reply.status == 200
                        lost += reply.status != 200
                except aiohttp.ClientConnectorError:
                    refused += 1
                    return
                except aiohttp.ClientError:
                    lost += 1
                    return

    async def stop() -> None:
        await asyncio.sleep(2.0)
        process.send_signal(signal.SIGTERM)

    await asyncio.gather(stop(), *(client() for _ in range(CLIENTS)))
    return replies, lost, refused


def main() -> None:
    """Run all three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--rollouts", type=int, default=600, help="that the faulty judge scores")
    parser.add_argument("--peer", help="interpreter that has fastapi and uvicorn")
    options = parser.parse_args()
    speed(options.seconds, options.peer)
    faults(options.rollouts)
    for processes in (1, 2):
        with serving(RULE, processes=processes) as (address, process):
            replies, lost, refused = asyncio.run(_stopped_under_load(address, process))
            status = process.wait(60)
        print(
            f"SIGTERM under {CLIENTS} clients, {processes} process(es): {replies:,} replies, {lost} lost,"
            f" {refused} refused after the end, exit status {status}"
        )


if __name__ == "__main__":
    main()
