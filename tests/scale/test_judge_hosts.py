"""Servers of judges inside Ray: calls, restarts, and the end of everything with the run."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path

import ray

from rewardsmith.engines.managed import managed_model
from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.scale.judge_hosts import launch_on_cluster
from rewardsmith.scale.scale_settings import ScaleSettings
from tests.engines.processes import alive
from tests.engines.test_managed import COMMAND, question


def test_servers_run_in_ray_are_restarted_and_end_with_it(tmp_path: Path) -> None:
    os.environ["JUDGE_KEY_OF_TEST"] = "of the driver"
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    settings = ManagedSettings(
        command=COMMAND, model="small", replicas=2, retries=8, environment={"KEY": {"env": "JUDGE_KEY_OF_TEST"}}
    )
    launch = partial(launch_on_cluster, ScaleSettings(device="cpu"))
    model = managed_model(settings, name="judge", folder=tmp_path, log=lambda text: None, launch=launch)

    async def pids() -> set[int]:
        return {int(reply.text) for reply in await asyncio.gather(*(model.chat(question()) for _ in range(16)))}

    async def use() -> set[int]:
        await model.check()
        first = await pids()
        assert len(first) == 2
        assert b"KEY=of the driver" in Path(f"/proc/{min(first)}/environ").read_bytes()
        assert "started with" in (tmp_path / "judge.log").read_text()
        os.kill(min(first), signal.SIGKILL)
        async with asyncio.timeout(300):
            while len(second := await pids() - {min(first)}) < 2:
                await asyncio.sleep(0.1)
        return second

    try:
        running = asyncio.run(use())
    finally:
        ray.shutdown()  # without close(), as when the driver dies
        del os.environ["JUDGE_KEY_OF_TEST"]
    deadline = time.monotonic() + 120
    while any(map(alive, running)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, running))
