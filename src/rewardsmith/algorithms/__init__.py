"""The mathematics: pure functions, one file per family, nothing else of rewardsmith imported.

Tensors carry their shape in their name; the legend is in `shapes.py`. The statistics (`ranks`, `calibration`,
`consistency`, `rewardbench`, `bradley_terry`, `offsets`), `token_rewards` and `schedules` work without torch, so
nothing is imported here.
"""
