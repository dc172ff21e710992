"""The built-in judge prompts, one text file each."""
