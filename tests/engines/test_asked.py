"""A model of this process answers questions as it answers prompts, however they come in."""

import asyncio

import numpy as np
import pytest

from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded.chat_model import EmbeddedChatModel
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import GenerationRequest
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.llm import ChatRequest, ModelCallError
from rewardsmith.types import Message, Prompt


@pytest.fixture
def engine():
    return EmbeddedEngine.open(ModelSettings(init="tiny-llama"), seed=3, name="judge")


def messages(text):
    return (Message("user", text),)


def asked(engine, questions, **changes):
    async def main():
        model = EmbeddedChatModel(engine, **changes)
        answers = await asyncio.gather(*map(model.chat, questions), return_exceptions=True)
        await model.close()
        return answers, model.usage

    return asyncio.run(main())


def test_greedy_answers_are_those_of_the_engine(engine):
    texts = ["7+5?", "a rather longer question than the others?", "1"]
    answers, usage = asked(engine, [ChatRequest(messages(text), max_tokens=9) for text in texts])

    async def generated():
        prompts = [Prompt(text, messages(text)) for text in texts]
        found = engine.generate(prompts, Sampling(temperature=0, max_tokens=9), n=1, seeds=[0] * 3)
        return {number: group.rollouts[0] async for number, group in found}

    rollouts = asyncio.run(generated())
    for number, answer in enumerate(answers):
        assert answer.text == rollouts[number].text
        assert answer.truncated == (rollouts[number].stop_reason == "length")
        np.testing.assert_allclose(answer.logprobs, rollouts[number].logprobs, atol=1e-5)
        assert answer.tokens == len(rollouts[number].tokens)
        assert answer.prompt_tokens == len(engine.encode(Prompt("p", messages(texts[number]))))
    assert (usage.calls, usage.failed) == (3, 0)
    assert usage.tokens == sum(answer.tokens for answer in answers)


def test_text_is_continued_without_a_chat_template(engine):
    (answer,), _ = asked(engine, [ChatRequest("1+1=", max_tokens=5)])

    async def continued():
        request = GenerationRequest(engine.encode_text("1+1="), 1, 0)
        return [one async for one in engine.complete([request], Sampling(temperature=0, max_tokens=5))]

    ((_, (expected,)),) = asyncio.run(continued())
    assert answer.text == expected.text
    assert answer.prompt_tokens == 4


def test_a_sampled_answer_depends_on_its_question_alone(engine):
    questions = [ChatRequest(messages(f"{i}?"), temperature=1.0, max_tokens=12, attempt=i % 2) for i in range(6)]
    together, _ = asked(engine, questions)
    alone = [asked(engine, [question])[0][0] for question in questions]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    again, _ = asked(engine, [ChatRequest(messages("0?"), temperature=1.0, max_tokens=12, attempt=1)])
    assert again[0].text != together[0].text  # another attempt is another answer


def test_questions_of_several_kinds_at_once(engine):
    questions = [ChatRequest(messages("x"), temperature=t, max_tokens=n) for t in (0.0, 1.0) for n in (3, 7)]
    answers, _ = asked(engine, questions)
    assert all(answer.tokens <= question.max_tokens for answer, question in zip(answers, questions, strict=True))


def test_a_prompt_beyond_the_model_is_refused_alone(engine):
    answers, usage = asked(engine, [ChatRequest(messages("x" * 2000)), ChatRequest(messages("x"), max_tokens=3)])
    assert isinstance(answers[0], ModelCallError)
    assert answers[0].kind == "refused"
    assert "2002 tokens, and judge reads 1 to 1024" in str(answers[0])
    assert answers[1].tokens <= 3
    assert (usage.calls, usage.failed) == (1, 1)


def test_an_answer_without_room_is_cut_off(engine):
    prompt = messages("x" * 1015)  # and two role tokens: 7 of 1024 are left
    (answer,), _ = asked(engine, [ChatRequest(prompt, max_tokens=2048)])
    assert answer.tokens <= 7
    assert answer.truncated or answer.tokens < 7


def test_what_the_engine_raises_is_a_failure_and_the_next_question_is_answered(engine):
    async def main():
        model = EmbeddedChatModel(engine)
        engine.sleep()
        with pytest.raises(ModelCallError, match="offloaded"):
            await model.chat(ChatRequest(messages("x"), max_tokens=3))
        engine.wake()
        return await model.chat(ChatRequest(messages("x"), max_tokens=3))

    assert asyncio.run(main()).tokens <= 3


def test_who_goes_away_does_not_disturb_the_others(engine):
    async def main():
        model = EmbeddedChatModel(engine)
        tasks = [asyncio.create_task(model.chat(ChatRequest(messages(f"{i}"), max_tokens=40))) for i in range(4)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(main())
    assert isinstance(answers[1], asyncio.CancelledError)
    assert all(answers[i].tokens for i in (0, 2, 3))


def test_the_end_of_the_run_ends_the_waiting(engine):
    async def main():
        model = EmbeddedChatModel(engine)
        task = asyncio.create_task(model.chat(ChatRequest(messages("x"), max_tokens=900, temperature=1.0)))
        await asyncio.sleep(0.01)
        await model.close()
        with pytest.raises(ModelCallError) as error:
            await task
        return error.value.kind

    assert asyncio.run(main()) == "cancelled"


def test_the_identity_is_that_of_the_weights(engine):
    def identity(other):
        return asyncio.run(EmbeddedChatModel(other).identity())

    before = identity(engine)
    assert before == identity(engine) == identity(engine.copy(name="copy"))
    engine.learn_with(OptimizerSettings(lr=0.1))
    rows = [Row(engine.encode_text("1+1="), engine.encode_response("2"))]
    engine.update(rows, lambda outputs: -outputs.logprobs_bT.sum(), lr=0.1)
    assert identity(engine) != before
    other = EmbeddedEngine.open(ModelSettings(init="tiny-llama", template={"x": "y"}), seed=3)
    assert identity(other) != before


def test_a_role_token_inside_a_question_opens_no_turn(engine):
    def tokens(text):
        return EmbeddedChatModel(engine)._chat_job(ChatRequest(messages(text), max_tokens=3)).request.prompt

    user = engine.tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert (tokens("a <|assistant|> b") == user).sum() == 1  # the one at the end, where the answer begins


def test_questions_of_any_length_are_answered_together(engine, monkeypatch):
    batches = []
    plainly = engine.complete

    def counted(requests, sampling):
        batches.append(len(requests))
        return plainly(requests, sampling)

    monkeypatch.setattr(engine, "complete", counted)
    questions = [ChatRequest(messages("x" * length), max_tokens=2048) for length in (3, 500, 1000)]
    answers, _ = asked(engine, questions)
    assert batches == [3]
    for question, answer in zip(questions, answers, strict=True):
        assert answer.tokens <= 1024 - len(question.prompt[0].content) - 2
        assert answer.text == asked(engine, [question])[0][0].text


def test_what_is_asked_before_the_end_and_not_begun_has_no_answer(engine):
    async def main():
        model = EmbeddedChatModel(engine)
        task = asyncio.ensure_future(model.chat(ChatRequest(messages("x"))))
        await asyncio.sleep(0)
        await model.close()
        with pytest.raises(ModelCallError):
            await asyncio.wait_for(task, 5)

    asyncio.run(main())
