"""Every kind of reward can be replayed: what it gives now, and the advantages that follow by the run's estimator."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rewardsmith as rs
from rewardsmith.llm import ChatRequest, Conversation, Usage
from rewardsmith.recipe import override
from rewardsmith.runs.replay_stage import as_estimator_text, as_override_texts, choose_estimator
from tests.rewards.judges.ranked import by_number
from tests.rewards.judges.test_pairwise import judge as pairwise_judge
from tests.rewards.models import Scripted, text_of
from tests.runs.scoring.replayed import PARTS, HandMadeRun, Row, estimate, grpo

TEXTS = ("7", "3", "9", "5")


@dataclass
class Fixed:
    """A model whose numbers and vectors depend on the number that a text is."""

    name: str = "fixed"
    usage: Usage = field(default_factory=Usage)

    async def identity(self) -> str:
        return self.name

    async def check(self) -> None:
        pass

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        return [-float(conversation[-1].content) for conversation in conversations]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        angles = [float(text) / 10 for text in texts]
        return np.array([[np.cos(angle), np.sin(angle)] for angle in angles], dtype=np.float32)


def grade(question: ChatRequest) -> str:
    """Grade an answer by the number in the last block that is quoted."""
    blocks = re.findall(r"^(`{3,})\n(.*?)\n\1$", text_of(question), re.MULTILINE | re.DOTALL)
    return f"Fine.\nScore: {int(blocks[-1][1])}"


RULE = {"type": "rule", "rule": "exact"}
KINDS: dict[str, tuple[Any, Any]] = {
    "rule": (RULE, None),
    "function": (lambda response: -float(response), None),
    "judge": ({"type": "judge", "model": "m"}, lambda: Scripted(grade, name="m")),
    "ranking": ({"type": "ranking", "model": "m"}, lambda: Scripted(by_number, name="m")),
    "pairwise": ({"type": "pairwise", "model": "m"}, pairwise_judge),
    "classifier": ({"type": "classifier", "model": "m"}, Fixed),
    "similarity": ({"type": "similarity", "model": "m"}, Fixed),
    "sum": (
        {"type": "sum", "parts": {"rule": RULE, "judge": {"type": "judge", "model": "m", "weight": 0.3}}},
        lambda: Scripted(grade, name="m"),
    ),
    "gate": (
        {"type": "gate", "rule": RULE, "judge": {"type": "judge", "model": "m"}},
        lambda: Scripted(grade, name="m"),
    ),
    "scale": ({"type": "scale", "factor": -2.0, "reward": RULE}, None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_reward(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "cache"))
    rows = [
        Row(0, i + 1, {"digits": old, "brevity": 0.0}, text=text)
        for i, (old, text) in enumerate(zip((0.5, 0.25, 0.0, 1.0), TEXTS, strict=True))
    ]
    for row, advantage in zip(rows, estimate(rows, grpo, lambda row: row.total), strict=True):
        row.advantage = advantage
    run = HandMadeRun(tmp_path / "run")
    run.add(1, rows)
    run.write()
    spec, model = KINDS[kind]
    models = {} if model is None else {"m": model()}
    [values] = rs.score(spec, ["?"], [list(TEXTS)], answers=["7"], models=models).values
    assert len(set(values)) > 1
    new = estimate(
        [Row(0, row.tokens, {"digits": v / 2, "brevity": 0.0}) for row, v in zip(rows, values, strict=True)],
        grpo,
        lambda row: row.total,
    )
    found = rs.compare(tmp_path / "run", spec, models=models).facts["compared"]
    assert found["new_mean"] == pytest.approx(np.mean(values), abs=1e-6)
    old_T, new_T = (np.repeat(side, [row.tokens for row in rows]) for side in ([row.advantage for row in rows], new))
    expected = old_T @ new_T / np.linalg.norm(old_T) / np.linalg.norm(new_T)
    assert found["replay"]["cosine"] == pytest.approx(expected, abs=1e-5)
    assert found["replay"]["flipped"] == sum(row.advantage * one < -1e-6 for row, one in zip(rows, new, strict=True))
    assert found["replay"]["reproduced"]["difference"] < 1e-5


def test_failures_by_policy(tmp_path: Path) -> None:
    """A rollout that fails leaves the baseline; a part that is dropped leaves the group on one scale."""
    rows = [
        Row(0, 2, {"digits": old, "brevity": 0.0}, text=text)
        for old, text in zip((1.0, 0.0, 0.5), ("7", "bad", "3"), strict=True)
    ]
    for row, advantage in zip(rows, estimate(rows, grpo, lambda row: row.total), strict=True):
        row.advantage = advantage
    run = HandMadeRun(tmp_path / "run")
    run.add(1, rows)
    run.write()

    def picky(response: str) -> float | None:
        return None if response == "bad" else float(response)

    def length(response: str) -> float:
        return float(len(response))

    # Of the three answers the second has no value: the others have the advantages ±1/√2 of a group of two.
    found = rs.compare(tmp_path / "run", picky).facts["compared"]
    old, root = [row.advantage for row in rows], 2**-0.5
    assert found["new_failed"] == {"invalid": 1}
    expected = (old[0] * root - old[2] * root) / np.linalg.norm(old)
    assert found["replay"]["cosine"] == pytest.approx(expected, abs=1e-5)
    parts = {"picky": {"type": picky, "failure": {"do": "drop-component"}}, "length": {"type": length}}
    dropped = rs.compare(tmp_path / "run", {"type": "sum", "parts": parts}).facts["compared"]
    # Without the part the lengths 1, 3, 1 remain.
    new = np.array([-1.0, 2.0, -1.0])
    assert dropped["replay"]["cosine"] == pytest.approx(
        np.dot(old, new) / np.linalg.norm(old) / np.linalg.norm(new), abs=1e-5
    )
    assert dropped["replay"]["flipped"] == 2


def test_overrides_may_be_tables_and_lists(tmp_path: Path) -> None:
    rows = [Row(0, i + 1, {"digits": i / 4, "brevity": 0.0}, text=text) for i, text in enumerate(("7", "bad", "3"))]
    for row, advantage in zip(rows, estimate(rows, grpo, lambda row: row.total), strict=True):
        row.advantage = advantage
    parts = {"flaky": {"type": "tests.runs.scoring.replayed:number_of"}, "brevity": PARTS["brevity"]}
    run = HandMadeRun(tmp_path / "run", {"reward": {"type": "sum", "parts": parts}})
    run.add(1, rows)
    run.write()
    use = {"do": "use", "instead": {"type": "tests.trainers.world:Same", "value": np.float64(0.5)}}
    found = rs.compare(tmp_path / "run", overrides={"stages.policy.reward.parts.flaky.failure": use}).facts["compared"]
    assert (found["both"], found["new_failed"]) == (3, {})
    parts_of_rows = ((7.0, 1), (0.5, 2), (3.0, 3))  # the second answer is no number
    assert found["new_mean"] == pytest.approx(np.mean([value - (1 - tokens / 8) for value, tokens in parts_of_rows]))


def test_values_of_a_program_are_written_as_the_command_line_has_them() -> None:
    class Text(str):
        __slots__ = ()

    values = {"a": {"b c": [1, 2.5, True], "d": 'x"\n'}, "e": (Text("y"), Path("f")), "g": {}, "h": np.float64(0.1)}
    table: dict[str, Any] = {}
    for change in as_override_texts({f"top.{name}": value for name, value in values.items()}):
        override(table, change)
    assert table == {"top": {"a": values["a"], "e": ["y", "f"], "g": {}, "h": 0.1}}
    assert as_override_texts("seed=1") == ["seed=1"]
    assert as_override_texts(["seed=1", "x=2"]) == ["seed=1", "x=2"]
    for wrong in (len, None, {"x": [object()]}):
        with pytest.raises(rs.UserError, match="overrides has the value"):
            as_override_texts({"seed": wrong})
    chosen = choose_estimator(as_estimator_text({"type": "grpo", "scale": "none", "whiten": True}))
    assert (chosen.name, chosen.slot.whiten) == ("grpo", True)  # type: ignore[union-attr]
    with pytest.raises(rs.UserError, match="estimator has the value"):
        as_estimator_text({"type": "grpo", "scale": len})
