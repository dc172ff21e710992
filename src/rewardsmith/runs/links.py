"""A run folder may be somebody else's: it must not lead anywhere else."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from rewardsmith.errors import UserError

TRACKERS = "trackers"
"""The folder of a run in which other programs write; links there may point to places inside it."""


def refuse_links(folder: Path) -> None:
    """Raise a `UserError` if a run folder holds anything but files and folders: a link may point anywhere.

    Args:
        folder: the run folder, which may be a link itself: that is the user's own.
    """
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in [*folders, *files]):
            with suppress(FileNotFoundError):  # another process has removed it
                mode = path.lstat().st_mode
                if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or _of_a_tracker(path, folder):
                    continue
                what = "a symbolic link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                raise UserError(
                    f"{path} is {what}: it is not followed, for a run folder may come from somebody else. Put the file"
                    " or folder itself in its place, or remove it"
                )


def _of_a_tracker(path: Path, folder: Path) -> bool:
    """Return whether something that is no file lies inside the folder of a tracker, and points to nothing outside."""
    trackers = folder.resolve() / TRACKERS
    inside = path.relative_to(folder).parts
    return inside[0] == TRACKERS and len(inside) > 1 and path.resolve().is_relative_to(trackers)


__all__ = ["refuse_links"]
