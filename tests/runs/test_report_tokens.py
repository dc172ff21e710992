"""The tokens of a report in the colours of their rewards: what the digest has of them, and what the page shows."""

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
from rewardsmith.runs.report_rollouts import MAX_TEXT, token_rewards
from tests.runs.fake_process import by_letter, dense, row, write_process_run
from tests.runs.fake_run import write_lines
from tests.runs.test_report import HOSTILE, page_of
from tests.runs.test_report_scripts import run_page

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node runs the scripts")


def rewards_of(rollout: Rollout, limit: int = MAX_TEXT, **parts: Score) -> dict[str, Any] | None:
    return token_rewards(rollout, Score(1.0, parts=parts), limit)


# ---- the digest ----------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_the_tokens_tile_what_is_shown(data: st.DataObject) -> None:
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
    assert sum(found["sizes"]) == min(ends[shown[-1]], limit)
    assert np.cumsum([0, *found["sizes"]])[:-1].tolist() == [starts[i] for i in shown]
    assert found["parts"][0]["values"] == [values[i] if support[i] else None for i in shown]
    assert found["parts"][0]["sum"] == sum(value for value, carries in zip(values, support, strict=True) if carries)


def test_a_report_of_huge_rollouts_stays_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rollouts = [by_letter("z" * 6_000)] * 8
    parts = {f"part{i}": Score(1.0, token_values=rng.normal(size=6_001)) for i in range(9)}
    scores = [Score(1.0, parts=parts)] * 8
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [row(rollouts, scores, step) for step in (1, 1, 2, 3)])
    page = page_of(tmp_path)
    (stage,) = page.data["stages"]
    found = [one["rewards"] for key in ("first", "last") for g in stage["rollouts"][key] for one in g["rollouts"]]
    assert {len(one["parts"]) for one in found} == {report_rollouts.MAX_COLOURED}
    assert {len(one["sizes"]) for one in found} == {report_rollouts.MAX_TOKENS}
    numbers = report_rollouts.MAX_TOKENS * (report_rollouts.MAX_COLOURED + 1)
    assert len(page.texts["script"][0]) < len(found) * (MAX_TEXT + 1_500 + 8 * numbers)


# ---- the page ------------------------------------------------------------------------------------------------------

# Of every coloured text: the pieces as [text, class, title, sign], and the line below it.
INKED = """
const inked = () => page.all("article").filter((one) => (one["@class"] || "").startsWith("rollout")).map((one) => {
  const pre = one.all("pre")[0], sum = one.all("p").find((line) => (line["@class"] || "").startsWith("sum"));
  return { pieces: pre.children.map((span) => (span instanceof Node
    ? [span.text(), span["@class"], span["@title"], span["@data-sign"]] : span)), sum: sum && sum.text() };
});
const print = (value) => console.log(JSON.stringify(value === undefined ? null : value));
"""


def lines_of(folder: Path, *after: str) -> list[Any]:
    return [json.loads(text) for text in run_page(folder, INKED + "\n".join(after)).splitlines()]


@needs_node
def test_the_page_colours_tokens_by_sign_and_size(tmp_path: Path) -> None:
    values = [1.0, -0.5, 0.05, -1.0, 0.9]
    rollouts = [by_letter("a🙂<b"), Rollout("plain", [1])]
    scores = [Score(1.0, parts={"process": dense(values)}), Score(1.0, parts={"process": Score(0.5)})]
    write_lines(tmp_path / "rollouts" / "policy.jsonl", [row(rollouts, scores)])
    (first, second) = lines_of(tmp_path, "print(inked());")[0]
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
    shown = lines_of(tmp_path, 'print(inked().map((one) => one.pieces.map((piece) => piece[0]).join("")));')[0]
    assert shown == texts[:3]


@needs_node
def test_what_a_process_reward_learned_stands_at_the_top_of_its_stage(tmp_path: Path) -> None:
    write_process_run(tmp_path, steps=4)
    found = lines_of(
        tmp_path,
        'const folds = page.all("details").filter((one) => one["@class"] === "fold");',
        "const spans = (fold, kind) => fold.all('span').filter((x) => x['@class'] === kind).map((x) => x.text());",
        "const names = (fold) => spans(fold, 'metric');",
        "print(folds.map((one) => one.all('summary')[0].children[0])); print(names(folds[0]));",
        'print(spans(folds[0], "values").map((text) => text.replace(/\\s+/g, " ").trim()));',
        "print(folds[0].all('figure')[0].all('b').map((one) => one.textContent));",
        "print(folds.slice(1).flatMap(names).filter((name) => name.startsWith('learned')));",
    )
    assert found[0][0] == "Process rewards"
    measures = ["accuracy", "steps", "trust", "loss"]
    assert found[1] == [f"learned/{part}/{name}" for part in ("process", "step") for name in measures]
    assert found[2][:2] == ["fresh after chance", "wrong step found by chance"]
    assert found[3][2] == "0.500"
    assert found[4] == ["learned/grad_norm"]  # all else stays where it was
