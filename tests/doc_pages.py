"""The fenced blocks of the documents, and what an HTML comment right above a block says about it.

<!-- not executed: why -->                       a block that the tests leave alone
<!-- in the tests: stages.sft.steps=2 -->        what the tests add to the commands of a block
<!-- in the tests: 600 -> 2; 30 -> 1 -->         what the tests replace in a block of code
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("recipes/**/*.md")]
    if path.name != "CHANGELOG.md"
)
"""All documents for users; the change log tells what was, and is not checked."""

_BLOCK = re.compile(
    r"^(?:[ ]*<!-- (?P<note>[^\n]*?) -->\n)?(?P<indent>[ ]*)(?P<fence>```+)(?P<language>\w*)(?P<rest>[^\n]*)\n"
    r"(?P<text>.*?)^[ ]*(?P=fence)[ ]*$",
    re.S | re.M,
)
_COMMAND = re.compile(r"^(?:\$ )?(rewardsmith (?:[^\n\\]|\\\n)*)", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    title: str  # the name of the file that it is, "" for none
    text: str
    note: str
    line: int

    @property
    def skipped(self) -> bool:
        return self.note.startswith("not executed: ")

    @property
    def executed_text(self) -> str:
        """The text with the replacements of the tests."""
        text = self.text
        for old, new in re.findall(r"(\S[^;]*?) -> ([^;]+)", self.note.partition("in the tests: ")[2]):
            assert old in text, f"line {self.line}: {old!r} is not in the block"
            text = text.replace(old, new)
        return text

    @property
    def added(self) -> list[str]:
        """What the tests add to each command."""
        note = self.note.partition("in the tests: ")[2]
        return [] if " -> " in note else note.split()

    def commands(self) -> Iterator[str]:
        """Yield the command lines of rewardsmith, each as one line without a comment."""
        for command in _COMMAND.findall(self.text):
            yield re.sub(r"(^|\s)#.*", "", re.sub(r"\\\n\s*", "", command)).strip()


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        body = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.M)
        title = re.search(r'title="([^"]+)"', match["rest"])
        line = text.count("\n", 0, match.start("fence")) + 1
        found.append(Block(match["language"], title[1] if title else "", body, match["note"] or "", line))
    return found


def name_of(page: Path) -> str:
    """Return the path of a page in the repository, for the ids of tests."""
    return page.relative_to(ROOT).as_posix()
