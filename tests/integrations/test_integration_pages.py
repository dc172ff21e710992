"""The pages of the integrations: their code compiles, names what exists, and every page answers the same questions."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "integrations").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_answers_what_users_need_to_know(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for heading in ("What a failure becomes", "What is logged", "Limits"):
        assert f"## {heading}\n" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_is_valid(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```toml\n(.*?)^```", text, flags=re.S | re.M):
        tomllib.loads(block)
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rewardsmith"):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names)
    for named in re.findall(r"examples/integrations/\w+\.py", text):
        assert (ROOT / named).is_file()
    for link in re.findall(r"\]\((\.\./[\w./]+\.md)\)", text):
        assert (page.parent / link).is_file()


def test_there_is_a_page_for_each_peer() -> None:
    assert {page.stem for page in PAGES} >= {"openrlhf", "trl", "verifiers", "verl"}
