"""What a server says about itself: is it healthy, and which models has it."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import aiohttp

from rewardsmith.errors import UserError
from rewardsmith.masking import Mask

LIMIT = 10.0
"""Seconds for one look at a server."""

LONGEST = 1 << 22
"""Bytes of the longest list of models."""

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where this machine finds a server that listens everywhere


class Probe:
    """Looks at one server; use it as an async context.

    Args:
        root: its address, without a path.
        key: sent along, if it is not empty.
    """

    def __init__(self, root: str, key: str = "") -> None:
        self.root = root
        self._mask = Mask([key])
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})

    async def __aenter__(self) -> Probe:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(LIMIT),
            auto_decompress=False,  # a small reply must not become a large one
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def healthy(self) -> bool | None:
        """Return whether it says that it is; None if nothing answers there."""
        status = await self._status("/health")
        if status in (404, 405, 501):  # it has no such page; then what counts is that it can list its models
            status = await self._status("/v1/models")
        return None if status is None else status == 200

    async def _status(self, path: str) -> int | None:
        try:
            async with self._session.get(self.root + path, allow_redirects=False) as answer:
                return answer.status
        except (aiohttp.ClientConnectorError, ConnectionRefusedError):
            return None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return 0

    async def models(self) -> dict[str, str]:
        """Return its models: the name, and what it was loaded from where the server tells; empty if it does not say."""
        try:
            async with self._session.get(f"{self.root}/v1/models", allow_redirects=False) as answer:
                if answer.status != 200:
                    return {}
                body = b""
                async for piece in answer.content.iter_chunked(1 << 16):
                    body += piece
                    if len(body) > LONGEST:
                        return {}
                return _models(self._mask.json(json.loads(body), body))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError):
            return {}


def _models(found: Any) -> dict[str, str]:
    rows = found.get("data") if isinstance(found, Mapping) else None
    models = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    return {row["id"]: str(row.get("root") or "") for row in models if isinstance(row.get("id"), str)}


def address(host: str, port: int) -> str:
    """Return the address at which this machine finds a server."""
    host = _ANYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def free_port(host: str) -> int:
    """Return a port that nobody listens on just now."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise UserError(f"no server can listen on host = {host!r}: {error}. Use 127.0.0.1, the default") from None
