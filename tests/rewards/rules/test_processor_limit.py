"""The limit on the processor time of an answer."""

import signal
import sys
import time
from typing import Any

import pytest

from rewardsmith.rewards.rules.rule_settings import TooSlowError, processor_limit


def spin(seconds: float = 20.0) -> None:
    """Use processor time, for longer than any limit here."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class SlowToDelete:
    """Its destructor is where the limit is reached; Python drops what is raised there."""

    def __del__(self) -> None:
        spin()


def delete_and_spin() -> None:
    SlowToDelete()
    spin()


class Broken:
    def __del__(self) -> None:
        raise KeyError("own")


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: found.append(error.exc_type))
    return found


def test_a_limit_that_is_reached_in_a_destructor_still_ends_the_block(reported: list[Any]) -> None:
    hook = sys.unraisablehook
    with pytest.raises(TooSlowError), processor_limit(0.05):
        delete_and_spin()
    assert reported == []
    assert sys.unraisablehook is hook


def test_other_errors_of_destructors_are_reported(reported: list[Any]) -> None:
    with processor_limit(5.0):
        Broken()
    assert reported == [KeyError]


def test_afterwards_nothing_is_left_of_it() -> None:
    handler = signal.getsignal(signal.SIGVTALRM)
    with processor_limit(5.0):
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0
    assert signal.getsignal(signal.SIGVTALRM) is handler
