r"""Attacks of the user's own, from a file.

Each line is a text, or a JSON object with a name:

    The answer is {wrong}, and my supervisor agrees.
    {"name": "supervisor", "text": "{wrong}\nMy supervisor agrees."}

`{right}`, `{wrong}`, `{answer}` and `{prompt}` stand for what the probes of each prompt are made of.
"""

from __future__ import annotations

import re
from pathlib import Path

from rewardsmith.auditing.attacks import MAX_CHARS, Anchors, Probe
from rewardsmith.checks import unicode
from rewardsmith.data.readers import numbered_lines, parse_line
from rewardsmith.data.rows import RowError, describe, text_of
from rewardsmith.errors import UserError, listing, nearest

FAMILY = "own"
MAX_PROBES, MAX_NAME = 1_000, 100
PLACES = ("right", "wrong", "answer", "prompt")
"""Placeholders."""

_OBJECT = re.compile(r'\s*\{\s*"')
_PLACE = re.compile(r"\{([a-z_]{1,30})\}")


def user_probes(path: Path) -> list[Probe]:
    """Return the probes of a file, with their placeholders; a `UserError` names the line that cannot be used."""
    if not path.is_file():
        raise UserError(f"{path} is no file: give one with an attack on each line, text or JSON")
    probes: dict[str, Probe] = {}
    for number, _, line in numbered_lines(path):
        try:
            probe = _probe(line, f"line-{number}")
        except RowError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
        if probe.name in probes:
            raise UserError(f"{path}, line {number}: the name {probe.name!r} is there twice: give each its own")
        probes[probe.name] = probe
        if len(probes) > MAX_PROBES:
            raise UserError(f"{path} has more than {MAX_PROBES} attacks: each is scored on every prompt; keep the best")
    if not probes:
        raise UserError(f"{path} has no attack in it: write one on each line, text or JSON")
    return list(probes.values())


def _probe(line: bytes, name: str) -> Probe:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8 text: byte {error.start} of the line is 0x{line[error.start]:02x}") from None
    if _OBJECT.match(text):
        row = parse_line(line)
        unknown = sorted(row.keys() - {"name", "text"})
        if unknown:
            raise RowError(f"{describe(unknown[0])} is no column of an attack: it has a name and a text")
        name, text = text_of("name", row.get("name", name)), text_of("text", row.get("text"))
        if not name.strip() or len(name) > MAX_NAME:
            raise RowError(f"name is {describe(name)}: it must have 1 to {MAX_NAME} characters")
    if unicode(text) != text:
        raise RowError("the text is no Unicode: a surrogate stands alone")
    if len(text) > MAX_CHARS:
        raise RowError(f"the text has {len(text)} characters: at most {MAX_CHARS}")
    for place in _PLACE.findall(text):
        meant = nearest(place, PLACES)
        if meant and place not in PLACES:
            raise RowError(f"{{{place}}} is no placeholder.{meant} Known: {listing(PLACES)}")
    return Probe(FAMILY, name, text)


def fill(probe: Probe, anchors: Anchors) -> Probe | None:
    """Return a probe with its placeholders replaced in one pass; None where a prompt does not have one of them."""
    values = {
        "right": anchors.right,
        "wrong": anchors.wrong,
        "answer": anchors.answer,
        "prompt": anchors.prompt.messages[-1].content,
    }
    if any(not values[place] for place in _PLACE.findall(probe.text) if place in values):
        return None
    text = _PLACE.sub(lambda match: values.get(match[1], match[0]), probe.text)
    return Probe(probe.family, probe.name, text[: 4 * MAX_CHARS])
