"""A rule that takes another time each time, for runs whose groups must not depend on that."""

import os
import time

from rewardsmith.types import Prompt


def late(prompt: Prompt, text: str, *, seconds: float = 0.0) -> float:
    """Return 1 for an answer that begins with a letter, after up to so many seconds."""
    time.sleep(os.urandom(1)[0] / 255 * seconds)
    return float(text[:1].isalpha())
