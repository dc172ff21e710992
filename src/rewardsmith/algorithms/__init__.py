"""The mathematics: pure functions, one file per family, nothing else of rewardsmith imported.

Tensors carry their shape in their name; the legend is in `tensors.py`. `ranks`, `judge_statistics`, `strengths` and
`token_rewards` work without torch, so nothing is imported here.
"""
