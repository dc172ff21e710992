"""A model of this process says how likely it finds answers, however they come in."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from rewardsmith.engines.embedded.asked import AskedModel
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.engines.settings import LoraSettings
from rewardsmith.llm import ChatRequest, ModelCallError, TokenLogprobs, Usage
from rewardsmith.rewards.cache import CachedModel, VerdictCache
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup
from tests.engines.running import answer, ask, lively, open_engine, plain_logprobs, plain_model, shared_engine

ENGINE = shared_engine("tiny-llama")


def group(*rollouts: Rollout, text: str = "7+5-3?") -> RolloutGroup:
    return RolloutGroup(ask(text), rollouts)


def read(
    *groups: RolloutGroup, engine: EmbeddedEngine = ENGINE, settings: dict[str, Any] | None = None
) -> tuple[list[Any], Usage]:
    """Return what the model makes of each group, and what that cost."""

    async def main() -> list[Any]:
        found = await asyncio.gather(*(model.read(one, **(settings or {})) for one in groups), return_exceptions=True)
        await model.close()
        return list(found)

    model = AskedModel(engine)
    return asyncio.run(main()), model.usage


def expected(one: RolloutGroup, response: np.ndarray) -> np.ndarray:
    row = Row(ENGINE.encode(one.prompt), response)
    return plain_logprobs(plain_model("tiny-llama"), row).detach().numpy()


def test_tokens_are_read_as_they_were_written() -> None:
    groups = answer(ENGINE, ["7+5", "a longer question?"], Sampling(max_tokens=17), n=3)
    found, usage = read(*groups)
    for one, reads in zip(groups, found, strict=True):
        for rollout, each in zip(one.rollouts, reads, strict=True):
            np.testing.assert_allclose(each.logprobs, expected(one, rollout.tokens), atol=1e-4)
            np.testing.assert_allclose(each.logprobs, rollout.logprobs, atol=1e-4)  # sampled at temperature 1
            assert each.logprobs.dtype == np.float32
            assert each.ends.tolist() == ENGINE.ends(rollout.tokens, rollout.text).tolist()
    assert (usage.calls, usage.failed, usage.tokens) == (6, 0, 0)
    prompts = sum(len(ENGINE.encode(one.prompt)) for one in groups)
    assert usage.prompt_tokens == prompts + sum(len(r.tokens) - 1 for one in groups for r in one.rollouts)


def test_temperature_one_whatever_the_answer_was_sampled_with() -> None:
    (one,) = answer(ENGINE, ["7"], Sampling(temperature=0.3, max_tokens=9))
    ((each,),), _ = read(one)
    assert not np.allclose(each.logprobs, one.rollouts[0].logprobs, atol=1e-2)
    np.testing.assert_allclose(each.logprobs, expected(one, one.rollouts[0].tokens), atol=1e-4)


def test_text_is_read_as_the_model_would_write_it() -> None:
    one = group(Rollout("7+5=12;#9"), Rollout("7+5=12;#9", stop_reason="length"), Rollout(""))
    ((ended, cut_off, nothing),), usage = read(one)
    tokens = ENGINE.encode_response("7+5=12;#9")
    np.testing.assert_allclose(ended.logprobs, expected(one, tokens), atol=1e-4)
    assert ended.ends.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    np.testing.assert_allclose(cut_off.logprobs, ended.logprobs[:-1], atol=1e-5)  # nobody ended it
    assert cut_off.ends.tolist() == list(range(1, 10))
    assert (len(nothing.logprobs), len(nothing.ends)) == (0, 0)
    assert usage.calls == 3


def test_a_group_of_nothing_is_read_as_nothing() -> None:
    ((nothing,),), usage = read(group(Rollout("")))
    assert (nothing.logprobs.dtype, nothing.ends.dtype, len(nothing.logprobs)) == (np.float32, np.int32, 0)
    assert (usage.calls, usage.prompt_tokens) == (1, 0)


def test_groups_that_are_read_at_the_same_time_change_no_bit_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("tiny-llama")
    passes: list[int] = []
    measure = engine.logprobs
    monkeypatch.setattr(engine, "logprobs", lambda rows: passes.append(len(rows)) or measure(rows))
    groups = [group(Rollout("a" * 3 * i), Rollout("b"), Rollout(""), text=f"{i}?") for i in range(1, 9)]
    together, _ = read(*groups, engine=engine)
    assert passes == [2] * 8
    for some, one in zip(together, groups, strict=True):
        (alone,), _ = read(one, engine=engine)
        assert [each.logprobs.tobytes() for each in some] == [each.logprobs.tobytes() for each in alone]


def test_what_is_too_much_for_one_pass_is_read_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("tiny-llama", tokens_per_pass=40)
    passes: list[int] = []
    measure = engine.logprobs
    monkeypatch.setattr(engine, "logprobs", lambda rows: passes.append(len(rows)) or measure(rows))
    one = group(*(Rollout("x" * 18) for _ in range(5)))
    (found,), _ = read(one, engine=engine)
    assert len(passes) > 1
    for each in found:
        np.testing.assert_allclose(each.logprobs, expected(one, ENGINE.encode_response("x" * 18)), atol=1e-4)


REFUSED = [
    (Rollout("12", tokens=[5, 10_000]), "token 10000 is beyond the .* its tokenizer is not the one"),
    (Rollout("hello", tokens=[20, 21]), "not what these tokens say: another tokenizer made them"),
    (Rollout("x" * 2_000), "prompt and answer have 2009 tokens, and model reads 1024"),
]


@pytest.mark.parametrize(("rollout", "words"), REFUSED)
def test_what_the_model_cannot_read_is_refused_and_the_others_are_read(rollout: Rollout, words: str) -> None:
    (failed, fine), usage = read(group(Rollout("7"), rollout), group(Rollout("7")))
    assert isinstance(failed, ModelCallError)
    assert failed.kind == "refused"
    assert (usage.calls, usage.failed) == (1, 2)
    assert len(fine[0].logprobs) == 2
    with pytest.raises(ModelCallError, match=words):
        raise failed


def test_a_prompt_that_the_template_cannot_render_is_refused() -> None:
    odd = RolloutGroup(Prompt("p", [Message("critic", "?")]), [Rollout("7")])
    (failed,), _ = read(odd)
    assert isinstance(failed, ModelCallError)
    assert "unknown role critic" in str(failed)


def test_numbers_that_are_none_are_a_failure() -> None:
    engine = open_engine("tiny-llama")
    with torch.no_grad():
        engine.model.lm_head.weight[0] = float("nan")
    (failed,), usage = read(group(Rollout("7")), engine=engine)
    assert isinstance(failed, ModelCallError)
    assert (failed.kind, usage.failed) == ("invalid", 1)


def test_the_adapter_can_be_switched_off() -> None:
    engine = open_engine("tiny-llama", lora=LoraSettings(rank=2))
    lively(engine.model)
    one = group(Rollout("7+5=12"))
    ((on,),), _ = read(one, engine=engine)
    ((off,),), _ = read(one, engine=engine, settings={"adapter": False})
    row = Row(engine.encode(one.prompt), engine.encode_response("7+5=12"))
    np.testing.assert_allclose(on.logprobs, engine.logprobs([row])[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(off.logprobs, engine.reference_logprobs([row])[0].numpy(), atol=1e-5)
    assert not np.allclose(on.logprobs, off.logprobs, atol=1e-2)


def test_a_model_without_an_adapter_has_none_to_switch_off() -> None:
    (failed,), _ = read(group(Rollout("7")), settings={"adapter": False})
    assert isinstance(failed, ModelCallError)
    assert str(failed) == "model has no adapter that could be switched off"


def test_reading_and_answering_at_the_same_time_disturb_neither() -> None:
    question = ChatRequest((Message("user", "7+5?"),), max_tokens=12)
    one = group(Rollout("7+5=12;#9"))

    async def main() -> tuple[Any, list[TokenLogprobs]]:
        model = AskedModel(ENGINE)
        asked, found = await asyncio.gather(model.chat(question), model.read(one))
        await model.close()
        return asked, found

    async def alone() -> Any:
        return await AskedModel(ENGINE).chat(question)

    asked, (each,) = asyncio.run(main())
    assert asked.text == asyncio.run(alone()).text
    np.testing.assert_allclose(each.logprobs, expected(one, ENGINE.encode_response("7+5=12;#9")), atol=1e-4)


def test_a_sleeping_engine_is_a_failure_and_the_next_group_is_read() -> None:
    engine = open_engine("tiny-llama")

    async def main() -> list[TokenLogprobs]:
        model = AskedModel(engine)
        engine.sleep()
        with pytest.raises(ModelCallError, match="asleep"):
            await model.read(group(Rollout("7")))
        engine.wake()
        return await model.read(group(Rollout("7")))

    assert len(asyncio.run(main())[0].logprobs) == 2


def test_what_waits_when_the_model_is_closed_has_no_result() -> None:
    async def main() -> Any:
        model = AskedModel(ENGINE)
        waiting = asyncio.create_task(model.read(group(Rollout("7"))))
        await asyncio.sleep(0)
        await model.close()
        return (await asyncio.gather(waiting, return_exceptions=True))[0]

    failed = asyncio.run(main())
    assert isinstance(failed, ModelCallError)
    assert failed.kind == "cancelled"


def test_the_verdict_cache_lets_reading_through(tmp_path: Any) -> None:
    async def main() -> list[TokenLogprobs]:
        cache = VerdictCache(tmp_path, say=pytest.fail)
        try:
            return list(await CachedModel(AskedModel(ENGINE), cache).read(group(Rollout("7"))))
        finally:
            cache.close()

    assert len(asyncio.run(main())[0].logprobs) == 2
