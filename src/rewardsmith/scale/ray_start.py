"""Start or join Ray, check its nodes, and reserve the GPUs of a run; every wait has an end."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import ray
import torch
from ray.exceptions import GetTimeoutError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.single_controller.ray.base import RayResourcePool, sort_placement_group_by_node_ip

from rewardsmith.errors import UserError
from rewardsmith.scale.placement import ServerGpus
from rewardsmith.scale.scale_settings import GROUPS_PER_GPU, ScaleSettings

CONNECT_TIMEOUT = 10.0  # seconds in which the head node must accept a connection
JOIN_TIMEOUT = 60.0  # seconds in which nodes that are missing may still join a cluster
CPUS_PER_ROLLOUT_GPU = 2  # that verl asks for
NODE_TIMEOUT = 180.0  # seconds in which every node must run a first task
SAME_EVERYWHERE = ("rewardsmith", "verl", "ray", "torch", "transformers")


def environment(scale: ScaleSettings) -> dict[str, str]:
    """Return the variables that every process of the run needs."""
    entries = dict.fromkeys(str(Path(entry).absolute()) for entry in sys.path)
    own = [entry for entry in entries if not entry.startswith((sys.prefix, sys.base_prefix))]
    shared = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(own)}  # a user's own losses are there
    if scale.device == "cpu":
        shared |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "rewardsmith.scale.cpu", "OMP_NUM_THREADS": "1"}
    return shared


def start_ray(scale: ScaleSettings, folder: Path, servers: ServerGpus) -> RayResourcePool:
    """Start a Ray of this run, or join the one at `scale.address`; return the GPUs of its workers."""
    gpus = scale.processes + scale.rollout.gpus + servers.on_cluster
    local: dict[str, Any] = {"include_dashboard": False}
    if scale.device == "cpu":
        cpus = scale.processes * GROUPS_PER_GPU + scale.rollout.gpus * CPUS_PER_ROLLOUT_GPU
        local |= {"num_gpus": gpus, "num_cpus": 4 + cpus}
    else:  # the first ones; managed servers may have the others
        local["num_gpus"] = min(gpus, torch.cuda.device_count())
    if scale.address:
        _require_answer(scale.address)
    try:
        ray.init(
            **({"address": scale.address} if scale.address else local),
            namespace=f"rewardsmith-{uuid4().hex}",  # verl names its servers alike in every run
            runtime_env={"env_vars": environment(scale)},
            logging_level="ERROR",
            log_to_driver=False,  # what the workers print stays in Ray's own logs; their errors come here
        )
    except (ConnectionError, RuntimeError) as error:
        what = f'scale.address = "{scale.address}": cannot join Ray' if scale.address else "cannot start Ray"
        raise UserError(f"{what}: {error}") from error
    try:
        _require_room(scale)
        _require_gpus(scale, gpus)
        _require_unknown_to_ray(servers.here)
        if scale.address:
            _require_same_nodes(folder)
        return _reserve(scale)
    except BaseException:
        ray.shutdown()
        raise


def _require_answer(address: str) -> None:
    """Raise a `UserError` unless a gRPC server answers at the address; Ray itself would wait for many minutes."""
    address = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" without a variable: Ray finds the one of this machine, or says that there is none
    channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
        grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT)
    except (OSError, grpc.FutureTimeoutError) as error:
        why = f" ({error})" if str(error) else ""
        raise UserError(
            f"scale.address: no Ray answers at {address}{why}. Start one with `ray start --head` on that machine,"
            " and check the port (6379 unless --port says another) and firewalls"
        ) from None
    finally:
        channel.close()


def _require_room(scale: ScaleSettings) -> None:
    """Raise a `UserError` unless the nodes of Ray, when nothing else runs, have room for the run."""
    per_node = {"GPU": scale.gpus_per_node, "CPU": scale.gpus_per_node * GROUPS_PER_GPU}
    deadline = time.monotonic() + (JOIN_TIMEOUT if scale.address else 0)
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(kind, 0)) // wanted for kind, wanted in per_node.items()) for node in nodes)
        if room >= scale.nodes or time.monotonic() >= deadline:
            break
        time.sleep(1)
    if room < scale.nodes:  # verl would wait for ever
        found = ", ".join(f"{node.get('GPU', 0):g} GPUs and {node.get('CPU', 0):g} CPUs" for node in nodes)
        raise UserError(
            f"scale asks for nodes = {scale.nodes} with gpus_per_node = {scale.gpus_per_node}, which takes"
            f" {per_node['GPU']} GPUs and {per_node['CPU']} CPUs on each. The nodes of Ray have {found}: lower"
            " scale.nodes or scale.gpus_per_node, or set scale.address to a larger cluster"
        )


def _require_gpus(scale: ScaleSettings, wanted: int) -> None:
    """Raise a `UserError` unless all nodes together have the GPUs of workers, rollout servers and judges."""
    found = int(ray.cluster_resources().get("GPU", 0))
    if found < wanted:
        raise UserError(
            f"the run needs {wanted} GPUs: {scale.processes} for its workers, {scale.rollout.gpus} for rollout servers"
            f" (scale.rollout.gpus) and {wanted - scale.processes - scale.rollout.gpus} for managed servers. Ray has"
            f" {found}: lower one of them, or set scale.address to a larger cluster"
        )


def _require_unknown_to_ray(gpus: Sequence[int]) -> None:
    """Raise a `UserError` if Ray could give away a GPU of this machine that a managed server has."""
    here = next(node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id())
    if gpus and here["Resources"].get("GPU", 0) > gpus[0]:
        raise UserError(
            f"GPU {gpus[0]} of this machine is for a managed server (models.NAME.devices), and Ray could give it"
            f" to others too: start Ray here with --num-gpus={gpus[0]}, or leave devices out"
        )


def _require_same_nodes(folder: Path) -> None:
    """Raise a `UserError` unless every node has the packages of this process and sees the folder of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f"probe-{uuid4().hex}"

    def facts() -> dict[str, str]:  # sent by value: it must run where our package is missing
        from importlib.metadata import PackageNotFoundError  # noqa: PLC0415

        found = {"Python": platform.python_version().rpartition(".")[0]}
        for name in SAME_EVERYWHERE:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = "not installed"
        return found | {"run folder": "visible" if probe.exists() else f"{folder} not visible"}

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    ask = ray.remote(num_cpus=0)(facts)
    try:
        probe.touch()
        ours = facts()
        there = [
            ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
            for node in nodes
        ]
        answers = ray.get(there, timeout=NODE_TIMEOUT)
    except GetTimeoutError:
        raise UserError(
            f"the nodes of Ray did not run a first task within {NODE_TIMEOUT:g} s: see Ray's logs"
        ) from None
    finally:
        probe.unlink(missing_ok=True)
    problems = [
        f"{node['NodeManagerAddress']} has {what} {theirs}, and this process {ours[what]}"
        for node, answer in zip(nodes, answers, strict=True)
        for what, theirs in answer.items()
        if theirs != ours[what]
    ]
    if problems:
        raise UserError(
            f"the nodes of Ray differ: {'; '.join(problems)}. Give every node the same environment, and put the run"
            " folder (--folder) on a file system that all of them see"
        )


def _reserve(scale: ScaleSettings) -> RayResourcePool:
    """Return the GPUs of the run, as soon as other runs leave enough of them."""
    pool = RayResourcePool([scale.gpus_per_node] * scale.nodes, use_gpu=True, max_colocate_count=GROUPS_PER_GPU)
    bundle = {"CPU": GROUPS_PER_GPU, "GPU": 1}
    groups = [placement_group([bundle] * scale.gpus_per_node, strategy="STRICT_PACK") for _ in range(scale.nodes)]
    _, missing = ray.wait([group.ready() for group in groups], num_returns=len(groups), timeout=scale.wait)
    if missing:
        for group in groups:
            remove_placement_group(group)
        raise UserError(
            f"{len(missing)} of {scale.nodes} nodes with {scale.gpus_per_node} free GPUs each are missing after"
            f" scale.wait = {scale.wait:g} s: another run has them. Wait for its end, or raise scale.wait"
        )
    pool.pgs = sort_placement_group_by_node_ip(groups)
    return pool
