"""`rewardsmith serve` as real processes: signals, workers that die, addresses that need a token."""

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path

import aiohttp
import pytest

from rewardsmith.integrations.server_worker import IDLE_GRACE
from tests.command_line import call
from tests.engines.processes import alive, eventually
from tests.integrations.serving import Command, command

SLOW = 'type = "tests.integrations.slow_rewards:Slow"\nseconds = {seconds}\n'
GROUP = {"prompt": "?", "responses": ["four"]}


async def ask(url: str, session: aiohttp.ClientSession) -> list[float]:
    async with session.post(f"{url}/score", json=GROUP) as reply:
        body = await reply.json()
        assert reply.status == 200, body
        return [score["value"] for score in body["scores"]]


def in_flight(served: Command) -> int:
    _, text = served.get("/metrics")
    return sum(int(line.split()[-1]) for line in text.splitlines() if line.startswith("rewardsmith_rollouts_in_flight"))


def worker_pids(served: Command) -> list[int]:
    """Return the children of the supervisor that are workers of the server."""
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text(encoding="ascii")
    return [pid for pid in map(int, children.split()) if alive(pid)]


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_finishes_what_was_accepted(tmp_path: Path, processes: int) -> None:
    async def run(served: Command) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            tasks = [asyncio.create_task(ask(served.url, session)) for _ in range(40)]
            while await asyncio.to_thread(in_flight, served) < 40:
                await asyncio.sleep(0.02)
            os.kill(served.process.pid, signal.SIGTERM)
            assert await asyncio.gather(*tasks) == [[4.0]] * 40

    with command(tmp_path, SLOW.format(seconds=3.0), processes=processes) as served:
        asyncio.run(run(served))
        assert served.process.wait(30) == 0
        log = served.log.read_text(encoding="utf-8")
        assert log.count("draining") == log.count("stopped") == processes
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), timeout=5).close()


def test_readiness_ends_with_the_first_signal_and_a_request_on_an_open_connection_is_still_answered(
    tmp_path: Path,
) -> None:
    async def run(served: Command) -> None:
        async with aiohttp.ClientSession() as session:
            first = asyncio.create_task(ask(served.url, session))
            async with session.get(f"{served.url}/ready") as reply:
                assert reply.status == 200
                await reply.read()
            os.kill(served.process.pid, signal.SIGTERM)
            await asyncio.to_thread(served.logged, "draining")
            async with session.get(f"{served.url}/ready") as reply:  # on the connection that is open
                assert reply.status == 503
                assert reply.headers["Connection"] == "close"
            assert await first == [4.0]

    with command(tmp_path, SLOW.format(seconds=2.0)) as served:
        asyncio.run(run(served))
        assert served.process.wait(30) == 0


def test_sigterm_waits_for_a_client_that_reads_slowly(tmp_path: Path) -> None:
    params, output = {"input": "?"}, [{"type": "message", "content": "four"}]
    body = json.dumps({"responses_create_params": params, "response": {"output": output, "pad": "x" * 8_000_000}})
    head = f"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with command(tmp_path, SLOW.format(seconds=0.0)) as served, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(30)
        client.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        client.sendall(f"{head}{body}".encode())
        eventually(lambda: 'endpoint="/verify",status="200"' in served.get("/metrics")[1])  # the reply is made
        os.kill(served.process.pid, signal.SIGTERM)
        served.logged("draining")
        time.sleep(2 * IDLE_GRACE)
        reply = b""
        while part := client.recv(2**20):
            reply += part
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["reward"] == 4.0
        assert served.process.wait(30) == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_signal_ends_at_once(tmp_path: Path, processes: int) -> None:
    async def run(served: Command) -> None:
        async with aiohttp.ClientSession() as session:
            task = asyncio.create_task(ask(served.url, session))
            while await asyncio.to_thread(in_flight, served) < 1:
                await asyncio.sleep(0.02)
            os.kill(served.process.pid, signal.SIGTERM)
            await asyncio.to_thread(served.logged, "draining", processes)
            os.kill(served.process.pid, signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await task

    with command(tmp_path, SLOW.format(seconds=600.0), processes=processes) as served:
        asyncio.run(run(served))
        assert served.process.wait(30) == 1


def test_a_worker_that_dies_is_replaced_and_the_others_serve_meanwhile(tmp_path: Path) -> None:
    with command(tmp_path, SLOW.format(seconds=0.0), processes=2) as served:
        before = worker_pids(served)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        for _ in range(20):
            assert served.get("/ready")[0] == 200
        served.logged(r"ended with status -9; again")
        served.logged(r"(?m)ready$", 3)
        after = worker_pids(served)
        assert len(after) == 2
        assert before[1] in after
        assert before[0] not in after
        _, text = served.get("/metrics")
        assert 'process="0"' in text
        assert 'process="1"' in text
        # Each process counts for itself, and any of them returns the counts of all.
        ready = [line for line in text.splitlines() if line.startswith("rewardsmith_ready{")]
        assert [line.split()[-1] for line in ready] == ["1", "1"]


def test_a_worker_that_was_ready_is_replaced_whatever_its_status(tmp_path: Path) -> None:
    async def lose(served: Command) -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await ask(served.url, session)

    with command(tmp_path, 'type = "tests.integrations.slow_rewards:end_process"\n', processes=2) as served:
        asyncio.run(lose(served))
        served.logged(r"ended with status 2; again")
        served.logged(r"(?m)ready$", 3)
        assert served.get("/ready")[0] == 200


def test_a_worker_that_was_never_ready_stops_the_server_with_a_mistake_of_the_user(tmp_path: Path) -> None:
    with command(tmp_path, 'type = "tests.integrations.slow_rewards:BadSetting"\n', processes=2, ready=False) as served:
        assert served.process.wait(30) == 2
        assert "error: " in served.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("processes", [1, 2])
def test_it_ends_although_a_function_hangs(tmp_path: Path, processes: int) -> None:
    async def run(served: Command) -> None:
        async with aiohttp.ClientSession() as session, session.post(f"{served.url}/score", json=GROUP) as reply:
            assert (await reply.json())["scores"][0]["failure"]["kind"] == "timeout"

    reward = 'type = "tests.integrations.slow_rewards:hang"\n'
    with command(tmp_path, reward, "--deadline", "0.5", processes=processes) as served:
        asyncio.run(run(served))
        os.kill(served.process.pid, signal.SIGTERM)
        assert served.process.wait(30) == 0
        assert "stopped" in served.log.read_text(encoding="utf-8")


def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with command(tmp_path, SLOW.format(seconds=0.0), processes=2) as served:
        workers = worker_pids(served)
        served.process.kill()
        served.process.wait(30)
        eventually(lambda: not any(map(alive, workers)))


def test_a_reward_that_cannot_work_yet_is_not_ready(tmp_path: Path) -> None:
    reward = 'type = "tests.integrations.slow_rewards:NeverReady"\n'
    with command(tmp_path, reward, ready=False) as served:
        served.logged("not ready, checking again")
        assert served.get("/health")[0] == 200
        status, text = served.get("/ready")
        assert status == 503
        assert "nobody there" in json.loads(text)["error"]["message"]
        served.process.terminate()
        assert served.process.wait(30) == 0


def test_many_clients_lose_nothing_when_it_is_stopped_under_load(tmp_path: Path) -> None:
    """Every request gets a reply, or its connection was never accepted."""

    async def client(served: Command, stop: asyncio.Event, replies: list[int]) -> None:
        async with aiohttp.ClientSession() as session:
            while not stop.is_set():
                try:
                    async with session.post(f"{served.url}/score", json=GROUP) as reply:
                        assert (await reply.json())["scores"][0]["value"] == 4.0
                        replies.append(reply.status)
                except aiohttp.ClientConnectorError:  # the port is closed
                    return

    async def run(served: Command) -> list[int]:
        stop, replies = asyncio.Event(), list[int]()
        tasks = [asyncio.create_task(client(served, stop, replies)) for _ in range(32)]
        while len(replies) < 100:
            await asyncio.sleep(0.02)
        os.kill(served.process.pid, signal.SIGTERM)
        async with asyncio.timeout(30):
            await asyncio.gather(*tasks)
        return replies

    with command(tmp_path, SLOW.format(seconds=0.02), processes=2) as served:
        assert set(asyncio.run(run(served))) == {200}
        assert served.process.wait(30) == 0


def test_an_address_that_others_can_reach_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "reward.toml"
    file.write_text('type = "rule"\nrule = "math"\n', encoding="utf-8")
    result = call("serve", str(file), "--host", "0.0.0.0", "--port", "0")
    assert result.status == 2
    assert "--token-env" in result.err
    monkeypatch.setenv("SERVE_TOKEN", "short")
    result = call("serve", str(file), "--token-env", "SERVE_TOKEN")
    assert result.status == 2
    assert "SERVE_TOKEN" in result.err
    result = call("serve", str(file), "--token-file", str(tmp_path / "none"))
    assert result.status == 2
    assert "none" in result.err
    result = call("serve", str(tmp_path / "rewrad.toml"))
    assert result.status == 2
    assert 'Did you mean "reward.toml"' in result.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = call("serve", str(file), "--port", str(taken.getsockname()[1]))
    assert result.status == 2
    assert "--port" in result.err


def test_the_token_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-long-token\n", encoding="utf-8")
    reward = 'type = "rule"\nrule = "math"\n'
    with command(tmp_path, reward, "--host", "0.0.0.0", "--token-file", str(tmp_path / "token")) as served:
        served.url = served.url.replace("0.0.0.0", "127.0.0.1")
        assert served.get("/metrics")[0] == 401
        assert served.get("/health")[0] == 200
        time.sleep(0)
