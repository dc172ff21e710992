"""Keys and passwords: how they are recognised in a recipe, and how they are kept out of what is shown or stored.

A recipe is copied to the run folder, its report and the trackers. So it holds no secret but the name of an environment
variable, as `api_key_env = "NAME"` or `{ env = "NAME" }`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

HIDDEN = "(hidden)"

_NAMES = frozenset(
    {"key", "apikey", "token", "secret", "password", "passwd", "pwd", "passphrase", "credential", "credentials"}
    | {"authorization", "auth", "jwt", "bearer", "cookie", "sig", "signature"}
)
# `prompt_cache_key` of a request and `eos_token` of a chat template are none.
_HARMLESS = {
    "key": frozenset({"cache", "sort", "group", "partition", "idempotency", "json"}),
    "token": frozenset(
        {"bos", "eos", "pad", "unk", "sep", "cls", "mask", "stop", "start", "end", "special", "think", "image", "audio"}
    ),
}
_SHAPES = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bgh[opsu]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bxox[abprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|\b(?:gsk|nvapi|xai|tgp)[_-][A-Za-z0-9_-]{20,}|\bBearer\s+[^\s\"']{8,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"
)
_MIN_LENGTH = 6  # what is shorter stands for no key: EMPTY, none, <s>
_PART = 6  # so many characters of a key, from its beginning or to its end, are shown nowhere


def names_secret(name: str) -> bool:
    """Whether a name is that of a key or password: `HF_TOKEN`, `api-key`, `X-Amz-Signature`; not `max_tokens`."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    if not words or words[-1] not in _NAMES:
        return False
    return len(words) < 2 or words[-2] not in _HARMLESS.get(words[-1], ())


def is_secret(name: str, value: object) -> bool:
    """Whether a value is a key or password, by its name or by its form."""
    if not isinstance(value, str):
        return False
    named = names_secret(name) and len(value) >= _MIN_LENGTH and value[0] not in "<[{"
    return named or _SHAPES.search(value) is not None


def without_secrets(text: str) -> str:
    """Return a text with what has the form of a key replaced."""
    return _SHAPES.sub(HIDDEN, text)


def secrets_in(value: object, path: str = "") -> Iterator[str]:
    """Yield the path of each secret in a value of a recipe: a table, a text, or a list of arguments."""
    if is_reference(value):
        return
    if is_secret("", value):
        yield path
    elif isinstance(value, dict):
        for name, inner in value.items():
            place = f"{path}.{name}".lstrip(".")
            yield from [place] if is_secret(str(name), inner) else secrets_in(inner, place)
    elif isinstance(value, list | tuple):
        option = ""
        for i, inner in enumerate(value):  # `--api-key X`, or `--api-key=X`
            place = f"{path}.{i}".lstrip(".")
            name, equals, rest = inner.partition("=") if isinstance(inner, str) else ("", "", "")
            yield from [place] if is_secret(option, inner) or is_secret(name, rest) else secrets_in(inner, place)
            option = name if name.startswith("-") and not equals else ""


def is_reference(value: object) -> bool:
    """Whether a value of a recipe names an environment variable: `{ env = "NAME" }`."""
    return isinstance(value, dict) and set(value) == {"env"} and isinstance(value["env"], str)


def resolved(value: Any, get: Callable[[str], str | None] = os.environ.get) -> tuple[Any, list[str]]:
    """Return a value with each `{ env = "NAME" }` filled in, and the values of these variables."""
    found: list[str] = []

    def replaced(inner: Any) -> Any:
        if is_reference(inner):
            text = get(inner["env"])
            if not text:
                raise UnsetVariableError(inner["env"])
            found.append(text)
            return text
        if isinstance(inner, dict):
            return {name: replaced(one) for name, one in inner.items()}
        return [replaced(one) for one in inner] if isinstance(inner, list | tuple) else inner

    return replaced(value), found


class UnsetVariableError(Exception):
    """An environment variable that a recipe names is not set; the text is its name."""


class Mask:
    """Removes known secrets, which are sent to a server, from what it sends."""

    def __init__(self, secrets: Iterable[str | None]) -> None:
        self._secrets = [secret for secret in dict.fromkeys(secrets) if secret]
        # A key such as "1" or "EMPTY" is none, and may well be a part of an answer.
        self._unlikely = [each for each in self._secrets if len(each) >= 20 or (len(each) >= 8 and not each.isalpha())]

    def text(self, text: str) -> str:
        """Return an error's text without the secrets, and without a part of one: such texts may be cut."""
        for secret in self._secrets:
            if secret[:_PART] in text or secret[-_PART:] in text:
                for size in range(len(secret), min(_PART, len(secret)) - 1, -1):
                    text = text.replace(secret[:size], "(the key)").replace(secret[-size:], "(the key)")
        return text

    def json(self, value: Any, body: bytes | None = None) -> Any:
        """Return JSON without the secrets in its texts; a search in the `body` that it was read from is cheaper."""
        if body is not None and b"\\" not in body and not any(each.encode() in body for each in self._unlikely):
            return value
        text = json.dumps(value, ensure_ascii=False) if self._unlikely else ""
        written = [json.dumps(each, ensure_ascii=False)[1:-1] for each in self._unlikely]
        if not any(each in text for each in written):
            return value
        for each in written:
            text = text.replace(each, "(the key)")
        return json.loads(text)


def shown(value: object) -> str:
    """Return a value as TOML would show it, cut to one short line; what looks like a key is not shown."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    elif isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print very long integers
        text = f"an integer of {value.bit_length()} bits"
    else:
        text = repr(value)
    text = without_secrets(text)
    return text if len(text) <= 80 else f"{text[:77]}…"
