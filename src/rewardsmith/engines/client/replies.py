"""What the bodies of answers hold. They are as untrusted as any text: each shape is checked, or is a `Fault`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.checks import unicode
from rewardsmith.engines.client.faults import Fault, excerpt, garbage

_ABORTED = frozenset({"abort", "error", "cancelled"})


@dataclass(frozen=True)
class Written:
    """An answer, as one request brought it.

    Attributes:
        text: what was written.
        truncated: whether the token limit ended it.
        thought: what was written before, where a server tells the two apart.
        logprobs: of the tokens, if they were asked for.
    """

    text: str
    truncated: bool = False
    thought: str = ""
    logprobs: tuple[float, ...] = ()


def tokens_of(body: object) -> tuple[int, int]:
    """Return the tokens that were read and written, 0 where the server does not say."""
    usage = body.get("usage") if isinstance(body, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else 0


def written(body: Any, *, chat: bool, logprobs: bool) -> Written:
    """Return the answer in the body of a chat, or of a continued text.

    Raises:
        Fault: there is none, or it was filtered.
    """
    choice = _first(_field(body, "choices", list), "choices", body)
    finish = str(choice.get("finish_reason"))
    message = _field(choice, "message", dict) if chat else choice
    if finish == "content_filter":
        raise Fault("refused", "the server's content filter withheld the answer", passing=False)
    if finish in _ABORTED:
        raise Fault("refused", f"the server ended the answer early: finish_reason {finish!r}")
    if declined := _said(message, "refusal"):
        raise Fault("refused", f"the model declined: {excerpt(declined)}", passing=False)
    thought = _said(message, "reasoning_content") or _said(message, "reasoning")
    truncated = finish == "length"
    text = _text(message.get("content" if chat else "text"))
    if text is None:
        if not thought and not truncated:
            raise garbage("the answer has no text", message)
        text = ""
    return Written(
        unicode(text), truncated, unicode(thought), _logprobs(choice, chat=chat, text=text) if logprobs else ()
    )


def _said(message: dict[str, Any], name: str) -> str:
    """Return a field that is there only now and then, or ""."""
    value = message.get(name)
    return value if isinstance(value, str) else ""


def _text(content: object) -> str | None:
    """Return the text of a message, which may come in parts; None where there is none."""
    if isinstance(content, str) or content is None:
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(text for text in texts if text)
    raise garbage("the text of the answer is neither text nor parts of it", content)


def _logprobs(choice: dict[str, Any], *, chat: bool, text: str) -> tuple[float, ...]:
    found = choice.get("logprobs")
    many = found.get("content" if chat else "token_logprobs") if isinstance(found, dict) else None
    if not isinstance(many, list):
        if not text:
            return ()
        raise Fault("refused", "the server gives no log-probabilities, though they were asked for", passing=False)
    values = [each.get("logprob") if isinstance(each, dict) else None for each in many] if chat else many
    return tuple(_number(value, "log-probability") for value in values)


def rows(body: Any, count: int) -> list[dict[str, Any]]:
    """Return the entries of `data`, in the order of what was sent.

    Raises:
        Fault: one is missing, or is there twice.
    """
    data = _field(body, "data", list)
    placed: dict[int, dict[str, Any]] = {}
    for position, entry in enumerate(data):
        if not isinstance(entry, dict):
            raise garbage("an entry of data is no object", entry)
        index = entry.get("index", position)
        if isinstance(index, int) and 0 <= index < count:
            placed[index] = entry
    if len(data) != count or len(placed) != count:
        raise garbage(f"{count} were asked about, {len(data)} came back, {len(placed)} of them in a place of their own")
    return [placed[i] for i in range(count)]


def classes(body: Any) -> list[float]:
    """Return what a classifier gives each of its classes, for one conversation."""
    probs = _field(rows(body, 1)[0], "probs", list)
    if not probs:
        raise garbage("the classifier has no class", body)
    return [_number(value, "class") for value in probs]


def scores(body: Any, count: int) -> list[float]:
    """Return one number for each pair of texts."""
    return [_number(entry.get("score"), "score") for entry in rows(body, count)]


def vectors(body: Any, count: int) -> NDArray[np.float32]:
    """Return the vectors, [n, D], each of length 1."""
    given = [_field(entry, "embedding", list) for entry in rows(body, count)]
    if len({len(each) for each in given}) != 1 or not given[0]:
        raise garbage(f"the vectors have {sorted({len(each) for each in given})} numbers: not all the same, or none")
    if not all(set(map(type, each)) <= {int, float} for each in given):  # numpy would take text and truth for numbers
        raise garbage("a vector holds something that is no number", given[0][:8])
    try:
        array = np.array(given, dtype=np.float64)
    except OverflowError:
        raise garbage("a vector holds a number that is too large", given[0][:8]) from None
    if not np.isfinite(array).all():
        raise garbage("a vector holds something that is no finite number", given[0][:8])
    largest = np.abs(array).max(axis=1, keepdims=True)
    if not (largest > 0).all():
        raise garbage("a vector has length 0: it has no direction")
    array /= largest  # so that the squares of very large numbers fit
    unit: NDArray[np.float32] = (array / np.linalg.norm(array, axis=1, keepdims=True)).astype(np.float32)
    return unit


def served_models(body: Any) -> list[str]:
    """Return the names of the models that a server has."""
    names = [entry.get("id") if isinstance(entry, dict) else None for entry in _field(body, "data", list)]
    if not all(isinstance(name, str) and name for name in names):
        raise garbage("the list of models has an entry without a name", body)
    return [str(name) for name in names]


def _field(body: Any, name: str, kind: type) -> Any:
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, kind):
        raise garbage(f"the answer has no {name}", body)
    return value


def _first(many: Sequence[Any], name: str, body: Any) -> dict[str, Any]:
    if not many or not isinstance(many[0], dict):
        raise garbage(f"the answer has empty {name}", body)
    return many[0]


def _number(value: object, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if math.isfinite(value):
                return float(value)
        except OverflowError:
            pass
    raise garbage(f"a {name} is no finite number", value)
