r"""The letter that a model chose among several options.

A letter counts only where the text gives it as the answer: in a box, after "the answer is", as a line of its own, or in
a last sentence such as "so it is (B)". A clause with a negation, and an answer that is taken back, choose nothing. Nor
does a list of options: "A) Rome, B) Paris" on two lines quotes the question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from rewardsmith.text.answers import TAIL, boxed_at

MAX_CHARS = 2_000
"""Of the longest phrase that chooses a letter, and of the text around it that is looked at."""

_FULL_WIDTH = {0xFF01 + offset: 0x21 + offset for offset in range(94)}
_LATEX = (
    (
        re.compile(r"\\(?:lor|vee|cup|land|wedge|cap|to|n?eq?|neg|lnot|not|sim|overline|bar)(?![A-Za-z])|[∨∪∧∩¬≠~]"),
        " & ",
    ),
    (
        re.compile(
            r"\\(?:text(?:bf|it|rm|sf|tt|sc|normal)?|math(?:rm|bf|sf|it|cal|bb|tt)|mbox|operatorname|emph|underline"
            r"|boldsymbol|bm|bf|rm|it|quad|qquad|displaystyle|left|right|boxed|fbox)(?![A-Za-z])"
            r"|\\[,;:! ()\[\]]|[{}$*_`#\"“”]|(?<![A-Za-z])['’]|['’](?![A-Za-z])"
        ),
        " ",
    ),
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|neither|nor|except|exclud\w+|but|besides|unlike|without|cannot|hardly|doubt|disagree|wrong"
    r"|incorrect|false|untrue|invalid|impossible|unlikely|eliminat\w+|rul\w+ out|reject\w*|other than|apart from"
    r"|far from|opposite|complement|either|both|(?:mistake|error) to)\b|n['’]t\b|\?",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|sorry|correction|oops|scratch|kidding|take (?:that|it) back|i meant?|second thoughts?|alternatively"
    r"|(?:could|might|may|is|are|but|and) also|as well|actually|too(?=[.!]?\s*$))\b"
    r"|\.\.|…|[?✗✘❌]|\bno(?:[,.!]|\s*$|\s(?:it|that)\b)"
    r"|^[\s.,;)]*(?:or|and|nor|also|is|are|was|isn['’]t|cannot|can|maybe|perhaps|possibly)\b"
    r"|\bso is\b|^[\s.]*\(?[A-Z]\)?[.!]?\s*(?:$|\n)",
    re.IGNORECASE,
)
_DENIED_OPTION = re.compile(
    r"\b(?:wrong|incorrect|false|untrue|exclud\w+|eliminat\w+|reject\w*|rul\w+ out)\b", re.IGNORECASE
)
"""What denies an option after its label; "not" and "no" may be words of the option itself."""

LINES_BETWEEN = 2
"""Lines of text between two options of a list, at most: the words of an option may go on in the next line."""

_CLAUSE = re.compile(r"[.,;:!?\n](?=\s|$)|\b(?:so|thus|hence|therefore)\b|, not\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\bAns)[.!?;](?=\s|$)|\n")
_STATED = re.compile(
    r"\b(?:answers?|ans|(?:correct|right|best|remaining|my) (?:option|choice)|option|choice|selected|solution)\b"
    r"(?: (?:to|of|for) [^.:\n]{1,80}?)?\s*"
    r"(?:\b(?:(?:should|must|would|will|has to) be|is|was|equals?)\b|['’]s\b|[:=]|(?<=ns)\.|(?=\())[\s:]*"
    r"(?:(?:therefore|thus|hence|simply|just|clearly|indeed|definitely)\b,?\s*)*",
    re.IGNORECASE,
)
_CONCLUDING = (
    r"(?i:so|thus|hence|therefore|then|definitely|i (?:would |will )?(?:choose|pick|select|say|think|go with)"
    r"|i['’]ll go with|it (?:is|must be|has to be)|it['’]s|only)"
)


_NO_VERB = r"(?!\s*(?:is|are|was|isn['’]t|cannot|can['’]t)\b)"
"""After a label, a sentence about the option: "(B) is wrong"."""


@dataclass(frozen=True)
class _Patterns:
    """How letters are given."""

    phrase: re.Pattern[str]  # nothing but one letter and what belongs to it: "(B) 42"
    conclusion: re.Pattern[str]  # a sentence that gives one
    mention: re.Pattern[str]  # a letter that cannot be a word
    label: re.Pattern[str]  # the beginning of an option in a list


@lru_cache(maxsize=32)
def _patterns(letters: str) -> _Patterns:
    upper, lower = f"[{letters}]", f"[{letters.lower()}]"
    noun = r"(?i:(?:the )?(?:correct |right |final |best )?(?:option|choice|letter|answer)\s*(?:is\b|:)?\s*)?"
    letter = rf"(?:[(\[<]\s*(?P<marked>{upper}|{lower})\s*[.:]?\s*[)\]>]|(?P<bare>{upper})(?![A-Za-z0-9+^=!&|/'’]|-))"
    reason = r",?\s*(?:because|since|as(?! is| well)|which|rather than|instead of|although|\(?not)\b.*"
    # What follows a label are the words of the option.
    words = (
        r"\s*[.:)\]]+\s.*|\s*[–—-]\s.*|,\s.*|\s+\(.*"
        r"|(?<=[)\]>])\s+(?!(?i:is|are|was|or|and|to|does|can|could|may|might)\b).*"
    )
    right = (
        r"\s+(?:is|must be)\s+(?:indeed |clearly )?(?:the )?(?:right|correct|best|answer)"
        r"(?: (?:one|answer|option|choice))?"
    )
    return _Patterns(
        re.compile(
            rf"\s*{noun}(?:{letter}|(?P<lower>{lower})(?=\s*[.)]?\s*$))(?:\s*[.!)]?\s*|(?P<reason>{reason})|(?P<words>{words}))",
            re.DOTALL,
        ),
        re.compile(
            rf"\s*(?:{_CONCLUDING}[,:]?\s+){{0,4}}{noun}{letter}(?:{right})?(?P<reason>{reason})?\s*[.!]?\s*", re.DOTALL
        ),
        re.compile(
            rf"[(\[]\s*(?:{upper}|{lower})\s*[)\]]|(?<![A-Za-z0-9\\'’])(?:{upper}(?<![AI])|[AI](?!\s+[a-z]))(?![A-Za-z0-9'’])"
        ),
        re.compile(
            rf"[ \t>•-]*(?i:(?:option|choice)\s+)?[(\[<]?\s?(?P<letter>{upper}|{lower})\s?(?:[)\]>.:]+|[–—-](?=\s)|$)"
            rf"{_NO_VERB}"
        ),
    )


def choice(text: str, letters: str = "ABCDE") -> str | None:
    r"""Return the letter that a text chooses; None when it chooses none, or more than one.

    The first of these that occurs decides: the last `\boxed{…}`; the last "answer is …"; the whole text, such as
    "(B) Paris"; its last line; its last sentence. Lists of options outside of boxes are passed over. Except for boxes,
    only the last 200,000 characters are searched.
    """
    patterns = _patterns(letters)
    box = _box(text)
    if box is not None:
        return None if box.is_denied() else _given(patterns.phrase, box.content, patterns)
    text = _without_lists(cleaned(text[-TAIL:]), patterns.label)
    statement = _statement(text)
    if statement is not None:
        letter = None if statement.is_denied() else _given(patterns.phrase, statement.content, patterns)
        return None if letter and _begins_list(letter, statement.after) else letter
    tail = text[-MAX_CHARS:].rstrip()
    lines = [line for line in tail.split("\n") if line.strip()]
    above = lines[-2].rstrip() if len(lines) > 1 else "."
    if not lines or tail.endswith("?") or (above[-1:] not in (".", "!", ")") and _NEGATION.search(above)):
        return None  # "All but:" goes on in the last line
    whole = _given(patterns.phrase, tail, patterns) if len(text) <= MAX_CHARS else None
    return whole or _given(patterns.phrase, lines[-1], patterns) or _concluded(tail, patterns)


def _concluded(tail: str, patterns: _Patterns) -> str | None:
    """Return the letter of the last sentence, or of its last clause, unless another sentence chooses another."""
    sentences = [sentence for sentence in _SENTENCE_END.split(tail) if sentence.strip()]
    if not sentences:
        return None
    chosen = {letter for sentence in sentences if (letter := _given(patterns.conclusion, sentence, patterns))}
    last = re.split(r"[,:]\s", sentences[-1])[-1]
    final = _given(patterns.conclusion, sentences[-1], patterns)
    if final is None and re.match(rf"\s*{_CONCLUDING}\b", last):
        final = _given(patterns.conclusion, last, patterns)
    return final if chosen <= {final} else None


def _without_lists(text: str, label: re.Pattern[str]) -> str:
    """Return a text with a full stop in place of each list of options: lines with ascending labels, at least two.

    A line that states an answer belongs to no list.
    """
    lines = text.split("\n")
    lists: list[list[int]] = [[]]
    before, between = "", 0
    for at, line in enumerate(lines):
        match = label.match(line)
        if _STATED.search(line):
            lists.append([])
        elif match is None:
            between += bool(line.strip())
        else:
            letter = match["letter"].upper()
            if letter <= before or between > LINES_BETWEEN:
                lists.append([])
            lists[-1].append(at)
            before, between = letter, 0
    for options in reversed(lists):
        if len(options) > 1:
            lines[options[0] : options[-1] + 1] = ["."]
    return "\n".join(lines)


def _begins_list(letter: str, after: str) -> bool:
    """Return whether the next letter is the label of an option in the same line: "option: A. Rome B. Paris"."""
    label = rf"(?<![A-Za-z0-9'’])[(\[]?{chr(ord(letter) + 1)}[)\].:]+{_NO_VERB}(?=\s)"
    return re.search(label, after.partition("\n")[0]) is not None


def wording(text: str, letters: str = "ABCDE") -> str | None:
    r"""Return the words in which a text gives its answer: the last `\boxed{…}`, the last "answer is …", or all of it.

    None when they are denied or taken back: "not \boxed{Paris}", "I don't think the answer is Paris".
    """
    phrase = _box(text) or _statement(_without_lists(cleaned(text[-TAIL:]), _patterns(letters).label))
    if phrase is None:
        return text
    return None if phrase.is_denied() else phrase.content


def cleaned(text: str) -> str:
    """Return a text without LaTeX and emphasis around its words; what joins or negates in LaTeX becomes "&"."""
    text = text.translate(_FULL_WIDTH)
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return re.sub(r"[ \t]+", " ", text).strip()


@dataclass(frozen=True)
class _Phrase:
    """What a box holds or what is stated, without LaTeX, and the text before and after it."""

    before: str
    content: str
    after: str

    def is_denied(self) -> bool:
        """Say whether its clause has a negation, or what follows takes it back or adds to it."""
        clause = _CLAUSE.split(self.before[-MAX_CHARS:])[-1]
        return bool(_NEGATION.search(clause) or _TAKEN_BACK.search(self.after[:200]))


def _box(text: str) -> _Phrase | None:
    box = boxed_at(text)
    if box is None:
        return None
    before, after = text[max(0, box.start - MAX_CHARS) : box.start], text[box.end : box.end + MAX_CHARS].lstrip("}$ ")
    other = boxed_at(before)
    if other is not None and len(cleaned(before[other.end :])) < len(", and/or"):
        return _Phrase("not", "", "")  # two boxes next to each other
    return _Phrase(cleaned(before), cleaned(box.content), cleaned(after))


def _statement(text: str) -> _Phrase | None:
    """Return the last "answer is …" of a cleaned text; the statement ends with its sentence."""
    found = None
    for found in _STATED.finditer(text):  # noqa: B007 the last one
        pass
    if found is None:
        return None
    rest = text[found.end() : found.end() + MAX_CHARS].lstrip()
    end = next((stop for stop in _SENTENCE_END.finditer(rest) if stop.start()), None)
    content, after = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
    return _Phrase(text[max(0, found.start() - MAX_CHARS) : found.start()], content, after)


def _given(pattern: re.Pattern[str], phrase: str, patterns: _Patterns) -> str | None:
    """Return the letter of a phrase that is nothing but a choice; the words of its option may not name another."""
    found = pattern.fullmatch(phrase) if len(phrase) <= MAX_CHARS else None
    if found is None:
        return None
    groups = found.groupdict()
    words = groups.get("words") or ""
    if _DENIED_OPTION.search(words) or _TAKEN_BACK.search(words) or patterns.mention.search(words):
        return None
    if re.search(r"\b(?:also|as well)\b|\btoo[.!]?$", groups.get("reason") or ""):
        return None
    return (groups["marked"] or groups["bare"] or groups.get("lower") or "").upper() or None
