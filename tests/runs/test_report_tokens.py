"""The tokens of a report in the colours of their rewards: what the digest tells of them, and what the page shows."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, Score
from rewardsmith.runs import report_rollouts
from rewardsmith.runs.report_rollouts import MAX_TEXT, TokenBudget, token_rewards
from tests.runs.fake_process import by_letter, dense, row, write_process_run
from tests.runs.fake_run import write_lines
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
