"""Where prompts and demonstrations come from, by name."""

from rewardsmith.data.arithmetic import Arithmetic
from rewardsmith.data.protocol import DemonstrationSource, Source

SOURCES: dict[str, type[Source]] = {
    "arithmetic": Arithmetic,
}

__all__ = ["SOURCES", "Arithmetic", "DemonstrationSource", "Source"]
