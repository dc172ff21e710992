"""Worker processes in which rules and other functions of users run: killable, capped, and never in each other's way.

- `pool.py`: the queue, the threads, `Pool`
- `shared.py`: the pools of this process
- `slot.py`: a place for one worker; what the loss of a worker says about the answers it had
- `jobs.py`: what is waiting to be scored
- `call.py`: a rule, or another function, with its settings
- `handles.py`: the trainer's end of the processes
- `wire.py`: messages
- `nursery.py`: the process that imports rules and forks workers
- `worker.py`: a worker
- `limits.py`: what a process may use, and with whom it dies
"""

from rewardsmith.rewards.pool.call import Call, version_of
from rewardsmith.rewards.pool.pool import Pool
from rewardsmith.rewards.pool.shared import shared, shared_waiting

__all__ = ["Call", "Pool", "shared", "shared_waiting", "version_of"]
