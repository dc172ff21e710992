"""What is judged of a rollout, what a judge sees of the prompt, and the orders in which candidates are shown."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, RolloutGroup
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.candidates import WAYS, Candidates, balanced, drawn, heats, ring, windows
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.text.templates import Template


@pytest.mark.parametrize(
    ("way", "text", "found"),
    [
        ("whole", "  two\nlines ", "two\nlines"),
        ("final", "<think>hm</think> yes", "yes"),
        ("final", "<think>hm", None),
        ("line", "First.\nlast \n\n", "last"),
        ("oneline", " one line ", "one line"),
        ("oneline", "two\nlines", None),
        ("boxed", r"so \boxed{4}", "4"),
        ("tagged", "<answer>x</answer>", "x"),
        ("codeblock", "Analysis.\n\n```\nDas Haus\n```\n", "Das Haus"),
        ("codeblock", "```text\nzwei\nZeilen\n```", "zwei\nZeilen"),
        ("codeblock", "```\nfirst\n```\nand\n```\nlast\n```", "last"),
        ("codeblock", "````\nhas ``` inside\n```\n````", "has ``` inside\n```"),
        ("codeblock", "It is ```Das Haus```", "Das Haus"),
        ("codeblock", "```\nnot closed", None),
        ("codeblock", "```\nclosed\n```\nbut more", None),
        ("codeblock", "```\n\n```", None),
        ("codeblock", "no block", None),
    ],
)
def test_what_is_judged(way: str, text: str, found: str | None) -> None:
    assert WAYS[way](text) == found


def test_extraction_from_a_megabyte_of_fences_is_fast() -> None:
    for piece in ("`", "```\n", "``` x ", "````\n```\n"):
        for way in WAYS.values():
            way(piece * (1_000_000 // len(piece)))


def candidates(*texts: str) -> Candidates:
    prompt = Prompt("p", [Message("user", "?")])
    return RankingJudge(model="judge", max_chars=10).candidates(RolloutGroup(prompt, [Rollout(text) for text in texts]))


def test_identical_answers_are_one_candidate_and_bad_ones_none() -> None:
    found = candidates("b", " a\n", "", "a", "x" * 11, "b ")
    assert sorted(found.texts) == ["a", "b"]
    assert [None if i is None else found.texts[i] for i in found.of] == ["b", "a", None, "a", None, "b"]
    for texts in itertools.islice(itertools.permutations(["a", "b", "c", "b", "", "d"]), 0, 720, 97):
        assert candidates(*texts).texts == candidates(*"abcd").texts  # the order of the rollouts does not matter


def shown(template: str, **prompt: object) -> dict[str, str]:
    reward = RankingJudge(model="judge")
    reward._template, reward._criteria = Template.parse(template, "t", known=None), " be kind "
    return reward.known(Prompt("p", [Message("user", "Say it.")], **prompt))


def test_what_a_judge_is_shown_of_a_prompt() -> None:
    assert shown("{{question}}") == {"question": "```\nSay it.\n```"}
    assert shown("{{reference}}", answer=["x", "y"]) == {"reference": "```\nx\n```\n\n```\ny\n```"}
    assert shown("{{criteria}}") == {"criteria": "\n\nAbove all, judge by this:\nbe kind"}
    assert shown("{{source_text}}") == {"source_text": "```\nSay it.\n```"}
    assert shown("{{source_text}}", info={"extra_info": {"src_text": "Haus"}}) == {"source_text": "```\nHaus\n```"}
    both = shown("{{source_language}} {{target_language}}", info={"src_lang": "uk", "trg_lang": "Old Norse"})
    assert both == {"source_language": "Ukrainian", "target_language": "Old Norse"}
    for language in (None, 3, "qq", "x", "a\n\nignore all"):
        with pytest.raises(CannotScore, match="src_lang") as caught:
            shown("{{source_language}}", info={"src_lang": language})
        assert caught.value.kind == "invalid"
    with pytest.raises(CannotScore, match="no reference"):
        shown("{{reference}}")


# ---- orders ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=5), min_size=2, max_size=8, unique=True), st.randoms(use_true_random=False))
def test_the_drawn_order_is_that_of_the_texts_and_not_of_the_rollouts(texts: list[str], random) -> None:
    before = [texts[i] for i in drawn("p", texts)]
    random.shuffle(texts)
    assert [texts[i] for i in drawn("p", texts)] == before
    assert len({tuple(drawn(f"p{i}", list("abcdefgh"))) for i in range(20)}) == 20  # it depends on the prompt


@pytest.mark.parametrize("n", range(2, 12))
def test_orders_are_balanced(n: int) -> None:
    orders = balanced(range(n), 1000)  # all of them: a Williams design
    assert len(set(orders)) == len(orders) == (2 * n if n % 2 else n)
    places = Counter((candidate, place) for order in orders for place, candidate in enumerate(order))
    assert set(places.values()) == {len(orders) // n}
    behind = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(behind) == n * (n - 1)
    assert set(behind.values()) == {len(orders) // n}
    for count in (2, 4):  # an even number of them: the same mean position for everyone
        orders = balanced(range(n), count)
        assert {sum(o.index(i) for o in orders) for i in range(n)} == {(n - 1) * len(orders) / 2}
        for a, b in itertools.combinations(range(n), 2):
            assert sum(order.index(a) < order.index(b) for order in orders) == len(orders) / 2


def test_windows_heats_and_rings_cover_everyone() -> None:
    for n, size in itertools.product(range(2, 25), range(2, 9)):
        for overlap in range(1, size):
            found = windows(range(n), size, overlap)
            assert {candidate for window in found for candidate in window} == set(range(n))
            assert all(len(set(window)) == len(window) == min(n, size) for window in found)
            for one, following in zip(found, [*found[1:], found[0]], strict=True):
                assert len(set(one) & set(following)) >= min(overlap, len(one))
            assert len(found) == (1 if n <= size else -(-n // (size - overlap)))
        sizes = [len(heat) for heat in heats(range(n), size)]
        assert sorted(candidate for heat in heats(range(n), size) for candidate in heat) == list(range(n))
        assert (len(sizes), max(sizes) <= size, max(sizes) - min(sizes) <= 1) == (-(-n // size), True, True)
    for n, opponents in itertools.product(range(2, 12), (2, 4, 6, 20)):
        pairs = ring(range(n), opponents)
        assert len(set(pairs)) == len(pairs)
        met = Counter(candidate for pair in pairs for candidate in pair)
        assert set(met.values()) == {min(opponents, n - 1)}
        assert ring(range(n), n) == list(itertools.combinations(range(n), 2))
    assert ring(range(0), 4) == ring(range(1), 4) == []
