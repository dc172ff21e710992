"""What becomes of one row of the input; several processes may do this."""

from __future__ import annotations

import hashlib
import json
import marshal
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rewardsmith.data.gqm.building import Origin, RowBuilder
from rewardsmith.data.gqm.inputs import Raw
from rewardsmith.data.gqm.settings import GqmSettings
from rewardsmith.data.gqm.variants import Variant, variants_of
from rewardsmith.data.preparing.splitting import source_key
from rewardsmith.data.rows import RowError
from rewardsmith.types import Ranking

SPLITS = ("train", "held-out")


@dataclass(frozen=True)
class Made:
    """What became of a group.

    Attributes:
        key: a hash of source, candidates and scores, of 64 bits.
        name: a hash of its id, of 64 bits.
        id: of the group.
        split: 0 for train, 1 for held-out.
        twins: whether one text stands there twice.
        tied: whether all scores are equal.
        records: a key that decides about the order, and the row, packed.
        kinds: how many rows of each kind there are.
        dropped: how many variants were left out, by reason.
    """

    key: int
    name: int
    id: str
    split: int
    twins: bool
    tied: bool
    records: list[tuple[int, bytes]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


class Maker:
    """Reads a row and makes rows of it. What comes out depends on the row, the seed and the settings alone.

    Args:
        settings: what is made.
        limit: the source key below which sources are held out.
    """

    def __init__(self, settings: GqmSettings, limit: int) -> None:
        self._settings, self._limit = settings, limit
        self._builder = RowBuilder(
            settings.form,
            settings.ranking_template,
            settings.verdicts,
            criteria=settings.criteria,
            data_source=settings.data_source,
            keep_subgroups=settings.keep_subgroups,
        )
        self._seed = settings.seed.to_bytes(16, "big", signed=True)

    def make(self, raw: Raw, *, only_check: bool) -> Made | RowError:
        """Return what becomes of a row, or what is wrong with it.

        Args:
            raw: as it was found.
            only_check: make no rows: there will be no output.
        """
        try:
            group = self._settings.reader.read(raw.row(), raw.name)
        except RowError as error:
            return error
        content = group.prompt.messages[0].content
        source = source_key(content)
        digest = json.dumps([content, group.candidates, group.scores.tolist()]).encode()
        digest = hashlib.blake2b(digest, digest_size=16).digest()
        made = Made(
            key=_hash(digest, b"", b"gqm group"),
            name=_hash(group.prompt.id.encode(), b"", b"gqm id"),
            id=group.prompt.id,
            split=int(source < self._limit),
            twins=len(set(group.candidates)) < len(group.candidates),
            tied=len(set(group.scores.tolist())) == 1,
        )
        if only_check:
            return made
        origin = Origin(raw.file, raw.number, f"{source:016x}", SPLITS[made.split])
        self._builder.dropped.clear()
        for variant, row in self._builder.rows(group, self._variants(group, made.split, digest), origin):
            made.kinds[variant.kind] += 1
            order = _hash(digest + bytes(variant.order), self._seed, b"gqm order")
            made.records.append((order, marshal.dumps(row)))
        made.dropped.update(self._builder.dropped)
        return made

    def _variants(self, group: Ranking, split: int, digest: bytes) -> Iterator[Variant]:
        settings = self._settings
        augment = split == 0 or settings.augment_held_out
        return variants_of(
            len(group.candidates),
            subgroups=settings.subgroups if augment else 0,
            shuffles=settings.shuffles if augment else 0,
            rng=random.Random(_hash(digest, self._seed, b"gqm variants")),
        )


def _hash(what: bytes, seed: bytes, purpose: bytes) -> int:
    """Return a number of 64 bits."""
    return int.from_bytes(hashlib.blake2b(what, digest_size=8, key=seed, person=purpose).digest(), "big")


__all__ = ["SPLITS", "Made", "Maker"]
