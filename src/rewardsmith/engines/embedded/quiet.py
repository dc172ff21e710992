"""Keeps `transformers` off the terminal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the notes, warnings and progress bars of `transformers` off the terminal; what matters we say ourselves."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # also those of the hub
            if not hub_bars:
                disable_progress_bars()
