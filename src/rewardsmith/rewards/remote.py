"""A reward behind `rewardsmith serve`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.records import from_json, to_json
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.http_service import HttpService, as_list
from rewardsmith.types import RolloutGroup, Score

MARGIN = 1.0
"""Seconds less than its own deadline that the server gets, so that its reply with the failures still arrives."""


class RemoteReward:
    """Score groups by a reward server; values, parts and failures are those of the server.

    The server gets the whole group, with tokens. A server that is overloaded or restarts is called again until the
    deadline; then the group is `unreachable`, and `failure.wait` begins.
    """

    whole: ClassVar[bool] = True  # the reward behind it may compare the answers of a group

    def __init__(
        self,
        *,
        url: Annotated[str, Field(description="address of the server, such as http://127.0.0.1:8080")],
        api_key_env: Annotated[
            str | None, Field(description="environment variable that holds the server's token; not set: none")
        ] = None,
        deadline: Annotated[float, Field(gt=0, description="seconds for one group, retries included")] = 180.0,
        retries: Annotated[int, Field(ge=0, description="repeated requests after an error")] = 4,
        connect_timeout: Annotated[float, Field(gt=0, description="connect timeout (s)")] = 5.0,
        max_reply: Annotated[int, Field(ge=1, description="MiB of a reply at most")] = 64,
    ) -> None:
        self.deadline = deadline
        self._service = HttpService(
            url, deadline=deadline, retries=retries, connect_timeout=connect_timeout, api_key_env=api_key_env,
            max_reply=max_reply * 2**20,
        )  # fmt: skip

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the server's scores."""
        payload = to_json(group) | {"deadline": max(self.deadline / 2, self.deadline - MARGIN)}
        reply = await self._service.post(payload, path="score")
        if isinstance(reply, dict) and "error" in reply:
            what = f"an error with status 200: {str(reply['error'])[:200]}"
            raise CannotScore("unparsable", f"{self._service.url}: {what}")
        try:
            return tuple(from_json(Score, one) for one in as_list(reply, "scores", len(group.rollouts)))
        except UserError as error:
            raise CannotScore("unparsable", f"{self._service.url}: {error}") from None

    async def check(self) -> None:
        """Raise if the server is not ready."""
        reply = await self._service.get("ready", deadline=min(30.0, self.deadline))
        if not isinstance(reply, dict) or reply.get("ready") is not True:
            raise UserError(f"{self._service.url} is no reward server: /ready replied {str(reply)[:200]}")

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()
