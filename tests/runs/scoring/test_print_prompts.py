"""`--show-prompts`: requests to models and their replies are printed as they are."""

import asyncio

import pytest

from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError, Usage
from rewardsmith.runs.commands import PrintedModel
from rewardsmith.types import Message


class Scripted:
    """Replies with the prompt backwards, or fails."""

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


def printed(output: list[str], count: int) -> PrintedModel:
    return PrintedModel(Scripted(), iter(range(1, count + 1)), output.append)


def request(text: str, **settings: int) -> ChatRequest:
    return ChatRequest([Message("system", "Be just."), Message("user", text)], **settings)


def test_the_first_requests_are_printed_with_their_replies_and_the_others_pass() -> None:
    output: list[str] = []
    model = printed(output, 2)

    async def all_at_once() -> list[ChatReply]:
        return await asyncio.gather(*(model.chat(request(text, max_tokens=5)) for text in ("ab", "cd", "ef")))

    assert [reply.text for reply in asyncio.run(all_at_once())] == ["ba", "dc", "fe"]
    assert output == [
        f"--- prompt {i} to judge (attempt 1, temperature 0, max_tokens 5):\n[system]\nBe just.\n[user]\n{text}\n"
        f"--- reply {i} of judge:\n{text[::-1]}\n---"
        for i, text in ((1, "ab"), (2, "cd"))
    ]
    assert (model.usage.calls, model.name) == (7, "judge")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (request("long"), "gnol (truncated)"),
        (request("deep"), "(thought)\nhm\n(answer)\npeed"),
        (ChatRequest("plain"), "prompt 1 to judge (attempt 1, temperature 0, max_tokens 1024):\nplain\n"),
        (request("again", attempt=1), "attempt 2"),
    ],
)
def test_the_details_of_a_reply_are_printed(sent: ChatRequest, words: str) -> None:
    output: list[str] = []
    asyncio.run(printed(output, 1).chat(sent))
    assert words in output[0]


def test_a_failed_call_is_printed_and_stays_a_failure() -> None:
    output: list[str] = []
    with pytest.raises(ModelCallError, match="within 3 s"):
        asyncio.run(printed(output, 1).chat(request("hard")))
    assert output[0].endswith("--- reply 1 of judge:\n(no reply: no answer within 3 s)\n---")


def test_numbers_are_printed_conversation_by_conversation() -> None:
    output: list[str] = []
    talks = [[Message("user", "a")], [Message("user", "b"), Message("assistant", "c")], [Message("user", "d")]]
    model = printed(output, 3)
    assert asyncio.run(model.rate(talks[:2])) == [1.0, 2.0]
    assert output[1] == "--- prompt 2 to judge (rate):\n[user]\nb\n[assistant]\nc\n--- reply 2 of judge:\n2\n---"
    asyncio.run(model.rate(talks))
    assert len(output) == 3
