"""Pages that are made from the code when the site is built: commands, the recipe, every component with its settings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from rewardsmith import cli, types
from rewardsmith.config import import_name
from rewardsmith.console import Table
from rewardsmith.recipe import Recipe
from rewardsmith.runs import catalogue
from rewardsmith.runs.settings_table import settings_table

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples):\s*$", re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages below `reference/`."""
    for name, text in reference_pages().items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def reference_pages() -> dict[str, str]:
    """Return the Markdown of each page by its file name."""
    pages = {"commands.md": commands_page(), "recipe.md": recipe_page(), "types.md": "\n".join(types_page())}
    return pages | {f"{family}.md": "\n".join(family_page(family)) for family in catalogue.FAMILIES}


def commands_page() -> str:
    """Return every command with its flags, as `--help` shows them, in the order of `rewardsmith --help`."""
    for words, place in cli.JOBS.items():
        cli._register(words, import_name(place))
    text = cli.app.generate_docs(output_format="markdown")
    text = re.sub(r", --no-[a-z-]+", "", text)  # there are no such flags; cyclopts lists them all the same
    text = text.replace(" *[default: False]*", "")
    about = _by_command(text)
    order = [name for names in cli.GROUPS.values() for name in names if name in about and not name.startswith("-")]
    missing = {name for name in about if not name.startswith("-")} - set(order)
    if missing:
        raise ValueError(f"cli.GROUPS lacks {sorted(missing)}")
    return _COMMANDS + "".join(about[name] for name in order)


def _by_command(text: str) -> dict[str, str]:
    """Return the section of each command by its first word, with headings that leave out the program."""
    parts = (part for part in re.split(r"^(?=## )", text, flags=re.M) if part.startswith("## rewardsmith "))
    return {part.split()[2]: re.sub(r"^(#+) rewardsmith ", r"\1 ", part, flags=re.M) for part in parts}


_COMMANDS = """# Commands

What `rewardsmith COMMAND --help` prints, for all commands. A `KEY.PATH=VALUE` at the end of a command changes one
setting of the recipe or job that it names; `rewardsmith explain RECIPE` shows the key paths.

"""


def recipe_page() -> str:
    """Return the tables of a recipe file."""
    lines = ["# Recipe file", "", _RECIPE, *markdown_table(settings_table(Recipe, "the recipe")), ""]
    lines += ["## Families", "", "| table of the recipe | chooses among |", "|---|---|"]
    for name, family in catalogue.FAMILIES.items():
        place = f"`{family.heading}`" + (f" `{family.within} = …`" if family.within else "")
        lines.append(f"| {place} | [{name}]({name}.md): {family.about} |")
    return "\n".join([*lines, ""])


_RECIPE = """A recipe is one TOML file: models, data, and stages in order. Unknown keys, wrong types and names that do
not exist are errors, and all of them are reported at once, before a model is loaded. Where a table chooses a component
by `type`, "name" alone is short for `{ type = "name" }`, and `"module:Name"` is one of yours. [Runs](../runs.md)
explains what a run does with it.

These are the settings at the top of the file:
"""


TYPES = [types.Message, types.Prompt, types.Rollout, types.RolloutGroup, types.Failure, types.Score, types.ScoredGroup]
TYPES += [types.Demonstration, types.Preference, types.Ranking, types.Graded]

_KINDS = """
## Kinds of failures

| kind | meaning |
|---|---|
"""


def types_page() -> Iterator[str]:
    """Yield the lines of the page of types: the fields of each, with the comments of the source."""
    yield "# Types\n\nWhat flows through a run, and what reward models are trained on. Import them from `rewardsmith`."
    yield "They are frozen and checked when they are made. Lists are accepted where an array or a tuple is kept.\n"
    for kind in TYPES:
        yield f"## {kind.__name__}\n\n{inspect.getdoc(kind)}\n"
        yield "| field | type | default | meaning |\n|---|---|---|---|"
        for field, annotation, default, comment in _fields(kind):
            shown = f"`{default}`" if default else "required"
            yield f"| `{field}` | `{annotation}` | {shown} | {comment} |".replace(" | None", " \\| None")
        yield ""
    yield _KINDS.rstrip("\n")
    for kind, comment in re.findall(r'^    "(\w+)",  # (.*)$', inspect.getsource(types), flags=re.M):
        yield f"| `{kind}` | {comment} |"


def _fields(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, type, default, comment) of each field of a dataclass."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    for node in ast.parse("\n".join(lines)).body[0].body:
        if not isinstance(node, ast.AnnAssign):
            continue
        about = lines[node.end_lineno - 1].partition("  # ")[2]
        above = lines[node.lineno - 2].strip()
        comment = about or (above.removeprefix("# ") if above.startswith("# ") else "")
        default = "" if node.value is None else ast.unparse(node.value)
        default = {"field(default_factory=dict)": "{}"}.get(default, "empty" if "lambda" in default else default)
        yield ast.unparse(node.target), ast.unparse(node.annotation), default, comment


def family_page(family: str) -> Iterator[str]:
    """Yield the lines of the page of a family: its names, then each with its settings and an example."""
    about = catalogue.FAMILIES[family]
    yield f"# {family.replace('-', ' ').capitalize()}\n"
    yield f"{about.about[0].upper()}{about.about[1:]}. `rewardsmith show {family} NAME` prints the same.\n"
    names = catalogue.family_table(family)
    yield from markdown_table(Table("", names.columns, [(f"[{row[0]}](#{row[0]})", *row[1:]) for row in names.rows]))
    shared = {table.title: table for name in catalogue.components(family) for table in _place_tables(family, name)}
    for table in shared.values():
        yield f"\n## {table.title.capitalize()}\n"
        yield "They stand in the same table as the settings of each name below.\n"
        yield from markdown_table(table)
    for name, target in catalogue.components(family).items():
        yield f"\n## {name} {{#{name}}}\n"
        yield f"{description(target)}\n"
        for table in catalogue.settings_tables(family, name):
            if table.title not in shared:
                yield from markdown_table(table)
        yield f"\n```toml\n{catalogue.example(family, name).strip()}\n```\n"


def _place_tables(family: str, name: str) -> list[Table]:
    own = f"settings of {name}"
    return [table for table in catalogue.settings_tables(family, name) if table.title != own]


def description(target: object) -> str:
    """Return the docstring of a component up to its sections; `rewardsmith show` has the first sentence."""
    return _SECTION.split(inspect.getdoc(target) or "")[0].strip()


def markdown_table(table: Table) -> Iterator[str]:
    """Yield the lines of a table; columns of settings are code, and columns without any value are left out."""
    shown = [i for i in range(len(table.columns)) if any(row[i] not in ("", None) for row in table.rows)]
    names = list(table.columns)
    yield "| " + " | ".join(names[i] for i in shown) + " |"
    yield "|" + "---|" * len(shown)
    for row in table.rows:
        yield "| " + " | ".join(_cell(names[i], str(row[i])) for i in shown) + " |"


def _cell(column: str, text: str) -> str:
    text = text.replace("\n", " ").replace("|", "\\|")
    plain = not text or text in ("required", "not set") or column in ("description", "what it is", "type", "bounds")
    plain = plain or text.startswith("[")
    return text.replace("<", "&lt;") if plain else f"`{text}`"
