"""Start a run on a cluster: is everything there, and how a model of the recipe gets its workers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.scale.scale_settings import ScaleSettings

if TYPE_CHECKING:
    from rewardsmith.engines.managed.server_process import Launch
    from rewardsmith.engines.protocol import Engine

VERL = "0.9."  # the releases of verl that this was written for
INSTALL = 'install it with pip install "rewardsmith[verl]", in an environment of its own'


@contextmanager
def launch(
    settings: ScaleSettings | None, folder: Path
) -> Iterator[tuple[Callable[[ModelSettings, int, str], Engine], Launch]]:
    """Start or join Ray, and yield what starts a model and a judge's server there; a Ray of this run is stopped."""
    for package in ("ray", "verl"):
        try:
            found = version(package)
        except PackageNotFoundError:
            raise UserError(f"--on verl needs {package}, which is not installed: {INSTALL}") from None
    if not found.startswith(VERL):
        raise UserError(f"--on verl needs verl {VERL}x, and {found} is installed: {INSTALL}")
    scale = settings or ScaleSettings()
    if scale.rollout.gpus and scale.device == "cuda" and find_spec("cupy") is None:
        raise UserError(
            f"scale.rollout.gpus = {scale.rollout.gpus}: verl sends the weights there by NCCL, for which it needs cupy:"
            " pip install cupy-cuda12x"
        )
    if scale.device == "cpu":  # before verl is imported: it asks once which device there is
        os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "rewardsmith.scale.cpu"}
    warnings.filterwarnings("ignore", message=".* engine is not available")  # verl names all that it could use
    from ray.exceptions import RayActorError  # noqa: PLC0415

    from rewardsmith.scale.cluster import Cluster  # noqa: PLC0415 it imports verl
    from rewardsmith.scale.judge_hosts import launch_on_cluster  # noqa: PLC0415
    from rewardsmith.scale.verl_engine import open_engine, start_folder  # noqa: PLC0415

    cluster = Cluster(scale, folder)

    def start(model: ModelSettings, seed: int, name: str) -> Engine:
        path = start_folder(model, folder / "start" / name, seed=seed, name=name)
        return open_engine(cluster, model, path, name=name, writes=model.head == "language")

    try:
        yield start, partial(launch_on_cluster, scale)
    except RayActorError as error:
        raise UserError(
            f"a worker of the cluster died: {error}. Ray's logs have the cause; the same command resumes from the last"
            " checkpoint"
        ) from error
    finally:
        cluster.close()
