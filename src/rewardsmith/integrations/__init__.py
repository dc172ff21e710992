"""Rewards of rewardsmith in other trainers (TRL, verl, OpenRLHF, verifiers and prime-rl), and the reward server.

Each module is thin over `LoadedReward.score_group`. What a failure becomes differs from peer to peer, because only some
of them have a value for it; it never becomes a number. The peers are optional.
"""
