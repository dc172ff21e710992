"""Tests of the pages in a real Chromium: `make test-browser`.

`REWARDSMITH_CHROMIUM` names the browser; without it, nothing here is collected.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = os.environ.get("REWARDSMITH_CHROMIUM", "")
collect_ignore_glob = [] if CHROMIUM else ["test_*.py"]

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has none for root
        browser = play.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open an address in a window of its own; at the end, no page may have reported an error."""
    contexts, errors = [], []

    def open_page(address: str, width: int = 1280, height: int = 900, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on(
            "console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture(scope="session")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """Start `rewardsmith view` for a folder, and return its address; it runs until all pages are closed."""
    cache = tmp_path_factory.mktemp("cache")
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path) -> str:
        command = [sys.executable, "-m", "rewardsmith", "view", str(folder), "--port", "0"]
        environment = os.environ | {"REWARDSMITH_CACHE": str(cache)}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if "http://" in line:
                return line[line.index("http://") :].strip()
        raise AssertionError("the server did not start")

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=20)


def no_sideways_scroll(page: Any) -> bool:
    """Whether the page is no wider than the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))
