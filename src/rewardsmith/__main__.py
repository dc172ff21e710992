"""`python -m rewardsmith`, and the command `rewardsmith`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it quietly, too."""
    try:
        from rewardsmith.cli import main as run  # noqa: PLC0415

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
