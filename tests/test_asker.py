"""The Asker: retries until a reply can be parsed, one deadline, votes, and waiting for an unreachable server."""

import asyncio

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import (
    MAX_REPLY_CHARS,
    Asker,
    ChatReply,
    ModelCallError,
    Parsed,
    RequestSettings,
    settle,
)
from rewardsmith.rewards.base import CannotScore, failure_of
from rewardsmith.rewards.cache import CachedModel, VerdictCache
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Message
from tests.rewards.models import Said, Scripted, text_of


def number(text: str) -> int:
    if not text.strip().isdigit():
        raise Unparsable("no number", text)
    if int(text) > 10:
        raise Unparsable("too large", invalid=True)
    return int(text)


def request(*script: Said, **settings: object) -> tuple[Parsed[int], Scripted]:
    model = Scripted(script)
    return asyncio.run(Asker(model, RequestSettings(**settings)).request("how much?", number)), model  # type: ignore[arg-type]


def failure(*script: Said, **settings: object) -> ModelCallError:
    with pytest.raises(ModelCallError) as caught:
        request(*script, **settings)
    return caught.value


def test_retries_raise_the_temperature_and_change_seed_and_attempt() -> None:
    parsed, model = request("well", "seven", "7", temperature=0.5, temperature_step=0.3, max_temperature=0.9, seed=4)
    assert parsed == Parsed(7, "7", "7", attempts=3, prompt_tokens=0, tokens=3)
    assert [r.temperature for r in model.asked] == pytest.approx([0.5, 0.8, 0.9])
    assert [r.seed for r in model.asked] == [4, 5, 6]
    assert [r.attempt for r in model.asked] == [0, 1, 2]
    assert [r.deadline for r in model.asked] == pytest.approx([120, 119.99, 119.98])
    _, model = request("well", "7", temperature=1.4)  # above max_temperature: it stays
    assert [r.temperature for r in model.asked] == [1.4, 1.4]
    model = Scripted(["x", "1", "x", "2"])
    for sample in (0, 1):
        asyncio.run(Asker(model, RequestSettings()).request("how much?", number, sample=sample))
    assert [r.attempt for r in model.asked] == [r.seed for r in model.asked] == [0, 1, 3, 4]  # all differ


@pytest.mark.parametrize(
    ("reply", "kind", "part"),
    [
        ("well", "unparsable", "no number: well; it ends: 'well'"),
        ("11", "invalid", "too large"),
        ("<think>hm", "unparsable", "unfinished thought"),
        (ChatReply("7", truncated=True, tokens=2048), "truncated", "2048 tokens, max_tokens = 2048"),
        (ChatReply("7", truncated=True, tokens=5), "truncated", "fill the model's context"),
    ],
)
def test_the_last_try_gives_the_kind_and_the_reason(reply: Said, kind: str, part: str) -> None:
    error = failure("x", reply, tries=2)
    assert (error.kind, error.attempts, failure_of(error).attempts) == (kind, 2, 2)
    assert part in str(error)


def test_all_tries_share_one_deadline() -> None:
    error = failure(ChatReply("x", seconds=3), ChatReply("x", seconds=3), "7", deadline=5.0)
    assert (error.kind, error.attempts) == ("timeout", 2)
    assert "within 5 s" in str(error)
    assert "no number" in str(error)


def test_an_error_of_the_model_is_not_retried_and_keeps_earlier_replies() -> None:
    error = failure("well", "<think>hm</think>seven", ModelCallError("refused", "too long", 4))
    assert (error.kind, error.attempts, str(error)) == ("refused", 4, "too long")
    assert error.replies == "[try 1: no number: well]\nwell\n\n[try 2: no number: seven]\n<think>hm</think>seven"


def test_reasoning_is_kept_for_people_and_not_parsed() -> None:
    parsed, _ = request("<think>8 or 9?</think>7")
    assert (parsed.value, parsed.text, parsed.feedback) == (7, "7", "<think>8 or 9?</think>7")
    parsed, _ = request(ChatReply("7", thought="8 or 9?"))
    assert (parsed.value, parsed.feedback) == (7, "<think>8 or 9?</think>\n7")
    parsed, _ = request(f"a{'x' * 100_000}b</think>7")
    assert len(parsed.feedback) < MAX_REPLY_CHARS + 1_000
    assert (parsed.feedback[0], parsed.feedback[-1]) == ("a", "7")
    error = failure(*["x" * 1_000_000] * 40, tries=40)
    assert len(error.replies) < MAX_REPLY_CHARS + 1_000
    assert error.replies.count("[try ") == 40


def test_parse_may_be_a_coroutine_and_its_time_is_not_the_models() -> None:
    async def parse(text: str) -> int:
        await asyncio.sleep(0.04)
        return number(text)

    asker = Asker(Scripted([ChatReply("x"), ChatReply("x"), ChatReply("7")]), RequestSettings(deadline=0.05))
    assert asyncio.run(asker.request("?", parse)).value == 7  # type: ignore[comparison-overlap]


def test_other_errors_of_parse_or_of_the_model_end_the_request() -> None:
    def parse(text: str) -> int:
        raise CannotScore("timeout", "slow hook")

    with pytest.raises(ModelCallError, match="slow hook") as caught:
        asyncio.run(Asker(Scripted(["7"]), RequestSettings()).request("?", parse))
    assert (caught.value.kind, caught.value.replies) == ("timeout", "[try 1]\n7")
    for error, kind in ((ConnectionError("refused"), "unreachable"), (KeyError("x"), "crashed")):
        asker = Asker(Scripted([error, error]), RequestSettings(temperature=1))
        with pytest.raises(type(error)) as other:  # its kind is found where all exceptions of rewards end
            asyncio.run(asker.votes("?", number, 2))
        assert failure_of(other.value).kind == kind


def test_revise_writes_the_next_prompt_from_the_last_reply() -> None:
    model = Scripted(["well", ChatReply("x", truncated=True), "7"])

    def revise(text: str, error: Unparsable) -> list[Message]:
        return [Message("user", f"{text!r}: {error.reason}")]

    parsed = asyncio.run(Asker(model, RequestSettings()).request("how much?", number, revise=revise))
    assert parsed.value == 7
    assert [text_of(r) for r in model.asked] == ["how much?", "'well': no number", "'': truncated"]


def test_votes_need_a_majority() -> None:
    def votes(*script: Said) -> list[Parsed[int]]:
        return asyncio.run(Asker(Scripted(script), RequestSettings(temperature=1, tries=1)).votes("?", number, 3))

    assert [vote.value for vote in votes("1", "x", "3")] == [1, 3]
    with pytest.raises(ModelCallError) as caught:
        votes("x", "2", ModelCallError("unreachable", "gone"))
    assert caught.value.kind == "unreachable"  # an outage is waited for, so it is the cause that counts
    assert all(part in caught.value.replies for part in ("[vote 1 of 3]\n[try 1: no number", "[vote 2 of 3]\n2"))


def test_an_unreachable_server_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardsmith.llm.FIRST_PAUSE", 0.01)
    gone = ModelCallError("unreachable", "connection refused")
    log: list[str] = []
    asker = Asker(Scripted([gone, gone, "7", "8"]), RequestSettings(), wait=5, log=log.append)
    assert asyncio.run(asker.request("?", number)).attempts == 1
    assert asyncio.run(asker.request("?", number)).value == 8
    assert ["unreachable" in line for line in log] == [True, False]
    asker = Asker(Scripted(lambda request: gone), RequestSettings(), wait=0.05, log=log.append)
    with pytest.raises(ModelCallError, match="connection refused"):
        asyncio.run(asker.request("?", number))
    asker = Asker(Scripted([ModelCallError("refused", "no"), "7"]), RequestSettings(), wait=5)
    with pytest.raises(ModelCallError, match="no"):
        asyncio.run(asker.request("?", number))


def test_settle_returns_failures_and_raises_only_what_stops_the_run() -> None:
    ended: list[str] = []

    async def call(error: BaseException | None) -> str:
        if error is None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("slow")
        raise error

    broken = ValueError("broken")
    first, cancelled = asyncio.run(settle(map(call, [broken, asyncio.CancelledError()])))
    assert first is broken
    assert (type(cancelled), cancelled.kind) == (ModelCallError, "cancelled")
    with pytest.raises(UserError, match="enough"):
        asyncio.run(settle(map(call, [broken, UserError("enough")])))

    async def stop() -> None:
        task = asyncio.create_task(settle(map(call, [None, None])))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stop())
    assert ended == ["slow", "slow"]


def test_replies_that_led_to_a_failure_are_removed_from_the_cache(tmp_path) -> None:
    state = {"fixed": False}

    def retried(request):
        return "7" if state["fixed"] or request.attempt else "well"

    def nonsense(request):
        return "7" if state["fixed"] else "well"

    async def value(model):
        try:
            return (await Asker(model, RequestSettings(tries=2)).request("?", number)).value
        except ModelCallError as error:
            return error.kind

    async def main():
        cache = VerdictCache(tmp_path)
        for script, first in ((retried, 7), (nonsense, "unparsable")):
            state["fixed"] = False
            model = Scripted(script, name=script.__name__)
            cached = CachedModel(model, cache)
            assert await value(cached) == first
            sent = len(model.asked)
            state["fixed"] = True
            await asyncio.wrap_future(cache.check().submit(lambda: None))  # the thread that removes them is done
            assert await value(cached) == 7
            assert (len(model.asked) > sent) == (first != 7)
        cache.close()

    asyncio.run(main())
