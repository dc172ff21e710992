"""Models behind servers that the run starts, waits for, restarts and stops.

- `managed_model.py`: `ManagedModel`, which starts its server when it is first needed, and again when it dies
- `managed_replicas.py`: several of them as one model, which share the load
- `server_process.py`: command lines of vLLM, SGLang and transformers; the server's process and its log
- `supervisor.py`: a small process between the two, so that no server outlives the run
"""

from rewardsmith.engines.managed.managed_model import ManagedModel
from rewardsmith.engines.managed.managed_replicas import ManagedReplicas, managed_model

__all__ = ["ManagedModel", "ManagedReplicas", "managed_model"]
