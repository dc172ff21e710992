"""Models behind servers that the run starts, waits for and stops.

- `model.py`: `ManagedModel`, which starts its server when it is first needed, and again when it dies
- `commands.py`: the command lines of vLLM, SGLang and transformers
- `naming.py`: the name under which a server offers a model
- `probe.py`: is a server healthy, and what has it
- `process.py`: the trainer's end of a server's process, and its log
- `supervisor.py`: a small process between the two, which leaves nothing behind
"""

from rewardsmith.engines.managed.model import ManagedModel

__all__ = ["ManagedModel"]
