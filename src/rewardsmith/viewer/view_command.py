"""`rewardsmith view`: show runs in a browser, live while they go on, or write them as a static site."""

from __future__ import annotations

import asyncio
import errno
import secrets
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

from aiohttp import web
from cyclopts import Parameter

from rewardsmith.console import count_of
from rewardsmith.errors import UserError
from rewardsmith.viewer.bundle import write_bundle
from rewardsmith.viewer.rollout_index import index_file, remove_unused
from rewardsmith.viewer.run_list import RunList
from rewardsmith.viewer.view_server import is_loopback, make_app

FIRST_PORT, LAST_PORT = 8765, 8784


def view(
    *runs: Annotated[Path, Parameter(help="run folders, or folders that contain some; default: runs")],
    port: Annotated[int | None, Parameter(help=f"default: the first free one from {FIRST_PORT} on")] = None,
    host: Annotated[
        str, Parameter(help="the address to listen on; beyond this machine, a token is required")
    ] = "127.0.0.1",
    open_browser: Annotated[bool, Parameter(name="--open", help="open the page in a browser")] = False,
    bundle: Annotated[Path | None, Parameter(help="write a static site into this folder, and end")] = None,
) -> None:
    """Show runs in a browser: curves, groups of rollouts with rewards and feedback, comparisons of runs.

    The page follows runs that are going on. Run folders are only read.

    Example: `rewardsmith view runs/quickstart runs/quickstart-2 --open`
    """
    if port is not None and not 0 <= port <= 65_535:
        raise UserError(f"--port {port}: a port is a number from 0 to 65535")
    found = RunList(runs or (Path("runs"),))
    remove_unused(index_file(Path()).parent)
    if bundle is not None:
        count = write_bundle(found, bundle)
        sys.stdout.write(
            f"{bundle}: {count_of(len(found.runs()), 'run')}, {count_of(count, 'group')}; serve it with any web server,"
            f" such as python -m http.server -d {bundle}\n"
        )
        return
    asyncio.run(_serve(found, host, port, open_browser=open_browser))


async def _serve(runs: RunList, host: str, port: int | None, *, open_browser: bool) -> None:
    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    runner = web.AppRunner(make_app(runs, host=host, token=token), access_log=None)
    await runner.setup()
    try:
        bound = await _listen(runner, host, port)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{bound}/" + (f"?token={token}" if token else "")
        if token:
            sys.stderr.write("warning: whoever can reach this address and has its token can read these runs\n")
        sys.stderr.write(f"{count_of(len(runs.runs()), 'run')} at {address}\nCtrl-C ends it\n")
        sys.stderr.flush()
        if open_browser:
            await asyncio.to_thread(webbrowser.open, address)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, port: int | None) -> int:
    """Listen on a port, or on the first free one; return it."""
    for one in range(FIRST_PORT, LAST_PORT + 1) if port is None else [port]:
        try:
            await web.TCPSite(runner, host, one).start()
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port is None:
                continue
            raise UserError(f"cannot listen on {host}, port {one} ({error.strerror}): choose another --port") from None
        return int(runner.addresses[-1][1])
    raise UserError(f"the ports from {FIRST_PORT} to {LAST_PORT} are taken: choose one with --port")
