"""The addresses of servers, as a recipe gives them: what is none is refused, and so is one that holds a secret.

What a recipe says goes to the run's folder, its report and the trackers. A secret goes into an environment variable.
"""

from __future__ import annotations

import re

from yarl import URL

from rewardsmith.masking import without_secrets

_PARAMETERS = ("api-version", "version")
"""What may stand after a `?`; everything else may be a secret."""

_VALUE = re.compile(r"[A-Za-z0-9.-]{1,32}")
_VERB = re.compile(r"/(chat/completions|completions|responses|embeddings|models|classify|score|rerank)/*$")
_REMEDY = "put the key into an environment variable and name it in key_from"


def read_url(text: str) -> URL:
    """Return the base address of a server.

    Raises:
        ValueError: it is none, or may hold a secret. The message shows neither a secret nor where one might be.
    """
    shown = "it" if re.search(r"[@?#]", text) or without_secrets(text) != text else repr(text)
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
    if url.raw_fragment or "#" in text:
        raise ValueError(
            f"the address has something after a #, which no server gets: leave it out. For a key: {_REMEDY}"
        )
    if any(name not in _PARAMETERS or not _VALUE.fullmatch(value) for name, value in url.query.items()):
        allowed = " and ".join(_PARAMETERS)
        raise ValueError(f"the address has parameters that may hold a secret; only {allowed} may be there: {_REMEDY}")
    if ";" in url.raw_path or without_secrets(text) != text:
        raise ValueError(f"the address holds a key: {_REMEDY}")
    return url


def without_verb(url: URL) -> URL:
    """Return the base of an address to which somebody added what is asked of it: `/v1`, not `/v1/chat/completions`."""
    path, found = _VERB.subn("", url.raw_path)
    return url.with_path(path, encoded=True).with_query(url.query) if found else url


__all__ = ["read_url", "without_verb"]
