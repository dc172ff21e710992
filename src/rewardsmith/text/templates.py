"""Judge prompts as text files.

A template is text with `{{placeholders}}`. Lines `=== system ===`, `=== user ===` and `=== assistant ===` begin a
message; without any, the whole is one user message. The built-in ones lie in `text/prompts/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.text.quoting import PLACEHOLDER, fill
from rewardsmith.types import Message

_TURN = re.compile(r"^=== *(system|user|assistant) *===[ \t]*(?:\n|\Z)", re.MULTILINE)
_ALMOST = re.compile(r"\{\{[^{}\n]{0,80}\}\}")

MAX_CHARACTERS = 1_000_000
"""A longer file is no template."""


@dataclass(frozen=True)
class Template:
    """A prompt with holes.

    Attributes:
        name: of the file, for messages.
        turns: (role, text with placeholders) of each message.
    """

    name: str
    turns: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, name: str, *, known: Sequence[str] | None, needed: Sequence[str] = ()) -> Template:
        """Read a template.

        Args:
            text: of the file.
            name: for messages.
            known: the placeholders that will have a value; None where any may.
            needed: those without which the prompt makes no sense.

        Raises:
            UserError: it has an unknown placeholder, or lacks one, or is empty.
        """
        parts = _TURN.split(text.replace("\r\n", "\n"))
        turns = [(role, body.strip()) for role, body in zip(parts[1::2], parts[2::2], strict=True)]
        if not turns:
            turns = [("user", parts[0].strip())]
        elif parts[0].strip():
            raise UserError(f"the template {name} has text before its first === role === line")
        if len(text) > MAX_CHARACTERS:
            raise UserError(f"the template {name} has more than {MAX_CHARACTERS:,} characters")
        empty = next((role for role, body in turns if not body), None)
        if empty is not None:
            raise UserError(f"the template {name} is empty" + (f" after === {empty} ===" if parts[1:] else ""))
        for _, body in turns:
            for odd in _ALMOST.finditer(body):
                if not PLACEHOLDER.fullmatch(odd.group()):
                    raise UserError(
                        f"the template {name} has {odd.group()}: a placeholder is a word, such as {{{{question}}}}"
                    )
        found = [place.group(1) for _, body in turns for place in PLACEHOLDER.finditer(body)]
        for place in found:
            if known is not None and place not in known:
                raise UserError(
                    f"the template {name} has {{{{{place}}}}}.{nearest(place, known)} Known: {listing(known)}"
                )
        for place in needed:
            if place not in found:
                raise UserError(f"the template {name} has no {{{{{place}}}}}: the judge would not see it")
        return cls(name, tuple(turns))

    @property
    def places(self) -> frozenset[str]:
        """The names of the placeholders."""
        return frozenset(place.group(1) for _, body in self.turns for place in PLACEHOLDER.finditer(body))

    def render(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """Return the messages with every placeholder replaced, in one pass. Foreign text must be quoted before."""
        return tuple(Message(role, fill(body, values)) for role, body in self.turns)


def load_template(name: str, *, known: Sequence[str] | None, needed: Sequence[str] = ()) -> Template:
    """Return a built-in template by its name, or a user's own by its path.

    Raises:
        UserError: there is no such file, or it cannot be a template here; see `Template.parse`.
    """
    folder = resources.files("rewardsmith.text") / "prompts"
    built_in = {file.name.removesuffix(".txt"): file for file in folder.iterdir() if file.name.endswith(".txt")}
    if name in built_in:
        return Template.parse(built_in[name].read_text(encoding="utf-8"), name, known=known, needed=needed)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        hint = f"{nearest(name, built_in)} Known: {listing(built_in)}, or the path of a file"
        raise UserError(f"cannot read the template {name!r} ({what}).{hint}") from None
    return Template.parse(text, name, known=known, needed=needed)


__all__ = ["Template", "load_template"]
