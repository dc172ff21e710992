"""Groups of translations from MQM annotations.

annotations = read_annotations("mqm_newstest2021_zhen.tsv", bad)
for ranking in rankings_of(annotations, "newstest2021", Translations("zh", "en", reference="ref-A")):
    ranking.scores                 # minus the penalty of each candidate: 0 is the best
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rewardsmith.data.mqm import Annotations, Segment
from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.text.judge_prompts import LANGUAGES, language
from rewardsmith.types import Message, Prompt, Ranking

PLACE = "{source}"
"""Where an instruction has the source text."""


@dataclass(frozen=True)
class Translations:
    """What is made of a segment.

    Attributes:
        source_language: a code such as `zh`, or a name; "" where it does not matter.
        target_language: the same.
        instruction: what a translator is asked, with `{source}` where the source text goes.
        reference: the system whose translation is the reference, and no candidate; None for none.
        leave_out: systems that are no candidates.
    """

    source_language: str = ""
    target_language: str = ""
    instruction: str = PLACE
    reference: str | None = None
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if PLACE not in self.instruction:
            raise UserError(f"the instruction {self.instruction[:60]!r} has no {PLACE}: it says where the text goes")
        for code in (self.source_language, self.target_language):
            if code and language(code) is None:
                raise UserError(f"{code!r} is no language that we know.{nearest(code, LANGUAGES)} Use its English name")


def rankings_of(
    annotations: Annotations,
    name: str,
    how: Translations,
    scores: Mapping[tuple[str, str], float] | None = None,
) -> Iterator[Ranking]:
    """Yield a group for each segment with two candidates or more.

    Args:
        annotations: of `read_annotations`.
        name: of the data set; the source of the prompts, and the beginning of their ids.
        how: what is made of a segment.
        scores: by system and segment, instead of what the annotations say; see `read_averages`.

    Raises:
        UserError: there is no such system.
    """
    for system in (*how.leave_out, *([how.reference] if how.reference is not None else [])):
        if system not in annotations.systems:
            known = [printable(known, 40) for known in annotations.systems]
            raise UserError(f"there is no system {system!r}.{nearest(system, known)} There is: {listing(known)}")
    ids = [segment.id for segment in annotations.segments]
    unique = len(set(ids)) == len(ids)
    for segment in annotations.segments:
        found = _scores(segment, scores)
        rated = [system for system in found if system not in (how.reference, *how.leave_out)]
        if len(rated) > 1:
            key = f"{name}-{segment.id}" if unique else f"{name}-{segment.doc}-{segment.id}"
            texts = [segment.outputs[system].text for system in rated]
            marks = [found[system] for system in rated]
            yield Ranking(_prompt(segment, key, name, how, rated), texts, marks)  # type: ignore[arg-type]


def _scores(segment: Segment, scores: Mapping[tuple[str, str], float] | None) -> dict[str, float]:
    penalties = segment.penalties()
    if scores is None:
        return {system: 0.0 - penalty for system, penalty in penalties.items()}
    return {system: scores[system, segment.id] for system in penalties if (system, segment.id) in scores}


def _prompt(segment: Segment, key: str, name: str, how: Translations, rated: list[str]) -> Prompt:
    reference = segment.outputs.get(how.reference) if how.reference is not None else None
    info = {
        "src_text": segment.source,
        "trg_text": reference.text if reference else "",
        "src_lang": how.source_language,
        "trg_lang": how.target_language,
        "systems": rated,
    }
    asked = Message("user", how.instruction.replace(PLACE, segment.source))
    return Prompt(key, [asked], source=name, info=info)
