"""The server of `rewardsmith view`: GET requests about known runs, answered from their folders, which are only read.

Other web pages cannot use it: the Host header must name this machine (DNS rebinding), requests that a browser marks as
those of another page are refused, and beyond the loopback address a token is required. Model text leaves as JSON only.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import mimetypes
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from aiohttp import web

from rewardsmith.errors import UserError
from rewardsmith.viewer.judge_view import judge_prompts
from rewardsmith.viewer.report import web_file
from rewardsmith.viewer.rollout_query import RolloutFilter
from rewardsmith.viewer.rollout_view import IN_VIEWER, group_view
from rewardsmith.viewer.run_list import RETRY_SECONDS, OpenRun, RunList
from rewardsmith.viewer.view_page import PAGE_FILES, POLICY, page

TOKEN_COOKIE = "rewardsmith_view"
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_IDLE_SECONDS = 0.1


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_foreign(request: web.Request) -> bool:
    """Whether a browser says that another page has sent a request."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        return True
    return request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")


def make_app(runs: RunList, *, host: str = "127.0.0.1", token: str = "") -> web.Application:
    """Return the application; without a `token`, only requests to a loopback name are answered."""

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if _is_foreign(request):
            return _answer({"error": "requests of other pages are refused: open the address in a tab of its own"}, 403)
        if token:
            given = request.query.get("token") or request.cookies.get(TOKEN_COOKIE, "")
            if not hmac.compare_digest(given.encode(), token.encode()):
                return _answer({"error": "a token is needed: open the address that the command printed"}, 403)
        elif not is_loopback((request.url.host or "") if request.host else ""):
            return _answer({"error": f"this server answers requests to {host} only"}, 403)
        try:
            response = await handler(request)
        except UserError as error:
            response = _answer({"error": str(error)}, 400)
        except OSError as error:  # a run that was moved or removed meanwhile
            response = _answer({"error": f"a file of the run cannot be read: {error.strerror}"}, 400)
        response.headers.update(_HEADERS)
        if token and request.query.get("token"):
            response.set_cookie(TOKEN_COOKIE, token, httponly=True, samesite="Strict", path="/")
        return response

    app = web.Application(middlewares=[guard])
    _Routes(runs).add_to(app)

    async def indexing(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(_keep_indexed(runs))
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app.cleanup_ctx.append(indexing)
    return app


async def _keep_indexed(runs: RunList) -> None:
    while True:
        try:
            busy = await asyncio.to_thread(runs.update_indexes)
            await asyncio.sleep(0 if busy else _IDLE_SECONDS)
        except Exception as error:  # noqa: BLE001 a folder that cannot be searched, say: the task must not end
            sys.stderr.write(f"the rollouts could not be indexed: {error!r}\n")
            await asyncio.sleep(RETRY_SECONDS)


def _answer(content: Any, status: int = 200) -> web.Response:
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return web.Response(text=text, content_type="application/json", status=status, headers=_HEADERS)


class _Routes:
    """What each address answers; the work is done in threads, so that one slow answer delays no other."""

    def __init__(self, runs: RunList) -> None:
        self._runs = runs

    def add_to(self, app: web.Application) -> None:
        for path, handler in {
            "/": self.page,
            "/web/{name:.+}": self.file,
            "/api/version": self.version,
            "/api/runs": self.runs,
            "/api/overview": self.overview,
            "/api/stages": self.stages,
            "/api/rows": self.rows,
            "/api/group": self.group,
            "/api/raw": self.raw,
            "/api/prompts": self.prompts,
            "/api/validations": self.validations,
        }.items():
            app.router.add_get(path, handler)

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(text=page(), content_type="text/html")

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in PAGE_FILES:
            raise web.HTTPNotFound
        return web.Response(text=web_file(name), content_type=mimetypes.guess_type(name)[0] or "text/plain")

    async def version(self, request: web.Request) -> web.Response:
        """Return what changes with the runs, and with each run that a page shows; cheap enough to be polled."""

        def read() -> dict[str, Any]:
            names = [name for name in request.query.getall("run", [])[:16] if name in self._runs.runs()]
            opened = {name: self._runs.run(name) for name in names}
            shown = {
                name: {"version": run.version, "indexed": run.indexed, "share": run.pages.index.share}
                for name, run in opened.items()
            }
            return {"list": self._runs.version, "runs": shown}

        return _answer(await asyncio.to_thread(read))

    async def runs(self, _: web.Request) -> web.Response:
        def read() -> dict[str, Any]:
            version = self._runs.version
            return {"runs": self._runs.entries(), "version": version}

        return _answer(await asyncio.to_thread(read))

    async def overview(self, request: web.Request) -> web.Response:
        return await self._about(request, OpenRun.overview)

    async def stages(self, request: web.Request) -> web.Response:
        return await self._about(request, lambda run: {"stages": run.pages.stages(), "indexed": run.pages.index.share})

    async def validations(self, request: web.Request) -> web.Response:
        return await self._about(
            request, lambda run: {"validations": run.pages.validations(), "indexed": run.pages.index.share}
        )

    async def rows(self, request: web.Request) -> web.Response:
        chosen = RolloutFilter.parse(request.query)
        return await self._about(request, lambda run: run.pages.page(chosen))

    async def group(self, request: web.Request) -> web.Response:
        stage, line = _place(request)
        return await self._about(request, lambda run: group_view(run.pages.record(stage, line), IN_VIEWER))

    async def raw(self, request: web.Request) -> web.Response:
        """Return the line of the file as it is, to be saved: there is no limit on what is in it."""
        stage, line = _place(request)
        body = await self._of_run(request, lambda run: run.pages.line(stage, line))
        disposition = {"Content-Disposition": f'attachment; filename="group-{line}.json"'}
        return web.Response(body=body, content_type="application/json", headers=disposition)

    async def prompts(self, request: web.Request) -> web.Response:
        stage, line = _place(request)
        folder, record = await self._of_run(request, lambda run: (run.folder, run.pages.record(stage, line)))
        return _answer({"prompts": await judge_prompts(folder, stage, record)})

    async def _of_run(self, request: web.Request, read: Callable[[OpenRun], Any]) -> Any:
        name = request.query.get("run", "")
        return await asyncio.to_thread(lambda: read(self._runs.run(name)))

    async def _about(self, request: web.Request, read: Callable[[OpenRun], Any]) -> web.Response:
        return _answer(await self._of_run(request, read))


def _place(request: web.Request) -> tuple[str, int]:
    """Return the stage and the line that a request names."""
    line = request.query.get("line", "")
    if not (line.isascii() and line.isdecimal() and len(line) < 12):
        raise UserError(f"line = {line[:60]!r} is no number of a line")
    return request.query.get("stage", ""), int(line)
