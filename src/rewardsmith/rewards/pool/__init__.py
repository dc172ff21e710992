"""Worker processes in which rules and other functions of users run: killable, with a deadline and a memory cap.

- `pool.py`: the queue, one thread per worker, `Pool` and the shared pools
- `calls.py`: a rule with its settings; what waits to be scored
- `processes.py`: the trainer's end of the fork server and the workers
- `fork_server.py`: the process that imports rules and forks workers; the loop of a worker
- `channel.py`: messages on a socket
"""

from rewardsmith.rewards.pool.calls import Call, version_of
from rewardsmith.rewards.pool.pool import Pool, shared, shared_waiting

__all__ = ["Call", "Pool", "shared", "shared_waiting", "version_of"]
