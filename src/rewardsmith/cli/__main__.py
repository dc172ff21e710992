"""`python -m rewardsmith.cli`."""

from rewardsmith.cli import main

main()
