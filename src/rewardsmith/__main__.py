"""`python -m rewardsmith`."""

from rewardsmith.cli import main

main()
