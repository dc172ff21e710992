"""Rankings of a group of candidates: how they are asked for, written and read.

A verdict has two parts, of which a judge may be asked for one or both:

    ### Final Ranking:

    B > A = C

    ### Scores:

    B: 8, A: 5, C: 5

Candidates are called A to Z. What is read is checked: every candidate exactly once, scores in range, and a ranking
that says the same as the scores. Every rejection has a reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Literal

from rewardsmith.text.reading import Absent, Unreadable, read_own, tidied

Output = Literal["both", "ranking", "scores"]
"""What a judge is asked for."""

Reading = Literal["lenient", "strict", "exact"]
"""How its answer is read; see `read_ranking`."""

MOST = len(ascii_uppercase)
"""Candidates that have a letter."""

RANKING_HEADER = "### Final Ranking:"
SCORES_HEADER = "### Scores:"

PARSER = "ranking-1"
"""The version of this reader, for the record: it goes up whenever a text would be read otherwise."""

TAIL_LINES = 1_000
"""Lines at the end of an answer in which a lenient reader looks for the verdict."""

LONGEST_LINE = 2_000
"""A longer line is no part of a verdict. The longest that 26 candidates need has some 300 characters."""

_NUMBER = r"[-+]?\d{1,9}(?:\.\d{1,9})?"
_STRICT_RANKING = re.compile(r"[A-Z](?: [<>=] [A-Z])*")
_STRICT_ENTRY = re.compile(rf"\s*([A-Z])\s*:\s*({_NUMBER})()\s*", re.ASCII)

_MARKUP = re.compile(r"\*\*|__|[`{}\[\]\"$]")
_BEFORE = re.compile(r"^(?:[#*+•-]++\s+|\d{1,3}[.)]\s+)*+")
_HEADER = re.compile(  # "Scores:", "Final ranking, best first:"; a lone letter is a candidate and ends it
    r"(?i:(?:the\s+|my\s+)?(?:final\s+|overall\s+)?(?:ranking|rank|order|scores?|ratings?))\b"
    r"(?:(?:(?!\b[A-Z]\b)[^:>=]){0,40}:\s*|\s*\Z)"
)
_ROW = re.compile(r"\|\s*([A-Z])\s*\|\s*([^|]{1,40}?)\s*\|?")
_TABLE = re.compile(r"\|.*\|")
_REMARK = re.compile(r"\s*\((?![^()]*\b[A-Z]\b)[^()0-9]{1,200}\)")  # (tie), (clear and short)
_SENTENCE = re.compile(r"\b(?!(?:nan|inf|out|of|points?|and)\b)[a-z]{2,}\b")  # A > B because …
_NOUN = re.compile(r"\b(?i:candidate|translation|response|answer|option)\s+(?=[A-Z]\b)")
_LIKE_RANKING = re.compile(r"[A-Z]\s*[<>=≥≤≈~]+\s*[A-Z]\b")
_LIKE_SCORES = re.compile(r"[A-Z]\s*[:=]\s*[-+]?(?:[\d∞]|(?i:nan|inf|n/a))", re.ASCII)
_RANKING = re.compile(r"[A-Z](?:\s*[<>=]\s*[A-Z])+")
_BETWEEN = re.compile("[,;|、]")
_ENTRY = re.compile(rf"\s*([A-Z])\s*[:=]\s*({_NUMBER})(?:\s*(?:/|out of)\s*({_NUMBER}))?(?:\s*points?)?\s*", re.ASCII)

Levels = tuple[tuple[str, ...], ...]
"""Letters by rank, best first; those of one level are tied, in alphabetical order."""


@dataclass(frozen=True)
class Ranked:
    """A verdict on a group.

    Attributes:
        levels: best first; tied candidates share a level.
        scores: of each letter; empty where only a ranking was asked for.
        analysis: what was written before the verdict.
    """

    levels: Levels
    scores: Mapping[str, float]
    analysis: str = ""


def letters_of(count: int) -> str:
    """Return what the candidates are called: `ABC` for three.

    Raises:
        ValueError: there are fewer than 2 or more than 26.
    """
    if not 2 <= count <= MOST:
        raise ValueError(f"{count} candidates cannot be ranked in one call: 2 to {MOST} can")
    return ascii_uppercase[:count]


def show_candidates(quoted: Sequence[str], noun: str = "Candidate") -> str:
    """Return the candidates for a prompt, each under its letter; they are quoted already."""
    named = zip(letters_of(len(quoted)), quoted, strict=True)
    return "\n\n".join(f"{noun} {letter}:\n{text}" for letter, text in named)


def task_of(output: Output, lowest: float, highest: float, *, decimals: bool = False) -> str:
    """Return the sentence that says what the judge has to do."""
    kind = "a score" if decimals else "an integer score"
    between = f"{kind} from {lowest:g} (worst) to {highest:g} (best)"
    return {
        "both": f"Rank the candidates from best to worst, and give each of them {between}. "
        "Candidates of equal quality share a score. The ranking must say the same as the scores.",
        "ranking": "Rank the candidates from best to worst. Candidates of equal quality share a rank.",
        "scores": f"Give each of the candidates {between}. Candidates of equal quality share a score.",
    }[output]


def format_of(output: Output, lowest: float = 0.0, highest: float = 10.0, *, decimals: bool = False) -> str:
    """Return the lines with which an answer must end, with X, Y and Z in place of letters and scores in range."""
    high, low = (lowest + share * (highest - lowest) for share in (0.8, 0.5))
    if not decimals:
        high = round(high)
        low = min(round(low), high - 1)
    ranking, scores = f"{RANKING_HEADER}\n\nX > Y = Z", f"X: {high:g}, Y: {low:g}, Z: {low:g}"
    return {"both": f"{ranking}\n\n{SCORES_HEADER}\n\n{scores}", "ranking": ranking, "scores": scores}[output]


def levels_of(scores: Mapping[str, float]) -> Levels:
    """Return the ranking that scores imply: highest first, equal ones together."""
    by_score: dict[float, list[str]] = {}
    for letter in sorted(scores):
        by_score.setdefault(scores[letter], []).append(letter)
    return tuple(tuple(by_score[score]) for score in sorted(by_score, reverse=True))


def placing(levels: Levels) -> dict[str, float]:
    """Return, for each letter, the share of the others that it is ahead of, a tie counting one half: 0 to 1."""
    others, below = sum(map(len, levels)) - 1, sum(map(len, levels))
    shares: dict[str, float] = {}
    for level in levels:
        below -= len(level)
        shares |= dict.fromkeys(level, (below + (len(level) - 1) / 2) / others if others else 0.5)
    return shares


def write_levels(levels: Levels) -> str:
    """Return a ranking as text: `A > B = C`."""
    return " > ".join(" = ".join(level) for level in levels)


def write_ranking(scores: Mapping[str, float], analysis: str = "", output: Output = "both") -> str:
    """Return the answer that a perfect judge would write; `read_ranking` reads it back, also in its exact way.

    Args:
        scores: of each letter.
        analysis: the comparison. Lines at its end that are themselves a verdict are left out.
        output: what was asked for.
    """
    levels = levels_of(scores)
    order = sorted(scores) if output == "scores" else [letter for level in levels for letter in level]
    line = ", ".join(f"{letter}: {scores[letter]:g}" for letter in order)
    parts = {
        "both": [RANKING_HEADER, write_levels(levels), SCORES_HEADER, line],
        "ranking": [RANKING_HEADER, write_levels(levels)],
        "scores": [line],
    }[output]
    before = without_verdict(analysis)
    return "\n\n".join([before, *parts] if before else parts) + "\n"


def without_verdict(analysis: str) -> str:
    """Return an analysis without the lines at its end that are blank, a header, a ranking or scores."""
    lines = analysis.rstrip().split("\n")
    while lines and _is_verdict(lines[-1]):
        lines.pop()
    return "\n".join(lines).strip()


def _is_verdict(line: str) -> bool:
    """Whether a line is blank, a header, a ranking or scores; a sentence that mentions scores is none of them."""
    if len(line) > LONGEST_LINE:
        return False
    plain, _ = _parted(line)
    return not plain or bool(_RANKING.fullmatch(plain)) or all(map(_ENTRY.fullmatch, re.split(_BETWEEN, plain)))


def read_ranking(
    text: str,
    letters: str,
    output: Output = "both",
    *,
    lowest: float = 0.0,
    highest: float = 10.0,
    decimals: bool = False,
    reading: Reading = "lenient",
) -> Ranked:
    """Read a verdict.

    - `strict` wants the verdict as the last lines, in the very form shown above, after an analysis that is not empty;
      what the header lines say does not matter.
    - `exact` wants the words of the headers too.
    - `lenient` takes the last ranking and the last scores under a header, and where there is no header the last that it
      finds. It overlooks emphasis, quotation marks, list marks, full-width signs, a noun before a letter, headers that
      are missing, reworded or on the same line, one score per line or row of a table, remarks in parentheses, `8/10`
      where 10 is the highest score, `8.0`, and text after the verdict. Lines that begin with > and fenced blocks are
      quotations, unless the answer ends with the block and says nothing like a verdict outside.

    Args:
        text: what the judge wrote.
        letters: the candidates' names, as `letters_of` gives them.
        output: what it was asked for.
        lowest: smallest score that is allowed.
        highest: largest score that is allowed.
        decimals: whether 7.5 is a score.
        reading: how much of the form is overlooked.

    Raises:
        Unreadable: with one of the reasons `too few lines`, `no scores line`, `score not a number`, `score not an
            integer`, `score out of another number`, `no ranking line`, `ranking with <`, `duplicate letter`, `unknown
            letter`, `missing candidate`, `wrong header`; or, as an invalid verdict, `score out of range`, `ranking
            contradicts scores`.
    """
    lenient = reading == "lenient"
    found = _find_leniently(text, len(letters), output) if lenient else _find_strictly(text, output, reading == "exact")
    scores: dict[str, float] = {}
    if output != "ranking":
        entry = _ENTRY if lenient else _STRICT_ENTRY
        scores = _scores(found.scores, entry, letters, (lowest, highest), decimals or lenient)
        if not decimals and (odd := [value for value in scores.values() if value != int(value)]):
            raise Unreadable("score not an integer", f"{odd[0]:g}")
    if output == "scores":
        return Ranked(levels_of(scores), scores, found.analysis)
    levels = _levels(found.ranking, letters)
    if output == "both" and levels != levels_of(scores):
        said, meant = write_levels(levels), write_levels(levels_of(scores))
        raise Unreadable("ranking contradicts scores", f"{said}, but the scores say {meant}", invalid=True)
    return Ranked(levels, scores, found.analysis)


@dataclass(frozen=True)
class _Found:
    """Where the verdict stands in an answer."""

    ranking: str
    scores: list[str]
    analysis: str


def _find_strictly(text: str, output: Output, headers: bool) -> _Found:
    lines = text.split("\n")
    filled = [i for i in range(len(lines)) if lines[i].strip()]
    wanted = {"both": 4, "ranking": 2, "scores": 1}[output]
    if len(filled) <= wanted:
        raise Unreadable("too few lines", f"{len(filled)}, and {wanted} make the verdict after an analysis")
    verdict = [lines[i].strip()[:LONGEST_LINE] for i in filled[-wanted:]]
    analysis = "\n".join(lines[: filled[-wanted]]).strip()
    if headers:
        for line, header in zip(verdict[0::2], (RANKING_HEADER, SCORES_HEADER), strict=False):
            if output != "scores" and line != header:
                raise Unreadable("wrong header", f"{line[:80]!r} instead of {header!r}")
    scores, ranking = verdict[-1], verdict[1] if output != "scores" else ""
    if output != "ranking" and not _LIKE_SCORES.match(scores):
        raise Unreadable("no scores line", f"the last line is {scores[:80]!r}")
    if output != "scores" and not _STRICT_RANKING.fullmatch(ranking):
        raise Unreadable("no ranking line", f"{ranking[:80]!r} stands in its place")
    return _Found(ranking, [scores], analysis)


def _find_leniently(text: str, count: int, output: Output) -> _Found:
    return read_own(text, lambda own: _find_own(text, own, count, output))


@dataclass(frozen=True)
class _Line:
    """A line without markup, header and nouns, and its place; headed if a header of its kind stands above it."""

    place: int
    text: str
    headed: bool

    @property
    def plain(self) -> str:
        """The text without remarks in parentheses."""
        return _REMARK.sub("", self.text)


def _find_own(text: str, own: str, count: int, output: Output) -> _Found:
    lines = own.split("\n")
    plain = _lines(lines)
    ranking, scores, begins = "", list[str](), len(lines)
    if output != "ranking":
        at = _last(plain, _LIKE_SCORES)
        if at is None:
            raise Absent("no scores line", f"in {len(lines)} lines")
        scores, at = _block(plain, at, count)
        begins = plain[at].place
    if output != "scores":
        at = _last(plain, _LIKE_RANKING)
        if at is None:
            raise (Absent if output == "ranking" else Unreadable)("no ranking line", f"in {len(lines)} lines")
        ranking, begins = plain[at].plain, min(begins, plain[at].place)
        if not _RANKING.fullmatch(ranking):
            raise Unreadable("no ranking line", f"the last that looks like one is {ranking[:80]!r}")
    return _Found(ranking, scores, without_verdict("\n".join(text.split("\n")[:begins])))


def _lines(lines: Sequence[str]) -> list[_Line]:
    """Return the lines at the end that are not empty, and whether they stand under a header of their kind."""
    found, header = list[_Line](), ""
    first = max(0, len(lines) - TAIL_LINES)
    for place, raw in enumerate(lines[first:], first):
        line, named = _parted(raw)
        header = named or header
        if not line:
            continue
        if _LIKE_RANKING.match(line):
            found.append(_Line(place, line, header == "ranking"))
            header = ""
        elif _LIKE_SCORES.match(line):
            found.append(_Line(place, line, header == "scores"))
        else:
            found.append(_Line(place, line, headed=False))
            header = header if _TABLE.fullmatch(line) else ""  # the first row of a table is no end of it
    return found


def _last(plain: Sequence[_Line], pattern: re.Pattern[str]) -> int | None:
    """Return the last line of a kind, before all one under a header; a sentence that begins like one is none."""
    alike = [at for at, line in enumerate(plain) if pattern.match(line.text) and not _SENTENCE.search(line.plain)]
    return max(alike, key=lambda at: (plain[at].headed, at), default=None)


def _block(plain: Sequence[_Line], last: int, wanted: int) -> tuple[list[str], int]:
    """Return the lines with scores that end at `last`, going up until there is one score for each, and the first."""
    at, found = last, [plain[last].plain]
    while len(re.findall("[:=]", " ".join(found))) < wanted and at > 0 and _LIKE_SCORES.match(plain[at - 1].text):
        at -= 1
        found.insert(0, plain[at].plain)
    return found, at


def _parted(line: str) -> tuple[str, str]:
    """Return a line without harmless markup, header and nouns, and of what the header was: `ranking`, `scores` or "".

    The line is "" where it is too long to be part of a verdict. A row of a table with one score becomes `B: 8`.
    """
    if len(line) > LONGEST_LINE:
        return "", ""
    line = _MARKUP.sub("", tidied(line)).strip()
    line = _BEFORE.sub("", line, count=1)
    header = _HEADER.match(line)
    line = _NOUN.sub("", line[header.end() :] if header else line).strip()
    if row := _ROW.fullmatch(line):
        line = f"{row[1]}: {row[2]}"
    named = "" if header is None else "scores" if re.search("(?i)score|rating", header[0]) else "ranking"
    return line if _TABLE.fullmatch(line) else line.rstrip(".,;| "), named


def _scores(
    lines: Sequence[str], entry: re.Pattern[str], letters: str, bounds: tuple[float, float], decimals: bool
) -> dict[str, float]:
    scores: dict[str, float] = {}
    for piece in (piece for line in lines for piece in re.split(_BETWEEN if entry is _ENTRY else "[,;]", line)):
        match = entry.fullmatch(piece)
        if match is None:
            raise Unreadable("score not a number", f"{piece.strip()[:80]!r}")
        letter, number, out_of = match.groups()
        if letter not in letters:
            raise Unreadable("unknown letter", f"{letter}, with candidates {letters[0]} to {letters[-1]}")
        if letter in scores:
            raise Unreadable("duplicate letter", f"{letter} has two scores")
        if out_of and float(out_of) != bounds[1]:
            raise Unreadable("score out of another number", f"{piece.strip()}, where {bounds[1]:g} is the highest")
        if "." in number and not decimals:
            raise Unreadable("score not an integer", number)
        if not bounds[0] <= float(number) <= bounds[1]:
            raise Unreadable("score out of range", f"{number} in {bounds[0]:g} to {bounds[1]:g}", invalid=True)
        scores[letter] = float(number) + 0.0  # no -0
    _complete(scores, letters)
    return scores


def _levels(ranking: str, letters: str) -> Levels:
    if "<" in ranking:
        raise Unreadable("ranking with <", ranking[:200])
    levels = tuple(tuple(sorted(re.findall("[A-Z]", level))) for level in ranking.split(">"))
    named = [letter for level in levels for letter in level]
    for letter in named:
        if letter not in letters:
            raise Unreadable("unknown letter", f"{letter}, with candidates {letters[0]} to {letters[-1]}")
    if len(set(named)) < len(named):
        raise Unreadable("duplicate letter", ranking[:200])
    _complete(named, letters)
    return levels


def _complete(named: Sequence[str] | Mapping[str, float], letters: str) -> None:
    missing = [letter for letter in letters if letter not in named]
    if missing:
        raise Unreadable("missing candidate", ", ".join(missing))
