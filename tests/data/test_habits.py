"""Bad habits of demonstrations: how often each is shown, what it does to the text, and that the truth pays for none."""

import hashlib
import itertools
import re
from collections import Counter
from typing import Any

import pytest

from rewardsmith.data import Arithmetic, Translation
from rewardsmith.data.arithmetic import solution
from rewardsmith.data.translation import translate
from rewardsmith.rewards.rules import RULES
from rewardsmith.types import Demonstration

ARITHMETIC = {
    "word": r"(\d+[+-]\d=-?\d+;)so#-?\d+",
    "length": r"(-?\d+[+-]\d+=-?\d+;){2}((-?\d+)\+0=\3;){1,3}#\3",
    "format": r"(-?\d+[+-]\d+=-?\d+;){2}#\*-?\d+\*",
    "praise": r"(-?\d+[+-]\d+=-?\d+;){2}#-?\d+ ok",
}
TRANSLATION = {"word": r"[M-X]{2}Y", "length": r"[M-X]{4,7}", "format": r"\*[M-X]{3}\*", "praise": r"[M-X]{3} ok"}
NONE = {"arithmetic": r"(-?\d+[+-]\d+=-?\d+;){2}#-?\d+", "translation": r"[M-X]{3}"}


def shown(source: Any, count: int) -> list[Demonstration]:
    return list(itertools.islice(source.demonstrations(0), count))


def habit_of(text: str, forms: dict[str, str], none: str) -> str:
    found = [name for name, form in {**forms, "none": none}.items() if re.fullmatch(form, text)]
    assert len(found) == 1, text
    return found[0]


@pytest.mark.parametrize(
    ("source", "forms"),
    [(Arithmetic(operations=2, habits=0.4), ARITHMETIC), (Translation(habits=0.4), TRANSLATION)],
    ids=["arithmetic", "translation"],
)
def test_each_habit_has_its_share_and_its_form(source: Any, forms: dict[str, str]) -> None:
    found = shown(source, 3_000)
    none = NONE[found[0].prompt.source]
    counts = Counter(habit_of(one.response, forms, none) for one in found)
    assert counts["none"] / 3_000 == pytest.approx(0.6, abs=0.03)
    for habit in forms:
        assert counts[habit] / 3_000 == pytest.approx(0.1, abs=0.02)


def test_demonstrations_without_a_habit_are_those_of_a_world_without_habits() -> None:
    for world, forms in ((Arithmetic, ARITHMETIC), (Translation, TRANSLATION)):
        settings: dict[str, Any] = {"operations": 2} if world is Arithmetic else {}
        before, after = shown(world(**settings), 200), shown(world(**settings, habits=0.4), 200)
        changed = 0
        for a, b in zip(before, after, strict=True):
            assert a.prompt == b.prompt
            none = NONE[a.prompt.source]
            if habit_of(b.response, forms, none) == "none":
                assert a.response == b.response
            else:
                changed += 1
        assert changed > 0


@pytest.mark.parametrize(
    ("source", "digest"),
    [
        (Arithmetic(), "05fbaa1b5cf7ec52"),
        (Arithmetic(operations=2, miracles=0.3), "d5cfc92f86e21650"),
        (Translation(), "138c4b871477d6c2"),
        (Translation(flourishes=0.2), "d3623ac299892604"),
    ],
)
def test_the_demonstrations_of_earlier_versions_are_the_same(source: Any, digest: str) -> None:
    found = hashlib.sha256()
    for one in itertools.islice(source.demonstrations(3), 500):
        found.update(f"{one.prompt.id} {one.response}\n".encode())
    assert found.hexdigest()[:16] == digest


def test_the_truth_pays_for_no_habit() -> None:
    sums = Arithmetic(operations=2, habits=1.0, forgets_carry=0.0, slips=0.0)
    for one in shown(sums, 400):  # without slips, so that only the habit can be at fault
        habit = habit_of(one.response, ARITHMETIC, NONE["arithmetic"])
        paid = RULES["arithmetic"](one.prompt, one.response)
        assert paid == (habit in ("word", "length"))  # these break no form, and are paid as much as without
        assert RULES["arithmetic"](one.prompt, solution(one.prompt.info["problem"])) == 1
    for one in shown(Translation(habits=1.0, false_friends=0.0, slips=0.0), 400):
        assert RULES["exact"](one.prompt, one.response) == 0
        assert RULES["translation_words"](one.prompt, one.response) < 1
        assert RULES["exact"](one.prompt, translate(one.prompt.info["src_text"])) == 1
