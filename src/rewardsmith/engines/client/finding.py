"""Which model the servers have, whether they are there, and orders that are no questions."""

from __future__ import annotations

import asyncio
from typing import Any

from yarl import URL

from rewardsmith.engines.client.faults import Fault
from rewardsmith.engines.client.replies import served_models
from rewardsmith.engines.client.sending import Sender
from rewardsmith.engines.client.wire import Base, Patient
from rewardsmith.engines.settings import ClientSettings
from rewardsmith.engines.urls import without_verb
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.llm import ModelCallError

FIND_SECONDS = 30.0
"""Seconds in which a server must say what it serves."""

WORK_SECONDS = 300.0
"""Seconds that a server may take to fall asleep or wake: weights are moved."""

_TRIES, _PAUSE = 3, 0.5
_ABSENT = (404, 405, 501)

REMEDY = {
    "classify": "the server does not rate conversations (vLLM: a sequence-classification model, --runner pooling)",
    "score": "the server does not score pairs of texts (vLLM: a cross-encoder, --runner pooling)",
    "embed": "the server does not embed texts (vLLM: an embedding model, --runner pooling)",
}
_ASLEEP = "start vLLM with --enable-sleep-mode and the environment variable VLLM_SERVER_DEV_MODE=1"


class Finder:
    """Knows which model is asked for.

    Args:
        sender: whose addresses are looked at.
        settings: how they are spoken to.
        model: as the servers name it; None takes the only one that they have.
        name: what the recipe calls it, for errors.

    Attributes:
        away: addresses that did not answer when they were last looked at, while others did.
    """

    def __init__(self, sender: Sender, settings: ClientSettings, model: str | None, name: str) -> None:
        self._sender = sender
        self._settings = settings
        self._model = model
        self._name = name
        self._found: str | None = None
        self._finding: asyncio.Task[str] | None = None
        self.away: tuple[str, ...] = ()

    def forget(self, model: str | None = None) -> None:
        """Look again before the next request; ask for another model, if one is named."""
        self._found = None
        self._model = model or self._model

    async def model(self) -> str:
        """Return the model's name; ask the servers if nobody gave it, once for all who want to know.

        Raises:
            UserError: there are several.
            ModelCallError: nobody answers.
        """
        known = self._model or self._found
        if known is not None:
            return known
        running = self._finding
        if running is None or running.done() or running.get_loop() is not asyncio.get_running_loop():
            running = self._finding = asyncio.ensure_future(self._find())
            running.add_done_callback(lambda task: task.cancelled() or task.exception())  # somebody has looked
        return await asyncio.shield(running)

    async def check(self) -> None:
        """Raise unless an address answers, and all that do have the model."""
        await self._find()

    async def _find(self) -> str:
        """Ask every address what it serves."""
        addresses = self._sender.addresses()
        found = await asyncio.gather(*(self._listed(base) for base in addresses.values()))
        dead: list[Fault] = []
        names: dict[str, Base] = {}
        for (address, base), answer in zip(addresses.items(), found, strict=True):
            if isinstance(answer, Fault):
                address.failed()
                dead.append(answer)
            else:
                address.answered()
                names.setdefault(self._choose(base, answer), base)
        self.away = tuple(
            base.shown for base, answer in zip(addresses.values(), found, strict=True) if isinstance(answer, Fault)
        )
        if not names:
            raise ModelCallError("unreachable", "; ".join(str(fault) for fault in dead))
        if len(names) > 1:
            each = ", ".join(f"{base.shown} has {model!r}" for model, base in names.items())
            raise UserError(f"models.{self._name}: the addresses serve different models: {each}: set model")
        self._found = next(iter(names))
        return self._found

    def _choose(self, base: Base, served: list[str] | None) -> str:
        """Return the model that is meant at one address."""
        if served is None:
            if self._model is None:
                raise UserError(f"models.{self._name}.model: {base.shown} does not list its models: name one")
            return self._model
        if self._model is not None:
            if self._model not in served:
                hint = nearest(self._model, served)
                raise UserError(
                    f"models.{self._name}.model: {base.shown} has no model {self._model!r}.{hint} "
                    f"It has: {listing(served)}"
                )
            return self._model
        if len(served) != 1:
            raise UserError(
                f"models.{self._name}.model: {base.shown} has {len(served)} models: {listing(served)}. Name one of them"
            )
        return served[0]

    async def _listed(self, base: Base) -> list[str] | Fault | None:
        """Return the models of an address, None if it has no list, or why it cannot be asked."""
        try:
            return served_models(await self._get(base, base.at("models")))
        except Fault as fault:
            if fault.status in _ABSENT:
                meant = await self._meant(base)
                if meant or self._model is None:
                    raise UserError(f"models.{self._name}: {fault}{meant}") from None
                return None
            if fault.passing and fault.kind != "unparsable":
                return fault
            if fault.status in (401, 403):
                variable = self._settings.key_from
                remedy = f"is the key in {variable} right?" if variable else "set key_from to a variable with the key"
                raise UserError(f"models.{self._name}: {fault}; {remedy}") from None
            raise UserError(f"models.{self._name}: {fault}") from None

    async def _meant(self, base: Base) -> str:
        """Return which address was meant, where there is no list of models; "" if this one may be right."""
        bare = without_verb(base.url)
        if bare != base.url:
            return f"; is {bare.with_query(None)} meant?"
        if base.url.path.rstrip("/").endswith("/v1"):
            return ""
        if self._model is not None:  # many services list nothing, and have paths of their own
            try:
                served_models(await self._get(base, base.at("v1/models")))
            except Fault:
                return ""
        return f"; is {base.shown}/v1 meant?"

    async def _get(self, base: Base, url: URL) -> Any:
        return await self._patiently(base, url, FIND_SECONDS, method="GET")

    async def _patiently(self, base: Base, url: URL, seconds: float, **how: Any) -> Any:
        """Send something; a fault that may pass is given two more chances, unless nobody is there."""
        wire = await self._sender.wire()
        patience = Patient(self._settings.connect, None, asyncio.get_running_loop().time() + seconds)
        for left in reversed(range(_TRIES)):
            try:
                return await wire.send(base, url, None if how.get("method") == "GET" else {}, patience, **how)
            except Fault as fault:
                if not left or not fault.passing or fault.gone or fault.kind == "timeout":
                    raise
                await asyncio.sleep(min(fault.after or _PAUSE, 5.0))
        raise AssertionError("the last try returns or raises")

    async def order(self, verb: str, seconds: float) -> None:
        """Tell every server to do something that is no part of the versioned interface.

        Raises:
            UserError: it does not know how.
            ModelCallError: it is not there, or fails.
        """
        path, _, query = verb.partition("?")

        async def one(base: Base) -> None:
            url = base.at(path, root=True)
            await self._patiently(base, url.update_query(query) if query else url, seconds, silent=True)

        for answer in await asyncio.gather(*map(one, self._sender.bases), return_exceptions=True):
            if isinstance(answer, Fault) and answer.status in _ABSENT:
                raise UserError(f"models.{self._name}.sleeps: /{path}: {answer}; {_ASLEEP}")
            if isinstance(answer, Fault):
                raise ModelCallError(answer.kind, f"/{path}: {answer}")
            if isinstance(answer, BaseException):
                raise answer
