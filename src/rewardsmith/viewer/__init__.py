"""The pages of a run: `rewardsmith view`, its static bundle, and the report that every run writes.

All three show the same data (`run_overview`, `rollout_view`) with the same scripts (`web/`). Everything here reads run
folders and never writes to them, except for the report.
"""
