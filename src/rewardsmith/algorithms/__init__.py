"""The mathematics: pure functions, one small file per idea, nothing else of rewardsmith imported.

Tensors carry their shape in their name; the legend is in `shapes.py`. Only `ranks`, `agreement`,
`schedules`, `bradley_terry` and `offsets` work without torch, so nothing is imported here.
"""
