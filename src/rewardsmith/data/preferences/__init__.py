"""Pairs and groups from scores, rankings and human annotations."""

from rewardsmith.data.preferences.building import Builder, Building, source_of
from rewardsmith.data.preferences.pairs import Group, Pair, Pairing, group_of, pairs_in, pairs_of, read_pairing
from rewardsmith.data.preferences.preparing import Prepared, annotated, prepare, scored
from rewardsmith.data.preferences.translations import Translations, rankings_of

__all__ = [
    "Builder",
    "Building",
    "Group",
    "Pair",
    "Pairing",
    "Prepared",
    "Translations",
    "annotated",
    "group_of",
    "pairs_in",
    "pairs_of",
    "prepare",
    "rankings_of",
    "read_pairing",
    "scored",
    "source_of",
]
