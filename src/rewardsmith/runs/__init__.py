"""A run on disk: its folder, its report, and what follows it from outside."""
