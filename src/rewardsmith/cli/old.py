"""The commands that are no jobs yet."""

from __future__ import annotations

import typer

from rewardsmith.cli.prepare import prepare

app = typer.Typer(
    name="rewardsmith",
    help="Train language models against rewards, and train the reward models themselves.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

app.add_typer(prepare)
