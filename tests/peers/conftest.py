"""Real TRL, verifiers and falsepass; without them (they have an environment of their own) these tests are skipped."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("trl") and find_spec("verifiers") else ["test_*.py"]  # make test-peers has them
collect_ignore = [] if find_spec("falsepass") else ["test_falsepass.py"]
