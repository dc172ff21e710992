"""Asking until something can be read: warmer, with the reason, within the tries and the deadline."""

import asyncio
from typing import Any

import pytest

from rewardsmith import Message
from rewardsmith.data.rubrics.asking import Asking, Said, first_readable, mend
from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError
from rewardsmith.text.judge_replies import Unparsable
from tests.rewards.models import Scripted

PROMPT = (Message("system", "Be kind."), Message("user", "A number?"))


def number(text: str) -> int:
    if not text.isdecimal():
        raise Unparsable("no number", f"{text[:20]!r}", invalid=text == "-1")
    return int(text)


def ask(script: Any, asking: Asking | None = None, **settings: Any) -> tuple[Said[int], Scripted]:
    model = Scripted(script)
    found = asyncio.run(first_readable(model, PROMPT, number, asking or Asking(), **settings))
    return found, model


def test_the_first_answer() -> None:
    found, model = ask([ChatReply("<think>hm</think> 7 ", prompt_tokens=5, tokens=3)])
    assert found == Said(7, "7", 1, 5, 3)
    (question,) = model.asked
    assert (question.prompt, question.temperature, question.seed, question.attempt) == (PROMPT, 0.0, 0, 0)


def test_each_try_is_warmer_and_a_question_of_its_own() -> None:
    answers = [ChatReply(text, prompt_tokens=10, tokens=1) for text in ("x", "y", "8")]
    found, model = ask(answers, Asking(temperature=0.5, warmest=0.9, seed=3, tries=3), vote=2)
    assert (found.value, found.tries, found.prompt_tokens, found.tokens) == (8, 3, 30, 3)
    assert [q.temperature for q in model.asked] == [0.5, 0.8, 0.9]
    assert [q.seed for q in model.asked] == [9, 10, 11]
    assert [q.attempt for q in model.asked] == [6, 7, 8]
    assert all(q.prompt == PROMPT for q in model.asked)  # nobody said that another should be asked


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (["x", "y"], "unparsable", "no number: 'y'"),
        (["x", "-1"], "invalid", "no number: '-1'"),
        (["x", ChatReply("4", truncated=True, tokens=9)], "truncated", "cut off: after 9 tokens (--max-tokens 4096)"),
        (["x", ChatReply("4", truncated=True)], "truncated", "by the token limit"),
        (["x", "<think>4"], "unparsable", "unfinished thought"),
        ([ModelCallError("refused", "no credit")], "refused", "no credit"),
        ([ChatReply("x", seconds=400.0)], "timeout", "nothing readable within 300 s; the last try: no number: 'x'"),
    ],
)
def test_failures(script: list[Any], kind: str, message: str) -> None:
    with pytest.raises(ModelCallError) as caught:
        ask(script, Asking(tries=2))
    assert caught.value.kind == kind
    assert message in str(caught.value)


def test_the_deadline_is_shared_by_all_tries() -> None:
    _, model = ask([ChatReply("x", seconds=100.0), ChatReply("y", seconds=150.0), "9"])
    assert [q.deadline for q in model.asked] == [300, 200, 50]


def test_what_failed_is_forgotten_and_what_succeeded_is_not() -> None:
    forgotten: list[ChatRequest] = []

    class Remembering(Scripted):
        async def forget(self, questions: list[ChatRequest]) -> None:
            forgotten.extend(questions)

    asyncio.run(first_readable(Remembering(["x", "7"]), PROMPT, number, Asking()))
    assert forgotten == []
    with pytest.raises(ModelCallError):
        asyncio.run(first_readable(Remembering(["x", "y", "z"]), PROMPT, number, Asking()))
    assert [q.attempt for q in forgotten] == [0, 1, 2]


def test_the_reason_is_told() -> None:
    def again(before: Any, said: str, error: Unparsable) -> tuple[Message, ...]:
        return mend(PROMPT, said, error)

    script = ["first <|im_end|>", "second", ChatReply("cut", truncated=True), "5"]
    found, model = ask(script, Asking(tries=4), again=again)
    assert found.tries == 4
    one, two, three, four = (q.prompt for q in model.asked)
    assert one == PROMPT
    assert two[:2] == three[:2] == PROMPT
    assert [m.role for m in two] == ["system", "user", "assistant", "user"]
    assert two[2].content == "first < |im_end|>"
    assert "This cannot be used: no number: 'first < |im_end|>'" in two[3].content
    assert three[2].content == "second"  # the last answer alone
    assert [m.role for m in four] == ["system", "user"]
    assert four[1].content.startswith("A number?\n\n(An earlier answer could not be used: cut off")


def test_a_huge_answer_is_not_repeated_in_full() -> None:
    (*_, shown, _) = mend(PROMPT, "x" * 1_000_000, Unparsable("no"))
    assert len(shown.content) < 21_000
