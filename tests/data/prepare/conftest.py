"""A server that writes rubrics and grades."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.prepare.jobs import write_rows
from tests.data.prepare.serving import Serving, models_file, problems, solved


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """A server, and a folder with problems, solutions and a file that names the server."""
    monkeypatch.chdir(tmp_path)
    with Serving() as served:
        models_file(tmp_path, served)
        write_rows(tmp_path / "problems.jsonl", problems(12))
        write_rows(tmp_path / "solved.jsonl", solved(10))
        yield served
