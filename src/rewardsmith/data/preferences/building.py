"""Rows of pairs, or of groups, from rankings: what `rewardsmith prepare preferences` writes.

    builder = Builder(Building(Pairing("adjacent"), chat=True))
    for ranking in rankings:
        for row in builder.rows(ranking, "scores.jsonl, line 1"):
            write(row)
    builder.counts                     # groups, pairs, ties, … so far

Pairs are in the form that TRL reads, too: `prompt`, `chosen` and `rejected`, as text or, with `chat`, as messages.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rewardsmith.data.preferences.pairs import Group, Pair, Pairing, draw, group_of, key_of, pairs_in
from rewardsmith.data.rows import RowError
from rewardsmith.errors import UserError
from rewardsmith.text.rankings import MAX_CANDIDATES
from rewardsmith.types import Prompt, Ranking

Margins = Literal["raw", "share", "none"]
To = Literal["preferences", "rankings"]

_TRANSLATION = ("src_text", "trg_text", "src_lang", "trg_lang")


@dataclass(frozen=True)
class Building:
    """What is made of rankings.

    Attributes:
        pairing: which pairs of a group.
        to: pairs, or the groups themselves.
        margins: of pairs: the difference of the scores, divided by `unit`; its share of the difference between the best
            and the worst of the group; or none, which is 0.
        unit: what counts as a margin of 1.
        most_per_source: pairs of one source text, in all its groups; None for no limit. The first groups of the source
            are served first, so that this alone depends on the order of the rows.
        group_size: cut groups into parts of at most so many candidates; None leaves them whole.
        chat: write messages instead of text.
        seed: decides what is drawn.
    """

    pairing: Pairing = field(default_factory=Pairing)
    to: To = "preferences"
    margins: Margins = "raw"
    unit: float = 1.0
    most_per_source: int | None = None
    group_size: int | None = None
    chat: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.margins not in get_args(Margins):
            raise UserError(f"margins is {self.margins!r}: one of {', '.join(get_args(Margins))}")
        if not 0 < self.unit < math.inf:
            raise UserError(f"the unit of margins is {self.unit}: a number above 0")
        if self.unit != 1 and self.margins != "raw":
            raise UserError(f"margins = {self.margins} has no unit: leave it out")
        if self.group_size is not None and not 2 <= self.group_size <= MAX_CANDIDATES:
            raise UserError(f"the size of groups is {self.group_size}: 2 to {MAX_CANDIDATES}")
        if self.most_per_source is not None and self.most_per_source < 1:
            raise UserError(f"the most per source is {self.most_per_source}: at least 1")


def source_of(prompt: Prompt) -> str:
    """Return what decides on which side of a split a prompt is: the text to translate, or all that was said."""
    text = prompt.info.get("src_text")
    if isinstance(text, str) and text.strip():
        return text.strip()
    return "\n\n".join(message.content.strip() for message in prompt.messages if message.role != "system")


class Builder:
    """Makes rows.

    Args:
        building: what is made.
        repeats: whether a group may be there twice, as a short sentence is in a talk: then it is left out and counted.

    Attributes:
        counts: how many groups, candidates, copies, pairs, ties … there were so far.
    """

    def __init__(self, building: Building, *, repeats: bool = False) -> None:
        self.building = building
        self._repeats = repeats
        self.counts: Counter[str] = Counter()
        self._taken: Counter[bytes] = Counter()
        self._seen: dict[bytes, str] = {}
        self._translates: bool | None = None

    def rows(self, ranking: Ranking, where: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a group; all rows have the same fields.

        Args:
            ranking: the group.
            where: its place in the input, for messages and for the rows' provenance.

        Raises:
            RowError: the group was there before, or cannot be written.
        """
        group = group_of(ranking.candidates, ranking.scores.tolist())
        if not math.isfinite((max(group.scores) - min(group.scores)) / self.building.unit):
            raise RowError("the scores are so far apart that their difference is no number: scale them")
        if not self._is_new(ranking.prompt, group, where):
            self.counts["repeated groups"] += 1
            return
        prompt = self._asked(ranking.prompt)
        copies = len(ranking.candidates) - len(group.candidates)
        self.counts.update(groups=1, candidates=len(ranking.candidates), **{"copies merged": copies})
        if len(group.candidates) < 2:
            self.counts["groups of one text"] += 1
            return
        make = self._pairs if self.building.to == "preferences" else self._groups
        yield from make(ranking, group, {"id": "", "data_source": ranking.prompt.source, "prompt": prompt}, where)

    def _pairs(self, ranking: Ranking, group: Group, row: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
        systems = _systems(ranking)
        told = _translation(ranking.prompt)
        for pair in self._chosen(ranking, group):
            answers = (group.candidates[pair.chosen], group.candidates[pair.rejected])
            chosen, rejected = ([{"role": "assistant", "content": t}] if self.building.chat else t for t in answers)
            origins = {side: group.origins[at] for side, at in (("chosen", pair.chosen), ("rejected", pair.rejected))}
            yield row | {
                "id": f"{ranking.prompt.id}-{origins['chosen'][0]}-{origins['rejected'][0]}",
                "chosen": chosen,
                "rejected": rejected,
                "margin": self._margin(pair, group),
                "tied": pair.margin == 0,
                "extra_info": {
                    "group": ranking.prompt.id,
                    "row": where,
                    "chosen_score": group.scores[pair.chosen],
                    "rejected_score": group.scores[pair.rejected],
                    **{f"{side}_places": list(places) for side, places in origins.items()},
                    **{f"{side}_system": _named(systems, places) for side, places in origins.items()},
                    **told,
                },
            }

    def _chosen(self, ranking: Ranking, group: Group) -> list[Pair]:
        """Return the pairs of a group that are taken, and count them."""
        key = key_of(ranking, self.building.seed)
        pairs = pairs_in(group, self.building.pairing, key)
        if self.building.most_per_source is not None:
            source = hashlib.blake2b(source_of(ranking.prompt).encode(), digest_size=16).digest()
            left = self.building.most_per_source - self._taken[source]
            kept = draw(pairs, max(0, left), f"most {key}")
            self._taken[source] += len(kept)
            self.counts["pairs above the most per source"] += len(pairs) - len(kept)
            pairs = kept
        ties = sum(pair.margin == 0 for pair in pairs)
        self.counts.update({"pairs": len(pairs), "ties": ties, "groups without a pair": not pairs})
        return pairs

    def _margin(self, pair: Pair, group: Group) -> float:
        if self.building.margins == "none":
            return 0.0
        unit = self.building.unit if self.building.margins == "raw" else max(group.scores) - min(group.scores)
        return pair.margin / unit if pair.margin else 0.0

    def _groups(self, ranking: Ranking, group: Group, row: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
        translates = "src_text" in ranking.prompt.info
        self._translates = translates if self._translates is None else self._translates
        if translates != self._translates:
            raise RowError("some rows have a src_text and others have none: prepare the two kinds apart")
        systems = _systems(ranking)
        shown = [i for i, text in enumerate(group.candidates) if text.strip()]
        self.counts["blank candidates"] += len(group.candidates) - len(shown)
        parts = self._parts(group.only(shown), key_of(ranking, self.building.seed)) if len(shown) > 1 else []
        self.counts["groups written"] += len(parts)
        for number, part in enumerate(parts):
            scores = [float(f"{score:.6g}") for score in part.scores]  # as many digits as a judge writes
            self.counts["scores made equal by rounding"] += len({*part.scores}) - len({*scores})
            yield row | {
                "id": ranking.prompt.id if len(parts) == 1 else f"{ranking.prompt.id}-part{number}",
                **(_translation(ranking.prompt) if translates else {}),
                "mt_texts" if translates else "candidates": list(part.candidates),
                "scores": scores,
                # It speaks of the candidates by the letters that they had.
                "analysis": ranking.analysis if part.candidates == tuple(ranking.candidates) else "",
                "extra_info": {
                    "group": ranking.prompt.id,
                    "row": where,
                    "places": [list(places) for places in part.origins],
                    "systems": [_named(systems, places) for places in part.origins],
                },
            }

    def _parts(self, group: Group, key: str) -> list[Group]:
        """Return a group in parts of at most so many candidates; one that is left over alone is in none of them."""
        size, count = self.building.group_size, len(group.candidates)
        if size is None or count <= size:
            if count > MAX_CANDIDATES:
                raise RowError(
                    f"{count} different candidates: at most {MAX_CANDIDATES} have a letter; use --group-size"
                )
            return [group]
        order = sorted(range(count), key=lambda i: group.candidates[i])
        random.Random(f"parts {key}").shuffle(order)
        parts = [order[at : at + size] for at in range(0, count, size)]
        self.counts["left over"] += sum(len(part) == 1 for part in parts)
        return [group.only(sorted(part)) for part in parts if len(part) > 1]

    def _asked(self, prompt: Prompt) -> str | list[dict[str, str]]:
        if self.building.chat:
            return [{"role": message.role, "content": message.content} for message in prompt.messages]
        if len(prompt.messages) != 1 or prompt.messages[0].role != "user":
            raise RowError(f"the prompt has {len(prompt.messages)} messages: text is one of the user; use --chat")
        return prompt.messages[0].content

    def _is_new(self, prompt: Prompt, group: Group, where: str) -> bool:
        """Whether this group, in whatever order, was not there before; a `RowError` if it must not be."""
        said = [(message.role, message.content) for message in prompt.messages]
        held = repr((said, sorted(zip(group.candidates, group.scores, strict=True))))
        key = hashlib.blake2b(held.encode(), digest_size=16).digest()
        other = self._seen.get(key)
        if other is not None and not self._repeats:
            raise RowError(f"the same prompt, candidates and scores as in {other}: leave one of the two out")
        self._seen.setdefault(key, where)
        return other is None


def _systems(ranking: Ranking) -> tuple[str, ...]:
    """Return who wrote the candidates, where the prompt says."""
    found = ranking.prompt.info.get("systems")
    if not isinstance(found, tuple) or len(found) != len(ranking.candidates):
        return ()
    return found if all(isinstance(name, str) for name in found) else ()


def _named(systems: Sequence[str], places: Sequence[int]) -> str:
    """Return who wrote a text; "" where that is not known, so that a column has one type in all rows."""
    return ", ".join(systems[i] for i in places) if systems else ""


def _translation(prompt: Prompt) -> dict[str, str]:
    """Return what a judge of translations is told, "" for what is not known."""
    info: Mapping[str, Any] = prompt.info
    return {name: info[name] if isinstance(info.get(name), str) else "" for name in _TRANSLATION}
