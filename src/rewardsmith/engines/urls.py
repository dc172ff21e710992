"""The addresses of servers, as a recipe gives them: what is none is refused, and so is one that holds a secret.

What a recipe says goes to the run's folder, its report and the trackers. A secret goes into an environment variable.
"""

from __future__ import annotations

import re

from yarl import URL

_SECRET = re.compile(r"key|token|secret|passw|pwd|credential|(?<![a-z])(sig|signature|auth)(?![a-z])", re.IGNORECASE)
_VERB = re.compile(r"/(chat/completions|completions|responses|embeddings|models|classify|score|rerank)/*$")
_REMEDY = "put the key into an environment variable and name it in key_from"


def read_url(text: str) -> URL:
    """Return the base address of a server.

    Raises:
        ValueError: it is none, or holds a secret. The message shows neither a secret nor where one might be.
    """
    shown = "it" if "@" in text or "?" in text else repr(text)
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise ValueError(f"{shown} is no address: there is white space in it")
    try:
        url = URL(text)
        sound = url.scheme in ("http", "https") and bool(url.host) and url.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"{shown} is no address: write http:// or https://, a host, and if need be :port and a path")
    if url.raw_user is not None or url.raw_password is not None:
        raise ValueError(f"the address holds a user or a password: {_REMEDY}")
    secret = next((name for name in url.query if _SECRET.search(name)), None)
    if secret is not None:
        raise ValueError(f"the address holds a secret, {secret[:40]!r}: {_REMEDY}")
    return url.with_fragment(None)


def without_verb(url: URL) -> URL:
    """Return the base of an address to which somebody added what is asked of it: `/v1`, not `/v1/chat/completions`."""
    path, found = _VERB.subn("", url.raw_path)
    return url.with_path(path, encoded=True).with_query(url.query) if found else url


__all__ = ["read_url", "without_verb"]
