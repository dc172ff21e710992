"""The environment that ranks, as a plug-in of its own."""

from judged_env import RankedEnv

__all__ = ["RankedEnv"]
