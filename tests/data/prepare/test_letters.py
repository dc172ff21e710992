"""The letters of an analysis: which are candidates', and how they are renamed."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.data.prepare.letters import AnalysisError, find_mentions

ROTATED = (2, 0, 1)  # of three: A becomes B, B becomes C, C becomes A

RENAMED = [
    ("Translation A is good. Candidate B omits a word.", "Translation B is good. Candidate C omits a word."),
    ("Translations A, B, and C", "Translations B, C, and A"),
    ("translation A, candidate-B, Option #C", "translation B, candidate-C, Option #A"),
    ("A > B = C", "B > C = A"),
    ("**A** ≻ *B*", "**B** ≻ *C*"),
    ("A and C are close; B is worst.", "B and A are close; C is worst."),
    ("both A & B, not A/C", "both B & C, not B/A"),
    ("Compared to B, A reads well.", "Compared to C, B reads well."),
    ("**A**: fluent\n**B**: stiff\nC. wrong", "**B**: fluent\n**C**: stiff\nA. wrong"),
    ("- A: 8\n- B (7)\n- C = 3", "- B: 8\n- C (7)\n- A = 3"),
    ("A 8/10, B 7, C 3", "B 8/10, C 7, A 3"),
    ("| A | 8 |\n| **B** | 7 |", "| B | 8 |\n| **C** | 7 |"),
    ("(A) is best, [B] next", "(B) is best, [C] next"),
    ("B's choice of words; A’s tone", "C's choice of words; B’s tone"),
    ("It beats A in tone, while B fails.", "It beats B in tone, while C fails."),
    ("I prefer A. The next is B", "I prefer B. The next is C"),
    ("### A\nfine\n### B vs. C\n", "### B\nfine\n### C vs. A\n"),
    ("A — the best; C - the worst", "B — the best; A - the worst"),
    ('Candidate "A" and "B"', 'Candidate "B" and "C"'),
    ("译文A比译文B更好，译文C漏译。", "译文B比译文C更好，译文A漏译。"),
    ("B、C都不好", "C、A都不好"),
    # A verb, or a word before which an article would be "An": A is no article.
    ("A is better. A omits it. A keeps it.", "B is better. B omits it. B keeps it."),
    ("A mistranslated the verb.", "B mistranslated the verb."),
    ("A also errs. A, however, does not.", "B also errs. B, however, does not."),
]  # fmt: skip

WORDS = [
    "A good translation keeps the tone. A less literal one does not.",
    "A series of errors. A business text. A useful word. A European idiom.",
    "It writes “A new day” where \"Plan B\" and 'C is best' would do.",
    "原文是“B计划：(A)”",
    "I think I see what I mean.",
    "the translation - A good one (A fine one): A nice one",
    "a b c, ABC, A1, xA, b",
    "Translation\nA good one follows",
]

AMBIGUOUS = [
    "Plan B is an idiom.", "The point B makes", "Vitamin C is", "hepatitis B.", "at 20 °C", "C++", "B-side", "an A.",
    "vitamins A and C", "Sample A is", "Candidates: A-C all fail", "A through C", "Samuel B. Jones", "in 44 B.C. they",
    "From A to Z", "the second translation is best", "Candidate 2 is best", "第二个译文更好", "translation b is best",
    "it quotes “Translation B is best” here", "the letter B is", "the film A Beautiful Mind", "A (rather literal) one",
    "买A股的人补充维生素C", "A更准确", "C good, B bad.", "A clearly worse",
]  # fmt: skip


def test_candidates_are_renamed_all_at_once_and_words_survive() -> None:
    for text, expected in [*RENAMED, *((text, text) for text in WORDS)]:
        assert find_mentions(text, 3).renamed(ROTATED) == expected


def test_what_is_ambiguous_is_refused_and_not_guessed() -> None:
    for text in AMBIGUOUS:
        with pytest.raises(AnalysisError):
            find_mentions(text, 3).renamed(ROTATED)
        assert find_mentions(text, 3).renamed((0, 1, 2)) == text


def test_the_noun_of_the_prompt_is_one_too() -> None:
    text = "Summary A quotes “Summary B”; the point is Summary C. All three summarys err."
    with pytest.raises(AnalysisError):
        find_mentions("Point to Summary B here", 3).renamed(ROTATED)
    assert find_mentions("Point to Summary B here", 3, "Summary").renamed(ROTATED) == "Point to Summary C here"
    for unclear in ("the second summary is best", "Summary 2 is best", "Summary b is best"):
        with pytest.raises(AnalysisError):
            find_mentions(unclear, 3, "Summary").renamed(ROTATED)
    assert find_mentions(text, 3, "Summary").counts_candidates
    assert find_mentions("摘要B更好", 3, "摘要").renamed(ROTATED) == "摘要C更好"


def test_letters_beyond_the_candidates_are_nobodys() -> None:
    assert (
        find_mentions("Translation A beats option D and E.", 2).renamed((1, 0)) == "Translation B beats option D and E."
    )


def test_the_ninth_candidate_is_not_the_speaker() -> None:
    order = (8, *range(8))
    text = "I would say that I > B, and candidate I is best."
    assert find_mentions(text, 9).renamed(order) == "I would say that A > C, and candidate A is best."
    for text in ("B and I agree", "than H in tone"):
        with pytest.raises(AnalysisError):
            find_mentions(text, 9).renamed(order)


def test_who_is_mentioned() -> None:
    for text, named, counted in (
        ("A is better than B.", {0, 1}, False),
        ("A good idea, vitamin C.", set[int](), False),
        ("All three translations fail; C > A", {0, 2}, True),
        ("The 4 candidates differ", set[int](), True),
        ("The two candidates differ", set[int](), False),
        ("四个译文都不好", set[int](), True),
    ):
        mentions = find_mentions(text, 4)
        assert (mentions.named, mentions.counts_candidates) == (named, counted)


TOKENS = (". ", ", ", "is ", "and ", "good ", "Text ")
PIECES = [*(text for text, _ in RENAMED), *WORDS, *AMBIGUOUS, *TOKENS, *"ABCI \n\"'()*:->的"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, order=st.permutations(range(3)) | st.permutations(range(9)))
def test_renaming_and_back_is_the_identity_or_is_refused(text: str, order: list[int]) -> None:
    count = len(order)
    try:
        there = find_mentions(text, count).renamed(order)
    except AnalysisError:
        return
    back = [order.index(i) for i in range(count)]
    mentions = find_mentions(there, count)
    assert mentions.places == find_mentions(text, count).places or order == sorted(order)
    assert mentions.renamed(back) == text
    assert len(there) == len(text)


@pytest.mark.parametrize(
    "text",
    ["A" * 10**6, "A " * 10**4, '"' * 10**4, "'" * 10**4 + "A", "A, " * 10**4, "translation " * 10**4, "** A " * 10**4],
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    started = time.monotonic()
    find_mentions(text, 26)
    assert time.monotonic() - started < 120
