"""The bodies of replies. A reply is untrusted: each field is checked, or is a `RequestError`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.checks import unicode
from rewardsmith.http.request_errors import RequestError, excerpt, malformed
from rewardsmith.llm import ChatReply

ABSENT = (404, 405, 501)  # status of what a server does not have
_ABORTED = frozenset({"abort", "error", "cancelled"})


# ---- bodies --------------------------------------------------------------------------------------------------------


def token_counts(body: object) -> tuple[int, int]:
    """Return prompt and completion tokens, 0 where the server does not report them."""
    usage = body.get("usage") or body.get("meta_info") if isinstance(body, dict) else None  # the second is SGLang's
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else [0, 0]
    prompt, completion = (n if type(n) is int and 0 <= n < 2**40 else 0 for n in counts)
    return prompt, completion


def parse_completion(body: Any, *, chat: bool, logprobs: bool) -> ChatReply:
    """Return the reply in the body of a chat, or of a text completion, without usage."""
    choices = _field(body, "choices", list)
    if not choices or not isinstance(choices[0], dict):
        raise malformed("the reply has no choices", body)
    choice = choices[0]
    finish = str(choice.get("finish_reason"))
    message = _field(choice, "message", dict) if chat else choice
    if finish == "content_filter":
        raise RequestError("refused", "the server's content filter withheld the reply", retryable=False)
    if finish in _ABORTED:
        raise RequestError("refused", f"the server aborted the reply: finish_reason {finish!r}")
    refusal, *thoughts = (message.get(name) for name in ("refusal", "reasoning_content", "reasoning"))
    if refusal and isinstance(refusal, str):
        raise RequestError("refused", f"the model declined: {excerpt(refusal)}", retryable=False)
    thought = next((each for each in thoughts if each and isinstance(each, str)), "")
    text = _content(message.get("content" if chat else "text"))
    if text is None and not thought and finish != "length":
        raise malformed("the reply has no text", message)
    text = text or ""
    values = _logprobs(choice, chat=chat, text=text) if logprobs else ()
    return ChatReply(unicode(text), finish == "length", unicode(thought), logprobs=values)


def _content(content: object) -> str | None:
    """Return the text of a message, which may come in parts; None if there is none."""
    if isinstance(content, str) or content is None:
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(text for text in texts if text)
    raise malformed("the content of the reply is not text", content)


def _logprobs(choice: dict[str, Any], *, chat: bool, text: str) -> tuple[float, ...]:
    given = choice.get("logprobs")
    tokens = given.get("content" if chat else "token_logprobs") if isinstance(given, dict) else None
    if not isinstance(tokens, list):
        if not text:
            return ()
        raise RequestError("refused", "the server returned no logprobs, though they were requested", retryable=False)
    values = [each.get("logprob") if isinstance(each, dict) else None for each in tokens] if chat else tokens
    return tuple(_number(value, "logprob") for value in values)


def _rows(body: Any, count: int) -> list[dict[str, Any]]:
    """Return the entries of `data` in the order of the request: none missing, none twice."""
    data = _field(body, "data", list)
    placed: dict[int, dict[str, Any]] = {}
    for position, entry in enumerate(data):
        index = entry.get("index", position) if isinstance(entry, dict) else None
        if not isinstance(index, int):
            raise malformed("an entry of data is invalid", entry)
        placed[index] = entry
    if len(data) != count or placed.keys() != set(range(count)):
        raise malformed(f"{count} entries of data expected, got {len(data)} with {len(placed)} indices")
    return [placed[i] for i in range(count)]


def parse_class(body: Any) -> float:
    """Return the only output of a classifier."""
    probs = _field(_rows(body, 1)[0], "probs", list)
    if len(probs) > 1:
        raise RequestError(
            "refused", f"the model has {len(probs)} classes: a reward needs a single output", retryable=False
        )
    return _number(probs[0] if probs else None, "class")


def parse_reward(body: Any) -> float:
    """Return the only output of a reward model on SGLang, whose reply to one conversation may be a list of one."""
    entry = body[0] if isinstance(body, list) and len(body) == 1 else body
    values = _field(entry, "embedding", list)
    if len(values) > 1:
        reason = f"the model has {len(values)} outputs: a reward needs a single one"
        raise RequestError("refused", reason, retryable=False)
    return _number(values[0] if values else None, "reward")


def parse_scores(body: Any, count: int) -> list[float]:
    """Return one number for each pair of texts."""
    return [_number(entry.get("score"), "score") for entry in _rows(body, count)]


def parse_embeddings(body: Any, count: int) -> NDArray[np.float32]:
    """Return the vectors [n, D], each normalised to length 1."""
    given = [_field(entry, "embedding", list) for entry in _rows(body, count)]
    if len({len(each) for each in given}) != 1 or not given[0]:
        raise malformed(f"the embeddings have {sorted({len(each) for each in given})} numbers: not one length, or none")
    if not all(set(map(type, each)) <= {int, float} for each in given):  # numpy would convert text and booleans
        raise malformed("an embedding has an entry that is not a number", given[0][:8])
    try:
        array = np.array(given, dtype=np.float64)
    except OverflowError:
        raise malformed("an embedding has a number that is too large", given[0][:8]) from None
    largest = np.abs(array).max(axis=1, keepdims=True)
    if not (np.isfinite(largest) & (largest > 0)).all():
        raise malformed("an embedding is zero or not finite", given[0][:8])
    array /= largest  # so that the squares of very large numbers fit
    unit: NDArray[np.float32] = (array / np.linalg.norm(array, axis=1, keepdims=True)).astype(np.float32)
    return unit


def parse_models(body: Any) -> list[str]:
    """Return the names of a server's models."""
    entries = _field(body, "data", list)
    if not all(isinstance(each, dict) and isinstance(each.get("id"), str) and each["id"] for each in entries):
        raise malformed("the list of models has an entry without an id", body)
    return [each["id"] for each in entries]


def _field(body: Any, name: str, kind: type) -> Any:
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, kind):
        raise malformed(f"the reply has no {name}", body)
    return value


def _number(value: object, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise malformed(f"a {name} is not a finite number", value)
