"""A program that has a managed server, run by the tests to be ended in all the ways that a program can end.

    python trainer_with_server.py FOLDER WAY

It prints `ready` when its server is, then ends by itself if WAY says how, or waits for what is done to it.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from tests.engines.test_managed import managed


async def main(folder: Path, way: str) -> None:
    more = {"starting": ["--after", "600"], "stubborn": ["--stubborn"]}.get(way, [])
    model = managed(folder, "--child", str(folder / "pids"), *more)
    if way == "starting":
        print("ready", flush=True)
    await model.check()
    if way == "forked":
        forked = os.fork()
        if forked == 0:  # like a data loader's worker: it holds copies of all our pipes
            time.sleep(600)
        (folder / "forked").write_text(str(forked))
    print("ready", flush=True)
    if way == "returns":
        return
    if way == "raises":
        raise RuntimeError("something went wrong")
    if way == "exits":
        sys.exit(0)
    if way == "leaves":
        os._exit(0)
    await asyncio.sleep(600)


if __name__ == "__main__":
    signal.alarm(120)  # whatever happens, no process stays for ever
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
