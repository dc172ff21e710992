"""Base URLs of servers in a recipe. One with a secret is refused: a recipe is copied to run folders and reports."""

from __future__ import annotations

import re

from yarl import URL

from rewardsmith.masking import without_secrets

_PARAMETERS = ("api-version", "version")  # the only query parameters; any other one may be a secret
_VALUE = re.compile(r"[A-Za-z0-9.-]{1,32}")
_VERB = re.compile(r"/(chat/completions|completions|responses|embeddings|models|classify|score|rerank)/*$")
_REMEDY = "put the key into an environment variable and name it in api_key_env"


def read_url(text: str, *, base: bool = True) -> URL:
    """Return the URL of a service; a `ValueError`, which shows no secret, if it is none or may hold a secret.

    A base URL may not name an endpoint of a model server.
    """
    shown = "it" if re.search(r"[@?#]", text) or without_secrets(text) != text else repr(text)
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise ValueError(f"{shown} is not a URL: it has white space")
    try:
        url = URL(text)
        valid = url.scheme in ("http", "https") and bool(url.host) and url.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{shown} is not a URL: write http:// or https://, a host, and if need be :port and a path")
    if base and (verb := _VERB.search(url.raw_path)):
        raise ValueError(f"the URL is that of an endpoint: leave {verb[0].rstrip('/')} out")
    if url.raw_user is not None or url.raw_password is not None:
        raise ValueError(f"the URL holds a user or a password: {_REMEDY}")
    if url.raw_fragment or "#" in text:
        raise ValueError(f"the URL has a #, and no server gets what follows: leave it out. For a key: {_REMEDY}")
    if any(name not in _PARAMETERS or not _VALUE.fullmatch(value) for name, value in url.query.items()):
        allowed = " and ".join(_PARAMETERS)
        raise ValueError(f"the URL has parameters that may hold a secret; only {allowed} are allowed: {_REMEDY}")
    if ";" in url.raw_path or without_secrets(text) != text:
        raise ValueError(f"the URL holds a key: {_REMEDY}")
    return url
