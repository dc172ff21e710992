"""The name under which a server offers a model: the same for the same weights, wherever they lie."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PIECES, PIECE = 64, 1 << 16
"""Of a large file, this many pieces of so many bytes are read, evenly spread: other weights differ in all of them."""


def served_name(model: str) -> str:
    """Return a Hugging Face id as it is, and for a folder its own name with a hash of what it holds.

    Two folders that are called `final` are two models, and a folder is one model by whatever path it is reached.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    return f"{folder.resolve().name}-{_digest(folder)}"


def _digest(folder: Path) -> str:
    """Return a hash of the files of a folder: their names, sizes and contents; of a large one, a sample of them."""
    found = hashlib.blake2b(digest_size=6)
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            size = file.stat().st_size
            found.update(f"{file.name}\0{size}\0".encode("utf-8", "surrogateescape"))
            _read(file, size, found)
    return found.hexdigest()


def _read(file: Path, size: int, found: hashlib.blake2b) -> None:
    with file.open("rb", buffering=0) as handle:
        if size <= PIECES * PIECE:
            while data := handle.read(1 << 20):
                found.update(data)
            return
        for number in range(PIECES):
            handle.seek(number * (size - PIECE) // (PIECES - 1), os.SEEK_SET)
            found.update(handle.read(PIECE))
