"""The documents are followed as a reader would: files are written, code and commands run, in the order of the page."""

import ast
import asyncio
import contextlib
import inspect
import io
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import cli
from rewardsmith.config import import_name
from rewardsmith.recipe import load_recipe, parse_models, parse_recipe
from rewardsmith.rewards import REWARD
from tests.command_line import call
from tests.doc_pages import PAGES, ROOT, Block, blocks_of, name_of

FOLLOWED = [page for page in PAGES if page.parent.name in ("tutorials", "how_to")]
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks_of(page))]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the recipes, as a reader has it; what its modules are called is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def execute(text: str, where: str, names: dict[str, Any]) -> None:
    """Run a block as a cell of a notebook: it may await. What a line prints is what its comment shows."""
    lines = text.splitlines()
    for statement in ast.parse(text, where).body:
        code = compile(ast.Module([statement], []), where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(eval(code, names))  # noqa: S307 our own pages
            else:
                exec(code, names)
        shown = re.fullmatch(r"print\(.*\)  # (.*)", lines[statement.end_lineno - 1])
        if shown:
            assert printed.getvalue().strip() == shown[1], f"{where}: line {statement.lineno} of the block"


def follow(page: Path, names: dict[str, Any], *, commands: bool) -> None:
    for block in blocks_of(page):
        where = f"{name_of(page)}:{block.line}"
        if block.skipped:
            continue
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.executed_text, encoding="utf-8")
        elif block.language == "python":
            execute(block.executed_text, where, names)
        elif block.language == "bash" and commands:
            for command in block.commands():
                outcome = call(*shlex.split(command)[1:], *(block.added if "run " in command else []))
                assert outcome.status == 0, f"{where}: {command}\n{outcome.out}{outcome.err}"


@pytest.mark.parametrize("page", [page for page in WITH_PYTHON if page not in FOLLOWED], ids=name_of)
def test_python_on_a_page_runs(page: Path, reader: Path) -> None:
    follow(page, {"__name__": "page"}, commands=False)


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_a_page_can_be_followed(page: Path, reader: Path) -> None:
    follow(page, {"__name__": "page"}, commands=True)


def test_what_is_not_executed_has_a_reason() -> None:
    for page in PAGES:
        for comment in re.findall(r"<!-- not executed(.*?)-->", page.read_text(encoding="utf-8"), flags=re.S):
            assert len(comment.removeprefix(": ").split()) >= 3, name_of(page)


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def app() -> Any:
    for words, place in cli.JOBS.items():
        cli._register(words, import_name(place))
    return cli.app


COMMANDS = [
    pytest.param(command, id=f"{name_of(page)}:{block.line}:{i}")
    for page in PAGES
    for block in blocks_of(page)
    if block.language in ("bash", "console", "")
    for i, command in enumerate(block.commands())
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_those_of_the_command_line(command: str, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.partition(" | ")[0].partition(" > ")[0])[1:]
    app.parse_args(words, exit_on_error=False, print_error=False)
    recipe = next((word for word in words[1:] if re.fullmatch(r"recipes/\S+\.toml", word)), None)
    if words[0] in ("run", "explain") and recipe and "hgih" not in command:
        load_recipe(recipe, [word for word in words if re.match(r"[a-z_.]+\.[a-z_0-9]+=|seed=", word)])


# ---- recipes ---------------------------------------------------------------------------------------------------------

TABLES = [
    pytest.param(block, id=f"{name_of(page)}:{block.line}")
    for page in PAGES
    for block in blocks_of(page)
    if block.language == "toml" and not block.skipped
]


@pytest.mark.parametrize("block", TABLES)
def test_tables_are_parsed_as_recipes(block: Block, reader: Path) -> None:
    table = tomllib.loads(block.text)
    own = re.search(r'"(?!https?:)[a-z_]+:\w+"', block.text) is not None  # a module of the reader's
    if isinstance(table.get("stages"), list) and table.keys() & {"models"} and not own:
        parse_recipe(table)
    elif table.keys() <= {"reward", "models"} and table.get("reward") and not own:
        chosen = REWARD.choose(table["reward"])
        if "models" in table:
            parse_models({"models": table["models"]}, chosen, source="page")
