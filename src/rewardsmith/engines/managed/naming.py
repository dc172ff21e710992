"""The name under which a server offers a model: the same for the same weights, wherever they lie."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

PIECES, PIECE = 64, 1 << 16
"""Of a large file, this many pieces of so many bytes are read, evenly spread: other weights differ in all of them."""


def served_name(model: str) -> str:
    """Return a Hugging Face id as it is, and for a folder or a file its own name with a hash of what it holds.

    Two folders that are called `final` are two models, and a folder is one model by whatever path it is reached.
    """
    if not os.path.exists(model):
        return model
    path = Path(model)
    return f"{path.resolve().name}-{_digest(path)}"


def _digest(path: Path) -> str:
    """Return a hash of a file, or of those of a folder: their names, sizes and contents; of a large one, a part."""
    found = hashlib.blake2b(digest_size=6)
    for name, file in [("", path)] if path.is_file() else _files(path):
        size = file.stat().st_size
        found.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
        _read(file, size, found)
    return found.hexdigest()


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder and of those in it, each with its path in it; what is hidden is left out."""
    seen = {os.path.realpath(root)}  # a link may lead back
    for here, folders, names in os.walk(root, followlinks=True):
        places = {name: os.path.realpath(os.path.join(here, name)) for name in sorted(folders) if name[0] != "."}
        folders[:] = [name for name, place in places.items() if place not in seen]
        seen.update(places.values())
        for file in sorted(Path(here, name) for name in names if name[0] != "."):
            if file.is_file():
                yield str(file.relative_to(root)), file


def _read(file: Path, size: int, found: hashlib.blake2b) -> None:
    with file.open("rb", buffering=0) as handle:
        if size <= PIECES * PIECE:
            while data := handle.read(1 << 20):
                found.update(data)
            return
        for number in range(PIECES):
            handle.seek(number * (size - PIECE) // (PIECES - 1), os.SEEK_SET)
            found.update(handle.read(PIECE))
