"""`rewardsmith prepare`: from raw data to what reward models are trained on. One module for each family of commands."""

from __future__ import annotations

import typer

from rewardsmith.cli.prepare import gqm, preferences, rubrics

prepare = typer.Typer(
    name="prepare",
    help="Make the data that reward models are trained on.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
gqm.register(prepare)
preferences.register(prepare)
rubrics.register(prepare)

__all__ = ["prepare"]
