"""Judge prompts as text files.

A template is text with `{{placeholders}}`. Lines `=== system ===`, `=== user ===` and `=== assistant ===` begin a
message; without any, the whole is one user message. The built-in ones lie in `text/prompts/`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.text.quoting import PLACEHOLDER, fill
from rewardsmith.types import Message

_ROLE_LINE = re.compile(r"^=== *(system|user|assistant) *===[ \t]*(?:\n|\Z)", re.MULTILINE | re.IGNORECASE)
# {name} or {{name}, but not {{name}}, and not the argument of a TeX command such as \\boxed{answer}.
_SINGLE_BRACES = re.compile(r"(?<![{\w\\])\{(\{)?[ \t]*+(?P<name>[A-Za-z_][A-Za-z0-9_]*+)[ \t]*+\}(?(1)(?!\}))")


@dataclass(frozen=True)
class Template:
    """A prompt with placeholders: (role, text) of each message; `name` is "" where the setting is the text itself."""

    name: str
    messages: tuple[tuple[str, str], ...]
    setting: str = "template"

    @classmethod
    def parse(
        cls,
        text: str,
        name: str,
        *,
        known: Sequence[str] | None,
        needed: Sequence[str] = (),
        usual: Sequence[str] = (),
        setting: str = "template",
    ) -> Template:
        """Return a template, or raise a `UserError` that names the setting and the remedy.

        `known` are the placeholders that will have a value, None where any may; `needed` those without which the prompt
        makes no sense; `usual` more of those that are a mistake in single braces.
        """
        parts = _ROLE_LINE.split(text.replace("\r\n", "\n"))
        messages = [(role.lower(), body.strip()) for role, body in zip(parts[1::2], parts[2::2], strict=True)]
        template = cls(name, tuple(messages or [("user", parts[0].strip())]), setting)
        if messages and parts[0].strip():
            raise UserError(f"{template.where} has text before its first === role === line")
        template._check(known, needed, {*(known or ()), *usual})
        return template

    def _check(self, known: Sequence[str] | None, needed: Sequence[str], words: Collection[str]) -> None:
        for role, body in self.messages:
            if not body:
                raise UserError(f"{self.where} is empty after === {role} ===")
            for odd in _SINGLE_BRACES.finditer(body):
                if odd["name"] in words and odd["name"] not in self.places:
                    raise UserError(
                        f"{self.where} has {odd[0]}, which would stay as it is: write {{{{{odd['name']}}}}}"
                    )
        for place in sorted(self.places):
            if known is not None and place not in known:
                raise UserError(f"{self.where} has {{{{{place}}}}}.{nearest(place, known)} Known: {listing(known)}")
        for place in needed:
            if place not in self.places:
                raise UserError(f"{self.where} has no {{{{{place}}}}}: the judge would not see it")

    @property
    def where(self) -> str:
        """The setting and its value, as a recipe shows them."""
        return _where(self.setting, self.name)

    @property
    def places(self) -> frozenset[str]:
        """The names of the placeholders."""
        return frozenset(place.group(1) for _, body in self.messages for place in PLACEHOLDER.finditer(body))

    @property
    def sha256(self) -> str:
        """A hash of its messages; the name plays no part."""
        return hashlib.sha256(json.dumps(self.messages, ensure_ascii=False).encode()).hexdigest()

    def facts(self) -> dict[str, str]:
        """Return which template this is, for the record of a run."""
        return {"template": self.name, "template_sha256": self.sha256}

    def render(self, values: Mapping[str, str], *, partial: bool = False) -> tuple[Message, ...]:
        """Return the messages with every placeholder replaced, in one pass. Foreign text must be quoted before.

        In a `partial` template, what has no value stays as it is.
        """
        assert partial or self.places <= values.keys(), f"{self.where}: no value of {self.places - values.keys()}"
        return tuple(Message(role, fill(body, values)) for role, body in self.messages)


def load_template(
    name: str,
    *,
    known: Sequence[str] | None,
    needed: Sequence[str] = (),
    usual: Sequence[str] = (),
    setting: str = "template",
) -> Template:
    """Return a built-in template by its name, or a user's own by its path; see `Template.parse`."""
    folder = resources.files("rewardsmith.text") / "prompts"
    built_in = {file.name.removesuffix(".txt"): file for file in folder.iterdir() if file.name.endswith(".txt")}
    try:
        text = (built_in[name] if name in built_in else Path(name)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        hint = f"{nearest(name, built_in)} Known: {listing(built_in)}, or the path of a file"
        raise UserError(f"{_where(setting, name)} cannot be read ({what}).{hint}") from None
    return Template.parse(text, name, known=known, needed=needed, usual=usual, setting=setting)


def _where(setting: str, name: str) -> str:
    # The end of a long path says more than its beginning.
    return f"{setting} = {json.dumps(name[-200:], ensure_ascii=False)}" if name else setting
