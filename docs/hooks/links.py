"""Pages of the site that are files outside of `docs/`, and links to them.

Recipes, CONTRIBUTING.md and CHANGELOG.md become pages. A link to a file that has no page, such as a source file,
becomes its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def outside_pages(root: Path = ROOT) -> dict[str, str]:
    """Return path in the repository -> path of its page, for files outside of `docs/`."""
    pages = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}
    pages["README.md"] = "index.md"
    for path in sorted(root.glob("recipes/**/*")):
        name = path.relative_to(root).as_posix()
        if path.name == "README.md":
            pages[name] = posixpath.join(posixpath.dirname(name), "index.md")
            pages[posixpath.dirname(name)] = pages[name]
        elif path.suffix in (".md", ".toml"):
            pages[name] = name if path.suffix == ".md" else f"{name}.md"
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, page in outside_pages().items():
        path = ROOT / name
        if not path.is_file() or name == "README.md":
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            text = f"# {name}\n\nRun it with `rewardsmith run {name}`.\n\n```toml\n{text}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links out of `docs/` into links between pages, or into text."""
    pages = outside_pages()
    origin = {site: name for name, site in pages.items() if (ROOT / name).is_file() and name != "README.md"}
    here = origin.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return "".join(
        part
        if part.startswith("```")
        else _LINK.sub(lambda link: _rewritten(link, here, page.file.src_uri, pages), part)
        for part in re.split(r"(^```.*?^```$)", markdown, flags=re.S | re.M)
    )


def _rewritten(link: re.Match[str], here: str, page: str, pages: dict[str, str]) -> str:
    text, (target, mark, anchor) = link[1], link[2].partition("#")
    if not target or ":" in target:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    inside = path.removeprefix("docs/") if path.startswith("docs/") else pages.get(path)
    if inside is None:
        return text if (ROOT / path).exists() else link[0]
    return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(page) or '.')}{mark}{anchor})"
