"""What becomes of the settings of models on a cluster; nothing here needs verl."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.recipe import load_recipe
from rewardsmith.runs.preflight import check_for_cluster
from rewardsmith.scale.cluster_checks import MODEL_SETTINGS
from rewardsmith.scale.launch import require_verl
from tests.command_line import call

RECIPE = """
[scale]
device = "cpu"
[models.policy]
init = "tiny-llama"
[models.prm]
copy_of = "policy"
[data.train]
type = "arithmetic"
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 1
advantage = { type = "grpo", combine = "after" }
[stages.reward]
type = "sum"
parts.answer = { type = "rule", rule = "arithmetic" }
parts.process = { type = "implicit", model = "prm" }
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE)
    return file


def test_every_setting_of_a_model_has_a_fate() -> None:
    """A new setting is honoured by verl or by us on a cluster, or is refused there: add it to the table."""
    assert MODEL_SETTINGS.keys() == ModelSettings.model_fields.keys()
    assert set(MODEL_SETTINGS.values()) == {"verl", "rewardsmith", "refused"}
    documented = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    assert not [name for name in MODEL_SETTINGS if f"`{name}`" not in documented]


@pytest.mark.parametrize(
    ("override", "path", "remedy"),
    [
        ("models.policy.device=cuda", "models.policy.device", "scale.device"),
        ('models.policy.lora={base="int8"}', "models.policy.lora.base", "not quantised"),
        ("models.policy.recompute=offload", "models.policy.recompute", "recompute = true"),
        ("models.policy.dtype=bfloat16", "models.policy.dtype", "float32"),
        ("scale.strategy=megatron", "scale.strategy", "use fsdp2"),
        ("scale.strategy=fsdp", "scale", "use fsdp2"),
        ("scale.sequence_parallel=2", "scale", "does not divide"),
        ("scale.gpus_per_node=2 scale.sequence_parallel=2", "scale", "needs GPUs"),
        ("scale.gpus_per_node=3 scale.rollout.tensor_parallel=2", "scale", "tensor_parallel = 2 does not"),
        ("scale.address=ray://head:10001", "scale.address", "HOST:PORT"),
        ("models.policy.offload=true models.prm.offload=true", "models.prm.offload", "scale.offload = true"),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_do_is_refused(recipe: Path, override: str, path: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        check_for_cluster(load_recipe(recipe, override.split()), "recipe")
    assert path in str(caught.value)
    assert remedy in str(caught.value)


def test_an_implicit_reward_runs_where_a_trainer_scores_it(recipe: Path) -> None:
    check_for_cluster(load_recipe(recipe), "recipe")
    stage = '\n[[stages]]\ntype = "evaluate"\nmodel = "policy"\ndata = "train"\n'
    recipe.write_text(f'{RECIPE}{stage}reward = {{ type = "implicit", model = "prm" }}')
    with pytest.raises(UserError, match=r"stages.1.reward\n +an implicit reward"):
        check_for_cluster(load_recipe(recipe), "recipe")


@pytest.mark.parametrize("command", [("explain",), ("run",), ("export", "verl")])
def test_ray_and_the_right_verl_must_be_there(
    command: tuple[str, ...], recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"ray": "2.60.0", "verl": "0.8.1"}

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("rewardsmith.scale.launch.version", version)
    folder = str(tmp_path / "out")
    options = [folder] if command[0] == "export" else ["--on", "verl"]
    options += ["--folder", folder] * (command[0] == "run")
    for message in ("needs verl 0.9.x, and 0.8.1 is installed", "needs ray, which is not installed"):
        outcome = call(*command, str(recipe), *options)
        assert outcome.status == 2
        assert message in outcome.err
        assert 'pip install "rewardsmith[verl]"' in outcome.err
        versions.pop("ray", None)
    versions |= {"ray": "2.60.0", "verl": "0.9.1"}
    require_verl()
