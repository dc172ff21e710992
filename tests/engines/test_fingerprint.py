"""The verdict cache notices other weights behind the name of a server, and is not misled by noise."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.client.probes import ANSWERS, QUESTIONS, TEXTS
from rewardsmith.llm import ProbeReply
from rewardsmith.rewards.cache import TOLERANCE, CachedModel, VerdictCache, alike
from rewardsmith.types import Message
from tests.engines.call_helpers import client, question
from tests.engines.faulty import Body, FaultyServer, completion, last_text

TALK = [Message("user", "why?"), Message("assistant", "because")]


def is_probe(body: Body) -> bool:
    texts = {*QUESTIONS, *TEXTS, *(answer for _, answer in ANSWERS)}
    sent = body.get("input") or body.get("text_2") or [last_text(body)]
    return set(sent) <= texts


class Weighted(FaultyServer):
    """A server whose replies depend on its weights, and on a noise in each number and in one of the texts."""

    weights = 1.0
    noise = 0.0
    flipped = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.say = lambda body: f"{last_text(body)} {'!' if last_text(body) == self.flipped else self.weights}"

    async def _met(self, plan: Any, otherwise: Any, request: web.Request, body: Body) -> web.StreamResponse:
        number = self.weights * (1 + self.noise)
        if request.path == "/v1/chat/completions":
            logprobs = (math.log(0.5) * number, math.log(0.9) * number)
            return web.json_response(completion(body, self.say(body), logprobs=logprobs))
        if request.path == "/classify":
            score = number * len(body["messages"][-1]["content"])
            return web.json_response({"data": [{"index": 0, "probs": [score]}]})
        if request.path == "/v1/embeddings":
            vectors = [[number, len(text), 5.0, len(text) % 3] for text in body["input"]]
            return web.json_response({"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]})
        return await super()._met(plan, otherwise, request, body)

    def count(self) -> tuple[int, int]:
        """Return how many requests were probes and how many were not, since the last call."""
        probes = sum(map(is_probe, self.bodies))
        counts = probes, len(self.bodies) - probes
        self.requests.clear()
        return counts


VERBS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "chat": (lambda model: model.chat(question("How good is it?")), len(QUESTIONS)),
    "classify": (lambda model: model.rate([TALK]), len(ANSWERS)),
    "embed": (lambda model: model.embed(["some text"]), 1),
}


class Cache:
    """A cache in a folder, and its messages; each `use` is a program of its own that makes one call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[str] = []

    async def use(self, *servers: FaultyServer, verb: str = "chat", **settings: Any) -> ServedModel:
        cache = VerdictCache(self.folder, log=self.messages.append)
        model = client(*servers, serves=verb, **settings)
        try:
            await VERBS[verb][0](CachedModel(model, cache))
        finally:
            await model.close()
            cache.close()
        return model


@pytest.mark.parametrize("verb", VERBS)
def test_other_weights_under_the_same_name_do_not_get_the_old_verdicts(tmp_path: Path, verb: str) -> None:
    async def main() -> None:
        cache, probes = Cache(tmp_path), VERBS[verb][1]
        async with Weighted() as server:
            model = await cache.use(server, verb=verb)
            assert server.count() == (probes, 1)
            assert (model.usage.calls, model.usage.cached) == (1, 0)
            model = await cache.use(server, verb=verb)  # the same weights: a replay
            assert server.count() == (probes, 0)
            assert (model.usage.calls, model.usage.cached, model.usage.tokens, model.usage.failed) == (0, 1, 0, 0)
            assert cache.messages == []
            server.noise, server.flipped = 0.01, QUESTIONS[2]  # noise does not lose the cache
            await cache.use(server, verb=verb)
            assert server.count() == (probes, 0)
            assert cache.messages == []
            server.noise, server.flipped, server.weights = 0.0, "", 2.0
            await cache.use(server, verb=verb)
            assert server.count() == (probes, 1)
            (message,) = cache.messages
            assert "models.judge" in message
            assert "1 verdicts" in message
            assert "models.judge.version" in message
            await cache.use(server, verb=verb)  # known by now
            assert server.count() == (probes, 0)
            server.weights = 1.0  # and back
            await cache.use(server, verb=verb)
            assert server.count() == (probes, 0)
            assert len(cache.messages) == 1

    asyncio.run(main())


def test_a_version_names_the_weights_and_saves_the_probes(tmp_path: Path) -> None:
    async def main() -> None:
        cache = Cache(tmp_path)
        async with Weighted() as server:
            await cache.use(server, version="7")
            server.weights = 2.0
            await cache.use(server, version="7")
            assert server.count() == (0, 1)
            await cache.use(server, version="8")
            assert server.count() == (0, 1)

    asyncio.run(main())


def test_a_server_that_comes_back_after_a_check_is_probed_again(tmp_path: Path) -> None:
    """A check is made at the start, and after an outage: other weights may have been loaded meanwhile."""

    async def main() -> None:
        messages: list[str] = []
        cache = VerdictCache(tmp_path, log=messages.append)
        async with Weighted() as server, client(server) as model:
            cached = CachedModel(model, cache)
            await cached.check()
            first = await cached.chat(question())
            server.weights = 2.0
            assert (await cached.chat(question())).text == first.text  # nobody looks in between
            await cached.check()
            assert (await cached.chat(question())).text != first.text
            assert "models.judge" in messages[0]
        cache.close()

    asyncio.run(main())


finite = st.floats(-1e6, 1e6).map(lambda x: x + math.copysign(1e-3, x))
numbers = st.lists(finite, min_size=1, max_size=20)


@given(numbers, st.floats(-0.9, 0.9))
def test_numbers_are_alike_up_to_the_tolerance(values: list[float], share: float) -> None:
    moved = [value * (1 + share * TOLERANCE) for value in values]
    far = [value * (1 + math.copysign(1.2 * TOLERANCE / (1 - TOLERANCE), share)) for value in values]
    fingerprint = [ProbeReply(numbers=tuple(values))]
    assert alike(fingerprint, [ProbeReply(numbers=tuple(moved))])
    assert not alike(fingerprint, [ProbeReply(numbers=tuple(far))])


def test_one_of_four_texts_may_differ_and_no_more() -> None:
    texts = [ProbeReply(text) for text in "abcd"]
    assert alike(texts, [ProbeReply("x"), *texts[1:]])
    assert not alike(texts, [ProbeReply("x"), ProbeReply("y"), *texts[2:]])
    assert not alike(texts, texts[:3])
    assert not alike([ProbeReply(numbers=(1.0, 2.0))], [ProbeReply(numbers=(1.0,))])
    assert not alike([ProbeReply(numbers=(1.0,))], [ProbeReply()])  # nothing is like nothing


def test_the_file_holds_no_text_of_the_probes(tmp_path: Path) -> None:
    """A server may repeat anything in its reply, a key too."""

    async def main() -> None:
        async with Weighted() as server:
            server.say = lambda body: "sk-secret" if is_probe(body) else "fine"
            await Cache(tmp_path).use(server)
        assert not any(b"sk-secret" in file.read_bytes() for file in tmp_path.iterdir())

    asyncio.run(main())
