"""`rewardsmith serve`: options, the listening socket, and one or several processes."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import socket
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from rewardsmith.errors import UserError

BACKLOG = 4096
"""Connections that may wait to be accepted."""

_POSITIVE = validators.Number(gt=0)


@dataclass(frozen=True)
class ServeOptions:
    """What a process of the server needs to know; it travels to the worker processes as JSON."""

    reward: str
    overrides: tuple[str, ...] = ()
    deadline: float = 170.0
    drain: float = 180.0
    max_body: int = 16
    max_in_flight: int = 4096
    concurrency: int = 256
    token_env: str | None = None
    token_file: str | None = None
    processes: int = 1

    def token(self) -> str | None:
        """Return the token that requests must have; a `UserError` if it is named and not there."""
        if self.token_env is not None and self.token_file is not None:
            raise UserError("--token-env and --token-file are both given: leave one out")
        if self.token_env is not None:
            token, where = os.environ.get(self.token_env, ""), f"the environment variable {self.token_env}"
        elif self.token_file is not None:
            where = self.token_file
            try:
                token = Path(where).read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise UserError(f"--token-file {where!r} cannot be read: {error}") from None
        else:
            return None
        if len(token) < 8:
            raise UserError(f"{where} holds no token of at least 8 characters: set it to a long random text")
        return token


def serve(
    reward: Annotated[str, Parameter(help="RECIPE[:PATH] or RUN[:PATH]; or a TOML file that is a reward table")],
    /,
    *overrides: Annotated[str, Parameter(help="KEY.PATH=VALUE: settings of the file to change")],
    host: Annotated[str, Parameter(help="address to listen on; one that is not loopback needs a token")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="port to listen on; 0 takes a free one")] = 8080,
    processes: Annotated[int, Parameter(help="processes that serve the port", validator=_POSITIVE)] = 1,
    token_env: Annotated[str | None, Parameter(help="environment variable that holds the token of clients")] = None,
    token_file: Annotated[str | None, Parameter(help="file that holds the token of clients")] = None,
    deadline: Annotated[float, Parameter(help="seconds for a request", validator=_POSITIVE)] = 170.0,
    drain: Annotated[float, Parameter(help="seconds that requests get to finish after SIGTERM")] = 180.0,
    max_body: Annotated[int, Parameter(help="MiB of a request", validator=_POSITIVE)] = 16,
    max_in_flight: Annotated[
        int, Parameter(help="answers that a process accepts at a time; more get 429", validator=_POSITIVE)
    ] = 4096,
    concurrency: Annotated[int, Parameter(help="groups that a process scores at a time", validator=_POSITIVE)] = 256,
) -> int:
    """Serve a reward over HTTP: POST a group, get its scores with parts and failures.

    It speaks its own form (/score), OpenRLHF's remote reward (/get_reward) and NeMo Gym's resources server (/verify);
    /docs shows them. SIGTERM and Ctrl-C let the requests in progress finish; a second one ends at once.

    Example: `rewardsmith serve recipes/gsm8k.toml --port 8080 --processes 2`
    """
    options = ServeOptions(
        reward,
        overrides,
        deadline,
        drain,
        max_body,
        max_in_flight,
        concurrency,
        token_env,
        token_file,
        processes,
    )
    if options.token() is None and not _is_loopback(host):
        raise UserError(f"--host {host} can be reached by others: name a token with --token-env or --token-file")
    from rewardsmith.runs.lookup import find_reward  # noqa: PLC0415 it takes time

    find_reward(reward, overrides)  # what is wrong with it is reported before anything starts
    with _listening(host, port) as listening:
        bound = listening.getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        sys.stderr.write(f"listening on http://{shown}:{bound[1]} with {processes} process(es)\n")
        sys.stderr.flush()
        if processes == 1:
            from rewardsmith.integrations.server_worker import run_and_exit, run_worker  # noqa: PLC0415

            run_and_exit(run_worker(options, listening))
        from rewardsmith.integrations.serve_supervisor import Supervisor  # noqa: PLC0415

        with tempfile.TemporaryDirectory(prefix="rewardsmith-serve-") as folder:
            command = worker_command(options, listening, folder)
            return asyncio.run(Supervisor(command, listening, processes, Path(folder)).run())


def worker_command(options: ServeOptions, listening: socket.socket, folder: str) -> list[str]:
    """Return the command of a worker process; its number and how it starts are added to it."""
    table = {"options": asdict(options), "socket": listening.fileno(), "folder": folder, "path": sys.path}
    return [sys.executable, "-m", "rewardsmith.integrations.server_worker", json.dumps(table)]


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen on {host}:{port}: {error}; choose another --port or --host") from None
