"""Measure reward models against truth that is known, and policies by what holds: see docs/evaluation.md."""
