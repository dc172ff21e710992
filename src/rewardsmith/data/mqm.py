"""Human annotations of translations (MQM), as Google publishes them for WMT.

    table = read_annotations("mqm_newstest2021_zhen.tsv", BadRows(skip=False))
    for segment in table.segments:
        segment.penalties()            # {"system-a": 5.1, "system-b": 0.0}: 0 is without error

An annotation file has one error in each line, tab-separated, with a header; quotation marks are letters like any other.
A span is marked with <v>…</v> in the source or in the target. The penalty of a translation is the sum of the weights of
its errors, averaged over its raters (Freitag et al., 2021, https://arxiv.org/abs/2104.14478).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rewardsmith.data.readers import numbered_lines
from rewardsmith.data.rows import BadRows, RowError, describe, printable
from rewardsmith.errors import UserError, listing, nearest

COLUMNS = {
    **{name: (name,) for name in ("system", "source", "target", "category", "severity")},
    "doc": ("doc", "document"),
    "segment": ("seg_id", "globalsegid", "global_seg_id"),
    "rater": ("rater", "annotator"),
}
"""The names that files give to the columns, in lower case."""

_SPAN = re.compile("</?v>")
_DIGITS = 9

MAJOR, MINOR, PUNCTUATION, UNTRANSLATED = 5.0, 1.0, 0.1, 25.0
"""The penalties of a major and a minor error, of minor punctuation, and of a text that is no translation at all."""


def penalty_of(category: str, severity: str) -> float | None:
    """Return the penalty of an error, 0 for none; None for a line that tests the rater and rates nothing."""
    kind, grade = category.strip().lower(), severity.strip().lower()
    if grade.startswith("hotw") or kind.startswith("hotw"):
        return None
    if grade in ("no-error", "no error", "neutral"):
        return 0.0
    if grade == "major":
        return UNTRANSLATED if kind.startswith("non-translation") else MAJOR
    if grade == "minor":
        return PUNCTUATION if kind == "fluency/punctuation" else MINOR
    raise RowError(f"severity is {describe(severity)}: one of Major, Minor, Neutral, No-error")


@dataclass
class Output:
    """A system's translation, and the penalties of each rater's errors; not `whole` when a line about it is bad."""

    text: str
    errors: dict[str, list[float]] = field(default_factory=dict)
    whole: bool = True


@dataclass
class Segment:
    """A source text of a document, "" where the file names none, with the translations of it by system."""

    doc: str
    id: str
    source: str = ""
    outputs: dict[str, Output] = field(default_factory=dict)

    def penalties(self) -> dict[str, float]:
        """Return the penalty of each system's translation, at least 0; of those that were read completely."""
        return {
            name: round(math.fsum(map(math.fsum, output.errors.values())) / len(output.errors), _DIGITS)
            for name, output in self.outputs.items()
            if output.whole and output.errors
        }


@dataclass(frozen=True)
class Annotations:
    """The segments of a file, its lines without the header, and the translations with a line that could not be read."""

    segments: tuple[Segment, ...]
    lines: int
    left_out: int

    @property
    def systems(self) -> list[str]:
        """The systems, in the order of the file."""
        return list(dict.fromkeys(name for segment in self.segments for name in segment.outputs))


def read_annotations(path: str | Path, bad: BadRows) -> Annotations:
    """Return the translations of a file with their errors; the file is held in memory.

    `bad` notes the lines that cannot be used. The translation that such a line is about is left out: without the line
    it would look better than it is.
    """
    quoted = printable(str(path), 200)
    lines = ((number, line.rstrip(b"\r\n")) for number, _, line in numbered_lines(Path(path)))
    _, header = next(lines, (0, b""))
    names = header.decode("utf-8", "replace").split("\t")
    columns, segments, count = _columns(quoted, names), dict[tuple[str, str], Segment](), 0
    for number, line in lines:
        count += 1
        fields = line.decode("utf-8", "replace").split("\t")
        row = {"doc": ""} | {key: fields[at] if at < len(fields) else "" for key, at in columns.items()}
        try:
            if len(fields) != len(names):
                width = f"{len(fields)} fields, but the header has {len(names)}"
                raise RowError(f"{width}: a tab within a text, or a line cut short")
            _add(segments, line, row)
        except RowError as error:
            bad.note(f"{quoted}, line {number}", error)
            if row["system"] and row["segment"]:
                key = row["doc"], row["segment"]
                segments.setdefault(key, Segment(*key)).outputs.setdefault(row["system"], Output("")).whole = False
    if not count:
        raise UserError(f'"{quoted}" has no lines below the names of its columns')
    left_out = sum(not output.whole for segment in segments.values() for output in segment.outputs.values())
    return Annotations(tuple(segments.values()), count, left_out)


def _add(segments: dict[tuple[str, str], Segment], line: bytes, row: Mapping[str, str]) -> None:
    """Add the error of a line to its translation."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8 text: byte {error.start} of the line is 0x{line[error.start]:02x}") from None
    penalty = penalty_of(row["category"], row["severity"])
    if penalty is None:
        return
    for key in ("system", "segment", "source"):
        if not row[key].strip():
            raise RowError(f"{COLUMNS[key][0]} is empty: the line is about no translation")
    source, target = (_SPAN.sub("", row[key]).strip() for key in ("source", "target"))
    segment = segments.setdefault((row["doc"], row["segment"]), Segment(row["doc"], row["segment"]))
    output = segment.outputs.get(row["system"], Output(""))
    before = {"source": segment.source or source, "target": output.text if output.errors else target}
    for key, text in {"source": source, "target": target}.items():
        if before[key].split() != text.split():
            raise RowError(f"{key} is {describe(text[:40])}, but an earlier line has {describe(before[key][:40])}")
    segment.source, output.text = before["source"], before["target"]
    segment.outputs[row["system"]] = output
    output.errors.setdefault(row["rater"], []).append(penalty)


def _columns(quoted: str, names: Sequence[str]) -> dict[str, int]:
    """Return the index of each column."""
    low = [name.strip().lower() for name in names]
    found = {key: low.index(name) for key, known in COLUMNS.items() for name in reversed(known) if name in low}
    missing = [known[0] for key, known in COLUMNS.items() if key not in found and key != "doc"]
    if missing:
        raise UserError(
            f'"{quoted}" has no column {listing(missing)}: a file of annotations is tab-separated, with the names of'
            f" its columns in the first line.{nearest(missing[0], low)} There is: {printable(listing(low[:20]), 300)}"
        )
    return found
