"""Human annotations of translations (MQM), as Google publishes them for WMT: error spans, and averages per segment.

    table = read_annotations("mqm_newstest2021_zhen.tsv", BadRows(skip=False))
    for segment in table.segments:
        segment.penalties()            # {"system-a": 5.1, "system-b": 0.0}: 0 is without error
    read_averages("mqm_newstest2021_zhen.avg_seg_scores.tsv")        # {("system-a", "84"): -5.1}

An annotation file has one error in each line, tab-separated, with a header; quotation marks are letters like any other.
A span is marked with <v>…</v> in the source or in the target. The penalty of a translation is the sum of the weights of
its errors, averaged over its raters (Freitag et al., 2021, https://arxiv.org/abs/2104.14478).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rewardsmith.data.fields import RowError, printable, told
from rewardsmith.data.prepare.row_files import BadRows
from rewardsmith.data.readers import MAX_LINE
from rewardsmith.errors import UserError, listing, nearest

COLUMNS = {
    "system": ("system",),
    "doc": ("doc", "document"),
    "segment": ("seg_id", "globalsegid", "global_seg_id"),
    "rater": ("rater", "annotator"),
    "source": ("source",),
    "target": ("target",),
    "category": ("category",),
    "severity": ("severity",),
}
"""From what is needed to the names that files give it, in lower case."""

_NEEDED = [key for key in COLUMNS if key != "doc"]
_SPAN = re.compile("</?v>")
_AVERAGES = "mqm_avg_score"
_DIGITS = 9


@dataclass(frozen=True)
class Weights:
    """What an error costs.

    Attributes:
        major: a major error.
        minor: a minor error.
        punctuation: a minor error of punctuation.
        untranslated: a text that is no translation at all.
    """

    major: float = 5.0
    minor: float = 1.0
    punctuation: float = 0.1
    untranslated: float = 25.0

    def of(self, category: str, severity: str) -> float | None:
        """Return the penalty of an error, 0 for none; None for a line that tests the rater and rates nothing.

        Raises:
            RowError: the severity is not known.
        """
        kind, grade = category.strip().lower(), severity.strip().lower()
        if grade.startswith("hotw") or kind.startswith("hotw"):
            return None
        if grade in ("no-error", "no error", "neutral"):
            return 0.0
        if grade == "major":
            return self.untranslated if kind.startswith("non-translation") else self.major
        if grade == "minor":
            return self.punctuation if kind == "fluency/punctuation" else self.minor
        known = ("Major", "Minor", "Neutral", "No-error")
        raise RowError(f"severity is {told(severity)}: one of {', '.join(known)}.{nearest(grade, known)}")


@dataclass
class Output:
    """What a system wrote, and what its raters found.

    Attributes:
        text: the translation.
        line: where it was first seen.
        errors: the weights of the errors that each rater found.
        whole: False when a line about it could not be read, so that its penalty is not known.
    """

    text: str
    line: int
    errors: dict[str, list[float]] = field(default_factory=dict)
    whole: bool = True

    @property
    def penalty(self) -> float:
        """The weights of its errors, averaged over its raters."""
        sums = [math.fsum(weights) for weights in self.errors.values()]
        return round(math.fsum(sums) / len(sums), _DIGITS)


@dataclass
class Segment:
    """A source text with its translations.

    Attributes:
        doc: of which document; "" where the file does not say.
        id: of the segment.
        source: the text.
        outputs: by system, in the order of the file.
    """

    doc: str
    id: str
    source: str
    outputs: dict[str, Output] = field(default_factory=dict)

    def penalties(self) -> dict[str, float]:
        """Return the penalty of each system's translation, at least 0; of those that were read as a whole."""
        return {name: output.penalty for name, output in self.outputs.items() if output.whole and output.errors}


@dataclass(frozen=True)
class Annotations:
    """What a file of annotations holds.

    Attributes:
        segments: in the order of the file.
        lines: how many there were, without the header.
        left_out: translations with a line that could not be read.
    """

    segments: tuple[Segment, ...]
    lines: int
    left_out: int

    @property
    def systems(self) -> list[str]:
        """The systems, in the order of the file."""
        return list(dict.fromkeys(name for segment in self.segments for name in segment.outputs))


def read_annotations(path: str | Path, bad: BadRows, weights: Weights | None = None) -> Annotations:
    """Return the translations of a file with their errors. The file is held in memory, each text once.

    Args:
        path: a tab-separated file, one error in each line.
        bad: notes the lines that cannot be used. The translation that such a line is about is left out: without the
            line it would look better than it is.
        weights: what an error costs.

    Raises:
        UserError: the file cannot be read, or is none of annotations.
    """
    file = Path(path)
    lines = _lines(file)
    try:
        _, header = next(lines)
    except StopIteration:
        raise UserError(f'"{printable(str(file), 200)}" is empty') from None
    names = header.decode("utf-8", "replace").removeprefix("\ufeff").split("\t")
    reader = _Reader(_columns(file, names), len(names), weights or Weights())
    count = 0
    for number, line in lines:
        count += 1
        try:
            reader.add(number, line)
        except RowError as error:
            bad.note(f"{printable(str(file), 200)}, line {number}", error)
    if not count:
        raise UserError(f'"{printable(str(file), 200)}" has the names of columns, and no line below them')
    left_out = sum(not output.whole for segment in reader.segments.values() for output in segment.outputs.values())
    return Annotations(tuple(reader.segments.values()), count, left_out)


class _Reader:
    """Puts the lines of a file together."""

    def __init__(self, columns: dict[str, int], width: int, weights: Weights) -> None:
        self.segments: dict[tuple[str, str], Segment] = {}
        self._columns = columns
        self._width = width
        self._weights = weights

    def add(self, number: int, line: bytes) -> None:
        """Take in a line; a `RowError` says what is wrong with it."""
        fields = line.decode("utf-8", "replace").split("\t")
        try:
            self._add(number, line, fields)
        except RowError:
            self._distrust(number, fields)
            raise

    def _add(self, number: int, line: bytes, fields: Sequence[str]) -> None:
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RowError(f"not UTF-8 text: byte {error.start} of the line is 0x{line[error.start]:02x}") from None
        if len(fields) != self._width:
            raise RowError(
                f"{len(fields)} fields, but the header has {self._width}: a tab within a text, or a line cut short"
            )
        system, segment, source, rater = (self._field(fields, key) for key in ("system", "segment", "source", "rater"))
        weight = self._weights.of(self._field(fields, "category"), self._field(fields, "severity"))
        if weight is None:
            return
        for key, text in (("system", system), ("segment", segment), ("source", source)):
            if not text.strip():
                raise RowError(f"{COLUMNS[key][0]} is empty: without it nothing can be said of the translation")
        source, target = (_SPAN.sub("", text).strip() for text in (source, self._field(fields, "target")))
        doc = self._field(fields, "doc")
        found = self.segments.setdefault((doc, segment), Segment(doc, segment, source))
        found.source = found.source or source  # a bad line before may have left it open
        if _plain(found.source) != _plain(source):
            raise RowError(f"source is {told(source[:40])}, but segment {segment} has {told(found.source[:40])} before")
        output = found.outputs.setdefault(system, Output(target, number))
        if output.errors and _plain(output.text) != _plain(target):
            raise RowError(
                f"target is {told(target[:40])}, but in line {output.line} {system} has {told(output.text[:40])}"
            )
        output.text = output.text if output.errors else target
        output.errors.setdefault(rater, []).append(weight)

    def _field(self, fields: Sequence[str], key: str) -> str:
        at = self._columns.get(key)
        return "" if at is None or at >= len(fields) else fields[at]

    def _distrust(self, number: int, fields: Sequence[str]) -> None:
        """Do not believe the penalty of the translation that a bad line is about, if the line says which."""
        system, doc, segment = (self._field(fields, key) for key in ("system", "doc", "segment"))
        if system and segment:
            found = self.segments.setdefault((doc, segment), Segment(doc, segment, ""))
            found.outputs.setdefault(system, Output("", number)).whole = False


def _plain(text: str) -> str:
    return " ".join(text.split())


def _columns(file: Path, names: Sequence[str]) -> dict[str, int]:
    """Return where a line has what is needed."""
    if len(names) == 1 and _AVERAGES in names[0].split():
        raise UserError(
            f'"{printable(str(file), 200)}" has average scores, but no texts: give the file with the annotations as'
            " INPUT, and this one as --averages"
        )
    low = [name.strip().lower() for name in names]
    found = {key: low.index(name) for key, known in COLUMNS.items() for name in known[:1] if name in low}
    found |= {
        key: low.index(name) for key, known in COLUMNS.items() if key not in found for name in known if name in low
    }
    missing = [COLUMNS[key][0] for key in _NEEDED if key not in found]
    if missing:
        raise UserError(
            f'"{printable(str(file), 200)}" has no column {listing(missing)}: a file of annotations is tab-separated,'
            f" with the names of its columns in the first line.{nearest(missing[0], low)} There is:"
            f" {printable(listing(low[:20]), 300)}"
        )
    return found


def read_averages(path: str | Path) -> dict[tuple[str, str], float]:
    """Return the average scores of a file by system and segment: penalties below 0, the best is 0.

    Args:
        path: a file with the lines `system score segment`; a score that is None is left out.

    Raises:
        UserError: the file cannot be read, or a line of it.
    """
    file = Path(path)
    scores: dict[tuple[str, str], float] = {}
    for i, (number, line) in enumerate(_lines(file)):
        where = f"{printable(str(file), 200)}, line {number}"
        parts = line.decode("utf-8", "replace").removeprefix("\ufeff").rsplit(None, 2)
        if i == 0 and _AVERAGES in parts:
            continue
        if len(parts) != 3:
            raise UserError(f"{where}: {len(parts)} words instead of a system, a score and a segment")
        system, score, segment = parts
        if score == "None":
            continue
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not value <= 0 or value == -math.inf:
            raise UserError(f"{where}: the score is {told(score)}: a number of at most 0, or None")
        if (system, segment) in scores:
            raise UserError(
                f"{where}: {printable(system, 60)} has a score for segment {printable(segment, 60)} already"
            )
        scores[system, segment] = value + 0.0
    if not scores:
        raise UserError(f'"{printable(str(file), 200)}" has no scores')
    return scores


def agreement(annotations: Annotations, averages: Mapping[tuple[str, str], float]) -> tuple[int, int]:
    """Return how many penalties of the annotations are those of the averages, and how many both have."""
    both = [
        (penalty, -averages[name, segment.id])
        for segment in annotations.segments
        for name, penalty in segment.penalties().items()
        if (name, segment.id) in averages
    ]
    return sum(math.isclose(ours, theirs, abs_tol=1e-5) for ours, theirs in both), len(both)


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers, from 1, without what ends them."""
    try:
        with file.open("rb") as stream:
            number = 0
            while line := stream.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise UserError(f"{printable(str(file), 200)}, line {number}: longer than {MAX_LINE:,} bytes")
                if not line.isspace():
                    yield number, line.rstrip(b"\r\n")
    except OSError as error:
        raise UserError(f'cannot read "{printable(str(file), 200)}": {error.strerror or error}') from None
