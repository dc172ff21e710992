"""Asking until an answer can be read, within one deadline; and a group whose rollouts fail one by one."""

import asyncio

import pytest

from rewardsmith import Score
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ModelCallError
from rewardsmith.rewards.base import Halt, failure_of
from rewardsmith.rewards.cache import Cached, VerdictCache
from rewardsmith.rewards.judges.asking import Asker, AskingSettings, NoVerdict, Verdict, failed_score, judged
from rewardsmith.text.grades import parse_grade
from rewardsmith.text.judge_replies import Unparsable
from tests.rewards.models import Said, Scripted


def number(text: str) -> int:
    if not text.strip().isdigit():
        raise Unparsable("no number", text)
    if int(text) > 10:
        raise Unparsable("too large", invalid=True)
    return int(text)


def ask(*script: Said, **settings: object) -> tuple[Verdict[int], Scripted]:
    model = Scripted(script)
    asker = Asker("judge", AskingSettings(**settings))  # type: ignore[arg-type]
    asker.connect({"judge": model}.__getitem__)
    return asyncio.run(asker.verdict("how much?", number)), model


def refused(*script: Said, **settings: object) -> ModelCallError:
    with pytest.raises(ModelCallError) as caught:
        ask(*script, **settings)
    return caught.value


def test_the_first_answer_that_can_be_read() -> None:
    verdict, model = ask("well", "seven", "7", "8", temperature=0.5, warmer=0.3, warmest=0.9, seed=4)
    assert verdict == Verdict(7, "7", 3)
    assert [q.temperature for q in model.asked] == pytest.approx([0.5, 0.8, 0.9])
    assert [q.seed for q in model.asked] == [4, 5, 6]
    assert [q.attempt for q in model.asked] == [0, 1, 2]
    assert [q.deadline for q in model.asked] == pytest.approx([120, 119.99, 119.98])


def test_a_temperature_above_the_warmest_stays() -> None:
    _, model = ask("well", "7", temperature=1.4)
    assert [q.temperature for q in model.asked] == [1.4, 1.4]


def test_several_verdicts_on_one_prompt_are_different_questions() -> None:
    model = Scripted(["x", "1", "x", "2"])
    asker = Asker("judge", AskingSettings())
    asker.connect({"judge": model}.__getitem__)
    for sample in (0, 1):
        asyncio.run(asker.verdict("how much?", number, sample=sample))
    assert [q.attempt for q in model.asked] == [0, 1, 3, 4]
    assert len({q.seed for q in model.asked}) == 4


@pytest.mark.parametrize(
    ("said", "kind", "part"),
    [
        ("well", "unparsable", "no number: well; it ends: 'well'"),
        ("11", "invalid", "too large"),
        ("<think>hm", "unparsable", "unfinished thought"),
        (
            ChatReply("7", truncated=True, tokens=2048),
            "truncated",
            "cut off: after 2048 tokens (asking.max_tokens = 2048)",
        ),
        (ChatReply("7", truncated=True), "truncated", "cut off: by the token limit (asking.max_tokens = 2048)"),
        (
            ChatReply("7", truncated=True, tokens=5),
            "truncated",
            "cut off: after 5 tokens, well before asking.max_tokens = 2",
        ),
        (ChatReply("7", truncated=True, tokens=5), "truncated", "fill the model's context"),
    ],
)
def test_the_reason_of_the_last_try(said: Said, kind: str, part: str) -> None:
    error = refused("x", said, tries=2)
    assert (error.kind, error.attempts) == (kind, 2)
    assert part in str(error)
    assert failure_of(error).attempts == 2


def test_all_tries_have_one_deadline() -> None:
    error = refused(ChatReply("x", seconds=3), ChatReply("x", seconds=3), "7", deadline=5.0)
    assert (error.kind, error.attempts) == ("timeout", 2)
    assert "no verdict within 5 s; the last try: no number" in str(error)


def test_what_the_model_raises_is_not_tried_again() -> None:
    assert refused(ModelCallError("refused", "too long", 4), "7").kind == "refused"


def test_thoughts_are_kept_for_people_and_not_read() -> None:
    verdict, _ = ask("<think>8 or 9?</think>7")
    assert (verdict.value, verdict.feedback) == (7, "<think>8 or 9?</think>7")
    verdict, _ = ask(ChatReply("7", thought="8 or 9?"))
    assert (verdict.value, verdict.feedback) == (7, "<think>8 or 9?</think>\n7")


def test_a_long_text_is_kept_by_its_ends() -> None:
    verdict, _ = ask(f"a{'x' * 100_000}b</think>7")
    assert len(verdict.feedback) < 21_000
    assert verdict.feedback[0] == "a"
    assert verdict.feedback[-1] == "7"


def test_a_reader_may_be_a_coroutine() -> None:
    async def read(text: str) -> int:
        await asyncio.sleep(0)
        return number(text)

    asker = Asker("judge", AskingSettings())
    asker.connect({"judge": Scripted(["well", "7"])}.__getitem__)
    verdict: Verdict[int] = asyncio.run(asker.verdict("?", read))
    assert verdict.value == 7


def test_the_time_of_a_reader_does_not_count_against_the_judge() -> None:
    async def read(text: str) -> int:
        await asyncio.sleep(0.06)
        raise Unparsable("no number")

    model = Scripted(lambda question: ChatReply("x"))
    asker = Asker("judge", AskingSettings(deadline=0.1, tries=4))
    asker.connect({"judge": model}.__getitem__)
    with pytest.raises(NoVerdict) as caught:
        asyncio.run(asker.verdict("?", read))
    assert (caught.value.kind, len(model.asked)) == ("unparsable", 4)


def test_what_a_reader_raises_itself_is_the_reason() -> None:
    async def read(text: str) -> int:
        raise TimeoutError("its own")

    asker = Asker("judge", AskingSettings())
    asker.connect({"judge": Scripted(["7"])}.__getitem__)
    with pytest.raises(NoVerdict, match="TimeoutError: its own") as caught:
        asyncio.run(asker.verdict("?", read))
    assert (caught.value.kind, caught.value.attempts) == ("timeout", 1)
    assert caught.value.feedback == "[try 1]\n7"


def test_a_failure_keeps_what_was_written_in_all_tries() -> None:
    error = refused("well", "<think>hm</think>seven", ModelCallError("refused", "too long", 4))
    assert isinstance(error, NoVerdict)
    assert (error.kind, error.attempts, str(error)) == ("refused", 4, "too long")
    said = "[try 1: no number: well]\nwell\n\n[try 2: no number: seven]\n<think>hm</think>seven"
    assert error.feedback == failed_score(error).feedback == said
    assert refused(ModelCallError("unreachable", "gone")).feedback == ""


def test_what_is_kept_of_failures_is_bounded() -> None:
    error = refused(*["x" * 1_000_000] * 40, tries=40)
    assert isinstance(error, NoVerdict)
    assert len(error.feedback) < 21_000
    assert error.feedback.count("[try ") == 40


def test_check() -> None:
    asker = Asker("judge", AskingSettings())
    with pytest.raises(RuntimeError, match="has not been given its model 'judge'"):
        asyncio.run(asker.check())
    asker.connect({"judge": Scripted([], ill=UserError("no such model"))}.__getitem__)
    with pytest.raises(UserError, match="no such model"):
        asyncio.run(asker.check())


# ---- a group ---------------------------------------------------------------------------------------------------------


async def judge(key: str) -> Score:
    await asyncio.sleep(0)
    if key == "halt":
        raise Halt("enough")
    if key == "gone":
        raise ModelCallError("unreachable", "nobody there", 3)
    if key == "lost":
        raise asyncio.CancelledError
    if key == "exit":
        raise SystemExit(3)
    return Score(float(key))


def test_one_failure_is_one_rollouts() -> None:
    scores = asyncio.run(judged(["1", "gone", "x", "2", "lost", "exit"], judge, parts=("a",)))
    assert [s.value if s.failure is None else s.failure.kind for s in scores] == [
        1.0,
        "unreachable",
        "crashed",
        2.0,
        "cancelled",
        "crashed",
    ]
    assert scores[1].failure is not None
    assert scores[1].failure.attempts == 3
    assert [set(s.parts) for s in scores] == [set(), {"a"}, {"a"}, set(), {"a"}, {"a"}]
    assert "ValueError" in str(scores[2].failure)
    assert "SystemExit: 3 (test_asking.py:" in str(scores[5].failure)


def test_equal_keys_are_judged_once() -> None:
    seen: list[str] = []

    async def counted(key: str) -> Score:
        seen.append(key)
        return await judge(key)

    assert [s.value for s in asyncio.run(judged(["1", "2", "1", "1"], counted))] == [1, 2, 1, 1]
    assert seen == ["1", "2"]


def test_a_halt_passes() -> None:
    with pytest.raises(Halt, match="enough"):
        asyncio.run(judged(["1", "halt"], judge))


def test_a_run_that_stops_cancels_what_is_asked() -> None:
    ended: list[str] = []

    async def slow(key: str) -> Score:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(key)
        return Score(1.0)

    async def stop() -> None:
        task = asyncio.create_task(judged(["1", "2"], slow))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stop())
    assert sorted(ended) == ["1", "2"]


def test_a_verdict_that_failed_is_asked_anew_and_one_that_was_read_is_not(tmp_path):
    said = {"mended": False}

    def judge(question):
        return "Total Score: 7/10" if said["mended"] or question.attempt else "I would rather not say."

    def nonsense(question):
        return "Total Score: 7/10" if said["mended"] else "I would rather not say."

    async def verdicts(model):
        asker = Asker("judge", AskingSettings(tries=2))
        asker.connect({"judge": model}.__getitem__)
        try:
            return (await asker.verdict("?", lambda text: parse_grade(text).share)).value
        except ModelCallError as error:
            return error.kind

    async def main():
        cache = VerdictCache(tmp_path)
        for answer, first in ((judge, 0.7), (nonsense, "unparsable")):
            said["mended"] = False
            model = Scripted(answer)
            model.name = answer.__name__
            cached = Cached(model, cache)
            assert await verdicts(cached) == first
            asked = len(model.asked)
            said["mended"] = True
            await asyncio.sleep(0.2)  # it is forgotten in a thread
            assert await verdicts(cached) == 0.7
            assert (len(model.asked) > asked) == (first != 0.7)
        cache.close()

    asyncio.run(main())
