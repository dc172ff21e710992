"""Start a run on a cluster: is everything there, and how a model of the recipe gets its workers."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rewardsmith.config import Chosen
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.scale.placement import server_gpus
from rewardsmith.scale.scale_settings import ScaleSettings

if TYPE_CHECKING:
    from rewardsmith.engines.managed.server_process import Launch
    from rewardsmith.engines.protocol import Engine

VERL = "0.9."  # the releases of verl that this was written for
INSTALL = 'install it with pip install "rewardsmith[verl]", in an environment of its own'


def require_verl() -> None:
    """Raise a `UserError` unless Ray and a verl of the right version are installed."""
    for package in ("ray", "verl"):
        try:
            found = version(package)
        except PackageNotFoundError:
            raise UserError(f"--on verl needs {package}, which is not installed: {INSTALL}") from None
    if not found.startswith(VERL):
        raise UserError(f"--on verl needs verl {VERL}x, and {found} is installed: {INSTALL}")


def choose_platform(scale: ScaleSettings) -> None:
    """Tell verl which device there is; before it is imported, since it asks once."""
    if scale.device == "cpu":
        os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "rewardsmith.scale.cpu"}
    warnings.filterwarnings("ignore", message=".* engine is not available")  # verl names all that it could use


@contextmanager
def launch(
    settings: ScaleSettings | None, folder: Path, models: Mapping[str, Chosen]
) -> Iterator[tuple[Callable[[ModelSettings, int, str], Engine], Launch]]:
    """Start or join Ray, and yield what starts a model and a judge's server there; a Ray of this run is stopped."""
    require_verl()
    scale = settings or ScaleSettings()
    if scale.rollout.gpus and scale.device == "cuda" and find_spec("cupy") is None:
        raise UserError(
            f"scale.rollout.gpus = {scale.rollout.gpus}: verl sends the weights there by NCCL, for which it needs cupy:"
            " pip install cupy-cuda12x"
        )
    choose_platform(scale)
    from rewardsmith.scale.cluster import Cluster  # noqa: PLC0415 it imports verl
    from rewardsmith.scale.judge_hosts import launch_on_cluster  # noqa: PLC0415
    from rewardsmith.scale.verl_engine import open_engine, start_folder  # noqa: PLC0415

    cluster = Cluster(scale, folder, server_gpus(models, scale))

    def start(model: ModelSettings, seed: int, name: str) -> Engine:
        path = start_folder(model, folder / "start" / name, seed=seed, name=name)
        return open_engine(cluster, model, path, name=name, writes=model.head == "language")

    try:
        yield start, partial(launch_on_cluster, scale)
    finally:
        cluster.close()


def worker_error(error: BaseException) -> UserError | None:
    """Return what a user can do about an error of Ray: a process that died, or no memory; None for other errors."""
    if not type(error).__module__.startswith("ray."):
        return None
    from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

    if not isinstance(error, RayError):
        return None
    lines = [line.strip() for line in _ESCAPES.sub("", str(error)).strip().splitlines()]
    if any("OutOfMemoryError" in line for line in lines):
        return UserError(
            f"a GPU of the cluster has not enough memory: {lines[-1]}. Lower models.NAME.tokens_per_pass or"
            " scale.rollout.memory_share, or set recompute = true for the model or scale.offload = true; then run the"
            " same command with --accept-changes"
        )
    if getattr(error, "actor_init_failed", False):
        return UserError(f"a worker of the cluster cannot start: {lines[-1]} (run.log has the whole message)")
    if isinstance(error, RayTaskError) and not any(sign in line for line in lines for sign in _PEER_DIED):
        return None  # an error in the code that a worker ran: its traceback is what helps
    cause = next((line for sign in ("dead because", "died") for line in lines if sign in line), lines[-1])
    cause = cause.partition(" If the process was killed by the kernel")[0].rstrip(".")
    which = ", ".join(line for line in lines if line.startswith(("name: ", "pid: ", "ip: ")))
    return UserError(
        f"a worker of the cluster died{f' ({which})' * bool(which)}: {cause}. Ray's logs have more. The same command"
        " resumes from the last checkpoint"
    )


_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours
_PEER_DIED = (
    "ActorDiedError",
    "ActorUnavailableError",
    "Connection closed by peer",
    "Connection reset by peer",
    "NCCL",
)
