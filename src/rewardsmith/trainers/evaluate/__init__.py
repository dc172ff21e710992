"""Evaluation of rewards against known truth, and of policies by what can be verified: see docs/evaluation.md."""
