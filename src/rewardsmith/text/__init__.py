"""Strings in, strings out: answers in model output, verdicts in judges' replies, prompts for judges."""
