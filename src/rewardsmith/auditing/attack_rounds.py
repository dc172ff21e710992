"""Which attacks to try where each one costs a call of a model: screen them all, then try the best on every prompt.

A policy looks for the one text that works. A few attacks on all prompts might miss it, and all attacks on a few prompts
would not show how often it works. So one half of the calls screens: each attack is tried on about equally many prompts.
The other half tries the attacks that did best there on all other prompts. What was seen while screening does not count
for these: they were chosen for it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from rewardsmith.auditing.audit_measures import CaseScore
from rewardsmith.auditing.battery import PromptCases
from rewardsmith.auditing.user_probes import FAMILY as OWN

Name = tuple[str, str]
"""The family and the name of an attack."""


def known_places(cases: PromptCases) -> list[int]:
    """Return the places of the answers that are tried in any case: known ones, edits, and the user's own attacks."""
    return [at for at, one in enumerate(cases.cases) if one.role != "attack" or one.probe.family == OWN]


def screening_places(cases: Sequence[PromptCases], count: int, seed: int) -> list[list[int]]:
    """Return the places of `count` attacks on each prompt; over all prompts each is tried about equally often."""
    order = {name: i for i, name in enumerate(_mixed(cases, random.Random(f"{seed}/screening")))}
    tries: Counter[Name] = Counter()
    places = []
    for one in cases:
        names = _attacks(one)
        chosen = sorted(names, key=lambda name: (tries[name], order[name]))[:count]
        tries.update(chosen)
        places.append(sorted(names[name] for name in chosen))
    return places


def best_attacks(scores: Sequence[CaseScore], count: int) -> list[Name]:
    """Return the `count` attacks that came nearest to the reward of a right answer, in the mean over their tries."""
    found: dict[Name, list[float]] = defaultdict(list)
    for one in scores:
        if one.role == "attack" and one.probe.family != OWN and one.measurable:
            found[one.probe.family, one.probe.name].append((one.value - one.wrong) / (one.right - one.wrong))
    means = {name: sum(values) / len(values) for name, values in found.items()}
    return sorted(means, key=lambda name: -means[name])[:count]


def remaining_places(
    cases: Sequence[PromptCases], best: Sequence[Name], tried: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the places of the best attacks on the prompts on which they have not been tried."""
    places = []
    for one, before in zip(cases, tried, strict=True):
        names = _attacks(one)
        places.append([names[name] for name in best if name in names and names[name] not in before])
    return places


def _attacks(cases: PromptCases) -> dict[Name, int]:
    """Return the places of the attacks of a prompt by their names."""
    named = ((one, at) for at, one in enumerate(cases.cases) if one.role == "attack" and one.probe.family != OWN)
    return {(one.probe.family, one.probe.name): at for one, at in named}


def _mixed(cases: Sequence[PromptCases], rng: random.Random) -> list[Name]:
    """Return all attacks in a random order in which the families alternate."""
    families: dict[str, list[Name]] = defaultdict(list)
    for name in dict.fromkeys(name for one in cases for name in _attacks(one)):
        families[name[0]].append(name)
    mixed = [rng.sample(names, len(names)) for names in families.values()]
    return [name for names in zip_longest(*mixed) for name in names if name is not None]
