"""Ports and names: whose server it is that answers, and what it calls the model. The server is `small_server`."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardsmith.engines.managed.managed_model import served_name
from rewardsmith.errors import UserError
from tests.engines.processes import alive, eventually
from tests.engines.test_managed import SERVER, Told, managed, pid_of, question


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(model: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server that somebody else has started."""
    values = ["--model", model, "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen([sys.executable, SERVER, *values], stdout=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _listens(port))
            yield process
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_that_was_taken_meanwhile_is_replaced_by_another(tmp_path: Path) -> None:
    async def run() -> Told:
        told = Told()
        model = managed(tmp_path, "--busy-once", str(tmp_path / "taken"), told=told)
        await model.check()
        await model.close()
        return told

    assert "was taken meanwhile; trying another" in asyncio.run(run())


def test_who_is_on_the_port_already_is_not_taken_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = free()
    ports = [taken, free()]
    monkeypatch.setattr("rewardsmith.engines.managed.managed_model.free_port", lambda _: ports.pop(0))

    async def run() -> int:
        model = managed(tmp_path, model="other", told=told)
        pid = await pid_of(model)
        await model.close()
        return pid

    told = Told()
    with running("stranger", taken) as stranger:
        assert asyncio.run(run()) != stranger.pid
    assert f"port {taken} was taken meanwhile" in told


@pytest.mark.parametrize(
    ("model", "lists", "called"),
    [("llama3", "qwen,llama3", "llama3"), ("llama3", "qwen,llama3:latest", "llama3:latest"), ("a.gguf", "x", "x")],
)
def test_a_server_that_lists_several_models_is_asked_for_ours(
    tmp_path: Path, model: str, lists: str, called: str
) -> None:
    async def run() -> str:
        judge = managed(tmp_path, "--lists", lists, model=model)
        try:
            await judge.check()
            return (await judge.chat(question("model"))).text
        finally:
            await judge.close()

    assert asyncio.run(run()) == called


def test_a_server_that_lists_only_others_is_refused(tmp_path: Path) -> None:
    model = managed(tmp_path, "--lists", "qwen,mistral", model="llama3")
    with pytest.raises(
        UserError, match=r"models\.judge\.model: the server has 2 models: mistral, qwen; none .* llama3"
    ):
        asyncio.run(model.check())


def test_a_healthy_server_with_the_model_is_used_and_left_alone(tmp_path: Path) -> None:
    port = free()

    async def run() -> int:
        told = Told()
        model = managed(tmp_path, port=port, told=told)
        pid = await pid_of(model)
        await model.check()
        await model.close()
        assert "using the server at http://127.0.0.1" in told
        return pid

    with running("small", port) as process:
        assert asyncio.run(run()) == process.pid
        assert alive(process.pid)
        assert process.poll() is None


def test_a_server_that_was_found_is_known_by_what_it_says(tmp_path: Path) -> None:
    weights = tmp_path / "judge.gguf"
    weights.write_bytes(b"one")
    port = free()

    async def identity(*arguments: str, **settings: object) -> str:
        model = managed(tmp_path, *arguments, model=str(weights), **settings)
        try:
            return await model.identity()
        finally:
            await model.close()

    with running(str(weights), port):
        weights.write_bytes(b"two")  # which that server has never seen
        found = asyncio.run(identity(port=port))
        assert json.loads(found)["model"] == str(weights)
        assert found == asyncio.run(identity("--of-no-effect", port=port))
    name = served_name(str(weights))
    with running(name, port):
        assert json.loads(asyncio.run(identity(port=port)))["model"] == name


def test_a_server_with_another_model_is_refused(tmp_path: Path) -> None:
    port = free()
    with running("large", port), pytest.raises(UserError) as caught:
        asyncio.run(managed(tmp_path, port=port).check())
    assert f"models.judge.port = {port}: a server with the models large listens" in str(caught.value)


def test_something_else_on_the_port_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async def bang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(bang, "127.0.0.1", 0) as other:
            await managed(tmp_path, port=other.sockets[0].getsockname()[1]).check()

    with pytest.raises(UserError, match="something that is not a healthy server"):
        asyncio.run(run())


def test_a_port_of_ones_own_is_taken_if_it_is_free(tmp_path: Path) -> None:
    port = free()

    async def run() -> None:
        model = managed(tmp_path, port=port)
        await model.check()
        assert _listens(port)
        await model.close()
        assert not _listens(port)

    asyncio.run(run())
