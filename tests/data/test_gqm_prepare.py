"""From groups to rows: the schema, the words of prompts and answers, provenance, augmentation, splits and order."""

import asyncio
import hashlib
import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, UserError
from rewardsmith.data import Jsonl, Parquet
from rewardsmith.data.gqm import GroupColumns
from rewardsmith.data.gqm.building import CANNOT_RENAME, NAMES_LEFT_OUT
from rewardsmith.data.gqm.seen import Seen
from rewardsmith.data.preparing.splitting import limit_of_count, limit_of_share, source_key
from rewardsmith.rewards.accuracy.ranking import RankingAccuracy
from rewardsmith.rewards.judges.ranking import Ranking
from rewardsmith.text.judge_prompts import RankingFormat
from rewardsmith.text.rankings import letters_of, parse_ranking
from tests.data.gqm_rows import prepare, read_rows, row
from tests.rewards.models import Scripted

KINDS = pytest.mark.parametrize("kind", ["jsonl", "parquet"])
NASTY = ["a ``` fence\n```\nTranslation B:\n```", "<|im_end|> {{task}} \\1 {0}", "  spaces around  ", "普通"]
FULL = {"subgroups": 4, "shuffles": 4}


# ---- the schema ---------------------------------------------------------------------------------------------------


def test_an_rl_row(tmp_path: Path) -> None:
    (made,), _ = prepare(tmp_path, [row(5)])
    prompt = made.pop("prompt")
    assert [message["role"] for message in prompt] == ["user"]
    assert made == {
        "id": "in-1/AB",
        "data_source": "gqm",
        "ability": "ranking",
        "reward_model": {"style": "rule", "ground_truth": '{"A": 5, "B": 8}'},
        "extra_info": {
            "split": "train",
            "index": 1,
            "file": str(tmp_path / "in.jsonl"),
            "group": "in-1",
            "source": f"{source_key('原文 5'):016x}",
            "src_lang": "zh",
            "trg_lang": "en",
            "output": "both",
            "variant": "original",
            "candidates": [0, 1],
            "permutation": [0, 1],
            "scores": [5.0, 8.0],
            "mt_texts": ["translation 5 by a", "translation 5 by b"],
            "analysis": row()["analysis"],
        },
    }


def test_an_sft_row(tmp_path: Path) -> None:
    (made,), _ = prepare(tmp_path, [row(5, analysis="A omits a word.\n\nB > A")], form="sft", data_source="cold")
    user, assistant = made.pop("messages")
    assert (user["role"], assistant["role"]) == ("user", "assistant")
    assert assistant["content"] == "A omits a word.\n\n### Final Ranking:\n\nB > A\n\n### Scores:\n\nB: 8, A: 5\n"
    assert (made["id"], made["data_source"]) == ("in-1/AB", "cold")
    assert set(made["extra_info"]) >= {"file", "index", "group", "source", "variant", "candidates", "permutation"}


@KINDS
@pytest.mark.parametrize("form", ["sft", "rl"])
def test_every_row_has_every_field(tmp_path: Path, kind: str, form: str) -> None:
    rows, _ = prepare(tmp_path, [row(i, 2 + i % 3) for i in range(40)], kind=kind, form=form, **FULL)

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shape(inner) for name, inner in value.items()}
        return [shape(value[0])] if isinstance(value, list) else type(value)

    assert len({json.dumps(shape(one), default=str) for one in rows}) == 1


@KINDS
def test_our_own_sources_read_them(tmp_path: Path, kind: str) -> None:
    source = {"jsonl": Jsonl, "parquet": Parquet}[kind]
    rows, _ = prepare(tmp_path, [row(i, 3) for i in range(5)], kind=kind, form="sft", shuffles=2)
    files = source(path=str(tmp_path / f"out.{kind}"), shuffle=False)
    files.check(of="demonstrations")
    shown = list(files.demonstrations(seed=0))
    assert [one.prompt.id for one in shown] == [one["id"] for one in rows]
    assert [one.response for one in shown] == [one["messages"][1]["content"] for one in rows]
    assert shown[0].prompt.messages == (Message("user", rows[0]["messages"][0]["content"]),)

    rows, _ = prepare(tmp_path, [row(i, 3) for i in range(5)], kind=kind, shuffles=2)
    files.check()
    prompts = list(files.prompts(seed=0))
    assert [one.answer for one in prompts] == [one["reward_model"]["ground_truth"] for one in rows]
    assert prompts[0].source == "gqm"


@pytest.mark.parametrize(
    ("output", "truth", "answer"),
    [
        ("both", '{"A": 3, "B": 3, "C": 8}', "### Final Ranking:\n\nC > A = B\n\n### Scores:\n\nC: 8, A: 3, B: 3\n"),
        ("ranking", "C > A = B", "### Final Ranking:\n\nC > A = B\n"),
        ("scores", '{"A": 3, "B": 3, "C": 8}', "A: 3, B: 3, C: 8\n"),
    ],
)
def test_what_the_judge_writes(tmp_path: Path, output: Any, truth: str, answer: str) -> None:
    given = [row(0, 3, scores=[3, 3, 8], analysis="Because.")]
    (made,), _ = prepare(tmp_path, given, verdicts=RankingFormat(output))
    assert made["reward_model"]["ground_truth"] == truth
    (made,), _ = prepare(tmp_path, given, verdicts=RankingFormat(output), form="sft")
    assert made["messages"][1]["content"] == f"Because.\n\n{answer}"


# ---- the words are those of the reward ----------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["both", "ranking", "scores"])
@pytest.mark.parametrize("asks", [False, True])
def test_prompts_are_byte_for_byte_what_the_ranking_reward_asks(tmp_path: Path, output: Any, asks: bool) -> None:
    how: dict[str, Any] = {"criteria": "the tone", "verdicts": RankingFormat(output, 0, 20)}
    if asks:
        given = {"prompt": "Why {{candidates}} ```?", "mt_texts": NASTY, "scores": [1, 2, 3, 4]}
        rows, _ = prepare(tmp_path, [given], columns=GroupColumns(question="prompt"), shuffles=23, **how)
        prompt = Prompt("p", [Message("user", given["prompt"])])
    else:
        given = row(0, 4, src_text="原文 ``` {{source_language}}\n", mt_texts=NASTY)
        rows, _ = prepare(tmp_path, [given], shuffles=23, **how)
        prompt = Prompt(
            "p", [Message("user", "x")], info={key: given[key] for key in ("src_text", "src_lang", "trg_lang")}
        )
    assert len(rows) == 24
    model = Scripted(lambda question: "no verdict")
    reward = Ranking(
        model="judge",
        template="ranking" if asks else "ranking_translation",
        criteria="the tone",
        output=output,
        highest=20,
    )
    reward.connect({"judge": model}.__getitem__)
    asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text) for text in NASTY])))
    asked = tuple((message.role, message.content) for message in model.asked[0].prompt)
    made = [tuple((message["role"], message["content"]) for message in one["prompt"]) for one in rows]
    assert made.count(asked) == 1  # the candidates stand there in the order that the reward has drawn


@pytest.mark.parametrize("output", ["both", "ranking", "scores"])
def test_every_answer_is_read_back_exactly(tmp_path: Path, output: Any) -> None:
    rng = random.Random(0)
    given = [row(i, 2 + i % 25, scores=[rng.randint(-50, 50) / 10 for _ in range(2 + i % 25)]) for i in range(60)]
    verdicts = RankingFormat(output, -5, 5, True)
    rows, _ = prepare(tmp_path, given, form="sft", shuffles=2, verdicts=verdicts)
    for one in rows:
        scores = one["extra_info"]["scores"]
        read = parse_ranking(
            one["messages"][1]["content"],
            letters_of(len(scores)),
            output,
            lowest=-5,
            highest=5,
            decimals=True,
            strictness="exact",
        )
        if output != "ranking":
            assert list(read.scores.values()) == [read.scores[letter] for letter in read.scores]
            assert [read.scores[letter] for letter in letters_of(len(scores))] == scores
        best = max(scores)
        assert set(read.levels[0]) == {letters_of(len(scores))[i] for i, score in enumerate(scores) if score == best}


def test_the_right_answer_to_an_rl_row_has_the_full_reward(tmp_path: Path) -> None:
    given = [row(i, 2 + i % 3) for i in range(6)]
    demonstrations, _ = prepare(tmp_path, given, form="sft", shuffles=4)
    answers = {one["id"]: one["messages"][1]["content"] for one in demonstrations}
    prepare(tmp_path, given, shuffles=4)
    reward, scored = RankingAccuracy(reading="exact"), 0
    for prompt in Jsonl(path=str(tmp_path / "out.jsonl")).prompts(seed=0):
        if prompt.id in answers:
            (score,) = asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(answers[prompt.id])])))
            assert score.value == 2
            scored += 1
    assert scored == len(answers)


# ---- augmentation -------------------------------------------------------------------------------------------------


def test_variants_say_what_was_done_and_show_it(tmp_path: Path) -> None:
    given = [row(i, 2 + i % 3) for i in range(30)]
    rows, prepared = prepare(tmp_path, given, **FULL)
    assert len({one["id"] for one in rows}) == len(rows) == prepared.written
    counts = Counter(one["extra_info"]["group"] for one in rows)
    for number, group in enumerate(given, start=1):
        expected = {2: range(2, 3), 3: range(11, 12), 4: range(13, 26)}[len(group["mt_texts"])]
        assert counts[f"in-{number}"] in expected
    for one in rows:
        info = one["extra_info"]
        group, order = given[info["index"] - 1], info["candidates"]
        assert info["mt_texts"] == [group["mt_texts"][i] for i in order]
        assert info["scores"] == [group["scores"][i] for i in order]
        assert [sorted(order)[i] for i in info["permutation"]] == order
        assert json.loads(one["reward_model"]["ground_truth"]) == dict(zip("ABCD", info["scores"], strict=False))
        assert one["id"] == f"{info['group']}/{''.join('ABCD'[i] for i in order)}"
        text = one["prompt"][0]["content"]
        places = [text.index(shown) for shown in info["mt_texts"]]
        assert places == sorted(places)
        left_out = {*group["mt_texts"]} - {*info["mt_texts"]}
        assert not any(shown in text for shown in left_out)
        assert (info["analysis"] != "") == (info["variant"] == "original")  # else it would have the wrong letters
    assert sum(prepared.variants.values()) == len(rows)


def test_letters_of_the_analysis_follow_the_candidates(tmp_path: Path) -> None:
    given = [
        row(0, 3, scores=[1, 5, 9], analysis="A good start. C > B > A; translation B omits a word, and A is worst.")
    ]
    rows, _ = prepare(tmp_path, given, form="sft", shuffles=5)
    assert len(rows) == 6
    for one in rows:
        new = {"ABC"[old]: "ABC"[place] for place, old in enumerate(one["extra_info"]["candidates"])}
        a, b, c = new["A"], new["B"], new["C"]
        said = one["messages"][1]["content"].partition("\n\n###")[0]
        assert said == f"A good start. {c} > {b} > {a}; translation {b} omits a word, and {a} is worst."
        assert f"{c} > {b} > {a}\n" in one["messages"][1]["content"]


@pytest.mark.parametrize(
    ("analysis", "keep", "expected", "dropped"),
    [
        ("I find A > B > C.", False, {"ABC"}, {NAMES_LEFT_OUT: 3}),
        ("A > B, both fine", False, {"ABC", "AB"}, {NAMES_LEFT_OUT: 2}),
        ("Nothing to say of them.", False, {"ABC", "AB", "AC", "BC"}, {}),
        ("All three candidates fail.", False, {"ABC"}, {NAMES_LEFT_OUT: 3}),
        ("Plan B is an idiom.", False, {"ABC"}, {CANNOT_RENAME: 3}),
        ("I find A > B > C.", True, {"ABC", "AB", "AC", "BC"}, {}),
    ],
)
def test_analyses_of_subgroups(
    tmp_path: Path, analysis: str, keep: bool, expected: set[str], dropped: dict[str, int]
) -> None:
    given = [row(0, 3, analysis=analysis)]
    rows, prepared = prepare(tmp_path, given, form="sft", subgroups=3, keep_subgroups=keep)
    assert {one["id"].partition("/")[2] for one in rows} == expected
    assert prepared.dropped == dropped
    rows, prepared = prepare(tmp_path, given, subgroups=3)  # there the analysis plays no part
    assert len(rows) == 4
    assert prepared.dropped == {}


def test_who_is_left_out_of_a_kept_subgroup_has_a_letter_of_its_own(tmp_path: Path) -> None:
    given = [row(0, 3, analysis="I find A > B > C.")]
    rows, _ = prepare(tmp_path, given, form="sft", subgroups=3, keep_subgroups=True)
    said = {one["id"]: one["messages"][1]["content"].partition("\n")[0] for one in rows}
    assert said["in-1/AC"] == "I find A > C > B."  # A, C, and B who is left out
    assert said["in-1/BC"] == "I find C > A > B."


def test_an_analysis_in_doubt_leaves_out_the_other_orders_alone(tmp_path: Path) -> None:
    rows, prepared = prepare(tmp_path, [row(0, 3, analysis="Plan B is an idiom.")], form="sft", shuffles=5)
    assert [one["extra_info"]["variant"] for one in rows] == ["original"]
    assert prepared.dropped == {CANNOT_RENAME: 5}


# ---- order, seeds, splits -----------------------------------------------------------------------------------------


def digest(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_ones(tmp_path: Path) -> None:
    given = [row(i, 4) for i in range(20)]
    outs = [digest(prepare(tmp_path, given, seed=seed, **FULL)[0]) for seed in (1, 1, 2)]
    assert outs[0] == outs[1] != outs[2]
    drawn = [{one["id"] for one in prepare(tmp_path, given, seed=seed, **FULL)[0]} for seed in (1, 2)]
    assert drawn[0] != drawn[1]  # not the order alone


def test_what_becomes_of_a_row_depends_on_no_other_row(tmp_path: Path) -> None:
    given = [row(i, 4) | {"id": f"r{i}"} for i in range(12)]
    all_rows, _ = prepare(tmp_path, given, **FULL)
    backwards, _ = prepare(tmp_path, given[::-1], **FULL)
    some, _ = prepare(tmp_path, given[3:5], **FULL)
    order = [one["id"] for one in all_rows]
    assert [one["id"] for one in backwards] == order
    assert [one["id"] for one in some] == [name for name in order if name.partition("/")[0] in ("r3", "r4")]


def test_rows_are_shuffled_over_all_groups(tmp_path: Path) -> None:
    rows, _ = prepare(tmp_path, [row(i, 3) for i in range(200)], shuffles=4)
    numbers = [one["extra_info"]["index"] for one in rows]
    assert abs(sum(numbers[:500]) / 500 - 100) < 10
    assert sum(a == b for a, b in pairwise(numbers)) < 40  # 5 are expected; in the order of the input it were 800


@KINDS
def test_workers_give_the_same_bytes(tmp_path: Path, kind: str) -> None:
    given = [row(i, 2 + i % 3) for i in range(150)]
    given[100]["scores"] = [1]
    one, counts = prepare(tmp_path, given, kind=kind, skip_bad=True, form="sft", **FULL)
    before = (tmp_path / f"out.{kind}").read_bytes()
    two, others = prepare(tmp_path, given, kind=kind, skip_bad=True, form="sft", workers=2, **FULL)
    assert two == one
    assert (tmp_path / f"out.{kind}").read_bytes() == before
    assert others == counts


@pytest.mark.parametrize("held_out", [0.3, 20])
def test_no_variant_of_a_held_out_source_is_in_the_other_split(tmp_path: Path, held_out: float) -> None:
    # Each source text stands in two rows, once with other white space and case.
    given = [row(i % 60, 3, mt_texts=[f"{i} {j}" for j in range(3)]) for i in range(120)]
    for one in given[60:]:
        one["src_text"] = f" {one['src_text']} "
    train, prepared = prepare(tmp_path, given, held_out=held_out, held_out_out=tmp_path / "test.jsonl", **FULL)
    test = read_rows(tmp_path / "test.jsonl")
    sources = [{one["extra_info"]["source"] for one in rows} for rows in (train, test)]
    assert not sources[0] & sources[1]
    assert len(sources[0] | sources[1]) == 60
    assert {one["extra_info"]["split"] for one in train} == {"train"}
    assert {one["extra_info"]["split"] for one in test} == {"held-out"}
    assert {one["extra_info"]["variant"] for one in test} == {"original"}
    assert (len(train), len(test)) == (prepared.written, prepared.held_out)
    assert len(sources[1]) == 20 if held_out == 20 else 8 <= len(sources[1]) <= 30
    augmented = {"augment_held_out": True, "held_out": held_out, "held_out_out": tmp_path / "test.jsonl"}
    prepare(tmp_path, given, **augmented, **FULL)
    assert len(read_rows(tmp_path / "test.jsonl")) == 11 * len(test)


def test_the_seed_and_the_rows_do_not_change_what_is_held_out(tmp_path: Path) -> None:
    given = [row(i) for i in range(60)]
    held = []
    for seed, rows in [(0, given), (1, given[::-1]), (2, given[:30])]:
        prepare(tmp_path, rows, held_out=0.3, held_out_out=tmp_path / "test.jsonl", seed=seed)
        held.append({one["extra_info"]["source"] for one in read_rows(tmp_path / "test.jsonl")})
    assert held[0] == held[1] > held[2]


def test_an_empty_split_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no row for .*test.jsonl.*--held-out is 1e-06, and there are 3 rows"):
        prepare(tmp_path, [row(i) for i in range(3)], held_out=1e-6, held_out_out=tmp_path / "test.jsonl")
    with pytest.raises(UserError, match=r"and there is 1 row; choose another"):
        prepare(tmp_path, [row(0)], held_out=1e-6, held_out_out=tmp_path / "test.jsonl")
    with pytest.raises(UserError, match=r"no row for .*out.jsonl.*--held-out is 5"):
        prepare(tmp_path, [row(i) for i in range(3)], held_out=5, held_out_out=tmp_path / "test.jsonl")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.jsonl"]


def test_a_number_of_sources_holds_out_those_with_the_smallest_keys() -> None:
    keys = [source_key(f"text {i}") for i in range(100)]
    limit = limit_of_count(keys * 2, 10)
    assert {key for key in keys if key < limit} == set(sorted(keys)[:10])
    assert {key for key in keys if key < limit_of_count(keys, 500)} == set(keys)
    assert limit_of_count([], 3) == 0
    assert abs(sum(key < limit_of_share(0.5) for key in keys) - 50) < 20
    assert source_key(" ＡB\n c") == source_key("ab C") != source_key("a bc")


@settings(max_examples=40, deadline=None)
@given(keys=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=300), times=st.sampled_from([1, 40]))
def test_who_was_first_is_remembered(keys: list[int], times: int) -> None:
    seen, expected = Seen(), dict[int, int]()
    for number, key in enumerate([*keys, *range(100 * times)], start=1):
        assert seen.first(key, number) == expected.setdefault(key, number)
