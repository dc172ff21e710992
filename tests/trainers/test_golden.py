"""Twenty steps of each trainer, as they were when last looked at: no change of the curves goes unnoticed.

The mathematics is tested elsewhere, against equations; this finds changes that nobody meant. After a change that was
meant, `python -m tests.trainers.test_golden` writes the curves anew: look at the difference before you keep it.
"""

import json
import tempfile
from pathlib import Path

import pytest

from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.sft import SftTrainer
from tests.trainers.world import World, policy_stage, sft_stage, steps

GOLDEN = Path(__file__).with_name("golden.json")
STEPS = 20
SHOWN = {
    "sft": ("loss", "grad_norm"),
    "policy": ("reward/mean", "response/length", "policy/entropy", "policy/grad_norm", "policy/kl"),
}


def curves(kind: str, folder: Path) -> dict[str, list[float]]:
    world = World(folder)
    if kind == "sft":
        optimizer = {"lr": 2e-3, "weight_decay": 0.01, "schedule": "cosine", "warmup": 5}
        metrics = steps(SftTrainer(sft_stage(steps=STEPS, batch_size=8, optimizer=optimizer), world), STEPS)
    else:
        stage = policy_stage(
            steps=STEPS,
            prompts_per_step=8,
            mini_batches=2,
            sampling={"max_tokens": 6},
            loss={"type": "clip", "high": 0.28},
            kl={"coefficient": 0.02},
            optimizer={"lr": 2e-3, "warmup": 4},
        )
        metrics = steps(PolicyTrainer(stage, world), STEPS)
    return {name: [m[name] for m in metrics] for name in SHOWN[kind]}


@pytest.mark.parametrize("kind", SHOWN)
def test_the_curves_are_those_that_were_kept(kind: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())[kind]
    found = curves(kind, tmp_path)
    assert set(found) == set(golden)
    for name, kept in golden.items():
        assert found[name][:3] == pytest.approx(kept[:3], rel=1e-3, abs=1e-5), name
        # Other processors add in another order. In time that makes another sample, and another sample other weights.
        early, late = (0.01, 0.05) if kind == "sft" else (0.1, 0.3)
        assert found[name][3:8] == pytest.approx(kept[3:8], rel=early, abs=0.05), name
        assert sum(found[name][8:]) == pytest.approx(sum(kept[8:]), rel=late, abs=0.1), name


def test_the_kept_curves_show_learning() -> None:
    golden = json.loads(GOLDEN.read_text())
    loss, reward = golden["sft"]["loss"], golden["policy"]["reward/mean"]
    assert loss[-1] < 0.6 * loss[0]
    assert sum(reward[-3:]) > 2 * sum(reward[:3])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = {kind: {k: [round(x, 6) for x in v] for k, v in curves(kind, Path(folder)).items()} for kind in SHOWN}
    GOLDEN.write_text(json.dumps(made, indent=1) + "\n")
