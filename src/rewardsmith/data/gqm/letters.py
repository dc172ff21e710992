"""The letters by which an analysis calls the candidates, and the same analysis with the candidates in another order.

    mentions = find_mentions("A good idea, but B > A. Candidate A omits a word.", 2)
    mentions.renamed((1, 0))          # "A good idea, but A > B. Candidate B omits a word."

A capital letter that stands alone is a mention, a word or a doubt. What stands beside it decides (`letters_beside.py`):

- after a noun such as "Translation", beside an operator or another letter ("A > B", "A and C"), before a colon, a score
  or a possessive ("A: 8", "A (8)", "A's"), alone in emphasis, parentheses, quotation marks or a cell of a table, beside
  Chinese, Japanese or Korean writing, and at the end of a clause it is a mention;
- "A" and "I" are words too. At the beginning of a sentence "A" is an article, unless a word follows that cannot follow
  an article ("A is", "A omits", "A keeps"); further on it is a mention. "I" is a pronoun wherever one can stand;
- other letters are mentions, unless they belong to a name ("vitamin C", "C++", "B-side", "20 °C");
- inside a quotation of more than letters all of them are words.

Where one cannot tell ("Plan B", "A-D", "the second translation", "Samuel B. Jones"), or where a letter would be taken
for a word once it is renamed ("C good" would become "A good"), the analysis cannot be renamed: that is a `Doubtful`,
and not a guess. So renaming by an order and back gives the same text, or is refused. The rules know English, and
Chinese as far as they need to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase

from rewardsmith.data.gqm import letters_beside as beside


class Doubtful(ValueError):  # noqa: N818 it is the analysis that is so
    """An analysis cannot be told for another order of the candidates; the message says why."""


FREE, NOT_I, NOT_A = "", "I", "AI"
"""The letters that may not stand at a mention, because they would be read as words there."""


@dataclass(frozen=True)
class Mentions:
    """The letters of candidates in an analysis.

    Attributes:
        text: the analysis.
        count: candidates that there are.
        places: where each letter stands.
        barred: letters that may not stand there.
        doubt: why the letters cannot be told; "" where they can.
    """

    text: str
    count: int
    places: tuple[int, ...]
    barred: tuple[str, ...]
    doubt: str = ""

    @cached_property
    def named(self) -> frozenset[int]:
        """The candidates that are mentioned."""
        return frozenset(_index(self.text[place]) for place in self.places)

    @cached_property
    def counted(self) -> bool:
        """Whether it says how many candidates there are, three or more, so that it cannot be about fewer."""
        return beside.HOW_MANY.search(self.text.lower()) is not None

    @cached_property
    def _pieces(self) -> list[str]:
        """The text between the letters, with a gap after each piece but the last."""
        starts = (0, *(place + 1 for place in self.places))
        ends = (*self.places, len(self.text))
        pieces = [""] * (2 * len(starts) - 1)
        pieces[::2] = [self.text[start:end] for start, end in zip(starts, ends, strict=True)]
        return pieces

    def renamed(self, order: Sequence[int]) -> str:
        """Return the analysis for another order, all letters renamed at once.

        Args:
            order: a permutation; the candidate that stands i-th is the one that stood `order[i]`-th.

        Raises:
            Doubtful: it cannot be told which letters are mentions, or would not be told afterwards.
        """
        if list(order) == list(range(self.count)):
            return self.text
        if self.doubt:
            raise Doubtful(self.doubt)
        new = {ascii_uppercase[old]: ascii_uppercase[place] for place, old in enumerate(order)}
        letters = [new[self.text[place]] for place in self.places]
        for letter, barred in zip(letters, self.barred, strict=True):
            if letter in barred:
                raise Doubtful(f"a letter would become {letter} where {letter} is a word")
        pieces = self._pieces.copy()
        pieces[1::2] = letters
        return "".join(pieces)


def find_mentions(text: str, count: int) -> Mentions:
    """Find the letters of candidates in an analysis, in time linear in its length.

    Args:
        text: the analysis.
        count: candidates that there are, called A, B and so on.
    """
    quotes = [m.span() for m in beside.QUOTED.finditer(text) if not beside.ONLY_NAMES.fullmatch(m[0])]
    starts = [start for start, _ in quotes]
    places, barred = list[int](), list[str]()
    doubt = _doubt_of_all(text, count)
    for found in beside.ALONE.finditer(text):
        place = found.start()
        if _index(found[0]) >= count:
            continue
        quote = bisect_right(starts, place) - 1
        quoted = quote >= 0 and place < quotes[quote][1]
        try:
            said = _barred(_Letter(text, place, count), quoted=quoted)
        except Doubtful as error:
            doubt = doubt or str(error)
            continue
        if said is not None:
            places.append(place)
            barred.append(said)
    return Mentions(text, count, tuple(places), tuple(barred), doubt)


def _index(letter: str) -> int:
    return ord(letter) - ord("A")


def _doubt_of_all(text: str, count: int) -> str:
    """Return what in an analysis tells candidates apart by other means than capital letters."""
    if found := beside.BY_PLACE.search(text.lower()):
        return f"it calls a candidate by its place: {found[0]!r}"
    for found in beside.SMALL.finditer(text):
        if _index(found[1].upper()) < count:
            return f"it calls a candidate by a small letter: {found[0]!r}"
    return ""


class _Letter:
    """A capital letter that stands alone, and is the letter of a candidate, with what stands beside it."""

    def __init__(self, text: str, place: int, count: int) -> None:
        self.letter = text[place]
        self.before = text[max(0, place - beside.WINDOW) : place]
        self.after = text[place + 1 : place + 1 + beside.WINDOW]
        self._count = count
        self._word = beside.word_before(self.before)

    def follows(self, words: frozenset[str]) -> bool:
        """Whether one of these words, or its plural, stands right before it."""
        return self._word in words or self._word.removesuffix("s") in words

    @property
    def near(self) -> str:
        """Some of the text, for messages."""
        return repr((self.before[-20:] + self.letter + self.after[:20]).strip())

    def meets(self, how: beside.Beside) -> bool:
        """Whether the letter of a candidate stands beside this one in some way."""
        after, before = how.after.match(self.after), how.before.search(self.before)
        return any(found is not None and _index(found[1]) in range(self._count) for found in (after, before))


def _barred(said: _Letter, *, quoted: bool) -> str | None:
    """Return which letters may not stand here, or None where this one is a word.

    Raises:
        Doubtful: it cannot be told.
    """
    after_noun = said.follows(beside.NOUNS)
    if quoted:
        if after_noun or said.meets(beside.COMPARED):
            raise Doubtful(f"a letter in a quotation may be that of a candidate: {said.near}")
        return None
    named = after_noun or _is_named(said)
    if not after_noun:
        _require_clear(said, named)
        if _is_part_of_name(said):
            return None
    if named:
        return FREE
    if _is_no_article(said):
        if said.letter == "I" and said.meets(beside.JOINED):
            raise Doubtful(f"I may be a candidate or the speaker: {said.near}")
        return None if said.letter == "I" else NOT_I
    return None if said.letter in NOT_A else NOT_A


def _is_named(said: _Letter) -> bool:
    """Whether any letter here would be a candidate's, whatever word stands before it."""
    before, after = said.before, said.after
    return bool(
        beside.LABEL.match(after)
        or (before and after and beside.WRAPPED.get(before[-1]) == after[0])
        or (beside.LINE_LABEL.match(after) and beside.LINE_MARKS.search(before))
        or (beside.CELL_AFTER.match(after) and beside.CELL_BEFORE.search(before))
        or said.meets(beside.COMPARED)
        or beside.CJK_AFTER.match(after)
        or (beside.CJK_BEFORE.search(before) and not beside.ENGLISH_AFTER.match(after))
    )


def _is_no_article(said: _Letter) -> bool:
    """Whether any letter here but I would be a candidate's: also A, which is no article here."""
    if said.meets(beside.JOINED) or beside.END.match(said.after):
        return True
    word = beside.NEXT_WORD.match(said.after)
    if beside.STARTS.search(said.before):
        if said.letter == "A" and beside.ASIDE.match(said.after):
            raise Doubtful(f"A may be a candidate or an article: {said.near}")
        return bool(word and beside.cannot_follow_article(word[1])) or beside.PAST.match(said.after) is not None
    titled = word is not None and word[1][0].isupper()
    if titled and said.letter == "A":
        raise Doubtful(f"A may be a candidate or the first word of a title: {said.near}")
    return not titled


def _is_part_of_name(said: _Letter) -> bool:
    """Whether it is a letter of something else: C++, vitamin C, an A."""
    return bool(
        said.follows(beside.NAMES) or beside.NAME_AFTER.match(said.after) or beside.NAME_BEFORE.search(said.before[-8:])
    )


def _require_clear(said: _Letter, named: bool) -> None:
    """Raise `Doubtful` where a letter may be part of something else."""
    if said.meets(beside.ABBREVIATED):
        raise Doubtful(f"it may be an abbreviation, or two candidates: {said.near}")
    if said.meets(beside.RANGE):
        raise Doubtful(f"it may be a range of candidates: {said.near}")
    if said.follows(beside.MAYBE_NAMES):
        raise Doubtful(f"it may be a name, or a candidate: {said.near}")
    if not named and beside.INITIAL_AFTER.match(said.after) and beside.INITIAL_BEFORE.search(said.before):
        raise Doubtful(f"it may be the initial of a name: {said.near}")


__all__ = ["Doubtful", "Mentions", "find_mentions"]
