"""Rankings of a group of candidates: how they are written and parsed.

A verdict has two parts, and a judge may have to write one or both:

    ### Final Ranking:

    B > A = C

    ### Scores:

    B: 8, A: 5, C: 5

Candidates are called A to Z. What is parsed is checked: every candidate exactly once, scores in range, and a ranking
that agrees with the scores. Every rejection has a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_uppercase
from typing import Literal, NamedTuple

from rewardsmith.text.judge_replies import MAX_LINE, NoVerdict, Unparsable, normalise, parse_own_words

Output = Literal["both", "ranking", "scores"]
"""What a judge writes."""

Strictness = Literal["lenient", "strict", "exact"]
"""How much of the form is overlooked; see `parse_ranking`."""

NOUN = "Candidate"
"""What a prompt calls the candidates, unless a recipe has another noun: `Candidate A:`."""

NOUN_PATTERN = r"^[^\W\d_][\w '-]{0,38}[^\W_]$"
"""A noun stands in a prompt unquoted: 2 to 40 letters, digits, spaces, dashes and apostrophes."""

MAX_CANDIDATES = len(ascii_uppercase)
RANKING_HEADER = "### Final Ranking:"
SCORES_HEADER = "### Scores:"

PARSER = "ranking-1"
"""The version of this parser, for the record: it goes up whenever a reply would be parsed otherwise."""

MAX_LINES = 1_000
"""Lines at the end of a reply in which the lenient parser looks for the verdict."""

_NUMBER = r"[-+]?\d{1,9}(?:\.\d{1,9})?"
_STRICT_RANKING = re.compile(r"[A-Z](?: [<>=] [A-Z])*")
_STRICT_ENTRY = re.compile(rf"\s*([A-Z])\s*:\s*({_NUMBER})()\s*", re.ASCII)
_RANKING = re.compile(r"[A-Z](?:\s*[<>=]\s*[A-Z])+")
_ENTRY = re.compile(rf"\s*([A-Z])\s*[:=]\s*({_NUMBER})(?:\s*(?:/|out of)\s*({_NUMBER}))?(?:\s*points?)?\s*", re.ASCII)
_LIKE_RANKING = re.compile(r"[A-Z]\s*[<>=≥≤≈~]+\s*[A-Z]\b")
_LIKE_SCORES = re.compile(r"[A-Z]\s*[:=]\s*[-+]?(?:[\d∞]|(?i:nan|inf|n/a))", re.ASCII)
_BETWEEN = re.compile("[,;|、]")

# What the lenient parser overlooks on a line.
_MARKUP = re.compile(r"\*\*|__|[`{}\[\]\"$]")
_BULLET = re.compile(r"^(?:[#*+•-]++\s+|\d{1,3}[.)]\s+)*+")
_HEADER = re.compile(  # "Scores:", "Final ranking, best first:"; a letter by itself is a candidate and ends it
    r"(?i:(?:the\s+|my\s+)?(?:final\s+|overall\s+)?(?:ranking|rank|order|scores?|ratings?))\b"
    r"(?:(?:(?!\b[A-Z]\b)[^:>=]){0,40}:\s*|\s*\Z)"
)
_TABLE_ROW = re.compile(r"\|\s*([A-Z])\s*\|\s*([^|]{1,40}?)\s*\|?")
_REMARK = re.compile(r"\s*\((?![^()]*\b[A-Z]\b)[^()0-9]{1,200}\)")  # (tie), (clear and short)
_SENTENCE = re.compile(r"\b(?!(?:nan|inf|out|of|points?|and)\b)[a-z]{2,}\b")  # A > B because …

Levels = tuple[tuple[str, ...], ...]
"""Letters by rank, best first; those of one level are tied, in alphabetical order."""


@dataclass(frozen=True)
class RankingVerdict:
    """A verdict on a group: scores are empty where only a ranking is wanted; the analysis stands before the verdict."""

    levels: Levels
    scores: Mapping[str, float]
    analysis: str = ""


def letters_of(count: int) -> str:
    """Return the names of the candidates: `ABC` for three; `ValueError` for fewer than 2 or more than 26."""
    if not 2 <= count <= MAX_CANDIDATES:
        raise ValueError(f"{count} candidates cannot be ranked in one call: 2 to {MAX_CANDIDATES} can")
    return ascii_uppercase[:count]


def levels_of(scores: Mapping[str, float]) -> Levels:
    """Return the ranking that scores imply: highest first, equal ones together."""
    by_score: dict[float, list[str]] = {}
    for letter in sorted(scores):
        by_score.setdefault(scores[letter], []).append(letter)
    return tuple(tuple(by_score[score]) for score in sorted(by_score, reverse=True))


def rank_shares(levels: Levels) -> dict[str, float]:
    """Return, for each letter, the share of the others that it is ahead of, a tie counting one half: 0 to 1."""
    others, below = sum(map(len, levels)) - 1, sum(map(len, levels))
    shares: dict[str, float] = {}
    for level in levels:
        below -= len(level)
        shares |= dict.fromkeys(level, (below + (len(level) - 1) / 2) / others if others else 0.5)
    return shares


# ---- writing -----------------------------------------------------------------------------------------------------


def write_levels(levels: Levels) -> str:
    """Return a ranking as text: `A > B = C`."""
    return " > ".join(" = ".join(level) for level in levels)


def write_ranking(scores: Mapping[str, float], analysis: str = "", output: Output = "both", noun: str = NOUN) -> str:
    """Return the reply of a perfect judge, which `parse_ranking` reads back in its exact way too.

    Lines at the end of the analysis that are themselves a verdict are left out.
    """
    levels = levels_of(scores)
    order = sorted(scores) if output == "scores" else [letter for level in levels for letter in level]
    line = ", ".join(f"{letter}: {scores[letter]:g}" for letter in order)
    parts = {
        "both": [RANKING_HEADER, write_levels(levels), SCORES_HEADER, line],
        "ranking": [RANKING_HEADER, write_levels(levels)],
        "scores": [line],
    }[output]
    before = without_verdict(analysis, noun)
    return "\n\n".join([before, *parts] if before else parts) + "\n"


def without_verdict(analysis: str, noun: str = NOUN) -> str:
    """Return an analysis without the lines at its end that are blank, a header, a ranking or scores."""
    lines = analysis.rstrip().split("\n")
    while lines and len(lines[-1]) <= MAX_LINE:
        line, _ = _clean(lines[-1], noun)
        if line and not _RANKING.fullmatch(line) and not all(map(_ENTRY.fullmatch, re.split(_BETWEEN, line))):
            break
        lines.pop()
    return "\n".join(lines).strip()


# ---- parsing -----------------------------------------------------------------------------------------------------


def parse_ranking(
    reply: str,
    letters: str,
    output: Output = "both",
    *,
    lowest: float = 0.0,
    highest: float = 10.0,
    decimals: bool = False,
    strictness: Strictness = "lenient",
    noun: str = NOUN,
) -> RankingVerdict:
    """Parse a verdict.

    - `strict` wants the verdict as the last lines, in the form shown above, after an analysis that is not empty; what
      the header lines say does not matter.
    - `exact` wants the words of the headers too.
    - `lenient` takes the last ranking and the last scores under a header, or else the last that it finds. It
      overlooks markup, the noun before a letter, missing or reworded headers, one score per line or table row, remarks
      in parentheses, `8/10` where 10 is the highest score, and text after the verdict. Quotations and fenced blocks are
      not the judge's own, unless the reply ends with the block and has nothing like a verdict outside.

    Scores must lie in `lowest` to `highest`; `decimals` allows 7.5. A reason of `Unparsable` is such as
    `no scores line` or `missing candidate`; it is `invalid` for `score out of range` and `ranking contradicts scores`.
    """
    lenient = strictness == "lenient"
    if lenient:
        found = parse_own_words(reply, lambda own: _find(reply, own, len(letters), output, noun))
    else:
        found = _find_strictly(reply, output, strictness)
    scores: dict[str, float] = {}
    if output != "ranking":
        scores = _scores(found.scores, letters, (lowest, highest), decimals, lenient)
    if output == "scores":
        return RankingVerdict(levels_of(scores), scores, found.analysis)
    levels = _levels(found.ranking, letters)
    if output == "both" and levels != levels_of(scores):
        detail = f"{write_levels(levels)}, but the scores say {write_levels(levels_of(scores))}"
        raise Unparsable("ranking contradicts scores", detail, invalid=True)
    return RankingVerdict(levels, scores, found.analysis)


class _Verdict(NamedTuple):
    ranking: str
    scores: Sequence[str]
    analysis: str


def _find_strictly(text: str, output: Output, strictness: Strictness) -> _Verdict:
    lines = text.split("\n")
    filled = [i for i, line in enumerate(lines) if line.strip()]
    count = {"both": 4, "ranking": 2, "scores": 1}[output]
    if len(filled) <= count:
        raise Unparsable("too few lines", f"{len(filled)}, and {count} make the verdict after an analysis")
    verdict = [lines[i].strip()[:MAX_LINE] for i in filled[-count:]]
    if strictness == "exact" and output != "scores":
        for line, header in zip(verdict[0::2], (RANKING_HEADER, SCORES_HEADER), strict=False):
            if line != header:
                raise Unparsable("wrong header", f"{line[:80]!r} instead of {header!r}")
    scores, ranking = verdict[-1], verdict[1] if output != "scores" else ""
    if output != "ranking" and not _LIKE_SCORES.match(scores):
        raise Unparsable("no scores line", f"the last line is {scores[:80]!r}")
    if output != "scores" and not _STRICT_RANKING.fullmatch(ranking):
        raise Unparsable("no ranking line", f"{ranking[:80]!r} stands in its place")
    return _Verdict(ranking, [scores], "\n".join(lines[: filled[-count]]).strip())


class _Line(NamedTuple):
    """A clean line, its place, and whether a header of its kind stands above it."""

    at: int
    text: str
    headed: bool


def _find(text: str, own: str, count: int, output: Output, noun: str) -> _Verdict:
    lines = _lines(own.split("\n"), noun)
    ranking, scores, start = "", list[str](), len(text)
    if output != "ranking":
        at = _last(lines, _LIKE_SCORES)
        if at is None:
            raise NoVerdict("no scores line", "no line has a score of each candidate")
        block = [lines[at]]
        while at and sum(line.text.count(":") + line.text.count("=") for line in block) < count:
            at -= 1
            if not _LIKE_SCORES.match(lines[at].text):
                break
            block.insert(0, lines[at])
        scores, start = [_REMARK.sub("", line.text) for line in block], block[0].at
    if output != "scores":
        at = _last(lines, _LIKE_RANKING)
        if at is None:
            raise (NoVerdict if output == "ranking" else Unparsable)("no ranking line", "no line has a ranking")
        ranking, start = _REMARK.sub("", lines[at].text), min(start, lines[at].at)
        if not _RANKING.fullmatch(ranking):
            raise Unparsable("no ranking line", f"the last that looks like one is {ranking[:80]!r}")
    return _Verdict(ranking, scores, without_verdict("\n".join(text.split("\n")[:start]), noun))


def _lines(lines: Sequence[str], noun: str) -> list[_Line]:
    """Return the lines at the end that are not empty, and whether they stand under a header of their kind."""
    found, header = list[_Line](), ""
    first = max(0, len(lines) - MAX_LINES)
    for index, raw in enumerate(lines[first:], first):
        line, named = _clean(raw, noun) if len(raw) <= MAX_LINE else ("", "")
        header = named or header
        if not line:
            continue
        kind = "ranking" if _LIKE_RANKING.match(line) else "scores" if _LIKE_SCORES.match(line) else "other"
        found.append(_Line(index, line, kind == header))
        if kind == "ranking" or (kind == "other" and not re.fullmatch(r"\|.*\|", line)):  # the head of a table
            header = ""
    return found


def _last(lines: Sequence[_Line], pattern: re.Pattern[str]) -> int | None:
    """Return the last line of a kind, preferably under a header; a sentence that begins like one is none."""
    alike = [
        i
        for i, line in enumerate(lines)
        if pattern.match(line.text) and not _SENTENCE.search(_REMARK.sub("", line.text))
    ]
    return max(alike, key=lambda i: (lines[i].headed, i), default=None)


def _clean(line: str, noun: str) -> tuple[str, str]:
    """Return a line without markup, header and nouns, and the kind of the header: `ranking`, `scores` or "".

    A table row with one score becomes `B: 8`.
    """
    line = _BULLET.sub("", _MARKUP.sub("", normalise(line)).strip(), count=1)
    header = _HEADER.match(line)
    line = _noun_pattern(noun).sub("", line[header.end() :] if header else line).strip()
    if row := _TABLE_ROW.fullmatch(line):
        line = f"{row[1]}: {row[2]}"
    kind = "" if header is None else "scores" if re.search("(?i)score|rating", header[0]) else "ranking"
    return line if re.fullmatch(r"\|.*\|", line) else line.rstrip(".,;| "), kind


@lru_cache(maxsize=64)
def _noun_pattern(noun: str) -> re.Pattern[str]:
    """Return a pattern for the noun before a letter: that of the prompt, or a common one."""
    own = re.escape(noun) + (r"\s+" if noun[-1].isascii() else r"\s*")  # Chinese has no space there
    return re.compile(rf"\b(?i:(?:candidate|translation|response|answer|option)\s+|{own})(?=[A-Z]\b)")


def _scores(
    lines: Sequence[str], letters: str, bounds: tuple[float, float], decimals: bool, lenient: bool
) -> dict[str, float]:
    entry, between = (_ENTRY, _BETWEEN) if lenient else (_STRICT_ENTRY, re.compile("[,;]"))
    scores: dict[str, float] = {}
    for piece in (piece for line in lines for piece in between.split(line)):
        match = entry.fullmatch(piece)
        if match is None:
            raise Unparsable("score not a number", f"{piece.strip()[:80]!r}")
        letter, number, out_of = match[1], match[2], match[3]
        score = float(number) + 0.0  # no -0
        if letter in scores:
            raise Unparsable("duplicate letter", f"{letter} has two scores")
        if out_of and float(out_of) != bounds[1]:
            raise Unparsable("score out of another number", f"{piece.strip()}, where {bounds[1]:g} is the highest")
        if not decimals and (score != int(score) if lenient else "." in number):
            raise Unparsable("score not an integer", number)
        if not bounds[0] <= score <= bounds[1]:
            raise Unparsable("score out of range", f"{number} in {bounds[0]:g} to {bounds[1]:g}", invalid=True)
        scores[letter] = score
    _require_all(scores, letters)
    return scores


def _levels(ranking: str, letters: str) -> Levels:
    if "<" in ranking:
        raise Unparsable("ranking with <", ranking[:200])
    levels = tuple(tuple(sorted(re.findall("[A-Z]", level))) for level in ranking.split(">"))
    named = [letter for level in levels for letter in level]
    if len(set(named)) < len(named):
        raise Unparsable("duplicate letter", ranking[:200])
    _require_all(named, letters)
    return levels


def _require_all(named: Iterable[str], letters: str) -> None:
    unknown, missing = set(named) - set(letters), set(letters) - set(named)
    if unknown:
        raise Unparsable("unknown letter", f"{min(unknown)}, with candidates {letters[0]} to {letters[-1]}")
    if missing:
        raise Unparsable("missing candidate", ", ".join(sorted(missing)))
