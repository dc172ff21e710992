"""Implicit process reward models in training: they score the rollouts of a step, and learn from their outcomes."""
