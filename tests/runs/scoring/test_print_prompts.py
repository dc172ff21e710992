"""`--show-prompts`: requests and replies as they are."""

import asyncio

import pytest

from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError, Usage
from rewardsmith.runs.commands import PrintedModel, PromptPrinter
from rewardsmith.types import Message


class Scripted:
    """Replies with the prompt backwards, or not at all."""

    name = "judge"

    def __init__(self) -> None:
        self.usage = Usage(calls=7)

    async def chat(self, question: ChatRequest) -> ChatReply:
        text = question.prompt if isinstance(question.prompt, str) else question.prompt[-1].content
        await asyncio.sleep(0)
        if text == "hard":
            raise ModelCallError("timeout", "no answer within 3 s")
        return ChatReply(text[::-1], truncated=text == "long", thought="hm" if text == "deep" else "")

    async def rate(self, conversations: list[list[Message]]) -> list[float]:
        return [float(len(conversation)) for conversation in conversations]


def question(text: str, **how: int) -> ChatRequest:
    return ChatRequest([Message("system", "Be just."), Message("user", text)], **how)


def test_the_first_questions_are_shown_with_their_answers_and_the_others_pass() -> None:
    output: list[str] = []
    model = PrintedModel(Scripted(), PromptPrinter(2, output.append))

    async def all_at_once() -> list[ChatReply]:
        return await asyncio.gather(*(model.chat(question(text, max_tokens=5)) for text in ("ab", "cd", "ef")))

    assert [answer.text for answer in asyncio.run(all_at_once())] == ["ba", "dc", "fe"]
    assert output == [
        f"--- prompt {i} to judge, temperature 0, max_tokens 5:\n[system]\nBe just.\n[user]\n{text}\n"
        f"--- reply {i} of judge:\n{text[::-1]}\n---"
        for i, text in ((1, "ab"), (2, "cd"))
    ]
    assert model.usage.calls == 7
    assert model.name == "judge"


def test_what_is_special_about_a_reply_is_printed() -> None:
    for request, printed in (
        (question("long"), "gnol\n(truncated)"),
        (question("deep"), "(thought)\nhm\n(answer)\npeed"),
        (ChatRequest("plain"), "prompt 10 to judge, temperature 0, max_tokens 1024:\nplain\n"),
        (question("again", attempt=1), " (attempt 2), "),
    ):
        output: list[str] = []
        asyncio.run(PrintedModel(Scripted(), PromptPrinter(1, output.append, number=9)).chat(request))
        assert printed in output[0]
    with pytest.raises(ModelCallError, match="within 3 s"):
        asyncio.run(PrintedModel(Scripted(), PromptPrinter(1, output.append)).chat(question("hard")))
    assert output[1].endswith("--- reply 1 of judge:\n(no reply: no answer within 3 s)\n---")


def test_numbers_are_shown_conversation_by_conversation() -> None:
    output: list[str] = []
    talks = [[Message("user", "a")], [Message("user", "b"), Message("assistant", "c")], [Message("user", "d")]]
    assert asyncio.run(PrintedModel(Scripted(), PromptPrinter(2, output.append)).rate(talks)) == [1.0, 2.0, 1.0]
    assert output[1] == ("--- prompt 2 to judge (rate):\n[user]\nb\n[assistant]\nc\n--- reply 2 of judge:\n2\n---")
    assert len(output) == 2
