"""Worker processes in which rules and other functions of users run: killable, with a deadline and a memory cap.

- `pool.py`: the queue, one thread per worker, `Pool` and the shared pools
- `processes.py`: the trainer's end of the fork server and the workers
- `fork_server.py`: the process that imports rules and forks workers; the loop of a worker
"""

from rewardsmith.rewards.pool.pool import Call, Pool, shared, shared_waiting, version_of

__all__ = ["Call", "Pool", "shared", "shared_waiting", "version_of"]
