"""However the rollouts of a step are split into passes, the rewards, the loss and the weights are the same."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from tests.trainers.process.process_cases import Model, batch_of, group, relative, update_sizes
from tests.trainers.world import new_engine, weights

GROUPS = [group(0, [1.0, 0.25, 0.0, None]), group(1, [0.0, 1.0, 0.5]), group(2, [1.0, 0.0]), group(4, [0.5])]
OLD = [group(7, [1.0, 0.0, None])]
LEARN: dict[str, dict[str, Any]] = {
    "cross-entropy": {"offset": "group-mean"},
    "best-of-n-reward": {"loss": "best-of-n-reward"},
}


class Passes:
    """Counts the rows of each pass through a model."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.rows: list[int] = []
        parts = engine.micro_batches

        def counted(rows: Any, *, max_rows: int | None = None) -> list[list[int]]:
            found = parts(rows, max_rows=max_rows)
            self.rows += map(len, found)
            return found

        engine.micro_batches = counted  # type: ignore[method-assign]


class Waits(TorchDispatchMode):
    """Counts the operations for which a GPU would have to finish all that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += name in {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "unique", "equal"}
        return func(*args, **kwargs or {})


def learned(folder: Path, learn: dict[str, Any], **engine: Any) -> tuple[Any, Model, list[int]]:
    model = Model(folder, new_engine(**engine), update="reverse", learn=learn)
    passes = Passes(model.engine)
    found = model.score_and_learn(batch_of(GROUPS, OLD), measure=True)
    return found, model, passes.rows


@cache
def together(folder: Path, loss: str) -> tuple[Any, Model, list[int]]:
    return learned(folder, LEARN[loss])


@pytest.mark.parametrize("loss", LEARN)
@pytest.mark.parametrize(
    ("learn", "engine", "largest"),
    [({"micro_batch": 1}, {}, 1), ({"micro_batch": 3}, {}, 3), ({}, {"tokens_per_pass": 24}, 5)],
    ids=["one by one", "three at a time", "few tokens"],
)
def test_the_split_into_passes_changes_nothing(
    learn: dict[str, Any], engine: dict[str, Any], largest: int, loss: str, tmp_path: Path
) -> None:
    whole, model, passes = together(tmp_path.parent, loss)
    assert set(passes) == {13}
    found, split, parts = learned(tmp_path, LEARN[loss] | learn, **engine)
    assert 1 <= max(parts) <= largest
    for name in ("rewards_BT", "fresh_B", "after_B"):
        assert torch.allclose(getattr(found, name), getattr(whole, name), atol=2e-5), name
    assert found.loss == pytest.approx(whole.loss, rel=1e-5)
    assert found.grad_norms == pytest.approx(whole.grad_norms, rel=1e-4)
    assert relative(split.gradients[0], model.gradients[0]) < 1e-4
    moved = relative(weights(new_engine()), weights(model.engine))
    assert relative(weights(split.engine), weights(model.engine)) < 0.01 * moved


@pytest.mark.parametrize("loss", LEARN)
def test_no_pass_waits_for_the_device(loss: str, tmp_path: Path) -> None:
    """More passes, and not one more wait: while a GPU works on one pass, the next is prepared."""
    waits = []
    for size in (13, 2):
        model = Model(tmp_path, update="reverse", learn=LEARN[loss] | {"micro_batch": size})
        with Waits() as counted:
            model.score_and_learn(batch_of(GROUPS, OLD))
        waits.append(counted.count)
    assert waits[0] == waits[1] > 0


@pytest.mark.parametrize("update", ["after", "reverse", "before"])
def test_the_reference_reads_in_the_passes_in_which_the_model_reads(update: str, tmp_path: Path) -> None:
    """Other passes may round otherwise: a model that is its reference would not be at 0."""
    model = Model(tmp_path, update=update, learn={"mini_batch": 5, "micro_batch": 2})
    ours, theirs = Passes(model.engine), Passes(model.process.reference._other)  # type: ignore[union-attr, arg-type]
    model.score_and_learn(batch_of(GROUPS, OLD))
    assert len(theirs.rows) > 3
    assert ours.rows == theirs.rows * (1 if update == "after" else 2)


@pytest.mark.parametrize(("size", "expected"), [(1, [4, 3]), (4, [4, 3]), (5, [7]), (None, [7]), (100, [7])])
def test_a_mini_batch_is_counted_in_rollouts_and_groups_stay_whole(
    size: int | None, expected: list[int], tmp_path: Path
) -> None:
    model = Model(tmp_path, learn={"mini_batch": size})
    sizes = update_sizes(model.engine)
    found = model.score_and_learn(batch_of([group(0, [1.0, 0.0, 0.5, 0.25]), group(1, [1.0, 0.0, 1.0])]))
    assert sizes == expected
    assert len(found.grad_norms) == len(expected)


def test_siblings_are_scored_by_one_model(tmp_path: Path) -> None:
    """Rollouts of a group that are the same get the same reward, however small the mini-batches are."""
    scored = group(0, [1.0, 0.0, 1.0, 0.0])
    twins = [replace(scored.group.rollouts[0]) for _ in range(4)]
    batch = batch_of([replace(scored, group=replace(scored.group, rollouts=twins)), group(1, [1.0, 0.0])])
    found = Model(tmp_path, learn={"mini_batch": 1}, optimizer={"lr": 1e-2}).score_and_learn(batch)
    sums = found.rewards_BT[:4].sum(-1)
    assert torch.allclose(sums, sums[:1].expand(4), atol=1e-6)
