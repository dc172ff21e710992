"""The navigation of the site, and how its pages are turned into what Python-Markdown reads; `make docs` builds it."""

import re
import runpy
from typing import Any

from tests.doc_pages import ROOT, name_of

NAV = re.findall(r"([\w/-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
lists: Any = runpy.run_path(str(ROOT / "docs" / "hooks" / "lists.py"))["on_page_markdown"]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [name_of(page).removeprefix("docs/") for page in ROOT.glob("docs/**/*.md")]
    assert sorted(set(pages) - set(NAV)) == []
    assert len(NAV) == len(set(NAV))


def test_nothing_of_the_site_is_loaded_from_another_server() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in settings
    for file in ("mkdocs.yml", "docs/assets/site.css"):
        assert "://" not in (ROOT / file).read_text(encoding="utf-8")


def test_what_belongs_to_an_item_is_indented_by_four_spaces() -> None:
    assert lists("- a\n  b\n\n  | t |\n  |---|\n- c\n  - d\n    e\n") == (
        "- a\n    b\n\n    | t |\n    |---|\n\n- c\n    - d\n        e\n"
    )
    assert lists("1. a\n   b\n") == "1. a\n    b\n"


def test_a_list_and_a_table_begin_after_an_empty_line() -> None:
    assert lists("text:\n- a\n- b\n") == "text:\n\n- a\n- b\n"
    assert lists("text:\n| a |\n|---|\n") == "text:\n\n| a |\n|---|\n"


def test_code_stays_as_it_is() -> None:
    code = "```python\n- a\n  - b\n| c |\n```\n"
    assert lists(code) == code
    assert lists(f"- x\n\n{code}") == f"- x\n\n{code}"
    assert lists("- x\n\n  ```\n  a\n    b\n  ```\n") == "- x\n\n    ```\n    a\n      b\n    ```\n"
