"""The tokenizer that a setting names: a folder, or a Hugging Face id."""

from __future__ import annotations

import os
import re
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.masking import shown

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)

PATIENCE = 10.0
"""Seconds for the hub to say whether it has the tokenizer."""


def require_tokenizer(name: str) -> None:
    """Raise a `UserError` if there can be no tokenizer of that name: neither a folder, nor the form of an id."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return
    if os.path.isfile(path):
        raise _bad(name, "this is a file: name the folder that it lies in")
    if name.startswith(("./", "../", "/", "~")):
        raise _bad(name, "there is no such folder")
    if not _HUB_ID.fullmatch(name):
        raise _bad(name, "neither a folder here nor a Hugging Face id, which is written name or owner/name")


def load_tokenizer(name: str) -> Any:
    """Return a tokenizer, from its folder or the files that were downloaded before; else it is downloaded.

    The hub is asked once whether it has the model: without a network, or for a folder that is misspelled, loading
    would try file after file, again and again.

    Raises:
        UserError: there is no such tokenizer, or it cannot be loaded.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 only plug-ins need them
    from transformers import AutoTokenizer  # noqa: PLC0415

    require_tokenizer(name)
    path = os.path.expanduser(name)
    here = os.path.isdir(path)
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # noqa: BLE001 it raises many kinds
        if here:
            raise _bad(name, f"the tokenizer cannot be loaded ({_first_line(error)})") from None
    try:
        HfApi().model_info(name, timeout=PATIENCE)
    except Exception as error:  # noqa: BLE001 so does this
        raise _bad(
            name,
            "there is no such folder here, and no model of that id could be found. If the id is right, check the"
            f" network, HF_HUB_OFFLINE and HF_TOKEN. The hub said: {_first_line(error)}",
        ) from None
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001
        raise _bad(name, f"the tokenizer cannot be loaded ({_first_line(error)})") from None


def _bad(name: str, why: str) -> UserError:
    return UserError(f"tokenizer = {shown(name)}: {why}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


__all__ = ["load_tokenizer", "require_tokenizer"]
