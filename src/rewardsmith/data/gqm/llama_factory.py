"""What LLaMA-Factory needs to know of a file of demonstrations: an entry in `dataset_info.json` of its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rewardsmith.data.preparing.output import writing
from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError
from rewardsmith.storage import write_atomically

NAME = "dataset_info.json"

TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
}


def add_to_dataset_info(files: Sequence[Path]) -> list[Path]:
    """Add files with a column `messages` to the descriptions in their folders, and return where these are.

    A file is known there by its name without the ending. What else is described stays.

    Raises:
        UserError: there is something else under that name, or it cannot be read or written.
    """
    places = list(dict.fromkeys(file.parent / NAME for file in files))
    for place in places:
        entries = _read(place)
        entries |= {
            file.stem: {
                "file_name": file.name,
                "formatting": "sharegpt",
                "columns": {"messages": "messages"},
                "tags": TAGS,
            }
            for file in files
            if file.parent == place.parent
        }
        with writing(place):
            write_atomically(place, json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
    return places


def check_dataset_info(files: Sequence[Path], *, overwrite: bool = False) -> None:
    """Raise a `UserError` if an entry could not be added, or would take the name of another file.

    Args:
        files: that are to be described.
        overwrite: an entry may be taken from another file; not from one of these.
    """
    names: dict[Path, str] = {}
    for file in files:
        place = file.parent / NAME
        if names.setdefault(place.with_name(file.stem), file.name) != file.name:
            raise UserError(
                f"{names[place.with_name(file.stem)]} and {file.name} would have one name in {str(place)!r}"
            )
        entry = _read(place).get(file.stem)
        if entry is None or overwrite:
            continue
        other = entry.get("file_name") if isinstance(entry, dict) else None
        if other != file.name:
            raise UserError(
                f"{str(place)!r} has {file.stem!r} already, for {printable(str(other), 100)!r}: choose another name for"
                f" {file.name!r}, or use --overwrite"
            )


def _read(place: Path) -> dict[str, object]:
    try:
        found = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {str(place)!r}, to which --llama-factory adds: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{str(place)!r} holds no table of data sets: --llama-factory cannot add to it")
    return found


__all__ = ["NAME", "add_to_dataset_info", "check_dataset_info"]
