"""Where prompts and demonstrations come from, by name."""

from rewardsmith.data.arithmetic import Arithmetic

SOURCES: dict[str, type] = {
    "arithmetic": Arithmetic,
}

__all__ = ["SOURCES", "Arithmetic"]
