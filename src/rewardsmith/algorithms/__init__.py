"""The mathematics: pure functions, one small file per idea, nothing else of rewardsmith imported.

Tensors carry their shape in their name; the legend is in `shapes.py`. The statistics (`ranks`, `agreement`,
`bootstrap`, `calibration`, `consistency`, `rewardbench`, `bradley_terry`, `offsets`) and `schedules` work without
torch, so nothing is imported here.
"""
