"""The tokens of a report in the colours of their rewards: what the digest tells of them, and what the page shows."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Failure, Message, Prompt, Rollout, Score
from rewardsmith.runs import report_rollouts
from rewardsmith.runs.report_rollouts import MAX_TEXT, TokenBudget, scales, token_rewards
from tests.runs.fake_process import by_letter, dense, row, write_process_run
from tests.runs.fake_run import line, write_lines
from tests.runs.test_report import HOSTILE, page_of
from tests.runs.test_report_scripts import run_page

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")
T, F = True, False


def rewards_of(rollout: Rollout, limit: int = MAX_TEXT, **parts: Score) -> dict[str, Any] | None:
    return token_rewards(rollout, Score(1.0, parts=parts), limit, TokenBudget())


def told(rollout: Rollout, limit: int = MAX_TEXT, **parts: Score) -> dict[str, Any]:
    found = rewards_of(rollout, limit, **parts)
    assert found is not None
    return found


# ---- the digest ----------------------------------------------------------------------------------------------------


def test_every_token_has_its_stretch_of_the_text_and_its_reward() -> None:
    rollout = Rollout("12 + 3 🙂", [5, 6, 7, 8, 9, 0], ends=[2, 4, 6, 6, 8, 8])
    found = told(rollout, process=dense([0.5, -0.25, 0, 1, 2, -0.125]))
    assert found["sizes"] == [2, 2, 2, 0, 2, 0]  # the fourth token ends within a character, the last ends the answer
    assert found["counts"] == [1] * 6
    assert found["parts"] == [{"name": "process", "sum": 3.125, "values": [0.5, -0.25, 0.0, 1.0, 2.0, -0.125]}]


@pytest.mark.parametrize(
    ("support", "counts", "values"),
    [
        ([F, F, T, F, T, F], [2, 1, 1, 1, 1], [None, 3, None, 5, None]),
        ([T, F, F, F, F, F], [1, 5], [1, None]),
        ([F, F, F, F, F, T], [5, 1], [None, 6]),
        ([T, T, F, F, T, T], [1, 1, 2, 1, 1], [1, 2, None, 5, 6]),
        ([T, T, T, T, T, T], [1] * 6, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_neighbours_without_a_reward_are_one_piece(support: list[bool], counts: list[int], values: list[Any]) -> None:
    found = told(by_letter("abcde"), step=dense([1, 2, 3, 4, 5, 6], support))
    assert (found["counts"], found["parts"][0]["values"]) == (counts, values)
    assert found["sizes"][-1] == counts[-1] - 1  # the last token has no text
    assert sum(found["sizes"]) == 5
    assert found["parts"][0]["sum"] == sum(value for value in values if value)


def test_parts_share_the_pieces_and_each_has_its_own_support() -> None:
    parts = {"a": dense([1, 2, 3], [T, F, F]), "b": dense([4, 5, 6], [F, F, T]), "rule": Score(1.0)}
    found = told(by_letter("xy"), **parts)
    assert found["counts"] == [1, 1, 1]
    assert [part["name"] for part in found["parts"]] == ["a", "b"]
    assert [part["values"] for part in found["parts"]] == [[1, None, None], [None, None, 6]]


def test_the_whole_score_and_parts_of_parts_may_have_rewards() -> None:
    inner = Score(1.0, parts={"inner": dense([1, 2])})
    whole = Score(1.0, parts={"outer": inner}, token_values=[3, 4])
    found = token_rewards(by_letter("x"), whole, MAX_TEXT, TokenBudget())
    assert found is not None
    assert [part["name"] for part in found["parts"]] == ["reward", "outer.inner"]


@pytest.mark.parametrize(
    ("rollout", "part"),
    [
        (Rollout("ab", [1, 2]), dense([1, 2])),
        (Rollout("ab", [1, 2], ends=[1, 2]), Score(1.0)),
        (Rollout("ab", [1, 2], ends=[1, 2]), Score(failure=Failure("skipped"))),
        (Rollout("ab", [1, 2], ends=[1, 2]), dense([1, 2], [False, False])),
        (Rollout("", [], ends=[]), dense([])),
    ],
    ids=["no ends", "no values", "skipped", "no support", "no tokens"],
)
def test_without_ends_or_rewards_there_is_nothing_to_colour(rollout: Rollout, part: Score) -> None:
    assert rewards_of(rollout, process=part) is None


def test_rewards_have_four_digits() -> None:
    values = [1 / 3, -12345.678, 1e-9 / 7, -0.0, 3e38]
    (part,) = told(Rollout("abcde", [1] * 5, ends=[1, 2, 3, 4, 5]), process=dense(values))["parts"]
    assert part["values"] == [0.3333, -12350.0, 1.429e-10, 0.0, 3e38]
    assert "-0.0," not in json.dumps(part["values"])


def test_a_scale_is_the_largest_reward_of_a_part_in_the_group_as_far_as_it_is_shown(tmp_path: Path) -> None:
    rollouts = [by_letter("x") for _ in range(9)]
    scores = [
        Score(1.0, parts={"a": dense([0.5, -i]), "b": dense([100, 0.25], [False, True])})
        for i in (1, 3, 2, *[0] * 5, 99)
    ]
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [row(rollouts, scores), row(rollouts[:1], scores[:1])])
    groups = page_of(tmp_path).data["stages"][0]["rollouts"]["first"]
    assert [group["scales"] for group in groups] == [[["a", 3], ["b", 0.25]], [["a", 1], ["b", 0.25]]]
    assert scales([None]) == []


# ---- bounds and damage ---------------------------------------------------------------------------------------------


@given(data=st.data())
def test_the_pieces_tile_what_is_shown(data: st.DataObject) -> None:
    text = data.draw(st.text("ab \n🙂", max_size=12))
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=1, max_size=12)))
    support = data.draw(st.lists(st.booleans(), min_size=len(ends), max_size=len(ends)))
    limit = data.draw(st.integers(1, 14))
    values = [float(i + 1) for i in range(len(ends))]
    found = rewards_of(Rollout(text, [1] * len(ends), ends=ends), limit, p=dense(values, support))
    starts = [0, *ends[:-1]]
    shown = [i for i in range(len(ends)) if len(text) <= limit or starts[i] < limit]
    if not any(support[i] for i in shown):
        assert found is None
        return
    assert found is not None
    assert sum(found["counts"]) == len(shown)
    assert sum(found["sizes"]) == min(ends[shown[-1]], limit)
    first = np.cumsum([0, *found["counts"]])[:-1].tolist()
    place = np.cumsum([0, *found["sizes"]])[:-1].tolist()
    assert place == [starts[i] for i in first]
    carried = {i: value for i, value in zip(first, found["parts"][0]["values"], strict=True) if value is not None}
    assert carried == {i: values[i] for i in shown if support[i]}


def test_a_long_rollout_is_coloured_as_far_as_its_text_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = by_letter("x" * 1_000_000)
    part = dense(np.linspace(-1, 1, 1_000_001).tolist())
    found = told(rollout, process=part)
    assert len(found["sizes"]) == sum(found["sizes"]) == report_rollouts.MAX_TOKENS
    monkeypatch.setattr(report_rollouts, "MAX_TOKENS", 9_999)
    assert sum(told(rollout, process=part)["sizes"]) == MAX_TEXT
    words = Rollout("word " * 1_000, [1] * 1_000, ends=list(range(5, 5_001, 5)))
    assert told(words, limit=12, process=dense([1.0] * 1_000))["sizes"] == [5, 5, 2]
    assert told(by_letter("exact"), limit=5, process=dense([1.0] * 6))["sizes"] == [1, 1, 1, 1, 1, 0]


def test_a_rollout_is_coloured_as_a_whole_or_not_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row([by_letter("xyz")], [Score(1.0, parts={"p": dense([1, 2, 3, 4])})]) for _ in range(3)]
    for stage in ("one", "two"):
        write_lines(tmp_path / "rollouts" / f"{stage}.jsonl", rows)
    monkeypatch.setattr("rewardsmith.runs.report.MAX_ALL_VALUES", 2 * 30)  # 4 tokens, 3 numbers each
    for stage in page_of(tmp_path).data["stages"]:
        found = stage["rollouts"]
        assert [group["rollouts"][0]["rewards"] is not None for group in found["first"]] == [True, True, False]
        assert found["first"][2]["scales"] == []
        assert found["plain"] == 1


def test_a_report_of_huge_rollouts_stays_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rollouts = [by_letter("z" * 6_000)] * 8
    names = [f"part{i}" for i in range(9)]
    for stage in range(3):
        scores = [
            Score(1.0, parts={name: Score(1.0, token_values=rng.normal(size=6_001)) for name in names})
            for _ in rollouts
        ]
        write_lines(tmp_path / "rollouts" / f"{stage}.jsonl", [row(rollouts, scores, step) for step in (1, 1, 2, 3)])
    page = page_of(tmp_path)
    groups = [g for s in page.data["stages"] for key in ("first", "last") for g in s["rollouts"][key]]
    told = [one["rewards"] for group in groups for one in group["rollouts"] if one["rewards"]]
    assert {len(one["parts"]) for one in told} == {report_rollouts.MAX_COLOURED}
    numbers = sum(len(one["sizes"]) * (len(one["parts"]) + 2) for one in told)
    assert numbers <= report_rollouts.MAX_ALL_VALUES
    plain = sum(len(one["text"]) + 1_500 for group in groups for one in group["rollouts"])
    assert len(page.texts["script"][0]) < plain + 12 * report_rollouts.MAX_ALL_VALUES


# ---- the page ------------------------------------------------------------------------------------------------------

# Of every coloured text: the pieces as [text, class, title, sign], and the line below it.
INKED = """
const inked = () => page.all("article").filter((one) => (one["@class"] || "").startsWith("rollout")).map((one) => {
  const pre = one.all("pre")[0], sum = one.all("p").find((line) => (line["@class"] || "").startsWith("sum"));
  return { pieces: pre.children.map((span) => (span instanceof Node
    ? [span.text(), span["@class"], span["@title"], span["@data-sign"]] : span)), sum: sum && sum.text() };
});
const tell = (value) => console.log(JSON.stringify(value === undefined ? null : value));
"""


def lines_of(folder: Path, *after: str) -> list[Any]:
    return [json.loads(text) for text in run_page(folder, INKED + "\n".join(after)).splitlines()]


@needs_node
def test_the_page_colours_tokens_by_sign_and_size(tmp_path: Path) -> None:
    values = [1.0, -0.5, 0.05, -1.0, 0.9]
    rollouts = [by_letter("a🙂<b"), Rollout("plain", [1])]
    scores = [Score(1.0, parts={"process": dense(values)}), Score(1.0, parts={"process": Score(0.5)})]
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [row(rollouts, scores)])
    (first, second) = lines_of(tmp_path, "tell(inked());")[0]
    assert first["pieces"] == [
        ["a", "tok up l6", "token 1: +1", None],
        ["🙂", "tok down l3", "token 2: −0.5", None],
        ["<", "tok ", "token 3: +0.05", None],
        ["b", "tok down l6", "token 4: −1", None],
        ["", "tok up l5", "token 5: +0.9", "◦"],
    ]
    assert first["sum"].split() == ["sum", "of", "process", "+0.45"]
    assert second["pieces"] == ["plain"]
    assert "sum" not in second


@needs_node
def test_the_text_of_a_step_has_the_line_of_its_reward_and_the_rest_stays_plain(tmp_path: Path) -> None:
    support = [F, F, T, F, T, F]
    rollout = Rollout("1+\n2-?!", [1] * 6, ends=[1, 2, 3, 4, 5, 6])
    score = Score(1.0, parts={"step": dense([0, 0, -2, 0, 1, 0], support)})
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [row([rollout], [score])])
    (one,) = lines_of(tmp_path, "tell(inked());")[0]
    assert one["pieces"] == [
        ["1+", "tok down l6 step", "tokens 1–2: in the step of token 3, −2", None],
        ["\n", "tok down l6", "token 3: −2", "↵"],
        ["2", "tok up l3 step", "token 4: in the step of token 5, +1", None],
        ["-", "tok up l3", "token 5: +1", None],
        ["?", "tok ", "token 6: no reward", None],
        ["!", None, None, None],
    ]


@needs_node
def test_one_can_choose_the_part_and_walk_through_the_tokens(tmp_path: Path) -> None:
    parts = {"a": dense([1.0, -0.5, 0.25]), "b": dense([-2.0, 0, 4.0])}
    zero = Score(1.0, parts={"a": dense([0, 0, 0]), "b": Score(0.0)})
    rows = [row([by_letter("xy")], [Score(1.0, parts=parts)]), row([by_letter("xy")], [zero], 2)]
    write_lines(tmp_path / "rollouts" / "policy.jsonl", rows)
    found = lines_of(
        tmp_path,
        'const [a, b] = page.all("button"), pre = page.all("pre").find((one) => one["@class"] === "inked");',
        'const legends = page.all("div").filter((one) => (one["@class"] || "").startsWith("key"));',
        'tell(legends.map((one) => one.text().split(/\\s+/).filter(Boolean).join(" ")));',
        'b.onclick(); tell([a["@aria-pressed"], b["@aria-pressed"], legends[0].text().split(/\\s+/).slice(-2)]);',
        "tell(inked()[0]);",
        "const press = (key) => pre.onkeydown({ key, preventDefault() {} });",
        'const at = () => tell(pre.children.findIndex((one) => one.classList.has("at")));',
        'const keys = ["ArrowRight", "ArrowRight", "End", "ArrowRight", "Home", "ArrowLeft", "a", "Escape"];',
        "for (const key of keys) { press(key); at(); }",
        "pre.onpointerover({ target: pre.children[1] }); at(); pre.onpointerleave(); at();",
    )
    assert found[0] == ["tokens by a b −1 +1", "tokens by a a: every reward is 0"]
    assert found[1] == ["false", "true", ["−4", "+4"]]
    assert [piece[1] for piece in found[2]["pieces"]] == ["tok down l3", "tok ", "tok up l6"]
    assert found[2]["sum"].split()[:4] == ["sum", "of", "b", "+2"]
    assert found[3:] == [0, 1, 2, 2, 0, 0, 0, -1, 1, -1]


@needs_node
def test_hostile_tokens_stay_text(tmp_path: Path) -> None:
    prompt = Prompt("p", [Message("user", "?")])
    texts = [text for text in HOSTILE if "\0" not in text]
    rows = [
        row([by_letter(text)], [Score(1.0, parts={text: dense([1.0] * (len(text) + 1))})], 1, prompt) for text in texts
    ]
    write_lines(tmp_path / "rollouts" / "policy.jsonl", rows[:3])
    shown = lines_of(tmp_path, 'tell(inked().map((one) => one.pieces.map((piece) => piece[0]).join("")));')[0]
    assert shown == texts[:3]


@needs_node
def test_what_a_process_reward_learned_stands_at_the_top_of_its_stage(tmp_path: Path) -> None:
    write_process_run(tmp_path, steps=4)
    found = lines_of(
        tmp_path,
        'const folds = page.all("details").filter((one) => one["@class"] === "fold");',
        "const spans = (fold, kind) => fold.all('span').filter((x) => x['@class'] === kind).map((x) => x.text());",
        "const names = (fold) => spans(fold, 'metric');",
        "tell(folds.map((one) => one.all('summary')[0].children[0])); tell(names(folds[0]));",
        'tell(spans(folds[0], "values").map((text) => text.replace(/\\s+/g, " ").trim()));',
        "tell(folds[0].all('figure')[0].all('b').map((one) => one.textContent));",
        "tell(folds.slice(1).flatMap(names).filter((name) => name.startsWith('learned')));",
    )
    assert found[0][0] == "Process rewards"
    measures = ["accuracy", "steps", "trust", "loss"]
    assert found[1] == [f"learned/{part}/{name}" for part in ("process", "step") for name in measures]
    assert found[2][:2] == ["fresh after chance", "wrong step found by chance"]
    assert found[3][2] == "0.500"
    assert found[4] == ["learned/grad_norm"]  # all else stays where it was


@needs_node
def test_the_results_of_a_process_reward_model_are_few_and_in_percent(tmp_path: Path) -> None:
    measured = {"accuracy_fresh": 0.5, "outcome": 0.25, "logit_right": 0.1, "logit_wrong": -0.1}
    measured |= {"steps/found": 0.4, "steps/chance": 0.302, "steps/judged": 512.0, "calibration_error": 0.125}
    rows = [
        {"stage": "learn", "step": step, "metrics": {f"validation/process/{k}": v for k, v in measured.items()}}
        for step in (0, 2)
    ]
    write_lines(tmp_path / "metrics.jsonl", rows)
    query = 'page.all("article").map((one) => one.all("p").map((p) => p.text().replace(/\\s+/g, " ").trim()))'
    assert lines_of(tmp_path, f"tell({query});")[0] == [
        ["process/accuracy_fresh learn", "50.0% → 50.0% = 0.0%"],
        ["process/outcome learn", "0.250 → 0.250 = 0"],
        ["process/steps/found (chance 30.2%) learn", "40.0% → 40.0% = 0.0%"],
        ["process/calibration_error learn", "0.125 → 0.125 = 0"],
    ]


@needs_node
def test_the_panel_shows_what_there_is_and_other_rewards_that_learn_have_none(tmp_path: Path) -> None:
    query = 'tell(page.all("summary").map((one) => one.children[0]));'
    for metrics, expected in [
        ({"learned/judge/loss": 1.0}, ["learned"]),
        ({"learned/process/accuracy_fresh": 0.5}, ["Process rewards"]),
    ]:
        rows = [{"stage": "policy", "step": step, "metrics": metrics} for step in (1, 2)]
        write_lines(tmp_path / "metrics.jsonl", rows)
        assert lines_of(tmp_path, query)[0] == expected
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [line("x", Score(1.0))])
    assert lines_of(tmp_path, query)[0] == ["Process rewards", "Training groups of the first step"]
