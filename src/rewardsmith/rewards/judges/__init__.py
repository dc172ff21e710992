"""Judges: rewards that ask a model."""
